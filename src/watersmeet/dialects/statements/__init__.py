"""Readers of the statements that several dialects have."""

"""Readers of statements that several dialects share."""

"""Timeplus' additions: kinds of joins, ranges of times, dictionaries and settings."""

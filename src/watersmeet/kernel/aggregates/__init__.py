"""Aggregates: what is remembered of a group, and the results from it."""

"""Statements as trees, and what all their readers share: tokens, queries, types, nodes."""

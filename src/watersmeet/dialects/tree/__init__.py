"""Statements as trees; tokens, queries, types and nodes for all readers."""

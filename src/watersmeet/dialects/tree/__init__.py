"""Statements as trees, and the tokens, queries, types and nodes that all readers use."""

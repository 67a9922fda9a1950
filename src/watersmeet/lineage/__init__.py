"""EXPLAIN ROW and EXPLAIN MISSING ROW: where a row of a query comes from, and why a row is missing.

The query is run again, for that row alone. This package is a plug-in of the session (`session.handlers`):
the engine runs without it.
"""

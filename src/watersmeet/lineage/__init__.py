"""EXPLAIN ROW and EXPLAIN MISSING ROW: where a row of a query comes from, and why a row is missing.

Both run the query again, only for that row. This package is a plug-in of the session (`session.handlers`): the engine
runs without it.
"""

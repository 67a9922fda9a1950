"""EXPLAIN ROW and EXPLAIN MISSING ROW: the origin of a query's row, and the reason why a row is missing.

Both run the query again, only for that row. This package is a plug-in of the session (`session.handlers`): the engine
runs without it.
"""

"""Joins of streaming Spark DataFrames, without SQL and without a database: `join`, `asof`, `latest`.

The rows of both sides travel as Arrow frames to the bucket of their key, where one stateful operator of Spark runs the
kernel's own circuit on them; its runs are values in Spark's state store, so that there is only the user's query and its
checkpoint. `docs/DATAFRAMES.md` defines the results.
"""

"""Joins of streaming Spark DataFrames, without SQL and without a database: `join`, `asof`, `latest`.

The rows of both sides are sent as Arrow frames to the bucket of their key, where a stateful Spark operator runs the
kernel's circuit on them. The state's runs are values in Spark's state store, so that the checkpoint of the user's query
contains all state. `docs/DATAFRAMES.md` defines the results.
"""

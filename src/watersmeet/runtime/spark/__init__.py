"""The engine on Spark: one Structured Streaming query keeps all views of a database.

The stream's offsets are numbers of epochs: `source` offers those that the coordinator has planned, and for each
micro-batch `engine` runs their tasks as Spark jobs (`jobs`, `worker`) and commits them. Tasks read and return Arrow
batches.
"""

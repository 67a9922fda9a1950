"""Apache Iceberg: the snapshots of a table, a table as a target, and its content."""

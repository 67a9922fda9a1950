"""Apache Iceberg: the snapshots of a table as a source, its content, a table as a target."""

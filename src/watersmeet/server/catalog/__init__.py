"""What PostgreSQL's catalog says, as tools ask for it: own tables with PostgreSQL's columns, in a DuckDB in memory."""

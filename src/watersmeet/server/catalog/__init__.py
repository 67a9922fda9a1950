"""PostgreSQL's system catalog for tools: tables with its columns, in an in-memory DuckDB."""

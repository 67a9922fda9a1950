"""The process and its machine: files, memory, libraries, connections of DuckDB, secrets. It knows no database."""

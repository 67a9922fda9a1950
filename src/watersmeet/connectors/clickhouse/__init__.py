"""ClickHouse: client and types, content of tables, target."""

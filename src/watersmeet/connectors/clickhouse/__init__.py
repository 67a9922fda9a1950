"""ClickHouse: client, types, content of tables, target."""

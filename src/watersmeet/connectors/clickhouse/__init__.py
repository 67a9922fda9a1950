"""The connectors of ClickHouse: client, types, content of tables, target."""

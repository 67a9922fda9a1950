"""PostgreSQL: client, types, content of tables, target, change data capture by logical replication."""

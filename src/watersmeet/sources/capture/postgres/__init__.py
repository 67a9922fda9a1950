"""Changes of PostgreSQL, by logical replication."""

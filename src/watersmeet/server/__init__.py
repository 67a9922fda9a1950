"""A database as a server: connections of PostgreSQL's protocol, version 3."""

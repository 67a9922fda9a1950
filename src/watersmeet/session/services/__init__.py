"""What runs beside statements: running queries, the upkeep of streams and dictionaries, status."""

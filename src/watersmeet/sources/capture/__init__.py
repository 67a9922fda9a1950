"""Changes of a PostgreSQL database, taken from its log (change data capture)."""

"""Changes of databases, taken from the logs of their servers (change data capture)."""

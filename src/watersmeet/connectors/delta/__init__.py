"""Delta Lake: the log of a table, and a table as a target."""

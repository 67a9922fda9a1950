"""Change data capture: copies of tables of other databases, whose changes are committed as transactions."""

"""Change data capture: tables of other databases, whose changes are committed as transactions."""

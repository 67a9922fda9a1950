"""Columns as Arrow and numpy arrays: hashes, orders, exact sums. Nothing here knows of changes."""

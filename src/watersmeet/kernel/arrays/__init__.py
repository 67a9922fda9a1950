"""Columns as Arrow and numpy arrays: hashes, orders, exact sums. These modules have no notion of changes."""

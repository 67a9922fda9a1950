"""Lenses' additions: queries over records, which have keys and times."""

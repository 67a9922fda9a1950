"""Lenses' dialect: Lenses, "Joins", LS-01 to LS-48."""

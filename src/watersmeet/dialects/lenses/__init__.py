"""Lenses' dialect: document 004, FEATURES LS-01 to LS-48."""

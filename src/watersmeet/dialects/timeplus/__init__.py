"""Timeplus' dialect: document 003, FEATURES TP-01 to TP-63."""

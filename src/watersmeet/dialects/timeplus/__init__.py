"""Timeplus' dialect: Timeplus, "Multi-JOINs and ASOF JOINs", TP-01 to TP-63."""

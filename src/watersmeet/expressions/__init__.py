"""Binds scalar expressions: functions, operators, casts and literals become typed DuckDB trees."""

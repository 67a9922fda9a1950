"""Expressions, evaluated by DuckDB over Arrow tables."""

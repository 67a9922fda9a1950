"""Scalar expressions: parsed expressions as typed DuckDB trees; functions, operators, casts and
literals.
"""

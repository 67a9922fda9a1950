"""Scalar expressions: what a parsed expression means, as a typed DuckDB tree; functions, operators, casts and
literals.
"""

"""Whole queries: SELECT and set operations."""

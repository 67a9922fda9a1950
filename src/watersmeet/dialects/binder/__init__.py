"""Binder: gives a parsed query its meaning, as a tree of the algebra."""

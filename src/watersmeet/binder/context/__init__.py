"""Scopes, bindings and the hooks of dialects."""

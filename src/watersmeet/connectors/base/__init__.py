"""Contracts and shared parts of all connectors."""

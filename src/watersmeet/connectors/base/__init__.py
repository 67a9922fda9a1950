"""Contracts of connectors, and what all of them share."""

"""The contracts and shared parts of all connectors."""

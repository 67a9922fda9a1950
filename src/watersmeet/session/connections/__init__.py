"""PEP 249, and running the statements of a text."""

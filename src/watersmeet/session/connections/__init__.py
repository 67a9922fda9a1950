"""Connections and cursors of PEP 249, and how texts become statements that are run."""

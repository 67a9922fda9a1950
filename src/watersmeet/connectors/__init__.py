"""Connectors: how Watersmeet reads from and writes to external systems, one folder per system.

`base` has the contracts, `registry` finds a connector by its name. Laws: no input is skipped without being counted and
shown; no row is given twice; a slice that is read again gives the same rows; cutting the input otherwise gives the same
rows; a target that remembers positions gets every change exactly once.
"""

"""Connectors read from and write to external systems, with one folder per system.

`base` has the contracts, `registry` finds a connector by its name. Laws: skipped input is always counted and shown; no
row is read twice; reading a slice again returns the same rows; cutting the input differently gives the same rows; a
target that stores offsets receives every change exactly once.
"""

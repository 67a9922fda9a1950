"""Benchmarks: each checks its result (rows and checksum) and measures a peer in the same run.

`python -m benchmarks` lists them, `python -m benchmarks NAME [--quick]` runs one. Figures depend on the machine and on
what else it does: compare within one run only.
"""

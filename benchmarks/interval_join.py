"""Interval join of two streams with watermarks, inner and left: Watersmeet, Spark's own interval join, DuckDB's batch
join.

A bound of 30 s; the rest is in `timed`. `--batches 100` shows that state and memory stay flat.
"""

from __future__ import annotations

from benchmarks.timed import TimedJoin

JOIN = TimedJoin("interval", "l.k = r.k AND l.ts BETWEEN r.ts AND r.ts + INTERVAL '30 seconds'")


def main(arguments: list[str]) -> int:
    return JOIN.main(arguments, __doc__)

"""Join within one-minute windows of two streams with watermarks, inner and left: Watersmeet, Spark's own, DuckDB's
batch join.

Spark joins on its window() columns; the rest is in `timed`. `--batches 100` shows that state and memory stay flat.
"""

from __future__ import annotations

from benchmarks.timed import TimedJoin

JOIN = TimedJoin(
    "window",
    "l.k = r.k AND l.window_start = r.window_start",
    "TUMBLE({source}, ts, INTERVAL '1' MINUTE)",
    (
        "(SELECT *, make_timestamp(epoch_us(ts) // 60000000 * 60000000) AS window_start FROM "
        "read_parquet('{source}/*.parquet'))"
    ),
)


def main(arguments: list[str]) -> int:
    return JOIN.main(arguments, __doc__)

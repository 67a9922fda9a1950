"""Interval join of two streams with watermarks, inner and left: Watersmeet, Spark's own interval join, DuckDB's batch join.

4 M + 4 M rows, 900 k keys, a bound of 30 s, rows up to 19 s behind others with 20 s of lateness allowed: no row is late, so that all
answers are the same. Targets: 8 times Spark's own join, 300 k input rows/s on two idle cores. `--batches 100` shows state and
memory after each micro-batch instead: both stay flat.
"""

from __future__ import annotations

import argparse

from benchmarks.frame import SOURCES, Streams, batch, in_batches, ours, parser, report, streams
from benchmarks.peers import spark_join

QUERY = """
    SELECT l.k, l.ts AS l_ts, l.amount AS l_amount, l.note AS l_note, r.ts AS r_ts, r.amount AS r_amount, r.note AS r_note
    FROM {left} l {kind} JOIN {right} r ON l.k = r.k AND l.ts BETWEEN r.ts AND r.ts + INTERVAL '30 seconds'
"""
WATERMARK = ", WATERMARK FOR ts AS ts - INTERVAL '20 seconds'"
CHECK = "count(*), CAST(sum((l_amount + 1) * (coalesce(r_amount, 3) + 7)) AS BIGINT)"
#: Spark gives left rows without partner only once the watermark has passed them, the last ones never.
PAIRS = "count(r_amount), CAST(sum((l_amount + 1) * (r_amount + 7)) AS BIGINT)"
LATENESS_US = 19_000_000


def main(arguments: list[str]) -> int:
    options = parser("interval_join", __doc__, spark=True)
    options.add_argument("--kind", choices=("inner", "left"), action="append")
    options.add_argument("--batches", type=int, default=0)
    options.add_argument("--spark-rows", type=int, help="rows on each side for Spark, which takes minutes; default: as for the others")
    options = options.parse_args(arguments)
    if options.batches:
        options.rows_per_file = options.rows // options.batches
    given = streams(options, lateness_us=LATENESS_US)
    for kind in options.kind or ("inner", "left"):
        print(f"--- {kind}")
        script = f"{SOURCES.replace('{watermark}', WATERMARK)} CREATE MATERIALIZED VIEW joined AS {QUERY.format(left='l', right='r', kind=kind)}"
        if options.batches:
            in_batches(script, given, options.parallelism, options.batches)
            continue
        made = ours(script.format(left=given.left, right=given.right), CHECK, options.parallelism)
        report(given.total, made, batch(_over_files(given, kind), CHECK))
        if not options.no_spark:
            _beside_spark(options, kind, given.total / made.seconds)
    return 0


def _over_files(given: Streams, kind: str) -> str:
    return QUERY.format(left=f"read_parquet('{given.left}/*.parquet')", right=f"read_parquet('{given.right}/*.parquet')", kind=kind)


def _beside_spark(options, kind: str, rate: float) -> None:
    rows = options.spark_rows or options.rows
    given = streams(argparse.Namespace(**{**vars(options), "rows": rows}), lateness_us=LATENESS_US)
    spark = spark_join(given.left, given.right, 3, PAIRS, f"interval-{kind}")
    assert spark.check == batch(_over_files(given, kind), PAIRS).check, spark
    print(f"spark's own    {given.total / spark.seconds:>12,.0f} rows/s  {spark.seconds:7.1f} s of {given.total:,} rows  "
          f"watersmeet is {rate * spark.seconds / given.total:.1f} times as fast")

"""Regular inner join of two append-only streams: Watersmeet, Spark's own join, DuckDB's batch join.

4 M + 4 M rows, 900 k keys, four columns with a string, Parquet files. Targets: 8 times Spark's own join, 490 k input
rows/s on two idle cores.
"""

from __future__ import annotations

from benchmarks.frame import SOURCES, batch, copied, ours, parser, report, streams
from benchmarks.peers import spark_join

QUERY = """
    SELECT l.k, l.ts AS l_ts, l.amount AS l_amount, l.note AS l_note, r.ts AS r_ts, r.amount AS r_amount,
    r.note AS r_note
    FROM {left} l JOIN {right} r ON l.k = r.k
"""
#: Order-free: the sum over all rows of a product of both sides' numbers.
CHECK = "count(*), CAST(sum((l_amount + 1) * (r_amount + 7)) AS BIGINT)"


def main(arguments: list[str]) -> int:
    options = parser("regular_join", __doc__, spark=True).parse_args(arguments)
    given = streams(options)
    files = QUERY.format(
        left=f"read_parquet('{given.left}/*.parquet')", right=f"read_parquet('{given.right}/*.parquet')"
    )
    peer, copy = batch(files, CHECK), copied(files, CHECK)
    script = SOURCES.format(left=given.left, right=given.right, watermark="")
    view = f"{script} CREATE MATERIALIZED VIEW joined AS {QUERY.format(left='l', right='r')}"
    made = ours(view, CHECK, options.parallelism, again=True)
    spark = None
    if not options.no_spark:
        spark = spark_join(given.left, given.right, 3, CHECK)
        assert spark.check == peer.check, (spark, peer)
    report(given.total, made, peer, spark, copy=copy)
    return 0

"""ASOF LEFT join of two streams: each row with the newest record of its key; DuckDB's batch ASOF join as the practical
limit.

4 M + 4 M rows, 900 k keys, Parquet files. Target: 250 k input rows/s on two idle cores. Both sides revise the result,
so what is measured includes the records that arrive after the rows that they belong to.
"""

from __future__ import annotations

from benchmarks.frame import SOURCES, batch, copied, ours, parser, report, streams

QUERY = """
    SELECT l.k, l.ts, l.amount, r.ts AS r_ts, r.note FROM {left} l ASOF LEFT JOIN {right} r ON l.k = r.k
        AND l.ts >= r.ts
"""
# Equally near records of one key would leave the choice open: the times alone do not.
CHECK = "count(*), sum(k % 1000 + amount + coalesce({micros} % 1000003, 7))"


def main(arguments: list[str]) -> int:
    options = parser("asof_join", __doc__).parse_args(arguments)
    given = streams(options)
    query = QUERY.format(
        left=f"read_parquet('{given.left}/*.parquet')", right=f"read_parquet('{given.right}/*.parquet')"
    )
    check = CHECK.format(micros="epoch_us(r_ts)")
    peer, copy = batch(query, check), copied(query, check)
    script = SOURCES.format(left=given.left, right=given.right, watermark="")
    made = ours(
        f"{script} CREATE MATERIALIZED VIEW joined AS {QUERY.format(left='l', right='r')}",
        CHECK.format(micros="(extract(epoch FROM r_ts) * 1000000)::bigint"),
        options.parallelism,
        again=True,
    )
    report(given.total, made, peer, copy=copy)
    return 0

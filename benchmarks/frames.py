"""Joins of streaming DataFrames (`watersmeet.join`) beside Spark's own stream-stream join and DuckDB's batch join.

The same files, session settings and micro-batches for both, Parquet files out. ASOF has no peer in Spark: its changes
are summed up and compared with DuckDB's batch ASOF join. `python -m benchmarks.frames` runs one join in a process of
its own.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time

from benchmarks.frame import Measured, batch, parser, streams
from benchmarks.peers import spark_join
from benchmarks.processes import cpu_seconds
from benchmarks.spark import OWN_OPERATORS, STREAM, in_own_process, spark_session, warm_up, written

#: Pairs only: when rows without partner come, and that the last ones never do, is Spark's own affair.
PAIRS = "count(r_amount), CAST(sum((l_amount + 1) * (r_amount + 7)) AS BIGINT)"
SUMMED = "CAST(sum(diff) AS BIGINT), CAST(sum(diff * (l_amount + 1) * (coalesce(r_amount, 3) + 7)) AS BIGINT)"
ALL = "count(*), CAST(sum((l_amount + 1) * (coalesce(r_amount, 3) + 7)) AS BIGINT)"
CONDITIONS = {
    "regular": "l.k = r.k",
    "interval-inner": "l.k = r.k AND l.ts BETWEEN r.ts AND r.ts + INTERVAL '30 seconds'",
    "asof-left": "l.k = r.k AND l.ts >= r.ts",
}
CONDITIONS["interval-left"] = CONDITIONS["interval-inner"]
LATENESS_US = 19_000_000
ADVISED = {
    "spark.sql.execution.arrow.maxRecordsPerBatch": "100000",
    "spark.sql.execution.arrow.maxBytesPerBatch": "2147483647",
    "spark.sql.adaptive.streaming.stateless.enabled": "false",
}


def main(arguments: list[str]) -> int:
    options = parser("frames", __doc__, spark=True)
    options.set_defaults(rows=1_000_000, keys=225_000)
    options.add_argument("--join", choices=tuple(CONDITIONS), action="append")
    options.add_argument("--files-per-trigger", type=int, default=3)
    options.add_argument("--state", choices=("store", "files"), default="store", help="where the join's state is")
    options.add_argument("--buckets", type=int, default=2, help="as many as cores")
    options.add_argument("--warm", action="store_true", help="each session has run a query without state before")
    options = options.parse_args(arguments)
    given = streams(options, lateness_us=LATENESS_US)
    for join in options.join or ("interval-inner", "interval-left", "asof-left"):
        found = in_own_process(
            "benchmarks.frames",
            *(
                given.left,
                given.right,
                options.files_per_trigger,
                join,
                options.state,
                options.buckets,
                int(options.warm),
            ),
        )
        made = Measured(found["seconds"], tuple(found["check"]), cpu_s=found["cpu_s"])
        asof = join == "asof-left"
        peer = batch(
            f"SELECT l.amount AS l_amount, r.amount AS r_amount FROM read_parquet('{given.left}/*.parquet') l "
            f"{'ASOF LEFT' if asof else 'LEFT' if 'left' in join else ''} JOIN "
            f"read_parquet('{given.right}/*.parquet') r "
            f"ON {CONDITIONS[join]}",
            ALL if asof else PAIRS,
        )
        assert made.check == peer.check, (made, peer)
        print(
            f"--- {join}: {given.total:,} rows in, {made.check[0]:,} rows or pairs out, checksum {made.check[1]}: equal"
        )
        print(
            f"watersmeet.join{given.total / made.seconds:>12,.0f} rows/s  {made.seconds:7.1f} s  "
            f"cpu {made.cpu_s:6.1f} s  state {found['state_rows']:,} rows, {found['state_bytes'] / 1e6:.0f} MB; "
            f"batches {found['batches']}"
        )
        if not options.no_spark and not asof:
            spark = spark_join(given.left, given.right, options.files_per_trigger, PAIRS, join, warm=options.warm)
            assert spark.check == peer.check, (spark, peer)
            print(
                f"spark's own    {given.total / spark.seconds:>12,.0f} rows/s  {spark.seconds:7.1f} s  "
                f"cpu {spark.cpu_s:6.1f} s  watersmeet.join is {spark.seconds / made.seconds:.1f} times as fast"
            )
    return 0


def session():
    """A user's session, with Spark's own settings but for what the stateful operator needs and what
    `docs/DATAFRAMES.md` advises.
    """
    return spark_session({**OWN_OPERATORS, **ADVISED})


def _one(left: str, right: str, files_per_trigger: int, join: str, state: str, buckets: int, warm: bool) -> None:
    import duckdb

    import watersmeet

    spark = session()
    if warm:
        warm_up(spark, left)

    def stream(path: str, prefix: str):
        frame = spark.readStream.schema(STREAM)
        frame = frame.option("maxFilesPerTrigger", files_per_trigger).parquet(path)
        return frame.selectExpr("k", *(f"{c} AS {prefix}_{c}" for c in ("ts", "amount", "note")))

    marks = {"left_watermark": ("l_ts", "20 seconds"), "right_watermark": ("r_ts", "20 seconds")}
    within = {"within": ("-30 seconds", "0 seconds"), **marks}
    how = {
        "regular": {},
        "interval-inner": within,
        "interval-left": {"how": "left", "emit": "final", **within},
        "asof-left": {"how": "left", "match": watersmeet.asof("l_ts", "r_ts"), **marks},
    }[join]
    with tempfile.TemporaryDirectory() as folder:
        started, used = time.perf_counter(), cpu_seconds(os.getpid())
        place = {"state": f"{folder}/state"} if state == "files" else {}
        joined = watersmeet.join(stream(left, "l"), stream(right, "r"), on="k", buckets=buckets, **place, **how)
        query = written(joined, folder)
        seconds, cpu_s = time.perf_counter() - started, cpu_seconds(os.getpid()) - used
        found = (
            duckdb.connect()
            .execute(f"SELECT {SUMMED if join == 'asof-left' else PAIRS} FROM read_parquet('{folder}/out/*.parquet')")
            .fetchone()
        )
        progress = [p for p in query.recentProgress if p.observedMetrics]
        figures = next(iter(watersmeet.join_metrics(progress[-1]).values()))
    times = [round(p.durationMs["triggerExecution"] / 1000, 1) for p in progress]
    print(
        json.dumps(
            {
                "seconds": seconds,
                "cpu_s": cpu_s,
                "check": [int(v) for v in found],
                "batches": times,
                "state_rows": figures["state_rows"],
                "state_bytes": figures["state_bytes"],
            }
        )
    )


if __name__ == "__main__":
    _one(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4], sys.argv[5], int(sys.argv[6]), sys.argv[7] == "1")

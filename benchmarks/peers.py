"""Spark's own stream-stream joins, measured beside Watersmeet's.

`python -m benchmarks.peers LEFT RIGHT FILES CHECK JOIN WARM` runs one in a process of its own and prints one JSON line.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from pathlib import Path

import duckdb

from benchmarks.frame import Measured
from benchmarks.processes import cpu_seconds
from benchmarks.spark import STREAM, in_own_process, spark_session, warm_up, written

_INTERVAL = "l_k = r_k AND l_ts >= r_ts AND l_ts <= r_ts + INTERVAL 30 SECONDS"
_WINDOW = "l_k = r_k AND l_window = r_window"
#: By name: (condition, kind of join in Spark's words).
JOINS = {
    "regular": ("l_k = r_k", "inner"),
    "interval-inner": (_INTERVAL, "inner"),
    "interval-left": (_INTERVAL, "leftouter"),
    "window-inner": (_WINDOW, "inner"),
    "window-left": (_WINDOW, "leftouter"),
}


def spark_join(
    left: Path, right: Path, files_per_trigger: int, check: str, join: str = "regular", *, warm: bool = False
) -> Measured:
    """Spark's own stream-stream join, RocksDB state, in a process of its own; what it wrote is checked by `check`.
    warm: after `warm_up`.

    interval, window: with a watermark of 20 s on both sides; windows are tumbling, of a minute.
    """
    found = in_own_process("benchmarks.peers", left, right, files_per_trigger, check, join, int(warm))
    return Measured(found["seconds"], tuple(found["check"]), cpu_s=found["cpu_s"])


def _main(left: str, right: str, files_per_trigger: int, check: str, join: str, warm: bool) -> None:
    from pyspark.sql import functions as f

    spark = spark_session()
    if warm:
        warm_up(spark, left)

    def stream(path: str, prefix: str):
        frame = spark.readStream.schema(STREAM).option("maxFilesPerTrigger", files_per_trigger).parquet(path)
        frame = frame.select(
            f.col("k").alias(f"{prefix}_k"),
            f.col("ts").cast("timestamp").alias(f"{prefix}_ts"),
            f.col("amount").alias(f"{prefix}_amount"),
            f.col("note").alias(f"{prefix}_note"),
        )
        if join.startswith("interval"):
            frame = frame.withWatermark(f"{prefix}_ts", "20 seconds")
        if join.startswith("window"):  # of which Spark takes the watermark only if no other column has one
            frame = frame.withColumn("event", f.col(f"{prefix}_ts") + f.expr("INTERVAL 0 SECONDS")).withWatermark(
                "event", "20 seconds"
            )
            frame = frame.withColumn(f"{prefix}_window", f.window("event", "1 minute")).drop("event")
        return frame

    condition, kind = JOINS[join]
    joined = stream(left, "l").join(stream(right, "r"), f.expr(condition), kind).drop("l_window", "r_window")
    with tempfile.TemporaryDirectory() as folder:
        started, used = time.perf_counter(), cpu_seconds(os.getpid())
        written(joined, folder)
        seconds, cpu_s = time.perf_counter() - started, cpu_seconds(os.getpid()) - used
        found = duckdb.connect().execute(f"SELECT {check} FROM read_parquet('{folder}/out/*.parquet')").fetchone()
    print(json.dumps({"seconds": seconds, "cpu_s": cpu_s, "check": [int(v) for v in found]}))


if __name__ == "__main__":
    _main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4], sys.argv[5], sys.argv[6] == "1")

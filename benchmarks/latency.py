"""From a row visible in the source to the row visible in SELECT: one-stage view, 100 rows a micro-batch.

Also the time of a micro-batch itself and the use of the processor when idle. The peer is Spark's own
stateless micro-batch over the same files, the cost of Structured Streaming before any join. `--inserts 1000` measures
single INSERTs in process instead, each until SELECT shows its row.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path

import pyarrow.parquet as pq

import watersmeet
from benchmarks.data import stream_table
from benchmarks.processes import cpu_seconds, median, percentile, wait_until

SETUP = """
CREATE TABLE names (k bigint PRIMARY KEY, name varchar);
INSERT INTO names SELECT i, 'name ' || i FROM generate_series(0, 999) AS g(i);
CREATE SOURCE l (k bigint, ts timestamp, amount bigint, note varchar)
    WITH (connector = 'file', path = '{folder}', format = 'parquet');
CREATE MATERIALIZED VIEW v AS SELECT l.k, l.ts, l.amount, n.name FROM l JOIN names n ON l.k = n.k;
FLUSH;
"""
INSERTS = """
CREATE TABLE names (k bigint PRIMARY KEY, name varchar);
INSERT INTO names SELECT i, 'name ' || i FROM generate_series(0, 999) AS g(i);
CREATE TABLE t (id bigint PRIMARY KEY, k bigint, v bigint);
CREATE MATERIALIZED VIEW v AS SELECT t.id, t.v, n.name FROM t JOIN names n ON t.k = n.k;
FLUSH;
"""


def put(folder: Path, number: int, rows: int) -> None:
    table = stream_table(3, number * rows, rows, 1000)
    part = folder / f".{number}.part"
    pq.write_table(table, part)
    part.rename(folder / f"{number:06d}.parquet")


def ours(parallelism: int, batches: int, rows: int) -> dict:
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "in"
        folder.mkdir()
        with watersmeet.connect(Path(scratch) / "db", parallelism=parallelism) as connection:
            cursor = connection.cursor()
            cursor.execute(SETUP.format(folder=folder))
            latencies, epochs = [], []
            for number in range(batches + 5):
                put(folder, number, rows)
                expected = (number + 1) * rows

                def visible() -> bool:
                    cursor.execute("SELECT count(*) FROM v")
                    return cursor.fetchone()[0] == expected  # noqa: B023

                latencies.append(wait_until(visible, 60))
                epochs.append(connection.status()["duration_us"] / 1000)
                time.sleep(0.3)
            before, started = cpu_seconds(os.getpid()), time.perf_counter()
            time.sleep(10)
            idle = (cpu_seconds(os.getpid()) - before) / (time.perf_counter() - started)
            cursor.execute("SELECT count(*), sum(amount) FROM v")
            assert cursor.fetchone()[0] == (batches + 5) * rows
    return {"latency": [s * 1000 for s in latencies[5:]], "epoch": epochs[5:], "idle": idle}


def inserted(rows: int) -> tuple[list[float], list[float]]:
    """(milliseconds, of processor time) from each INSERT of a row to the SELECT that shows it, in process."""
    with (
        tempfile.TemporaryDirectory() as scratch,
        watersmeet.connect(Path(scratch) / "db", parallelism=1, runtime="inprocess") as connection,
    ):
        connection.show_own_writes()
        cursor = connection.cursor()
        cursor.execute(INSERTS)
        times, used = [], []
        for number in range(rows):
            began, cpu = time.perf_counter(), time.process_time()
            cursor.execute(f"INSERT INTO t VALUES ({number}, {number % 1000}, {number})")
            found = cursor.execute(f"SELECT id, v, name FROM v WHERE id = {number}").fetchall()
            times.append((time.perf_counter() - began) * 1000)
            used.append((time.process_time() - cpu) * 1000)
            assert found == [(number, number, f"name {number % 1000}")], found
        found = cursor.execute("SELECT count(*), sum(v) FROM v").fetchone()
        assert found == (rows, rows * (rows - 1) // 2), found
    return times, used


def spark_own(batches: int, rows: int) -> list[float]:
    """Milliseconds of Spark's own micro-batch: read the file, filter, write it again."""
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.getOrCreate()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "in"
        folder.mkdir()
        stream = spark.readStream.schema("k long, ts timestamp_ntz, amount long, note string").parquet(str(folder))
        query = (
            stream.where("k >= 0")
            .writeStream.format("parquet")
            .option("path", f"{scratch}/out")
            .option("checkpointLocation", f"{scratch}/ck")
            .start()
        )
        times = []
        for number in range(batches + 5):
            put(folder, number, rows)
            while len(done := [p for p in query.recentProgress if p.numInputRows]) <= number:
                time.sleep(0.01)
            times.append(float(done[-1].durationMs["triggerExecution"]))
        query.stop()
    spark.stop()
    return times[5:]


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="latency", description=__doc__)
    parser.add_argument("--batches", type=int, default=100)
    parser.add_argument("--rows", type=int, default=100)
    parser.add_argument("--inserts", type=int, default=0)
    options = parser.parse_args(arguments)
    if options.inserts:
        for name, times in zip(("INSERT to SELECT", "of processor time"), inserted(options.inserts), strict=True):
            print(f"{name}: median {median(times):.1f} ms, 99th percentile {percentile(times, 0.99):.1f} ms")
        return 0
    for parallelism in (1, 2):
        result = ours(parallelism, options.batches, options.rows)
        latency, epoch = result["latency"], result["epoch"]
        print(
            f"watersmeet, parallelism {parallelism}: source to SELECT median {median(latency):.0f} ms, "
            f"99th percentile {percentile(latency, 0.99):.0f} ms; micro-batch median {median(epoch):.0f} ms; "
            f"idle {result['idle']:.1%} of a core"
        )
    print(f"spark's own stateless micro-batch: median {median(spark_own(20, options.rows)):.0f} ms")
    return 0

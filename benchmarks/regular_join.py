"""Regular inner join of two append-only streams: Watersmeet, Spark's own join, DuckDB's batch join.

4 M + 4 M rows, 900 k keys, four columns with a string, Parquet files. Targets: 8 times Spark's
own join, 490 k input rows/s on two idle cores.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path

import watersmeet
from benchmarks.data import write_stream
from benchmarks.peers import CHECK, duckdb_join, spark_join
from benchmarks.processes import PeakMemory

VIEW = """
CREATE SOURCE l (k bigint, ts timestamp, amount bigint, note varchar)
    WITH (connector = 'file', path = '{left}', format = 'parquet');
CREATE SOURCE r (k bigint, ts timestamp, amount bigint, note varchar)
    WITH (connector = 'file', path = '{right}', format = 'parquet');
CREATE MATERIALIZED VIEW joined AS
    SELECT l.k, l.ts AS l_ts, l.amount AS l_amount, l.note AS l_note,
           r.ts AS r_ts, r.amount AS r_amount, r.note AS r_note
    FROM l JOIN r ON l.k = r.k;
"""


def watersmeet_join(left: Path, right: Path, parallelism: int) -> dict:
    with tempfile.TemporaryDirectory() as folder:
        with watersmeet.connect(Path(folder) / "db", parallelism=parallelism) as connection:
            cursor = connection.cursor()
            with PeakMemory() as memory:
                started = time.perf_counter()
                cursor.execute(VIEW.format(left=left, right=right))
                cursor.execute("FLUSH")
                seconds = time.perf_counter() - started
            status = connection.status()
            cursor.execute(f"SELECT {CHECK} FROM joined")
            n, checksum = cursor.fetchone()
    state_bytes = sum(v["state_bytes"] for v in status["views"])
    return {"seconds": seconds, "rows": n, "checksum": checksum, "peak_bytes": memory.peak_bytes,
            "state_bytes": state_bytes}


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="regular_join", description=__doc__)
    parser.add_argument("--rows", type=int, default=4_000_000, help="rows on each side")
    parser.add_argument("--keys", type=int, default=900_000)
    parser.add_argument("--parallelism", type=int, default=os.cpu_count())
    parser.add_argument("--no-spark", action="store_true", help="leave Spark's own join out (it takes minutes)")
    parser.add_argument("--data", type=Path, default=Path(tempfile.gettempdir()) / "watersmeet-benchmarks")
    options = parser.parse_args(arguments)
    name = f"{options.rows}-{options.keys}"
    left, right = options.data / f"{name}-l", options.data / f"{name}-r"
    write_stream(left, 1, options.rows, options.keys, 100_000)
    write_stream(right, 2, options.rows, options.keys, 100_000)
    total = 2 * options.rows
    peer = duckdb_join(left, right)
    ours = watersmeet_join(left, right, options.parallelism)
    assert (ours["rows"], ours["checksum"]) == (peer["rows"], peer["checksum"]), (ours, peer)
    print(f"rows in {total:,}, rows out {peer['rows']:,}, checksum {peer['checksum']}: equal")
    print(f"watersmeet     {total / ours['seconds']:>12,.0f} rows/s  {ours['seconds']:7.1f} s  "
          f"state {ours['state_bytes'] / 1e9:.2f} GB, peak memory {ours['peak_bytes'] / 1e9:.2f} GB")
    print(f"duckdb, batch  {total / peer['seconds']:>12,.0f} rows/s  {peer['seconds']:7.1f} s  "
          f"watersmeet takes {ours['seconds'] / peer['seconds']:.1f} times as long")
    if not options.no_spark:
        spark = spark_join(left, right, 3)
        assert (spark["rows"], spark["checksum"]) == (peer["rows"], peer["checksum"]), (spark, peer)
        print(f"spark's own    {total / spark['seconds']:>12,.0f} rows/s  {spark['seconds']:7.1f} s  "
              f"watersmeet is {spark['seconds'] / ours['seconds']:.1f} times as fast")
    return 0

"""ASOF LEFT join of two streams: each row with the newest record of its key; DuckDB's batch ASOF join as the practical limit.

4 M + 4 M rows, 900 k keys, Parquet files. Target: 250 k input rows/s on two idle cores. Both sides revise the result,
so what is measured includes the records that arrive after the rows that they belong to.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path

import duckdb

import watersmeet
from benchmarks.data import write_stream
from benchmarks.processes import PeakMemory

VIEW = """
CREATE SOURCE l (k bigint, ts timestamp, amount bigint, note varchar)
    WITH (connector = 'file', path = '{left}', format = 'parquet');
CREATE SOURCE r (k bigint, ts timestamp, amount bigint, note varchar)
    WITH (connector = 'file', path = '{right}', format = 'parquet');
CREATE MATERIALIZED VIEW joined AS
    SELECT l.k, l.ts, l.amount, r.ts AS r_ts, r.note
    FROM l ASOF LEFT JOIN r ON l.k = r.k AND l.ts >= r.ts;
"""
# Equally near records of one key would leave the choice open: the times alone do not.
CHECK = "count(*), sum(k % 1000 + amount + coalesce(epoch_us(r_ts) % 1000003, 7))"
PEER = """
SELECT {check} FROM (
    SELECT l.k, l.amount, r.ts AS r_ts FROM read_parquet('{left}/*.parquet') l
    ASOF LEFT JOIN read_parquet('{right}/*.parquet') r ON l.k = r.k AND l.ts >= r.ts)
"""


def ours(left: Path, right: Path, parallelism: int) -> dict:
    with tempfile.TemporaryDirectory() as folder:
        with watersmeet.connect(Path(folder) / "db", parallelism=parallelism) as connection:
            cursor = connection.cursor()
            with PeakMemory() as memory:
                started = time.perf_counter()
                cursor.execute(VIEW.format(left=left, right=right))
                cursor.execute("FLUSH")
                seconds = time.perf_counter() - started
            status = connection.status()
            cursor.execute(f"SELECT {CHECK.replace('epoch_us(r_ts)', '(extract(epoch FROM r_ts) * 1000000)::bigint')} FROM joined")
            n, checksum = cursor.fetchone()
    return {"seconds": seconds, "rows": n, "checksum": int(checksum), "peak_bytes": memory.peak_bytes,
            "state_bytes": sum(v["state_bytes"] for v in status["views"])}


def peer(left: Path, right: Path) -> dict:
    with duckdb.connect() as connection:
        started = time.perf_counter()
        n, checksum = connection.execute(PEER.format(check=CHECK, left=left, right=right)).fetchone()
        return {"seconds": time.perf_counter() - started, "rows": n, "checksum": int(checksum)}


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="asof_join", description=__doc__)
    parser.add_argument("--rows", type=int, default=4_000_000, help="rows on each side")
    parser.add_argument("--keys", type=int, default=900_000)
    parser.add_argument("--parallelism", type=int, default=os.cpu_count())
    parser.add_argument("--data", type=Path, default=Path(tempfile.gettempdir()) / "watersmeet-benchmarks")
    options = parser.parse_args(arguments)
    name = f"{options.rows}-{options.keys}"
    left, right = options.data / f"{name}-l", options.data / f"{name}-r"
    write_stream(left, 1, options.rows, options.keys, 100_000)
    write_stream(right, 2, options.rows, options.keys, 100_000)
    total = 2 * options.rows
    batch, made = peer(left, right), ours(left, right, options.parallelism)
    assert (made["rows"], made["checksum"]) == (batch["rows"], batch["checksum"]), (made, batch)
    print(f"rows in {total:,}, rows out {batch['rows']:,}, checksum {batch['checksum']}: equal")
    print(f"watersmeet     {total / made['seconds']:>12,.0f} rows/s  {made['seconds']:7.1f} s  "
          f"state {made['state_bytes'] / 1e9:.2f} GB, peak memory {made['peak_bytes'] / 1e9:.2f} GB")
    print(f"duckdb, batch  {total / batch['seconds']:>12,.0f} rows/s  {batch['seconds']:7.1f} s  "
          f"watersmeet takes {made['seconds'] / batch['seconds']:.1f} times as long")
    return 0

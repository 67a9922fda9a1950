"""Cost per row and per poll as history grows: the same rate with few and with 100,000 commits behind.

The state grows at one row a commit; what is compared is the time of FLUSH after one more row.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path

import watersmeet
from benchmarks.processes import cpu_seconds, median

SETUP = """
CREATE TABLE t (id bigint, k int) APPEND ONLY;
CREATE TABLE u (k int PRIMARY KEY, name varchar);
INSERT INTO u SELECT i, 'name ' || i FROM generate_series(0, 99) AS g(i);
CREATE MATERIALIZED VIEW v AS SELECT t.id, u.name FROM t JOIN u ON t.k = u.k;
FLUSH;
"""


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="history", description=__doc__)
    parser.add_argument("--commits", type=int, default=100_000)
    parser.add_argument("--samples", type=int, default=30)
    options = parser.parse_args(arguments)
    checkpoints = [100, options.commits // 10, options.commits]
    with (
        tempfile.TemporaryDirectory() as scratch,
        watersmeet.connect(Path(scratch) / "db", parallelism=1) as connection,
    ):
        cursor = connection.cursor()
        cursor.execute(SETUP)
        written = 0
        for checkpoint in checkpoints:
            while written < checkpoint:
                cursor.execute(f"INSERT INTO t VALUES ({written}, {written % 100})")
                written += 1
                if written % 2000 == 0:
                    cursor.execute("FLUSH")
            cursor.execute("FLUSH")
            times = []
            for _ in range(options.samples):
                started = time.perf_counter()
                cursor.execute(f"INSERT INTO t VALUES ({written}, {written % 100})")
                cursor.execute("FLUSH")
                times.append(time.perf_counter() - started)
                written += 1
            begun, before = time.perf_counter(), cpu_seconds(os.getpid())
            time.sleep(5)
            idle = (cpu_seconds(os.getpid()) - before) / (time.perf_counter() - begun)
            started = time.perf_counter()
            cursor.execute("SELECT count(*) FROM v")
            assert cursor.fetchone()[0] == written
            select = time.perf_counter() - started
            print(
                f"{written:>9,} commits behind: row in to FLUSH median {median(times) * 1000:.0f} ms, "
                f"SELECT {select * 1000:.0f} ms, idle {idle:.1%} of a core",
                flush=True,
            )
    return 0

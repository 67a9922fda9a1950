"""Twelve connected one-stage views: one row in, start-up, idle; against one such view in the same run."""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path

import watersmeet
from benchmarks.processes import cpu_seconds, median

TABLES = """
CREATE TABLE t (id int PRIMARY KEY, k int, v int);
CREATE TABLE u (k int PRIMARY KEY, name varchar);
INSERT INTO u SELECT i, 'name ' || i FROM generate_series(0, 99) AS g(i);
"""


def view(number: int) -> str:
    """A join with a condition of its own: no two views are the same operator."""
    return (
        f"CREATE MATERIALIZED VIEW v{number} AS SELECT t.id, t.v + {number} AS v, u.name FROM t "
        f"JOIN u ON t.k = u.k AND t.v > {number} - 100"
    )


def measure(views: int, repeats: int) -> dict:
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "db"
        with watersmeet.connect(path, parallelism=1) as connection:
            cursor = connection.cursor()
            cursor.execute(TABLES)
            for number in range(views):
                cursor.execute(view(number))
            times = []
            for number in range(repeats):
                started = time.perf_counter()
                cursor.execute(f"INSERT INTO t VALUES ({number}, {number % 100}, {number})")
                cursor.execute("FLUSH")
                times.append(time.perf_counter() - started)
                for v in range(views):
                    cursor.execute(f"SELECT count(*) FROM v{v}")
                    assert cursor.fetchone()[0] == number + 1
            before, begun = cpu_seconds(os.getpid()), time.perf_counter()
            time.sleep(10)
            idle = (cpu_seconds(os.getpid()) - before) / (time.perf_counter() - begun)
        started = time.perf_counter()
        with watersmeet.connect(path, parallelism=1) as connection:
            cursor = connection.cursor()
            cursor.execute("INSERT INTO t VALUES (100000, 1, 1000)")
            cursor.execute("FLUSH")
            cursor.execute(f"SELECT count(*) FROM v{views - 1}")
            assert cursor.fetchone()[0] == repeats + 1
            restart = time.perf_counter() - started
    return {"row": median(times[5:]), "idle": idle, "restart": restart}


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="twelve_views", description=__doc__)
    parser.add_argument("--repeats", type=int, default=30)
    options = parser.parse_args(arguments)
    one, twelve = measure(1, options.repeats), measure(12, options.repeats)
    for name, result in (("one view", one), ("twelve views", twelve)):
        print(
            f"{name:14} row in, FLUSH: median {result['row'] * 1000:.0f} ms; start-up with a row through all: "
            f"{result['restart']:.1f} s; idle {result['idle']:.1%} of a core"
        )
    print(f"twelve take {twelve['row'] / one['row']:.2f} times as long as one")
    return 0

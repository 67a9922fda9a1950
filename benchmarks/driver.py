"""What an epoch costs the driver, for how many views and buckets: where one driver becomes the limit."""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections import Counter
from pathlib import Path

import watersmeet
from benchmarks.processes import cpu_seconds, median, own_seconds
from benchmarks.twelve_views import TABLES
from watersmeet.runtime.memory import family


def view(number: int) -> str:
    """A join with a condition of its own: no two views are the same operator."""
    return (
        f"CREATE MATERIALIZED VIEW v{number} AS SELECT t.id, t.v + {number} AS v, u.name FROM t "
        f"JOIN u ON t.k = u.k AND t.v > {number} - 1000"
    )


def seconds_by_process() -> Counter[str]:
    """Processor seconds of the driver's Python, of its Java, and of the Python of tasks."""
    me, found = os.getpid(), Counter[str]()
    for pid in family(me):
        try:
            is_java = Path(f"/proc/{pid}/comm").read_text(encoding="utf-8").strip() == "java"
        except OSError:
            continue
        found["driver" if pid == me else "java" if is_java else "tasks"] += own_seconds(pid)
    return found


def measure(views: int, buckets: int, epochs: int) -> str:
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "db"
        with watersmeet.connect(path, parallelism=buckets) as connection:
            connection.execute(TABLES)
            for number in range(views):
                connection.execute(view(number))
            connection.execute("INSERT INTO t VALUES (-1, 1, 1); FLUSH")
            times: list[float] = []
            for number in range(2 * epochs):
                if number == epochs:
                    before = seconds_by_process()
                started = time.perf_counter()
                connection.execute(f"INSERT INTO t VALUES ({number}, {number % 100}, {number})")
                connection.execute("FLUSH")
                times.append(time.perf_counter() - started)
            spent = seconds_by_process() - before
            for number in (0, views - 1):
                assert connection.execute(f"SELECT count(*), sum(id) FROM v{number}").fetchall() == [
                    (2 * epochs + 1, sum(range(2 * epochs)) - 1)
                ]
            newest = sorted((path / "commits").glob("*.json"))[-2 * epochs :]
            size = median([float(p.stat().st_size) for p in newest][1::2])
        began, opened = time.perf_counter(), cpu_seconds(os.getpid())
        with watersmeet.connect(path, read_only=True) as reader:
            assert reader.execute("SELECT count(*) FROM v0").fetchall() == [(2 * epochs + 1,)]
        read = time.perf_counter() - began, cpu_seconds(os.getpid()) - opened
    per = {who: f"{spent[who] / epochs * 1000:.1f} ms" for who in ("driver", "java", "tasks")}
    return (
        f"{views:>4} views, {buckets:>2} buckets: a row to FLUSH {median(times[epochs:]) * 1000:.0f} ms; "
        f"processor time an epoch: driver {per['driver']}, Java {per['java']}, tasks {per['tasks']}; "
        f"a commit {size / 1000:.1f} kB; a reader opens in {read[0]:.2f} s ({read[1]:.2f} s of processor time)"
    )


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="driver", description=__doc__)
    parser.add_argument("--epochs", type=int, default=50)
    parser.add_argument("--views", type=int, nargs="*", default=[1, 10, 100])
    parser.add_argument("--buckets", type=int, nargs="*", default=[1, 16])
    options = parser.parse_args(arguments)
    for buckets in options.buckets:
        for views in options.views:
            print(measure(views, buckets, options.epochs), flush=True)
    return 0

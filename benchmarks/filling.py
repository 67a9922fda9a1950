"""A view is filled from a large table while rows of another view arrive: how long its rows take meanwhile.

One session inserts a row into a small table and waits until the view `live`, a join with the large table, shows it;
another one creates a view over the large table. `alone` fills as if nothing could run beside: epochs wait for the end.
At the end the view is compared with DuckDB's answer. Also shown are the processor times of live epochs and of pieces.

python -m benchmarks filling [--rows 20000000] [--path DIRECTORY]
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from unittest import mock

import numpy as np

import watersmeet
from watersmeet.runtime import backfill, coordinator
from watersmeet.runtime.inprocess import InProcessEngine
from watersmeet.runtime.taskcontract import Intent
from watersmeet.system.process import exclude_from_collections

TABLES = """
CREATE TABLE events (id bigint PRIMARY KEY, k bigint, amount bigint, at timestamp, kind varchar, text varchar);
CREATE TABLE small (id bigint PRIMARY KEY, k bigint);
CREATE MATERIALIZED VIEW live AS
    SELECT s.id, count(*) AS n FROM small AS s JOIN events AS e ON s.k = e.id GROUP BY s.id;
INSERT INTO events SELECT g, g % 1000003, g * 7 % 1009, TIMESTAMP '2026-01-01' + g * INTERVAL '1 second', 'k' || g % 17,
    'text ' || g FROM generate_series(1, {rows}) AS t(g);
FLUSH
"""
LARGE = "SELECT k, count(*) AS n, sum(amount) AS total FROM events GROUP BY k"
JOINED = "SELECT a.id, b.amount FROM events AS a JOIN events AS b ON a.id = b.id + 1 WHERE b.kind = 'k3'"


def latencies(connection: watersmeet.Connection, first: int, goes_on: Callable[[int], bool]) -> list[float]:
    """The times, in seconds, in which `live` shows each new row."""
    found: list[float] = []
    while goes_on(len(found)):
        number = first + len(found)
        began = time.perf_counter()
        connection.execute(f"INSERT INTO small VALUES ({number}, {number % 1000 + 1}); FLUSH")
        found.append(time.perf_counter() - began)
        time.sleep(0.02)
    return found


class Epochs:
    """The processor times of live epochs and of pieces of history in their thread, in seconds."""

    def __init__(self) -> None:
        self.times: dict[str, list[float]] = {}
        self._run = InProcessEngine._run

    def measuring(self) -> Callable[[InProcessEngine, coordinator.Coordinator, Intent], None]:
        """The function that runs an epoch of an engine, and measures it."""

        def run(engine: InProcessEngine, planner: coordinator.Coordinator, intent: Intent) -> None:
            began = time.thread_time()
            self._run(engine, planner, intent)
            if intent.has_work:
                self.times.setdefault(intent.mode.kind, []).append(time.thread_time() - began)

        return run

    def line(self) -> str:
        """The times since the last call."""
        found, self.times = self.times, {}
        shown = (f"{k} {len(t)}: p50 {p[0]:.1f} ms, p99 {p[1]:.1f} ms" for k, t in sorted(found.items())
                 for p in [np.percentile(t, [50, 99]) * 1000])  # fmt: skip
        return f"{'':28} epochs: {'; '.join(shown)}"


def line(what: str, found: Sequence[float], seconds: float | None) -> str:
    p50, p99, most = np.percentile(found, [50, 99, 100]) * 1000
    filled = "" if seconds is None else f"  filled in {seconds:6.1f} s"
    return f"{what:28} {len(found):6} rows  p50 {p50:8.1f} ms  p99 {p99:8.1f} ms  longest {most:8.1f} ms{filled}"


def measure(connection: watersmeet.Connection, query: str, name: str, first: int) -> tuple[list[float], float]:
    with ThreadPoolExecutor(1) as other:
        began = time.perf_counter()
        cursor = connection.cursor()
        made = other.submit(cursor.execute, f"CREATE MATERIALIZED VIEW {name} AS {query}")
        found = latencies(connection, first, lambda _: not made.done())
        made.result()
    connection.execute("FLUSH")
    difference = f"(SELECT * FROM {name} EXCEPT ALL ({query})) UNION ALL (({query}) EXCEPT ALL SELECT * FROM {name})"
    assert connection.execute(f"SELECT count(*) FROM ({difference}) AS d").fetchall() == [(0,)]
    return found, time.perf_counter() - began


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser("filling", description=__doc__)
    parser.add_argument("--rows", type=int, default=20_000_000)
    parser.add_argument("--path")
    wanted = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(dir=wanted.path) as folder:
        path, epochs = Path(folder) / "db", Epochs()
        connected = watersmeet.connect(path, runtime="inprocess", dialect="risingwave")
        with connected as connection, mock.patch.object(InProcessEngine, "_run", epochs.measuring()):
            connection.execute(TABLES.format(rows=wanted.rows))
            exclude_from_collections()  # as a server does
            epochs.line()
            print(line("no fill", latencies(connection, 1, lambda n: n < 300), None), flush=True)
            print(epochs.line(), flush=True)
            first = 1000
            for what, query in (("groups", LARGE), ("self join", JOINED)):
                for mode in ("beside", "alone"):
                    name = f"{what.replace(' ', '_')}_{mode}"
                    changed = mock.patch.object(backfill, "can_run_beside", return_value=False)
                    with changed if mode == "alone" else nullcontext():
                        found, seconds = measure(connection, query, name, first)
                    print(line(f"{what}, {mode}", found, seconds), flush=True)
                    print(epochs.line(), flush=True)
                    connection.execute(f"DROP MATERIALIZED VIEW {name}")
                    first += 100_000
    return 0

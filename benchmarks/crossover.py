"""Processor time of an epoch that changes a share of the rows, and of computing the same view from scratch.

TPC-H queries as live views, each in a database of its own. A refresh deletes a share of the orders with their lines and
inserts as many. For each share: the processor seconds of the epoch that brings the view up to date. For comparison: the
seconds of the epochs that fill the same view over the loaded tables by its operators, with their state, and those of
DuckDB for the query, which makes neither state nor the difference. All of this is in one process, and times are
processor times without those of compaction, so that other processes change little. The content of the view is compared
with DuckDB's result after each refresh.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import duckdb
import pyarrow as pa
from tests.harness import Harness
from tests.tpch.data import QUERIES, SCHEMA, TABLES, content, generated
from tests.tpch.live import Live
from tests.tpch.refresh import Pair, Refreshes

import watersmeet
from benchmarks.tpch import refresh
from watersmeet.catalog import RECOMPUTINGS
from watersmeet.runtime import inprocess


class Growing(Refreshes):
    """Refreshes of growing shares, none of which touches the orders of an earlier one."""

    def of(self, share: float) -> Pair:
        """The next pair, of that share of the orders."""
        used = self._number * self._count
        self._count = max(1, round(len(self._old) * share))
        self._number = -(-used // self._count)
        return self.next()


@contextmanager
def epochs() -> Iterator[list[float]]:
    """Collects the processor seconds of each epoch."""
    found: list[float] = []
    run = inprocess.run_epoch

    def timed(*arguments: Any) -> Any:
        began = time.process_time()
        try:
            return run(*arguments)
        finally:
            found.append(time.process_time() - began)

    with mock.patch.object(inprocess, "run_epoch", timed):
        yield found


def queried_s(judge: duckdb.DuckDBPyConnection, sql: str) -> float:
    """The least processor seconds of a query."""
    times = []
    for _ in range(3):
        began = time.process_time()
        judge.execute(sql).fetchall()
        times.append(time.process_time() - began)
    return min(times)


def measure(numbers: Sequence[int], options: argparse.Namespace) -> Iterator[str]:
    """The rows of the table for queries whose views are created and dropped in turn in the same database."""
    judge = generated(options.scale)
    judge.execute("SET threads = 1")
    tables = content(judge)
    with tempfile.TemporaryDirectory() as folder, _loaded(Path(folder) / "db", tables, options.loaded) as connection:
        connection.execute(f"SET recompute = '{options.recompute}'")
        live = Live(connection, judge)
        refreshes = Growing(tables, 1)
        for number in numbers:
            with epochs() as used:
                live.create([number])
                connection.execute("FLUSH")
            filled, cells, queried = sum(used), [], []
            live.check("after the load")
            for share in options.shares:
                refresh(live, refreshes.of(share), Path(folder) / "keys.parquet", flush=False)
                with epochs() as used:
                    connection.execute("FLUSH")
                cells.append(sum(used))
                queried.append(queried_s(judge, QUERIES[number]))
                live.check(f"after a refresh of {share:.1%}")
            live.drop(number)
            shares = " | ".join(f"{s:.2f} s ({s / filled:.1f})" for s in cells)
            yield f"| Q{number} | {shares} | {filled:.2f} s | {min(queried):.2f} s |"


@contextmanager
def _loaded(path: Path, tables: dict[str, pa.Table], stored: Path | None) -> Iterator[watersmeet.Connection]:
    """A database with the tables; a copy of the one at `stored`, which is made unless it is there."""
    made = path if stored is None else stored
    if not made.exists():
        with watersmeet.connect(made, parallelism=1, runtime="inprocess") as connection:
            connection.execute(SCHEMA)
            for name in TABLES:
                Harness(connection).inject(name, tables[name])
            connection.execute("FLUSH")
    if stored is not None:
        shutil.copytree(stored, path)
    with watersmeet.connect(path, parallelism=1, runtime="inprocess") as connection:
        yield connection


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="crossover", description=__doc__)
    parser.add_argument("queries", type=int, nargs="*", default=[1, 3, 5, 6, 9, 13, 18, 21])
    parser.add_argument("--scale", type=float, default=0.1)
    parser.add_argument("--shares", type=float, nargs="*", default=[0.01, 0.1, 0.5])
    parser.add_argument("--recompute", choices=RECOMPUTINGS, default="auto", help="the option of the views")
    parser.add_argument("--together", action="store_true", help="one database for all queries, which is loaded once")
    parser.add_argument("--loaded", type=Path, help="a database with the tables, kept for further runs of this scale")
    options = parser.parse_args(arguments)
    heads = " | ".join(f"{share:.1%} (of the filling)" for share in options.shares)
    print(f"scale {options.scale:g}")
    print(f"| query | {heads} | filling | duckdb |")
    print("|---" * (len(options.shares) + 3) + "|")
    for numbers in [options.queries] if options.together else [[number] for number in options.queries]:
        for row in measure(numbers, options):
            print(row, flush=True)
    return 0

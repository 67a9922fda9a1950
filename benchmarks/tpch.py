"""TPC-H queries as live views: loading in micro-batches, refreshes, state; DuckDB recomputing in the same run.

Each query has a database of its own. A refresh inserts and deletes a share of the orders with their lines. The content
of the view is compared with DuckDB's answer after the load and after every refresh.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
from tests.harness import Harness
from tests.tpch.data import QUERIES, SCHEMA, TABLES, content, generated
from tests.tpch.live import Live
from tests.tpch.refresh import Refreshes

import watersmeet
from benchmarks.processes import PeakMemory, median
from watersmeet.system.process import cores


def load(live: Live, tables: dict, batches: int) -> tuple[float, float]:
    """(seconds of the statements, seconds until the views show them); the judge has the rows already."""
    statements = views = 0.0
    for batch in range(batches):
        started = time.perf_counter()
        live.connection.execute("BEGIN")
        for name in TABLES:
            rows = tables[name]
            first, last = (rows.num_rows * b // batches for b in (batch, batch + 1))
            if last > first:
                Harness(live.connection).inject(name, rows.slice(first, last - first))
        live.connection.execute("COMMIT")
        written = time.perf_counter()
        live.connection.execute("FLUSH")
        statements += written - started
        views += time.perf_counter() - written
    return statements, views


def refresh(live: Live, pair, keys: Path, *, flush: bool = True) -> tuple[float, float]:
    """(seconds of the statements, seconds until the view shows them).

    keys: a file for those that go, as RF2 has one. flush: whether to wait for the view.
    """
    pq.write_table(pa.table({"k": list(pair.deleted)}), keys)
    deletions = [
        f"DELETE FROM {table} WHERE {column} IN (SELECT k FROM read_parquet('{keys}'))"
        for table, column in (("lineitem", "l_orderkey"), ("orders", "o_orderkey"))
    ]
    for table, rows in (("orders", pair.orders), ("lineitem", pair.lineitem)):
        live.judge.register("incoming", rows)
        live.judge.execute(f"INSERT INTO {table} SELECT * FROM incoming")
        live.judge.unregister("incoming")
    for statement in deletions:
        live.judge.execute(statement)
    started = time.perf_counter()
    live.connection.execute("BEGIN")
    Harness(live.connection).inject("orders", pair.orders)
    Harness(live.connection).inject("lineitem", pair.lineitem)
    for statement in deletions:
        live.connection.execute(statement)
    live.connection.execute("COMMIT")
    written = time.perf_counter()
    if flush:
        live.connection.execute("FLUSH")
    return written - started, time.perf_counter() - written


def recompute(judge: duckdb.DuckDBPyConnection, number: int) -> float:
    """Seconds of DuckDB's answer: the median of five."""
    times = []
    for _ in range(5):
        started = time.perf_counter()
        judge.execute(QUERIES[number]).fetchall()
        times.append(time.perf_counter() - started)
    return median(times)


def measure(number: int, options: argparse.Namespace) -> str:
    judge = generated(options.scale)
    judge.execute(f"SET threads = {options.parallelism}")
    tables = content(judge)
    with (
        tempfile.TemporaryDirectory() as folder,
        PeakMemory() as memory,
        watersmeet.connect(Path(folder) / "db", parallelism=options.parallelism, runtime=options.runtime) as connection,
    ):
        connection.execute(SCHEMA)
        live = Live(connection, judge)
        live.create([number])
        loading = load(live, tables, options.batches)
        live.check("after the load")
        status = connection.status()
        state = sum(view["state_bytes"] for view in status["views"])
        refreshes, statements, views, epochs = Refreshes(tables, 1, options.share), [], [], []
        again = recompute(judge, number)
        for step in range(options.refreshes):
            took = refresh(live, refreshes.next(), Path(folder) / "keys.parquet")
            statements.append(took[0])
            views.append(took[1])
            epochs.append(connection.status()["duration_us"] / 1e6)
            live.check(f"after refresh {step}")
    rows = sum(t.num_rows for t in tables.values())
    return (
        f"| Q{number} | {loading[1]:.1f} s ({rows / loading[1] / 1000:.0f} k rows/s), statements "
        f"{loading[0]:.1f} s | {memory.peak_bytes / 1e9:.2f} GB | "
        f"{state / 1e6:.0f} MB | {median(statements) * 1000:.0f} ms | {median(views) * 1000:.0f} ms "
        f"(micro-batch {median(epochs) * 1000:.0f} ms) | {again * 1000:.0f} ms |"
    )


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="tpch", description=__doc__)
    parser.add_argument("queries", type=int, nargs="*", default=[3, 5, 9, 18, 21])
    parser.add_argument("--scale", type=float, default=0.1)
    parser.add_argument("--batches", type=int, default=20)
    parser.add_argument("--refreshes", type=int, default=7)
    parser.add_argument("--share", type=float, default=0.01)
    parser.add_argument("--parallelism", type=int, default=cores())
    parser.add_argument("--runtime", default="spark", choices=("spark", "inprocess"))
    options = parser.parse_args(arguments)
    print(f"scale {options.scale:g}, {options.batches} micro-batches, refreshes of {options.share:.1%}")
    print(
        "| query | load | peak memory | state | statements of a refresh | until the view shows it | duckdb "
        "from scratch |"
    )
    print("|---|---|---|---|---|---|---|")
    with watersmeet.connect(parallelism=1, runtime=options.runtime):  # Spark stays from one database to the next
        for number in options.queries:
            print(measure(number, options), flush=True)
    return 0

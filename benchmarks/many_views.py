"""Many materialized views created by one script, in process and on the disk; then the database is opened again.

The views are joins, aggregates and filters of two small tables. Processor times include those of child processes when
the database is opened again. `--spark` runs on Spark: compare with one view, because each opening starts a session.
`--rows` measures instead that many rows, one by one, through views in memory.

python -m benchmarks many_views [--views 100 400 1000] [--spark] [--rows 10]
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import watersmeet
from benchmarks.processes import cpu_seconds

TABLES = """
CREATE TABLE orders (id bigint PRIMARY KEY, customer bigint, amount bigint);
CREATE TABLE customers (id bigint PRIMARY KEY, name varchar);
INSERT INTO customers VALUES (1, 'ann'), (2, 'bob');
INSERT INTO orders VALUES (1, 1, 10), (2, 2, 20);
"""
QUERIES = (
    "SELECT o.id, o.amount, c.name FROM orders AS o JOIN customers AS c ON o.customer = c.id WHERE o.amount > {}",
    "SELECT customer, sum(amount) AS total, count(*) AS number FROM orders WHERE amount > {} GROUP BY customer",
    "SELECT id, amount + {0} AS more FROM orders WHERE amount < {0}",
)


def script(views: int) -> str:
    """The statements that create the tables and the views."""
    made = (f"CREATE MATERIALIZED VIEW v{i} AS {QUERIES[i % 3].format(i)};" for i in range(views))
    return TABLES + "\n".join(made)


def measure(views: int, folder: str, *, spark: bool) -> str:
    """A line of figures."""
    path = Path(folder) / f"db{views}"
    runtime = "spark" if spark else "inprocess"
    with watersmeet.connect(path, runtime=runtime, dialect="risingwave") as connection:
        began, used = time.perf_counter(), time.process_time()
        connection.execute(script(views))
        took, used = time.perf_counter() - began, time.process_time() - used
    made = f"{views:6} views {took:7.1f} s {took / views * 1000:6.0f} ms a view  processor {used:6.1f} s"
    began, used = time.perf_counter(), cpu_seconds(os.getpid())
    with watersmeet.connect(path, runtime=runtime, dialect="risingwave") as connection:
        opened, processor = time.perf_counter() - began, cpu_seconds(os.getpid()) - used
        connection.execute("INSERT INTO orders VALUES (3, 1, 5); FLUSH")
        connection.execute(f"SELECT * FROM v{views - 1}").fetchall()
        row, more = time.perf_counter() - began - opened, cpu_seconds(os.getpid()) - used - processor
    opening = f"opened {opened:6.1f} s, processor {processor:6.1f} s"
    return f"{made}  {opening}  a row through all {row:6.1f} s, processor {more:6.1f} s"


def rows_through(views: int, rows: int) -> str:
    """The processor time of a row through views in memory."""
    with watersmeet.connect(runtime="inprocess", dialect="risingwave") as connection:
        connection.execute(script(views))
        times = []
        for number in range(rows + 2):
            used = time.process_time()
            connection.execute(f"INSERT INTO orders VALUES ({number + 3}, {1 + number % 2}, {number + 5}); FLUSH")
            times.append((time.process_time() - used) * 1000)
    # the first rows make plans and connections
    return f"{views:6} views: a row takes {min(times[2:]):.1f} to {max(times[2:]):.1f} ms of processor time"


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser("many_views", description=__doc__)
    parser.add_argument("--views", type=int, nargs="+", default=[100, 400, 1000])
    parser.add_argument("--spark", action="store_true")
    parser.add_argument("--rows", type=int, default=0)
    wanted = parser.parse_args(arguments)
    if wanted.rows:
        for views in wanted.views:
            print(rows_through(views, wanted.rows), flush=True)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        for views in wanted.views:
            print(measure(views, folder, spark=wanted.spark), flush=True)
    return 0

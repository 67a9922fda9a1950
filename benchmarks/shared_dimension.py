"""Ten views over one dimension in one database: state, memory of arrangements and time, with sharing and without.

A dimension of 13 columns (`--rows`), a fact table of as many rows, ten views that join them by the dimension's key and
show different columns. Without sharing every view's joins have arrangements of their own
(`streaming_share_arrangements`). Then single-row changes of the dimension, each followed by FLUSH; the content of all
views is compared with DuckDB.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections import Counter
from pathlib import Path

import duckdb

import watersmeet
from benchmarks.processes import median

_COLUMNS = [f"n{i}" for i in range(6)] + [f"s{i}" for i in range(6)]
_TABLES = (
    "CREATE TABLE d (id int PRIMARY KEY, "
    + ", ".join(f"n{i} bigint" for i in range(6))
    + ", "
    + ", ".join(f"s{i} varchar" for i in range(6))
    + ")",
    "CREATE TABLE f (id int, d int, x int)",
)


def _fill(rows: int) -> list[str]:
    columns = [f"i * {k + 1} AS n{k}" for k in range(6)] + [f"'text {k} of ' || i AS s{k}" for k in range(6)]
    return [
        f"INSERT INTO d SELECT i, {', '.join(columns)} FROM generate_series(1, {rows}) AS g(i)",
        f"INSERT INTO f SELECT i, (i * 7919) % {rows} + 1, i % 100 FROM generate_series(1, {rows}) AS g(i)",
    ]


def _view(number: int) -> str:
    """Every view shows another pair of columns, and facts of its own kind, so that no two are the same operators."""
    one, other = _COLUMNS[number], _COLUMNS[(number * 5 + 7) % 12]
    return f"SELECT f.id, f.x + {number} AS x, d.{one}, d.{other} FROM f JOIN d ON f.d = d.id"


def measure(views: int, rows: int, repeats: int, *, share: bool, index: bool) -> dict[str, float]:
    duck = duckdb.connect(config={"threads": 1})
    with (
        tempfile.TemporaryDirectory() as scratch,
        watersmeet.connect(Path(scratch) / "db", runtime="inprocess", parallelism=1) as connection,
    ):
        for statement in (*_TABLES, *_fill(rows)):
            duck.execute(statement)
            connection.execute(statement)
        connection.execute(f"SET streaming_share_arrangements = {str(share).lower()}")
        if index:
            connection.execute("CREATE INDEX i ON d(id)")
        begun = time.perf_counter()
        for number in range(views):
            connection.execute(f"CREATE MATERIALIZED VIEW v{number} AS {_view(number)}")
        made = time.perf_counter() - begun
        times = []
        for number in range(repeats):
            change = (
                f"UPDATE d SET n{number % 6} = {-number}, s{number % 6} = 'new' WHERE id = {number * 31 % rows + 1}"
            )
            duck.execute(change)
            begun = time.perf_counter()
            connection.execute(change)
            connection.execute("FLUSH")
            times.append(time.perf_counter() - begun)
        for number in range(views):
            expected = Counter(duck.execute(_view(number)).fetchall())
            assert Counter(connection.execute(f"SELECT * FROM v{number}").fetchall()) == expected, f"v{number} differs"
        kept = [o for o in connection.status()["operators"].values() if o["kind"] == "arrange"]
        return {
            "bytes": sum(o["state_bytes"] for o in kept),
            "arrangements": len(kept),
            "made": made,
            "epoch": median(times),
        }


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="shared_dimension", description=__doc__)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--repeats", type=int, default=15)
    options = parser.parse_args(arguments)
    cases = {
        "one view": (1, False, False),
        "one view, an index": (1, True, True),
        "ten, apart": (10, False, False),
        "ten, shared": (10, True, False),
        "ten, an index": (10, True, True),
    }
    for name, (views, share, index) in cases.items():
        result = measure(views, options.rows, options.repeats, share=share, index=index)
        print(
            f"{name:20} {result['arrangements']:3.0f} arrangements, state {result['bytes'] / 1e6:7.1f} MB, "
            f"all made in {result['made']:5.1f} s, change of a row to FLUSH {result['epoch'] * 1000:5.0f} ms"
        )
    return 0

"""Left join with 10 % updates and deletes, with and without GROUP BY, and a three-way join with aggregate.

Rows/s, state and peak memory.

With --views-alone: processor seconds of the epochs in process with one bucket, without the statements that write the
tables; an epoch begins after each file of both sides. `arranged` is the floor: a view that arranges both sides of the
join and outputs nothing. The peer is DuckDB, which answers the query once over the final content.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import duckdb

import watersmeet
from benchmarks.data import write_stream
from benchmarks.processes import PeakMemory
from watersmeet.system.process import cores

TABLES = """
CREATE TABLE l (id bigint, k bigint, amount bigint, note varchar);
CREATE TABLE r (id bigint, k bigint, amount bigint, note varchar);
CREATE TABLE d (k bigint PRIMARY KEY, region varchar);
"""
VIEWS = {
    "left join": "SELECT l.id, l.k, l.amount AS l_amount, r.amount AS r_amount, r.note FROM l LEFT JOIN r ON l.k = r.k",
    "left join with GROUP BY": "SELECT l.k, count(*) AS n, sum(l.amount) AS l_amount, sum(r.amount) AS r_amount "
    "FROM l LEFT JOIN r ON l.k = r.k GROUP BY l.k",
    "three-way join with aggregate": "SELECT d.region, count(*) AS n, sum(l.amount * r.amount) AS total "
    "FROM l JOIN r ON l.k = r.k JOIN d ON l.k = d.k GROUP BY d.region",
}
ARRANGED = (
    "SELECT l.k, l.amount AS l_amount, r.amount AS r_amount "
    "FROM l JOIN (SELECT k + 1000000000 AS k, amount FROM r) AS r ON l.k = r.k"
)
CHECKS = {
    "left join": "SELECT count(*), CAST(sum(l_amount) AS BIGINT), CAST(sum(r_amount) AS BIGINT) FROM {}",
    "left join with GROUP BY": "SELECT count(*), CAST(sum(n) AS BIGINT), CAST(sum(l_amount) AS BIGINT), "
    "CAST(sum(r_amount) AS BIGINT), CAST(sum(k * n) AS BIGINT) FROM {}",
    "three-way join with aggregate": "SELECT count(*), CAST(sum(n) AS BIGINT), CAST(sum(total) AS BIGINT) FROM {}",
}


#: The statements of a file of both sides.
STATEMENTS = 6


def statements(left: Path, right: Path, files: int, keys: int) -> list[str]:
    """The history: d first, then a file of each side in turn, with updates and deletes of 5 % each in between."""
    found = [f"INSERT INTO d SELECT i, 'region ' || (i % 20) FROM generate_series(0, {keys - 1}) AS g(i)"]
    for number in range(files):
        for name, folder, base in (("l", left, 0), ("r", right, 1)):
            found.append(
                f"INSERT INTO {name} SELECT row_number() OVER () + {number * 1_000_000}, k, amount, note "
                f"FROM read_parquet('{folder}/{number:05d}.parquet')"
            )
            found.append(
                f"UPDATE {name} SET amount = amount + 1 WHERE id % 20 = {(number + base) % 20} "
                f"AND id BETWEEN {number * 1_000_000} AND {number * 1_000_000 + 999_999}"
            )
            found.append(
                f"DELETE FROM {name} WHERE id % 20 = {(number + base + 7) % 20} "
                f"AND id BETWEEN {number * 1_000_000} AND {number * 1_000_000 + 999_999}"
            )
    return found


def measure(name: str, query: str, history: list[str], parallelism: int, peer: duckdb.DuckDBPyConnection) -> None:
    with tempfile.TemporaryDirectory() as folder, PeakMemory() as memory:
        with watersmeet.connect(Path(folder) / "db", parallelism=parallelism) as connection:
            cursor = connection.cursor()
            cursor.execute(TABLES + f"CREATE MATERIALIZED VIEW v AS {query};")
            changes = 0
            started = time.perf_counter()
            for sql in history:
                cursor.execute(sql)
                changes += cursor.rowcount * (2 if sql.startswith("UPDATE") else 1)
            cursor.execute("FLUSH")
            seconds = time.perf_counter() - started
            status = connection.status()
            cursor.execute(CHECKS[name].format("v"))
            ours = cursor.fetchall()
    begun = time.perf_counter()
    expected = peer.execute(CHECKS[name].format(f"({query})")).fetchall()
    batch = time.perf_counter() - begun
    assert ours == expected, (ours, expected)
    state = sum(v["state_bytes"] for v in status["views"])
    print(
        f"{name}: {changes:,} changes in {seconds:.1f} s, {changes / seconds:,.0f} changes/s (statements included); "
        f"state {state / 1e6:.0f} MB, peak memory {memory.peak_bytes / 1e9:.2f} GB; equal to duckdb "
        f"({batch:.2f} s for one answer)"
    )


def measure_alone(name: str, query: str, history: list[str], peer: duckdb.DuckDBPyConnection) -> None:
    with (
        tempfile.TemporaryDirectory() as folder,
        watersmeet.connect(Path(folder) / "db", runtime="inprocess", parallelism=1) as connection,
    ):
        cursor = connection.cursor()
        cursor.execute(TABLES + f"CREATE MATERIALIZED VIEW v AS {query};")
        seconds = 0.0
        for number, sql in enumerate(history):
            cursor.execute(sql)
            if number and number % STATEMENTS == 0:
                begun = time.thread_time()  # without the compaction of tables, which runs in a thread of its own
                cursor.execute("FLUSH")
                seconds += time.thread_time() - begun
        check = CHECKS.get(name, "SELECT count(*) FROM {}")
        cursor.execute(check.format("v"))
        ours = cursor.fetchall()
    expected = peer.execute(check.format(f"({query})")).fetchall()
    assert ours == expected, (ours, expected)
    print(f"{name}: {seconds:.2f} s of processor time in {len(history) // STATEMENTS} FLUSH; equal to duckdb")


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="retractions", description=__doc__)
    parser.add_argument("--files", type=int, default=10, help="files of 100,000 rows on each side")
    parser.add_argument("--keys", type=int, default=225_000)
    parser.add_argument("--parallelism", type=int, default=cores())
    parser.add_argument("--views-alone", action="store_true", help="only the epochs, in process")
    parser.add_argument("--data", type=Path, default=Path(tempfile.gettempdir()) / "watersmeet-benchmarks")
    options = parser.parse_args(arguments)
    folders = [options.data / f"changes-{options.files}-{options.keys}-{side}" for side in "lr"]
    for seed, folder in enumerate(folders):
        write_stream(folder, seed + 5, options.files * 100_000, options.keys, 100_000)
    history = statements(*folders, options.files, options.keys)
    peer = duckdb.connect()
    peer.execute(TABLES)
    for sql in history:
        peer.execute(sql)
    if options.views_alone:
        for name, query in {"arranged": ARRANGED, **VIEWS}.items():
            measure_alone(name, query, history, peer)
        return 0
    for name, query in VIEWS.items():
        measure(name, query, history, options.parallelism, peer)
    return 0

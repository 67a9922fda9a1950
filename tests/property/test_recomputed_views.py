"""Epochs that compute views again, at random moments of random histories, against DuckDB.

After each epoch, every view has the rows of its query, and the epoch's change of it is the difference between its two
contents: no row that stays is deleted and inserted again. Later epochs process changes with the state that was made.
A kill at any step leaves the content before the epoch or after it.
"""

from __future__ import annotations

import contextlib
import itertools
import random
from collections import Counter
from pathlib import Path
from typing import Any, Literal
from unittest import mock

import duckdb
import pytest

import watersmeet
from tests.unit.store.faults import FaultyOs, Killed
from watersmeet.runtime import coordinator
from watersmeet.system import files

REGRESSIONS: list[int] = []
SEEDS = [*REGRESSIONS, *range(6)]

TABLES = ("CREATE TABLE t(k int, g int, x int)", "CREATE TABLE u(g int, y int)", "CREATE TABLE w(y int, z int)")
#: Views, of which later ones may read earlier ones. They share scans, arrangements and aggregates.
VIEWS = {
    "joined": "SELECT t.k, t.x, u.y FROM t JOIN u ON t.g = u.g",
    "outer_left": "SELECT t.k, t.g, u.y FROM t LEFT JOIN u ON t.g = u.g",
    "outer_right": "SELECT t.k, u.g, u.y FROM t RIGHT JOIN u ON t.g = u.g",
    "outer_full": "SELECT t.k, u.y FROM t FULL JOIN u ON t.g = u.g AND t.x > 1",
    "three": "SELECT t.k, u.y, w.z FROM t JOIN u ON t.g = u.g JOIN w ON u.y = w.y",
    "matched": "SELECT k, x FROM t WHERE g IN (SELECT g FROM u)",
    "unmatched": "SELECT k, x FROM t WHERE NOT EXISTS (SELECT 1 FROM u WHERE u.g = t.g)",
    "lacking": "SELECT y FROM u WHERE g NOT IN (SELECT g FROM t WHERE g IS NOT NULL)",
    "sums": "SELECT g, count(*) AS n, sum(x) AS s, min(x) AS low, max(k) AS high FROM t GROUP BY g",
    "total": "SELECT count(*) AS n, sum(x) AS s FROM t WHERE x > 1",
    "different": "SELECT DISTINCT g, x FROM t",
    "counted": "SELECT g, count(DISTINCT x) AS n FROM t GROUP BY g",
    "bag": "SELECT g, x FROM t UNION ALL SELECT g, y FROM u",
    "either": "SELECT g, x FROM t UNION SELECT g, y FROM u",
    "ranked": "SELECT k, g, x, row_number() OVER (PARTITION BY g ORDER BY x, k) AS r FROM (SELECT DISTINCT * FROM t)",
    "top": "SELECT DISTINCT x FROM t WHERE x IS NOT NULL ORDER BY x LIMIT 2",
    "selves": "SELECT a.k, b.x FROM t AS a JOIN t AS b ON a.g = b.x",
    "above_average": "SELECT k, x FROM t WHERE x > (SELECT avg(y) FROM u)",
    "upper": "SELECT sums.g, sums.s, w.z FROM sums LEFT JOIN w ON sums.n = w.y",
    "plain": "SELECT k, x + 1 AS more FROM t WHERE g > 0",
    "constant": "SELECT 1 AS one UNION ALL SELECT x FROM t",
}


def model() -> duckdb.DuckDBPyConnection:
    found = duckdb.connect()
    for sql in TABLES:
        found.execute(sql)
    for name, query in VIEWS.items():
        found.execute(f"CREATE VIEW {name} AS {query}")
    return found


def create(connection: watersmeet.Connection, rng: random.Random) -> list[str]:
    """Creates some of the views in a random order. Returns their names."""
    for sql in TABLES:
        connection.execute(sql)
    names = rng.sample(list(VIEWS), rng.randint(3, 10))
    if "upper" in names:
        names = ["sums", *(n for n in names if n != "sums")]
    for name in names:
        recompute = "always" if rng.random() < 0.85 else "auto"
        connection.execute(f"CREATE MATERIALIZED VIEW {name} WITH (recompute = '{recompute}') AS {VIEWS[name]}")
    return names


def value(rng: random.Random, most: int) -> Any:
    return "NULL" if rng.random() < 0.15 else rng.randrange(most)


def rows_of(rng: random.Random, table: str, count: int) -> str:
    widths = {"t": (6, 4, 5), "u": (4, 5), "w": (5, 3)}[table]
    values = ", ".join(f"({', '.join(str(value(rng, w)) for w in widths)})" for _ in range(count))
    return f"INSERT INTO {table} VALUES {values}"


def transaction(rng: random.Random) -> list[str]:
    """Statements that DuckDB and Watersmeet both run, in one transaction."""
    found = []
    for _ in range(rng.randint(1, 3)):
        table = rng.choice("ttuw")
        first = {"t": "k", "u": "g", "w": "y"}[table]
        found += rng.choice(
            (
                [f"DELETE FROM {table}", rows_of(rng, table, rng.randint(1, 6))],
                [rows_of(rng, table, rng.randint(1, 4))],
                [f"DELETE FROM {table} WHERE {first} >= {rng.randrange(4)}"],
                [f"UPDATE {table} SET {first} = {rng.randrange(4)}"],
                [f"DELETE FROM {table}"],
                [rows_of(rng, table, 2), f"DELETE FROM {table} WHERE {first} < 3", rows_of(rng, table, 2)],
            )
        )
    return found


def apply(connection: watersmeet.Connection | duckdb.DuckDBPyConnection, statements: list[str]) -> None:
    for sql in ("BEGIN", *statements, "COMMIT"):
        connection.execute(sql)


def rows(connection: watersmeet.Connection | duckdb.DuckDBPyConnection, name: str) -> Counter:
    return Counter(connection.execute(f"SELECT * FROM {name}").fetchall())


@contextlib.contextmanager
def deciding(rng: random.Random, probability: float = 0.6):
    """A context in which epochs may only compute views again at random. Yields a list with the operators of each."""
    again: list[tuple[str, ...]] = []

    def plan(*arguments: Any) -> Any:
        found = plan_recompute(*arguments) if rng.random() < probability else None
        again.extend([] if found is None else [found.mode.operators])
        return found

    plan_recompute = coordinator.plan_recompute
    with mock.patch.object(coordinator, "plan_recompute", plan):
        yield again


def changed(connection: watersmeet.Connection, after: int) -> dict[str, list[Counter]]:
    """For each relation, its change in each commit above `after`. If the epoch computed it again, no row has diffs of
    both signs.
    """
    database = connection._session.database
    found: dict[str, list[Counter]] = {}
    for number in range(after + 1, database.log.head() + 1):
        commit = database.log.read(number)
        for relation_id, change in commit.relations.items():
            sums, sizes = Counter[tuple](), Counter[tuple]()
            for blob in change.blobs:
                table, diff = database.segments.read_change(blob)
                for row, n in zip(zip(*table.to_pydict().values(), strict=True), diff.tolist(), strict=True):
                    sums[row] += n
                    sizes[row] += abs(n)
            if relation_id in commit.metrics.recomputed:
                assert all(abs(sums[row]) == size for row, size in sizes.items()), (relation_id, number, sums, sizes)
            found.setdefault(relation_id, []).append(sums)
    return found


def run(seed: int, path: Path, runtime: Literal["inprocess", "spark"] = "inprocess", steps: int = 14) -> int:
    """Runs a history. Returns the number of epochs that computed views again."""
    rng = random.Random(seed)
    reference = model()
    options: dict[str, Any] = {"runtime": runtime, "parallelism": rng.choice([1, 1, 3])}
    with deciding(rng) as again:
        connection = watersmeet.connect(path, **options)
        names = create(connection, rng)
        ids = {r.id: r.name for r in connection._session.catalog.shown}
        for step in range(steps):
            if rng.random() < 0.1:
                connection.close()
                connection = watersmeet.connect(path, runtime=runtime)
            before = {name: rows(reference, name) for name in names}
            head = connection._session.database.log.head()
            done = [transaction(rng) for _ in range(rng.choice([1, 1, 1, 2]))]
            for statements in done:
                apply(connection, statements)
                apply(reference, statements)
            connection.execute("FLUSH")
            for name in names:
                assert rows(connection, name) == rows(reference, name), (name, step, done)
            for relation_id, changes in changed(connection, head).items():
                if (name := ids[relation_id]) in names:
                    sums = sum_of(changes)
                    expected = rows(reference, name)
                    expected.subtract(before[name])
                    assert sums == {row: n for row, n in expected.items() if n}, (name, step, done)
            if rng.random() < 0.2:
                connection._session.database._compactor.run()
        connection.close()
    return len(again)


def sum_of(changes: list[Counter]) -> dict[tuple, int]:
    found = Counter[tuple]()
    for change in changes:
        for row, n in change.items():
            found[row] += n
    return {row: n for row, n in found.items() if n}


@pytest.mark.parametrize("seed", SEEDS)
def test_views_have_the_rows_of_their_queries(seed, tmp_path):
    assert run(seed, tmp_path / "db") > 0


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 160))
def test_more_histories(seed, tmp_path):
    run(seed, tmp_path / "db")


@pytest.mark.parametrize("seed", range(2))
def test_a_kill_leaves_the_content_before_the_epoch_or_after_it(seed, tmp_path):
    """Stops at every few steps of the file system, from the transaction to the end of the epoch and a compaction."""
    stride = 5
    recomputed = 0
    for number in itertools.count():
        rng, path, reference = random.Random(seed), tmp_path / f"db{number}", model()
        with deciding(rng, 1) as again:
            with watersmeet.connect(path, runtime="inprocess", parallelism=1 + 2 * seed) as connection:
                names = create(connection, rng)
                filled = [rows_of(rng, table, 5) for table in "tuw"]
                apply(connection, filled)
                apply(reference, filled)
                connection.execute("FLUSH")
            again.clear()
            statements = ["DELETE FROM t", rows_of(rng, "t", 5), rows_of(rng, "u", 1)]
            faulty = FaultyOs(1 + seed + number * stride)
            ended = interrupted(path, statements, faulty)
            recomputed += bool(again)
            with watersmeet.connect(path, runtime="inprocess") as connection:
                connection.execute("FLUSH")
                if rows(connection, "t") != rows(reference, "t"):
                    apply(reference, statements)
                for _ in range(2):
                    for name in (*names, "t"):
                        assert rows(connection, name) == rows(reference, name), (name, number, faulty.names[-3:])
                    more = transaction(rng)
                    apply(connection, more)
                    apply(reference, more)
                    connection.execute("FLUSH")
        if ended:
            assert recomputed > 1
            return


def interrupted(path: Path, statements: list[str], faulty: FaultyOs) -> bool:
    """Whether a transaction, its epoch and a compaction came to their end."""
    connection = None
    with mock.patch.object(files, "os", faulty):
        try:
            connection = watersmeet.connect(path, runtime="inprocess")
            apply(connection, statements)
            connection.execute("FLUSH")
            connection._session.database._compactor.run()
        except Killed:
            return False
        finally:
            if connection is not None:
                with contextlib.suppress(Killed, watersmeet.Error):
                    connection.close()
    return True

"""Views and functions that get other definitions while views read them, on random histories, against DuckDB.

After each change of data or definitions, every view has the rows of its query. What a subscription reads adds up to the
content of its view, with no change of a row that stays. A kill leaves the old definitions with the old rows, or the new
ones with the new rows.
"""

from __future__ import annotations

import contextlib
import itertools
import random
from collections import Counter
from pathlib import Path
from typing import Literal
from unittest import mock

import duckdb
import pytest

import watersmeet
from tests.unit.store.faults import FaultyOs, Killed
from watersmeet.system import files

REGRESSIONS: list[int] = []
SEEDS = [*REGRESSIONS, *range(4)]

#: Queries of the view v, of which others read the columns k, g and x.
QUERIES = (
    "SELECT t.k, t.g, t.x FROM t",
    "SELECT t.k, t.g, t.x FROM t JOIN u ON t.g = u.g",
    "SELECT t.k, t.g, t.x + u.y AS x FROM t LEFT JOIN u ON t.g = u.g",
    "SELECT t.k, t.g, t.x FROM t WHERE t.x > 2",
    "SELECT t.k, t.g, u.y AS x FROM t LEFT JOIN u ON t.g = u.g AND t.x > 1",
    "SELECT min(t.k) AS k, t.g, max(t.x) AS x FROM t GROUP BY t.g",
    "SELECT t.k, t.g, t.x, t.k + t.x AS more FROM t",
    "SELECT t.k + 1 AS less, t.g, t.x, t.k FROM t",
    "SELECT t.k, u.g, t.x FROM t FULL JOIN u ON t.g = u.g",
)
#: Views over v, and their queries.
READERS = {
    "sums": "SELECT g, count(*) AS n, sum(x) AS s FROM v GROUP BY g",
    "joined": "SELECT v.k, v.x, w.y FROM v JOIN u AS w ON v.g = w.g",
    "above": "SELECT sums.g, sums.s, v.k FROM sums LEFT JOIN v ON sums.g = v.g",
    "plain_k": "SELECT k, x FROM plain WHERE x > 1",
    "lacking": "SELECT u.g FROM u WHERE u.g NOT IN (SELECT g FROM v WHERE g IS NOT NULL)",
    "called": "SELECT k, part(x) AS p, twice(x) AS q FROM v",
    "counted": "SELECT p, count(*) AS n FROM called GROUP BY p",
}
PLAIN = ("SELECT k, x, g FROM v WHERE k IS NOT NULL", "SELECT k, x, g FROM v WHERE k > 3 OR x = 1")
#: Bodies of the function part, which the function twice calls.
BODIES = ("x + 1", "x * 2", "CASE WHEN x > 2 THEN 0 ELSE x END")
TWICE = "part(part(x) + 1)"
TABLES = ("CREATE TABLE t(k int PRIMARY KEY, g int, x int)", "CREATE TABLE u(g int PRIMARY KEY, y int)")


def model() -> duckdb.DuckDBPyConnection:
    found = duckdb.connect()
    macros = f"CREATE MACRO part(x) AS {BODIES[0]}", f"CREATE MACRO twice(x) AS {TWICE}"
    for sql in (*TABLES, *macros, f"CREATE VIEW v AS {QUERIES[0]}", f"CREATE VIEW plain AS {PLAIN[0]}"):
        found.execute(sql)
    for name, query in READERS.items():
        found.execute(f"CREATE VIEW {name} AS {query}")
    return found


def create(connection: watersmeet.Connection) -> None:
    functions = [
        f"CREATE FUNCTION {n}(x int) RETURNS int RETURN {b}" for n, b in (("part", BODIES[0]), ("twice", TWICE))
    ]
    views = f"CREATE MATERIALIZED VIEW v AS {QUERIES[0]}", f"CREATE VIEW plain AS {PLAIN[0]}"
    for sql in (*TABLES, *functions, *views):
        connection.execute(sql)
    for name, query in READERS.items():
        connection.execute(f"CREATE MATERIALIZED VIEW {name} AS {query}")
    connection.execute("CREATE INDEX by_g ON v(g)")


def changes(rng: random.Random) -> list[str]:
    """Statements that DuckDB and Watersmeet both run."""
    found = []
    for _ in range(rng.randint(1, 4)):
        k, g, x = rng.randrange(12), rng.randrange(4), rng.randrange(5)
        found += rng.choice(
            (
                [f"DELETE FROM t WHERE k = {k}", f"INSERT INTO t VALUES ({k}, {rng.choice((g, 'NULL'))}, {x})"],
                [f"DELETE FROM u WHERE g = {g}", f"INSERT INTO u VALUES ({g}, {x})"],
                [f"DELETE FROM t WHERE k = {k}"],
                [f"UPDATE t SET x = {x} WHERE g = {g}"],
            )
        )
    return found


def rows(connection: watersmeet.Connection | duckdb.DuckDBPyConnection, name: str) -> Counter:
    return Counter(connection.execute(f"SELECT * FROM {name}").fetchall())


def check(connection: watersmeet.Connection, reference: duckdb.DuckDBPyConnection, where: object) -> None:
    for name in ("v", "plain", *READERS):
        assert rows(connection, name) == rows(reference, name), (name, where)


def definition(rng: random.Random) -> tuple[str, str]:
    """A statement that changes a definition, and the one with the same effect in DuckDB."""
    pick = rng.random()
    if pick < 0.3:
        body = rng.choice(BODIES)
        made = f"CREATE OR REPLACE FUNCTION part(x int) RETURNS int RETURN {body}"
        return made, f"CREATE OR REPLACE MACRO part(x) AS {body}"
    if pick < 0.45:
        query = rng.choice(PLAIN)
        made = "ALTER VIEW plain" if rng.random() < 0.5 else "CREATE OR REPLACE VIEW plain"
        return f"{made} AS {query}", f"CREATE OR REPLACE VIEW plain AS {query}"
    query = rng.choice(QUERIES)
    made = "ALTER MATERIALIZED VIEW v" if rng.random() < 0.5 else "CREATE OR REPLACE MATERIALIZED VIEW v"
    return f"{made} AS {query}", f"CREATE OR REPLACE VIEW v AS {query}"


def redefine(connection: watersmeet.Connection, reference: duckdb.DuckDBPyConnection, rng: random.Random) -> None:
    ours, theirs = definition(rng)
    connection.execute(ours)
    reference.execute(theirs)


@pytest.mark.parametrize("seed", SEEDS)
def test_views_have_the_rows_of_their_queries(seed, tmp_path):
    run(seed, tmp_path / "db")


def run(seed: int, path: Path, runtime: Literal["inprocess", "spark"] = "inprocess") -> None:
    rng = random.Random(seed)
    reference = model()
    connection = watersmeet.connect(path, runtime=runtime, parallelism=rng.choice([1, 3]))
    create(connection)
    connection.execute("CREATE SUBSCRIPTION sub FROM sums WITH (retention = '1D')")
    seen: Counter = Counter()

    def read() -> None:
        """Adds the changes since the last call, each of which must change the content."""
        connection.execute("DECLARE c SUBSCRIPTION CURSOR FOR sub" + (f" SINCE {since}" if since else " FULL"))
        while found := connection.execute("FETCH 100 FROM c").fetchall():
            for *row, op, _ in found:
                seen[tuple(row)] += 1 if op in ("Insert", "UpdateInsert") else -1
        connection.execute("CLOSE c")

    since = 0
    for step in range(10):
        if rng.random() < 0.15:
            connection.close()
            connection = watersmeet.connect(path, runtime=runtime)
        done = changes(rng)
        for sql in done:
            connection.execute(sql)
            reference.execute(sql)
        if rng.random() < 0.4:
            redefine(connection, reference, rng)
        connection.execute("FLUSH")
        check(connection, reference, (step, done))
        if rng.random() < 0.3:
            connection._session.database._compactor.run()
    read()
    assert +seen == rows(reference, "sums")
    connection.close()


class History:
    """A history that is killed at a step of the file system. reference: what was acknowledged; begun: the statement for
    DuckDB that was not acknowledged.
    """

    def __init__(self, path, seed: int) -> None:
        self.path = path
        self.rng = random.Random(seed)
        self.reference = model()
        self.begun = ""

    def run(self, faulty: FaultyOs) -> bool:
        """Whether it came to its end."""
        connection = None
        with mock.patch.object(files, "os", faulty):
            try:
                connection = watersmeet.connect(self.path, runtime="inprocess")
                for ours, theirs in [definition(self.rng) for _ in range(2)]:
                    self.begun = theirs
                    connection.execute(ours)
                    self.reference.execute(theirs)
                    self.begun = ""
                    connection._session.database._compactor.run()
            except Killed:
                return False
            finally:
                if connection is not None:
                    with contextlib.suppress(Killed, watersmeet.Error):
                        connection.close()
        return True


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_a_kill_leaves_old_or_new_definitions_with_their_rows(seed, tmp_path):
    stride = 29
    for number in itertools.count():
        path = tmp_path / f"db{number}"
        with watersmeet.connect(path, runtime="inprocess", parallelism=1 + seed) as connection:
            create(connection)
            history = History(path, seed)
            for sql in [sql for _ in range(6) for sql in changes(history.rng)]:
                connection.execute(sql)
                history.reference.execute(sql)
            connection.execute("FLUSH")
        ended = history.run(FaultyOs(1 + number * stride + seed))
        with watersmeet.connect(path, runtime="inprocess") as connection:
            connection.execute("FLUSH")
            names = ("v", "plain", *READERS)
            if history.begun and any(rows(connection, n) != rows(history.reference, n) for n in names):
                history.reference.execute(history.begun)
            check(connection, history.reference, (number, history.begun))
            found = connection.execute("SHOW CREATE MATERIALIZED VIEW v").fetchall()[0][1]
            for sql in changes(history.rng):
                connection.execute(sql)
                history.reference.execute(sql)
            redefine(connection, history.reference, history.rng)
            connection.execute("FLUSH")
            check(connection, history.reference, (number, found))
        if ended:
            return

"""Groups of a join by its key, at random moments of random histories, against DuckDB.

Views are also created over present rows, from shared arrangements of indexes, and while the number of buckets changes.
Few rows of a key are already many here, so that their sums are stored.
"""

from __future__ import annotations

import random
from decimal import Decimal
from pathlib import Path
from typing import Any
from unittest import mock

import duckdb
import pytest

import watersmeet
from tests.property.test_recomputed_views import apply, deciding
from tests.thorough import mostly_slow
from watersmeet.circuit.operators import GroupJoin
from watersmeet.kernel.operators import groupjoin

TABLES = (
    "CREATE TABLE l(k int, j varchar, x int, y bigint, b boolean, n decimal(30, 4))",
    "CREATE TABLE r(k int, j varchar, x int, y bigint, b boolean, n decimal(30, 4))",
    "CREATE TABLE f(k double precision, x int)",
)
VALUES = {
    "k": ("0", "1", "1", "2", "3", "NULL"),
    "j": ("'a'", "'b'", "NULL"),
    "x": ("0", "1", "-5", "2147483647", "NULL"),
    "y": ("7", "-7", "9223372036854775807", "-9223372036854775808", "NULL"),
    "b": ("true", "false", "NULL"),
    "n": ("1.5", "-99999999999999999999999999.9999", "0.0001", "NULL"),
}
FLOATS = ("0.0", "-0.0", "1.5", "'NaN'", "NULL")
#: The sums over both sides, whose texts are equal in both systems.
SUMS = (
    "count(*) AS n, count({l}.x) AS nl, count({r}.x) AS nr, sum({l}.x) AS xl, sum({r}.y) AS yr, sum({l}.n) AS dl, "
    "bool_and({l}.b) AS al, bool_or({r}.b) AS br, avg({r}.x) > 3 AS vr"
)
SIDES = SUMS.format(l="l", r="r")
VIEWS = {
    "outer_left": f"SELECT l.k, {SIDES} FROM l LEFT JOIN r ON l.k = r.k GROUP BY l.k",
    "outer_right": f"SELECT r.k, {SIDES} FROM l RIGHT JOIN r ON l.k = r.k GROUP BY r.k",
    "met": f"SELECT l.k, {SIDES} FROM l JOIN r ON l.k = r.k GROUP BY l.k",
    "by_two": f"SELECT l.j, l.k, {SIDES} FROM l LEFT JOIN r ON l.k = r.k AND l.j = r.j GROUP BY l.j, l.k",
    "by_two_met": "SELECT count(*) AS n, sum(r.x) AS x FROM l JOIN r ON l.k = r.k AND l.j = r.j GROUP BY l.j, l.k",
    "itself": f"SELECT a.k, {SUMS.format(l='a', r='b')} FROM l AS a JOIN l AS b ON a.k = b.k GROUP BY a.k",
    "floats": "SELECT a.k, count(*) AS n, sum(b.x) AS x FROM f AS a LEFT JOIN f AS b ON a.k = b.k GROUP BY a.k",
    "filtered": f"SELECT l.k, {SIDES} FROM l LEFT JOIN r ON l.k = r.k AND r.x > 0 WHERE l.x < 5 GROUP BY l.k",
    "above": "SELECT n, count(*) AS m FROM (SELECT l.k, count(r.k) AS n FROM l LEFT JOIN r ON l.k = r.k GROUP BY l.k) "
    "AS t GROUP BY n",
}


def value(rng: random.Random, column: str) -> str:
    return rng.choice(VALUES[column])


def statement(rng: random.Random) -> str:
    table = rng.choice("llrrf")
    where = rng.choice(("k = 1", "k > 1", "x >= 0", "k IS NULL", "x IS NULL"))
    draw = rng.random()
    if draw < 0.15:
        return f"DELETE FROM {table} WHERE {where}"
    if draw < 0.3:
        return f"UPDATE {table} SET x = 1 WHERE {where}"
    if draw < 0.33:
        return f"DELETE FROM {table}"
    rows = []
    for _ in range(rng.randint(1, 6)):
        cells = [rng.choice(FLOATS), value(rng, "x")] if table == "f" else [value(rng, c) for c in VALUES]
        rows.append(f"({', '.join(cells)})")
    return f"INSERT INTO {table} VALUES {', '.join(rows)}"


def rows(connection: watersmeet.Connection | duckdb.DuckDBPyConnection, name: str) -> list[str]:
    def shown(cell: Any) -> str:
        if isinstance(cell, (float, Decimal)):
            return str(Decimal(cell).normalize() + 0)  # one form of 0 and of 1.50
        return str(cell)

    found = connection.execute(f"SELECT * FROM {name}").fetchall()
    return sorted(repr(tuple(map(shown, row))) for row in found)


def run(seed: int, path: Path) -> None:
    rng = random.Random(seed)
    peer = duckdb.connect()
    for sql in TABLES:
        peer.execute(sql)
    connection = watersmeet.connect(path, runtime="inprocess", parallelism=rng.choice([1, 1, 3]))
    for sql in (*TABLES, *(["CREATE INDEX i ON l(k)", "CREATE INDEX h ON r(k)"] if rng.random() < 0.4 else [])):
        connection.execute(sql)
    waiting = rng.sample(list(VIEWS), rng.randint(3, len(VIEWS)))
    made: list[str] = []
    with deciding(rng, 0.2):
        for _ in range(16):
            if waiting and rng.random() < 0.5:
                name = waiting.pop()
                connection.execute(f"CREATE MATERIALIZED VIEW {name} AS {VIEWS[name]}")
                peer.execute(f"CREATE VIEW {name} AS {VIEWS[name]}")
                made.append(name)
            for _ in range(rng.choice([1, 1, 2])):
                done = [statement(rng) for _ in range(rng.randint(1, 3))]
                apply(connection, done)
                apply(peer, done)
            if rng.random() < 0.1:
                connection.close()
                connection = watersmeet.connect(path, runtime="inprocess", parallelism=rng.choice([1, 2, 4]))
            if rng.random() < 0.7:
                connection.execute("FLUSH")
                for name in made:
                    assert rows(connection, name) == rows(peer, name), name
    connection.close()


@pytest.mark.parametrize("seed", mostly_slow(range(40), 4))
def test_groups_equal_those_of_the_joined_rows(seed, tmp_path):
    with mock.patch.object(groupjoin, "MOST_ROWS", 3):
        run(seed, tmp_path / "db")


def test_the_views_are_joined_without_pairs(tmp_path):
    """The other tests compare the operator that they are about."""
    with watersmeet.connect(tmp_path / "db", runtime="inprocess", parallelism=1) as connection:
        for sql in TABLES:
            connection.execute(sql)
        for name, query in VIEWS.items():
            connection.execute(f"CREATE MATERIALIZED VIEW {name} AS {query}")
        circuit = connection._session.database.engine.circuit
        assert sum(isinstance(o, GroupJoin) for o in circuit.operators) == len(VIEWS)


def test_pairs_are_counted_beyond_the_limit_of_joins(tmp_path):
    """1.6 billion pairs of one key; more than 2,147,483,647 stop the view."""
    with watersmeet.connect(tmp_path / "db", runtime="inprocess", parallelism=1) as connection:
        connection.execute("CREATE TABLE l(k int, x bigint)")
        connection.execute("CREATE TABLE r(k int, x bigint)")
        query = "SELECT l.k, count(*) AS n, sum(l.x) AS x, sum(r.x) AS y FROM l JOIN r ON l.k = r.k GROUP BY l.k"
        connection.execute(f"CREATE MATERIALIZED VIEW v AS {query}")
        for table, most in (("l", 2**62), ("r", 1)):
            connection.execute(f"INSERT INTO {table} SELECT 7, {most} FROM generate_series(1, 40000) AS g(i)")
        connection.execute("FLUSH")
        assert connection.execute("SELECT * FROM v").fetchall() == [(7, 40000**2, 40000**2 * 2**62, 40000**2)]
        connection.execute("INSERT INTO l SELECT 7, 0 FROM generate_series(1, 20000) AS g(i)")
        connection.execute("FLUSH")
        assert "more than 2,147,483,647 pairs" in str(connection.execute("SHOW ERRORS").fetchall())
        with pytest.raises(watersmeet.Error, match='"v" was stopped'):
            connection.execute("SELECT * FROM v")

"""Queries that look up rows by a key: through an index, from the second time on, and with the same rows as without."""

from __future__ import annotations

import random

import pytest
from tests.thorough import mostly_slow

import watersmeet
from watersmeet.database.reading import batch_query
from watersmeet.database.sessions.context import Session
from watersmeet.database.sessions.variables import Variables
from watersmeet.dialects.parsing import parse
from watersmeet.store import tables

SHOP = """
CREATE TABLE t (id bigint PRIMARY KEY, name varchar, n int);
CREATE TABLE two (a int, b int, n int, PRIMARY KEY (a, b));
CREATE INDEX by_name ON t (name);
CREATE MATERIALIZED VIEW v AS SELECT id, name, n * 2 AS m FROM t;
CREATE VIEW w AS SELECT id AS k, n FROM t;
"""


@pytest.fixture
def connection(monkeypatch):
    monkeypatch.setattr(tables, "_INDEXED_ROWS", 0)
    with watersmeet.connect(runtime="inprocess") as connection:
        connection.execute(SHOP)
        yield connection


def indexes(connection) -> set[str]:
    with connection.opened.content.session() as duck:
        return {f"{t}.{e}" for t, e in duck.execute("SELECT table_name, expressions FROM duckdb_indexes()").fetchall()}


def test_an_index_is_made_at_the_second_time_and_used(connection):
    connection.execute("INSERT INTO t VALUES (1, 'a', 1), (2, 'b', 2)")
    connection.execute("FLUSH")
    assert connection.execute("SELECT n FROM t WHERE id = 2").fetchall() == [(2,)]
    assert not indexes(connection)
    connection.execute("SELECT * FROM v WHERE m = 2")
    connection.execute("SELECT k FROM w WHERE k = 1 AND n < 5")
    connection.execute("SELECT x.n FROM t x WHERE x.name IN ('a', 'c')")
    table = connection.opened.catalog.by_name("t").id
    assert indexes(connection) == {f"{table}.[c0]"}
    connection.execute("SELECT x.n FROM t x WHERE x.name = 'a'")
    assert indexes(connection) == {f"{table}.[c0]", f"{table}.[c1]"}
    for query in ("SELECT * FROM t WHERE id = 1", "SELECT * FROM t WHERE id = 1 AND n = 1 AND name > ''"):
        assert "Index Scan" in plan(connection, query)


def plan(connection, query: str) -> str:
    """What DuckDB does for a query: whether it takes an index, it decides when it runs."""
    session = Session(connection.opened, Variables("risingwave"))
    with connection.opened.content.session() as duck:
        sql = batch_query(session, parse(query, "risingwave", ())[0].query, query).sql
        return duck.execute(f"EXPLAIN ANALYZE {sql}").fetchall()[0][1]


def test_one_that_finds_no_room_is_none(connection, monkeypatch):
    connection.execute("INSERT INTO t SELECT i, repeat('x', 100), i FROM generate_series(1, 60000) AS g(i)")
    connection.execute("FLUSH")
    connection.execute("SELECT count(*) FROM t")
    with connection.opened.content.session() as duck:
        used = duck.execute("SELECT sum(memory_usage_bytes) FROM duckdb_memory()").fetchone()[0]
        duck.execute(f"SET memory_limit = '{used + (1 << 17)}B'; SET temp_directory = ''")
    for _ in range(4):
        assert connection.execute("SELECT n FROM t WHERE id = 7").fetchall() == [(7,)]
    with connection.opened.content.session() as duck:
        duck.execute("SET memory_limit = '2GB'")
    assert not indexes(connection)


@pytest.mark.parametrize("seed", mostly_slow(range(40), 1, 1))
def test_rows_are_those_that_are_there(connection, seed):
    rng = random.Random(seed)
    rows: dict[int, tuple[str, int]] = {}
    pairs: dict[tuple[int, int], int] = {}
    for _ in range(20):
        kind, key = rng.random(), rng.randint(1, 12)
        if kind < 0.3:
            many = {rng.randint(1, 12): (rng.choice("abc"), rng.randint(0, 9)) for _ in range(rng.randint(1, 6))}
            values = ", ".join(f"({k}, '{name}', {n})" for k, (name, n) in many.items())
            connection.execute(f"INSERT INTO t VALUES {values}")
            rows |= many
            pair = (key, rng.randint(1, 3))
            connection.execute(f"INSERT INTO two VALUES ({pair[0]}, {pair[1]}, {key})")
            pairs[pair] = key
        elif kind < 0.5:
            connection.execute(f"UPDATE t SET n = n + 1 WHERE id = {key} OR name = 'a'")
            rows = {k: (a, n + 1) if k == key or a == "a" else (a, n) for k, (a, n) in rows.items()}
        elif kind < 0.6:
            connection.execute(f"DELETE FROM t WHERE id = {key}")
            rows.pop(key, None)
        elif kind < 0.7 and rows:
            begun, before = rng.random() < 0.5, dict(rows)
            connection.execute("BEGIN")
            connection.execute(f"DELETE FROM t WHERE id = {key}")
            connection.execute(f"INSERT INTO t VALUES ({key + 1}, 'z', 0)")
            rows.pop(key, None)
            rows[key + 1] = ("z", 0)
            check(connection, rows, pairs, key, "t")
            check(connection, rows, pairs, key + 1, "t")
            connection.execute("COMMIT" if begun else "ROLLBACK")
            rows = rows if begun else before
        connection.execute("FLUSH")
        for name in ("t", "v", "w"):
            check(connection, rows, pairs, rng.randint(1, 13), name)


def check(connection, rows: dict, pairs: dict, key: int, name: str) -> None:
    found = [] if key not in rows else [rows[key]]
    if name == "t":
        assert connection.execute(f"SELECT name, n FROM t WHERE id = {key}").fetchall() == found
        assert connection.execute(f"SELECT name, n FROM t WHERE {key} = id AND n > 3").fetchall() == [
            f for f in found if f[1] > 3
        ]
        wanted = sorted((k, n) for k, (a, n) in rows.items() if a in ("a", "z"))
        assert sorted(connection.execute("SELECT id, n FROM t WHERE name IN ('a', 'z')").fetchall()) == wanted
        assert sorted(connection.execute(f"SELECT b, n FROM two WHERE a = {key}").fetchall()) == sorted(
            (b, n) for (a, b), n in pairs.items() if a == key
        )
    elif name == "v":
        doubled = [(a, n * 2) for a, n in found]
        assert connection.execute(f"SELECT name, m FROM v WHERE id = {key}").fetchall() == doubled
    else:
        assert connection.execute(f"SELECT n FROM w WHERE k = {key}").fetchall() == [(n,) for _, n in found]

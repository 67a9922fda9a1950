"""Queries over external tables ask servers for the columns and rows that they need, and mean the same."""

from __future__ import annotations

import random

import pytest

import watersmeet
from watersmeet.connectors.clickhouse.client import ClickhouseReader
from watersmeet.connectors.mysql.client import MysqlReader
from watersmeet.connectors.postgres.client import PostgresReader
from watersmeet.maintenance import refreshing

COLUMNS = "k int, i bigint, v varchar(20), w text, n numeric(8, 2), d date, p {}"
CLICKHOUSE = {
    "k": "Int32", "i": "Int64", "v": "String", "w": "LowCardinality(Nullable(String))", "n": "Decimal(8, 2)",
    "d": "Date", "p": "DateTime64(6, 'Asia/Tokyo')",
}  # fmt: skip
TEXTS = ("a", "A", "a ", "b", "B", "ä", "Zz", "", "a\t", "_")
DATES = ("2024-02-28", "2024-02-29", "2024-03-01")
TIMES = ("2024-02-29 12:00:00", "2024-02-29 12:00:00.000001", "2024-03-01 00:00:00")
ROWS = 60
CONSTANTS = {
    "i": ("-1", "0", "3", "99999999999", "2.5"),
    "v": tuple(f"'{t}'" for t in TEXTS if t != "a\t"),
    "w": tuple(f"'{t}'" for t in TEXTS if t != "a\t"),
    "n": ("1", "1.50", "-2", "0.005"),
    "d": tuple(f"to_date('{d}')" for d in DATES),
    "p": tuple(f"cast('{t}', 'datetime64(6)')" for t in TIMES),
}


@pytest.fixture
def opened(tmp_path):
    with watersmeet.connect(tmp_path / "db", runtime="inprocess", dialect="timeplus") as connection:
        yield connection


@pytest.fixture(params=["postgres", "mysql", "clickhouse"])
def server(request):
    return request.getfixturevalue(request.param)


@pytest.fixture
def read(monkeypatch):
    """What readers were asked for: the number of rows that came, and the columns."""
    found = []
    for reader in (PostgresReader, MysqlReader, ClickhouseReader):

        def counted(self, columns, conditions=(), plain=reader.read):
            rows = plain(self, columns, conditions)
            found.append((rows.num_rows, rows.column_names))
            return rows

        monkeypatch.setattr(reader, "read", counted)
    return found


def fetched(connection, query):
    return connection.execute(query).fetchall()


def constant(rng, kind):
    return rng.choice(CONSTANTS[kind])


def condition(rng):
    column = rng.choice(sorted(CONSTANTS))
    if rng.random() < 0.15:
        return f"{column} IS {rng.choice(['', 'NOT '])}NULL"
    if rng.random() < 0.2:
        return f"{column} IN ({', '.join(constant(rng, column) for _ in range(rng.randint(1, 3)))})"
    operator = rng.choice(["=", "<>", "<", "<=", ">", ">="])
    sides = [column, constant(rng, column)]
    if rng.random() < 0.3:
        sides.reverse()
    text = f" {operator} ".join(sides)
    return f"NOT ({text})" if rng.random() < 0.1 else text


def query(rng):
    where = " AND ".join(condition(rng) for _ in range(rng.randint(1, 3)))
    if rng.random() < 0.15:
        where = f"({where}) OR {condition(rng)}"
    shape = rng.choice(
        [
            "SELECT k, i FROM {t} WHERE {w}",
            "SELECT count() FROM {t} WHERE {w}",
            "SELECT * FROM {t} WHERE {w}",
            "SELECT v, count() AS c FROM (SELECT * FROM {t}) AS s WHERE {w} GROUP BY v",
            "WITH s AS (SELECT k, i AS j, * EXCEPT (k) FROM {t}) SELECT j, d FROM s WHERE {w}",
            "SELECT o.x, s.w FROM table(o) AS o LEFT JOIN {t} AS s ON o.x = s.k AND {w}",
            "SELECT o.x, s.n FROM table(o) AS o JOIN {t} AS s ON o.x = s.i WHERE {w}",
        ]
    )
    return shape, where


def created(server, columns, clickhouse):
    """Makes the table. clickhouse: its columns there, by name."""
    more = ""
    if "type='clickhouse'" in server.settings:
        named = [f"{n} {t if '(Null' in t else f'Nullable({t})'}" for n, t in clickhouse.items()]
        columns, more = ", ".join(named), "ENGINE = MergeTree ORDER BY tuple()"
    server.execute(f"CREATE TABLE t ({columns}) {more}")


def filled(server):
    kind = "timestamp" if "postgres" in server.settings else "datetime(6)"
    kind = "clickhouse" if "type='clickhouse'" in server.settings else kind
    rng = random.Random(1)
    rows = []
    for k in range(ROWS):
        values = [
            rng.choice(["-1", "0", "1", "2", "3", "99999999999"]),
            *(f"'{rng.choice(TEXTS)}'" for _ in "vw"),
            rng.choice(["1", "1.5", "-2", "0.01", "12345.67"]),
            f"'{rng.choice(DATES)}'",
            f"'{rng.choice(TIMES)}'" if kind != "clickhouse" else f"toDateTime64('{rng.choice(TIMES)}', 6, 'UTC')",
        ]
        rows.append(f"({k}, {', '.join('NULL' if rng.random() < 0.1 else v for v in values)})")
    created(server, COLUMNS.format(kind), CLICKHOUSE)
    server.execute(f"INSERT INTO t VALUES {', '.join(rows)}")


def forgotten(connection):
    """What is stored counts as old, as if the server had written something."""
    connection._session.database.external_readers.versions.clear()


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_random_queries_give_what_they_give_over_all_rows(seed, opened, server, read, monkeypatch):
    filled(server)
    opened.execute(f"CREATE EXTERNAL TABLE t SETTINGS {server.settings}")
    opened.execute("CREATE STREAM o (x int); INSERT INTO o (x) VALUES (0), (1), (3), (50), (70); FLUSH")
    rng = random.Random(seed)
    fewer = 0
    for _ in range(25):
        shape, where = query(rng)
        text = shape.format(t="t", w=where)
        forgotten(opened)
        read.clear()
        found = fetched(opened, text)
        [(count, columns)] = read
        fewer += count < ROWS and len(columns) < 7
        with monkeypatch.context() as whole:
            whole.setattr(refreshing, "needed_rows", lambda *_: {})
            expected = fetched(opened, text)
        assert sorted(found, key=repr) == sorted(expected, key=repr), text
    assert fewer >= 5
    assert fetched(opened, "SHOW ERRORS") == []


@pytest.mark.parametrize(
    ("where", "there"),
    [
        ("k = 5", 1),
        ("k IN (1, 2, 100)", 2),
        ("5 > k AND k <> 0", 4),
        ("v = 'b' AND k >= 0", None),
        ("k = 5 OR k = 6", ROWS),
        ("k + 0 = 5", ROWS),
        ("v LIKE 'b%'", ROWS),
        ("i IS NOT NULL AND i IS NULL", 0),
        ("n = 12345.67 AND d = '2024-02-29'", None),
    ],
)
def test_the_server_leaves_out_rows(where, there, opened, server, read):
    filled(server)
    opened.execute(f"CREATE EXTERNAL TABLE t SETTINGS {server.settings}")
    forgotten(opened)
    read.clear()
    found = fetched(opened, f"SELECT k FROM t WHERE {where}")
    [(count, _)] = read
    assert count == there or (there is None and len(found) <= count < ROWS)


def test_explain_shows_what_the_server_is_asked(opened, server):
    filled(server)
    opened.execute(f"CREATE EXTERNAL TABLE t SETTINGS {server.settings}")
    lines = [t for (t,) in fetched(opened, "EXPLAIN SELECT v FROM t WHERE i > 2 AND v < 'x' AND length(v) = 1")]
    quote, by_bytes = '"', '"v" COLLATE "C" < \'x\''
    if "type='mysql'" in server.settings:
        quote, by_bytes = "`", "CAST(CONVERT(`v` USING utf8mb4) AS BINARY) < CAST(_utf8mb4 0x78 AS BINARY)"
    if "type='clickhouse'" in server.settings:
        quote, by_bytes = "`", "`v` < 'x'"
    where = f"{quote}i{quote} > 2 AND {by_bytes}"
    assert lines[1].startswith('External { table: "t", sends: SELECT ')
    assert f"SELECT {quote}i{quote}, {quote}v{quote} FROM " in lines[1]
    assert lines[1].endswith(f" WHERE {where} }}")


def test_what_is_read_twice_is_of_one_moment(opened, server, read):
    filled(server)
    opened.execute(f"CREATE EXTERNAL TABLE t SETTINGS {server.settings}")
    forgotten(opened)
    read.clear()
    twice = "SELECT count() FROM t AS a JOIN t AS b ON a.k = b.k WHERE a.k < 5"
    assert fetched(opened, twice) == [(5,)]
    assert [count for count, _ in read] == [ROWS]
    assert fetched(opened, "SELECT count() FROM t WHERE k < 7") == [(7,)]  # of what is stored, if it is as new


def test_a_name_of_with_is_asked_for_once_however_often_it_is_read(opened, server, read):
    filled(server)
    opened.execute(f"CREATE EXTERNAL TABLE t SETTINGS {server.settings}")
    forgotten(opened)
    read.clear()
    named = "WITH s AS (SELECT k FROM t WHERE k < 5) SELECT count() FROM s AS a JOIN s AS b ON a.k = b.k WHERE b.k < 3"
    assert fetched(opened, named) == [(3,)]
    assert read == [(5, ["k"])]


def test_a_value_of_a_column_that_is_not_null_is_checked(opened, server):
    created(server, "k int, v int", {"k": "Int32", "v": "Int32"})
    server.execute("INSERT INTO t VALUES (1, 1)")
    opened.execute(f"CREATE EXTERNAL TABLE t (k int, v int8) SETTINGS {server.settings}")
    server.execute("INSERT INTO t VALUES (2, NULL), (3, 300)")
    forgotten(opened)
    with pytest.raises(watersmeet.Error) as null:
        fetched(opened, "SELECT v FROM t WHERE k = 2")
    assert null.value.condition == "NOT_NULL_VIOLATION"
    with pytest.raises(watersmeet.Error) as large:
        fetched(opened, "SELECT v FROM t WHERE k = 3")
    assert large.value.condition == "INVALID_VALUE"
    assert fetched(opened, "SELECT v FROM t WHERE k = 1") == [(1,)]

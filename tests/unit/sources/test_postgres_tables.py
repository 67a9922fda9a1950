"""External tables and dictionaries over a real PostgreSQL."""

from __future__ import annotations

import datetime as dt
import subprocess
import sys
from decimal import Decimal

import pytest
from tests.thorough import mostly_slow

import watersmeet
from watersmeet.catalog import External
from watersmeet.connectors.postgres.client import PostgresReader


@pytest.fixture
def opened(tmp_path):
    with watersmeet.connect(tmp_path / "db", runtime="inprocess", dialect="timeplus") as connection:
        yield connection


def table(connection, postgres, name="t", columns="", **settings):
    more = "".join(f", {n}='{v}'" for n, v in settings.items())
    connection.execute(f"CREATE EXTERNAL TABLE {name} {columns} SETTINGS {postgres.settings}, table='{name}'{more}")


def rows(connection, query):
    return connection.execute(query).fetchall()


def test_columns_and_values_are_those_of_the_table(opened, postgres):
    postgres.execute(
        """
        CREATE TYPE mood AS ENUM ('sad', 'ok');
        CREATE TABLE t (i int PRIMARY KEY, b bool, s smallint, l bigint, r real, d double precision, n numeric(12, 2),
            v varchar(10), c char(3), u uuid, y bytea, a date, e time, p timestamp, z timestamptz, j jsonb, m mood,
            x int[], w text[]);
        INSERT INTO t VALUES (1, true, 2, 9007199254740993, 1.5, 0.1, 1234567890.12, 'a "b", c', 'xy',
            '00000000-0000-0000-0000-00000000002a', '\\x00ff', '2024-02-29', '12:34:56.789',
            '2024-02-29 12:34:56.123456',
            '2024-02-29 12:00:00+02', '{"k": [1, null]}', 'ok', '{1,NULL,3}', '{"a,b", "NULL", ""}');
        INSERT INTO t (i, v) VALUES (2, '');
        """
    )
    table(opened, postgres)
    (first, second) = rows(opened, "SELECT * FROM t ORDER BY i")
    utc = dt.UTC
    assert first[:12] == (1, True, 2, 9007199254740993, 1.5, 0.1, Decimal("1234567890.12"), 'a "b", c', "xy",
        "00000000-0000-0000-0000-00000000002a", b"\x00\xff", dt.date(2024, 2, 29))  # fmt: skip
    assert first[12:15] == (
        dt.time(12, 34, 56, 789000),
        dt.datetime(2024, 2, 29, 12, 34, 56, 123456),
        dt.datetime(2024, 2, 29, 10, 0, tzinfo=utc),
    )
    assert first[15] == {"k": [1, None]}
    assert first[16:] == ("ok", [1, None, 3], ["a,b", "NULL", ""])
    assert second == (2, *[None] * 6, "", *[None] * 11)


def test_a_select_shows_what_was_changed_there(opened, postgres):
    postgres.execute("CREATE TABLE t (i int, v text); INSERT INTO t VALUES (1, 'a'), (1, 'a')")
    table(opened, postgres)
    assert rows(opened, "SELECT i, v FROM t") == [(1, "a"), (1, "a")]
    postgres.execute("UPDATE t SET v = 'line' || chr(10) || 'two' WHERE ctid = '(0,1)'; INSERT INTO t VALUES (3, NULL)")
    assert rows(opened, "SELECT i, v FROM t ORDER BY i, v") == [(1, "a"), (1, "line\ntwo"), (3, None)]
    postgres.execute("DELETE FROM t")
    assert rows(opened, "SELECT count() FROM t") == [(0,)]


def test_a_table_is_read_again_only_after_changes(opened, postgres):
    postgres.execute("CREATE TABLE t (i int); CREATE UNLOGGED TABLE u (i int); CREATE VIEW v AS SELECT now() AS n")
    options = {"address": f"127.0.0.1:{postgres.server.port}", "database": postgres.name, "user": "postgres",
        "password": "postgres-secret"}  # fmt: skip

    def version(name, **more):
        return PostgresReader(External("postgresql", name, {**options, "table": name, **more})).version()

    before = version("t")
    assert version("t", invalidate_query="SELECT 1") == [(1,)]
    postgres.execute("INSERT INTO t VALUES (1)")
    assert version("t") != before
    assert version("u") != version("u")
    assert version("v") != version("v")


def test_a_dictionary_follows_the_table(opened, postgres):
    postgres.execute("CREATE TABLE products (id int PRIMARY KEY, name text); INSERT INTO products VALUES (1, 'pen')")
    opened.execute("CREATE STREAM orders (id int, n int)")
    port = postgres.server.port
    opened.execute(
        f"""CREATE DICTIONARY products (id int, name string) PRIMARY KEY id
        SOURCE(POSTGRESQL(HOST '127.0.0.1' PORT {port} USER 'postgres' PASSWORD 'postgres-secret' DB '{postgres.name}'
        TABLE 'products')) LAYOUT(FLAT()) LIFETIME(MIN 0 MAX 1)"""
    )
    opened.execute(
        "CREATE MATERIALIZED VIEW joined AS SELECT o.n, p.name FROM orders AS o LEFT JOIN products AS p ON o.id = p.id"
    )
    opened.execute("INSERT INTO orders (id, n) VALUES (1, 10), (2, 20)")
    opened.execute("FLUSH")
    assert sorted(rows(opened, "SELECT n, name FROM table(joined)"), key=str) == [(10, "pen"), (20, None)]
    postgres.execute("INSERT INTO products VALUES (2, 'ink')")
    opened.execute("INSERT INTO orders (id, n) VALUES (2, 30)")
    opened.execute("FLUSH")
    assert (30, "ink") in rows(opened, "SELECT n, name FROM table(joined)")
    assert "postgres-secret" not in str(rows(opened, "SHOW CREATE DICTIONARY products"))


def test_calls_look_up_what_is_there_now(opened, postgres):
    postgres.execute(
        """CREATE TABLE prices (id int, first date, last date, price numeric(8, 2));
        INSERT INTO prices VALUES (1, '2024-01-01', '2024-01-31', 1.50), (1, '2024-02-01', NULL, NULL)"""
    )
    source = (
        f"POSTGRESQL(HOST '127.0.0.1' PORT {postgres.server.port} USER 'postgres' PASSWORD 'postgres-secret' "
        f"DB '{postgres.name}' TABLE 'prices')"
    )
    opened.execute(
        "CREATE STREAM o (n int, id int, d date); CREATE DICTIONARY prices (id int, first date, last nullable(date), "
        f"price decimal(8, 2) DEFAULT 9.75) PRIMARY KEY id SOURCE({source}) LAYOUT(RANGE_HASHED()) "
        "RANGE(MIN first MAX last) LIFETIME(MIN 1000 MAX 2000)"
    )
    opened.execute("CREATE MATERIALIZED VIEW j AS SELECT n, dict_get('prices', 'price', id, d) AS price FROM o")
    opened.execute("INSERT INTO o (n, id, d) VALUES (1, 1, '2024-01-31'), (2, 1, '2024-02-01'), (3, 2, '2024-02-01')")
    opened.execute("FLUSH")
    postgres.execute("UPDATE prices SET price = 2.25; INSERT INTO prices VALUES (2, '2024-01-01', NULL, 3.25)")
    opened.execute("INSERT INTO o (n, id, d) VALUES (4, 1, '2024-01-31'), (5, 2, '2024-02-01'); FLUSH")
    found = [(n, str(p)) for n, p in sorted(rows(opened, "SELECT n, price FROM table(j)"))]
    assert found == [(1, "1.50"), (2, "9.75"), (3, "9.75"), (4, "1.50"), (5, "3.25")]
    now = "SELECT dict_get('prices', 'price', 1, to_date('2024-01-31')), dict_has('prices', 3, to_date('2024-01-31'))"
    assert rows(opened, now) == [(Decimal("2.25"), False)]


def test_a_dictionary_of_a_query(opened, postgres):
    postgres.execute("CREATE TABLE products (id int, name text); INSERT INTO products VALUES (1, 'pen'), (2, 'ink')")
    source = (
        f"POSTGRESQL(HOST '127.0.0.1' PORT {postgres.server.port} USER 'postgres' PASSWORD 'postgres-secret' "
        f"DB '{postgres.name}' QUERY 'SELECT id, upper(name) AS name FROM products WHERE id > 1')"
    )
    opened.execute(f"CREATE DICTIONARY d (id int, name string) PRIMARY KEY id SOURCE({source}) LAYOUT(HASHED())")
    assert rows(opened, "SELECT id, name FROM d") == [(2, "INK")]


def refusal(connection, statement):
    with pytest.raises(watersmeet.Error) as caught:
        connection.execute(statement)
    found = caught.value
    assert found.span is not None
    assert "postgres-secret" not in str(found)
    assert "postgres-secret" not in str(found.to_json())
    return found


def test_what_is_wrong_is_named(opened, postgres):
    postgres.execute("CREATE TABLE t (i int, x point); CREATE TABLE n (v numeric)")
    reader_name = f"reader_{postgres.name}"
    postgres.execute(f"CREATE USER {reader_name} PASSWORD 'r'")
    postgres.execute("INSERT INTO n VALUES ('NaN')")
    create = "CREATE EXTERNAL TABLE e {} SETTINGS {}, table='{}'"

    def message(columns="", settings=postgres.settings, table="t"):
        found = refusal(opened, create.format(columns, settings, table))
        return found.condition, found.message, found.hint

    assert message() == (
        "CONNECTOR_OPTION",
        'column "x" of table "public.t" has type point, which has no equivalent',
        "Declare the columns, that one as string.",
    )
    condition, text, hint = message(table="tt")
    assert (condition, hint) == ("UNDEFINED_OBJECT", 'Did you mean "t"?')
    assert text.startswith('there is no table "public.tt" in database')
    assert message("(i int, z int)")[1] == 'table "public.t" has no column "z"'
    wrong = postgres.settings.replace("postgres-secret", "wrong")
    assert message(settings=wrong)[0] == "CONNECTOR_OPTION"
    assert 'does not let user "postgres" in' in message(settings=wrong)[1]
    assert message(settings=postgres.settings.replace(postgres.name, "nowhere"))[1].startswith("there is no database")
    away = postgres.settings.replace(str(postgres.server.port), "1")
    assert message(settings=away)[0] == "RUNTIME_UNAVAILABLE"
    reader = postgres.settings.replace(
        "user='postgres', password='postgres-secret'", f"user='{reader_name}', password='r'"
    )
    condition, text, hint = message(settings=reader, columns="(i int)")
    assert condition == "CONNECTOR_OPTION"
    assert f"GRANT SELECT ON public.t TO {reader_name}" in hint
    assert "is not numeric: NaN" in message(table="n")[1]
    assert message(settings=postgres.settings + ", colour='red'")[1] == 'connector postgresql has no option "colour"'
    opened.execute(create.format("(i int, x string)", postgres.settings, "t"))
    postgres.execute(f"DROP USER {reader_name}")


def test_a_server_that_is_away_leaves_the_content(opened, own_postgres):
    own_postgres.execute("CREATE TABLE p (id int PRIMARY KEY, name text); INSERT INTO p VALUES (1, 'pen')")
    port = own_postgres.server.port
    opened.execute("CREATE STREAM o (id int)")
    opened.execute(
        f"""CREATE DICTIONARY p (id int, name string) PRIMARY KEY id SOURCE(POSTGRESQL(HOST '127.0.0.1'
        PORT {port} USER 'postgres' PASSWORD 'postgres-secret' DB 'postgres' TABLE 'p')) LAYOUT(HASHED())"""
    )
    opened.execute("CREATE MATERIALIZED VIEW j AS SELECT o.id, p.name FROM o JOIN p ON o.id = p.id")
    own_postgres.server.kill()
    opened.execute("INSERT INTO o (id) VALUES (1)")
    opened.execute("FLUSH")
    assert rows(opened, "SELECT id, name FROM table(j)") == [(1, "pen")]
    assert "can't be reached" in str(rows(opened, "SHOW ERRORS"))
    with pytest.raises(watersmeet.Error, match="can't be reached"):
        opened.execute("SELECT * FROM p")
    own_postgres.server.start()
    own_postgres.execute("UPDATE p SET name = 'ink'")
    assert rows(opened, "SELECT name FROM p") == [("ink",)]
    opened.execute("FLUSH")
    assert rows(opened, "SHOW ERRORS") == []


def looking_up(connection, postgres, layout=""):
    """A stream, and what its rows meet in a table of the server when they come: an external table, or a dictionary with
    this layout.
    """
    lookup = "p FOR SYSTEM_TIME AS OF PROCTIME()"
    if layout:
        lookup = "p"
        connection.execute(
            f"""CREATE DICTIONARY p (id int, name int) PRIMARY KEY id SOURCE(POSTGRESQL(HOST '127.0.0.1' PORT
            {postgres.server.port} USER 'postgres' PASSWORD 'postgres-secret' DB '{postgres.name}' TABLE 'p'))
            LAYOUT({layout}) LIFETIME(1)"""
        )
    else:
        table(connection, postgres, "p")
    connection.execute("CREATE STREAM s (n int, id int)")
    if not layout:
        connection.execute("SET dialect = 'risingwave'")
    connection.execute(f"CREATE MATERIALIZED VIEW v AS SELECT n, name FROM s LEFT JOIN {lookup} ON s.id = p.id")


def come(connection, *pairs):
    listed = ", ".join(f"({n}, {key}, now())" for n, key in pairs)
    connection.execute(f"INSERT INTO s (n, id, _tp_time) VALUES {listed}")
    connection.execute("FLUSH")


def test_rows_are_looked_up_in_a_table_as_it_is_when_they_come(opened, own_postgres):
    own_postgres.execute("CREATE TABLE p (id int PRIMARY KEY, name text); INSERT INTO p VALUES (1, 'pen')")
    looking_up(opened, own_postgres)
    come(opened, (1, 1), (2, 2))
    own_postgres.execute("UPDATE p SET name = 'ink'; INSERT INTO p VALUES (2, 'pad')")
    come(opened, (3, 1), (4, 2))
    own_postgres.server.kill()
    come(opened, (5, 1))
    assert "can't be reached" in str(rows(opened, "SHOW ERRORS"))
    own_postgres.server.start()
    own_postgres.execute("DELETE FROM p WHERE id = 1")
    come(opened, (6, 1))
    assert rows(opened, "SELECT * FROM v ORDER BY n") == [
        (1, "pen"),
        (2, None),
        (3, "ink"),
        (4, "pad"),
        (5, "ink"),
        (6, None),
    ]
    assert rows(opened, "SHOW ERRORS") == []


_ADDING = """
import itertools, sys, watersmeet
connection = watersmeet.connect(sys.argv[1], runtime="inprocess")
(first,) = connection.execute("SELECT coalesce(max(n), 0) FROM s").fetchone()
for n in itertools.count(first + 1):
    connection.execute(f"INSERT INTO s (n, id, _tp_time) VALUES ({n}, 1, now())")
    connection.execute("FLUSH")
    print(n, flush=True)
"""


@pytest.mark.parametrize("layout", mostly_slow(["", "DIRECT()", "COMPLEX_KEY_CACHE(SIZE_IN_CELLS 9)"], 0))
def test_a_killed_process_gives_no_row_another_answer(tmp_path, postgres, layout):
    postgres.execute("CREATE TABLE p (id int PRIMARY KEY, name int); INSERT INTO p VALUES (1, 0)")
    with watersmeet.connect(tmp_path / "db", runtime="inprocess", dialect="timeplus") as connection:
        looking_up(connection, postgres, layout)
    shown = {}
    for _ in range(2):
        command = [sys.executable, "-c", _ADDING, str(tmp_path / "db")]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            for _ in range(5):
                assert process.stdout.readline()
                postgres.execute("UPDATE p SET name = name + 1")
            process.kill()
        with watersmeet.connect(tmp_path / "db", runtime="inprocess") as connection:
            connection.execute("FLUSH")
            now = dict(rows(connection, "SELECT n, name FROM v ORDER BY n"))
            assert list(now) == [n for (n,) in rows(connection, "SELECT n FROM s ORDER BY n")]
            assert shown.items() <= now.items()
            assert list(now.values()) == sorted(now.values())
            shown = now
    assert len(set(shown.values())) > 1 or layout.endswith("CACHE(SIZE_IN_CELLS 9)")

"""Drivers of PostgreSQL against the server."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import json
import threading
import time
from decimal import Decimal

import asyncpg
import psycopg
import pytest
from tests.unit.server.test_any_messages import message, spoken, started

from watersmeet.dialects.statements.preparing import marked
from watersmeet.server.backend import without_database

SHOP = """
CREATE TABLE t (id int PRIMARY KEY, name varchar, x double precision, n numeric(10, 2), ts timestamp, b bytea, j jsonb,
                a int[], at timestamptz);
INSERT INTO t VALUES (1, 'a', 1.5, 2.50, '2020-01-01 01:02:03', '\\x00ff',
                      '{"k": 1}', ARRAY[1, 2], '2020-01-01 00:00:00Z'),
                     (2, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
CREATE MATERIALIZED VIEW v AS SELECT name, count(*) AS n FROM t GROUP BY name;
"""
ONE = (
    1,
    "a",
    1.5,
    Decimal("2.50"),
    dt.datetime(2020, 1, 1, 1, 2, 3),
    b"\x00\xff",
    {"k": 1},
    [1, 2],
    dt.datetime(2020, 1, 1, tzinfo=dt.UTC),
)
TWO = (2, *[None] * 8)


@pytest.mark.parametrize("binary", [False, True])
def test_psycopg_reads_all_types(serving, binary):
    with serving(SHOP).connect() as client:
        assert client.cursor(binary=binary).execute("SELECT * FROM t ORDER BY id").fetchall() == [ONE, TWO]
        found = client.cursor(binary=binary).execute("SELECT * FROM t WHERE id = %s", (1,)).fetchall()
        assert found == [ONE]


@pytest.mark.parametrize("form", ["%s", "%t", "%b"])
def test_psycopg_writes_all_types(serving, form):
    values = (5, "ü", 2.5, Decimal("-1.25"), ONE[4], b"\0\1", psycopg.types.json.Jsonb({"k": [1]}), [1, None], ONE[8])
    places = ", ".join([form] * len(values))
    with serving(SHOP).connect() as client:
        cursor = client.execute(f"INSERT INTO t VALUES ({places}) RETURNING *", values)
        assert cursor.statusmessage == "INSERT 0 1"
        assert cursor.fetchone() == (5, "ü", 2.5, Decimal("-1.25"), ONE[4], b"\0\1", {"k": [1]}, [1, None], ONE[8])
        client.rollback()
        assert client.execute("SELECT count(*) FROM t").fetchone() == (2,)
        assert client.execute(f"SELECT id FROM t ORDER BY id LIMIT {form}", (1,)).fetchall() == [(1,)]
        assert client.execute(f"SELECT {form}::varchar, {form}::int", ("x", 7)).fetchone() == ("x", 7)


def test_tags_and_transactions(serving):
    served = serving(SHOP)
    with served.connect(autocommit=True) as client:
        assert client.execute("UPDATE t SET name = 'z' WHERE id < 9").statusmessage == "UPDATE 2"
        assert client.execute("DELETE FROM t WHERE id = 2").statusmessage == "DELETE 1"
        assert client.execute("SELECT 1").statusmessage == "SELECT 1"
        assert client.execute("CREATE TABLE u (a int)").statusmessage == "CREATE TABLE"
        assert client.execute("").statusmessage is None
        with client.transaction():
            client.execute("INSERT INTO u VALUES (1)")
            with served.connect() as other:
                assert other.execute("SELECT count(*) FROM u").fetchone() == (0,)
        client.execute("FLUSH")
        assert client.execute("SELECT * FROM u").fetchall() == [(1,)]


def test_an_error_has_its_place_and_lets_the_transaction_fail(serving):
    with serving(SHOP).connect() as client:
        with pytest.raises(psycopg.errors.UndefinedColumn) as found:
            client.execute("SELECT nam FROM t")
        diagnosis = found.value.diag
        assert (diagnosis.statement_position, diagnosis.source_function) == ("8", "UNDEFINED_COLUMN")
        assert "name" in diagnosis.message_hint
        with pytest.raises(psycopg.errors.InFailedSqlTransaction):
            client.execute("SELECT 1")
        assert client.execute("COMMIT").statusmessage == "ROLLBACK"
        assert client.execute("SELECT 1").fetchone() == (1,)


def test_several_statements_are_one_transaction(serving):
    with serving("CREATE TABLE u (a int)").connect(autocommit=True) as client:
        cursor = client.execute("SELECT 1; SELECT 2")
        assert cursor.fetchall() == [(1,)]
        assert cursor.nextset()
        assert cursor.fetchall() == [(2,)]
        with pytest.raises(psycopg.errors.UndefinedTable):
            client.execute("INSERT INTO u VALUES (1); SELECT * FROM nothing")
        client.execute("FLUSH")
        assert client.execute("SELECT * FROM u").fetchall() == []
        client.execute("INSERT INTO u VALUES (1); INSERT INTO u VALUES (2); FLUSH")
        assert client.execute("SELECT count(*) FROM u").fetchone() == (2,)


def test_cursors_of_the_server(serving):
    rows = ", ".join(f"({i})" for i in range(1, 101))
    with serving(f"CREATE TABLE u (a int); INSERT INTO u VALUES {rows}").connect() as client:
        with client.cursor("c", scrollable=True) as cursor:
            cursor.execute("SELECT a FROM u WHERE a > %s ORDER BY a", (10,))
            assert cursor.fetchmany(2) == [(11,), (12,)]
            cursor.scroll(-1)
            assert cursor.fetchone() == (12,)
            assert len(cursor.fetchall()) == 88
        client.commit()
        with pytest.raises(psycopg.errors.InvalidCursorName):
            client.execute("FETCH 1 FROM c")
        client.rollback()
        client.execute("DECLARE k CURSOR WITH HOLD FOR SELECT a FROM u ORDER BY a")
        client.commit()
        assert client.execute("FETCH ABSOLUTE -1 FROM k").fetchall() == [(100,)]
        assert client.execute("FETCH BACKWARD 2 FROM k").fetchall() == [(99,), (98,)]
        assert client.execute("MOVE FIRST FROM k").statusmessage == "MOVE 1"
        assert client.execute("FETCH PRIOR FROM k").fetchall() == []
        assert client.execute("FETCH ALL FROM k").rowcount == 100


def test_cursors_of_a_transaction_that_is_rolled_back_are_gone(serving):
    with serving("CREATE TABLE u (a int); INSERT INTO u VALUES (1), (2); FLUSH").connect(autocommit=True) as client:
        client.execute("BEGIN; DECLARE kept CURSOR WITH HOLD FOR SELECT a FROM u ORDER BY a; COMMIT")
        for end in ("ROLLBACK", "SELECT nothing; COMMIT"):
            client.execute("BEGIN; DECLARE k CURSOR WITH HOLD FOR SELECT a FROM u")
            with contextlib.suppress(psycopg.errors.UndefinedColumn):
                client.execute(end)
            client.execute("ROLLBACK")
            with pytest.raises(psycopg.errors.InvalidCursorName):
                client.execute("FETCH 1 FROM k")
        assert client.execute("FETCH ALL FROM kept").fetchall() == [(1,), (2,)]


def test_rows_of_a_portal_end_with_the_failure_of_their_transaction(serving):
    with started(serving().server.port) as client:
        said = spoken(
            client,
            message(b"Q", b"BEGIN\0")
            + message(b"P", b"\0SELECT x FROM generate_series(1, 5) AS g(x)\0\0\0")
            + message(b"B", b"p\0\0" + bytes(6))
            + message(b"E", b"p\0" + bytes((0, 0, 0, 2)))
            + message(b"S", b"")
            + message(b"Q", b"SELECT nothing\0")
            + message(b"E", b"p\0" + bytes((0, 0, 0, 2)))
            + message(b"S", b""),
        )
    assert b"".join(said[said.index(b"C") :]) == b"CZ12DDsZEZEZ"


def test_what_is_discarded_is_named_where_it_stands(serving):
    with serving().connect() as client, pytest.raises(psycopg.errors.SyntaxError) as found:
        client.execute("DISCARD FOO")
    assert found.value.diag.statement_position == "9"


def test_asyncpg(serving):
    served = serving(SHOP)

    async def run():
        client = await asyncpg.connect(host="127.0.0.1", port=served.server.port, user="u", database="d")
        rows = await client.fetch("SELECT * FROM t ORDER BY id")
        assert tuple(rows[0])[:6] == ONE[:6]
        assert await client.fetchval("SELECT name FROM t WHERE id = $1 AND x < $2", 1, 2.0) == "a"
        await client.executemany(
            "INSERT INTO t (id, name, n, ts, a) VALUES ($1, $2, $3, $4, $5)",
            [(i, f"n{i}", Decimal("1.5"), dt.datetime(2021, 1, 1), [i]) for i in (10, 11)],
        )
        await client.execute("FLUSH")
        assert await client.fetchval("SELECT count(*) FROM t") == 4
        async with client.transaction():
            found = [r["id"] async for r in client.cursor("SELECT id FROM t ORDER BY id", prefetch=2)]
        assert found == [1, 2, 10, 11]
        with pytest.raises(asyncpg.UndefinedTableError):
            await client.fetch("SELECT * FROM nothing")
        await client.close()

    asyncio.run(run())


SLOW = "SELECT count(*) FROM generate_series(1, 100000) AS a(x), generate_series(1, 100000) AS b(y) WHERE x + y < 0"


def test_a_statement_is_cancelled_while_others_go_on(serving):
    served = serving(SHOP)
    with served.connect(autocommit=True) as client, served.connect(autocommit=True) as other:
        failures = []

        def run():
            try:
                client.execute(SLOW)
            except psycopg.errors.QueryCanceled as err:
                failures.append(err)

        thread = threading.Thread(target=run)
        thread.start()
        time.sleep(0.3)
        assert other.execute("SELECT count(*) FROM t").fetchone() == (2,)
        client.cancel_safe()  # `cancel` keeps Python from running the server
        thread.join(30)
        assert len(failures) == 1
        assert client.execute("SELECT 1").fetchone() == (1,)
        client.execute("SET statement_timeout = '100ms'")
        with pytest.raises(psycopg.errors.QueryCanceled, match="statement timeout"):
            client.execute(SLOW)


def test_dialects_of_connections(serving):
    served = serving("CREATE TABLE t (id int)")
    with served.connect(autocommit=True) as one, served.connect(options="-c dialect=timeplus") as two:
        one.execute("SET dialect = 'timeplus'")
        one.execute("CREATE STREAM s (a int)")
        one.execute("SET dialect = 'risingwave'")
        with pytest.raises(psycopg.errors.SyntaxError):
            one.execute("CREATE STREAM s2 (a int32)")
        assert two.execute("SHOW dialect").fetchone() == ("timeplus",)
        assert two.execute("SELECT id FROM table(t) WHERE id = %s", (1,)).fetchall() == []
    with pytest.raises(psycopg.OperationalError, match="unknown dialect"):
        served.connect(options="-c dialect=oracle")


def test_explain_analyze(serving):
    with serving(SHOP + "FLUSH;").connect(autocommit=True) as client:
        for prepare in (False, True):
            cursor = client.execute("EXPLAIN ANALYZE MATERIALIZED VIEW v", prepare=prepare)
            assert (cursor.statusmessage, [c.name for c in cursor.description]) == ("EXPLAIN", ["QUERY PLAN"])
            text = [row[0] for row in cursor.fetchall()]
            assert text[0].startswith('Materialized view "v" in its last ')
            assert any("StreamHashAgg { group_key: [t.name]" in line for line in text)
            profile = client.execute("EXPLAIN ANALYZE SELECT * FROM v", prepare=prepare).fetchall()
            assert any("2 rows" in line for (line,) in profile)
        found = client.execute("EXPLAIN (ANALYZE, FORMAT JSON) v").fetchall()
        assert json.loads("\n".join(line for (line,) in found))["plan"]["metrics"]["rows_out"] == 2


def test_settings(serving):
    with serving().connect(autocommit=True, application_name="tests") as client:
        assert client.info.parameter_status("server_version").startswith("15.")
        assert client.info.parameter_status("application_name") == "tests"
        client.execute("SET application_name TO 'other'")
        assert client.info.parameter_status("application_name") == "other"
        assert client.execute("SHOW application_name").fetchone() == ("other",)
        client.execute("RESET ALL")
        assert client.execute("SHOW application_name").fetchone() == ("tests",)
        client.execute("SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL READ COMMITTED")
        assert client.execute("SHOW TRANSACTION ISOLATION LEVEL").fetchone() == ("read committed",)
        with pytest.raises(psycopg.errors.FeatureNotSupported):
            client.execute("SET client_encoding TO 'latin1'")
        with pytest.raises(psycopg.errors.UndefinedObject):
            client.execute("SET no_such_setting TO 1")
        with pytest.raises(psycopg.errors.InvalidParameterValue):
            client.execute("SET server_version TO '9'")


def test_clients_read_no_files(serving, tmp_path):
    file = tmp_path / "a.csv"
    file.write_text("a\n1\n")
    query = f"SELECT * FROM read_csv('{file}')"
    with serving().connect() as client, pytest.raises(psycopg.errors.InsufficientPrivilege):
        client.execute(query)
    with serving(allow_files=True).connect() as client:
        assert len(client.execute(query).fetchall()) == 1


def test_the_second_of_two_writers_of_a_row_fails(serving):
    served = serving(
        "CREATE TABLE u (id int PRIMARY KEY, n int); INSERT INTO u VALUES (1, 0); CREATE TABLE log (a int)"
    )
    with served.connect() as one, served.connect() as two:
        for client in (one, two):
            client.execute("UPDATE u SET n = n + 1 WHERE id = 1")
            client.execute("INSERT INTO log VALUES (1)")
            assert client.execute("SELECT n FROM u").fetchone() == (1,)
        one.commit()
        with pytest.raises(psycopg.errors.SerializationFailure):
            two.commit()
        two.execute("UPDATE u SET n = n + 1 WHERE id = 1")
        two.commit()
        assert one.execute("SELECT n, (SELECT count(*) FROM log) FROM u").fetchone() == (2, 1)
        one.rollback()
        for client in (one, two):
            client.execute("INSERT INTO log VALUES (2)")
        one.commit()
        two.commit()
        assert one.execute("SELECT count(*) FROM log").fetchone() == (3,)


def test_savepoints(serving):
    with serving("CREATE TABLE u (a int)").connect() as client:
        client.execute("INSERT INTO u VALUES (1)")
        with pytest.raises(psycopg.errors.UndefinedTable), client.transaction():
            client.execute("INSERT INTO u VALUES (2)")
            client.execute("SELECT * FROM nothing")
        with client.transaction():
            client.execute("INSERT INTO u VALUES (3)")
        assert client.execute("SELECT a FROM u ORDER BY a").fetchall() == [(1,), (3,)]
        client.commit()
        assert client.execute("SELECT a FROM u ORDER BY a").fetchall() == [(1,), (3,)]
        with pytest.raises(psycopg.errors.InvalidSavepointSpecification):
            client.execute("ROLLBACK TO nothing")
        client.rollback()
        with pytest.raises(psycopg.errors.FeatureNotSupported, match="before CREATE"), client.transaction():
            client.execute("SAVEPOINT s")
            client.execute("CREATE TABLE made (a int)")
            client.execute("ROLLBACK TO s")


@pytest.mark.parametrize(
    ("text", "wanted", "numbers"),
    [
        ("SELECT $1,$2", "SELECT  ?, ?", (1, 2)),
        ("SELECT $12::int, $1", "SELECT   ?::int,  ?", (12, 1)),
        ("SELECT '$1', \"$1\", E'\\'$1', $1", "SELECT '$1', \"$1\", E'\\'$1',  ?", (1,)),
        ("SELECT $$a $1$$, $t$ $1 $t$ -- $1\n/* $1 */ + $2", "SELECT $$a $1$$, $t$ $1 $t$ -- $1\n/* $1 */ +  ?", (2,)),
        ("SELECT a$1", "SELECT a$1", ()),
    ],
)
def test_parameters_stand_outside_of_quotes_and_comments(text, wanted, numbers):
    assert marked(text) == (wanted, numbers)


def test_types_of_parameters_follow_from_their_places(serving):
    served = serving(SHOP)
    wanted = {
        "SELECT * FROM t WHERE id = $1 AND n < $2 AND ts > $3 AND name LIKE $4": "int4 numeric timestamp varchar",
        "INSERT INTO t (a, b, id) VALUES ($1, $2, $3)": "int4[] bytea int4",
        "UPDATE t SET name = $1, x = $2 WHERE id = $3": "varchar float8 int4",
        "DELETE FROM t WHERE ts = $1": "timestamp",
        "SELECT $2::bigint, $1": "text int8",
        "SELECT id FROM t LIMIT $1 OFFSET $2": "int8 int8",
        "SELECT relname FROM pg_class WHERE oid = $1::oid": "int8",
    }

    async def run():
        client = await asyncpg.connect(host="127.0.0.1", port=served.server.port, user="u", database="d")
        for query, names in wanted.items():
            prepared = await client.prepare(query)
            assert " ".join(p.name for p in prepared.get_parameters()) == names, query
        assert await client.fetchval("SELECT id FROM t ORDER BY id LIMIT $1 OFFSET $2", 1, 1) == 2
        with pytest.raises(asyncpg.InvalidParameterValueError, match="is not in the statement"):
            await client.prepare("SELECT $2::int")
        await client.close()

    asyncio.run(run())


def test_truncate_refresh_and_rename(serving):
    served = serving(SHOP)
    with served.connect(autocommit=True) as client:
        client.execute("INSERT INTO t (id, name) VALUES (3, 'c')")
        done = client.execute("REFRESH MATERIALIZED VIEW CONCURRENTLY v")
        assert done.statusmessage == "REFRESH MATERIALIZED VIEW"
        assert client.execute("SELECT count(*) FROM v").fetchone() == (3,)
        with pytest.raises(psycopg.errors.WrongObjectType, match='"t" is not a materialized view'):
            client.execute("REFRESH MATERIALIZED VIEW t")
        with pytest.raises(psycopg.errors.UndefinedTable, match='materialized view "w" does not exist'):
            client.execute("REFRESH MATERIALIZED VIEW w")
        assert client.execute("TRUNCATE TABLE ONLY t RESTART IDENTITY CASCADE").statusmessage == "TRUNCATE TABLE"
        client.execute("FLUSH")
        assert client.execute("SELECT count(*) FROM t").fetchone() == (0,)
        client.execute("CREATE TABLE u (a int)")
        client.execute("TRUNCATE t, u")
        with client.transaction():
            client.execute("INSERT INTO u VALUES (1)")
            client.execute("TRUNCATE t, u")
            assert client.execute("SELECT count(*) FROM u").fetchone() == (0,)
        client.execute("CREATE VIEW w AS SELECT id FROM t")
        client.execute("ALTER TABLE w RENAME TO x")
        assert client.execute("SELECT count(*) FROM x").fetchone() == (0,)


def test_names_with_the_database_in_front(serving):
    with serving(SHOP).connect(autocommit=True) as client:
        assert client.execute('SELECT name FROM "shop"."public"."t" WHERE id = 1').fetchall() == [("a",)]
        client.execute("CREATE VIEW shop.public.shop AS SELECT 'shop.public.t' AS text FROM shop . public . t")
        assert client.execute("SELECT text FROM shop.public.shop").fetchone() == ("shop.public.t",)
        assert client.execute("SELECT shop.text FROM shop").fetchone() == ("shop.public.t",)
        with pytest.raises(psycopg.errors.UndefinedTable) as found:
            client.execute("SELECT * FROM shop.public.nothing")
        assert found.value.diag.statement_position == "20"
        with pytest.raises(psycopg.Error):
            client.execute("SELECT * FROM other.public.t")


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("a shop.b.c, shop.d", None),
        ("x.shop.b.c", None),
        ("SELECT shop.a.b FROM t AS shop", None),
        ("'shop.b.c' -- shop.b.c\n /* shop.b.c */ $x$ shop.b.c $x$ E'\\' shop.b.c'", None),
        ('Shop.b.c "Shop".b.c', '     b.c "Shop".b.c'),
        ("shop.\nb.shop", "     \nb.shop"),
    ],
)
def test_where_the_name_of_the_database_stands(text, wanted):
    assert without_database(text, "shop") == (text if wanted is None else wanted)

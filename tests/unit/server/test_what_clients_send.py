"""Types of parameters, descriptions of results, settings and one's own writes, as drivers of PostgreSQL expect them."""

from __future__ import annotations

import asyncio
import os
import pty
import select
import shutil
import signal
import subprocess
import uuid

import asyncpg
import psycopg
import pytest
from tests.waiting import until

SHOP = """
CREATE TABLE t (id int PRIMARY KEY, word varchar, n int NOT NULL);
CREATE TABLE o (id int PRIMARY KEY, t int);
CREATE VIEW v AS SELECT id AS vid, n + 1 AS m FROM t;
CREATE MATERIALIZED VIEW mv AS SELECT word, count(*) AS c FROM t GROUP BY word;
INSERT INTO t VALUES (1, 'a', 2); FLUSH;
"""
ONE, OTHER = uuid.UUID("AAAAAAAA-bbbb-4ccc-8ddd-eeeeeeeeeeee"), uuid.UUID(int=7)


@pytest.fixture
def served(serving):
    return serving(SHOP)


@pytest.fixture
def client(served):
    with served.connect(autocommit=True, prepare_threshold=0) as client:
        yield client


# ---- uuid


@pytest.mark.parametrize("form", ["%s", "%b", "%t", "%b::uuid", "%t :: UUID", "CAST(%s AS uuid)"])
def test_a_uuid_is_stored_and_found_as_its_text(client, form):
    client.execute(f"INSERT INTO t VALUES (2, {form}, 1)", (ONE,))
    assert client.execute("SELECT word FROM t WHERE id = 2").fetchone() == (str(ONE),)
    assert client.execute(f"SELECT id FROM t WHERE word = {form}", (ONE,)).fetchall() == [(2,)]
    assert client.execute(f"SELECT {form}", (None,)).fetchone() == (None,)


@pytest.mark.parametrize("form", ["%s", "%b", "%t", "%b::uuid[]", "%t::uuid[]"])
def test_arrays_of_uuids(client, form):
    client.execute("INSERT INTO t VALUES (2, %s, 1)", (ONE,))
    found = client.execute(f"SELECT id FROM t WHERE word = ANY({form})", ([OTHER, None, ONE],)).fetchall()
    assert found == [(2,)]
    assert client.execute(f"SELECT {form}", ([ONE, None],)).fetchone() == ([ONE, None],)


@pytest.mark.parametrize(
    "text", ["{AAAAAAAABBBB4CCC8DDDEEEEEEEEEEEE}", "aaaa-aaaabbbb-4ccc8ddd-eeeeeeeeeeee", str(ONE)]
)
def test_a_text_that_is_cast_has_the_form_of_a_uuid(client, text):
    assert client.execute("SELECT %s::uuid", (text,)).fetchone() == (ONE,)
    assert client.execute("SELECT %s::uuid[]", ("{" + text.strip("{}") + ",NULL}",)).fetchone() == ([ONE, None],)


def test_what_is_no_uuid(client, served):
    for text in ("zz", "", "aaaaaaaa-bbbb-4ccc-8ddd-eeeeeeeeeee", "{{" + str(ONE) + "}}"):
        with pytest.raises(psycopg.errors.InvalidTextRepresentation, match="type uuid"):
            client.execute("SELECT %s::uuid", (text,))
    with pytest.raises(psycopg.errors.InvalidTextRepresentation, match="type uuid"):
        client.execute("SELECT 'x'::uuid")
    assert client.execute("SELECT '$1::uuid'").fetchone() == ("$1::uuid",)
    with served.connect(autocommit=True) as simple:
        simple.execute("PREPARE p (uuid, uuid[]) AS SELECT $1, $2")
        given = f"EXECUTE p('{{{str(ONE).upper()}}}', '{{{ONE}}}')"
        assert simple.execute(given).fetchone() == (ONE, [ONE])


def test_asyncpg_sends_uuids_in_binary(served):
    async def run() -> list:
        client = await asyncpg.connect(host="127.0.0.1", port=served.server.port, user="someone", database="shop")
        try:
            await client.execute("INSERT INTO t VALUES ($1, $2::uuid, 1)", 2, ONE)
            one = await client.fetchval("SELECT word FROM t WHERE word = $1::uuid", ONE)
            return [one, await client.fetchval("SELECT id FROM t WHERE word = ANY($1::uuid[])", [OTHER, ONE])]
        finally:
            await client.close()

    assert asyncio.run(run()) == [str(ONE), 2]


# ---- descriptions of results, definitions, fields of errors


#: Queries, and the columns of tables that their columns are.
ORIGINS = (
    ("SELECT id, word, n + 1, n AS x FROM t", "t.id t.word - t.n"),
    ("SELECT a.*, b.id FROM t AS a (x) JOIN o b ON a.x = b.t", "t.id t.word t.n o.id"),
    ("SELECT vid, m FROM v", "v.vid v.m"),
    ("SELECT * FROM mv", "mv.word mv.c"),
    ("SELECT q.y FROM (SELECT word AS y FROM t ORDER BY id LIMIT 1) q", "t.word"),
    ("WITH w AS (SELECT id AS k, n FROM t) SELECT a.k, b.n FROM w a, w b", "t.id t.n"),
    ("SELECT word, count(*) FROM t GROUP BY word", "t.word -"),
    ("SELECT DISTINCT n FROM t", "t.n"),
    ("SELECT id FROM t UNION ALL SELECT id FROM o", "-"),
    ("SELECT id::bigint, coalesce(word, 'x'), (SELECT n FROM t LIMIT 1), 1 FROM t", "- - - -"),
    ("INSERT INTO t VALUES (9, 'x', 1) RETURNING n, id + 1", "t.n -"),
    ("UPDATE t SET n = 3 WHERE id = 1 RETURNING *", "t.id t.word t.n"),
)


def test_a_result_names_the_table_and_column_of_each_column(client):
    tables = dict(client.execute("SELECT oid, relname FROM pg_class").fetchall())
    rows = client.execute("SELECT attrelid, attnum, attname FROM pg_attribute").fetchall()
    columns = {(table, number): f"{tables[table]}.{name}" for table, number, name in rows}
    for query, told in ORIGINS:
        for prepare in (False, True):  # by its result, and described before it runs
            result = client.execute(query.replace("(9", "(8") if prepare else query, prepare=prepare).pgresult
            found = [(result.ftable(i), result.ftablecol(i)) for i in range(result.nfields)]
            assert (query, " ".join(columns.get(place, "-") for place in found)) == (query, told)


def test_a_result_of_a_view_does_not_name_what_it_reads(serving):
    served = serving(SHOP + "CREATE USER eve PASSWORD 'x'; GRANT SELECT ON v TO eve")
    with psycopg.connect(served.dsn.replace("someone", "eve"), password="x", autocommit=True) as eve:
        tables = dict(eve.execute("SELECT oid, relname FROM pg_class").fetchall())
        result = eve.execute("SELECT vid FROM (SELECT * FROM v) q").pgresult
        assert tables[result.ftable(0)] == "v"


def test_the_definition_of_a_view_is_its_query(client):
    for name, query in (
        ("v", "SELECT id AS vid, n + 1 AS m FROM t;"),
        ("mv", "SELECT word, count(*) AS c FROM t GROUP BY word;"),
    ):
        assert client.execute("SELECT pg_get_viewdef(%s::regclass)", (name,)).fetchone() == (query,)
    client.execute("CREATE VIEW other (p, q) AS WITH w AS (SELECT 1 AS a) SELECT a, (SELECT 'as' AS b) FROM w")
    client.execute("SET dialect = 'timeplus'")
    client.execute("CREATE MATERIALIZED VIEW tp AS SELECT id FROM table(t)")
    for asked in (
        "SELECT viewname, definition FROM pg_views UNION ALL SELECT matviewname, definition FROM pg_matviews",
        "SELECT relname, pg_get_viewdef(oid) FROM pg_class WHERE relkind IN ('v', 'm')",
    ):
        found = dict(client.execute(asked).fetchall())
        assert found["other"] == "WITH w AS (SELECT 1 AS a) SELECT a, (SELECT 'as' AS b) FROM w;"
        assert found["tp"] == "SELECT id FROM table(t);"


def test_a_null_that_is_refused_names_its_column(client):
    for statement in ("INSERT INTO t VALUES (3, 'a', NULL)", "UPDATE t SET n = NULL"):
        with pytest.raises(psycopg.errors.NotNullViolation) as found:
            client.execute(statement)
        diag = found.value.diag
        assert (diag.schema_name, diag.table_name, diag.column_name) == ("public", "t", "n")


# ---- settings


#: Times as they are set, as SHOW has them, and in milliseconds.
TIMES = (
    ("1500", "1500ms", "1500"),
    ("30000", "30s", "30000"),
    ("'1.5min'", "90s", "90000"),
    ("'2min'", "2min", "120000"),
    ("'1500us'", "2ms", "2"),
    ("3e3", "3s", "3000"),
    ("'1 h'", "1h", "3600000"),
    ("0", "0", "0"),
)


def test_times_are_in_milliseconds(client):
    asked = "SELECT current_setting(name), setting, unit FROM pg_settings WHERE name = 'idle_session_timeout'"
    for value, shown, number in TIMES:
        with client.transaction():  # it is about sessions that do nothing outside of one
            client.execute(f"SET LOCAL idle_session_timeout = {value}")
            assert client.execute("SHOW idle_session_timeout").fetchone() == (shown,)
            assert client.execute(asked).fetchone() == (shown, number, "ms")


def test_times_that_are_none(client):
    for value in ("-1", "2147483648", "'1x'", "'5 5'"):
        with pytest.raises(psycopg.errors.InvalidParameterValue):
            client.execute(f"SET statement_timeout = {value}")
    with pytest.raises(psycopg.errors.InvalidParameterValue, match=r"\(0 ms .. 2147483647 ms\)"):
        client.execute("SET statement_timeout = -1")


def test_durations_and_sizes_that_change_nothing_are_checked(client):
    shown = {"lock_timeout": ("'0 s'", "0", "ms"), "transaction_timeout": ("0", "0", "ms"),
             "client_connection_check_interval": ("'2s'", "2s", "ms"), "tcp_keepalives_idle": ("90", "90s", "s"),
             "work_mem": ("8192", "8MB", "kB"), "maintenance_work_mem": ("'1GB'", "1GB", "kB")}  # fmt: skip
    for name, (value, text, unit) in shown.items():
        client.execute(f"SET {name} = {value}")
        assert client.execute(f"SHOW {name}").fetchone() == (text,)
        assert client.execute("SELECT unit FROM pg_settings WHERE name = %s", (name,)).fetchone() == (unit,)
        for wrong in ("'x'", "-1", "'5 apples'"):
            with pytest.raises(psycopg.errors.InvalidParameterValue):
                client.execute(f"SET {name} = {wrong}")
        assert client.execute(f"SHOW {name}").fetchone() == (text,)
    with pytest.raises(psycopg.errors.FeatureNotSupported):
        client.execute("SET lock_timeout = '5s'")


def test_long_values_of_settings_that_clients_are_told(client):
    client.execute(f"SET application_name = '{'é' * 100_000}'")
    assert client.info.parameter_status("application_name") == "é" * 31
    with pytest.raises(psycopg.errors.InvalidParameterValue, match="longer than"):
        client.execute(f"SET search_path = '{'x' * 100_000}'")
    assert client.execute("SELECT 1").fetchone() == (1,)


# ---- what a session has written


def test_a_session_sees_what_it_has_written(client):
    """Nothing else makes epochs: without Spark, they are made where somebody waits."""
    client.execute("INSERT INTO t VALUES (2, 'a', 1)")
    assert client.execute("SELECT id, c FROM t JOIN mv ON t.word = mv.word ORDER BY id").fetchall() == [(1, 2), (2, 2)]
    with client.cursor().copy("COPY t FROM STDIN") as copy:
        copy.write("3\tb\t1\n")
    assert client.execute("SELECT * FROM mv ORDER BY word").fetchall() == [("a", 2), ("b", 1)]
    client.execute("DELETE FROM t WHERE id = 3")
    with client.cursor().copy("COPY (SELECT word FROM mv) TO STDOUT") as copy:
        assert b"".join(copy) == b"a\n"
    client.cursor().executemany("INSERT INTO t VALUES (%s, 'c', 1)", [(4,), (5,)])
    assert client.execute("SELECT c FROM mv WHERE word = 'c'").fetchone() == (2,)
    with client.transaction():
        client.execute("UPDATE t SET word = 'd' WHERE id > 3")
    with client.transaction(), client.cursor("c") as cursor:
        cursor.execute("SELECT word FROM mv ORDER BY 1")
        assert cursor.fetchall() == [("a",), ("d",)]
    client.execute("CREATE TABLE made AS SELECT * FROM t")
    assert client.execute("SELECT count(*) FROM made").fetchone() == (4,)


# ---- psql


@pytest.mark.skipif(shutil.which("psql") is None, reason="psql is not installed")
@pytest.mark.parametrize("query", ["SUBSCRIBE mv;", "SET dialect = 'timeplus'; SELECT id FROM s;"])
def test_psql_prints_rows_of_a_running_query_as_they_come(serving, query):
    served = serving(SHOP + "SET dialect = 'timeplus'; CREATE STREAM s (id int)")
    terminal, inside = pty.openpty()
    started = subprocess.Popen(
        ["psql", "-X", served.dsn, "-c", query], stdin=inside, stdout=inside, stderr=inside, close_fds=True
    )
    os.close(inside)
    printed = bytearray()

    def prints(text: bytes) -> bool:
        if select.select([terminal], [], [], 0)[0]:
            printed.extend(os.read(terminal, 10_000))
        return text in printed

    try:
        if "SUBSCRIBE" in query:
            until(lambda: prints(b"wm_commit\twm_diff\tword\tc\r\n"))
            until(lambda: prints(b"\t1\ta\t1\r\n"))
            served.python.execute("INSERT INTO t VALUES (2, 'b', 1); FLUSH")
            until(lambda: prints(b"\t1\tb\t1\r\n"))
        else:
            until(lambda: prints(b"id\r\n"))
            served.python.execute("INSERT INTO s (id) VALUES (41); FLUSH")
            until(lambda: prints(b"41"))
    finally:
        started.send_signal(signal.SIGINT)
        assert started.wait(30) is not None
        os.close(terminal)

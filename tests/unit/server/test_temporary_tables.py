"""Temporary tables and views belong to their session; SELECT INTO and CREATE TABLE AS … WITH NO DATA."""

from __future__ import annotations

import subprocess
import sys

import psycopg
import pytest
from tests.waiting import until

import watersmeet

#: Statements that PostgreSQL and Watersmeet answer alike, in one session.
SAME = (
    "CREATE TABLE t (a int)",
    "INSERT INTO t VALUES (1), (2)",
    "CREATE TEMP TABLE t (b text, c serial, e int UNIQUE)",
    "INSERT INTO t (b) VALUES ('x')",
    "SELECT * FROM t",
    "SELECT * FROM public.t ORDER BY a",
    "SELECT b FROM pg_temp.t",
    "INSERT INTO t (e) VALUES (1), (1)",
    "SELECT a, a + 1 AS z INTO TEMP s FROM public.t",
    "SELECT * FROM s ORDER BY a",
    "SELECT a INTO u FROM public.t WHERE a > 1",
    "SELECT * FROM public.u",
    "CREATE TABLE w AS SELECT * FROM public.t WITH NO DATA",
    "SELECT * FROM w",
    "CREATE TEMPORARY TABLE emptied (a int) ON COMMIT DELETE ROWS",
    "INSERT INTO emptied VALUES (1)",
    "SELECT * FROM emptied",
    "BEGIN",
    "INSERT INTO emptied VALUES (1)",
    "SELECT * FROM emptied",
    "COMMIT",
    "SELECT * FROM emptied",
    "BEGIN",
    "CREATE TEMP TABLE dropped ON COMMIT DROP AS SELECT 1 AS x",
    "SELECT * FROM dropped",
    "COMMIT",
    "SELECT * FROM dropped",
    "BEGIN",
    "CREATE TEMP TABLE undone (a int)",
    "ROLLBACK",
    "SELECT * FROM undone",
    "CREATE LOCAL TEMPORARY TABLE kept (a int) ON COMMIT PRESERVE ROWS",
    "INSERT INTO kept VALUES (7)",
    "SELECT * FROM kept",
    "CREATE TEMP VIEW v AS SELECT a FROM s",
    "SELECT * FROM v ORDER BY a",
    "CREATE TABLE pg_temp.named (a int)",
    "SELECT * FROM named",
    "SELECT current_schema()",
    "SELECT relname, relpersistence::text FROM pg_class WHERE relname IN ('s', 'u', 'v') ORDER BY 1",
    "SELECT table_name, table_type FROM information_schema.tables WHERE table_name IN ('s', 'u', 'w') ORDER BY 1",
    "SELECT to_regclass('s')::text, to_regclass('pg_temp.nothing') IS NULL",
    "DROP TABLE t",
    "SELECT * FROM t ORDER BY a",
    "TRUNCATE s",
    "SELECT * FROM s",
    "DISCARD TEMP",
    "SELECT * FROM s",
)


def answers(client: psycopg.Connection) -> list[object]:
    found: list[object] = []
    for text in SAME:
        try:
            cursor = client.execute(text)
        except psycopg.Error as err:
            found.append((text, err.sqlstate))
        else:
            found.append((text, None if cursor.description is None else cursor.fetchall()))
    return found


@pytest.mark.postgres
def test_as_in_postgresql(serving, postgres):
    with serving().connect(autocommit=True) as own, postgres.connect() as other:
        assert answers(own) == answers(other)


def test_other_sessions_see_nothing_and_nothing_remains(serving):
    served = serving("CREATE TABLE t (a int); INSERT INTO t VALUES (1)")
    names = "SELECT relname FROM pg_class WHERE relkind IN ('r', 'S', 'v') ORDER BY 1"
    with served.connect(autocommit=True) as other:
        with served.connect(autocommit=True) as client:
            client.execute("CREATE TEMP TABLE t (b text, c serial); CREATE TEMP TABLE mine (a int)")
            client.execute("CREATE INDEX of_mine ON mine (a)")
            for _ in range(6):  # prepared statements and plans of small ones are shared between sessions
                client.execute("INSERT INTO t (b) VALUES (%s)", ["x"])
                other.execute("INSERT INTO t (a) VALUES (%s)", [2])
            assert client.execute("SELECT count(*) FROM t WHERE b = 'x'").fetchone() == (6,)
            assert other.execute("SELECT count(*) FROM t WHERE a = 2").fetchone() == (6,)
            (schema,) = client.execute("SELECT nspname FROM pg_namespace WHERE nspname LIKE 'pg\\_temp\\_%'").fetchone()
            assert other.execute(names).fetchall() == [("t",)]
            assert other.execute("SELECT 1 FROM pg_namespace WHERE nspname LIKE 'pg\\_temp%'").fetchall() == []
            for text in ("SELECT * FROM mine", f"SELECT * FROM {schema}.mine", f"DROP TABLE {schema}.mine"):
                with pytest.raises(psycopg.errors.UndefinedTable):
                    other.execute(text)
            with pytest.raises(psycopg.errors.FeatureNotSupported, match="can't use the temporary table"):
                client.execute("CREATE MATERIALIZED VIEW m AS SELECT * FROM mine")
            client.execute("CREATE UNIQUE INDEX of_t ON t (c)")
            with pytest.raises(psycopg.errors.FeatureNotSupported, match="can't use the temporary table"):
                client.execute("CREATE TABLE child (a int REFERENCES t (c))")
        until(lambda: [r.name for r in served.python.opened.catalog.relations.values()] == ["t"])


def test_a_crash_leaves_no_temporary_table(tmp_path):
    program = """
import os, sys, watersmeet
connection = watersmeet.connect(sys.argv[1], runtime="inprocess")
connection.execute("CREATE TABLE t (a int); CREATE TEMP TABLE s (a serial); INSERT INTO s VALUES (1), (2)")
connection.execute("CREATE TEMP VIEW v AS SELECT * FROM s")
os.kill(os.getpid(), 9)
"""
    path = str(tmp_path / "db")
    assert subprocess.run([sys.executable, "-c", program, path], check=False).returncode == -9
    with watersmeet.connect(path, read_only=True) as connection:
        assert connection.execute("SHOW TABLES").fetchall() == [("t",)]
    with watersmeet.connect(path, runtime="inprocess") as connection:
        assert [r.name for r in connection.opened.catalog.relations.values()] == ["t"]
        connection.execute("CREATE TEMP TABLE s (a int)")
    with watersmeet.connect(path, runtime="inprocess") as connection:
        assert [r.name for r in connection.opened.catalog.relations.values()] == ["t"]

"""PREPARE, EXECUTE and DEALLOCATE as statements."""

from __future__ import annotations

import psycopg
import pytest

SHOP = "CREATE TABLE t (a int PRIMARY KEY, b varchar); INSERT INTO t VALUES (1, 'x'), (2, 'y;z'); FLUSH"


@pytest.fixture
def client(serving):
    with serving(SHOP).connect(autocommit=True) as client:
        yield client


def test_values_are_expressions_and_types_follow_from_their_places(client):
    client.execute("PREPARE q AS SELECT a, b FROM t WHERE a = $1 OR b = $2 ORDER BY a")
    assert client.execute("EXECUTE q(1, 'y;z')").fetchall() == [(1, "x"), (2, "y;z")]
    assert client.execute("EXECUTE q(1 + 1, NULL)").fetchall() == [(2, "y;z")]
    assert client.execute("/* from a tool */ PREPARE i (int, text) AS INSERT INTO t VALUES ($1, $2)")
    assert client.execute("EXECUTE i('3', upper('k'))").statusmessage == "INSERT 0 1"
    assert client.cursor(binary=True).execute("EXECUTE q(3, '')").fetchall() == [(3, "K")]
    client.execute("PREPARE c AS SELECT relname FROM pg_class WHERE relname = $1")
    assert client.execute("EXECUTE c('t')").fetchall() == [("t",)]
    client.execute("DEALLOCATE q")
    with pytest.raises(psycopg.errors.InvalidSqlStatementName):
        client.execute("EXECUTE q(1, '')")


def test_the_protocol_knows_the_same_names(client):
    client.execute("PREPARE q AS SELECT a FROM t WHERE a = $1")
    found = client.pgconn.exec_prepared(b"q", [b"2"])
    assert found.get_value(0, 0) == b"2"
    client.pgconn.prepare(b"p", b"SELECT b FROM t WHERE a = $1")
    assert client.execute("EXECUTE p(1)").fetchall() == [("x",)]
    client.execute("DEALLOCATE ALL")
    with pytest.raises(psycopg.errors.InvalidSqlStatementName):
        client.execute("EXECUTE p(1)")


@pytest.mark.parametrize("dialect", ["timeplus", "sqlstream", "lenses"])
def test_in_every_dialect(client, dialect):
    client.execute(f"SET dialect = '{dialect}'")
    table = {"timeplus": "table(t)", "sqlstream": '"t"'}.get(dialect, "t")
    column = '"a"' if dialect == "sqlstream" else "a"
    client.execute(f"PREPARE q AS SELECT {column} FROM {table} WHERE {column} = $1")
    assert client.execute("EXECUTE q(2)").fetchall() == [(2,)]


@pytest.mark.parametrize(
    ("statement", "sqlstate", "place"),
    [
        ("EXECUTE q", "42601", 1),
        ("EXECUTE q(1, 2)", "42601", 1),
        ("EXECUTE q('x')", "22P02", None),
        ("EXECUTE nothing(1)", "26000", None),
        ("PREPARE q AS SELECT 1", "42P05", None),
        ("PREPARE r AS SELECT nothing FROM t", "42703", 21),
        ("PREPARE r AS", "42601", 13),
        ("PREPARE r (int AS SELECT 1", "42601", None),
        ("PREPARE r (int) AS SELECT 1; SELECT $1", "22023", None),
    ],
)
def test_what_is_refused(client, statement, sqlstate, place):
    client.execute("PREPARE q AS SELECT a FROM t WHERE a = $1")
    with pytest.raises(psycopg.Error) as found:
        client.execute(statement)
    assert found.value.sqlstate == sqlstate
    assert place is None or found.value.diag.statement_position == str(place)

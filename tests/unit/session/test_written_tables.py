"""External tables of Timeplus over a real PostgreSQL are written: by INSERT and by views, each row once."""

from __future__ import annotations

import random

import pytest
from scripts.servers import mariadb
from scripts.servers.postgres import PASSWORD, USER
from tests.unit.sinks.databasetargets import selected

import watersmeet
from watersmeet import Error
from watersmeet.connectors.base.sources import Unavailable
from watersmeet.sinkwriters.writers import SinkWriters
from watersmeet.system import process


def table(postgres, name, more=""):
    return (
        f"CREATE EXTERNAL TABLE {name} SETTINGS type='postgresql', address='127.0.0.1:{postgres.server.port}', "
        f"user='{USER}', password='{PASSWORD}', database='{postgres.name}', table='{name}'{more}"
    )


def content(postgres, query):
    with postgres.connect() as connection:
        return connection.execute(query).fetchall()


def delivered(connection):
    connection.execute("FLUSH")
    session = connection._session
    for relation in session.catalog.relations.values():
        assert session.database.service(SinkWriters).wait(relation.id, 60)


def refused(connection, sql):
    with pytest.raises(Error) as found:
        connection.execute(sql)
    return found.value


@pytest.fixture
def connection(tmp_path, postgres):
    with watersmeet.connect(tmp_path / "db", "timeplus", runtime="inprocess", parallelism=2) as opened:
        yield opened


@pytest.fixture(autouse=True)
def _no_hook():
    yield
    process.set_hook(None)


def test_insert_adds_rows_there(connection, postgres):
    postgres.execute("CREATE TABLE t (i int PRIMARY KEY, v text DEFAULT 'none', tags text[], at timestamp)")
    connection.execute(table(postgres, "t"))
    found = connection.execute("INSERT INTO t VALUES (1, 'a \"b\"', ['x', 'y,z'], '2024-05-06 07:08:09.123456')")
    assert found.rowcount == 1
    connection.execute("INSERT INTO t (i) VALUES (2), (3)")
    connection.execute("CREATE STREAM s(n int32); INSERT INTO s (n) VALUES (10), (11)")
    connection.execute("INSERT INTO t (v, i) SELECT concat('n', to_string(n)), n FROM table(s)")
    assert content(postgres, "SELECT i, v, tags FROM t ORDER BY i") == [
        (1, 'a "b"', ["x", "y,z"]),
        (2, "none", None),
        (3, "none", None),
        (10, "n10", None),
        (11, "n11", None),
    ]
    assert connection.execute("SELECT count(*), max(v) FROM t").fetchall() == [(5, "none")]
    again = refused(connection, "INSERT INTO t (i) VALUES (20), (1)")
    assert again.condition == "DELIVERY_REFUSED"
    assert content(postgres, "SELECT count(*) FROM t") == [(5,)]  # all or none
    connection.execute("BEGIN")
    assert refused(connection, "INSERT INTO t (i) VALUES (4)").condition == "TRANSACTION_STATE"
    connection.execute("ROLLBACK")
    connection.execute("DELETE FROM t WHERE i = 10; UPDATE t SET v = 'x' WHERE i = 11")
    assert content(postgres, "SELECT i, v FROM t WHERE i > 9") == [(11, "x")]


def test_rows_whose_keys_are_there(connection, postgres):
    postgres.execute("CREATE TABLE t (i int PRIMARY KEY, n int); INSERT INTO t VALUES (1, 1)")
    connection.execute(table(postgres, "t", ", on_conflict='ON CONFLICT DO NOTHING'"))
    connection.execute("INSERT INTO t VALUES (1, 5), (2, 5), (2, 6)")
    assert content(postgres, "SELECT * FROM t ORDER BY i") == [(1, 1), (2, 5)]
    connection.execute("DROP STREAM t")
    connection.execute(table(postgres, "t", ", on_conflict='ON CONFLICT (i) DO UPDATE SET n = t.n + excluded.n'"))
    connection.execute("INSERT INTO t VALUES (1, 10), (3, 1), (1, 100), (3, 2), (1, 1000)")
    assert content(postgres, "SELECT * FROM t ORDER BY i") == [(1, 1111), (2, 5), (3, 3)]
    connection.execute("DROP STREAM t")
    assert refused(connection, table(postgres, "t", ", on_conflict='DROP TABLE t'")).condition == "CONNECTOR_OPTION"


def test_what_is_no_table_is_only_read(connection, postgres):
    postgres.execute("CREATE TABLE t (i int PRIMARY KEY); CREATE VIEW twice AS SELECT 2 * i AS i FROM t")
    connection.execute(
        f"CREATE DICTIONARY d(i int32) PRIMARY KEY i SOURCE(POSTGRESQL(HOST '127.0.0.1' PORT {postgres.server.port} "
        f"USER '{USER}' PASSWORD '{PASSWORD}' DB '{postgres.name}' TABLE 't')) LAYOUT(FLAT())"
    )
    assert refused(connection, "INSERT INTO d VALUES (1)").condition == "READ_ONLY_RELATION"
    postgres.execute("CREATE TABLE other (i int, w int)")
    connection.execute(table(postgres, "other"))
    connection.execute("CREATE STREAM s(i int32, x string)")
    wrong = refused(connection, "CREATE MATERIALIZED VIEW v INTO other AS SELECT i, x FROM s")
    assert wrong.condition == "UNDEFINED_COLUMN"
    wrong = refused(connection, "CREATE MATERIALIZED VIEW v INTO other AS SELECT i, x AS w FROM s")
    assert wrong.condition == "DATATYPE_MISMATCH"


@pytest.mark.parametrize("seed", range(2))
def test_a_view_writes_each_row_once(tmp_path, postgres, seed):
    postgres.execute("CREATE TABLE out (i int, v text, note text DEFAULT 'new')")
    r = random.Random(seed)

    def fail(point):
        if point.startswith(("database.", "sink.")) and r.random() < 0.05:
            raise Unavailable("it failed")

    def opened():
        return watersmeet.connect(tmp_path / "db", "timeplus", runtime="inprocess", parallelism=2)

    connection = opened()
    connection.execute(table(postgres, "out"))
    connection.execute("CREATE STREAM s(i int32); CREATE STREAM names(k int32, v string) PRIMARY KEY k "
                       "SETTINGS mode='versioned_kv'")  # fmt: skip
    connection.execute("INSERT INTO names (k, v) VALUES (1, 'v1'), (2, 'v2')")
    connection.execute("CREATE MATERIALIZED VIEW m INTO out AS SELECT s.i AS i, n.v AS v FROM s JOIN names AS n ON "
                       "s.i % 3 = n.k")  # fmt: skip
    process.set_hook(fail)
    for i in range(20):
        connection.execute(f"INSERT INTO s (i) VALUES ({2 * i}), ({2 * i + 1})")
        if r.random() < 0.3:
            connection.execute("FLUSH")
        if r.random() < 0.2:
            connection.close()
            connection = opened()
    process.set_hook(None)
    delivered(connection)
    assert content(postgres, "SELECT * FROM out ORDER BY i") == [(i, f"v{i % 3}", "new") for i in range(40) if i % 3]
    connection.close()


def mariadb_table(mysql, name, more=""):
    return (
        f"CREATE EXTERNAL TABLE {name} SETTINGS type='mysql', address='127.0.0.1:{mysql.server.port}', "
        f"user='{mariadb.USER}', password='{mariadb.PASSWORD}', database='{mysql.name}', table='{name}'{more}"
    )


def test_tables_of_mariadb_are_written_too(tmp_path, mysql):
    mysql.execute("CREATE TABLE t (i int PRIMARY KEY, v varchar(20) DEFAULT 'none', n int)")
    with watersmeet.connect(tmp_path / "db", "timeplus", runtime="inprocess", parallelism=2) as connection:
        connection.execute(mariadb_table(mysql, "t"))
        connection.execute("INSERT INTO t (i) VALUES (1); INSERT INTO t VALUES (2, 'a\\'b', 5)")
        assert refused(connection, "INSERT INTO t (i) VALUES (3), (1)").condition == "DELIVERY_REFUSED"
        connection.execute("CREATE STREAM s(i int32, n int32)")
        connection.execute("CREATE MATERIALIZED VIEW m INTO t AS SELECT i, n FROM s WHERE n > 1")
        connection.execute("INSERT INTO s (i, n) VALUES (10, 1), (11, 2), (12, 3)")
        delivered(connection)
        rows = [(1, "none", None), (2, "a'b", 5), (11, "none", 2), (12, "none", 3)]
        assert sorted(connection.execute("SELECT * FROM t").fetchall()) == selected(mysql, "SELECT * FROM t") == rows
        connection.execute("DROP VIEW m; DROP STREAM t")
        connection.execute(mariadb_table(mysql, "t", ", on_duplicate_clause='UPDATE n = n + VALUES(n)'"))
        connection.execute("INSERT INTO t (i, n) VALUES (11, 10), (11, 100), (13, 1)")
        assert selected(mysql, "SELECT i, n FROM t WHERE i > 10") == [(11, 112), (12, 3), (13, 1)]
        connection.execute("DROP STREAM t")
        wrong = refused(connection, mariadb_table(mysql, "t", ", on_duplicate_clause='DROP TABLE t'"))
        assert wrong.condition == "CONNECTOR_OPTION"

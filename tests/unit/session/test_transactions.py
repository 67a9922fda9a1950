"""BEGIN, COMMIT, ROLLBACK."""

from __future__ import annotations

import pytest

import watersmeet


@pytest.fixture
def tables(run):
    run("CREATE TABLE t (a int PRIMARY KEY, b int); CREATE TABLE u (a int); INSERT INTO t VALUES (1, 1); FLUSH")


def head(connection):
    return connection._session.database.log.head()


def test_several_tables_are_one_commit(connection, run, tables):
    run("CREATE MATERIALIZED VIEW v AS SELECT t.a, t.b FROM t JOIN u ON t.a = u.a")
    before = head(connection)
    run("BEGIN; INSERT INTO t VALUES (2, 2); INSERT INTO u VALUES (1), (2); UPDATE t SET b = 5 WHERE a = 1; COMMIT")
    assert head(connection) == before + 1
    changes = connection._session.database.log.read(before + 1).relations
    assert {i: (c.inserted_rows, c.deleted_rows) for i, c in changes.items()} == {"t1": (2, 1), "t2": (2, 0)}
    run("FLUSH")
    assert sorted(run("SELECT * FROM v")) == [(1, 5), (2, 2)]


def test_own_changes_are_seen_inside_only(connection, run, tables):
    run("START TRANSACTION")
    assert not connection.autocommit
    run("INSERT INTO t VALUES (2, 2), (3, 3); DELETE FROM t WHERE a = 1; UPDATE t SET b = b * 10 WHERE a = 2")
    assert run("SELECT * FROM t ORDER BY a") == [(2, 20), (3, 3)]
    assert run("SELECT count(*) FROM t WHERE a IN (SELECT a FROM t)") == [(2,)]
    run("INSERT INTO t VALUES (3, 4), (4, 4); INSERT INTO u SELECT a FROM t")
    assert run("SELECT sum(a) FROM u") == [(9,)]
    run("ROLLBACK")
    assert connection.autocommit
    assert run("SELECT * FROM t") == [(1, 1)]
    assert run("SELECT * FROM u") == []


def test_commit_and_rollback_of_the_connection(connection, run, tables):
    connection.commit()
    connection.rollback()
    run("BEGIN; INSERT INTO u VALUES (1)")
    connection.rollback()
    run("BEGIN; INSERT INTO u VALUES (2)")
    connection.commit()
    assert run("SELECT * FROM u") == [(2,)]


def test_a_transaction_without_a_net_change_is_no_commit(connection, run, tables):
    before = head(connection)
    run("BEGIN; INSERT INTO u VALUES (1); DELETE FROM u; UPDATE t SET b = b; COMMIT; BEGIN; COMMIT")
    assert head(connection) == before


def test_a_failed_transaction(connection, run, fails, tables):
    run("BEGIN; INSERT INTO u VALUES (1)")
    assert fails("INSERT INTO t VALUES ('x', 1)").condition == "INVALID_VALUE"
    assert fails("SELECT 1").condition == "TRANSACTION_STATE"
    assert fails("INSERT INTO u VALUES (2)").condition == "TRANSACTION_STATE"
    err = fails("COMMIT")
    assert (err.condition, err.message) == ("TRANSACTION_STATE", "the transaction had failed and was rolled back")
    assert run("SELECT * FROM u") == []
    run("BEGIN; INSERT INTO u VALUES (3)")
    fails("SELECT 1 / 'x'")
    run("ROLLBACK")
    assert run("SELECT * FROM u") == []
    assert connection.autocommit


def test_statements_out_of_place(connection, run, fails, tables):
    assert connection.execute("COMMIT").notices == ("there is no transaction in progress",)
    assert connection.execute("ROLLBACK").notices == ("there is no transaction in progress",)
    run("BEGIN")
    assert connection.execute("BEGIN").notices == ("there is already a transaction in progress",)
    assert fails("FLUSH").condition == "TRANSACTION_STATE"


def test_read_only(run, fails, tables):
    run("BEGIN READ ONLY")
    assert run("SELECT * FROM t") == [(1, 1)]
    assert fails("INSERT INTO u VALUES (1)").condition == "READ_ONLY_SESSION"
    run("ROLLBACK")


def test_closing_rolls_back(tmp_path):
    with watersmeet.connect(tmp_path / "db", runtime="inprocess") as connection:
        connection.execute("CREATE TABLE t (a int); INSERT INTO t VALUES (1); BEGIN; INSERT INTO t VALUES (2)")
    with watersmeet.connect(tmp_path / "db", runtime="inprocess") as connection:
        assert connection.execute("SELECT * FROM t").fetchall() == [(1,)]


def test_inside_a_transaction_tables_are_newest(run, tables):
    """A write counts from the newest content, so reads inside the transaction do, too; views show their last moment."""
    run("CREATE MATERIALIZED VIEW v AS SELECT a, b FROM t")
    run("INSERT INTO t VALUES (2, 2)")
    assert run("SELECT count(*) FROM t") == [(1,)]
    run("BEGIN; UPDATE t SET b = 7")
    assert run("SELECT * FROM t ORDER BY a") == [(1, 7), (2, 7)]
    assert run("SELECT * FROM v") == [(1, 1)]
    run("COMMIT; FLUSH")
    assert run("SELECT * FROM v ORDER BY a") == [(1, 7), (2, 7)]

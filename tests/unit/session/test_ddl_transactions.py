"""CREATE, ALTER and DROP within BEGIN … COMMIT, and within a script that is one transaction."""

from __future__ import annotations

import contextlib
import os
import threading
from unittest import mock

import pytest
from tests.unit.store.faults import FaultyOs, Killed

import watersmeet
from watersmeet.system import files


def names(run):
    return sorted(n for n, _ in run("SHOW RELATIONS"))


def test_what_a_transaction_makes_is_there_at_commit(connection, run, tmp_path):
    run("CREATE TABLE old (a int); INSERT INTO old VALUES (1)")
    run("""BEGIN;
        CREATE TABLE t (a int PRIMARY KEY, b int);
        INSERT INTO t VALUES (1, 10), (2, 20);
        CREATE MATERIALIZED VIEW v AS SELECT old.a, t.b FROM old JOIN t ON old.a = t.a;
        CREATE VIEW w AS SELECT b FROM v;
        CREATE INDEX i ON t (b);
        UPDATE t SET b = 11 WHERE a = 1;
        INSERT INTO old VALUES (2)""")
    assert run("SELECT * FROM t ORDER BY a") == [(1, 11), (2, 20)]
    assert names(run) == ["i", "old", "t", "v", "w"]
    run("COMMIT")
    assert names(run) == ["i", "old", "t", "v", "w"]
    assert sorted(run("SELECT * FROM v")) == [(1, 11), (2, 20)], "COMMIT waits for the views that it makes"
    run("INSERT INTO t VALUES (1, 12); FLUSH")
    assert sorted(run("SELECT * FROM w")) == [(12,), (20,)]


def test_nobody_else_sees_what_is_not_committed(tmp_path):
    with watersmeet.connect(tmp_path / "db", runtime="inprocess") as writer:
        writer.execute("CREATE TABLE t (a int); BEGIN; CREATE TABLE u (a int); INSERT INTO u VALUES (1)")
        writer.execute("CREATE MATERIALIZED VIEW v AS SELECT a FROM u; DROP TABLE t; CREATE SCHEMA s")
        with watersmeet.connect(tmp_path / "db", read_only=True) as reader:
            assert reader.execute("SHOW RELATIONS").fetchall() == [("t", "table")]
            assert [t["name"] for t in reader.status()["tables"]] == ["t"]
            assert reader.status()["views"] == []
            with pytest.raises(watersmeet.Error, match='relation "u" does not exist'):
                reader.execute("SELECT * FROM u")
            writer.execute("COMMIT")
            assert reader.execute("SHOW RELATIONS").fetchall() == [("u", "table"), ("v", "materialized view")]
            assert reader.execute("SELECT * FROM u, v").fetchall() == [(1, 1)]


@pytest.mark.parametrize("end", ["ROLLBACK", "SELECT nix; ROLLBACK"])
def test_rollback_undoes_everything(connection, run, end):
    run("CREATE TABLE t (a int); INSERT INTO t VALUES (1); CREATE VIEW w AS SELECT a FROM t; FLUSH")
    run("CREATE MATERIALIZED VIEW v AS SELECT a FROM w")
    run("""BEGIN;
        DROP TABLE t CASCADE;
        CREATE TABLE t (x varchar);
        INSERT INTO t VALUES ('new');
        CREATE MATERIALIZED VIEW v AS SELECT x FROM t;
        CREATE SCHEMA s;
        CREATE TABLE s.t (y int)""")
    assert run("SELECT t.x, v.x FROM t, v") == [("new", "new")]
    try:
        run(end)
    except watersmeet.Error:
        run("ROLLBACK")
    assert names(run) == ["t", "v", "w"]
    assert run("SHOW SCHEMAS") == [("public",)]
    run("INSERT INTO t VALUES (2); FLUSH")
    assert sorted(run("SELECT * FROM v")) == [(1,), (2,)]
    assert sorted(run("SELECT * FROM t")) == [(1,), (2,)]
    assert len(connection._session.database.plans.producers) == 1


def test_a_name_that_passes_to_another_table(run):
    run("CREATE TABLE t (a int); INSERT INTO t VALUES (1); FLUSH")
    assert run("SELECT * FROM t") == [(1,)]
    run("BEGIN; INSERT INTO t VALUES (2)")
    assert run("SELECT count(*) FROM t") == [(2,)]
    run("DROP TABLE t; CREATE TABLE t (b varchar); INSERT INTO t VALUES ('x')")
    assert run("SELECT * FROM t") == [("x",)]
    run("DROP TABLE t; CREATE MATERIALIZED VIEW t AS SELECT 5 AS c")
    assert run("SELECT * FROM t") == [(5,)]
    run("COMMIT")
    assert run("SELECT * FROM t") == [(5,)]


def test_what_other_threads_do_meanwhile_is_no_part_of_a_statement(connection, run, fails, monkeypatch):
    run("CREATE TABLE t (a int); CREATE MATERIALIZED VIEW v AS SELECT a FROM t")
    engine = connection._session.database.engine
    install = engine.install

    def slow(*arguments):
        thread = threading.Thread(target=run, args=("INSERT INTO t VALUES (7); BEGIN; INSERT INTO t VALUES (8)",))
        thread.start()
        thread.join()
        monkeypatch.undo()
        install(*arguments)
        raise watersmeet.errors.error("DISK_FULL", "no space")

    monkeypatch.setattr(engine, "install", slow)
    assert fails("CREATE OR REPLACE MATERIALIZED VIEW v AS SELECT a + 1 AS a FROM t").condition == "DISK_FULL"
    assert run("SELECT * FROM t ORDER BY a") == [(7,), (8,)]
    run("COMMIT; FLUSH")
    assert sorted(run("SELECT * FROM v")) == [(7,), (8,)]


def test_read_only_transactions_define_nothing(run, fails):
    run("BEGIN READ ONLY")
    assert fails("CREATE TABLE t (a int)").condition == "READ_ONLY_SESSION"
    run("ROLLBACK")


def test_a_script_is_one_transaction(connection, run):
    results = connection.execute_script(
        "CREATE TABLE t (a int); INSERT INTO t VALUES (1); SELECT a FROM t", transaction=True
    )
    assert [c.fetchall() for c in results if c.description] == [[(1,)]]
    with pytest.raises(watersmeet.Error) as found:
        list(
            connection.execute_script(
                "CREATE TABLE z1 (id int);\nCREATE MATERIALIZED VIEW z2 AS SELECT idd FROM z1;", transaction=True
            )
        )
    assert (found.value.line, found.value.column) == (2, 39)
    assert found.value.detail == "Nothing of the script was done."
    assert names(run) == ["t"]
    stopped = connection.execute_script("CREATE TABLE u (a int); SELECT 1", transaction=True)
    next(stopped)
    stopped.close()
    assert names(run) == ["t"]


def test_a_script_that_is_done_says_so_though_its_views_are_late(connection, run, monkeypatch):
    run("CREATE TABLE t (a int); CREATE MATERIALIZED VIEW v AS SELECT a FROM t")
    database = connection._session.database
    problem = watersmeet.errors.error("VIEW_FAILED", "no more")

    def stopped():
        raise problem

    script = connection.execute_script(
        "INSERT INTO t VALUES (1); CREATE MATERIALIZED VIEW w AS SELECT a FROM t; SHOW TABLES", transaction=True
    )
    next(script), next(script), next(script)
    monkeypatch.setattr(database, "flush", stopped)
    with pytest.raises(watersmeet.Error, match="no more") as found:
        next(script)
    assert found.value.detail is None
    monkeypatch.undo()
    run("FLUSH")
    assert run("SELECT * FROM w") == [(1,)]


def test_what_writes_a_stream_can_be_dropped_though_nothing_is_processed(connection, run, monkeypatch):
    run("SET dialect = 'timeplus'; CREATE STREAM s (a int); CREATE STREAM given (a int)")
    run("CREATE MATERIALIZED VIEW v INTO given AS SELECT a FROM s")

    def stopped():
        raise watersmeet.errors.error("VIEW_FAILED", "no more")

    monkeypatch.setattr(connection._session.database, "flush", stopped)
    run("BEGIN; DROP VIEW v; DROP STREAM given; COMMIT")
    assert names(run) == ["s"]


def test_a_query_that_begins_in_a_transaction_does_not_count_what_that_wrote_before(run, fails):
    run("SET dialect = 'timeplus'; CREATE STREAM s (a int); BEGIN; INSERT INTO s (a) VALUES (1)")
    err = fails("CREATE MATERIALIZED VIEW v AS SELECT a FROM s")
    assert err.message == 'a query that begins in the transaction that has written stream "s" is not supported'
    run("ROLLBACK; BEGIN; CREATE STREAM n (a int); INSERT INTO n (a) VALUES (1)")
    run("CREATE MATERIALIZED VIEW v AS SELECT a FROM n; INSERT INTO n (a) VALUES (2); COMMIT; FLUSH")
    assert run("SELECT a FROM table(v)") == [(2,)]


def test_a_view_into_a_stream_writes_from_its_commit_on(run):
    run("SET dialect = 'timeplus'; CREATE STREAM given (a int); CREATE STREAM s (a int)")
    run("BEGIN; CREATE MATERIALIZED VIEW v INTO given AS SELECT a FROM s")
    run("ROLLBACK; INSERT INTO s (a) VALUES (1); FLUSH; BEGIN; CREATE STREAM n (a int)")
    run("CREATE MATERIALIZED VIEW v INTO given AS SELECT a FROM n; INSERT INTO n (a) VALUES (7)")
    assert run("SELECT a FROM table(given)") == []
    run("COMMIT; FLUSH")
    assert run("SELECT a FROM table(given)") == [(7,)]
    run("BEGIN; DROP VIEW v; INSERT INTO n (a) VALUES (8); COMMIT; INSERT INTO n (a) VALUES (9); FLUSH")
    assert run("SELECT a FROM table(given)") == [(7,)]


def test_queries_that_run_end_with_a_transaction_that_is_undone(connection, run):
    run("SET dialect = 'timeplus'; CREATE STREAM s (a int); BEGIN")
    query = connection.execute("SELECT a FROM s")
    run("ROLLBACK")
    with pytest.raises(watersmeet.Error, match="has been stopped"):
        query.fetchall()
    run("BEGIN; CREATE STREAM n (a int)")
    kept = connection.execute("SELECT a FROM n")
    run("INSERT INTO n (a) VALUES (1); COMMIT; FLUSH")
    assert kept.fetchall() == [(1,)]


BEFORE = (
    "CREATE TABLE t (a int PRIMARY KEY); INSERT INTO t VALUES (1), (2); CREATE MATERIALIZED VIEW v AS SELECT a FROM t"
)
SCRIPT = """
    ALTER TABLE t ADD COLUMN z int;
    CREATE TABLE u (a int, b int);
    INSERT INTO u VALUES (1, 10), (3, 30);
    CREATE MATERIALIZED VIEW j AS SELECT t.a, u.b FROM t JOIN u ON t.a = u.a;
    DROP MATERIALIZED VIEW v;
    INSERT INTO t VALUES (3);
    CREATE MATERIALIZED VIEW v AS SELECT a + 100 AS a FROM t;
    DELETE FROM t WHERE a = 2;
"""
OLD = {"t": [(1,), (2,)], "v": [(1,), (2,)]}
NEW = {"j": [(1, 10), (3, 30)], "t": [(1, None), (3, None)], "u": [(1, 10), (3, 30)], "v": [(101,), (103,)]}


def content(connection):
    connection.execute("FLUSH")
    found = [n for n, _ in connection.execute("SHOW RELATIONS").fetchall()]
    return {n: sorted(connection.execute(f"SELECT * FROM {n}").fetchall()) for n in sorted(found)}


def interrupted(path, at, how):
    """Runs the script with a fault at the given step; whether it said that it was done."""
    connection = watersmeet.connect(path, runtime="inprocess")
    connection.execute(BEFORE + "; FLUSH")
    faulty = FaultyOs(at, how, torn=at % 2 == 1)
    try:
        with mock.patch.object(files, "os", faulty):
            list(connection.execute_script(SCRIPT, transaction=True))
    except watersmeet.Error:
        with contextlib.suppress(watersmeet.OperationalError):  # it is not known what is on the disk
            assert content(connection) in (OLD, NEW), f"step {at}"
        return False
    except Killed:
        return False
    else:
        return faulty.calls < at
    finally:
        with mock.patch.object(files, "os", faulty if how == "kill" else os), contextlib.suppress(Killed):
            connection.close()


@pytest.mark.parametrize("how", ["kill", pytest.param("full", marks=pytest.mark.slow)])
@pytest.mark.parametrize("stride", [17, pytest.param(1, marks=pytest.mark.thorough)])
def test_a_script_that_is_interrupted_at_any_write_is_done_or_not(tmp_path, how, stride):
    """After a crash, and after an error of the disk, at each step of its work."""
    seen = []
    done = False
    while not done:
        at = 1 + stride * len(seen)
        done = interrupted(tmp_path / str(at), at, how)
        with watersmeet.connect(tmp_path / str(at), runtime="inprocess") as connection:
            found = content(connection)
            assert found in (OLD, NEW), f"step {at}"
            assert not done or found == NEW
            assert not any(r.hidden for r in connection._session.catalog.relations.values())
            connection.execute("INSERT INTO t VALUES (50); FLUSH; CREATE TABLE more (a int)")
            seen.append(found == NEW)
    assert len(seen) > 3
    assert how == "full" or seen == sorted(seen), "what was done once is done for ever"


@pytest.mark.spark
@pytest.mark.slow
def test_a_script_on_spark(tmp_path):
    """What a transaction makes is filled before its COMMIT; of one that fails nothing is left, nor in the engine."""
    with watersmeet.connect(tmp_path / "db", parallelism=1) as connection:
        connection.execute(BEFORE + "; FLUSH")
        with pytest.raises(watersmeet.Error, match="nix"):
            list(connection.execute_script(SCRIPT + "SELECT * FROM j; SELECT nix FROM t", transaction=True))
        assert content(connection) == OLD
        cursors = list(connection.execute_script(SCRIPT + "SELECT * FROM j", transaction=True))
        assert cursors[-1].fetchall() == [(1, 10)]
        assert content(connection) == NEW
    with watersmeet.connect(tmp_path / "db", runtime="inprocess", parallelism=1) as connection:
        assert content(connection) == NEW

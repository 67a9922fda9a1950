"""REFRESH MATERIALIZED VIEW: stopped views run again under their names, and their readers get the right changes."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from tests.faultysteps import raising

import watersmeet
from watersmeet import Error
from watersmeet.database.plans import RunningCircuit
from watersmeet.kernel.operators import STEPS

SETUP = (
    "CREATE TABLE t (k int, x int); CREATE TABLE u (y int); CREATE MATERIALIZED VIEW other AS SELECT y FROM u; "
    "CREATE MATERIALIZED VIEW sums AS SELECT k, sum(x) AS s FROM t GROUP BY k; "
    "CREATE VIEW plain AS SELECT s FROM sums; "
    "CREATE MATERIALIZED VIEW top AS SELECT k FROM sums WHERE s > 1; CREATE INDEX i ON sums (k); "
    "INSERT INTO t VALUES (1, 1), (2, 2), (3, 3); FLUSH"
)
#: The changes that the views miss.
MISSED = "DELETE FROM t WHERE k = 3; INSERT INTO t VALUES (1, 4), (5, 5); FLUSH"
SUMS = [(1, 5), (2, 2), (5, 5)]
TOP = [(1,), (2,), (5,)]


@pytest.fixture
def connection(tmp_path: Path) -> Iterator[watersmeet.Connection]:
    with watersmeet.connect(tmp_path / "db", runtime="inprocess", parallelism=2) as opened:
        opened.execute(SETUP)
        yield opened


def stop(connection: watersmeet.Connection, kind: str = "aggregate") -> None:
    """Stop the views with such an operator while rows change."""
    with mock.patch.dict(STEPS, {kind: partial(raising, lambda: KeyError("planted"))}):
        connection.execute(MISSED)


def errors(connection: watersmeet.Connection) -> dict[str, Any]:
    return {v["name"]: v["error"] for v in connection.status()["views"]}


def rows(connection: watersmeet.Connection, query: str) -> list[Any]:
    return sorted(connection.execute(query).fetchall())


@pytest.mark.parametrize("named", ["sums", "ALL", "CONCURRENTLY sums WITH DATA"])
def test_a_stopped_view_and_its_readers_run_again(
    connection: watersmeet.Connection, tmp_path: Path, named: str
) -> None:
    ids = {r.name: r.id for r in connection._session.catalog.relations.values()}
    connection.execute("CREATE ROLE ann; GRANT SELECT ON top TO ann")
    stop(connection)
    assert {n for n, e in errors(connection).items() if e} == {"sums", "top"}
    connection.execute(f"REFRESH MATERIALIZED VIEW {named}")
    assert rows(connection, "SELECT * FROM sums") == SUMS
    assert rows(connection, "SELECT * FROM top") == TOP
    assert rows(connection, "SELECT * FROM plain") == [(2,), (5,), (5,)]
    assert rows(connection, "SELECT s FROM sums WHERE k = 5") == [(5,)]
    assert connection.execute("SHOW ERRORS").fetchall() == []
    assert {r.name: r.id for r in connection._session.catalog.relations.values()} == ids
    connection.close()
    with watersmeet.connect(tmp_path / "db", runtime="inprocess") as reopened:
        reopened.execute("INSERT INTO t VALUES (1, 1), (7, 7); INSERT INTO u VALUES (1); FLUSH")
        assert rows(reopened, "SELECT * FROM sums") == [(1, 6), (2, 2), (5, 5), (7, 7)]
        assert rows(reopened, "SELECT * FROM other") == [(1,)]
        assert set(errors(reopened).values()) == {None}
        reopened.execute("SET ROLE ann")
        assert rows(reopened, "SELECT * FROM top") == [*TOP, (7,)]


def test_a_sink_into_a_table_makes_up_for_what_it_missed(connection: watersmeet.Connection) -> None:
    connection.execute(
        "CREATE TABLE copy (k int PRIMARY KEY, s bigint); "
        "CREATE SINK into_table INTO copy AS SELECT k, s FROM sums WITH (type = 'upsert'); FLUSH"
    )
    stop(connection)
    connection.execute("REFRESH MATERIALIZED VIEW sums; FLUSH")
    assert rows(connection, "SELECT * FROM copy") == SUMS


def test_a_view_that_runs_is_waited_for(connection: watersmeet.Connection) -> None:
    connection.execute("INSERT INTO t VALUES (2, 2)")
    head = connection._session.database.log.head()
    cursor = connection.execute("REFRESH MATERIALIZED VIEW sums")
    assert cursor.notices == ('materialized view "sums" keeps itself up to date',)
    assert rows(connection, "SELECT * FROM sums") == [(1, 1), (2, 4), (3, 3)]
    assert connection._session.database.log.head() == head + 1


@pytest.mark.parametrize("named", ["sums", "ALL"])
def test_a_fault_that_is_still_there_leaves_all_as_it_was(connection: watersmeet.Connection, named: str) -> None:
    stop(connection)
    before, known = errors(connection), set(connection._session.catalog.relations)
    with (
        mock.patch.dict(STEPS, {"aggregate": partial(raising, lambda: KeyError("planted"))}),
        pytest.raises(Error, match="planted"),
    ):
        connection.execute(f"REFRESH MATERIALIZED VIEW {named}")
    assert errors(connection) == before
    assert set(connection._session.database.catalog.relations) == known
    connection.execute("INSERT INTO u VALUES (1); FLUSH")
    assert rows(connection, "SELECT * FROM other") == [(1,)]
    connection.execute("REFRESH MATERIALIZED VIEW sums")
    assert rows(connection, "SELECT * FROM sums") == SUMS


@pytest.mark.parametrize(
    ("sql", "condition", "text"),
    [
        ("REFRESH MATERIALIZED VIEW top", "VIEW_FAILED", '"sums", which it reads, was stopped'),
        ("BEGIN; REFRESH MATERIALIZED VIEW sums", "TRANSACTION_STATE", "inside a transaction"),
        ("REFRESH MATERIALIZED VIEW sums WITH NO DATA", "FEATURE_NOT_SUPPORTED", "WITH NO DATA"),
        ("REFRESH MATERIALIZED VIEW t", "CATALOG_TYPE_MISMATCH", '"t" is not a materialized view'),
        ("REFRESH MATERIALIZED VIEW sum", "UNDEFINED_RELATION", 'materialized view "sum" does not exist'),
        ("REFRESH TABLE t", "FEATURE_NOT_SUPPORTED", "REFRESH TABLE"),
    ],
)
def test_refusals(connection: watersmeet.Connection, sql: str, condition: str, text: str) -> None:
    stop(connection)
    with pytest.raises(Error, match=text) as found:
        connection.execute(sql)
    assert found.value.condition == condition


def test_rows_that_were_joined_on_arrival_are_not_taken_back_from_a_sink(tmp_path: Path) -> None:
    """Without a sink the view is filled as a new one: its rows are joined with the rows of now."""
    with contextlib.ExitStack() as opened:
        connection = opened.enter_context(watersmeet.connect(tmp_path / "db", runtime="inprocess"))
        connection.execute(
            "CREATE TABLE l (k int) APPEND ONLY; CREATE TABLE d (k int PRIMARY KEY, v int); "
            "CREATE MATERIALIZED VIEW j AS SELECT l.k, d.v FROM l "
            "JOIN d FOR SYSTEM_TIME AS OF PROCTIME() ON l.k = d.k; "
            "CREATE TABLE copy (k int, v int); INSERT INTO d VALUES (1, 1), (2, 2); FLUSH; INSERT INTO l VALUES (1); "
            "FLUSH; UPDATE d SET v = 3 WHERE k = 1; CREATE SINK s INTO copy AS SELECT k, v FROM j "
            "WITH (type = 'append-only'); FLUSH"
        )
        reader = opened.enter_context(watersmeet.connect(tmp_path / "db", read_only=True))
        assert rows(reader, "SELECT * FROM j") == [(1, 1)]
        with mock.patch.dict(STEPS, {"temporal": partial(raising, lambda: KeyError("planted"))}):
            connection.execute("INSERT INTO l VALUES (2); FLUSH")
        with pytest.raises(Error, match="a temporal join can't be rebuilt") as found:
            connection.execute("REFRESH MATERIALIZED VIEW j")
        assert 'sink "s" depends on its changes' in str(found.value.detail).lower()
        connection.execute("DROP SINK s; REFRESH MATERIALIZED VIEW j")
        assert rows(connection, "SELECT * FROM j") == rows(reader, "SELECT * FROM j") == [(1, 3), (2, 2)]


def test_a_limit_that_was_exceeded_by_one_epoch_stays(tmp_path: Path) -> None:
    with watersmeet.connect(tmp_path / "db", runtime="inprocess") as connection:
        connection.execute(
            "CREATE TABLE a (k int, x int); CREATE TABLE b (k int, y int); "
            "CREATE MATERIALIZED VIEW j WITH (max_join_amplification_rows = 3) AS "
            "SELECT x, y FROM a JOIN b ON a.k = b.k; "
            "INSERT INTO a VALUES (1, 1), (1, 2); INSERT INTO b VALUES (1, 1), (1, 2); FLUSH"
        )
        assert errors(connection)["j"]["condition"] == "AMPLIFICATION_LIMIT"
        with pytest.raises(Error, match="max_join_amplification_rows"):
            connection.execute("REFRESH MATERIALIZED VIEW j")
        connection.execute("DELETE FROM b WHERE y = 2; REFRESH MATERIALIZED VIEW j")
        assert rows(connection, "SELECT * FROM j") == [(1, 1), (2, 1)]


@pytest.mark.parametrize("into", ["", "INTO target "])
def test_a_view_that_begins_at_a_moment(tmp_path: Path, into: str) -> None:
    """It begins again when it is refreshed; what a stream got of it is not taken back."""
    with watersmeet.connect(tmp_path / "db", "timeplus", runtime="inprocess") as connection:
        connection.execute(
            "CREATE STREAM s (k string, i int); CREATE STREAM target (k string, i int); "
            f"CREATE MATERIALIZED VIEW v {into}AS SELECT k, i FROM s WHERE i > 0; "
            "INSERT INTO s (k, i) VALUES ('a', 1); FLUSH"
        )
        with mock.patch.dict(STEPS, {"map": partial(raising, lambda: KeyError("planted"))}):
            connection.execute("INSERT INTO s (k, i) VALUES ('b', 2); FLUSH")
        if into:
            with pytest.raises(Error, match="a view that begins at a moment"):
                connection.execute("REFRESH MATERIALIZED VIEW v")
            assert rows(connection, "SELECT k FROM table(target)") == [("a",)]
            return
        connection.execute("REFRESH MATERIALIZED VIEW v; INSERT INTO s (k, i) VALUES ('c', 3); FLUSH")
        assert rows(connection, "SELECT k, i FROM table(v)") == [("c", 3)]


@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
def test_a_kill_around_the_commit(connection: watersmeet.Connection, tmp_path: Path, *, before: bool) -> None:
    """The copy of the directory is what a process leaves behind that is killed at that moment."""
    stop(connection)
    method = RunningCircuit.refresh

    def killed(*arguments: Any) -> None:
        if not before:
            method(*arguments)
        shutil.copytree(tmp_path / "db", tmp_path / "killed")
        raise KeyboardInterrupt

    with mock.patch.object(RunningCircuit, "refresh", killed), pytest.raises(KeyboardInterrupt):
        connection.execute("REFRESH MATERIALIZED VIEW sums")
    with watersmeet.connect(tmp_path / "killed", runtime="inprocess") as reopened:
        assert {n for n, e in errors(reopened).items() if e} == ({"sums", "top"} if before else set())
        reopened.execute("REFRESH MATERIALIZED VIEW ALL; INSERT INTO t VALUES (1, 1); FLUSH")
        assert rows(reopened, "SELECT * FROM sums") == [(1, 6), (2, 2), (5, 5)]
        assert rows(reopened, "SELECT * FROM top") == TOP
        assert not [r for r in reopened._session.database.catalog.relations.values() if r.staged]

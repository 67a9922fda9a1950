"""Queries that run until they are stopped, on a cursor."""

from __future__ import annotations

import functools
import gc
import threading
import time

import pytest

import watersmeet
from watersmeet.runtime import coordinator
from watersmeet.runtime.workers import Budget


@pytest.fixture
def connection():
    with watersmeet.connect(runtime="inprocess", dialect="timeplus") as made:
        made.execute(
            "CREATE STREAM s (a int); CREATE STREAM m (k int, v int, PRIMARY KEY (k)) SETTINGS mode = 'versioned_kv'"
        )
        yield made


def hidden(connection):
    return [r for r in connection._session.catalog.relations.values() if r.hidden]


def insert(connection, *values):
    connection.execute("INSERT INTO s (a) VALUES " + ", ".join(f"({v})" for v in values))


def later(seconds, action):
    """Does something in another thread; give it to `join`."""
    thread = threading.Thread(target=lambda: (time.sleep(seconds), action()))
    thread.start()
    return thread


def until(condition):
    end = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_fetchall_gives_what_came_and_was_not_fetched_and_does_not_wait(connection):
    cursor = connection.execute("SELECT a FROM s")
    assert (cursor.runs, cursor.rowcount, cursor.description[0][0]) == (True, -1, "a")
    assert cursor.fetchall() == []
    insert(connection, 1, 2)
    connection.flush()
    assert cursor.fetchall() == [(1,), (2,)]
    assert cursor.fetchall() == []
    insert(connection, 3)
    insert(connection, 4)
    connection.flush()
    assert cursor.fetchone() == (3,)
    assert cursor.fetchmany(5) == [(4,)]
    assert cursor.fetchone() is None
    assert not cursor.wait(0.05)


def test_iterating_waits_for_more_and_ends_at_the_limit(connection):
    cursor = connection.execute("SELECT a FROM s LIMIT 3")
    insert(connection, 1)
    thread = later(0.2, lambda: insert(connection, 2, 3, 4))
    assert list(cursor) == [(1,), (2,), (3,)]
    assert not cursor.runs
    thread.join()
    assert list(cursor) == []
    until(lambda: hidden(connection) == [])


def test_closing_the_cursor_stops_the_query(connection):
    cursor = connection.execute("SELECT a FROM s")
    assert len(hidden(connection)) == 1
    cursor.close()
    assert hidden(connection) == []
    with pytest.raises(watersmeet.Error, match="the cursor is closed"):
        cursor.fetchall()


def test_closing_the_cursor_in_another_thread_ends_the_iteration(connection):
    cursor = connection.execute("SELECT a FROM s")
    thread = later(0.2, cursor.close)
    with pytest.raises(watersmeet.Error, match="the cursor is closed"):
        next(iter(cursor))
    thread.join()


def test_the_next_statement_stops_the_query(connection):
    cursor = connection.execute("SELECT a FROM s")
    cursor.execute("SELECT 1")
    assert hidden(connection) == []
    assert cursor.fetchall() == [(1,)]


def test_a_forgotten_cursor_stops_its_query(connection):
    connection.execute("SELECT a FROM s")
    gc.collect()
    until(lambda: hidden(connection) == [])


def test_what_ended_forgotten_queries_is_forgotten_too(connection):
    """A connection that lives for days runs any number of queries."""
    for _ in range(3):
        connection.execute("SELECT a FROM s")
        gc.collect()
        until(lambda: hidden(connection) == [])
    until(lambda: gc.collect() >= 0 and not list(connection._session.stopping))


def test_a_forgotten_running_query_stops(connection):
    query = connection.start("SELECT a FROM s")
    assert len(hidden(connection)) == 1
    del query
    gc.collect()
    until(lambda: hidden(connection) == [])


def test_closing_the_connection_stops_its_queries(tmp_path):
    connection = watersmeet.connect(tmp_path / "db", runtime="inprocess", dialect="timeplus")
    connection.execute("CREATE STREAM s (a int)")
    cursor = connection.execute("SELECT a FROM s")
    connection.close()
    with pytest.raises(watersmeet.Error, match="the connection is closed"):
        cursor.fetchall()
    with watersmeet.connect(tmp_path / "db", read_only=True) as reader:
        assert hidden(reader) == []


def test_a_changelog_has_the_sign_of_each_row(connection):
    cursor = connection.execute("SELECT k, v FROM m")
    assert cursor.sign == 2
    for v in (10, 20):
        connection.execute(f"INSERT INTO m (k, v) VALUES (1, {v})")
        connection.flush()
    assert sorted(cursor.fetchall()) == [(1, 10, -1), (1, 10, 1), (1, 20, 1)]
    assert connection.execute("SELECT a FROM s").sign is None
    assert connection.execute("SELECT 1 AS one").sign is None


def test_flush_is_refused_inside_a_transaction_and_on_a_closed_connection(connection):
    connection.execute("BEGIN")
    with pytest.raises(watersmeet.Error, match="FLUSH is not possible inside a transaction"):
        connection.flush()
    connection.rollback()
    connection.close()
    with pytest.raises(watersmeet.Error, match="the connection is closed"):
        connection.flush()


def test_a_query_whose_engine_fails_says_so_to_the_one_who_waits(connection, monkeypatch):
    cursor = connection.execute("SELECT a FROM s")

    def fail(*_arguments):
        raise RuntimeError("broken")

    monkeypatch.setattr("watersmeet.runtime.inprocess.run_epoch", fail)
    insert(connection, 1)
    with pytest.raises(watersmeet.Error) as found:
        cursor.wait(120)
    assert found.value.condition == "VIEW_FAILED"


def test_a_query_that_reads_nothing_ends():
    with watersmeet.connect(runtime="inprocess", dialect="lenses") as connection:
        cursor = connection.execute("SELECT STREAM 1 AS one")
        assert list(cursor) == [(1,)]
        assert not cursor.runs
        assert hidden(connection) == []


@pytest.fixture
def in_pieces(monkeypatch):
    """History is read a few rows at a time."""
    monkeypatch.setattr(coordinator, "Budget", functools.partial(Budget, first_rows=2, max_rows=2))


def keyed(connection):
    connection.execute("CREATE MUTABLE STREAM m (k int, v int) PRIMARY KEY k")
    for k in range(10):
        connection.execute(f"INSERT INTO m (k, v) VALUES ({k}, {k % 3})")
    connection.execute("FLUSH")


@pytest.mark.parametrize(
    ("query", "rows"),
    [
        ("SELECT v, count(*) AS n FROM m GROUP BY v", [(0, 4, 1), (1, 3, 1), (2, 3, 1)]),
        ("SELECT count(*) AS n FROM m EMIT ON UPDATE", [(10,)]),
        ("SELECT count(*) AS n, emit_version() AS e FROM m", [(10, 1, 1)]),
        ("SELECT count(*) AS n FROM m LIMIT 1", [(10, 1)]),
    ],
)
def test_history_in_pieces_is_one_change(in_pieces, query, rows):
    """What the pieces of it show was never so: nothing of it comes, counts for LIMIT, or stays where what goes isn't
    shown.
    """
    with watersmeet.connect(runtime="inprocess", dialect="timeplus") as connection:
        keyed(connection)
        assert sorted(connection.execute(query).fetchall()) == rows


def test_history_in_pieces_is_written_to_a_stream_as_one_change(in_pieces):
    with watersmeet.connect(runtime="inprocess", dialect="timeplus") as connection:
        connection.execute("CREATE STREAM seen (n int64)")
        keyed(connection)
        connection.execute("CREATE MATERIALIZED VIEW c INTO seen AS SELECT count(*) AS n FROM m; FLUSH")
        assert connection.execute("SELECT n FROM table(seen)").fetchall() == [(10,)]
        connection.execute("INSERT INTO m (k, v) VALUES (10, 0); FLUSH")
        assert sorted(connection.execute("SELECT n FROM table(seen)").fetchall()) == [(10,), (11,)]


def test_who_reads_a_killed_query_gets_query_canceled_after_the_rows_that_it_has(connection):
    cursor = connection.execute("SELECT a FROM s SETTINGS query_id = 'mine'")
    insert(connection, 1, 2)
    connection.flush()
    assert cursor.fetchone() == (1,)
    insert(connection, 3)
    connection.execute("KILL QUERY WHERE query_id = 'mine'")
    assert hidden(connection) == []
    assert cursor.fetchone() == (2,)
    with pytest.raises(watersmeet.Error, match='query "mine" was killed') as caught:
        cursor.fetchone()
    assert caught.value.condition == "QUERY_CANCELED"
    cursor.close()


def test_who_waits_for_a_query_gets_query_canceled_when_another_thread_kills_it(connection):
    cursor = connection.execute("SELECT a FROM s")
    ((name, *_),) = connection.execute("SHOW QUERIES").fetchall()
    assert [(j[0], j[1]) for j in connection.execute("SHOW JOBS").fetchall()] == [(name, "query")]
    killing = later(0.02, lambda: connection.execute(f"KILL QUERY '{name}'"))
    with pytest.raises(watersmeet.Error, match="was killed"):
        list(cursor)
    killing.join()


def test_an_unknown_query_is_not_killed_and_near_ids_are_told(connection):
    connection.execute("SELECT a FROM s SETTINGS query_id = 'hourly'").close()
    with connection.execute("SELECT 1; SELECT a FROM s SETTINGS query_id = 'daily';") as cursor:
        shown = connection.execute("SHOW QUERIES").fetchall()
        text = "SELECT a FROM s SETTINGS query_id = 'daily'"
        assert [(row[0], *row[2:]) for row in shown] == [("daily", text, "runs", None, None)]
        with pytest.raises(watersmeet.Error) as caught:
            connection.execute("KILL QUERY WHERE query_id IN ('daily', 'dayly')")
        assert (caught.value.condition, caught.value.column) == ("UNDEFINED_OBJECT", 40)
        assert caught.value.hint == 'Did you mean "daily"?'
        assert cursor.runs
        with pytest.raises(watersmeet.Error, match="no query with id"):
            connection.execute("KILL QUERY 'hourly'")  # its cursor was closed

"""The order in which a session takes its locks."""

from __future__ import annotations

import threading

import pytest
from tests.harness import Harness, connect_without_connectors

from watersmeet.system import threads


def test_the_wrong_order_is_caught():
    with threads.checked():
        guard, external = threads.lock("guard"), threads.lock("external")
    with external, guard, external:
        pass
    with guard, pytest.raises(AssertionError, match="external is taken by a thread that holds guard"), external:
        pass
    with external, guard:  # what was refused is not held
        pass


def test_other_threads_have_an_order_of_their_own():
    with threads.checked():
        guard, external = threads.lock("guard"), threads.lock("external")
    failed = []

    def take():
        try:
            with external:
                pass
        except AssertionError as wrong:
            failed.append(wrong)

    with guard:
        thread = threading.Thread(target=take)
        thread.start()
        thread.join()
    assert not failed


def test_statements_take_locks_in_order():
    """Statements and maintenance read sources of dictionaries. An INSERT that reads one holds no guard then."""
    with (
        threads.checked(),
        connect_without_connectors(dialect="timeplus", runtime="inprocess") as connection,
    ):
        Harness(connection).set_external("mysql", "shop.p", "id string, name string", [["1", "a"]])
        connection.execute("""
            CREATE DICTIONARY d (id string, name string) PRIMARY KEY id
                SOURCE(MYSQL(DB 'shop' TABLE 'p')) LAYOUT(HASHED()) LIFETIME(1);
            CREATE STREAM s (id string, name string);
            CREATE STREAM t (id string, name string);
            CREATE MATERIALIZED VIEW v INTO t AS SELECT id, name FROM s
        """)
        Harness(connection).set_external("mysql", "shop.p", "id string, name string", [["2", "b"]])
        connection.execute("INSERT INTO s (id, name) SELECT id, name FROM d")
        connection.flush()
        assert connection.execute("SELECT id, name FROM table(t)").fetchall() == [("2", "b")]
        connection.execute("BEGIN; CREATE STREAM u (id string); INSERT INTO u (id) SELECT id FROM d; COMMIT")
        connection.execute("DROP STREAM u")
        assert [r[0] for r in connection.execute("SHOW DICTIONARIES").fetchall()] == ["d"]

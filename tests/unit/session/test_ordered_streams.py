"""Rows of SQLstream's streams come in the order of ROWTIME; others are rejected and counted (SQLstream's document)."""

from __future__ import annotations

import datetime as dt

import pytest
from tests.harness import Harness

import watersmeet


def at(second: float) -> dt.datetime:
    return dt.datetime(2019, 3, 30, 5) + dt.timedelta(seconds=second)


@pytest.fixture
def path(tmp_path):
    with watersmeet.connect(tmp_path / "db", "sqlstream", runtime="inprocess") as connection:
        connection.execute("CREATE STREAM s (n INTEGER)")
        connection.execute("CREATE MATERIALIZED VIEW v AS SELECT STREAM n FROM s")
    return tmp_path / "db"


def insert(connection, *rows):
    values = ", ".join(f"(TIMESTAMP '{at(second)}', {n})" for second, n in rows)
    return connection.execute(f"INSERT INTO s (rowtime, n) VALUES {values}")


def content(connection):
    connection.execute("FLUSH")
    assert (
        connection.execute("SELECT rowtime, n FROM v ORDER BY 1, 2").fetchall()
        == connection.execute("SELECT rowtime, n FROM s ORDER BY 1, 2").fetchall()
    )
    return [n for (n,) in connection.execute("SELECT n FROM s ORDER BY rowtime, n").fetchall()]


def late(connection):
    connection.execute("FLUSH")
    return {s["name"]: s["late"] for s in connection.status()["sources"]}["S"]


def open_(path, **options):
    return watersmeet.connect(path, "sqlstream", runtime="inprocess", **options)


def test_a_row_before_another_is_rejected_within_a_statement_and_after_it(path):
    with open_(path) as connection:
        done = insert(connection, (10, 1), (12, 2), (11, 3), (12, 4))
        assert (done.rowcount, done.notices) == (
            3,
            ('1 row of "S" rejected: a row with a later rowtime arrived earlier',),
        )
        assert insert(connection, (11.999, 5), (3, 6)).rowcount == 0
        assert insert(connection, (12, 7)).notices == ()
        assert (content(connection), late(connection)) == ([1, 2, 4, 7], 3)


def test_the_clock_is_known_after_a_restart(path):
    with open_(path) as connection:
        insert(connection, (10, 1))
    with open_(path) as connection:
        assert insert(connection, (9, 2), (10, 3)).rowcount == 1
        assert (content(connection), late(connection)) == ([1, 3], 1)
        Harness(connection).set_watermark("s", int(at(20).replace(tzinfo=dt.UTC).timestamp() * 1_000_000))
        connection.execute("FLUSH")
    with open_(path) as connection:
        assert insert(connection, (19, 4), (20, 5)).rowcount == 1
        assert content(connection) == [1, 3, 5]


def test_a_transaction_is_in_order_with_itself_and_counts_when_it_commits(path):
    with open_(path) as connection:
        insert(connection, (10, 1))
        connection.execute("BEGIN")
        insert(connection, (12, 2))
        assert insert(connection, (11, 3), (12, 4)).rowcount == 1
        connection.rollback()
        assert late(connection) == 0
        connection.execute("BEGIN")
        insert(connection, (11, 5), (9, 6))
        connection.commit()
        assert (content(connection), late(connection)) == ([1, 5], 1)
        connection.execute("BEGIN")
        insert(connection, (1, 7))
        connection.commit()
    with open_(path) as connection:
        assert (content(connection), late(connection)) == ([1, 5], 2)


def test_rows_are_not_counted_that_a_statement_which_failed_would_have_rejected(path, monkeypatch):
    with open_(path) as connection:
        insert(connection, (10, 1))

        def full(*args, **kwargs):
            raise watersmeet.OperationalError("DISK_FULL", "no space left")

        with monkeypatch.context() as patch:
            patch.setattr("watersmeet.database.opened.write_transaction", full)
            with pytest.raises(watersmeet.OperationalError):
                insert(connection, (9, 2), (11, 3))
        assert late(connection) == 0
        insert(connection, (9, 2), (11, 3))
        assert (content(connection), late(connection)) == ([1, 3], 1)


def test_rowtimes_are_whole_milliseconds(path):
    with open_(path) as connection:
        insert(connection, (10.0019, 1), (10.001, 2))
        connection.execute("FLUSH")
        assert connection.execute("SELECT DISTINCT rowtime FROM s").fetchall() == [(at(10.001),)]


def test_without_a_rowtime_a_row_has_the_time_of_its_insert(path):
    with open_(path) as connection:
        Harness(connection).set_clock(int(at(5).replace(tzinfo=dt.UTC).timestamp() * 1_000_000))
        connection.execute("INSERT INTO s VALUES (1)")
        connection.execute("FLUSH")
        assert connection.execute("SELECT rowtime FROM s").fetchall() == [(at(5),)]


def test_many_parameters_and_rows_from_outside_are_in_order_too(path):
    with open_(path) as connection:
        done = connection.cursor().executemany(
            "INSERT INTO s (rowtime, n) VALUES (?, ?)", [(at(2), 1), (at(1), 2), (at(2), 3)]
        )
        assert done.rowcount == 2
        Harness(connection).deliver("s", [[str(at(1)), "4"], [str(at(4)), "5"]])
        assert (content(connection), late(connection)) == ([1, 3, 5], 2)


@pytest.mark.parametrize("time", ["infinity", "-infinity", "10000-01-01 00:00:00"])
def test_a_time_that_none_comes_after_is_no_rowtime(path, time):
    with open_(path) as connection:
        with pytest.raises(watersmeet.Error, match=r'INVALID_VALUE.*out of range for column "ROWTIME"'):
            connection.execute(f"INSERT INTO s (rowtime, n) VALUES (TIMESTAMP '{time}', 1)")
        for written in (dt.datetime(1, 1, 1), dt.datetime(9999, 12, 31, 23, 59, 59, 999_000)):
            connection.execute(f"INSERT INTO s (rowtime, n) VALUES (TIMESTAMP '{written.isoformat(sep=' ')}', 2)")
        assert content(connection) == [2, 2]

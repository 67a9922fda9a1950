"""The time of the epochs: that of the machine or of a test, never back."""

from __future__ import annotations

import time

import pytest
from tests.harness import Harness

import watersmeet
from watersmeet.errors import Error
from watersmeet.system.threads import Clock


def times(log):
    return [c.progress.time_us for n in range(1, log.head() + 1) if (c := log.read(n)).kind == "epoch"]


def test_a_clock_runs_until_it_is_set_and_never_back():
    clock = Clock()
    before = time.time_ns() // 1000
    assert before <= clock.now_us() <= time.time_ns() // 1000
    clock.set(7)
    assert clock.now_us() == 7
    with pytest.raises(Error, match="set back"):
        clock.set(6)
    clock.set(7)


def test_epochs_have_the_time_of_the_clock_and_never_an_earlier_one(tmp_path):
    connection = watersmeet.connect(tmp_path / "db", runtime="inprocess")
    Harness(connection).set_clock(1_000)
    cursor = connection.cursor()
    cursor.execute(
        "CREATE TABLE t (k INT); CREATE MATERIALIZED VIEW v AS SELECT k FROM t; INSERT INTO t VALUES (1); FLUSH"
    )
    Harness(connection).set_clock(5_000)
    cursor.execute("INSERT INTO t VALUES (2); FLUSH")
    log = connection._session.database.log
    assert set(times(log)) == {1_000, 5_000}
    assert times(log)[-1] == 5_000
    connection.close()
    connection = watersmeet.connect(tmp_path / "db", runtime="inprocess")
    Harness(connection).set_clock(2_000)
    connection.cursor().execute("INSERT INTO t VALUES (3); FLUSH")
    found = times(connection._session.database.log)
    assert found[-1] == 5_000
    assert found == sorted(found)
    connection.close()


def test_ticks_can_be_rarer_or_more_frequent(tmp_path):
    with watersmeet.connect(tmp_path / "db", runtime="inprocess", tick_seconds=0.25) as connection:
        assert connection._session.database.clock.tick_us == 250_000
    for wrong in (0, -1, float("nan")):
        with pytest.raises(Error, match="tick_seconds"):
            watersmeet.connect(tmp_path / "db", runtime="inprocess", tick_seconds=wrong)


def test_when_rows_came_is_not_made_anew(tmp_path):
    with watersmeet.connect(tmp_path / "db", runtime="inprocess") as connection:
        connection.execute(
            "CREATE SOURCE s (k INT, p TIMESTAMPTZ AS PROCTIME()) WITH (connector = 'datagen', fields.k.kind "
            "= 'sequence', "
            "fields.k.start = 1, fields.k.end = 5); CREATE MATERIALIZED VIEW v AS SELECT k, p FROM s; FLUSH"
        )
        rows = connection.execute("SELECT k FROM v").fetchall()
        assert len(rows) == 5
    with pytest.raises(Error, match="When its rows arrived"):
        watersmeet.connect(tmp_path / "db", runtime="inprocess", rebuild=True)
    with watersmeet.connect(tmp_path / "db", runtime="inprocess") as connection:
        assert connection.execute("SELECT k FROM v").fetchall() == rows


def test_a_column_of_another_type_is_no_time(tmp_path):
    with (
        watersmeet.connect(runtime="inprocess") as connection,
        pytest.raises(Error, match=r"AS PROCTIME\(\) can't be integer"),
    ):
        connection.execute("CREATE TABLE t (k INT AS PROCTIME())")

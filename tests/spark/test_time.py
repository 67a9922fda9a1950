"""Time on Spark: rows come and go as it passes, without data; ticks are rare; a restart goes on."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

import pytest
from tests.harness import Harness
from tests.property.test_temporal_filters import run as run_seed
from tests.thorough import mostly_slow

import watersmeet

pytestmark = pytest.mark.spark


def rows(connection, sql):
    return sorted(connection.cursor().execute(sql).fetchall())


def until(connection, sql, wanted, seconds=120.0):
    """Waits for a result without FLUSH: only time passes."""
    deadline = time.monotonic() + seconds
    while (found := rows(connection, sql)) != wanted:
        assert time.monotonic() < deadline, f"{sql}: {found}, not {wanted}"
        time.sleep(0.05)


@pytest.mark.slow
def test_a_row_leaves_and_another_comes_by_the_clock_of_the_machine(tmp_path):
    connection = watersmeet.connect(tmp_path / "db", runtime="spark", parallelism=2)
    cursor = connection.cursor()
    cursor.execute("CREATE TABLE t (k INT, ts TIMESTAMP)")
    cursor.execute("CREATE MATERIALIZED VIEW fresh AS SELECT k FROM t WHERE ts > now() - INTERVAL '3 seconds'")
    cursor.execute(
        "CREATE MATERIALIZED VIEW counted AS SELECT count(*) AS n FROM t WHERE ts < now() - INTERVAL '2 seconds'"
    )
    now = datetime.now(UTC).replace(tzinfo=None)
    cursor.execute(f"INSERT INTO t VALUES (1, '{now}'), (2, '{now.replace(year=now.year + 1, day=1)}'); FLUSH")
    until(connection, "SELECT k FROM fresh", [(2,)])
    until(connection, "SELECT n FROM counted", [(1,)])
    # Nothing else is due for a year: no more epochs.
    log = connection._session.database.log
    before = log.head()
    time.sleep(2.5)
    assert log.head() == before
    connection.close()


def test_a_restart_takes_up_what_waits(tmp_path):
    start = datetime.now(UTC)

    def connect(hours):
        found = watersmeet.connect(tmp_path / "db", runtime="spark", parallelism=2)
        Harness(found).set_clock(round((start.timestamp() + 3600 * hours) * 1e6))
        return found

    def at(hours):
        return (start + timedelta(hours=hours)).replace(tzinfo=None)

    connection = connect(1)
    cursor = connection.cursor()
    cursor.execute(
        "CREATE TABLE t (k INT PRIMARY KEY, ts TIMESTAMP); CREATE MATERIALIZED VIEW v AS SELECT k FROM t "
        "WHERE ts > now()"
    )
    cursor.execute(f"INSERT INTO t VALUES (1, '{at(2)}'), (2, '{at(3)}'); FLUSH")
    assert rows(connection, "SELECT k FROM v") == [(1,), (2,)]
    connection.close()
    connection = connect(2.5)
    until(connection, "SELECT k FROM v", [(2,)])
    connection.cursor().execute(f"UPDATE t SET ts = '{at(4)}' WHERE k = 1; FLUSH")
    assert rows(connection, "SELECT k FROM v") == [(1,), (2,)]
    connection.close()


@pytest.mark.parametrize("seed", mostly_slow(range(3), 1))
def test_random_histories(seed, tmp_path):
    run_seed(seed, str(tmp_path / "db") if seed else None, parallelism=1 + seed % 2, runtime="spark", steps=6)

"""ALTER SYSTEM RESET clock: after a time with a clock that was ahead, timers follow the machine's clock again."""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest
from tests.harness import Harness

import watersmeet
from watersmeet import Error

HOUR_US = 3_600_000_000
TABLES = "CREATE TABLE t (k int, ts timestamp); CREATE TABLE g (k int, ts timestamp) APPEND ONLY; "
VIEWS = (
    "CREATE MATERIALIZED VIEW plain AS SELECT k, count(*) AS n FROM t GROUP BY k; "
    "CREATE MATERIALIZED VIEW recent AS SELECT k FROM t WHERE ts > now() - INTERVAL '2 hours'; "
    "CREATE MATERIALIZED VIEW past AS SELECT k FROM t WHERE ts <= now(); "
    "CREATE MATERIALIZED VIEW counted AS SELECT count(*) AS n FROM recent; "
    "CREATE TABLE copy (k int PRIMARY KEY); CREATE SINK s INTO copy AS SELECT k FROM recent WITH (type = 'upsert')"
)


def at(time_us: int) -> str:
    return str(dt.datetime.fromtimestamp(time_us / 1e6, dt.UTC).replace(tzinfo=None))


def rows(connection: watersmeet.Connection, name: str) -> list[object]:
    return sorted(connection.execute(f"SELECT * FROM {name}").fetchall())


@pytest.fixture
def now_us() -> int:
    return time.time_ns() // 1000


@pytest.fixture
def opened(tmp_path: Path, now_us: int, request: pytest.FixtureRequest) -> Iterator[watersmeet.Connection]:
    """A database whose epochs were ten hours ahead, opened again."""
    with watersmeet.connect(tmp_path / "db", runtime="inprocess", parallelism=2) as connection:
        connection.execute(TABLES + getattr(request, "param", VIEWS))
        rows = f"(1, '{at(now_us - HOUR_US)}'), (2, '{at(now_us - 5 * HOUR_US)}'), (3, '{at(now_us + 5 * HOUR_US)}')"
        connection.execute(f"INSERT INTO t VALUES {rows}; FLUSH")
        Harness(connection).set_clock(now_us + 10 * HOUR_US)
        connection.execute("INSERT INTO g VALUES (1, '2020-01-01 00:00:00'); FLUSH")
    with watersmeet.connect(tmp_path / "db", runtime="inprocess") as connection:
        yield connection


def test_timers_follow_the_machine_again(opened: watersmeet.Connection, now_us: int) -> None:
    assert rows(opened, "recent") == rows(opened, "copy") == []
    assert rows(opened, "past") == [(1,), (2,), (3,)]
    assert len(opened.execute("SHOW ERRORS").fetchall()) == 1
    opened.execute("ALTER SYSTEM RESET clock")
    opened.execute("FLUSH")
    assert opened.execute("SHOW ERRORS").fetchall() == []
    assert rows(opened, "recent") == rows(opened, "copy") == [(1,), (3,)]
    assert rows(opened, "counted") == [(2,)]
    assert rows(opened, "past") == [(1,), (2,)]
    assert rows(opened, "plain") == [(1, 1), (2, 1), (3, 1)]
    assert opened._session.database.log.progress().time_us < now_us + HOUR_US
    Harness(opened).set_clock(now_us + 6 * HOUR_US)
    opened.execute("INSERT INTO t VALUES (4, NULL); FLUSH")
    assert rows(opened, "recent") == rows(opened, "copy") == [(3,)]
    assert rows(opened, "past") == [(1,), (2,), (3,)]
    assert rows(opened, "plain")[-1] == (4, 1)


def test_a_clock_that_is_not_ahead_stays(opened: watersmeet.Connection, now_us: int) -> None:
    Harness(opened).set_clock(now_us + 20 * HOUR_US)
    head = opened._session.database.log.head()
    cursor = opened.execute("ALTER SYSTEM RESET clock")
    assert cursor.notices == ("the time of epochs is not ahead of the machine's clock",)
    assert opened._session.database.log.head() == head


def test_views_stay_stopped_until_they_are_refreshed(opened: watersmeet.Connection, tmp_path: Path) -> None:
    """As after a crash in between."""
    with (
        mock.patch("watersmeet.session.features.viewrefresh.refresh", side_effect=KeyboardInterrupt),
        pytest.raises(KeyboardInterrupt),
    ):
        opened.execute("ALTER SYSTEM RESET clock")
    opened.close()
    with watersmeet.connect(tmp_path / "db", runtime="inprocess") as reopened:
        with pytest.raises(Error, match='"recent" was stopped: the clock was reset'):
            reopened.execute("SELECT * FROM recent")
        reopened.execute("REFRESH MATERIALIZED VIEW ALL")
        reopened.execute("FLUSH")
        assert rows(reopened, "recent") == rows(reopened, "copy") == [(1,), (3,)]
        assert reopened.execute("SHOW ERRORS").fetchall() == []


REFUSED = {
    "CREATE MATERIALIZED VIEW f AS SELECT k FROM g WHERE ts <= now()": 'rows that .*"f" has output by the clock are '
    "final",
    "CREATE TABLE d (k int PRIMARY KEY); CREATE MATERIALIZED VIEW f AS SELECT l.k FROM g AS l "
    "JOIN d FOR SYSTEM_TIME AS OF PROCTIME() ON l.k = d.k WHERE l.ts > now() - INTERVAL '1 hour'": "be computed again",
}


@pytest.mark.parametrize(("opened", "message"), REFUSED.items(), indirect=["opened"])
def test_refusals(opened: watersmeet.Connection, message: str) -> None:
    before = opened._session.database.log.progress().time_us
    with pytest.raises(Error, match=message) as found:
        opened.execute("ALTER SYSTEM RESET clock")
    assert found.value.condition == "FEATURE_NOT_SUPPORTED"
    assert opened._session.database.log.progress().time_us == before
    opened.execute("DROP MATERIALIZED VIEW f; ALTER SYSTEM RESET clock; FLUSH")
    assert opened.execute("SHOW ERRORS").fetchall() == []


def test_it_can_only_be_reset(opened: watersmeet.Connection) -> None:
    with pytest.raises(Error, match="clock can only be reset"):
        opened.execute("ALTER SYSTEM SET clock = 'now'")

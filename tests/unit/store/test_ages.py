"""What is kept for a time goes after that time, also where clocks were wrong."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest
from tests.memorystore import URL, MemoryStore, use

import watersmeet
from watersmeet.store import commits, compaction, retention
from watersmeet.store.layout import file_numbers

YEAR_NS = 365 * 86_400 * 10**9


class Clocks:
    """Of a machine: one is wrong by `ahead_ns`, and one shows the seconds that have passed."""

    def __init__(self, monkeypatch):
        self.ahead_ns, self.passed_s = 0, 0.0
        time_ns = lambda: time.time_ns() + self.ahead_ns
        for module in (commits, compaction):
            monkeypatch.setattr(module, "time", SimpleNamespace(time_ns=time_ns, monotonic=time.monotonic))
        monkeypatch.setattr(retention, "time", SimpleNamespace(time_ns=time_ns, monotonic=lambda: self.passed_s))


@pytest.fixture(params=["directory", "store"])
def place(request, tmp_path, monkeypatch):
    if request.param == "store":
        use(monkeypatch, MemoryStore(), tmp_path)
        return URL
    return tmp_path / "db"


def connect(place, **options):
    return watersmeet.connect(place, runtime="inprocess", **options)


def change_and_clean_up(connection, times=1):
    for _ in range(times):
        connection.execute("INSERT INTO t VALUES (1)")
        connection.flush()
        connection._session.database._compactor.run()


def there(connection):
    """The commits that are there, without those that stay for ever."""
    log = connection._session.database.log
    return {n for n in file_numbers(connection._session.database.layout.commits) if log.read(n).kind != "fence"}


@pytest.mark.parametrize("ahead", [1, -1])
@pytest.mark.parametrize("setting", ["10 minutes", pytest.param("1 day", marks=pytest.mark.slow)])
def test_a_clock_that_was_wrong_keeps_nothing_for_longer(place, monkeypatch, ahead, setting):
    """Commits that were made a year ahead have times of next year, and those after them, too, for a year."""
    clocks = Clocks(monkeypatch)
    kept_s = 600 if setting == "10 minutes" else 86_400
    clocks.ahead_ns = max(0, ahead) * YEAR_NS
    with connect(place, parallelism=1) as writer:
        writer.execute("CREATE TABLE t (a int)")
        writer.execute("CREATE MATERIALIZED VIEW v AS SELECT a, count(*) AS n FROM t GROUP BY a")
        writer.execute(f"ALTER SYSTEM SET retention = '{setting}'")
        change_and_clean_up(writer, 3)
    clocks.ahead_ns = min(0, ahead) * YEAR_NS
    with connect(place) as writer:
        change_and_clean_up(writer, 3)
        log = writer._session.database.log
        before = log.head()
        clocks.passed_s += kept_s - 1
        change_and_clean_up(writer, 2)
        assert min(there(writer)) < 9, "it is kept for a time"
        since = log.head()
        clocks.passed_s += 2
        change_and_clean_up(writer)
        assert before - 9 < min(there(writer)) <= since
        clocks.passed_s += kept_s + 1
        change_and_clean_up(writer)
        assert min(there(writer)) > since - 9
        assert writer.execute("SELECT * FROM v").fetchall() == [(1, 10)]
    with connect(place, read_only=True) as reader:
        assert reader.execute("SELECT * FROM v").fetchall() == [(1, 10)]


def test_memory_is_bounded_and_nothing_becomes_older(monkeypatch):
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(retention, "time", SimpleNamespace(monotonic=lambda: clock.now))
    known = retention.Ages()
    for number in range(1, 100_001):
        clock.now = float(number)
        known.note(number)
    assert len(known._known) <= 2048
    assert known.known_for(0) == 100_000
    for seconds in (1, 17, 5_000, 50_000, 90_000):
        assert 100_000 - 1.06 * seconds - 1 <= known.known_for(seconds) <= 100_000 - seconds
    assert known.known_for(100_000) == 0
    for _ in range(5_000):
        known.note(100_000)
    assert len(known._known) <= 2048
    assert known.known_for(0) == 100_000

"""Views over sources, watermarks and the clock that are filled beside live ones, have the content that they have if all
others wait for the fill: later rows are late, windows close, and time passes for them as for live views.
"""

from __future__ import annotations

import random
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

import watersmeet
from tests.thorough import mostly_slow
from watersmeet.runtime import backfill, workers

SECOND_US = 1_000_000
BEGIN_US = 1_767_225_600 * SECOND_US
QUERIES = {
    "groups": "SELECT k, count(*) AS n, sum(id) AS t FROM s GROUP BY k",
    "join": "SELECT d.name, count(*) AS n FROM s JOIN dim AS d ON s.k = d.k GROUP BY d.name",
    "closed": "SELECT window_start, k, count(*) AS n FROM TUMBLE(s, at, INTERVAL '10 seconds') "
    "GROUP BY window_start, k EMIT ON WINDOW CLOSE",
    "closed tables": "SELECT window_start, count(*) AS n FROM TUMBLE(e, at, INTERVAL '10 seconds') "
    "GROUP BY window_start EMIT ON WINDOW CLOSE",
    "recent": "SELECT id, k FROM s WHERE at > now() - INTERVAL '30 seconds'",
    "past": "SELECT id FROM e WHERE at < now() - INTERVAL '20 seconds'",
    "interval": "SELECT s.id, e.id AS other FROM s JOIN e ON s.k = e.k "
    "AND s.at BETWEEN e.at - INTERVAL '5 seconds' AND e.at + INTERVAL '5 seconds'",
    "only new": "SELECT k, count(*) AS n FROM s2 GROUP BY k",
    "late counted": "SELECT count(*) AS n, min(at) AS first FROM e",
}


class Run:
    """A database and the steps of a history: files, rows of a table, and the passing of time."""

    def __init__(self, path, seed, buckets):
        self.path, self.seed, self.steps = path, seed, 0
        for name in ("s", "s2"):
            (path / name).mkdir(parents=True)
        self.connection = watersmeet.connect(
            path / "db", runtime="inprocess", dialect="risingwave", parallelism=buckets
        )
        self.connection.opened.clock.set(BEGIN_US)
        columns = "(id int, k int, at timestamp, WATERMARK FOR at AS at - INTERVAL '4 seconds')"
        for name, own in (("s", columns), ("s2", "(id int, k int, at timestamp)")):  # fewer rows are late in a backlog
            self.run(f"CREATE SOURCE {name} {own} WITH (connector = 'file', path = '{path}/{name}', format = 'csv')")
        self.run(
            f"CREATE TABLE e {columns} APPEND ONLY; CREATE TABLE dim (k int PRIMARY KEY, name varchar);"
            "INSERT INTO dim SELECT g, 'n' || g FROM generate_series(0, 6) AS g;"
            "CREATE MATERIALIZED VIEW by_key AS SELECT k, count(*) AS n FROM s GROUP BY k;"
            "CREATE MATERIALIZED VIEW matched AS SELECT s.id, d.name FROM s JOIN dim AS d ON s.k = d.k;"
            "CREATE MATERIALIZED VIEW of_e AS SELECT k, count(*) AS n FROM e GROUP BY k;"
            "CREATE MATERIALIZED VIEW dropped AS SELECT id FROM s2"
        )

    def run(self, sql):
        return self.connection.execute(sql).fetchall() if sql[:6] == "SELECT" else self.connection.execute(sql)

    def step(self, rows):
        """One epoch's input. Some rows are late."""
        self.steps += 1
        random_ = random.Random(f"{self.seed} {self.steps}")
        now_us = BEGIN_US + self.steps * 3 * SECOND_US
        self.connection.opened.clock.set(now_us)

        def made(number):
            late_s = random_.choice([0, 0, 1, 2, 5, 9, 40])
            at = max(0, self.steps * 3 - late_s)
            return self.steps * 1000 + number, random_.randrange(7), f"2026-01-01 00:{at // 60 % 60:02}:{at % 60:02}"

        for name in ("s", "s2"):
            lines = [f"{i},{k},{at}\n" for i, k, at in map(made, range(rows))]
            (self.path / name / f"{self.steps:05}.csv").write_text("id,k,at\n" + "".join(lines))
        self.run("INSERT INTO e VALUES " + ", ".join(f"({i}, {k}, '{at}')" for i, k, at in map(made, range(rows))))
        k = random_.randrange(7)
        self.run(f"UPDATE dim SET name = 'm{self.steps}' WHERE k = {k}; FLUSH")

    def content(self, name):
        return sorted(map(str, self.run(f"SELECT * FROM {name}")))


@pytest.mark.parametrize("seed", mostly_slow(range(24), 2))
def test_views_equal_those_that_are_filled_at_once(tmp_path, monkeypatch, seed):
    monkeypatch.setattr(workers, "PIECE_ROWS", 150)
    monkeypatch.setattr(workers, "LEAST_PIECE_ROWS", 150)
    monkeypatch.setattr(workers, "PIECE_S", 0)
    random_ = random.Random(seed)
    buckets, before = random_.choice([1, 2]), random_.randrange(6, 12)
    names = random_.sample(sorted(QUERIES), 3)
    scripts = [f"CREATE MATERIALIZED VIEW v{i} AS {QUERIES[name]}" for i, name in enumerate(names)]
    beside, alone = (Run(tmp_path / way, seed, buckets) for way in ("beside", "alone"))
    with beside.connection, alone.connection, ThreadPoolExecutor(1) as other:
        for run in (beside, alone):
            for _ in range(before):
                run.step(60)
            run.run("DROP MATERIALIZED VIEW dropped")
        in_turns(beside.connection.opened.engine)
        meanwhile = 0
        for script in scripts:
            made = other.submit(beside.connection.cursor().execute, script)
            until_begun(beside, made)
            steps = 0
            while not made.done():
                step_beside(beside, 5)
                steps += 1
            made.result()
            meanwhile += steps
            with monkeypatch.context() as patched:
                patched.setattr(backfill, "can_run_beside", lambda *_: False)
                alone.run(script)
            for _ in range(steps):
                alone.step(5)
        assert meanwhile or "join" in names or "interval" in names, "some fill ran beside"
        for _ in range(3):
            for run in (beside, alone):
                run.step(5)
            for view in (*(f"v{i}" for i in range(len(names))), "by_key", "matched", "of_e"):
                assert beside.content(view) == alone.content(view), (names, view)


class _Turns(threading.Condition):
    """Lets a fill go on once the others have ended a step, so that a busy machine runs as many steps beside it."""

    ended = 0

    def wait(self, timeout=None):
        ended = self.ended
        while super().wait(timeout) and timeout is None and self.ended == ended:
            pass
        return True


def in_turns(engine):
    """Makes fills of other threads wait after each piece until `step_beside` has ended."""
    engine._waiting += 1
    engine._left = _Turns(engine._lock)


def step_beside(run, rows):
    run.step(rows)
    step_ended(run.connection.opened.engine)


def step_ended(engine):
    with engine._lock:
        engine._left.ended += 1
        engine._left.notify_all()


def until_begun(run, made=None):
    """Waits until a fill has begun, so that each step follows its beginning."""
    engine = run.connection.opened.engine
    while not (made and made.done()) and (engine._coordinator is None or engine._coordinator.backfill is None):
        pass

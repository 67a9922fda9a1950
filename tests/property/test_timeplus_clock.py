"""now() in select lists of views and running queries on random histories, against a dict.

A row has the time of the epoch that computed it. Later epochs, deletions and restarts never change it, and a row is
deleted with the time that it had.
"""

from __future__ import annotations

import datetime as dt
import random
from collections import Counter

import pytest

import watersmeet
from tests.harness import Harness

START_S = round((dt.datetime(2024, 1, 1, 10) - dt.datetime(1970, 1, 1)).total_seconds())
REGRESSIONS: list[int] = []
SEEDS = [*REGRESSIONS, 1, *(pytest.param(n, marks=pytest.mark.slow) for n in range(2, 6))]

VIEWS = {
    "stamped": "SELECT k, n, now64() AS t FROM m",
    "grouped": "SELECT n, count() AS c, now() AS t FROM m GROUP BY n",
    "appended": "SELECT k, n, now() AS t FROM s WHERE n > 0",
    "above": "SELECT t, count() AS c FROM (SELECT k, now() AS t FROM m) AS q GROUP BY t",
    "joined": "SELECT s.k, s.n, m.n AS v, now() AS t FROM s JOIN m ON s.k = m.k",
    "inside": "SELECT n, max(now()) AS latest, min(now()) AS earliest FROM m GROUP BY n",
}


class Model:
    """The rows of the keyed stream, and those of all views."""

    def __init__(self):
        self.rows = {}
        self.counts = {}
        self.appended, self.joined = Counter(), Counter()

    def epoch(self, time, written, deleted, appended):
        """The changes of an epoch: written rows by key, then deleted keys, then rows of the append stream."""
        for k, n in written.items():
            self.rows[k] = (n, time)
        for k in deleted:
            self.rows.pop(k, None)
        counts = Counter(n for n, _ in self.rows.values())
        self.counts = {n: self.counts[n] if self.counts.get(n, (0,))[0] == c else (c, time) for n, c in counts.items()}
        self.appended.update((k, n, time) for k, n in appended if n > 0)
        self.joined.update((k, n, self.rows[k][0], time) for k, n in appended if k in self.rows)

    @property
    def times(self):
        """The times of the rows by their number."""
        found = {}
        for n, time in self.rows.values():
            found.setdefault(n, []).append(time)
        return found

    @property
    def views(self):
        """The content by view."""
        return {
            "stamped": Counter((k, n, t) for k, (n, t) in self.rows.items()),
            "grouped": Counter((n, c, t) for n, (c, t) in self.counts.items()),
            "appended": self.appended,
            "above": Counter(Counter(t for _, t in self.rows.values()).items()),
            "joined": self.joined,
            "inside": Counter((n, max(ts), min(ts)) for n, ts in self.times.items()),
        }


@pytest.mark.parametrize("seed", SEEDS)
def test_rows_keep_the_time_at_which_they_are_computed(seed, tmp_path):
    rng = random.Random(seed)

    def opened():
        made = watersmeet.connect(tmp_path / "db", "timeplus", runtime="inprocess", parallelism=rng.choice([1, 3]))
        Harness(made).set_clock(now * 1_000_000)
        return made

    now = START_S
    connection = opened()
    connection.execute("CREATE MUTABLE STREAM m(k string, n int) PRIMARY KEY k; CREATE STREAM s(k string, n int)")
    connection.execute("INSERT INTO m(k, n) VALUES ('a', 1), ('b', 1)")
    now += 5
    Harness(connection).set_clock(now * 1_000_000)
    for name, query in VIEWS.items():
        connection.execute(f"CREATE MATERIALIZED VIEW {name} AS {query}")
    model = Model()
    model.epoch(dt.datetime.fromtimestamp(now, dt.UTC).replace(tzinfo=None), {"a": 1, "b": 1}, [], [])
    running = connection.execute(f"{VIEWS['stamped']} EMIT CHANGELOG")
    read = Counter()
    for _ in range(rng.randint(8, 14)):
        now += rng.randint(1, 7)
        if rng.random() < 0.2:
            connection.close()
            connection = opened()
            running = None
        Harness(connection).set_clock(now * 1_000_000)
        written = {rng.choice("abcd"): rng.randrange(3) for _ in range(rng.randint(0, 3))}
        deleted = [k for k in "abcd" if rng.random() < 0.15]
        appended = [(rng.choice("abcd"), rng.randrange(3)) for _ in range(rng.randint(0, 3))]
        connection.execute("BEGIN")
        if written:
            connection.execute("INSERT INTO m(k, n) VALUES " + ", ".join(map(str, written.items())))
        for k in deleted:
            connection.execute(f"DELETE FROM m WHERE k = '{k}'")
        if appended:
            connection.execute("INSERT INTO s(k, n) VALUES " + ", ".join(map(str, appended)))
        connection.execute("COMMIT")
        connection.execute("FLUSH")
        time = dt.datetime.fromtimestamp(now, dt.UTC).replace(tzinfo=None)
        model.epoch(time, written, deleted, appended)
        for name, expected in model.views.items():
            found = Counter(connection.execute(f"SELECT * FROM table({name})").fetchall())
            assert found == expected, (name, now - START_S)
        if running is not None:
            for *row, sign in running.fetchall():
                read[tuple(row)] += sign
            assert Counter({row: count for row, count in read.items() if count}) == model.views["stamped"]
    connection.close()

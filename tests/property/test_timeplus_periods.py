"""Views that write a stream at the end of each period on random histories, against their rules in plain Python.

The times of the epochs decide the period of a change. Neither restarts nor the moments at which periods are written
change a result.
"""

from __future__ import annotations

import datetime as dt
import random
from collections import Counter
from dataclasses import dataclass, field

import pytest

import watersmeet
from tests.harness import Harness

REGRESSIONS: list[int] = []
SEEDS = [*REGRESSIONS, *range(4)]
START_S = round((dt.datetime(2024, 1, 1, 10) - dt.datetime(1970, 1, 1)).total_seconds())
LENGTH = 5

#: By target: the query of the view that writes it.
VIEWS = {
    "whole": "SELECT k, count() AS n FROM s GROUP BY k EMIT PERIODIC 5s",
    "updates": "SELECT k, count() AS n FROM s GROUP BY k EMIT ON UPDATE WITH BATCH 5s",
    "appended": "SELECT k, n FROM s WHERE n > 2 EMIT PERIODIC 5s",
    "signed": "SELECT k, count() AS n FROM s GROUP BY k EMIT CHANGELOG PERIODIC 5s",
}


@dataclass
class Model:
    """The counts by key, those at the start of the period, the rows of the period, and all output."""

    counts: Counter = field(default_factory=Counter)
    before: Counter = field(default_factory=Counter)
    rows: list[tuple[str, int]] = field(default_factory=list)
    period: int = -1
    out: dict[str, Counter] = field(default_factory=lambda: {name: Counter() for name in VIEWS})

    def write(self, now: int) -> None:
        """Ends the period before `now`."""
        if now // LENGTH <= self.period or not self.rows:
            return
        changed = {(k, n) for k, n in self.counts.items() if self.before[k] != n}
        self.out["whole"].update(self.counts.items())
        self.out["updates"].update(changed)
        self.out["appended"].update(r for r in self.rows if r[1] > 2)
        self.out["signed"] = Counter(self.counts.items())
        self.before, self.rows = Counter(self.counts), []

    def add(self, now: int, rows: list[tuple[str, int]]) -> None:
        self.write(now)
        if rows:
            self.period = now // LENGTH
        self.rows += rows
        self.counts.update(k for k, _ in rows)


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_periods_of_views_into_streams(seed, tmp_path):
    rng = random.Random(seed)
    connection = watersmeet.connect(tmp_path / "db", "timeplus", runtime="inprocess", parallelism=rng.choice([1, 3]))
    now = START_S

    def set_clock() -> None:
        Harness(connection).set_clock(now * 1_000_000)

    set_clock()
    connection.execute("CREATE STREAM s(k string, n int)")
    for name, query in VIEWS.items():
        mode = " SETTINGS mode = 'changelog'" if name == "signed" else ""
        connection.execute(f"CREATE STREAM {name}(k string, n int64){mode}")
        connection.execute(f"CREATE MATERIALIZED VIEW of_{name} INTO {name} AS {query}")
    model = Model()
    for _ in range(rng.randint(10, 20)):
        now += rng.choice([0, 1, 2, 4, 7, 16])
        if rng.random() < 0.2:
            connection.close()
            connection = watersmeet.connect(tmp_path / "db", "timeplus", runtime="inprocess")
        set_clock()
        rows = [(rng.choice("abc"), rng.randrange(6)) for _ in range(rng.choice([0, 1, 2, 5]))]
        if rows:
            connection.execute("INSERT INTO s(k, n) VALUES " + ", ".join(f"('{k}', {n})" for k, n in rows))
        connection.execute("FLUSH")
        model.add(now, rows)
    now += LENGTH
    set_clock()
    connection.execute("FLUSH")
    model.write(now)
    for name, expected in model.out.items():
        found = Counter(connection.execute(f"SELECT k, n FROM table({name})").fetchall())
        assert found == expected, name
    connection.close()

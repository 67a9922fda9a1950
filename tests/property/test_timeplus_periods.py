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
    "keyed": "SELECT k, count() AS n FROM s GROUP BY k EMIT PERIODIC 5s",
    "mutable": "SELECT k, count() AS n, _tp_delta FROM s GROUP BY k EMIT CHANGELOG PERIODIC 5s",
}
#: By target: the words after CREATE, and the clauses after the columns.
TARGETS = {
    "signed": ("STREAM", "SETTINGS mode = 'changelog'"),
    "keyed": ("STREAM", "PRIMARY KEY k SETTINGS mode = 'versioned_kv'"),
    "mutable": ("MUTABLE STREAM", "PRIMARY KEY k"),
}


@dataclass
class Model:
    """The counts by key, those at the start of the period, the rows of the period, and all output."""

    counts: Counter = field(default_factory=Counter)
    before: Counter = field(default_factory=Counter)
    rows: list[tuple[str, int]] = field(default_factory=list)
    period: int = -1
    out: dict[str, Counter] = field(default_factory=lambda: {name: Counter() for name in (*VIEWS, "seen")})

    def write(self, now: int, *, ended: bool = False) -> None:
        """Ends the period before `now`. ended: whether the input has ended, and with it the present period."""
        if (now // LENGTH <= self.period and not ended) or not self.rows:
            return
        changed = {(k, n) for k, n in self.counts.items() if self.before[k] != n}
        self.out["whole"].update(self.counts.items())
        self.out["updates"].update(changed)
        self.out["appended"].update(r for r in self.rows if r[1] > 2)
        self.out["seen"].update(changed)  # the versions of the keyed stream
        for name in ("signed", "keyed", "mutable"):
            self.out[name] = Counter(self.counts.items())
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
        words, clauses = TARGETS.get(name, ("STREAM", ""))
        connection.execute(f"CREATE {words} {name}(k string, n int64) {clauses}")
        connection.execute(f"CREATE MATERIALIZED VIEW of_{name} INTO {name} AS {query}")
    connection.execute("CREATE STREAM seen(k string, n int64)")
    connection.execute("CREATE MATERIALIZED VIEW of_seen INTO seen AS SELECT k, n FROM keyed")
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
        if rng.random() < 0.15:
            connection.flush(ended=True)
            model.write(now, ended=True)
    now += LENGTH
    set_clock()
    connection.execute("FLUSH")
    model.write(now)
    for name, expected in model.out.items():
        found = Counter(connection.execute(f"SELECT k, n FROM table({name})").fetchall())
        assert found == expected, name
    connection.close()


@pytest.mark.parametrize("seed", range(3))
def test_keyed_streams_follow_the_deleted_rows_of_views(seed, tmp_path):
    """A view with signs leaves its own content in the stream, although a row that replaces another one of its key is
    deleted and inserted at once.
    """
    rng = random.Random(seed)
    connection = watersmeet.connect(tmp_path / "db", "timeplus", runtime="inprocess", parallelism=rng.choice([1, 3]))
    connection.execute("CREATE MUTABLE STREAM m(id int, k string) PRIMARY KEY id")
    query = "SELECT k, count() AS n{} FROM m GROUP BY k"
    for name, sign in {"versioned_kv": "", "changelog_kv": ", _tp_delta", "mutable": ", _tp_delta"}.items():
        mode = "" if name == "mutable" else f" SETTINGS mode = '{name}'"
        words = "MUTABLE STREAM" if name == "mutable" else "STREAM"
        connection.execute(f"CREATE {words} {name}(k string, n int64) PRIMARY KEY k{mode}")
        connection.execute(f"CREATE MATERIALIZED VIEW of_{name} INTO {name} AS {query.format(sign)}")
    content: dict[int, str] = {}
    for number in range(10):
        if number == 5:
            connection.close()
            connection = watersmeet.connect(tmp_path / "db", "timeplus", runtime="inprocess")
        rows = {rng.randrange(6): rng.choice("abc") for _ in range(rng.randint(1, 3))}
        content |= rows
        connection.execute("INSERT INTO m(id, k) VALUES " + ", ".join(f"({i}, '{k}')" for i, k in rows.items()))
        for i in [i for i in content if rng.random() < 0.25]:
            del content[i]
            connection.execute(f"DELETE FROM m WHERE id = {i}")
        connection.execute("FLUSH")
        expected = Counter(Counter(content.values()).items())
        for name in ("versioned_kv", "changelog_kv", "mutable"):
            assert Counter(connection.execute(f"SELECT k, n FROM table({name})").fetchall()) == expected, (name, number)
    connection.close()

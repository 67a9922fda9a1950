"""Timeplus' range joins on random histories with late rows, against their rule in plain Python; TP-30 to TP-33,
`docs/dialects/timeplus.md`.

A row is late if its time is behind the lesser of both sides' greatest times, as of the epochs before, by more than the
range. What comes out is the join of all rows that are not late; what is kept is what a row that is not late can still
meet.
"""

from __future__ import annotations

import datetime as dt
import random
from collections import Counter

import pytest

import watersmeet

REGRESSIONS: list[int] = []
SEEDS = [*REGRESSIONS, *range(3)]
START = dt.datetime(2024, 1, 1, 10)
RANGE = 20  # seconds

#: By view: the join, the columns of the times, and whether left rows without partner come out.
VIEWS = {
    "inner_": ("l JOIN r ON l.k = r.k AND date_diff_within(20s)", "_tp_time", False),
    "left_": ("l LEFT JOIN r ON l.k = r.k AND date_diff_within(20s, l._tp_time, r._tp_time)", "_tp_time", True),
    "named": ("l JOIN r ON l.k = r.k AND date_diff_within(l.t, r.t, 20s)", "t", False),
    "self_": ("l JOIN l AS r ON l.k = r.k AND date_diff_within(20s)", "self", False),
}


class Side:
    """The rows of one side of one view."""

    def __init__(self) -> None:
        self.rows: list[tuple] = []  # (n, k, second)
        self.greatest: int | None = None
        self.late = 0


class Reference:
    """One view."""

    def __init__(self, column: str, *, outer: bool) -> None:
        self.column, self.outer = column, outer
        self.left, self.right = Side(), Side()

    def insert(self, into: str, rows: list[tuple]) -> None:
        """An epoch. Rows: (n, k, second of _tp_time, second of t)."""
        known = [self.left.greatest, self.right.greatest]
        bound = None if None in known else min(known) - RANGE
        sides = [self.left, self.right] if self.column == "self" else [self.left if into == "l" else self.right]
        if self.column == "self" and into == "r":
            return
        for side in sides:
            for n, k, arrival, named in rows:
                second = named if self.column == "t" else arrival
                if bound is not None and second < bound:
                    side.late += 1
                    continue
                side.rows.append((n, k, second))
        for side in sides:
            seconds = [r[3] if self.column == "t" else r[2] for r in rows]
            side.greatest = max(seconds) if side.greatest is None else max(side.greatest, *seconds)

    def content(self) -> Counter:
        out: Counter = Counter()
        for n, k, second in self.left.rows:
            met = [m for m, rk, other in self.right.rows if rk == k and abs(second - other) <= RANGE]
            for m in met or ([None] if self.outer else []):
                out[(n, m)] += 1
        return out


def shown(second: int) -> str:
    return f"'{START + dt.timedelta(seconds=second)}'"


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_range_joins(seed, tmp_path):
    rng = random.Random(seed)
    connection = watersmeet.connect(tmp_path / "db", "timeplus", runtime="inprocess", parallelism=rng.choice([1, 3]))
    for name in "lr":
        connection.execute(f"CREATE STREAM {name}(n int, k int, t datetime64(3))")
    references = {}
    for name, (join, column, outer) in VIEWS.items():
        connection.execute(f"CREATE MATERIALIZED VIEW {name} AS SELECT l.n AS n, r.n AS m FROM {join}")
        references[name] = Reference(column, outer=outer)
    clock = {"l": 0, "r": 0}
    number = 0
    for _ in range(rng.randint(15, 40)):
        if rng.random() < 0.08:
            connection.close()
            connection = watersmeet.connect(tmp_path / "db", "timeplus", runtime="inprocess")
        into = rng.choice("lr")
        clock[into] += rng.choice([0, 3, 10, 30])
        rows = []
        for _ in range(rng.randint(1, 5)):
            number += 1
            rows.append(
                (
                    number,
                    rng.randrange(3),
                    clock[into] - rng.choice([0, 2, 15, 40, 90]),
                    clock[into] - rng.choice([0, 5, 30]),
                )
            )
        values = ", ".join(f"({n}, {k}, {shown(t)}, {shown(a)})" for n, k, a, t in rows)
        connection.execute(f"INSERT INTO {into}(n, k, t, _tp_time) VALUES {values}; FLUSH")
        for reference in references.values():
            reference.insert(into, rows)
    late = {v["name"]: v["late"] for v in connection.status()["views"]}
    for name, reference in references.items():
        found = Counter(connection.execute(f"SELECT n, m FROM table({name})").fetchall())
        assert found == reference.content(), name
        assert late[name] == reference.left.late + (reference.right.late if name != "self_" else 0), name
    connection.close()


@pytest.mark.slow
def test_what_is_kept_does_not_grow_with_the_stream():
    with watersmeet.connect(None, "timeplus", runtime="inprocess") as connection:
        connection.execute("CREATE STREAM l(n int, k int); CREATE STREAM r(n int, k int)")
        connection.execute(
            "CREATE MATERIALIZED VIEW v AS SELECT l.n AS n, r.n AS m FROM l JOIN r ON l.k = r.k AND "
            "date_diff_within(20s)"
        )
        connection.execute(
            "CREATE MATERIALIZED VIEW whole AS SELECT l.n AS n, r.n AS m FROM l JOIN r ON l.k = r.k "
            "AND l._tp_time >= r._tp_time - 20s AND l._tp_time <= r._tp_time + 20s"
        )
        for step in range(20):
            rows = ", ".join(f"({i}, {i % 3}, {shown(step * 10 + i % 10)})" for i in range(100))
            connection.execute(
                f"INSERT INTO l(n, k, _tp_time) VALUES {rows}; INSERT INTO r(n, k, _tp_time) VALUES {rows}; FLUSH"
            )
        views = {v["name"]: v for v in connection.status()["views"]}
        assert views["v"]["rows"] == views["whole"]["rows"] > 50_000
        assert views["whole"]["state_rows"] == 4000
        assert views["v"]["state_rows"] < 2000
        assert views["v"]["late"] == 0

"""Timeplus' queries over time windows of inner queries on random histories, against their rules in plain Python.

An inner query outputs each window once, when it closes; the outer query reads these rows in the order of their windows.
"""

from __future__ import annotations

import datetime as dt
import random
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from decimal import Decimal

import pytest

import watersmeet

REGRESSIONS: list[int] = []
SEEDS = [*REGRESSIONS, *range(5)]
START = dt.datetime(2024, 1, 1, 10)
SIZE = 10

Row = tuple[int, str, int, int]  # number, key, value, second of _tp_time
Closed = tuple[int, int, str, int, int]  # epoch, start, key, count, sum


def at(second: int) -> dt.datetime:
    return START + dt.timedelta(seconds=second)


@dataclass
class History:
    """The rows of a stream by epoch, the windows that have closed, and the names that keys had in each epoch."""

    epochs: list[list[Row]] = field(default_factory=list)
    names: list[dict[str, int]] = field(default_factory=list)

    def closed(self, size: int = SIZE, delay: int = 0, slide: int | None = None) -> list[Closed]:
        """The windows in the order in which they close, those of one start by key."""
        found, clock = [], -(10**9)
        members: dict[tuple[int, str], list[Row]] = defaultdict(list)
        for epoch, rows in enumerate(self.epochs):
            for row in rows:
                for start in range(row[3] // (slide or size) * (slide or size), row[3] - size, -(slide or size)):
                    if start + size + delay > clock:
                        members[start, row[1]].append(row)
            clock = max([clock, *(r[3] for r in rows)])
            for start, key in sorted(w for w in members if w[0] + size + delay <= clock):
                rows_of = members.pop((start, key))
                found.append((epoch, start, key, len(rows_of), sum(r[2] for r in rows_of)))
        return found

    def rows(self) -> list[tuple[int, Row]]:
        return [(epoch, row) for epoch, rows in enumerate(self.epochs) for row in rows]


def totals(found: list[Closed], by: Callable[[Closed], object]) -> dict[object, tuple[int, int]]:
    groups: dict[object, list[Closed]] = defaultdict(list)
    for window in found:
        groups[by(window)].append(window)
    return {key: (len(rows), sum(r[3] for r in rows)) for key, rows in groups.items()}


def before(found: list[Closed], i: int, number: int, *, of_key: bool) -> int:
    """The count of the window that closed `number` windows earlier, of the same key or of any; 0 without one."""
    earlier = [w for w in found[:i] if not of_key or w[2] == found[i][2]]
    return earlier[-number][3] if len(earlier) >= number else 0


def latest(history: History) -> list[tuple]:
    """Each row with the count of the newest window of its key when it arrived."""
    found = []
    for epoch, row in history.rows():
        seen = [w for w in history.closed() if w[2] == row[1] and w[0] <= epoch]
        if seen:
            found.append((row[0], seen[-1][3]))
    return found


def nearest(history: History) -> list[tuple]:
    """Each row with the newest of the last 3 windows of its key that began at or before it."""
    found = []
    for epoch, row in history.rows():
        seen = [w for w in history.closed() if w[2] == row[1] and w[0] <= epoch][-3:]
        seen = [w for w in seen if w[1] <= row[3]]
        if seen:
            found.append((row[0], seen[-1][1]))
    return [(n, at(start)) for n, start in found]


def of_windows(history: History) -> list[tuple]:
    """The windows of 30 seconds over the closed windows by their start."""
    starts: dict[int, int] = defaultdict(int)
    for _, start, _, count, _ in history.closed():
        starts[start // 30 * 30] += count
    clock = max(row[3] for _, row in history.rows())
    return [(at(s), count) for s, count in starts.items() if s + 30 <= clock // SIZE * SIZE]


W = "SELECT window_start, k, count() AS c, sum(v) AS t FROM tumble(s, 10s) GROUP BY window_start, k"
#: By view: its query, and its rows by the rules. `w` is a plain view.
VIEWS: dict[str, tuple[str, Callable[[History], list[tuple]]]] = {
    "number": (
        f"WITH x AS ({W}) SELECT count() AS n, max(c) AS m FROM x",
        lambda h: [(len(h.closed()), max((w[3] for w in h.closed()), default=0))],
    ),
    "by_key": (
        "SELECT k, count() AS n, sum(c) AS t FROM w GROUP BY k",
        lambda h: [(k, *t) for k, t in totals(h.closed(), lambda w: w[2]).items()],
    ),
    "by_start": (
        f"SELECT window_start, count() AS n, sum(c) AS t FROM ({W}) GROUP BY window_start",
        lambda h: [(at(s), *t) for s, t in totals(h.closed(), lambda w: w[1]).items()],
    ),
    "filtered": (
        "SELECT k, c FROM (SELECT k, c, t FROM w WHERE c > 1) WHERE t > 3",
        lambda h: [(w[2], w[3]) for w in h.closed() if w[3] > 1 and w[4] > 3],
    ),
    "late": (
        f"SELECT count() AS n, sum(c) AS t FROM ({W} EMIT AFTER WINDOW CLOSE WITH DELAY 7s)",
        lambda h: [(len(h.closed(delay=7)), sum(w[3] for w in h.closed(delay=7)))],
    ),
    "hopped": (
        "SELECT k, count() AS n, sum(c) AS t FROM (SELECT k, window_end, count() AS c FROM hop(s, 4s, 10s) "  # noqa: ISC004
        "GROUP BY k, window_end) GROUP BY k",
        lambda h: [(k, *t) for k, t in totals(h.closed(slide=4), lambda w: w[2]).items()],
    ),
    "arms": (
        f"SELECT k, c FROM ({W}) UNION ALL SELECT k, v FROM s",
        lambda h: [(w[2], w[3]) for w in h.closed()] + [r[1:3] for _, r in h.rows()],
    ),
    "met": (
        "SELECT x.window_start, y.c FROM w AS x JOIN (SELECT window_start, count() AS c FROM tumble(s, 10s) "  # noqa: ISC004
        "GROUP BY window_start) AS y ON x.window_start = y.window_start",
        lambda h: [(at(w[1]), totals(h.closed(), lambda o: o[1])[w[1]][1]) for w in h.closed()],
    ),
    "named": (
        "SELECT x.k, x.c, names.name FROM w AS x JOIN names ON x.k = names.k",
        lambda h: [(w[2], w[3], h.names[w[0]][w[2]]) for w in h.closed() if w[2] in h.names[w[0]]],
    ),
    "lagged": (
        "SELECT window_start, k, lag(c) AS one, lag(c, 3, 0) AS three FROM w",
        lambda h: [
            (at(w[1]), w[2], before(h.closed(), i, 1, of_key=False), before(h.closed(), i, 3, of_key=False))
            for i, w in enumerate(h.closed())
        ],
    ),
    "lagged_by_key": (
        f"WITH x AS ({W}) SELECT window_start, k, lag(c) AS one, lags(c, 1, 2) AS more FROM x PARTITION BY k",
        lambda h: [
            (at(w[1]), w[2], *(f(h.closed(), i) for f in (_one, _more))) for i, w in enumerate(h.closed())
        ],
    ),
    "lagged_groups": (
        "SELECT window_start, k, count() AS c, lag(c) OVER (PARTITION BY k) AS one FROM tumble(s, 10s) "  # noqa: ISC004
        "GROUP BY window_start, k",
        lambda h: [(at(w[1]), w[2], w[3], _one(h.closed(), i)) for i, w in enumerate(h.closed())],
    ),
    "first": (
        "SELECT k, window_start FROM w LIMIT 2 BY k",
        lambda h: [(k, at(w[1])) for k in "ab" for w in [w for w in h.closed() if w[2] == k][:2]],
    ),
    "ends": (
        "SELECT k, earliest(c) AS one, latest(c) AS other FROM w GROUP BY k",
        lambda h: [
            (k, own[0][3], own[-1][3]) for k in "ab" if (own := [w for w in h.closed() if w[2] == k])
        ],
    ),
    "latest_of": ("SELECT s.n, y.c FROM s ASOF LATEST JOIN w AS y ON s.k = y.k", latest),
    "nearest_of": (
        "SELECT s.n, y.window_start FROM s ASOF JOIN w AS y ON s.k = y.k AND s._tp_time >= y.window_start",
        nearest,
    ),
    "nested": (
        "SELECT window_start, sum(c) AS t FROM tumble((SELECT window_start AS ws, c FROM w), ws, 30s) "  # noqa: ISC004
        "GROUP BY window_start",
        of_windows,
    ),
}  # fmt: skip


def _one(found: list[Closed], i: int) -> int:
    return before(found, i, 1, of_key=True)


def _more(found: list[Closed], i: int) -> list[int]:
    return [before(found, i, n, of_key=True) for n in (1, 2)]


def plain(row: tuple) -> tuple:
    return tuple(tuple(v) if isinstance(v, list) else int(v) if isinstance(v, Decimal) else v for v in row)


def check(connection: watersmeet.Connection, history: History) -> None:
    for name, (_, model) in VIEWS.items():
        found = Counter(map(plain, connection.execute(f"SELECT * FROM table({name})").fetchall()))
        assert found == Counter(map(plain, model(history))), name


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_queries_over_closed_windows(seed, tmp_path):
    rng = random.Random(seed)
    connection = watersmeet.connect(tmp_path / "db", "timeplus", runtime="inprocess", parallelism=rng.choice([1, 3]))
    connection.execute(
        "CREATE STREAM s(n int, k string, v int); CREATE MUTABLE STREAM names(k string, name int) PRIMARY KEY k"
    )
    connection.execute(f"CREATE VIEW w AS {W}")
    for name, (query, _) in VIEWS.items():
        connection.execute(f"CREATE MATERIALIZED VIEW {name} AS {query}")
    history, names, second, number = History(), dict[str, int](), 0, 0
    for _ in range(rng.randint(6, 12)):
        if rng.random() < 0.2:
            connection.close()
            connection = watersmeet.connect(tmp_path / "db", "timeplus", runtime="inprocess")
        statements, rows = "", list[Row]()
        if rng.random() < 0.4:
            names[rng.choice("ab")] = rng.randrange(9)
            statements = "".join(f"INSERT INTO names(k, name) VALUES ('{k}', {v});" for k, v in names.items())
        for _ in range(rng.randint(0, 6)):
            second += rng.choice([0, 1, 3, 6, 12, 25])
            number += 1
            rows.append((number, rng.choice("ab"), rng.randrange(6), second - rng.choice([0, 0, 0, 2, 9, 30])))
        if rows:
            values = ", ".join(f"({n}, '{k}', {v}, '{at(t)}')" for n, k, v, t in rows)
            statements += f"INSERT INTO s(n, k, v, _tp_time) VALUES {values};"
        connection.execute(f"BEGIN; {statements} COMMIT; FLUSH")
        history.epochs.append(rows)
        history.names.append(dict(names))
        if rng.random() < 0.3 and history.rows():
            check(connection, history)
    if history.rows():
        check(connection, history)
    connection.close()

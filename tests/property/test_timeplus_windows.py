"""Timeplus' sessions, deduplicated streams and substreams on random histories, against their rules in plain Python.

All of them follow from the rows in the order of arrival, so neither the cuts into epochs nor restarts change a result.
"""

from __future__ import annotations

import datetime as dt
import random
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

import watersmeet
from tests.harness import Harness

REGRESSIONS: list[int] = []
SEEDS = [*REGRESSIONS, *range(4)]
START = dt.datetime(2024, 1, 1, 10)

Row = tuple[int, str, int, int]  # number, key, value, second of _tp_time
Always = Callable[[Row], bool]


def of_keys(rows: list[Row], by: Callable[[Row], object]) -> Iterator[list[Row]]:
    """The rows of each key in the order of arrival."""
    keys = dict.fromkeys(map(by, rows))
    yield from ([r for r in rows if by(r) == key] for key in keys)


def sessions(
    rows: list[Row],
    gap: int,
    most: int,
    begins: Always = lambda _: True,
    ends: Always = lambda _: False,
    kept: str = "[]",
) -> list[tuple[int, int, list[Row]]]:
    """The closed sessions of one key: start, end, rows."""
    found, current = [], None
    for row in rows:
        time = row[3]
        if current is not None:
            first, latest, members = current
            end = None
            if time >= first + most or time >= latest + gap:
                end = min(latest + gap, first + most)
            elif ends(row):
                end = max(latest, time)
                members += [row] if kept[1] == "]" else []
            else:
                current = (first, max(latest, time), [*members, row])
                continue
            if members:
                found.append((members[0][3], end, members))
            current = None
        if begins(row):
            current = (time, time, [row] if kept[0] == "[" else [])
    return found


def windows(rows: list[Row], slide: int, size: int, delay: int) -> list[tuple[int, list[Row]]]:
    """The closed windows of one substream: start, rows that were not late."""
    greatest = max(r[3] for r in rows)
    members: dict[int, list[Row]] = {}
    seen = -(10**9)
    for row in rows:
        for start in range(row[3] // slide * slide, row[3] - size, -slide):
            if start + size + delay > seen:
                members.setdefault(start, []).append(row)
        seen = max(seen, row[3])
    return [(start, found) for start, found in members.items() if start + size + delay <= greatest]


def first_rows(rows: list[Row], length: int) -> list[Row]:
    """The rows of one key that are not within `length` seconds of the last one that was kept."""
    found: list[Row] = []
    for row in rows:
        if not found or row[3] >= found[-1][3] + length:
            found.append(row)
    return found


def grouped(found: list[tuple[int, int, list[Row]]], *key: str) -> list[tuple]:
    return [(*key, at(start), at(end), len(members), sum(r[2] for r in members)) for start, end, members in found]


def at(second: int) -> dt.datetime:
    return START + dt.timedelta(seconds=second)


def key(row: Row) -> str:
    return row[1]


def is_one(row: Row) -> bool:
    return row[2] == 1


def is_four(row: Row) -> bool:
    return row[2] == 4


TOTALS = "window_start, window_end, count() AS c, sum(v) AS t"
#: By view: its query, and its rows by the rules.
VIEWS: dict[str, tuple[str, Callable[[list[Row]], list[tuple]]]] = {
    "whole": (
        f"SELECT {TOTALS} FROM session(s, 10s) GROUP BY window_start, window_end",
        lambda rows: grouped(sessions(rows, 10, 50)),
    ),
    "by_key": (
        f"SELECT k, {TOTALS} FROM session(s, 10s, 25s) GROUP BY k, window_start, window_end",
        lambda rows: [g for one in of_keys(rows, key) for g in grouped(sessions(one, 10, 25), one[0][1])],
    ),
    **{
        f"between{number}": (
            f"SELECT k, {TOTALS} FROM session(s, _tp_time, 10s, 1m, {kept[0]}v = 1, v = 4{kept[1]}) "  # noqa: ISC004
            "PARTITION BY k GROUP BY window_start, window_end",
            lambda rows, kept=kept: [
                g
                for one in of_keys(rows, key)
                for g in grouped(sessions(one, 10, 60, is_one, is_four, kept), one[0][1])
            ],
        )
        for number, kept in enumerate(("[]", "[)", "(]", "()"))
    },
    "tumbled": (
        "SELECT k, window_start, count() AS c FROM tumble(s, 10s) PARTITION BY k GROUP BY window_start",
        lambda rows: [(o[0][1], at(w), len(m)) for o in of_keys(rows, key) for w, m in windows(o, 10, 10, 0)],
    ),
    "hopped": (
        "SELECT k, window_start, count() AS c FROM hop(s, 4s, 10s) PARTITION BY k GROUP BY window_start "  # noqa: ISC004
        "EMIT AFTER WINDOW CLOSE WITH DELAY 3s",
        lambda rows: [(o[0][1], at(w), len(m)) for o in of_keys(rows, key) for w, m in windows(o, 4, 10, 3)],
    ),
    "once": ("SELECT n FROM dedup(s, k)", lambda rows: [(o[0][0],) for o in of_keys(rows, key)]),
    "again": (
        "SELECT n FROM dedup(s, k, v, 20s)",
        lambda rows: [(r[0],) for o in of_keys(rows, lambda r: r[1:3]) for r in first_rows(o, 20)],
    ),
    "two": (
        "SELECT n FROM s LIMIT 2 BY v",
        lambda rows: [(r[0],) for o in of_keys(rows, lambda r: r[2]) for r in o[:2]],
    ),
    "counted": (
        "SELECT k, count() AS c FROM s PARTITION BY k",
        lambda rows: [(o[0][1], len(o)) for o in of_keys(rows, key)],
    ),
    "each": (
        "SELECT k, count() AS c, sum(v) AS t FROM s GROUP BY k EMIT PER EVENT",
        lambda rows: [
            (o[0][1], i, sum(r[2] for r in o[:i])) for o in of_keys(rows, key) for i in range(1, len(o) + 1)
        ],
    ),
    "lagged": (
        "SELECT n, lag(v) AS one, lag(v, 2, 7) AS two FROM s PARTITION BY k",
        lambda rows: [
            (r[0], o[i - 1][2] if i else 0, o[i - 2][2] if i > 1 else 7)
            for o in of_keys(rows, key)
            for i, r in enumerate(o)
        ],
    ),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_windows_of_arrivals(seed, tmp_path):
    rng = random.Random(seed)
    connection = watersmeet.connect(tmp_path / "db", "timeplus", runtime="inprocess", parallelism=rng.choice([1, 3]))
    connection.execute("CREATE STREAM s(n int, k string, v int); CREATE STREAM target(k string, c uint64, t int64)")
    for name, (query, _) in VIEWS.items():
        connection.execute(f"CREATE MATERIALIZED VIEW {name} AS {query}")
    connection.execute(
        "CREATE MATERIALIZED VIEW fed INTO target AS SELECT k, count() AS c, sum(v) AS t FROM session(s, 10s, 25s) "
        "GROUP BY k, window_start"
    )
    rows: list[Row] = []
    second = 0
    for _ in range(rng.randint(6, 12)):
        if rng.random() < 0.15:
            connection.close()
            connection = watersmeet.connect(tmp_path / "db", "timeplus", runtime="inprocess")
        new = []
        for _ in range(rng.randint(1, 6)):
            second += rng.choice([0, 1, 3, 6, 12, 40])
            time = second - rng.choice([0, 0, 0, 2, 9, 30])
            new.append((len(rows) + len(new), rng.choice("ab"), rng.randrange(6), time))
        rows += new
        values = ", ".join(f"({n}, '{k}', {v}, '{at(t)}')" for n, k, v, t in new)
        connection.execute(f"INSERT INTO s(n, k, v, _tp_time) VALUES {values}; FLUSH")
    for name, (_, model) in VIEWS.items():
        found = Counter(connection.execute(f"SELECT * FROM table({name})").fetchall())
        assert found == Counter(model(rows)), name
    written = connection.execute("SELECT k, c, t FROM table(target)").fetchall()
    assert Counter(written) == Counter((k, c, t) for k, _, _, c, t in VIEWS["by_key"][1](rows))
    connection.close()


class Idle:
    """The rules of TIMEOUT 7s for windows of 10 seconds, sessions of gap 10 and keys with a span of 12.

    Each method has the rows of one epoch, in the order of arrival, and the moment of the epoch.
    """

    def __init__(self) -> None:
        self.out: dict[str, list[tuple]] = {"whole": [], "divided": [], "sessions": [], "keys": [], "long": []}
        self.clock: int | None = None
        self.open: dict[int, int] = {}
        self.last, self.risen = 0, False
        self.waiting: dict[tuple[str, str], list[Row]] = {}
        self.arrived: dict[tuple[str, str], int] = {}

    def epoch(self, rows: list[Row], now: int) -> None:
        for view, one in list(self.arrived):
            if now - self.arrived[view, one] >= 7:
                self.end(view, one)
        self.whole(rows, now)
        for view, step in (("divided", self.divided), ("sessions", self.sessions), ("keys", self.keys)):
            for members in of_keys(rows, key):
                one = members[0][1]
                before = len(rows) and self.waiting.get((view, one), [])
                found = step(one, [*before, *members])
                self.waiting[view, one] = found
                if any(r in members for r in found):
                    self.arrived[view, one] = now
                if not found:
                    self.arrived.pop((view, one), None)

    def end(self, view: str, one: str) -> None:
        """The windows of a key without rows for 7 seconds."""
        rows = self.waiting.pop((view, one))
        del self.arrived[view, one]
        times = [r[3] for r in rows]
        if view == "divided":
            for start in sorted({t // 10 * 10 for t in times}):
                self.out[view].append((one, at(start), sum(t // 10 * 10 == start for t in times)))
        elif view == "sessions":
            self.out[view].append((one, at(times[0]), at(min(max(times) + 10, times[0] + 50)), len(rows)))
        else:
            self.out[view].append((one, len(rows)))

    def whole(self, rows: list[Row], now: int) -> None:
        if not rows and self.open and not self.risen and now - self.last >= 7 and self.clock is not None:
            self.clock, self.risen = self.clock + 12, True
        for row in rows:
            start = row[3] // 10 * 10
            if self.clock is None or start + 12 > self.clock:
                self.open[start] = self.open.get(start, 0) + 1
        if rows:
            self.last, self.risen = now, False
            self.clock = max(r[3] for r in rows) if self.clock is None else max(self.clock, *(r[3] for r in rows))
        for start in [s for s in self.open if self.clock is not None and s + 12 <= self.clock]:
            self.out["whole"].append((at(start), self.open.pop(start)))

    def divided(self, one: str, rows: list[Row]) -> list[Row]:
        old = len(self.waiting.get(("divided", one), []))
        greatest = max(r[3] for r in rows)
        seen = max((r[3] for r in rows[:old]), default=-(10**9))
        kept = rows[:old]
        for row in rows[old:]:
            seen = max(seen, row[3])
            if row[3] // 10 * 10 + 10 > seen:
                kept.append(row)
        for start in sorted({r[3] // 10 * 10 for r in kept}):
            if start + 10 <= greatest:
                self.out["divided"].append((one, at(start), sum(r[3] // 10 * 10 == start for r in kept)))
        return [r for r in kept if r[3] // 10 * 10 + 10 > greatest]

    def sessions(self, one: str, rows: list[Row]) -> list[Row]:
        found = sessions(rows, 10, 50)
        self.out["sessions"] += [(one, at(start), at(end), len(members)) for start, end, members in found]
        return rows[sum(len(members) for _, _, members in found) :]

    def keys(self, one: str, rows: list[Row]) -> list[Row]:
        current: list[Row] = []
        for row in rows:
            current.append(row)
            times = [r[3] for r in current]
            if max(times) - min(times) > 12:
                self.out["keys"].append((one, len(current)))
                self.out["long"].append((one, len(current)))
                current = []
        return current


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_windows_of_idle_streams(seed, tmp_path):
    rng = random.Random(seed)
    connection = watersmeet.connect(tmp_path / "db", "timeplus", runtime="inprocess", parallelism=rng.choice([1, 3]))
    model, now, rows, second = Idle(), 0, [], 0

    def set_clock() -> None:
        Harness(connection).set_clock(round((START - dt.datetime(1970, 1, 1)).total_seconds() * 1e6) + now * 1_000_000)

    set_clock()
    connection.execute("CREATE STREAM s(n int, k string, v int)")
    counted = "SELECT k, count() AS c FROM s GROUP BY k EMIT AFTER KEY EXPIRE"
    for name, query in {
        "whole": "SELECT window_start, count() AS c FROM tumble(s, 10s) GROUP BY window_start "
        "EMIT AFTER WINDOW CLOSE WITH DELAY 2s AND TIMEOUT 7s",
        "divided": "SELECT k, window_start, count() AS c FROM tumble(s, 10s) PARTITION BY k GROUP BY window_start "
        "EMIT TIMEOUT 7s",
        "sessions": "SELECT k, window_start, window_end, count() AS c FROM session(s, 10s) "
        "GROUP BY k, window_start, window_end EMIT AFTER WINDOW CLOSE AND TIMEOUT 7s",
        "keys": f"{counted} IDENTIFIED BY _tp_time WITH MAXSPAN 12s AND TIMEOUT 7s",
        "long": f"WITH g AS ({counted} WITH ONLY MAXSPAN 12s AND TIMEOUT 7s) SELECT * FROM g",
    }.items():
        connection.execute(f"CREATE MATERIALIZED VIEW {name} AS {query}")
    for _ in range(rng.randint(8, 14)):
        now += rng.choice([0, 1, 2, 5, 9, 15])
        set_clock()
        if rng.random() < 0.15:
            connection.close()
            connection = watersmeet.connect(tmp_path / "db", "timeplus", runtime="inprocess")
            set_clock()
            model.last = now  # the time without rows counts from the start of the process
        new = []
        for _ in range(rng.choice([0, 0, 1, 2, 5])):
            second += rng.choice([0, 1, 3, 6, 14])
            new.append((len(rows) + len(new), rng.choice("ab"), 0, second - rng.choice([0, 0, 2, 9])))
        rows += new
        values = ", ".join(f"({n}, '{k}', {v}, '{at(t)}')" for n, k, v, t in new)
        connection.execute(f"INSERT INTO s(n, k, v, _tp_time) VALUES {values}; FLUSH" if new else "FLUSH")
        model.epoch(new, now)
        for name, expected in model.out.items():
            assert Counter(connection.execute(f"SELECT * FROM table({name})").fetchall()) == Counter(expected), name
    connection.close()

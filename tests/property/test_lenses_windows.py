"""Windows and aggregates of Lenses over random histories, against plain Python written from the rules: late records,
tombstones, NULL keys, restarts, any cut into epochs.

LS-49 to LS-58.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import groupby

import pytest

import watersmeet
from tests.thorough import THOROUGH, mostly_slow

SEEDS = mostly_slow(range(30 if THOROUGH else 10), 2)
BEGIN = datetime(2021, 1, 1)
#: The select list, and the functions of the model in the same order, of the values that arrived in a group.
CALLS = (
    "COUNT(*) AS n, SUM(x) AS s, MINK(x, 2) AS least, MAXK_UNIQUE(x, 2) AS greatest, TOPK(x, 2) AS often, "
    "BOTTOMK(x, 1) AS rarely"
)
ORDERED = "FIRST(x) AS f, LAST(x) AS l, COLLECT(x, 2) AS c2, COLLECT_UNIQUE(x, 2) AS u2"


def ranked(values, sign):
    counts = Counter(values)
    return sorted(counts, key=lambda v: (sign * counts[v], v))


def figures(values):
    there = [v for v in values if v is not None]
    return (
        len(values),
        sum(there) if there else None,
        sorted(there)[:2],
        sorted(set(there), reverse=True)[:2],
        ranked(there, -1)[:2],
        ranked(there, 1)[:1],
    )


def in_order(values):
    there = [v for v in values if v is not None]
    return values[0], values[-1], there[:2], list(dict.fromkeys(there))[:2]


@dataclass(frozen=True)
class Row:
    """A record. time: seconds; at: the field of EVENTTIME BY."""

    key: int
    group: str | None
    x: int | None
    time: int
    at: int | None


@dataclass
class Windowed:
    """A processor over the stream. size None: sessions. counted: the records that were not late, with their windows."""

    text: str
    by_field: bool
    size: int | None
    advance: int
    grace: int
    least: int
    counted: list[tuple[Row, int]] = field(default_factory=list)
    clock: int | None = None

    def time(self, row):
        return row.at if self.by_field else row.time

    def starts(self, time):
        last = time // self.advance * self.advance
        return [s for s in range(last, last - self.size, -self.advance) if s + self.size > time]

    def epoch(self, rows):
        for row in rows:
            time = self.time(row)
            if time is None or row.group is None or (row.x or 0) < self.least:
                continue
            for start in [time] if self.size is None else self.starts(time):
                end = start + (self.advance if self.size is None else self.size - 1)
                if self.clock is None or end + self.grace >= self.clock:
                    self.counted.append((row, start))
        times = [t for t in map(self.time, rows) if t is not None]
        self.clock = max([*times, *([] if self.clock is None else [self.clock])], default=None)

    def content(self):
        """By (group, start, end) the figures of each window."""
        found = {}
        for group in {r.group for r, _ in self.counted}:
            own = [(r, s) for r, s in self.counted if r.group == group]
            if self.size is None:
                for session in self.sessions(sorted((r for r, _ in own), key=self.time)):
                    found[group, self.time(session[0]), self.time(session[-1])] = session
            else:
                for start, rows in groupby(sorted(own, key=lambda pair: pair[1]), lambda pair: pair[1]):
                    found[group, start, None] = [r for r, _ in rows]
        return {
            key: (
                *figures([r.x for r in rows]),
                *(() if self.size is None else in_order([r.x for r in rows])),
                max(map(self.time, rows)),
            )
            for key, rows in found.items()
        }

    def sessions(self, rows):
        current = []
        for row in rows:
            if current and self.time(row) - self.time(current[-1]) > self.advance:
                yield current
                current = []
            current.append(row)
        if current:
            yield current


def as_time(seconds):
    return None if seconds is None else BEGIN + timedelta(seconds=seconds)


def literal(value):
    return "NULL" if value is None else f"'{value}'" if isinstance(value, str) else str(value)


class Histories:
    """A topic, processors over it, and their models."""

    def __init__(self, rng, path):
        self.rng, self.path, self.now, self.history = rng, path, 30, []
        self.last: dict[int, Row] = {}
        self.models: dict[str, Windowed] = {}
        self.connection = watersmeet.connect(path, "lenses", runtime="inprocess", parallelism=rng.choice([1, 3]))
        self.execute("SET defaults.topic.autocreate=true")
        self.execute("CREATE TABLE e (_key int, g string null, x int null, details.at long null) FORMAT (INT, AVRO)")

    def execute(self, text):
        return self.connection.execute(text)

    def make(self, name):
        rng = self.rng
        by_field, grace, least = rng.random() < 0.5, rng.choice([0, 2, 5]), rng.choice([0, 0, 2])
        size, advance = rng.choice([(5, 5), (5, 2), (6, 3), (None, 3), (None, 1)])
        kind = f"SESSION {advance}s" if size is None else f"HOP {size}s, {advance}s"
        if size == advance:
            kind = f"TUMBLE {size}s"
        model = Windowed(kind, by_field, size, advance, grace, least)
        calls = CALLS if size is None else f"{CALLS}, {ORDERED}"
        event_time = "EVENTTIME BY details.at" if by_field else ""
        where = f"WHERE coalesce(x, 0) >= {least}" if least else ""
        self.execute(
            f"INSERT INTO {name} SELECT STREAM {calls} FROM e {event_time} {where} WINDOW BY {kind} "
            f"GRACE BY {grace}s GROUP BY g"
        )
        model.epoch(self.history)  # history is never late
        if by_field:
            model.clock = None
        self.models[name] = model

    def epoch(self):
        rng, rows = self.rng, []
        for _ in range(rng.choice([1, 1, 2, 4, 6])):
            self.now += rng.choice([0, 0, 1, 2, 5])
            time = self.now - rng.choice([0, 0, 0, 1, 4, 9, 15])
            at = rng.choice([None, time, time, time - 2, self.now])
            rows.append(Row(rng.randrange(4), rng.choice("aabbc") if rng.random() < 0.9 else None,
                            rng.choice([None, 1, 2, 3, 4]), time, at))  # fmt: skip
        values = ", ".join(
            f"({r.key}, {literal(r.group)}, {literal(r.x)}, {literal(None if r.at is None else ms(r.at))}, "
            f"TIMESTAMP '{as_time(r.time)}')"
            for r in rows
        )
        self.execute(f"INSERT INTO e (_key, g, x, details.at, `@time`) VALUES {values}")
        self.execute("FLUSH")
        self.history += rows
        self.last |= {r.key: r for r in rows}
        for model in self.models.values():
            model.epoch(rows)

    def read(self, query):
        """The content of a table."""
        running = self.connection.start(query)
        self.execute("FLUSH")
        rows, diff = running.take()
        running.close()
        found = Counter()
        for row, count in zip(rows.to_pylist(), diff.tolist(), strict=True):
            found[repr(tuple(row.values()))] += count
        return +found

    def check(self):
        for name, model in self.models.items():
            columns = "n, s, least, greatest, often, rarely" + ("" if model.size is None else ", f, l, c2, u2")
            end = "_key.window.end" if model.size is None else "NULL"
            found = self.read(
                f"SELECT TABLE _key.value AS k, _key.window.start AS s0, {end} AS e0, {columns}, "
                f"_meta.timestamp AS t FROM {name}"
            )
            expected = Counter(
                repr((group, as_time(start), as_time(last), *shown, as_time(time)))
                for (group, start, last), (*shown, time) in model.content().items()
            )
            assert found == expected, (name, model.text, found - expected, expected - found)
        groups = {}
        for row in self.last.values():
            groups.setdefault(row.group, []).append(row.x)
        expected = Counter(repr((g, *figures(v))) for g, v in groups.items() if g is not None)
        assert self.read(f"SELECT TABLE g, {CALLS} FROM e GROUP BY g") == expected

    def restart(self):
        self.connection.close()
        self.connection = watersmeet.connect(self.path, "lenses", runtime="inprocess")
        self.execute("SET defaults.topic.autocreate=true")


def ms(seconds):
    return round((as_time(seconds) - datetime(1970, 1, 1)).total_seconds()) * 1000


@pytest.mark.parametrize("seed", SEEDS)
def test_windows(seed, tmp_path):
    rng = random.Random(seed)
    histories = Histories(rng, tmp_path / "db")
    for number in range(3):
        histories.make(f"w{number}")
    epochs = rng.randint(4, 9)
    for number in range(epochs):
        histories.epoch()
        if number == epochs // 2:
            histories.restart()
            histories.make("late")
    histories.check()
    histories.connection.close()

"""Joins of two sources with watermarks, end to end: after every delivery views equal the reference over the rows that
were not late.

The reference is written from the rules alone: a source drops what is below its greatest time of earlier deliveries less
its delay (RW-37), and a join is its nested loops (RW-42 to RW-46, RA-12 to RA-16). Afterwards the state is empty
(RW-41, RW-47).
"""

from __future__ import annotations

import datetime as dt
import random
from collections import Counter

import pyarrow as pa
import pytest

from tests import reference
from tests.harness import Harness, connect_without_connectors
from tests.thorough import mostly_slow

START = dt.datetime(2024, 1, 1)
FAR = dt.datetime(2025, 1, 1)
KINDS = {"i": "JOIN", "l": "LEFT JOIN", "r": "RIGHT JOIN", "f": "FULL JOIN"}


class Source:
    """A source, by its rule."""

    def __init__(self, name, delay):
        self.name, self.delay = name, delay
        self.number = None
        self.late = False
        self.rows = Counter()

    def deliver(self, rows):
        self.late |= any(r[1] is not None and self.number is not None and r[1] < self.number for r in rows)
        self.rows.update(r for r in rows if r[1] is None or self.number is None or r[1] >= self.number)
        times = [r[1] for r in rows if r[1] is not None]
        if times:
            self.number = (
                max(times) - dt.timedelta(seconds=self.delay)
                if self.number is None
                else max(self.number, max(times) - dt.timedelta(seconds=self.delay))
            )

    @property
    def create(self):
        return (
            f"CREATE SOURCE {self.name} (k INT, ts TIMESTAMP, v INT, WATERMARK FOR ts AS ts - INTERVAL "
            f"'{self.delay} seconds') "
            "WITH (connector = 'datagen')"
        )


class Case:
    """Which rows meet: by a window, by an interval, by the same time; in SQL and in Python."""

    def __init__(self, rng):
        self.how = rng.choice(["interval", "interval", "interval", "window", "time"])
        self.size = rng.choice([5, 20])
        self.lo, self.hi = sorted(rng.sample(range(-20, 20), 2))
        if rng.random() < 0.3:
            self.lo, self.hi = rng.choice([(self.lo, None), (None, self.hi), (self.hi, self.lo)])
        self.residual = rng.random() < 0.4

    def condition(self, left, right):
        parts = [f"{left}.k = {right}.k"]
        if self.how == "time":
            parts.append(f"{left}.ts = {right}.ts")
        elif self.how == "window":
            parts.append(f"{left}.window_start = {right}.window_start")
        else:
            parts += [] if self.lo is None else [f"{left}.ts - INTERVAL '{self.lo} seconds' >= {right}.ts"]
            parts += [] if self.hi is None else [f"{left}.ts <= {right}.ts + INTERVAL '{self.hi} seconds'"]
        return " AND ".join([*parts, f"{left}.v < {right}.v"] if self.residual else parts)

    def relation(self, name):
        return f"TUMBLE({name}, ts, INTERVAL '{self.size} seconds') {name}" if self.how == "window" else name

    def views(self):
        for name, kind in KINDS.items():
            yield (
                name,
                (
                    f"SELECT a.k, a.ts, a.v, b.k AS k2, b.ts AS t2, b.v AS v2 FROM {self.relation('a')} {kind} "
                    f"{self.relation('b')} ON {self.condition('a', 'b')}"
                ),
            )
        exists = f"SELECT * FROM {self.relation('b')} WHERE {self.condition('a', 'b')}"
        yield "s", f"SELECT a.k, a.ts, a.v FROM {self.relation('a')} WHERE EXISTS ({exists})"
        yield "n", f"SELECT a.k, a.ts, a.v FROM {self.relation('a')} WHERE NOT EXISTS ({exists})"

    def meets(self, left, right):
        if left[0] is None or left[0] != right[0] or left[1] is None or right[1] is None:
            return False
        if self.residual and left[2] >= right[2]:
            return False
        one, other = ((t[1] - START).total_seconds() for t in (left, right))
        if self.how == "time":
            return one == other
        if self.how == "window":
            return one // self.size == other // self.size
        return (self.lo is None or one - other >= self.lo) and (self.hi is None or one - other <= self.hi)

    def expected(self, name, left, right):
        kind = {"i": "inner", "l": "left", "r": "right", "f": "full", "s": "semi", "n": "anti"}[name]
        output = reference.columns(*[f"{n}{i}" for n in ("l" if name in "sn" else "lr") for i in range(3)])
        return reference.join(
            kind,
            left,
            right,
            left_keys=(),
            right_keys=(),
            null_safe=(),
            residual=self.meets,
            output=output,
            left_width=3,
            right_width=3,
        )

    @property
    def cleans_both(self):
        return self.how != "interval" or (self.lo is not None and self.hi is not None)


def table(rows):
    return pa.table(
        {
            "k": pa.array([r[0] for r in rows], pa.int32()),
            "ts": pa.array([r[1] for r in rows], pa.timestamp("us")),
            "v": pa.array([r[2] for r in rows], pa.int32()),
        }
    )


def delivery(rng, around, size):
    times = [rng.choice([around + rng.randint(-25, 5)] * 9 + [None]) for _ in range(rng.randrange(1, size))]
    return [
        (rng.choice([1, 1, 2, 3, None]), None if t is None else START + dt.timedelta(seconds=t), rng.randrange(3))
        for t in times
    ]


def run(seed, path, parallelism, runtime="inprocess", deliveries=8):
    rng = random.Random(seed)
    case = Case(rng)
    sources = [Source(n, rng.choice([0, 5, 20])) for n in "ab"]

    def connect():
        return connect_without_connectors(path, runtime=runtime, parallelism=parallelism)

    connection = connect()
    cursor = connection.cursor()
    for source in sources:
        cursor.execute(source.create)
    views = dict(case.views())
    later = rng.choice(list(views)) if rng.random() < 0.5 else None
    for name, query in views.items():
        if name != later:
            cursor.execute(f"CREATE MATERIALIZED VIEW {name} AS {query}")
    around = [0, 0]
    shown = [n for n in views if n != later]
    for number in range(deliveries):
        if later not in [None, *shown] and number > 2 and not any(s.late for s in sources):
            # the history of sources has rows that were late when they came: nobody was there to drop them
            cursor.execute(f"CREATE MATERIALIZED VIEW {later} AS {views[later]}")
            shown.append(later)
        for side, source in enumerate(sources):
            around[side] += rng.choice([0, 1, 5, 25])
            if rng.random() < 0.8:
                rows = delivery(rng, around[side], 8)
                Harness(connection).inject(source.name, table(rows))
                source.deliver(rows)
        cursor.execute("FLUSH")
        if rng.random() < 0.2:
            connection.close()
            connection = connect()
            cursor = connection.cursor()
        check(cursor, case, shown, sources)
    for source in sources:  # a row that can't match moves the watermark and is not kept
        Harness(connection).inject(source.name, table([(None, FAR, 0)]))
        source.deliver([(None, FAR, 0)])
    cursor.execute("FLUSH")
    check(cursor, case, shown, sources)
    if case.cleans_both:
        for name in shown:
            assert Harness(connection).join_state(name) == {"left": 0, "right": 0}
        assert all(v["state_rows"] == v["state_bytes"] == 0 for v in connection.status()["views"])
    connection.close()


def check(cursor, case, names, sources):
    for name in names:
        found = Counter(map(reference.row, cursor.execute(f"SELECT * FROM {name}").fetchall()))
        assert found == case.expected(name, *[s.rows for s in sources]), (name, case.how)


@pytest.mark.parametrize("seed", mostly_slow(range(24), 2))
def test_random_histories(seed, tmp_path):
    run(seed, tmp_path / "db", parallelism=1 + seed // 6 % 3)

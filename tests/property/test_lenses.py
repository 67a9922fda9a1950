"""The joins of the Lenses dialect on random histories, against plain Python: late records, tombstones, restarts, any
cut into epochs.

LS-06 to LS-11, LS-18 to LS-30, LS-43.
"""

from __future__ import annotations

import random
from collections import Counter
from datetime import datetime
from itertools import pairwise

import pytest

import watersmeet
from tests.harness import Harness
from tests.lenses_reference import Followed, On, Record, StreamTable, Table, TableTable, Within, always
from tests.thorough import THOROUGH, mostly_slow

#: 260200595: a row of history had met another one in an epoch before, whose end gave it a later time.
REGRESSIONS: list[int] = [260200595]
SEEDS = mostly_slow([*REGRESSIONS, *range(30 if THOROUGH else 12)], 0)

WIDTHS = (2, 2)
#: A tombstone, as its topic shows it.
NO_ROW = (None,) * 4
KEY, FIRST = (lambda r: r.key), (lambda r: r.value[0])
NEXT = lambda r: None if r.value[0] is None else r.value[0] + 1
KINDS = {"inner": "INNER", "left": "LEFT", "right": "RIGHT", "full": "OUTER"}
#: ON and what it means.
CONDITIONS = {
    "": On((KEY, KEY), (always, always), by_key=True),
    "ON a.c = b.c": On((FIRST, FIRST), (always, always), by_key=False),
    "ON a.c = b.c AND b.y > 40": On((FIRST, FIRST), (always, lambda y: y.value[1] > 40), by_key=False),
    "ON a.c + 1 = b._key AND a.x > 20": On((NEXT, KEY), (lambda x: x.value[1] > 20, always), by_key=False),
    "ON b.y > 30": On((KEY, KEY), (always, lambda y: y.value[1] > 30), by_key=True),
}


#: WHERE and what it means for a row (ac, x, bc, y).
FILTERS = {
    "": lambda row: True,
    "WHERE a.x > 15": lambda row: row[1] is not None and row[1] > 15,
    "WHERE b.y > 25": lambda row: row[3] is not None and row[3] > 25,
    "WHERE b.y IS NULL OR a.x IS NULL": lambda row: row[3] is None or row[1] is None,
    "WHERE a.x > b.y": lambda row: None not in (row[1], row[3]) and row[1] > row[3],
}


def at(seconds):
    return f"2021-01-01 00:{seconds // 60:02}:{seconds % 60:02}"


def seconds(time):
    return round((time - datetime(2021, 1, 1)).total_seconds())


class Histories:
    """Two topics a and b, and processors over them."""

    def __init__(self, rng, path):
        self.rng = rng
        self.path = path
        self.connection = watersmeet.connect(path, "lenses", runtime="inprocess", parallelism=rng.choice([1, 3]))
        self.number = 0
        self.now = 60
        self.tables = Table(), Table()
        self.streams = {}
        self.looked_up = {}
        self.followed = {}
        self.shown = {
            "passed": Followed(lambda group: group[0].value if group[0].value[1] % 3 else None),
            "counted": Followed(lambda group: (group[0].value[0], len(group)) if len(group) < 3 else None, FIRST),
        }
        self.filters = {}
        self.history = [], []
        self.execute("SET defaults.topic.autocreate=true")
        counts = rng.choice([(1, 1), (2, 3), (4, 1)])
        for name, payload, count in (("a", "x", counts[0]), ("b", "y", counts[1])):
            self.execute(
                f"CREATE TABLE {name} (_key int, c int null, {payload} int) FORMAT (INT, AVRO) PROPERTIES "
                f"(partitions={count})"
            )

    def execute(self, text):
        return self.connection.execute(text)

    def processor(self, name, left, right, kind, on, within=""):
        """left, right: what a and b are."""
        where = self.rng.choice([*FILTERS, "", ""])
        self.filters[name] = FILTERS[where]
        self.execute(
            f"WITH a AS (SELECT {left} * FROM a); WITH b AS (SELECT {right} * FROM b); "
            f"INSERT INTO {name} SELECT STREAM a.c AS ac, a.x, b.c AS bc, b.y FROM a {KINDS[kind]} JOIN b "
            f"{on} {within} {where}"
        )

    def make(self):
        rng = self.rng
        for kind in KINDS:
            on, within, grace = rng.choice(list(CONDITIONS)), rng.choice([2, 5]), rng.choice([None, 0, 0, 3])
            self.streams[f"ss_{kind}"] = Within(kind, within, CONDITIONS[on], WIDTHS, grace=grace)
            period = "" if grace is None else f" GRACE PERIOD {grace}s"
            self.processor(f"ss_{kind}", "STREAM", "STREAM", kind, on, f"WITHIN {within}s{period}")
            on = rng.choice(list(CONDITIONS))
            self.processor(f"tt_{kind}", "TABLE", "TABLE", kind, on)
            self.followed[f"tt_{kind}"] = TableTable(kind, CONDITIONS[on], WIDTHS, self.filters[f"tt_{kind}"])
        self.execute("INSERT INTO passed SELECT TABLE c, x FROM a WHERE x % 3 > 0")
        self.execute("INSERT INTO counted SELECT TABLE c, COUNT(*) AS n FROM a GROUP BY c HAVING COUNT(*) < 3")
        for kind in ("inner", "left"):
            on = rng.choice(list(CONDITIONS))
            self.looked_up[f"st_{kind}"] = StreamTable(kind, CONDITIONS[on], WIDTHS)
            self.processor(f"st_{kind}", "STREAM", "TABLE", kind, on)
        on = rng.choice(list(CONDITIONS))
        self.looked_up["ts_right"] = StreamTable("right", CONDITIONS[on].turned(), WIDTHS)
        self.processor("ts_right", "TABLE", "STREAM", "right", on)

    def make_late(self):
        """Processors over what is there: in history nothing is late, and records look up the tables as they are now."""
        on = self.rng.choice(list(CONDITIONS))
        self.processor("ss_late", "STREAM", "STREAM", "full", on, "WITHIN 3s GRACE PERIOD 1s")
        self.streams["ss_late"] = Within("full", 3, CONDITIONS[on], WIDTHS, grace=1)
        self.streams["ss_late"].epoch(*self.history)
        self.processor("st_late", "STREAM", "TABLE", "left", on)
        self.looked_up["st_late"] = StreamTable("left", CONDITIONS[on], WIDTHS)
        self.looked_up["st_late"].epoch(self.history[0], self.tables[1])
        self.processor("tt_late", "TABLE", "TABLE", "full", on)
        late = self.followed["tt_late"] = TableTable("full", CONDITIONS[on], WIDTHS, self.filters["tt_late"])
        late.epoch(*(Table(dict(t.content), {}, dict(t.content)) for t in self.tables))
        # It may take more epochs than one to read history, each with its changes: what it ends with is there, at that
        # time or later.
        self.execute("FLUSH")
        topic = self.topic("tt_late")
        for row, time in late.log:
            assert any((row or NO_ROW) == shown and time <= later for shown, later in topic), (row, time, topic)
        late.log = [*topic]

    def records(self):
        """Some records, mostly in order, some late, some tombstones."""
        rng, found = self.rng, []
        for _ in range(rng.choice([0, 1, 2, 4])):
            self.number += 1
            self.now += rng.choice([0, 0, 1, 3])
            time = max(0, self.now - rng.choice([0, 0, 0, 1, 3, 6, 12]))
            value = (rng.choice([None, 1, 2, 3]), self.number) if rng.random() < 0.85 else None
            found.append(Record(rng.randrange(1, 5), value, time))
        return found

    def epoch(self):
        came = self.records(), self.records()
        parts = []
        for name, records in zip("ab", came, strict=True):
            cuts = sorted(self.rng.sample(range(len(records) + 1), self.rng.randint(0, min(2, len(records)))))
            parts += [(name, records[i:j]) for i, j in pairwise([0, *cuts, len(records)]) if i < j]
        # transactions of both topics in any order, each topic's in its own, are one epoch
        order = sorted(range(len(parts)), key=lambda i: (self.rng.random() if len(came[0]) % 2 else 0, i))
        merged = {name: iter([p for p in parts if p[0] == name]) for name in "ab"}
        for i in order:
            name, records = next(merged[parts[i][0]])
            payload = "xy"["ab".index(name)]
            rows = [
                [
                    str(r.key),
                    *(["NULL", "NULL"] if r.value is None else map(str, r.value)),
                    at(r.time),
                    "true" if r.value is None else "false",
                ]
                for r in records
            ]
            rows = [[None if v in ("NULL", "None") else v for v in row] for row in rows]
            Harness(self.connection).deliver(name, rows, ["_key", "c", payload, "@time", "@deleted"])
        before = self.connection.status()["epoch"]
        self.execute("FLUSH")
        assert self.connection.status()["epoch"] <= before + 1
        for table, history, records in zip(self.tables, self.history, came, strict=True):
            table.add(records)
            history.extend(records)
        for one in self.streams.values():
            one.epoch(*came)
        for one in self.followed.values():
            one.epoch(*self.tables)
        for one in self.shown.values():
            one.epoch(self.tables[0])
        for name, one in self.looked_up.items():
            one.epoch(came[name == "ts_right"], self.tables[name != "ts_right"])

    def topic(self, name, columns="ac, x, bc, y"):
        """What a query over tables wrote to its topic: rows and their times."""
        rows = self.execute(f"SELECT {columns}, _meta.timestamp AS t FROM {name}").fetchall()
        return [(tuple(row), seconds(time)) for *row, time in rows]

    def check(self):
        for name, one in {**self.streams, **self.looked_up}.items():
            found = Counter(self.execute(f"SELECT ac, x, bc, y FROM {name}").fetchall())
            given = Counter({(*r[2:], *r[:2]): n for r, n in one.given.items()}) if name == "ts_right" else one.given
            expected = self.filtered(name, given)
            assert found == expected, (name, found - expected, expected - found)
        for name, one in self.shown.items():
            found = Counter(self.topic(name, "*"))
            expected = Counter(((None, None) if row is None else row, time) for row, time in one.log)
            assert found == expected, (name, found - expected, expected - found)
        for name, one in self.followed.items():
            found = Counter(self.topic(name))
            expected = Counter((row or NO_ROW, time) for row, time in one.log)
            assert found == expected, (name, found - expected, expected - found)
            query = self.connection.start(f"SELECT TABLE ac, x, bc, y FROM {name}")
            self.execute("FLUSH")
            rows, diff = query.take()
            found = Counter()
            for row, times in zip(rows.to_pylist(), diff.tolist(), strict=True):
                found[tuple(row.values())] += times
            query.close()
            expected = self.filtered(name, one.content(*self.tables))
            assert Counter({k: n for k, n in found.items() if n}) == expected, (name, found, expected)

    def filtered(self, name, rows):
        return Counter({r: n for r, n in rows.items() if self.filters[name](r)})

    def restart(self):
        self.connection.close()
        self.connection = watersmeet.connect(self.path, "lenses", runtime="inprocess")
        self.execute("SET defaults.topic.autocreate=true")


@pytest.mark.parametrize("seed", SEEDS)
def test_joins(seed, tmp_path):
    rng = random.Random(seed)
    histories = Histories(rng, tmp_path / "db")
    histories.make()
    epochs = rng.randint(5, 14)
    for number in range(epochs):
        if number == epochs // 2:
            histories.make_late()
        histories.epoch()
        if rng.random() < 0.15:
            histories.restart()
        if rng.random() < 0.3:
            histories.check()
    histories.check()
    histories.connection.close()

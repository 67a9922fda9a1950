"""EXPLAIN ROW and EXPLAIN MISSING ROW of views whose rows were decided once: joins ON ARRIVAL and look-ups, against the
rule applied delivery by delivery in plain Python; SQLstream's joins by clocks, whose rows show what they are made of.

The rule (docs/SEMANTICS.md): rows of one epoch find each other. Pairs come with their second row; a row that an outer
join preserves comes alone if it has no partner when it comes; semi, anti, ASOF and temporal joins decide each left row
when it comes. What is explained is exactly what a row was made of.
"""

from __future__ import annotations

import datetime as dt
import random
from collections import Counter
from dataclasses import dataclass, field

import pytest

import watersmeet
from tests.property.lineage_plans import parts, rows_read, rows_shown
from tests.property.test_lineage import condition
from tests.thorough import mostly_slow

OUTER = {"LEFT": "a", "RIGHT": "b", "FULL": "ab"}
PAIRING = ["INNER", *OUTER, "ASOF", "ASOF LEFT", "TEMPORAL", "TEMPORAL LEFT"]
KINDS = [*PAIRING, "SEMI", "ANTI"]


@dataclass
class View:
    """A view of one join. whole: it shows the numbers of its rows, so that no two candidates are equal.

    out: what came out, as values with the rows of tables that they come from.
    """

    kind: str
    whole: bool
    a: list = field(default_factory=list)
    b: list = field(default_factory=list)
    out: list = field(default_factory=list)

    @property
    def sql(self):
        sides = "a" if self.kind in ("SEMI", "ANTI") else "ab"
        shown = [f"{s}.{c}" for s in sides for c in (("rid", "k", "x") if self.whole else ("k", "x"))]
        items = ", ".join(f"{c} AS c{i}" for i, c in enumerate(shown))
        if self.kind in ("SEMI", "ANTI"):
            word = "EXISTS" if self.kind == "SEMI" else "NOT EXISTS"
            return f"SELECT {items} FROM a WHERE {word} (SELECT 1 FROM b WHERE b.k = a.k) EMIT ON ARRIVAL"
        if self.kind.startswith("TEMPORAL"):
            kind = self.kind.removeprefix("TEMPORAL").strip()
            return f"SELECT {items} FROM a {kind} JOIN b FOR SYSTEM_TIME AS OF PROCTIME() ON a.k = b.k"
        near = " AND a.rid >= b.rid" if "ASOF" in self.kind else ""
        return f"SELECT {items} FROM a {self.kind} JOIN b ON a.k = b.k{near} EMIT ON ARRIVAL"

    def shown(self, left, right=None):
        none = (None, None, None)
        both = (left or none,) if self.kind in ("SEMI", "ANTI") else (left or none, right or none)
        lineage = frozenset((s, row[0]) for s, row in (("a", left), ("b", right)) if row is not None)
        return tuple(v for row in both for v in row[0 if self.whole else 1 :]), lineage

    def meet(self, left, right):
        return left[1] is not None and left[1] == right[1] and ("ASOF" not in self.kind or left[0] >= right[0])

    def partners(self, left):
        return [r for r in self.b if self.meet(left, r)]

    def epoch(self, a, b):
        self.a, self.b = self.a + a, self.b + b
        for left in a:
            found = self.partners(left)
            if "ASOF" in self.kind:
                found = [max(found)] if found else []
            if self.kind == "SEMI":
                values, own = self.shown(left)
                self.out += [(values, own | {("b", r[0]) for r in found})] if found else []
            elif self.kind == "ANTI":
                self.out += [] if found else [self.shown(left)]
            else:
                self.out += [self.shown(left, r) for r in found]
                if not found and (self.kind.endswith("LEFT") or self.kind == "FULL"):
                    self.out.append(self.shown(left))
        if self.kind in ("INNER", *OUTER):
            self.out += [self.shown(p, r) for p in self.a if p not in a for r in b if self.meet(p, r)]
        if self.kind in ("RIGHT", "FULL"):
            self.out += [self.shown(None, r) for r in b if not any(self.meet(p, r) for p in self.a)]

    def candidates(self):
        if self.kind == "SEMI":
            return [self.shown(p) for p in self.a if self.partners(p)]
        if self.kind == "ANTI":
            return [self.shown(p) for p in self.a]
        found = [self.shown(p, r) for p in self.a for r in self.partners(p)]
        if self.kind.endswith("LEFT") or self.kind == "FULL":
            found += [self.shown(p) for p in self.a]
        return found + ([self.shown(None, r) for r in self.b] if self.kind in ("RIGHT", "FULL") else [])

    def lineage(self, values):
        """What rows with these values are made of."""
        return frozenset().union(*(lineage for v, lineage in self.out if v == values))


def check(connection, name, view):
    rows = [tuple(r) for r in connection.execute(f"SELECT * FROM {name}").fetchall()]
    assert Counter(rows) == Counter(v for v, _ in view.out), view.sql
    for values in dict.fromkeys(rows):
        where, wanted = condition(dict(enumerate(values))), view.lineage(values)
        lines = connection.execute(f"EXPLAIN ROW SELECT * FROM {name} WHERE {where}").fetchall()
        assert rows_shown(lines) == wanted, (view.sql, values, lines)
    for values, lineage in view.candidates():
        if values in rows:
            continue
        where = condition(dict(enumerate(values)))
        lines = connection.execute(f"EXPLAIN MISSING ROW {name} WHERE {where}").fetchall()
        assert parts(lines[1][0])[1] == "decided", (view.sql, values, lines)
        assert rows_shown(lines) >= lineage


@pytest.mark.parametrize("seed", mostly_slow(range(30), 2, 4))
def test_what_was_decided_on_arrival(seed):
    rng = random.Random(seed)
    decide(rng, [View(kind, whole=rng.random() < 0.5) for kind in rng.sample(KINDS, 4)], [None, 1, 2, 3], [1, 2])


@pytest.mark.parametrize("seed", mostly_slow([2, *range(3, 30)], 1, 3))
def test_rows_that_others_equal(seed):
    """Pairs come with either row, and others of the same values may not have come: history tells them."""
    rng = random.Random(seed)
    decide(rng, [View(kind, whole=False) for kind in ("INNER", *OUTER)], [None, 1, 2], [1])


def decide(rng, chosen, keys, values):
    """Checks views of tables with random rows of these keys and values."""
    with watersmeet.connect(runtime="inprocess", parallelism=1) as connection:
        views = {}
        for name in "ab":
            connection.execute(f"CREATE TABLE {name} (rid INT, k INT, x INT) APPEND ONLY")
        connection.execute("CREATE INDEX by_k ON b (k)")
        for number, view in enumerate(chosen):
            views[f"v{number}"] = view
            connection.execute(f"CREATE MATERIALIZED VIEW v{number} AS {view.sql}")
        numbers = {"a": iter(rng.sample(range(1, 40), 39)), "b": iter(rng.sample(range(1, 40), 39))}
        for _ in range(4):
            came = {
                name: [
                    (next(numbers[name]), rng.choice(keys), rng.choice(values)) for _ in range(rng.choice([0, 1, 2]))
                ]
                for name in "ab"
            }
            for name, rows in came.items():
                for row in rows:
                    connection.execute(f"INSERT INTO {name} VALUES (?, ?, ?)", row)
            connection.flush()
            for view in views.values():
                view.epoch(came["a"], came["b"])
        for name, view in views.items():
            check(connection, name, view)


def read_row(relation, row, values):
    (column,) = [c for c in row if c.upper() == "N"]
    values.setdefault(relation.lower(), set()).add(row[column])


@pytest.mark.parametrize("seed", mostly_slow(range(12), 1, 2))
def test_what_was_decided_by_clocks(seed):
    """The numbers of the rows of both streams are in the view, so a row itself says what it is made of."""
    rng = random.Random(seed)
    kind = rng.choice(["LEFT", "RIGHT", "FULL", "FULL", "INNER"])
    windows = [rng.choice(["", f" OVER (RANGE INTERVAL '{rng.randint(0, 20)}' SECOND PRECEDING)"]) for _ in "ab"]
    with watersmeet.connect(dialect="sqlstream", runtime="inprocess", parallelism=1) as connection:
        for name in "ab":
            connection.execute(f"CREATE STREAM {name} (k INTEGER, n INTEGER)")
        connection.execute("INSERT INTO a (ROWTIME, k, n) VALUES (TIMESTAMP '2018-01-01 00:00:00', 1, -1)")
        connection.execute(
            f"CREATE MATERIALIZED VIEW v AS SELECT STREAM a.n AS na, b.n AS nb FROM a{windows[0]} {kind} JOIN "
            f"b{windows[1]} ON a.k = b.k"
        )
        second = dict.fromkeys("ab", 0)
        for number in range(1, 24):
            name = rng.choice("ab")
            second[name] += rng.choice((0, 1, 3, 7))
            time = dt.datetime(2019, 1, 1) + dt.timedelta(seconds=second[name])
            k = rng.choice(["NULL", "1", "2", "3"])
            connection.execute(f"INSERT INTO {name} (ROWTIME, k, n) VALUES (TIMESTAMP '{time}', {k}, {number})")
            if rng.random() < 0.4:
                connection.flush()
        connection.flush()
        rows = connection.execute("SELECT na, nb FROM v").fetchall()
        assert rows
        for na, nb in rows:
            where = " AND ".join(f"{c} IS NULL" if v is None else f"{c} = {v}" for c, v in (("na", na), ("nb", nb)))
            lines = connection.execute(f"EXPLAIN ROW SELECT * FROM v WHERE {where}").fetchall()
            found = {}
            for relation, row in rows_read(lines, "stream"):
                read_row(relation, row, found)
            assert found == {s: {n} for s, n in (("a", na), ("b", nb)) if n is not None}, lines
        alone = {na for na, nb in rows if nb is None}
        for na in {na for na, nb in rows if nb is not None} - alone - {None} if kind in ("LEFT", "FULL") else ():
            lines = connection.execute(f"EXPLAIN MISSING ROW v WHERE na = {na} AND nb IS NULL").fetchall()
            # a row alone waits a little longer than a pair of the same time
            assert parts(lines[1][0])[1] in ("decided", "Time Filter"), lines
            assert any(parts(step)[1] == "partners" for step, *_ in lines), lines

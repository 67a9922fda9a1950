"""EXPLAIN ROW and EXPLAIN MISSING ROW of groups, windows, LIMIT and joins in the same query above what is decided once,
against the rule applied delivery by delivery in plain Python (`test_lineage_of_lookups`): the rows of a group are those
that came, each with what it met in the epoch in which it came.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from itertools import combinations

import pytest

import watersmeet
from tests.property.lineage_plans import rows_read
from tests.property.test_lineage import check_origins
from tests.property.test_lineage_of_lookups import (
    GOING,
    TEMPORAL,
    GoingView,
    StreamView,
    change,
    change_left,
    make_looked_up,
)
from tests.thorough import mostly_slow

#: What is decided: rows of rid, k, x of the left row, and x of what it met.
DECIDED = {
    "INNER": f"SELECT a.rid, a.k, a.x, b.x AS y FROM a JOIN b {TEMPORAL} ON a.k = b.k",
    "LEFT": f"SELECT a.rid, a.k, a.x, b.x AS y FROM a LEFT JOIN b {TEMPORAL} ON a.k = b.k",
    "COMPARED": f"SELECT a.rid, a.k, a.x, b.x AS y FROM a LEFT JOIN b {TEMPORAL} ON a.k = b.k AND b.x > a.x "
    "WHERE a.x < 3",
    "CHAIN": f"SELECT a.rid, a.k, a.x, c.x AS y FROM a JOIN b {TEMPORAL} ON a.k = b.k JOIN c {TEMPORAL} ON b.x = c.k",
    "UNION": f"SELECT a.rid, a.k, a.x, b.x AS y FROM a JOIN b {TEMPORAL} ON a.k = b.k UNION ALL "
    f"SELECT a.rid, a.x, a.k, c.x FROM a LEFT JOIN c {TEMPORAL} ON a.k = c.k",
}
#: What is made of these rows.
ABOVE = {
    "GROUP": "SELECT y AS c0, count(*) AS c1, sum(x) AS c2 FROM ({}) d GROUP BY y",
    "HAVING": "SELECT k AS c0, max(y) AS c1 FROM ({}) d GROUP BY k HAVING count(*) > 1",
    "DISTINCT": "SELECT DISTINCT k AS c0, y AS c1 FROM ({}) d",
    "WINDOW": "SELECT rid AS c0, y AS c1, count(*) OVER (PARTITION BY k) AS c2 FROM ({}) d",
    "LIMIT": "SELECT rid AS c0, y AS c1 FROM ({}) d ORDER BY rid DESC, y, x LIMIT 3",
    "JOIN": "SELECT d.rid AS c0, c.rid AS c1 FROM ({}) d JOIN c ON d.y = c.k",
    "OUTER": "SELECT c.rid AS c0, d.rid AS c1 FROM c LEFT JOIN ({}) d ON d.y = c.k",
}


@dataclass
class View:
    """out: what was decided, as (rid, k, x, y) with the rows of tables that it comes from."""

    decided: str
    above: str
    out: list = field(default_factory=list)

    @property
    def sql(self):
        return ABOVE[self.above].format(DECIDED[self.decided])

    def decide(self, left, b, c):
        own, (rid, k, x) = ("a", left), left
        found = [r for r in b if k is not None and r[1] == k]
        if self.decided == "COMPARED":
            if x >= 3:
                return
            found = [r for r in found if r[2] > x]
        if self.decided == "CHAIN":
            self.out += [
                ((rid, k, x, s[2]), frozenset([own, ("b", r), ("c", s)])) for r in found for s in c if s[1] == r[2]
            ]
            return
        self.out += [((rid, k, x, r[2]), frozenset([own, ("b", r)])) for r in found]
        if self.decided in ("LEFT", "COMPARED") and not found:
            self.out.append(((rid, k, x, None), frozenset([own])))
        if self.decided == "UNION":
            more = [s for s in c if k is not None and s[1] == k]
            self.out += [((rid, x, k, s[2]), frozenset([own, ("c", s)])) for s in more]
            self.out += [] if more else [((rid, x, k, None), frozenset([own]))]

    def limited(self):
        """What a LIMIT may leave: of equal rows it takes any."""
        # NULLs are the last in an ascending order
        order = sorted(self.out, key=lambda r: (-r[0][0], r[0][3] is None, r[0][3] or 0, r[0][2] is None, r[0][2] or 0))
        kept, last = order[:3], order[2:3]
        equal = [r for r in order if last and r[0] == last[0][0]]
        before = [r for r in kept if r not in equal]
        return [
            [((v[0], v[3]), rows) for v, rows in [*before, *some]]
            for some in combinations(equal, len(kept) - len(before))
        ]

    def others(self):
        return self.limited()[1:] if self.above == "LIMIT" else []

    def rows(self, c):
        """What it has while c has these rows, with the rows that it comes from."""
        if self.above == "JOIN":
            return [((v[0], s[0]), rows | {("c", s)}) for v, rows in self.out for s in c if s[1] == v[3]]
        if self.above == "OUTER":
            pairs = [((s[0], v[0]), rows | {("c", s)}) for v, rows in self.out for s in c if s[1] == v[3]]
            alone = [s for s in c if all(v[3] != s[1] for v, _ in self.out)]
            return pairs + [((s[0], None), frozenset([("c", s)])) for s in alone]
        if self.above == "LIMIT":
            return self.limited()[0]
        place = {"GROUP": lambda v: v[3], "DISTINCT": lambda v: (v[1], v[3])}.get(self.above, lambda v: v[1])
        groups = {}
        for values, rows in self.out:
            groups.setdefault(place(values), []).append((values, rows))
        found = []
        for key, group in groups.items():
            lineage = frozenset().union(*(rows for _, rows in group))
            if self.above == "WINDOW":
                found += [((v[0], v[3], len(group)), lineage) for v, _ in group]
            elif self.above == "GROUP":
                known = [v[2] for v, _ in group if v[2] is not None]
                found.append(((key, len(group), sum(known) if known else None), lineage))
            elif self.above == "DISTINCT":
                found.append((key, lineage))
            elif len(group) > 1:
                found.append(((key, max((v[3] for v, _ in group if v[3] is not None), default=None)), lineage))
        return found


@pytest.mark.parametrize("seed", mostly_slow([1, 4, 46, 260200574, *range(5, 60)], 2, 4))
def test_what_is_computed_above_look_ups(seed):
    rng = random.Random(seed)
    with watersmeet.connect(runtime="inprocess", parallelism=1) as connection:
        connection.execute("CREATE TABLE a (rid INT, k INT, x INT) APPEND ONLY")
        make_looked_up(connection)
        left, b, c, views, before = [], [], [], {}, None
        kinds = [(rng.choice(list(DECIDED)), above) for above in rng.sample(list(ABOVE), 3)]
        for step in range(5):
            if step < len(kinds):
                views[f"v{step}"] = view = View(*kinds[step])
                connection.execute(f"CREATE MATERIALIZED VIEW v{step} AS {view.sql}")
                for row in left:
                    view.decide(row, b, c)
            came = []
            for _ in range(rng.choice([1, 2, 3, 4])):
                what = rng.choice("aabbc")
                if what == "a":
                    came.append((len(left) + len(came) + 1, rng.choice([None, 1, 2, 3]), rng.randint(1, 4)))
                    connection.execute("INSERT INTO a VALUES (?, ?, ?)", came[-1])
                elif what == "b":
                    b = change(rng, connection, "b", b, iter([rng.randint(1, 4)]))
                else:
                    c = change(rng, connection, "c", c, iter([rng.randint(1, 4)]))
            connection.flush()
            left += came
            for view in views.values():
                for row in came:
                    view.decide(row, b, c)
            if step == 3:
                ((number, *_), *_) = connection.execute("SHOW COMMITS").fetchall()
                before = number, {name: (view.rows(c), view.others()) for name, view in views.items()}
        for name, view in views.items():
            check_origins(connection, name, view.rows(c), others=view.others(), said=view.sql)
            wanted, others = before[1][name]
            past = f"FOR SYSTEM_TIME AS OF COMMIT {before[0]}"
            check_origins(connection, name, wanted, past, others=others, said=view.sql)
            lines = connection.execute(f"EXPLAIN MISSING ROW {name} WHERE c0 = 99").fetchall()
            assert lines[0][1] == name
            assert len(lines) > 1


@dataclass
class GoingGroups(GoingView):
    """Groups of what left rows met that may go."""

    @property
    def sql(self):
        last = GOING[self.kind][0].count(",")
        sums = "".join(f", sum(c{i}) AS c{i + 2}" for i in range(last))
        return f"SELECT c{last} AS c0, count(*) AS c1{sums} FROM ({super().sql}) d GROUP BY c{last}"

    @property
    def groups(self):
        found = {}
        for values, lineage in self.out:
            found.setdefault(values[-1], []).append((values, lineage))
        return [
            (
                (key, len(rows), *(sum(v[i] for v, _ in rows) for i in range(len(rows[0][0]) - 1))),
                frozenset().union(*(lineage for _, lineage in rows)),
            )
            for key, rows in found.items()
        ]


@pytest.mark.parametrize("seed", mostly_slow(range(40), 1, 4))
def test_groups_of_what_rows_met_that_may_go(seed):
    rng = random.Random(seed)
    with watersmeet.connect(runtime="inprocess", parallelism=1) as connection:
        connection.execute("CREATE TABLE a (rid INT PRIMARY KEY, k INT, x INT, z INT)")
        make_looked_up(connection)
        a, b, c, views, before = [], [], [], {}, None
        kinds = [kind for kind in GOING if kind != "UNION"]
        for step, kind in enumerate([*rng.sample(kinds, 2), None, None, None]):
            if kind is not None:
                views[f"v{step}"] = view = GoingGroups(kind)
                connection.execute(f"CREATE MATERIALIZED VIEW v{step} AS {view.sql}")
                view.epoch(a, b, c)
            for _ in range(rng.choice([1, 2, 3])):
                what = rng.choice("aaabc")
                if what == "a":
                    a = change_left(rng, connection, a)
                elif what == "b":
                    b = change(rng, connection, "b", b, iter([rng.randint(1, 4)]))
                else:
                    c = change(rng, connection, "c", c, iter([rng.randint(1, 4)]))
            connection.flush()
            for view in views.values():
                view.epoch(a, b, c)
            if step == 3:
                ((number, *_), *_) = connection.execute("SHOW COMMITS").fetchall()
                before = number, {name: view.groups for name, view in views.items()}
        for name, view in views.items():
            check_origins(connection, name, view.groups)
            check_origins(connection, name, before[1][name], f"FOR SYSTEM_TIME AS OF COMMIT {before[0]}")


#: Joins of a stream that are told for all commits at once.
JOINS = [
    "LATEST JOIN b ON a.k = b.k",
    "LEFT LATEST JOIN b ON a.k = b.k",
    "JOIN m ON a.k = m.k",
    "LEFT JOIN m ON a.k = m.k",
    "JOIN table(b) AS b ON a.k = b.k",
    "LEFT JOIN table(m) AS m ON a.k = m.k",
]


@dataclass
class Grouped(StreamView):
    """Groups of what a view of Timeplus decided; without a join, of what came to the stream since it began."""

    @property
    def right(self):
        return super().right if self.join else ""

    @property
    def sql(self):
        return f"SELECT a.k AS c0, count() AS c1 FROM a {self.join} GROUP BY a.k"

    def decide(self, left, now):
        if self.join:
            super().decide(left, now)
        else:
            self.out.append(((*left, None), frozenset([("a", *left)])))


@pytest.mark.parametrize("seed", mostly_slow([1, 2, *range(3, 40)], 2, 4))
def test_groups_of_streams(seed):
    """Timeplus: a group has the rows that came since its view began, with what they met."""
    rng = random.Random(seed)
    with watersmeet.connect(dialect="timeplus", runtime="inprocess", parallelism=1) as connection:
        for name in "ab":
            connection.execute(f"CREATE STREAM {name} (k int, x int)")
        connection.execute("CREATE MUTABLE STREAM m (k int, x int) PRIMARY KEY k")
        joins, views, numbers = [*rng.sample(JOINS, 3), ""], {}, iter(range(100))
        now = {"b": [], "m": []}
        for step in range(5):
            if step < len(joins):
                views[f"v{step}"] = view = Grouped(joins[step], [])
                view.there = list(now.get(view.right, []))
                connection.execute(f"CREATE MATERIALIZED VIEW v{step} AS {view.sql}")
            came = []
            for _ in range(rng.choice([1, 2, 3, 4])):
                name, row = rng.choice("aabbm"), (rng.randint(1, 2), next(numbers))
                connection.execute(f"INSERT INTO {name} (k, x) VALUES {row}")
                if name == "a":
                    came.append(row)
                    continue
                now[name] = [*(r for r in now[name] if name == "b" or r[0] != row[0]), row]
                for view in views.values():
                    view.came += [row] * (view.right == name)
            connection.flush()
            for view in views.values():
                for left in came:
                    view.decide(left, now.get(view.right, []))
        for name, view in views.items():
            found = dict(map(tuple, connection.execute(f"SELECT * FROM table({name})").fetchall()))
            assert found == Counter(v[0] for v, _ in view.out), view.sql
            for k in found:
                lines = connection.execute(f"EXPLAIN ROW SELECT * FROM table({name}) WHERE c0 = {k}").fetchall()
                read = frozenset((name, row["k"], row["x"]) for name, row in rows_read(lines, "stream"))
                assert read == frozenset().union(*(rows for v, rows in view.out if v[0] == k)), (view.sql, k, lines)

"""EMIT ON ARRIVAL, end to end: joins decided when rows come, against the rule applied delivery by delivery in plain
Python.

The rule (docs/SEMANTICS.md): of an epoch, the rows of the other side come first. Pairs come with their second row. A
row of a side that an outer join keeps comes without partner if there is none when it comes. Semi, anti and ASOF joins
decide each left row when it comes. Nothing is ever taken back.
"""

from __future__ import annotations

import random
from collections import Counter

import pytest

from tests.harness import connect_without_connectors
from tests.thorough import mostly_slow

SEEDS = range(8)

QUERIES = {
    "inner_": "SELECT a.k, x, y FROM a JOIN b ON a.k = b.k AND x <> y",
    "left_": "SELECT a.k, x, y FROM a LEFT JOIN b ON a.k = b.k",
    "left_filtered": "SELECT a.k, x, y FROM a LEFT JOIN b ON a.k = b.k AND x < y AND y > 1 WHERE x > 0",
    "right_": "SELECT b.k, x, y FROM a RIGHT JOIN b ON a.k = b.k",
    "full_": "SELECT a.k, b.k AS j, x, y FROM a FULL JOIN b ON a.k = b.k AND x >= y",
    "semi_": "SELECT k, x FROM a WHERE EXISTS (SELECT 1 FROM b WHERE b.k = a.k AND b.y > a.x)",
    "anti_": "SELECT k, x FROM a WHERE NOT EXISTS (SELECT 1 FROM b WHERE b.k = a.k)",
    "asof_": "SELECT a.k, x, y FROM a ASOF LEFT JOIN b ON a.k = b.k AND x >= y",
    "chain": "SELECT a.k, x, y, z FROM a LEFT JOIN b ON a.k = b.k JOIN c ON a.k = c.k",
}


def meets(a, b):
    return a[0] is not None and a[0] == b[0]


class Rule:
    """What has come out so far, by view."""

    def __init__(self):
        self.a, self.b, self.c, self.lefts = [], [], [], []
        self.out = {name: Counter() for name in QUERIES}

    def _outer(self, name, new, old, condition, shown, *, left=True, right=False):
        """new, old: (rows of a, rows of b)."""
        every = (old[0] + new[0], old[1] + new[1])
        pairs = [(a, b) for a in every[0] for b in every[1] if condition(a, b)]
        fresh = [(a, b) for a, b in pairs if any(a is r for r in new[0]) or any(b is r for r in new[1])]
        found = [shown(a, b) for a, b in fresh]
        if left:
            found += [shown(a, None) for a in new[0] if not any(a is p for p, _ in pairs)]
        if right:
            found += [shown(None, b) for b in new[1] if not any(b is p for _, p in pairs)]
        self.out[name].update(found)
        return found

    def epoch(self, a, b, c):
        new, old = (a, b), (self.a, self.b)

        def columns(*parts):
            return lambda p, q: tuple(
                None if row is None else row[i] for row, i in ((p if s == "a" else q, i) for s, i in parts)
            )

        shown = columns(("a", 0), ("a", 1), ("b", 1))
        self._outer("inner_", new, old, lambda p, q: meets(p, q) and p[1] != q[1], shown, left=False)
        lefts = self._outer("left_", new, old, meets, shown)
        self._outer(
            "left_filtered",
            ([r for r in a if r[1] > 0], b),
            ([r for r in self.a if r[1] > 0], self.b),
            lambda p, q: meets(p, q) and p[1] < q[1] and q[1] > 1,
            shown,
        )
        self._outer("right_", new, old, meets, columns(("b", 0), ("a", 1), ("b", 1)), left=False, right=True)
        self._outer(
            "full_",
            new,
            old,
            lambda p, q: meets(p, q) and p[1] >= q[1],
            columns(("a", 0), ("b", 0), ("a", 1), ("b", 1)),
            right=True,
        )
        there = self.b + b
        self.out["semi_"].update(p for p in a if any(meets(p, q) and q[1] > p[1] for q in there))
        self.out["anti_"].update(p for p in a if not any(meets(p, q) for q in there))
        for p in a:
            near = [q[1] for q in there if meets(p, q) and p[1] >= q[1]]
            self.out["asof_"][(*p, max(near) if near else None)] += 1
        self._outer("chain", (lefts, c), (self.lefts, self.c), meets, lambda p, q: (*p, q[1]), left=False)
        self.a, self.b, self.c, self.lefts = self.a + a, self.b + b, self.c + c, self.lefts + lefts


def fetch(cursor, name):
    return Counter(cursor.execute(f"SELECT * FROM {name}").fetchall())


@pytest.mark.parametrize("seed", mostly_slow(SEEDS, 1))
def test_what_comes_on_arrival(tmp_path, seed):
    rng, parallelism = random.Random(seed), 1 if seed % 2 else 3

    def connect():
        return connect_without_connectors(tmp_path, runtime="inprocess", parallelism=parallelism)

    connection = connect()
    cursor = connection.cursor()
    for name, value in (("a", "x"), ("b", "y"), ("c", "z")):
        cursor.execute(f"CREATE TABLE {name} (k INT, {value} INT) APPEND ONLY")
    for name, query in QUERIES.items():
        cursor.execute(f"CREATE MATERIALIZED VIEW {name} AS {query} EMIT ON ARRIVAL")
    rule = Rule()
    for _ in range(6):
        deliveries = []
        for name in "abc":
            rows = [(rng.choice([None, 0, 1, 2]), rng.randrange(4)) for _ in range(rng.choice([0, 1, 3]))]
            rows = [tuple([*r]) for r in rows]  # equal rows are rows of their own
            deliveries.append(rows)
        rule.epoch(*deliveries)
        statements = [(name, row) for name, rows in zip("abc", deliveries) for row in rows]
        rng.shuffle(statements)
        for name, row in statements:
            cursor.execute(f"INSERT INTO {name} VALUES (?, ?)", row)
        cursor.execute("FLUSH")
        if rng.random() < 0.3:
            connection.close()
            connection = connect()
            cursor = connection.cursor()
        for name in QUERIES:
            assert fetch(cursor, name) == rule.out[name], name
    connection.close()


@pytest.mark.parametrize("seed", mostly_slow(SEEDS, 1))
def test_views_made_later_take_all_history_as_one_arrival(tmp_path, seed):
    """The side that is looked at is read first, also where arrangements of other views tell what they keep."""
    rng, parallelism = random.Random(seed), 1 if seed % 2 else 3
    connection = connect_without_connectors(tmp_path, runtime="inprocess", parallelism=parallelism)
    cursor = connection.cursor()
    rows = {
        name: [tuple([rng.choice([None, 0, 1, 2]), rng.randrange(4)]) for _ in range(rng.choice([2, 9]))]
        for name in "abc"
    }
    for name, value in (("a", "x"), ("b", "y"), ("c", "z")):
        cursor.execute(f"CREATE TABLE {name} (k INT, {value} INT) APPEND ONLY")
    if seed % 4 < 2:
        cursor.execute("CREATE MATERIALIZED VIEW other AS SELECT a.k, x, y FROM a LEFT JOIN b ON a.k = b.k")
    for name in "abc":
        for row in rows[name]:
            cursor.execute(f"INSERT INTO {name} VALUES (?, ?)", row)
        cursor.execute("FLUSH")
    rule = Rule()
    rule.epoch(rows["a"], rows["b"], rows["c"])
    for name in QUERIES.keys() - {"full_", "chain"}:
        cursor.execute(f"CREATE MATERIALIZED VIEW {name} AS {QUERIES[name]} EMIT ON ARRIVAL")
        assert fetch(cursor, name) == rule.out[name], name
    connection.close()

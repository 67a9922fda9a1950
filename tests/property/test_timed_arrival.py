"""EMIT ON ARRIVAL of joins by time: what watermarks clean is never missed, and nothing is left at the end."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from tests.property.test_final import NEAR, Database, Rule, closing, history, moment
from tests.thorough import mostly_slow

A, B = "(SELECT * FROM a WHERE k < 90) AS a", "(SELECT * FROM b WHERE k < 90) AS b"

QUERIES = {
    "left_": f"SELECT a.k, x, y, a.ts, b.ts AS u FROM {A} LEFT JOIN {B} ON {NEAR}",
    "right_": f"SELECT b.k, x, y, a.ts, b.ts AS u FROM {A} RIGHT JOIN {B} ON {NEAR} AND x <> y",
    "full_": f"SELECT x, y, a.ts, b.ts AS u FROM {A} FULL JOIN {B} ON {NEAR}",
    "semi_": f"SELECT k, x, ts FROM {A} WHERE EXISTS (SELECT 1 FROM {B} WHERE {NEAR} AND b.y > a.x)",
    "anti_": f"SELECT k, x, ts FROM {A} WHERE NOT EXISTS (SELECT 1 FROM {B} WHERE {NEAR})",
}


def near(a, b):
    return a[0] == b[0] and a[2] is not None and b[2] is not None and a[2] - 5 <= b[2] <= a[2] + 8


def row(a, b, *parts):
    """parts: side and column; times are moments."""
    found = []
    for side, column in parts:
        value = None if (a if side == "a" else b) is None else (a if side == "a" else b)[column]
        found.append(moment(value) if column == 2 else value)
    return tuple(found)


def arrived(new, old):
    """What comes out of each view: new, old: (rows of a, rows of b), without those that only move watermarks."""
    every = (old[0] + new[0], old[1] + new[1])

    def outer(condition, *parts, left, right):
        pairs = [(i, j) for i, a in enumerate(every[0]) for j, b in enumerate(every[1]) if condition(a, b)]
        fresh = (len(old[0]), len(old[1]))
        found = [row(every[0][i], every[1][j], *parts) for i, j in pairs if i >= fresh[0] or j >= fresh[1]]
        if left:
            met = {i for i, _ in pairs}
            found += [row(a, None, *parts) for i, a in enumerate(every[0]) if i >= fresh[0] and i not in met]
        if right:
            met = {j for _, j in pairs}
            found += [row(None, b, *parts) for j, b in enumerate(every[1]) if j >= fresh[1] and j not in met]
        return found

    values = (("a", 1), ("b", 1), ("a", 2), ("b", 2))
    return {
        "left_": outer(near, ("a", 0), *values, left=True, right=False),
        "right_": outer(lambda a, b: near(a, b) and a[1] != b[1], ("b", 0), *values, left=False, right=True),
        "full_": outer(near, *values, left=True, right=True),
        "semi_": [
            row(a, None, ("a", 0), ("a", 1), ("a", 2))
            for a in new[0]
            if any(near(a, b) and b[1] > a[1] for b in every[1])
        ],
        "anti_": [row(a, None, ("a", 0), ("a", 1), ("a", 2)) for a in new[0] if not any(near(a, b) for b in every[1])],
    }


@pytest.mark.parametrize("seed", mostly_slow(range(6), 1))
def test_cleaning_changes_nothing(tmp_path, seed):
    rng, parallelism = random.Random(2000 + seed), 1 if seed % 2 else 3
    database, rule = Database(tmp_path, parallelism, {}), Rule()
    for name, query in QUERIES.items():
        database.run(f"CREATE MATERIALIZED VIEW {name} AS {query} EMIT ON ARRIVAL")
    out = {name: Counter() for name in QUERIES}
    for rows in [*history(rng), closing()]:
        before = tuple([r for r in rule.kept[t] if r[0] < 90] for t in "ab")
        sizes = tuple(len(b) for b in before)
        database.epoch(rows)
        rule.epoch(rows)
        new = tuple([r for r in rule.kept[t] if r[0] < 90][size:] for t, size in zip("ab", sizes))
        for name, found in arrived(new, before).items():
            out[name].update(found)
            assert database.content(name) == out[name], name
        if rng.random() < 0.3:
            database.restart()
    assert database.state() == []
    database.connection.close()

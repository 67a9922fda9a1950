"""Timeplus' enrichment joins on random histories, against rules in plain Python; Timeplus' document.

Inserts are cut into transactions and FLUSHes as they come; what comes out must not depend on it. TP-36 to TP-41, TP-55
to TP-60.
"""

from __future__ import annotations

import random
from collections import Counter

import pytest

import watersmeet

REGRESSIONS: list[int] = []
SEEDS = [*REGRESSIONS, *range(8)]

JOINS = {
    "all_": "LEFT JOIN r ON l.k = r.k",
    "latest": "LEFT LATEST JOIN r ON l.k = r.k",
    "asof_ge": "LEFT ASOF JOIN r ON l.k = r.k AND l.x >= r.y",
    "asof_gt": "LEFT ASOF JOIN r ON l.k = r.k AND l.x > r.y SETTINGS keep_versions = 2",
    "asof_le": "ASOF JOIN r ON l.k = r.k AND l.x <= r.y SETTINGS keep_versions = 5",
    "asof_lt": "ASOF JOIN r ON l.k = r.k AND l.x < r.y",
}
KEEP = {"asof_ge": 3, "asof_gt": 2, "asof_le": 5, "asof_lt": 3}


class Reference:
    """The right side as each join sees it, and what left rows meet."""

    def __init__(self, keyed: bool) -> None:
        self.keyed = keyed
        self.rows: list[tuple] = []  # (id, k, y) with the last row of each id, or all rows
        self.came: list[tuple] = []
        self.lefts: list[tuple] = []
        self.out: dict[str, Counter] = {name: Counter() for name in JOINS}

    def right(self, row: tuple) -> None:
        if self.keyed:
            self.rows = [r for r in self.rows if r[0] != row[0]]
        self.rows.append(row)
        self.came.append(row)

    def left(self, row: tuple) -> None:
        n, k, x = row
        self.lefts.append(row)
        for name, join in JOINS.items():
            met = self.partners(name, k, x)
            if not met and "LEFT" in join:
                met = [(None, None)]
            for pk, y in met:
                self.out[name][(n, pk, y)] += 1

    def ended(self) -> None:
        """Two sides that only grow meet in both directions: what comes out is the join of all rows."""
        if not self.keyed:
            met = {k: [(pk, y) for pk, rk, y in self.rows if rk == k] or [(None, None)] for _, k, _ in self.lefts}
            self.out["all_"] = Counter((n, *r) for n, k, _ in self.lefts for r in met[k])

    def partners(self, name: str, k: int, x: int | None) -> list[tuple]:
        if name == "all_":
            return [(pk, y) for pk, rk, y in self.rows if rk == k]
        came = [(pk, y) for pk, rk, y in self.came if rk == k]
        if name == "latest":
            return came[-1:]
        # of equal values the newest first; the greatest are kept
        versions = sorted(reversed(came), key=lambda r: -r[1])[: KEEP[name]]
        fits = {
            "asof_ge": lambda y: x >= y,
            "asof_gt": lambda y: x > y,
            "asof_le": lambda y: x <= y,
            "asof_lt": lambda y: x < y,
        }[name]
        found = [r for r in versions if fits(r[1])]
        if not found:
            return []
        best = max(r[1] for r in found) if name in ("asof_ge", "asof_gt") else min(r[1] for r in found)
        return [next(r for r in found if r[1] == best)]


def values(rows: list[tuple]) -> str:
    return ", ".join("(" + ", ".join(map(str, r)) + ")" for r in rows)


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_enrichment(seed, tmp_path):
    rng = random.Random(seed)
    keyed = bool(seed % 2)
    mode = rng.choice(["mutable", "versioned_kv"]) if keyed else "append"
    reference = Reference(keyed)
    connection = watersmeet.connect(tmp_path / "db", "timeplus", runtime="inprocess", parallelism=rng.choice([1, 3]))
    connection.execute("CREATE STREAM l(n int, k int, x int)")
    connection.execute(
        {
            "append": "CREATE STREAM r(id int, k int, y int)",
            "mutable": "CREATE MUTABLE STREAM r(id int, k int, y int) PRIMARY KEY id",
            "versioned_kv": "CREATE STREAM r(id int, k int, y int) PRIMARY KEY id SETTINGS mode='versioned_kv'",
        }[mode]
    )
    for name, join in JOINS.items():
        connection.execute(f"CREATE MATERIALIZED VIEW {name} AS SELECT l.n AS n, r.id AS id, r.y AS y FROM l {join}")
    number = 0
    for _ in range(rng.randint(10, 25)):
        if rng.random() < 0.1:
            connection.close()
            connection = watersmeet.connect(tmp_path / "db", "timeplus", runtime="inprocess")
        if rng.random() < 0.5:
            rows = [(rng.randrange(6), rng.randrange(3), rng.randrange(12)) for _ in range(rng.randint(1, 6))]
            for row in rows:
                reference.right(row)
            cuts = sorted(rng.sample(range(1, len(rows)), rng.randint(0, len(rows) - 1)))
            for start, end in zip([0, *cuts], [*cuts, len(rows)], strict=True):
                connection.execute(f"INSERT INTO r(id, k, y) VALUES {values(rows[start:end])}")
        else:
            rows = [(number + i, rng.randrange(4), rng.randrange(13)) for i in range(rng.randint(1, 4))]
            number += len(rows)
            for row in rows:
                reference.left(row)
            connection.execute(f"INSERT INTO l(n, k, x) VALUES {values(rows)}")
        connection.execute("FLUSH")
    reference.ended()
    for name, expected in reference.out.items():
        found = Counter(connection.execute(f"SELECT n, id, y FROM table({name})").fetchall())
        assert found == expected, (name, mode)
    connection.close()

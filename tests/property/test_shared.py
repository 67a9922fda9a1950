"""Views that join the same relations by the same keys, made and dropped at any time: each is what DuckDB says.

Few tables, few keys, many kinds of join: nearly every view reads arrangements that others keep. Covers RA-33, RW-56.
"""

from __future__ import annotations

import contextlib
import random
import tempfile
from collections import Counter
from unittest import mock

import duckdb
import pytest

import watersmeet
from tests.thorough import mostly_slow
from watersmeet.runtime.workers import Budget

TABLES = {"f": "k int, x int, y int", "g": "k int, x int, y int", "d": "k int PRIMARY KEY, x int, y int, z varchar"}


class Mix:
    """A random history of tables, views and indexes on both systems."""

    def __init__(self, seed: int, path: str, options: dict) -> None:
        self.rng = random.Random(seed)
        self.path, self.options = path, options
        self.duck = duckdb.connect(config={"threads": 1})
        self.ours = watersmeet.connect(path, **options)
        self.views: dict[str, str] = {}
        self.done: list[str] = []
        self.number = 0
        for name, columns in TABLES.items():
            self.both(f"CREATE TABLE {name} ({columns})")

    def execute(self, sql: str) -> None:
        self.done.append(sql)
        self.ours.execute(sql)

    def both(self, sql: str) -> None:
        self.duck.execute(sql)
        self.execute(sql)

    def value(self, null: float = 0.15) -> str:
        return "NULL" if self.rng.random() < null else str(self.rng.randrange(4))

    def change(self) -> None:
        rng = self.rng
        table = rng.choice("ffgd")
        if table == "d":
            key = rng.randrange(6)
            self.both(f"DELETE FROM d WHERE k = {key}")
            if rng.random() < 0.8:
                self.both(f"INSERT INTO d VALUES ({key}, {self.value()}, {self.value()}, 'z{rng.randrange(3)}')")
            return
        kind = rng.random()
        if kind < 0.6:
            rows = ", ".join(f"({self.value()}, {self.value()}, {self.value()})" for _ in range(rng.choice([1, 3, 8])))
            self.both(f"INSERT INTO {table} VALUES {rows}")
        elif kind < 0.8:
            self.both(f"DELETE FROM {table} WHERE {rng.choice('kxy')} = {self.value(0)}")
        else:
            self.both(
                f"UPDATE {table} SET {rng.choice('kxy')} = {self.value()} WHERE {rng.choice('kxy')} = {self.value(0)}"
            )

    def query(self) -> str:
        rng = self.rng
        sources = [rng.choice([*"fgdd", *self.sources()]) for _ in range(rng.choice([2, 2, 3]))]
        text, seen = f"{sources[0]} AS a0", [0]
        for i, source in enumerate(sources[1:], 1):
            kind = rng.choice(["JOIN", "JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN"])
            pairs = [
                f"a{rng.choice(seen)}.{rng.choice('kkx')} = a{i}.{rng.choice('kkx')}"
                for _ in range(rng.choice([1, 1, 2]))
            ]
            extra = (
                f" AND a{i}.y < a{rng.choice(seen)}.y" if rng.random() < 0.15 and kind in ("JOIN", "LEFT JOIN") else ""
            )
            text += f" {kind} {source} AS a{i} ON {' AND '.join(pairs)}{extra}"
            seen.append(i)
        parts = []
        if rng.random() < 0.4:
            parts.append(f"a{rng.choice(seen)}.{rng.choice('xy')} {rng.choice(['> 0', '= 1', 'IS NULL', '< 3'])}")
        if rng.random() < 0.2:
            parts.append(f"a0.k {rng.choice(['IN', 'NOT IN'])} (SELECT k FROM {rng.choice('fd')} WHERE k IS NOT NULL)")
        where = f" WHERE {' AND '.join(parts)}" if parts else ""
        if rng.random() < 0.2:
            return f"SELECT a0.k AS k, count(*)::int AS x, sum(a1.y)::int AS y FROM {text}{where} GROUP BY a0.k"
        columns = [f"a{rng.choice(seen)}.{rng.choice('kxy')} AS {name}" for name in "kxy"]
        return f"SELECT {', '.join(columns)} FROM {text}{where}"

    def sources(self) -> list[str]:
        return [v for v in self.views if self.duck.execute(f"SELECT count(*) FROM {v}").fetchone()[0] < 60]

    def step(self) -> None:
        r = self.rng.random()
        if r < 0.5:
            self.change()
        elif r < 0.78:
            name, sql = f"v{self.number}", self.query()
            self.duck.execute(f"CREATE VIEW {name} AS {sql}")
            if self.duck.execute(f"SELECT count(*) FROM {name}").fetchone()[0] > 3000:
                return self.duck.execute(f"DROP VIEW {name}")
            self.number += 1
            self.views[name] = sql
            self.execute(f"CREATE MATERIALIZED VIEW {name} AS {sql}")
            self.check(name)
        elif r < 0.88 and self.views:
            self.drop(self.rng.choice(list(self.views)))
        elif r < 0.93:
            self.number += 1
            self.execute(
                f"CREATE INDEX i{self.number} ON {self.rng.choice(['f(k)', 'd(x)', 'g(k, x)', 'f(x) INCLUDE (y)'])}"
            )
        else:
            self.done.append("-- reopened")
            self.ours.close()
            self.ours = watersmeet.connect(self.path, **self.options)
        return None

    def drop(self, name: str) -> None:
        gone = {name}
        for other, sql in self.views.items():
            if any(f" {g} AS" in sql for g in gone):
                gone.add(other)
        for other in reversed(list(self.views)):
            if other in gone:
                del self.views[other]
                self.duck.execute(f"DROP VIEW {other}")
                self.execute(f"DROP MATERIALIZED VIEW {other}")

    def check(self, name: str) -> None:
        self.execute("FLUSH")
        found = Counter(self.ours.execute(f"SELECT * FROM {name}").fetchall())
        expected = Counter(self.duck.execute(f"SELECT * FROM {name}").fetchall())
        assert found == expected, ";\n".join(self.done) + f"\nmissing {expected - found}\nsurplus {found - expected}"


def run(seed: int, steps: int = 30) -> None:
    """Every other seed plans epochs of few rows, so that histories and arrangements come in many pieces."""
    pieces = mock.patch.object(Budget, "rows", 7) if seed % 2 else contextlib.nullcontext()
    with tempfile.TemporaryDirectory() as directory, pieces:
        mix = Mix(seed, f"{directory}/db", {"runtime": "inprocess", "parallelism": 1 + seed % 3})
        try:
            for _ in range(steps):
                mix.step()
            for name in mix.views:
                mix.check(name)
        finally:
            mix.ours.close()


@pytest.mark.parametrize("seed", mostly_slow(range(4), 2))
def test_shared(seed: int) -> None:
    run(seed)


@pytest.mark.thorough
@pytest.mark.parametrize("block", range(4))
def test_many_shared(block: int) -> None:
    for seed in range(1000 + 20 * block, 1020 + 20 * block):
        run(seed)

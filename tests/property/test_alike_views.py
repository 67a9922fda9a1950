"""Many views of a table that only differ in their constants, over random changes: each is what DuckDB says.

They are computed in one step (`Evaluator.project_alike`), except those whose sums are out of range.
"""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import duckdb
import pytest

import watersmeet
from tests.thorough import mostly_slow

QUERIES = (
    "SELECT id, amount + {0} AS more FROM sales WHERE amount < {0}",
    "SELECT id, shop FROM sales WHERE shop = 's{1}'",
    "SELECT id, amount FROM sales WHERE shop <> 's{1}' AND level >= {1}",
    "SELECT shop, count(*) AS number, sum(level) AS levels FROM sales WHERE level > {1} GROUP BY shop",
    "SELECT s.id, p.name FROM sales AS s JOIN shops AS p ON s.shop = p.shop WHERE s.amount = {0}",
    "SELECT id, amount - {0} AS less FROM sales WHERE shop IS NULL",
)


class Sales:
    """The tables on both systems."""

    def __init__(self, seed: int, path: Path) -> None:
        self.rng = random.Random(seed)
        self.ours = watersmeet.connect(path, runtime="inprocess", parallelism=1 + seed % 3)
        self.duck = duckdb.connect(config={"threads": 1})
        self.both("CREATE TABLE sales (id bigint PRIMARY KEY, amount bigint, level int, shop varchar)")
        self.both("CREATE TABLE shops (shop varchar PRIMARY KEY, name varchar)")
        self.both("INSERT INTO shops VALUES ('s0', 'a'), ('s1', 'b')")
        self.queries = {
            f"v{i}": QUERIES[i % len(QUERIES)].format(self.rng.randrange(6), self.rng.randrange(4)) for i in range(40)
        }
        self.ours.execute(";\n".join(f"CREATE MATERIALIZED VIEW {v} AS {q}" for v, q in self.queries.items()))

    def both(self, sql: str) -> None:
        self.duck.execute(sql)
        self.ours.execute(sql)

    def value(self, text: object) -> str:
        return "NULL" if self.rng.random() < 0.15 else str(text)

    def change(self) -> None:
        rng = self.rng
        if (kind := rng.random()) < 0.6:
            for key in {rng.randrange(30) for _ in range(rng.choice([1, 1, 2, 9]))}:
                amount, level = self.value(rng.randrange(7)), self.value(rng.randrange(5))
                shop = self.value(f"'s{rng.randrange(5)}'")
                self.both(f"DELETE FROM sales WHERE id = {key}")
                self.both(f"INSERT INTO sales VALUES ({key}, {amount}, {level}, {shop})")
        elif kind < 0.8:
            self.both(f"UPDATE sales SET amount = {self.value(rng.randrange(7))} WHERE level = {rng.randrange(5)}")
        else:
            self.both(f"DELETE FROM shops WHERE shop = 's{rng.randrange(4)}'")

    def check(self) -> None:
        self.ours.execute("FLUSH")
        for view, query in self.queries.items():
            expected = Counter(self.duck.execute(query).fetchall())
            assert Counter(self.ours.execute(f"SELECT * FROM {view}").fetchall()) == expected, query


@pytest.mark.parametrize("seed", mostly_slow(range(6), 2))
def test_views_that_only_differ_in_constants(seed, tmp_path):
    sales = Sales(seed, tmp_path / "db")
    with sales.ours:
        for _ in range(8):
            sales.change()
            sales.check()


def test_sums_out_of_range_are_null_and_counted_for_their_views_only(tmp_path):
    with watersmeet.connect(tmp_path / "db", runtime="inprocess") as connection:
        connection.execute("CREATE TABLE t (a bigint)")
        for number in range(4):
            connection.execute(
                f"CREATE MATERIALIZED VIEW v{number} AS SELECT a + {number} AS b FROM t WHERE a > {number}"
            )
        connection.execute(f"INSERT INTO t VALUES (2), ({2**63 - 2}); FLUSH")
        found = [Counter(b for (b,) in connection.execute(f"SELECT b FROM v{n}").fetchall()) for n in range(4)]
    assert found == [Counter([2, 2**63 - 2]), Counter([3, 2**63 - 1]), Counter([None]), Counter([None])]

"""Views with random nested and correlated subqueries, after every step of a random history equal to DuckDB's answer."""

from __future__ import annotations

import random

import duckdb
import pytest

import watersmeet
from tests.nested import SCRIPT, TABLES, Nested
from tests.thorough import mostly_slow, some
from tests.unit.binder.helpers import multiset


class History:
    """One case: tables here and in DuckDB, and views over them."""

    def __init__(self, seed: int, connection: watersmeet.Connection) -> None:
        self.random = random.Random(seed)
        self.connection = connection
        self.judge = duckdb.connect(config={"threads": 1})
        self.views: dict[str, str] = {}
        self.refused = 0
        for statement in SCRIPT.split("; "):
            connection.execute(statement)
        for table in TABLES:
            self.judge.execute(f"CREATE TABLE {table} (id int, k int, x int)")

    def view(self) -> None:
        """One more view, if DuckDB can run its query and it needs no nested loop."""
        sql = Nested(self.random, depth=self.random.choice([1, 2, 2, 3])).query()
        try:
            self.judge.execute(sql).fetchall()
        except duckdb.Error:
            return
        name = f"v{len(self.views)}"
        try:
            self.connection.execute(f"CREATE MATERIALIZED VIEW {name} AS {sql}")
        except watersmeet.Error as found:
            assert found.condition in ("JOIN_WITHOUT_EQUALITY", "FEATURE_NOT_SUPPORTED"), sql
            self.refused += 1
            return
        self.views[name] = sql

    def step(self) -> None:
        """Some changes of both tables."""
        r = self.random
        for _ in range(r.choice([1, 2, 4])):
            table = r.choice(list(TABLES))
            value = r.choice(["NULL", "0", "1", "2", "3"])
            number = r.randrange(9)
            where = r.choice([f"id = {number}", f"k = {value}", f"x > {number}"])
            shape = r.random()
            if shape < 0.55:
                row = f"({number}, {value}, {r.choice(['NULL', '0', '1', '2', '3'])})"
                self.connection.execute(f"INSERT INTO {table} VALUES {row}")
                self.judge.execute(f"DELETE FROM {table} WHERE id = {number}")
                self.judge.execute(f"INSERT INTO {table} VALUES {row}")
                continue
            text = (
                f"UPDATE {table} SET {r.choice(['k', 'x'])} = {value} WHERE {where}"
                if shape < 0.8
                else f"DELETE FROM {table} WHERE {where if r.random() < 0.95 else 'true'}"
            )
            self.connection.execute(text)
            self.judge.execute(text)

    def check(self, moment: str) -> None:
        """Every view has the rows of its query, and so has the query as a batch query."""
        self.connection.execute("FLUSH")
        for name, sql in self.views.items():
            theirs = multiset(self.judge.execute(sql).fetchall())
            for mine in (f"SELECT * FROM {name}", sql):
                assert multiset(self.connection.execute(mine).fetchall()) == theirs, (moment, mine, sql)


def check(seed: int, **options) -> History:
    with watersmeet.connect(**options) as connection:
        history = History(seed, connection)
        for _ in range(2):
            history.view()
        for n in range(3):
            history.step()
            history.check(f"step {n}")
        for _ in range(3):
            history.view()
        history.check("late views")
        for n in range(3, 7):
            history.step()
            history.check(f"step {n}")
        return history


@pytest.mark.parametrize("seed", mostly_slow(range(8), 2))
def test_views_follow(seed: int) -> None:
    check(seed, runtime="inprocess", parallelism=1 + seed % 3)


@pytest.mark.thorough
@pytest.mark.parametrize("start", some(range(2000, 2060, 10)))
def test_views_follow_for_long(start: int) -> None:
    for seed in range(start, start + 10):
        check(seed, runtime="inprocess", parallelism=1 + seed % 3)


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize("parallelism", [2, 1])
def test_views_follow_on_spark(parallelism: int) -> None:
    check(77 + parallelism, parallelism=parallelism)

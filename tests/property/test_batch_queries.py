"""Batch queries with subqueries return the rows of PostgreSQL, also in shapes that views refuse: subqueries that only
inequalities link with the outer query.
"""

from __future__ import annotations

import random

import psycopg
import pytest

import watersmeet
from tests.nested import SCRIPT, TABLES, Nested, Scope, rows
from tests.servers import PostgresDatabase
from tests.thorough import mostly_slow
from tests.unit.binder.helpers import multiset

_COMPARISONS = ("<>", "<>", "<", ">", "<=", ">=")


class Batch(Nested):
    """Queries whose subqueries read more of the outer query: derived tables carry its columns, conditions compare with
    it, and IN takes rows of two values.
    """

    def _item(self, outer: list[Scope], depth: int) -> tuple[Scope, str]:
        if depth > 0 and outer and self.random.random() < 0.5:
            alias = self._alias()
            return [(alias, ("x0", "x1"))], f"({self._select(outer, depth - 1, 2)}) AS {alias}"
        return super()._item(outer, depth)

    def _number(self, scopes: list[Scope], depth: int) -> str:
        if len(scopes) > 1 and self.random.random() < 0.35:
            return self._column(scopes[1:])
        return super()._number(scopes, depth)

    def _correlation(self, scopes: list[Scope]) -> list[str]:
        if len(scopes) > 1 and self.random.random() < 0.4:
            return [self._compared(scopes)]
        return super()._correlation(scopes)

    def _simple(self, scopes: list[Scope]) -> str:
        if len(scopes) > 1 and self.random.random() < 0.4:
            return self._compared(scopes)
        return super()._simple(scopes)

    def _predicate(self, scopes: list[Scope], depth: int) -> str:
        if self.random.random() < 0.25:
            sides = ", ".join(self.random.choice([self._number(scopes, 0), "NULL", "1"]) for _ in range(2))
            return f"({sides}) {self.random.choice(['', 'NOT '])}IN ({self._select(scopes, depth - 1, 2)})"
        return super()._predicate(scopes, depth)

    def _compared(self, scopes: list[Scope]) -> str:
        return f"{self._column(scopes[:1])} {self.random.choice(_COMPARISONS)} {self._column(scopes[1:])}"


def check(seed: int, theirs: psycopg.Connection) -> tuple[int, int]:
    """Some queries over some rows; how many were compared, and how many were refused."""
    r = random.Random(seed)
    compared = refused = 0
    theirs.execute(f"CREATE SCHEMA s{seed}; SET search_path = s{seed}")
    with watersmeet.connect(runtime="inprocess") as ours:
        for statement in [*SCRIPT.split("; "), *(rows(r, t, r.choice([3, 6, 9])) for t in TABLES)]:
            ours.execute(statement)
            theirs.execute(statement)
        for _ in range(12):
            sql = Batch(r, streamable=r.random() < 0.5, depth=r.choice([1, 2, 2, 3])).query()
            try:
                expected = theirs.execute(sql).fetchall()
            except psycopg.errors.FeatureNotSupported:  # FULL JOIN without an equality
                continue
            try:
                found = ours.execute(sql).fetchall()
            except watersmeet.NotSupportedError:
                refused += 1
                continue
            assert multiset(found) == multiset(expected), sql
            compared += 1
    return compared, refused


@pytest.mark.parametrize("seed", mostly_slow(range(40), 3))
def test_as_in_postgresql(seed: int, postgres: PostgresDatabase) -> None:
    with postgres.connect() as theirs:
        compared, refused = check(seed, theirs)
    assert compared > refused

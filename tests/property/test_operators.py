"""Random expressions without parentheses: what binds more than what is as in PostgreSQL (17, 4.1.6), which is asked."""

from __future__ import annotations

import random
from decimal import Decimal

import psycopg
import pytest

import watersmeet
from tests.thorough import mostly_slow

EXPRESSIONS = 250
NUMBERS = (
    "1", "2", "3", "7", "a", "b", "0", "-2", "- 3", "~1", "a::int", "'4'::int", "abs(-2)", "+3", "(SELECT 2)", "|/ 16",
    "CASE WHEN a > 1 THEN 1 ELSE 2 END", "||/ 8", "1 << 2", "a >> 1",
)  # fmt: skip
ARITHMETIC = ("+", "-", "*", "/", "%", "&", "|", "#", "^")
COMPARISONS = ("=", "<>", "<", ">", "<=", ">=", "!=")
TEXTS = ("'x'", "s", "'ab'", "a::text", "upper('q')", "s || 'y'", "a || s", "'z' || 1 + 2")
TRUTHS = ("TRUE", "NOT TRUE", "FALSE", "UNKNOWN", "NULL", "NOT UNKNOWN")


class Expressions:
    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)

    def number(self) -> str:
        text = self.rng.choice(NUMBERS)
        for _ in range(self.rng.choice([0, 1, 1, 2, 3, 4])):
            text += f" {self.rng.choice(ARITHMETIC)} {self.rng.choice(NUMBERS)}"
        return text

    def condition(self) -> str:
        choice, one, other = self.rng.choice, self.number(), self.number()
        compared = f"{one} {choice(COMPARISONS)} {other}"
        made = choice([
            compared,
            f"{one} {choice(['', 'NOT '])}BETWEEN {other} AND {self.number()}",
            f"{one} {choice(['', 'NOT '])}IN ({other}, {self.number()})",
            f"{one} IS {choice(['', 'NOT '])}DISTINCT FROM {other}",
            f"{one} {choice(['IS NULL', 'IS NOT NULL', 'ISNULL', 'NOTNULL'])}",
            f"{compared} IS {choice(TRUTHS)}",
            f"{choice(['t', 'f'])} {choice(COMPARISONS)} NOT {compared}",
            f"{one} {choice(COMPARISONS)} {choice(['ANY', 'ALL'])} (ARRAY[1, {other}])",
            f"{choice(TEXTS)} {choice(COMPARISONS)} {choice(TEXTS)}",
            f"{choice(TEXTS)} {choice(['', 'NOT '])}{choice(['LIKE', 'ILIKE', 'SIMILAR TO'])} 'x%'",
            choice(["t", "f", "NULL::boolean"]),
        ])  # fmt: skip
        return choice(["", "", "", "NOT "]) + made

    def any(self) -> str:
        if self.rng.random() < 0.3:
            return self.number()
        return self.condition() + "".join(
            f" {self.rng.choice(['AND', 'OR'])} {self.condition()}" for _ in range(self.rng.choice([0, 0, 1, 2]))
        )


def same(one: object, other: object) -> bool:
    if isinstance(one, (float, Decimal)) or isinstance(other, (float, Decimal)):
        return float(one) == pytest.approx(float(other), rel=1e-6, abs=1e-9)
    return one == other


@pytest.mark.parametrize("seed", mostly_slow(range(24), 2))
def test_operators_bind_as_in_postgresql(postgres, seed):
    expressions, compared = Expressions(seed), 0
    with (
        psycopg.connect(postgres.server.url(postgres.name), autocommit=True) as server,
        watersmeet.connect(runtime="inprocess", parallelism=1) as connection,
    ):
        for one in (server, connection):
            one.execute("CREATE TABLE q (a int, b int, s varchar, t boolean, f boolean)")
            one.execute("INSERT INTO q VALUES (2, -3, 'x', true, false)")
        connection.execute("FLUSH")
        for _ in range(EXPRESSIONS):
            query = f"SELECT {expressions.any()} FROM q"
            try:
                wanted = server.execute(query).fetchone()[0]
            except psycopg.Error:
                continue  # division by zero, types that do not fit, comparisons in a chain
            try:
                found = connection.execute(query).fetchone()[0]
            except watersmeet.Error as refused:
                assert "shift" in refused.message, query  # PostgreSQL takes the number modulo the bits that there are
                continue
            assert same(found, wanted), query
            compared += 1
    assert compared > EXPRESSIONS // 3

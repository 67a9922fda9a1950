"""What NULL does to predicates; DuckDB confirms each case."""

from __future__ import annotations

import duckdb
import pytest
from tests.trees import p

from watersmeet.algebra.scalars import rejected_columns

CASES = [
    ("a > 1", "a"), ("a = b", "a b"), ("a + 1 = b * 2", "a b"), ("a IS NULL", ""), ("a IS NOT NULL", "a"),
    ("NOT (a IS NULL)", "a"), ("a > 1 AND b > 1", "a b"), ("a > 1 OR b > 1", ""), ("a > 1 OR a = b", "a"),
    ("NOT (a > 1 AND b > 1)", ""), ("NOT (a > 1 OR b > 1)", "a b"), ("coalesce(a, b) > 1", ""),
    ("coalesce(a, a + b) > 1", "a"), ("a IS NOT DISTINCT FROM b", ""), ("a IS DISTINCT FROM 1", ""),
    ("a IN (1, 2)", "a"), ("a NOT IN (1, 2)", "a"), ("a BETWEEN 1 AND b", "a"), ("NOT (a BETWEEN 1 AND 2)", "a"),
    ("CASE WHEN a > 1 THEN b > 1 ELSE TRUE END", ""), ("CAST(a AS BIGINT) = 1", "a"), ("(a > 1) = (b > 1)", "a b"),
    ("(a > 1) IS TRUE", "a"), ("(a > 1) IS NOT TRUE", ""), ("(a IS NULL) = FALSE", ""), ("a IS NULL OR a > 1", ""),
    ("NOT (a IS NULL OR b > 1)", "a b"), ("abs(a) > 1", "a"), ("a > 1 AND (a IS NULL OR b = 1)", "a"),
    ("greatest(a, b) > 1", ""), ("NOT a IN (1)", "a"), ("a = 1 OR (b = 1 AND a = 2)", "a"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "expected"), CASES, ids=lambda c: c or "none")
def test_rejected_columns(text, expected):
    assert rejected_columns(p(text)) == frozenset(expected.split())
    for column in expected.split():
        values = {"a": "(1), (2), (3), (0)", "b": "(1), (2), (3), (0)", column: "(NULL::INT)"}
        query = f"SELECT count(*) FROM (VALUES {values['a']}) x(a), (VALUES {values['b']}) y(b) WHERE {text}"
        assert duckdb.execute(query).fetchone() == (0,)

"""The types of DuckDB's expressions: as an author of SQL sees them, and as their values are."""

from __future__ import annotations

import duckdb
import pytest

from watersmeet.algebra.scalars import Oracle
from watersmeet.values.types import BIGINT, NUMERIC, SqlType


@pytest.mark.parametrize(
    ("sql", "seen", "exact"),
    [
        ("1::BIGINT", BIGINT, BIGINT),
        ("1.5::DECIMAL(18, 3)", NUMERIC, SqlType("numeric", 18, 3)),
        ("1::HUGEINT", NUMERIC, SqlType("numeric", 38, 0)),
        ("[1.5]", SqlType("array", element=NUMERIC), SqlType("array", element=SqlType("numeric", 2, 1))),
        ("{'a': 1::BIGINT}", SqlType("struct", fields=(("a", BIGINT),)), SqlType("struct", fields=(("a", BIGINT),))),
        ("'2024-01-01'::TIMESTAMP_S", SqlType("timestamp"), None),
        ("MAP([1], [2])", None, None),
    ],
)
def test_types(sql, seen, exact):
    oracle = Oracle()
    assert oracle.type_of(sql)[0] == seen
    assert oracle.exact_type_of(sql) == exact


def test_an_expression_that_fails():
    oracle = Oracle()
    for _ in range(2):
        with pytest.raises(duckdb.BinderException):
            oracle.type_of("1 + [1]")
        assert oracle.exact_type_of("1 + [1]") is None


def test_an_answer_that_is_an_error_does_not_grow_each_time_it_is_given():
    oracle, lengths = Oracle(), []
    for _ in range(5):
        with pytest.raises(duckdb.BinderException) as found:
            oracle.type_of("1 + [1]")
        lengths.append(len(found.traceback))
    assert lengths[1:] == [lengths[1]] * 4

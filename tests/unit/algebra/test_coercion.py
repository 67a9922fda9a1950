"""Types that two sides of an equality share, and types of parts of expressions."""

from __future__ import annotations

import pytest
from tests.trees import e

from watersmeet.algebra.nodes import Column
from watersmeet.algebra.trees import cast, common_type, is_exact, part_of
from watersmeet.values.types import (
    BIGINT,
    BYTEA,
    DATE,
    DOUBLE,
    INTEGER,
    INTERVAL,
    JSONB,
    NUMERIC,
    REAL,
    SMALLINT,
    TIMESTAMP,
    TIMESTAMPTZ,
    VARCHAR,
    SqlType,
)


def numeric(p, s):
    return SqlType("numeric", p, s)


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        (SMALLINT, INTEGER, INTEGER),
        (INTEGER, BIGINT, BIGINT),
        (BIGINT, NUMERIC, NUMERIC),
        (INTEGER, numeric(10, 2), numeric(12, 2)),
        (numeric(10, 2), numeric(8, 4), numeric(12, 4)),
        (numeric(38, 0), numeric(38, 10), numeric(38, 10)),
        (REAL, INTEGER, DOUBLE),
        (REAL, REAL, REAL),
        (NUMERIC, DOUBLE, DOUBLE),
        (DATE, TIMESTAMP, TIMESTAMP),
        (TIMESTAMP, TIMESTAMPTZ, TIMESTAMPTZ),
        (VARCHAR, INTEGER, None),
        (JSONB, VARCHAR, None),
        (BYTEA, BYTEA, BYTEA),
        (SqlType("array", element=INTEGER), SqlType("array", element=BIGINT), SqlType("array", element=BIGINT)),
    ],
)
def test_common_type(one, other, expected):
    assert common_type(one, other) == expected
    assert common_type(other, one) == expected


def test_exactness():
    assert is_exact(INTEGER, BIGINT)
    assert is_exact(BIGINT, NUMERIC)
    assert not is_exact(numeric(38, 0), numeric(38, 10))
    assert not is_exact(BIGINT, DOUBLE)
    assert is_exact(DATE, TIMESTAMPTZ)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("i", INTEGER),
        ("(i)", INTEGER),
        ("i + 1", INTEGER),
        ("i + CAST(1 AS BIGINT)", BIGINT),
        ("v || 'x'", VARCHAR),
        ("CAST(v AS JSON)", JSONB),
        ("n * 2", numeric(15, 2)),
        ("d + INTERVAL 1 DAY", TIMESTAMP),
        ("i > 1", SqlType("boolean")),
        ("INTERVAL 1 DAY", INTERVAL),
        ("[i, 1]", SqlType("array", element=INTEGER)),
        ("no_such_function(i)", None),
        ("{'a': i}", SqlType("struct", fields=(("a", INTEGER),))),
    ],
)
def test_types_of_parts(text, expected):
    columns = [
        Column("i", "i", INTEGER),
        Column("v", "v", VARCHAR),
        Column("n", "n", numeric(10, 2)),
        Column("d", "d", DATE),
    ]
    found = part_of(e(text).expression, columns)
    if expected is None:
        assert found is None
    elif text == "n * 2":
        assert found.type.name == "numeric"
    else:
        assert found.type == expected


@pytest.mark.parametrize(
    "target",
    [
        BIGINT,
        numeric(38, 10),
        TIMESTAMPTZ,
        INTERVAL,
        JSONB,
        BYTEA,
        SqlType("array", element=BIGINT),
        SqlType("struct", fields=(("a b", INTEGER),)),
    ],
)
def test_cast_is_sql_of_duckdb(target):
    assert part_of(cast(e("NULL"), target).expression, []).type == target

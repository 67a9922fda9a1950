"""Parameters are literals of the tree, in the order of the text."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

import pytest

from watersmeet.database.sessions.result import Interval
from watersmeet.dialects.parsing import parse
from watersmeet.errors import Error


def bound(sql, *values):
    return parse(sql, "risingwave", values)[0].query.sql("duckdb")


def test_order_is_that_of_the_text_and_not_of_the_tree():
    sql = "WITH q AS (SELECT ? AS x) SELECT ?, q.* FROM q JOIN (SELECT ? AS y) AS z ON z.y = ? WHERE x = ? LIMIT ?"
    assert bound(sql, 1, 2, 3, 4, 5, 6) == (
        "WITH q AS (SELECT 1 AS x) SELECT 2, q.* FROM q JOIN (SELECT 3 AS y) AS z ON z.y = 4 WHERE x = 5 LIMIT 6"
    )


def test_a_question_mark_in_a_string_a_comment_or_a_cast():
    assert bound("SELECT '?', ?::int /* ? */ FROM t -- ?", 7) == "SELECT '?', CAST(7 AS INT) /* ? */ FROM t /* ? */"


@pytest.mark.parametrize(
    ("value", "sql"),
    [
        (None, "NULL"),
        (True, "TRUE"),
        (-3, "-3"),
        ("it's; DROP TABLE t --", "'it''s; DROP TABLE t --'"),
        (Decimal("1.50"), "1.50"),
        (float("nan"), "CAST('nan' AS DOUBLE)"),
        (b"\x00\xff", "CAST('\\x00ff' AS BLOB)"),
        (dt.date(2024, 2, 29), "CAST('2024-02-29' AS DATE)"),
        (dt.datetime(2024, 1, 2, 3, 4, 5), "CAST('2024-01-02 03:04:05' AS TIMESTAMP)"),
        (dt.datetime(2024, 1, 2, tzinfo=dt.UTC), "CAST('2024-01-02 00:00:00+00:00' AS TIMESTAMPTZ)"),
        (dt.time(1, 2), "CAST('01:02:00' AS TIME)"),
        (dt.timedelta(days=1, seconds=2), "CAST('1 days 2000000 microseconds' AS INTERVAL)"),
        (Interval(14, 3, 5), "CAST('14 months 3 days 5 microseconds' AS INTERVAL)"),
        ({"a": [1, None]}, "CAST('{\"a\": [1, null]}' AS JSON)"),
        ([1, 2], "[1, 2]"),
    ],
)
def test_values_are_literals_of_their_types(value, sql):
    assert bound("SELECT ?", value) == f"SELECT {sql}"


@pytest.mark.parametrize(
    ("sql", "values", "message"),
    [
        ("SELECT ?, ?", [1], "no value for parameter 2"),
        ("SELECT ?", [1, 2], "the statement has 1 parameters, but 2 values were given"),
        ("SELECT ?", [], "no value for parameter 1"),
        ("SELECT ?", [object()], "a parameter can't be a value of Python's type object"),
        ("SHOW TABLES", [1], "SHOW takes no parameters"),
    ],
)
def test_wrong_values(sql, values, message):
    with pytest.raises(Error) as found:
        parse(sql, "risingwave", values)
    assert (found.value.condition, found.value.message) == ("INVALID_PARAMETER", message)

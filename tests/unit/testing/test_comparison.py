"""Values as written in text tests."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

import pytest

from watersmeet.testing import difference, read, written


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "NULL"),
        (True, "true"),
        (5, "5"),
        (Decimal("5.0"), "5"),
        (Decimal("0.70"), "0.7"),
        (-0.0, "0"),
        (float("nan"), "NaN"),
        (float("-inf"), "-Infinity"),
        (1e20, "100000000000000000000"),
        (Decimal("-0.00"), "0"),
        (dt.datetime(2024, 1, 2, 3, 4, 5, 600000), "2024-01-02 03:04:05.6"),
        (dt.date(2024, 1, 2), "2024-01-02"),
        (dt.datetime(2024, 1, 2, 3, tzinfo=dt.UTC), "2024-01-02 03:00:00"),
        (dt.time(1, 2, 3), "01:02:03"),
        (b"\x01\xff", "\\x01ff"),
        ([1, None], "[1, null]"),
        ("a b", "a b"),
    ],
)
def test_written(value, text):
    assert written(value) == text


@pytest.mark.parametrize(
    ("text", "like", "result"),
    [
        ("5.0", [5], "5"),
        ("0.70", [None, Decimal("0.7")], "0.7"),
        ("t", [True], "true"),
        ("NULL", [1], "NULL"),
        ("''", ["x"], ""),
        ("2024-01-02 03:04:05.600", [dt.datetime(2024, 1, 1)], "2024-01-02 03:04:05.6"),
        ("x", [1], "x"),
        ("5.0", ["text"], "5.0"),
    ],
)
def test_read_by_the_type_of_the_column(text, like, result):
    assert read(text, like) == result


def test_difference_counts_duplicates():
    assert difference([("a",), ("a",)], [("a",), ("a",)]) is None
    assert difference([("a",), ("a",)], [("a",), ("b",)]) == "  missing: a\n  surplus: b"

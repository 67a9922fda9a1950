"""Results of sqllogictest files: the ways to write them, and what must not be taken for equal."""

from __future__ import annotations

import datetime as dt
import hashlib
from decimal import Decimal

import pytest

from watersmeet.database.sessions.result import Interval
from watersmeet.testing import error_matches, mismatch
from watersmeet.values import types as t
from watersmeet.values.types import SqlType

ROWS = [(1, "a b", None), (2, "", Decimal("1.50"))]
KINDS = [t.INTEGER, t.VARCHAR, SqlType("numeric", 10, 2)]


@pytest.mark.parametrize(
    "lines",
    [
        ["1\ta b\tNULL", "2\t(empty)\t1.5"],
        ["1 a b NULL", "2 (empty) 1.50"],
        ["1   a b  NULL", "2 (empty) 1.50"],
        ["1", "a b", "NULL", "2", "(empty)", "1.5"],
    ],
)
def test_the_forms_of_rows(lines):
    assert mismatch(lines, ROWS, KINDS, ()) is None


@pytest.mark.parametrize(
    "lines",
    [
        ["1\ta b\tNULL"],
        ["1 a b NULL", "2 (empty) 1.51"],
        ["2 (empty) 1.5", "1 a b NULL"],
        ["1 a NULL", "2 (empty) 1.5"],
        [],
        ["1 a b NULL", "2 (empty) 1.5", "2 (empty) 1.5"],
        ["1 a b (empty)", "2 (empty) 1.5"],
    ],
)
def test_what_is_not_equal(lines):
    assert mismatch(lines, ROWS, KINDS, ()) is not None


def test_modes():
    assert mismatch(["2 (empty) 1.5", "1 a b NULL"], ROWS, KINDS, ["rowsort"]) is None
    assert mismatch(["2", "1"], [(1,), (2,)], [t.INTEGER], ["valuesort"]) is None
    text = mismatch(["2 (empty) 1.5", "3 x NULL"], ROWS, KINDS, ["rowsort"])
    assert text == "  missing: 3 x NULL\n  surplus: 1\ta b\tNULL"
    assert "(in this order)" in mismatch(["2 (empty) 1.5", "1 a b NULL"], ROWS, KINDS, ())


@pytest.mark.parametrize(
    ("value", "kind", "text"),
    [
        (True, t.BOOLEAN, "t"),
        (True, t.BOOLEAN, "1"),
        (False, t.BOOLEAN, "false"),
        (0.5, t.DOUBLE, "0.50"),
        (dt.datetime(2024, 1, 1, 2), t.TIMESTAMP, "2024-01-01 02:00:00"),
        (dt.datetime(2024, 1, 1, tzinfo=dt.UTC), t.TIMESTAMPTZ, "2024-01-01 00:00:00+00:00"),
        (Interval(0, 1, 0), t.INTERVAL, "1 day"),
        (Interval(14, -3, 60_500_000), t.INTERVAL, "1 year 2 mons -3 days +00:01:00.5"),
        ([1, None], SqlType("array", element=t.INTEGER), "{1,NULL}"),
        ([1, 2], SqlType("array", element=t.INTEGER), "[1, 2]"),
        ({"a": [1, None]}, t.JSONB, '{"a": [1, null]}'),
        (b"\x01", t.BYTEA, "\\x01"),
        ({"f1": 1, "f2": "x y"}, SqlType("struct", fields=(("f1", t.INTEGER), ("f2", t.VARCHAR))), '(1,"x y")'),
    ],
)
def test_values(value, kind, text):
    assert mismatch([text], [(value,)], [kind], ()) is None
    assert mismatch([f"7 {text} end"], [(7, value, "end")], [t.INTEGER, kind, t.VARCHAR], ()) is None


def test_hash():
    digest = hashlib.md5(b"1\nx\n2\ny\n").hexdigest()
    rows = [(2, "y"), (1, "x")]
    assert mismatch([f"4 values hashing to {digest}"], rows, [t.INTEGER, t.VARCHAR], ["rowsort"]) is None
    assert "hashing" in mismatch([f"4 values hashing to {digest}"], rows, [t.INTEGER, t.VARCHAR], ())


ERROR = (
    'error[UNDEFINED_COLUMN] 42703: column "x" does not exist\nLINE 1: SELECT x\n               ^\nhint: Did you '
    'mean "y"?'
)


@pytest.mark.parametrize(
    "pattern",
    [
        "",
        'column "x" does not exist',
        "UNDEFINED_COLUMN",
        "column .* not exist",
        "<REGEX>:.*column.*mean.*",
        ERROR,
        (
            'db error: ERROR: Failed to run the query\n\nCaused by:\n  Item not found: column "x" does not '
            'exist\nHINT: Did you mean "y"?'
        ),
        (
            "db error: ERROR: Failed to run the query\n\nCaused by these errors (recent errors listed "
            "first):\n  1: Failed to bind"
            '\n  2: column "x" does not exist'
        ),
    ],
)
def test_errors(pattern):
    assert error_matches(pattern, ERROR)


@pytest.mark.parametrize(
    "pattern",
    [
        "relation",
        "<REGEX>:^nothing$",
        "(unbalanced",
        "db error: ERROR: Failed to run the query\n\nCaused by:\n  Bind error: other",
        "db error: ERROR: Failed to run the query",
    ],
)
def test_other_errors(pattern):
    assert not error_matches(pattern, ERROR)

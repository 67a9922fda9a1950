"""Bounds between the times of a join's sides; DuckDB confirms them over all pairs of small times."""

from __future__ import annotations

import duckdb
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.thorough import examples
from tests.trees import e, p

from watersmeet.algebra.nodes import Column, Join, KeyPair, Scan
from watersmeet.algebra.watermarks import time_bounds
from watersmeet.values.types import DATE, INTEGER, INTERVAL, TIMESTAMP, TIMESTAMPTZ

S, DAY = 1_000_000, 86_400_000_000
COLUMNS = {"k": INTEGER, "ts": TIMESTAMP, "te": TIMESTAMP, "tz": TIMESTAMPTZ, "d": DATE, "i": INTERVAL}


def side(name):
    columns = tuple(Column(f"{name}.{c}", c, t) for c, t in COLUMNS.items())
    return Scan(name, name, columns, tuple(COLUMNS), append_only=True)


LEFT, RIGHT = side("l"), side("r")


def bounds_of(residual, keys=(), kind="inner"):
    pairs = tuple(KeyPair(e(a, t), e(b, t), null_safe=safe) for a, b, t, safe in keys)
    node = Join(LEFT, RIGHT, kind, pairs, None if residual is None else p(residual))
    return [(b.left.expression.sql(), b.right.expression.sql(), b.lo_us, b.hi_us) for b in time_bounds(node)]


def ids(a, b):
    return f'"{a}"', f'"{b}"'


CASES = [
    ("l.ts >= r.ts AND l.ts <= r.ts + INTERVAL '1 minute'", ("l.ts", "r.ts", 0, 60 * S)),
    ("l.ts + INTERVAL '1' MINUTE > r.ts", ("l.ts", "r.ts", -60 * S, None)),
    ("r.ts - INTERVAL '30 seconds' < l.ts - INTERVAL '10 seconds' - CAST('5 SECOND' AS INTERVAL)", ("l.ts", "r.ts",
      -15 * S, None)),
    ("(r.ts) <= (l.ts)", ("l.ts", "r.ts", 0, None)),
    ("INTERVAL '1 day' + l.ts <= r.ts", ("l.ts", "r.ts", None, -DAY)),
    ("l.ts - r.ts < INTERVAL '2 hours'", ("l.ts", "r.ts", None, 7200 * S)),
    ("- INTERVAL '2 hours' <= r.ts - l.ts", ("l.ts", "r.ts", None, 7200 * S)),
    ("l.ts < r.ts + INTERVAL '1 month'", ("l.ts", "r.ts", None, 31 * DAY)),
    ("l.ts > r.ts + INTERVAL '2 months 1 day'", ("l.ts", "r.ts", 57 * DAY, None)),
    ("l.ts > r.ts - INTERVAL '1 year 1 month'", ("l.ts", "r.ts", -397 * DAY, None)),
    ("l.ts - r.ts > INTERVAL '1 year'", ("l.ts", "r.ts", 360 * DAY, None)),  # of intervals a month counts as 30 days
    ("l.ts < r.ts + 2 * INTERVAL '90 seconds'", ("l.ts", "r.ts", None, 180 * S)),
    ("l.d - r.d <= 3", ("l.d", "r.d", None, 3 * DAY)),
    ("CAST(l.d - r.d AS INT) > -2", ("l.d", "r.d", -2 * DAY, None)),
    ("l.d + 1 <= r.d", ("l.d", "r.d", None, -DAY)),
    ("CAST(l.d AS TIMESTAMP) >= r.ts", ("l.d", "r.ts", 0, None)),
    ("CAST(l.ts AS TIMESTAMPTZ) >= r.tz - INTERVAL '1 s'", ("l.ts", "r.tz", -S, None)),
    ("l.ts >= r.ts AND l.ts >= r.ts + INTERVAL '5 s' AND l.ts <= r.ts", ("l.ts", "r.ts", 5 * S, 0)),  # no pair
]  # fmt: skip


@pytest.mark.parametrize(("text", "expected"), CASES, ids=lambda c: c if isinstance(c, str) else "")
def test_bounds(text, expected):
    assert bounds_of(text) == [(*ids(*expected[:2]), *expected[2:])]


NOTHING = [
    "l.ts < r.ts + NULL::INTERVAL",
    "l.ts < r.ts + l.i", "CAST(l.ts AS DATE) <= r.d", "l.ts <> r.ts", "NOT l.ts < r.ts", "l.ts < r.ts OR l.k = 1",
    "l.ts <= l.te", "l.ts < TIMESTAMP '2024-01-01'", "l.ts <= greatest(r.ts, l.te)", "l.k < r.k", "l.i < r.i",
    "l.ts - r.ts < r.ts - l.ts", "l.ts IS NOT DISTINCT FROM r.ts", "l.ts < r.ts + INTERVAL (l.k) SECOND",
    "l.ts < r.ts + CAST(random()::VARCHAR || ' s' AS INTERVAL)",
]  # fmt: skip


@pytest.mark.parametrize("text", NOTHING)
def test_what_bounds_nothing(text):
    assert bounds_of(text) == []


def test_equalities_of_keys_come_first_and_are_exact():
    keys = [
        ("l.k", "r.k", INTEGER, False),
        ("l.ts", "r.ts", TIMESTAMP, False),
        ("date_trunc('day', l.te)", "r.te", TIMESTAMP, False),
    ]
    found = bounds_of("l.te <= r.ts AND l.ts >= r.ts - INTERVAL '1 s'", keys)
    assert found == [
        (*ids("l.ts", "r.ts"), 0, 0),
        ('TIMESTAMP_TRUNC("l.te", DAY)', '"r.te"', 0, 0),
        (*ids("l.te", "r.ts"), None, 0),
    ]


def test_nulls_that_meet_have_no_bound():
    assert bounds_of(None, [("l.ts", "r.ts", TIMESTAMP, True)]) == []


def test_several_columns_have_a_bound_each():
    assert bounds_of("r.ts BETWEEN l.ts AND l.te".replace("BETWEEN l.ts AND", ">= l.ts AND r.ts <=")) == [
        (*ids("l.ts", "r.ts"), None, 0),
        (*ids("l.te", "r.ts"), 0, None),
    ]


def test_mirrored():
    (bound,) = time_bounds(Join(LEFT, RIGHT, "inner", (), p("l.ts >= r.ts AND l.ts <= r.ts + INTERVAL '1 minute'")))
    turned = bound.mirrored
    assert (turned.left, turned.right, turned.lo_us, turned.hi_us) == (bound.right, bound.left, -60 * S, 0)
    assert turned.mirrored == bound


def interval(seconds):
    return f"INTERVAL '{seconds} seconds'"


@st.composite
def sums(draw, column):
    text = column
    for _ in range(draw(st.integers(0, 3))):
        length = interval(draw(st.integers(-4, 4)))
        text = draw(st.sampled_from(["({} + {})", "({} - {})"])).format(text, length)
    return text


@st.composite
def conditions(draw):
    parts = []
    for _ in range(draw(st.integers(1, 3))):
        sides = [draw(sums("l.ts")), draw(sums("r.ts"))]
        if draw(st.booleans()):
            sides.reverse()
        if draw(st.booleans()):
            sides = [f"{sides[0]} - {sides[1]}", interval(draw(st.integers(-5, 5)))]
        parts.append(f" {draw(st.sampled_from(['<', '<=', '>', '>=']))} ".join(sides))
    return parts


@examples(150)
@given(conditions())
def test_brute_force(parts):
    text = " AND ".join(parts)
    ((_, _, lo, hi),) = bounds_of(text)
    times = "(SELECT TIMESTAMP '2024-01-01' + to_seconds(x) AS ts FROM range(-30, 31) t(x) UNION ALL SELECT NULL)"
    differences = {
        d
        for (d,) in duckdb.execute(
            f"SELECT DISTINCT datediff('second', r.ts, l.ts) FROM {times} l, {times} r WHERE {text}"
        ).fetchall()
    }
    lo = -60 if lo is None else lo // S
    hi = 60 if hi is None else hi // S
    expected = set(range(max(lo, -60), min(hi, 60) + 1))
    strict = {d for d in (lo, hi) if d not in differences}
    assert differences <= expected
    assert expected - differences <= strict  # only < counts as <=

"""Windows as expressions: their values by DuckDB against the definition, and that they are recognised again."""

from __future__ import annotations

import datetime as dt
import functools

import pytest
from sqlglot import exp, parse_one

from watersmeet.algebra.timewindows import TimeWindow, floor_of, least_of
from watersmeet.kernel.evaluation.duck import connect
from watersmeet.values.types import TIMESTAMP, TIMESTAMPTZ

SECOND = 1_000_000
EPOCH = dt.datetime(1970, 1, 1)
WINDOWS = (
    TimeWindow("tumble", 60 * SECOND, 60 * SECOND), TimeWindow("tumble", 86_400 * SECOND * 7, 86_400 * SECOND * 7,
    3 * SECOND),
    TimeWindow("hop", 20 * SECOND, 60 * SECOND), TimeWindow("hop", 7, 21, 5), TimeWindow("hop", SECOND, SECOND),
)  # fmt: skip
TIMES = (0, 1, -1, 59 * SECOND, 60 * SECOND, -60 * SECOND, 1_700_000_000_123_456, -1_700_000_000_123_456)


@functools.cache
def connection():
    return connect()


def value(expression):
    with connection().cursor() as cursor:
        return cursor.execute(f"SELECT {expression.sql(dialect='duckdb')}").fetchone()[0]


def at(time_us, kind):
    return parse_one(f"CAST('{EPOCH + dt.timedelta(microseconds=time_us)}+00' AS {kind.duckdb})", dialect="duckdb")


def micros(time):
    return (time.replace(tzinfo=None) - EPOCH) // dt.timedelta(microseconds=1)


@pytest.mark.parametrize("window", WINDOWS, ids=str)
@pytest.mark.parametrize("kind", [TIMESTAMP, TIMESTAMPTZ], ids=lambda k: k.name)
def test_the_windows_are_those_that_hold_the_time(window, kind):
    for time_us in TIMES:
        starts = [micros(t) for t in value(window.starts(at(time_us, kind), kind))]
        # The definition: every start is aligned, every window holds the time, and there are size / slide of them.
        assert all((s - window.offset_us) % window.slide_us == 0 for s in starts)
        assert all(s <= time_us < s + window.size_us for s in starts)
        assert len(starts) == len(set(starts)) == window.size_us // window.slide_us
        assert starts == sorted(starts)
        assert micros(value(window.last_start(at(time_us, kind), kind))) == starts[-1]
        assert micros(value(window.end(window.last_start(at(time_us, kind), kind)))) == starts[-1] + window.size_us


@pytest.mark.parametrize("kind", [TIMESTAMP, TIMESTAMPTZ], ids=lambda k: k.name)
def test_null_is_in_no_window(kind):
    null = exp.cast(exp.null(), kind.duckdb, dialect="duckdb")
    assert value(WINDOWS[0].last_start(null, kind)) is None
    assert value(WINDOWS[2].starts(null, kind)) is None


@pytest.mark.parametrize("window", WINDOWS, ids=str)
def test_windows_are_recognised(window):
    time = exp.column("t")
    assert floor_of(window.last_start(time, TIMESTAMPTZ)) == (time, window.slide_us, window.offset_us)
    first = least_of(exp.paren(window.starts(time, TIMESTAMP)))
    before = window.size_us - window.slide_us
    assert first == (
        window.last_start(time, TIMESTAMP)
        if not before
        else exp.Sub(this=window.last_start(time, TIMESTAMP), expression=first.expression)
    )


@pytest.mark.parametrize("text", ["date_trunc('hour', t)", "t", "abs(t)", "[t]", "generate_series(1, 3)"])
def test_other_expressions_are_not(text):
    node = parse_one(text, dialect="duckdb")
    assert floor_of(node) is None
    assert least_of(node) is None


def test_their_names():
    assert [str(w) for w in WINDOWS] == [
        "TUMBLE, size 00:01:00",
        "TUMBLE, size 168:00:00, offset 00:00:03",
        "HOP, slide 00:00:20, size 00:01:00",
        "HOP, slide 00:00:00.000007, size 00:00:00.000021, offset 00:00:00.000005",
        "HOP, slide 00:00:01, size 00:00:01",
    ]

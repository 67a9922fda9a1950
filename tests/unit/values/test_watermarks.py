"""Watermarks as terms over the sources' numbers."""

from __future__ import annotations

import datetime as dt

import duckdb
from hypothesis import assume, given
from hypothesis import strategies as st

from watersmeet.values.serialization import from_json, to_json
from watersmeet.values.watermarks import MonthStep, Step, Term, both, by_months, floored, shifted, value

DUCKDB = duckdb.connect()
A, B = (Term("s1"),), (Term("s2"),)
TIMES = st.integers(-(10**15), 10**15)


def test_both_is_the_least_and_nothing_with_nothing():
    assert value(both(A, B), {"s1": 5, "s2": 3}) == 3
    assert value(both(A, B), {"s1": 5}) is None
    assert both(A, ()) == ()
    assert value((), {"s1": 5}) is None


def test_additions_are_one_and_nothing_added_is_no_step():
    assert shifted(shifted(A, 5), -2) == (Term("s1", (Step("add", 3),)),)
    assert shifted(shifted(A, 5), -5) == A


@given(TIMES, st.integers(1, 10**10), st.integers(-(10**10), 10**10), TIMES)
def test_a_window_starts_at_or_before_its_times_and_never_falls_behind(time_us, size_us, origin_us, later_us):
    start = value(floored(A, size_us, origin_us), {"s1": time_us})
    assert start is not None
    assert start <= time_us < start + size_us
    assert (start - origin_us) % size_us == 0
    later = value(floored(A, size_us, origin_us), {"s1": max(time_us, later_us)})
    assert later is not None
    assert later >= start


def test_terms_come_back_from_json():
    for term in shifted(by_months(floored(shifted(A, 7), 60, 5), "floor_months", 3), -3):
        assert from_json(Term, to_json(term)) == term


MOMENTS = st.datetimes(dt.datetime(1, 1, 1), dt.datetime(9999, 12, 31)) | st.builds(
    lambda day, us: dt.datetime(2023, 1, 25) + dt.timedelta(days=day, microseconds=us),
    st.integers(0, 800),
    st.integers(0, 86_399_999_999),
)
STEPS = [
    ("floor_months", n, f"date_trunc('{unit}', ?::TIMESTAMP)")
    for n, unit in ((1, "month"), (3, "quarter"), (12, "year"), (120, "decade"))
]
STEPS += [("add_months", n, f"?::TIMESTAMP + INTERVAL '{n} months'") for n in (-13, -12, -1, 1, 2, 12)]


@given(MOMENTS, MOMENTS, st.sampled_from(STEPS))
def test_no_later_time_is_before_a_step_of_months(time, later, step):
    kind, months, sql = step
    time, later = sorted((time, later))
    assume(dt.datetime(3, 1, 1) <= time and later <= dt.datetime(9997, 1, 1))
    mark, after = (value(by_months(A, kind, months), {"s1": _us(t)}) for t in (time, later))
    own, found = (_us(DUCKDB.execute(f"SELECT {sql}", [t]).fetchone()[0]) for t in (time, later))
    assert mark <= after
    assert mark <= min(own, found)
    assert own - mark < 24 * 3600 * 10**6
    assert kind == "add_months" or own == mark


@given(MOMENTS, MOMENTS, st.integers(-14, 14))
def test_months_of_the_clock_are_the_greatest_sum_of_all_earlier_times(time, earlier, months):
    earlier, time = sorted((time, earlier))
    assume(dt.datetime(3, 1, 1) <= earlier and time <= dt.datetime(9997, 1, 1))
    mark = Term("a", (MonthStep("clock_months", months),)).value({"a": _us(time)})
    sql = f"SELECT ?::TIMESTAMP + INTERVAL '{months} months'"
    sums = [_us(DUCKDB.execute(sql, [t]).fetchone()[0]) for t in (time, earlier)]
    assert mark >= max(sums)
    # the day before may be the last one of the target month, at the end of which the sum is the greatest
    last = [time.replace(hour=23, minute=59, second=59, microsecond=999_999) - dt.timedelta(days=n) for n in (1, 2, 3)]
    assert mark == max(sums[0], *(_us(DUCKDB.execute(sql, [t]).fetchone()[0]) for t in last))


def test_steps_of_months_at_the_ends_of_time():
    assert value(by_months(A, "add_months", 1), {"s1": _us(dt.datetime(2023, 1, 31, 5))}) == _us(
        dt.datetime(2023, 2, 28)
    )
    assert value(by_months(A, "add_months", 1), {"s1": _us(dt.datetime(2023, 1, 27, 5))}) == _us(
        dt.datetime(2023, 2, 27, 5)
    )
    for infinite in (2**63 - 1, 1 - 2**63, -(2**63)):
        assert value(by_months(A, "floor_months", 12), {"s1": infinite}) == infinite
    assert value(by_months(A, "add_months", 10**7), {"s1": 0}) == 2**63 - 1


def _us(time):
    return (time - dt.datetime(1970, 1, 1)) // dt.timedelta(microseconds=1)

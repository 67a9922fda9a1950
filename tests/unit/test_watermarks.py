"""Watermarks as terms over the sources' numbers."""

from __future__ import annotations

from dataclasses import asdict

from hypothesis import given
from hypothesis import strategies as st

from watersmeet.watermarks import Step, Term, both, floored, shifted, value

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
    for term in shifted(floored(shifted(A, 7), 60, 5), -3):
        assert Term.from_json(**asdict(term)) == term

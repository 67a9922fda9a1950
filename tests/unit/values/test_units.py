"""Lengths of time as people write them."""

from __future__ import annotations

import pytest

from watersmeet.values.times import DAY_US, length_us, unit_us


@pytest.mark.parametrize(
    ("text", "length"),
    [
        ("1h30m", 5_400_000_000),
        ("1 hour 30 minutes", 5_400_000_000),
        (" 2 Days ", 2 * DAY_US),
        ("500ms", 500_000),
        ("3 usecs", 3),
        ("1 week -1 day", 6 * DAY_US),
        ("5 hrs", 18_000_000_000),
        ("5 mins 1 sec", 301_000_000),
        ("", None),
        ("5", None),
        ("s", None),
        ("1 month", None),
        ("1h,5m", None),
        ("1.5 hours", None),
    ],
)
def test_lengths(text, length):
    assert length_us(text) == length


def test_a_unit_that_ends_in_s_is_not_taken_for_a_plural():
    assert (unit_us("ms"), unit_us("MS"), unit_us("m"), unit_us("us")) == (1000, 1000, 60_000_000, 1)

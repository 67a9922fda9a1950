"""Units of time that have one length, and lengths of time that are written with them."""

from __future__ import annotations

import re
from typing import Final

SECOND_US: Final = 1_000_000
#: Of times in UTC, in which everything is computed.
DAY_US: Final = 86_400_000_000

#: The length of a unit in microseconds.
UNITS_US: Final = {
    "microsecond": 1,
    "millisecond": 1_000,
    "second": SECOND_US,
    "minute": 60 * SECOND_US,
    "hour": 3600 * SECOND_US,
    "day": DAY_US,
    "week": 7 * DAY_US,
}
#: The unit that an abbreviation stands for.
ABBREVIATED: Final = {
    "us": "microsecond",
    "ms": "millisecond",
    "s": "second",
    "m": "minute",
    "h": "hour",
    "d": "day",
    "w": "week",
}
_LENGTHS_US: Final = {
    **UNITS_US,
    **{short: UNITS_US[unit] for short, unit in ABBREVIATED.items()},
    **{short: UNITS_US[unit] for short, unit in (("usec", "microsecond"), ("msec", "millisecond"), ("sec", "second"))},
    **{short: UNITS_US[unit] for short, unit in (("min", "minute"), ("hr", "hour"))},
}
_PART: Final = re.compile(r"\s*([+-]?\d+)\s*([a-z]+)(?=[\s\d]|$)")


def unit_us(word: str) -> int | None:
    """The length of the unit that is called `s`, `sec`, `second` or `seconds`, in any case; None if there is none."""
    word = word.lower()
    return _LENGTHS_US.get(word) or _LENGTHS_US.get(word.removesuffix("s"))


def length_us(text: str) -> int | None:
    """The length of `1 hour 30 minutes`, `1h30m`, `-5s` …; None for anything else."""
    text = text.strip().lower()
    total, at = 0, 0
    while at < len(text):
        part = _PART.match(text, at)
        unit = None if part is None else unit_us(part[2])
        if part is None or unit is None:
            return None
        total += int(part[1]) * unit
        at = part.end()
    return total if text else None


def length_text(length_us: int) -> str:
    """A length of time above or at 0 in the largest unit of which it is a whole number: `90 minutes`."""
    unit, size_us = next((u, n) for u, n in sorted(UNITS_US.items(), key=lambda p: -p[1]) if length_us % n == 0)
    if not length_us:
        unit, size_us = "second", SECOND_US
    count = length_us // size_us
    return f"{count} {unit}{'' if count == 1 else 's'}"

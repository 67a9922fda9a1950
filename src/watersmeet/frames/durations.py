"""Lengths of time, as timedelta or as text in Spark's manner."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Final

from watersmeet.errors import error
from watersmeet.frames.shapes import microseconds
from watersmeet.types import DAY_US

_UNITS: Final = {
    **dict.fromkeys(("us", "microsecond"), 1),
    **dict.fromkeys(("ms", "millisecond"), 1000),
    **dict.fromkeys(("s", "sec", "second"), 1_000_000),
    **dict.fromkeys(("m", "min", "minute"), 60_000_000),
    **dict.fromkeys(("h", "hour"), 3_600_000_000),
    **dict.fromkeys(("d", "day"), DAY_US),
    **dict.fromkeys(("w", "week"), 7 * DAY_US),
}
#: Longer ones would leave the range of times when they are added to one: 36,000 years.
_LONGEST_US: Final = 1 << 60
_PART: Final = re.compile(r"\s*([+-]?\d+)\s*([a-z]+)(?=[\s\d]|$)")


def duration_us(value: timedelta | str, what: str) -> int:
    """Microseconds of a timedelta, or of a text such as "1 hour 30 minutes" or "1h30m".

    INVALID_PARAMETER for anything else.
    """
    length = microseconds(value) if isinstance(value, timedelta) else _of_text(value, what)
    if abs(length) > _LONGEST_US:
        raise error(
            "INVALID_PARAMETER",
            f"{what} is {value!r}, which is too long",
            hint="The longest is 36,000 years. None is no bound.",
        )
    return length


def _of_text(value: str, what: str) -> int:
    text = value.strip().lower().removeprefix("interval ") if isinstance(value, str) else ""
    total, at = 0, 0
    while at < len(text):
        part = _PART.match(text, at)
        unit = None if part is None else _UNITS.get(part[2]) or _UNITS.get(part[2].removesuffix("s"))
        if part is None or unit is None:
            break
        total += int(part[1]) * unit
        at = part.end()
    if not text or at < len(text):
        raise error(
            "INVALID_PARAMETER",
            f"{what} is {value!r}, which is no length of time",
            hint='Use a timedelta or a text such as "1m" or "2 hours 30 seconds"; months have no fixed length.',
        )
    return total

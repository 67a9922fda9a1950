"""Lengths of time, as timedelta or as text in Spark's manner."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from watersmeet.errors import error
from watersmeet.frames.shapes import microseconds
from watersmeet.units import length_us

#: Longer ones would leave the range of times when they are added to one: 36,000 years.
_LONGEST_US: Final = 1 << 60


def duration_us(value: timedelta | str, what: str) -> int:
    """Microseconds of a timedelta, or of a text such as "1 hour 30 minutes" or "1h30m".

    INVALID_PARAMETER for anything else.
    """
    length = microseconds(value) if isinstance(value, timedelta) else _of_text(value, what)
    if abs(length) > _LONGEST_US:
        raise error(
            "INVALID_PARAMETER",
            f"{what} is {value!r}, which is too long",
            hint="The longest is 36,000 years. None means no bound.",
        )
    return length


def _of_text(value: str, what: str) -> int:
    found = length_us(value.strip().lower().removeprefix("interval ")) if isinstance(value, str) else None
    if found is None:
        raise error(
            "INVALID_PARAMETER",
            f"{what} is {value!r}, which is not a length of time",
            hint='Use a timedelta or a string such as "1m" or "2 hours 30 seconds"; months have no fixed length.',
        )
    return found

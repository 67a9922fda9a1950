"""Numbers that the environment of the process gives. One that can't be used is refused by its name."""

from __future__ import annotations

import math
import os

from watersmeet.errors import error


def bytes_of(name: str, *, least: int = 1) -> int | None:
    """The number of bytes, at least `least`, of that name; None without it. Raises Error INVALID_PARAMETER."""
    text = os.environ.get(name, "")
    if not text:
        return None
    if not (text.isascii() and text.isdecimal()) or int(text) < least:
        raise error("INVALID_PARAMETER", f'{name} is a number of bytes {_from(least)}, not "{text}"')
    return int(text)


def seconds_of(name: str) -> float | None:
    """The number of seconds, 0 or more, of that name; None without it. Raises Error INVALID_PARAMETER."""
    text = os.environ.get(name, "")
    if not text:
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not (math.isfinite(seconds) and seconds >= 0):
        raise error("INVALID_PARAMETER", f'{name} is a number of seconds {_from(0)}, not "{text}"')
    return seconds


def _from(least: int) -> str:
    return "above 0" if least else "from 0 on"

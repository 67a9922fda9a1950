"""Time windows as expressions: what TUMBLE and HOP compute, and how the planner recognises it again.

A window is [start, start + size); starts are the multiples of `slide_us` counted from `offset_us` after the epoch
(1970-01-01 00:00 UTC), also before it. RisingWave, "Time window functions"; RW-31, RA-10.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from typing import Final, Literal

from sqlglot import exp

from watersmeet import units
from watersmeet.algebra.durations import duration_us
from watersmeet.types import TIMESTAMP, SqlType

_START: Final = "time_bucket"
_STARTS: Final = "generate_series"
_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


@dataclass(frozen=True, slots=True)
class TimeWindow:
    """The windows of a call. slide_us: of TUMBLE its size. size_us: a multiple of `slide_us`.

    0 <= offset_us < slide_us.
    """

    function: Literal["tumble", "hop"]
    slide_us: int
    size_us: int
    offset_us: int = 0

    def __post_init__(self) -> None:
        assert 0 < self.slide_us <= self.size_us
        assert self.size_us % self.slide_us == 0
        assert 0 <= self.offset_us < self.slide_us

    def __str__(self) -> str:
        """For messages: `TUMBLE, size 00:01:00`."""
        slide = "" if self.function == "tumble" else f", slide {clock_text(self.slide_us)}"
        offset = f", offset {clock_text(self.offset_us)}" if self.offset_us else ""
        return f"{self.function.upper()}{slide}, size {clock_text(self.size_us)}{offset}"

    def last_start(self, time: exp.Expression, kind: SqlType) -> exp.Expression:
        """The start of the last window that `time`, of type `kind` (timestamp or timestamptz), is in. NULL for NULL."""
        moment = (_EPOCH + dt.timedelta(microseconds=self.offset_us)).replace(tzinfo=None).isoformat(" ")
        origin = (
            exp.cast(exp.Literal.string(moment), exp.DataType.Type.TIMESTAMP)
            if kind == TIMESTAMP
            else exp.cast(exp.Literal.string(f"{moment}+00"), exp.DataType.Type.TIMESTAMPTZ)
        )
        return _call(_START, interval_of(self.slide_us), time, origin)

    def starts(self, time: exp.Expression, kind: SqlType) -> exp.Expression:
        """The array of the starts of all windows that `time` is in, ascending; NULL for NULL, which is in none."""
        last = self.last_start(time, kind)
        if self.size_us == self.slide_us:
            return _call(_STARTS, last, last, interval_of(self.slide_us))
        first = exp.Sub(this=last, expression=interval_of(self.size_us - self.slide_us))
        return _call(_STARTS, first, last, interval_of(self.slide_us))

    def end(self, start: exp.Expression) -> exp.Expression:
        """The end of the window that begins at `start`, which is not in it any more."""
        return exp.Add(this=start.copy(), expression=interval_of(self.size_us))


#: What date_trunc cuts down to: the length of a unit in microseconds, and a moment at which one begins (1970-01-05 was
#: a Monday).
UNITS_US: Final = {
    "microseconds": (1, 0),
    "milliseconds": (units.UNITS_US["millisecond"], 0),
    **{unit: (units.UNITS_US[unit], 0) for unit in ("second", "minute", "hour", "day")},
    "week": (units.UNITS_US["week"], 4 * units.DAY_US),
}
#: The same for units without a fixed length, in months.
UNITS_MONTHS: Final = {"month": 1, "quarter": 3, "year": 12, "decade": 120}


def floor_of(node: exp.Expression) -> tuple[exp.Expression, int, int] | None:
    """(time, size in microseconds, origin in microseconds) if `node` rounds a time down to a multiple; else None."""
    truncated = _truncated(node)
    if truncated is not None:
        return (truncated[0], *UNITS_US[truncated[1]]) if truncated[1] in UNITS_US else None
    if not isinstance(node, exp.Anonymous) or node.name.lower() != _START or len(node.expressions) != 3:
        return None
    size, time, origin = node.expressions
    size_us = duration_us(size)
    if not size_us or size_us < 0 or not isinstance(origin, exp.Cast) or not isinstance(origin.this, exp.Literal):
        return None
    moment = dt.datetime.fromisoformat(origin.this.name.removesuffix("+00")).replace(tzinfo=dt.UTC)
    return time, size_us, (moment - _EPOCH) // dt.timedelta(microseconds=1)


def months_floor_of(node: exp.Expression) -> tuple[exp.Expression, int] | None:
    """(time, months) if `node` rounds a time down to a month, a quarter or a year; else None."""
    truncated = _truncated(node)
    return (
        (truncated[0], UNITS_MONTHS[truncated[1]]) if truncated is not None and truncated[1] in UNITS_MONTHS else None
    )


def _truncated(node: exp.Expression) -> tuple[exp.Expression, str] | None:
    """(time, unit) of a call of date_trunc."""
    if not isinstance(node, exp.Anonymous) or node.name.lower() != "date_trunc" or len(node.expressions) != 2:
        return None
    unit, time = node.expressions
    return (time, unit.name.lower()) if isinstance(unit, exp.Literal) else None


def least_of(array: exp.Expression) -> exp.Expression | None:
    """The least element of an array of ascending times, as an expression, if its form tells it; else None."""
    while isinstance(array, exp.Paren):
        array = array.this
    if not isinstance(array, exp.Anonymous) or array.name.lower() != _STARTS or len(array.expressions) != 3:
        return None
    step_us = duration_us(array.expressions[2])
    return array.expressions[0] if step_us is not None and step_us > 0 else None


def _call(name: str, *arguments: exp.Expression) -> exp.Expression:
    return exp.Anonymous(this=name, expressions=[a.copy() for a in arguments])


def interval_of(length_us: int) -> exp.Expression:
    """A constant interval."""
    return exp.cast(exp.Literal.string(clock_text(length_us)), exp.DataType.Type.INTERVAL)


def clock_text(length_us: int) -> str:
    """`00:01:00`: hours, minutes and seconds only, as a day of an interval has no fixed length."""
    seconds, microseconds = divmod(length_us, 1_000_000)
    clock = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
    return clock + (f".{microseconds:06}" if microseconds else "")

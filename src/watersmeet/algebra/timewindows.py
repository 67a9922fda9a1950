"""Times in expressions: durations, time windows (TUMBLE, HOP), and comparisons with the time of the epoch.

A window is [start, start + size); starts are the multiples of `slide_us` counted from `offset_us` after 1970-01-01
00:00 UTC, in both directions. RisingWave, "Time window functions"; RW-31, RA-10.

Comparisons with now() are conditions `column >= epoch_time(…)` until the rewrite `time_filters` turns them into nodes.
The call contains the term of now() as JSON, with the source `NOW`. It has the span of the call of now().
"""

from __future__ import annotations

import datetime as dt
import json
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Literal

import duckdb
from sqlglot import exp

from watersmeet.algebra.scalars import ORACLE, Scalar
from watersmeet.errors import Error, Span, error
from watersmeet.values import times
from watersmeet.values.serialization import from_json, to_json
from watersmeet.values.spans import own_span, set_span
from watersmeet.values.times import DAY_US
from watersmeet.values.types import TIMESTAMP, SqlType
from watersmeet.values.watermarks import Term

#: The types of times. A column with a watermark has one of them.
TIME_TYPES: Final = ("timestamp", "timestamptz", "date")


def duration_us(expression: exp.Expression) -> int | None:
    """The length of a constant interval; None for other expressions, and for months, whose length varies.

    A day has 24 hours: sessions and workers compute in UTC.
    """
    found = parts_of(expression)
    if found is None:
        return None
    months, days, nanoseconds = found
    return None if months else days * DAY_US + nanoseconds // 1000


def timeout_us(text: str) -> int | None:
    """The length of an option's interval above zero: `10 seconds`, `10s`; None for other texts."""
    found = duration_us(exp.cast(exp.Literal.string(text), exp.DType.INTERVAL))
    return found if found is not None and found > 0 else None


def lengths_us(expression: exp.Expression) -> tuple[int, int] | None:
    """The least and the greatest length of a constant interval for any start; None for other expressions.

    They differ only for months: a month has 28 to 31 days, and twelve have at most 366. Comparisons of intervals count
    a month as 30 days.
    """
    found = parts_of(expression)
    if found is None:
        return None
    months, days, nanoseconds = found
    years, rest = divmod(abs(months), 12)
    least, most = 360 * years + 28 * rest, 366 * years + 31 * rest
    low, high = (least, most) if months >= 0 else (-most, -least)
    return (low + days) * DAY_US + nanoseconds // 1000, (high + days) * DAY_US + nanoseconds // 1000


def months_of(expression: exp.Expression) -> int | None:
    """The number of months of a constant interval that has only months; None for others."""
    found = parts_of(expression)
    return found[0] if found is not None and found[0] and not any(found[1:]) else None


def has_months(expression: exp.Expression) -> bool:
    """Whether it is a constant interval with months or years."""
    found = parts_of(expression)
    return found is not None and found[0] != 0


def parts_of(expression: exp.Expression) -> tuple[int, int, int] | None:
    """(months, days, nanoseconds) of a constant interval; None for other expressions."""
    while isinstance(expression, exp.Paren):
        expression = expression.this
    if any(True for _ in expression.find_all(exp.Column, exp.Query, exp.Anonymous)):
        return None
    return _evaluate(str(expression.sql(dialect="duckdb")))


@lru_cache(maxsize=1024)
def _evaluate(sql: str) -> tuple[int, int, int] | None:
    """(months, days, nanoseconds) of an interval; None for NULL, other types and errors."""
    try:
        value = ORACLE.arrow_constant(sql)
    except duckdb.Error:
        return None
    if str(value.type) != "month_day_nano_interval" or not value.is_valid:
        return None
    return tuple(value.as_py())


_START: Final = "time_bucket"
_STARTS: Final = "generate_series"
_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


@dataclass(frozen=True, slots=True)
class TimeWindow:
    """The windows of a call. slide_us: the distance of starts; for TUMBLE the size. If `size_us` is no multiple of it,
    the first of `starts` may be that of a window that ends before the time.

    0 <= offset_us < slide_us.
    """

    function: Literal["tumble", "hop"]
    slide_us: int
    size_us: int
    offset_us: int = 0

    def __post_init__(self) -> None:
        assert 0 < self.slide_us <= self.size_us
        assert 0 <= self.offset_us < self.slide_us

    def __str__(self) -> str:
        """The text for messages, such as `TUMBLE, size 00:01:00`."""
        slide = "" if self.function == "tumble" else f", slide {clock_text(self.slide_us)}"
        offset = f", offset {clock_text(self.offset_us)}" if self.offset_us else ""
        return f"{self.function.upper()}{slide}, size {clock_text(self.size_us)}{offset}"

    def last_start(self, time: exp.Expression, kind: SqlType) -> exp.Expression:
        """The start of the last window that contains `time`, whose type is `kind` (timestamp or timestamptz); NULL for
        NULL.
        """
        moment = (_EPOCH + dt.timedelta(microseconds=self.offset_us)).replace(tzinfo=None).isoformat(" ")
        origin = (
            exp.cast(exp.Literal.string(moment), exp.DataType.Type.TIMESTAMP)
            if kind == TIMESTAMP
            else exp.cast(exp.Literal.string(f"{moment}+00"), exp.DataType.Type.TIMESTAMPTZ)
        )
        return _call(_START, interval_of(self.slide_us), time, origin)

    def starts(self, time: exp.Expression, kind: SqlType) -> exp.Expression:
        """The ascending array of the starts of all windows that contain `time`; NULL for NULL."""
        last = self.last_start(time, kind)
        if self.size_us == self.slide_us:
            return _call(_STARTS, last, last, interval_of(self.slide_us))
        whole_us = -(-self.size_us // self.slide_us) * self.slide_us
        first = exp.Sub(this=last, expression=interval_of(whole_us - self.slide_us))
        return _call(_STARTS, first, last, interval_of(self.slide_us))

    def end(self, start: exp.Expression) -> exp.Expression:
        """The exclusive end of the window that begins at `start`."""
        return exp.Add(this=start.copy(), expression=interval_of(self.size_us))


#: The units of date_trunc with their length in microseconds, and a moment at which a unit begins (1970-01-05 was a
#: Monday).
UNITS_US: Final = {
    "microseconds": (1, 0),
    "milliseconds": (times.UNITS_US["millisecond"], 0),
    **{unit: (times.UNITS_US[unit], 0) for unit in ("second", "minute", "hour", "day")},
    "week": (times.UNITS_US["week"], 4 * times.DAY_US),
}

#: The lengths in months of units without a fixed length.
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
    """The time and the unit of a call of date_trunc."""
    if not isinstance(node, exp.Anonymous) or node.name.lower() != "date_trunc" or len(node.expressions) != 2:
        return None
    unit, time = node.expressions
    return (time, unit.name.lower()) if isinstance(unit, exp.Literal) else None


def least_of(array: exp.Expression) -> exp.Expression | None:
    """The expression of the least element of an array of ascending times if it follows from the form of the array; else
    None.
    """
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
    """A length as `00:01:00`, without days, because a day of an interval has no fixed length."""
    seconds, microseconds = divmod(length_us, 1_000_000)
    clock = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
    return clock + (f".{microseconds:06}" if microseconds else "")


_CALL: Final = "epoch_time"

#: RisingWave's text of the error for predicates with now() that are not temporal filters.
_FORM: Final = (
    "Conditions containing now must be in the form of `input_expr cmp now_expr` or `now_expr cmp input_expr`, where "
    "`input_expr` references a column and contains no `now()`, and `now_expr` is a non-decreasing expression "
    "contains `now()`."
)


def epoch_time(term: Term, kind: SqlType, span: Span | None) -> exp.Expression:
    """The call that represents `term`. kind: the type of the other operand, timestamp or timestamptz."""
    call = exp.Anonymous(
        this=_CALL, expressions=[exp.Literal.string(json.dumps(to_json(term))), exp.Literal.string(kind.name)]
    )
    set_span(call, span)
    return call


def term_of(node: exp.Expression) -> tuple[Term, SqlType] | None:
    """The term of the call `node` and the type of the other operand; None for other expressions."""
    while isinstance(node, exp.Paren):
        node = node.this
    if isinstance(node, exp.Anonymous) and node.this == _CALL:
        term, kind = (e.name for e in node.expressions)
        return from_json(Term, json.loads(term)), SqlType(kind)
    return None


def mentions_time(scalar: Scalar) -> bool:
    """True if the expression reads the time of the epoch."""
    return _epoch_call(scalar) is not None


def not_a_filter(span: Span | None, hint: str | None = None) -> Error:
    """The error for a condition with now() that can't be a temporal filter."""
    return error(
        "TIME_FILTER",
        _FORM,
        span=span,
        hint=hint or "Compare a column with now() plus or minus an interval: WHERE ts > now() - INTERVAL '1 hour'.",
    )


def left_in_join(scalar: Scalar) -> Error:
    """The error for a condition with now() that determines matches of a preserved side."""
    return error(
        "TIME_FILTER",
        "Not supported: optimizer has tried to separate the temporal predicate(with now() expression) from the on "
        "condition, but it still reminded in on join's condition. Considering move it into WHERE clause?",
        span=clock_span(scalar),
        hint=(
            "In ON it may refer to either side of an inner join, and to the side of an outer join that is not "
            "preserved."
        ),
    )


def clock_span(scalar: Scalar) -> Span | None:
    """The span of the call of now()."""
    call = _epoch_call(scalar)
    return None if call is None else own_span(call)


def _epoch_call(scalar: Scalar) -> exp.Anonymous | None:
    return next((a for a in scalar.expression.find_all(exp.Anonymous) if a.this == _CALL), None)

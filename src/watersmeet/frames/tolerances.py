"""How far the nearest row may be away: a length of time between times, a number between numbers."""

from __future__ import annotations

from datetime import timedelta
from decimal import ROUND_FLOOR, Context, Decimal
from numbers import Integral, Real
from typing import Any, Final

from watersmeet.errors import Error, error
from watersmeet.frames.durations import duration_us
from watersmeet.frames.shapes import Tolerance
from watersmeet.types import SqlType

_TIMES: Final = ("timestamp", "timestamptz", "date")
#: No number that is compared exactly has more digits.
_DIGITS: Final = 38
_EXACT: Final = Context(prec=2 * _DIGITS)


def has_distance(kind: SqlType) -> bool:
    """Whether values of the type are some way apart: times and numbers."""
    return kind.name in _TIMES or kind.is_numeric


def tolerance_of(value: Any, kind: SqlType) -> Tolerance:
    """The bound `value`, at least 0, between two values of a type.

    value: a timedelta or a text for times, a number for numbers. INVALID_PARAMETER for anything else.
    """
    if kind.name in _TIMES:
        if not isinstance(value, (timedelta, str)):
            raise _refused(value, kind, 'Give a timedelta or a text such as "10 minutes".')
        length_us = duration_us(value, "tolerance")
        if length_us < 0:
            raise _refused(value, kind, "It must be at least 0.")
        return Tolerance(us=length_us)
    if not has_distance(kind):
        raise _refused(value, kind, "A tolerance is between times or between numbers.")
    if isinstance(value, bool) or not isinstance(value, (Real, Decimal)):
        raise _refused(value, kind, "Give a number, such as 5 or 0.5.")
    number = _exactly(value)
    if not number.is_finite() or number < 0:
        raise _refused(value, kind, "It must be a finite number of at least 0. None means no bound.")
    if kind.is_float:
        return Tolerance(number=repr(float(number)))
    # Differences are multiples of the last digit's unit, so that what is below it makes no difference.
    scale = kind.scale or 0
    if number.adjusted() + scale >= _DIGITS:
        raise _refused(value, kind, "It is greater than any such value. None means no bound.")
    number = number.quantize(Decimal(1).scaleb(-scale), ROUND_FLOOR, _EXACT)
    return Tolerance(number=f"{number:f}")


def tolerance_sql(tolerance: Tolerance, kind: SqlType, left: str, right: str) -> str | None:
    """The bound between columns `left` and `right` of a type as DuckDB SQL; None without bound."""
    if tolerance.us is not None:
        return f"abs(epoch_us({left}) - epoch_us({right})) <= {tolerance.us}"
    if tolerance.number is None:
        return None
    if kind.is_float:  # the difference of two infinities is no number
        away = f"abs({left}::DOUBLE - {right}::DOUBLE)"
        return f"{left} = {right} OR {away} <= CAST('{tolerance.number}' AS DOUBLE)"
    if kind.is_integer:
        return f"abs({left}::HUGEINT - {right}::HUGEINT) <= {tolerance.number}"
    return f"abs({left} - {right}) <= {tolerance.number}"


def _exactly(value: Real | Decimal) -> Decimal:
    """The number as it is written: 0.1 is a tenth."""
    if isinstance(value, Decimal):
        return value
    return Decimal(int(value)) if isinstance(value, Integral) else Decimal(repr(float(value)))


def _refused(value: Any, kind: SqlType, hint: str) -> Error:
    return error("INVALID_PARAMETER", f"a tolerance of {value!r} between values of type {kind.sql}", hint=hint)

"""Constant durations in expressions: `INTERVAL '20' SECOND` and the like as microseconds."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

import duckdb
from sqlglot import exp

from watersmeet.algebra.oracle import ORACLE
from watersmeet.units import DAY_US

#: Types of times: a column with a watermark has one of them.
TIME_TYPES: Final = ("timestamp", "timestamptz", "date")


def duration_us(expression: exp.Expression) -> int | None:
    """The length of a constant interval; None if it is no constant or has months, which have no one length.

    A day has 24 hours: sessions and workers compute in UTC.
    """
    found = _parts(expression)
    if found is None:
        return None
    months, days, nanoseconds = found
    return None if months else days * DAY_US + nanoseconds // 1000


def timeout_us(text: str) -> int | None:
    """The length of an interval above zero, as an option says it: `10 seconds`, `10s`; None for anything else."""
    found = duration_us(exp.cast(exp.Literal.string(text), exp.DType.INTERVAL))
    return found if found is not None and found > 0 else None


def lengths_us(expression: exp.Expression) -> tuple[int, int] | None:
    """The least and the greatest length of a constant interval, whenever it begins; None if it is no constant.

    They are one but for months, of which each has 28 to 31 days and twelve at most 366; between intervals each counts
    as 30.
    """
    found = _parts(expression)
    if found is None:
        return None
    months, days, nanoseconds = found
    years, rest = divmod(abs(months), 12)
    least, most = 360 * years + 28 * rest, 366 * years + 31 * rest
    low, high = (least, most) if months >= 0 else (-most, -least)
    return (low + days) * DAY_US + nanoseconds // 1000, (high + days) * DAY_US + nanoseconds // 1000


def months_of(expression: exp.Expression) -> int | None:
    """The number of months of a constant interval that has nothing else; None for others."""
    found = _parts(expression)
    return found[0] if found is not None and found[0] and not any(found[1:]) else None


def has_months(expression: exp.Expression) -> bool:
    """Whether it is a constant interval with months or years in it."""
    found = _parts(expression)
    return found is not None and found[0] != 0


def _parts(expression: exp.Expression) -> tuple[int, int, int] | None:
    """(months, days, nanoseconds) of a constant interval; None for anything else."""
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

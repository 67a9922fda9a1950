"""Functions of times and Java's patterns (SimpleDateFormat) that grammars insert: SQLstream's conversions.

s-Server, "CHAR_TO_TIMESTAMP", "TIMESTAMP_TO_CHAR", "UNIX_TIMESTAMP", "TO_TIMESTAMP", "TSDIFF", "Date and Time
Patterns". Numbers are milliseconds since 1970. A text that does not match its pattern is NULL; a part that the pattern
lacks is that of midnight on January 1, 1970.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from sqlglot import exp

from watersmeet.expressions.calls import Builder, FunctionCall, counted
from watersmeet.expressions.context import Value, call, duckdb_cast, fill, string
from watersmeet.expressions.recordfunctions import java_format, moment
from watersmeet.values.types import BIGINT, DOUBLE, INTERVAL, TIMESTAMP, VARCHAR

_SECONDS: Final = {"SECOND": 1, "MINUTE": 60, "HOUR": 3600, "DAY": 86_400}


def _read(c: FunctionCall) -> Value:
    """CHAR_TO_TIMESTAMP(pattern, text)."""
    text, pattern = c.cast(1, VARCHAR).expression, java_format(c, 0, reading=True).name
    if "%Y" not in pattern and "%y" not in pattern:
        text, pattern = fill("'1970 ' || a0", text), f"%Y {pattern}"
    if pattern.endswith("%z"):
        text = fill("regexp_replace(a0, 'Z$', '+00:00')", text)
    return Value(duckdb_cast(call("try_strptime", text, string(pattern)), TIMESTAMP), TIMESTAMP)


def _shown(c: FunctionCall) -> Value:
    """TIMESTAMP_TO_CHAR(pattern, time)."""
    return Value(call("strftime", c.cast(1, TIMESTAMP).expression, java_format(c, 0, reading=False)), VARCHAR)


def _milliseconds(c: FunctionCall, index: int) -> exp.Expression:
    return call("epoch_ms", moment(c, index))


def _difference(c: FunctionCall) -> Value:
    """TSDIFF(start, end): of times, or of numbers of milliseconds."""
    between = exp.Sub(this=_milliseconds(c, 1), expression=_milliseconds(c, 0))
    return Value(duckdb_cast(exp.paren(between), BIGINT), BIGINT)


def _units(c: FunctionCall) -> exp.Expression:
    """The length of the first argument in units, with the second argument as the unit."""
    value, unit = c.arguments[0], c.text(1, example="SECOND", what="a unit")
    if value.unknown or value.type != INTERVAL or unit not in _SECONDS:
        raise c.error(
            "DATATYPE_MISMATCH",
            f"the difference in {unit} must be one of two times, in units up to DAY",
            hint="(s.ROWTIME - t.ROWTIME) SECOND.",
        )
    return fill("epoch(a0)" if unit == "SECOND" else f"trunc(epoch(a0) / {_SECONDS[unit]})", value.expression)


def _in_unit(c: FunctionCall) -> Value:
    """`(a - b) unit`: the interval, without the part below the unit."""
    count = _units(c)
    unit = c.text(1, example="SECOND", what="a unit")
    if unit == "SECOND":
        return replace(c.arguments[0])
    return Value(fill(f"to_seconds(CAST(a0 AS BIGINT) * {_SECONDS[unit]})", count), INTERVAL)


_BUILDERS: Final[dict[str, Builder]] = {
    "char_to_timestamp": counted(_read, 2),
    "timestamp_to_char": counted(_shown, 2),
    "unix_timestamp": counted(lambda c: Value(duckdb_cast(_milliseconds(c, 0), BIGINT), BIGINT), 1),
    "to_timestamp": counted(lambda c: Value(moment(c, 0), TIMESTAMP), 1),
    "tsdiff": counted(_difference, 2),
    "in_unit": counted(_in_unit, 2),
    "units": counted(lambda c: Value(duckdb_cast(_units(c), DOUBLE), DOUBLE), 2),
}


def _named(name: str, build: Builder) -> Builder:
    """The function with its name of the dialect in errors."""
    return lambda c: build(replace(c, name=name))


TIME_FUNCTIONS: Final[dict[str, Builder]] = {f"$time.{n}": _named(n, b) for n, b in _BUILDERS.items()}

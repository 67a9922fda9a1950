"""Functions of times and Java's patterns (SimpleDateFormat) that grammars insert: SQLstream's conversions.

s-Server, "CHAR_TO_TIMESTAMP", "TIMESTAMP_TO_CHAR", "UNIX_TIMESTAMP", "TO_TIMESTAMP", "TSDIFF", "Date and Time
Patterns". Numbers are milliseconds since 1970. A text that does not match its pattern is NULL; a part that the pattern
lacks is that of midnight on January 1, 1970.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from sqlglot import exp

from watersmeet.expressions.calls import Builder, FunctionCall, counted, inserted
from watersmeet.expressions.context import Value, call, duckdb_cast, fill, string
from watersmeet.values.types import BIGINT, DOUBLE, INTEGER, INTERVAL, TIMESTAMP, VARCHAR

#: Letters of a pattern, once or repeated, and strftime's signs for them.
_LETTERS: Final[Mapping[str, str]] = {
    "yyyy": "%Y", "uuuu": "%Y", "y": "%Y", "u": "%Y", "yy": "%y", "uu": "%y",
    "MM": "%m", "M": "%-m", "MMM": "%b", "MMMM": "%B", "LL": "%m", "L": "%-m", "LLL": "%b", "LLLL": "%B",
    "dd": "%d", "d": "%-d", "DDD": "%j", "D": "%-j", "E": "%a", "EE": "%a", "EEE": "%a", "EEEE": "%A",
    "HH": "%H", "H": "%-H", "hh": "%I", "h": "%-I", "mm": "%M", "m": "%-M", "ss": "%S", "s": "%-S",
    "SSS": "%g", "SSSSSS": "%f", "SSSSSSSSS": "%n", "a": "%p",
}  # fmt: skip

#: Zones: times are in UTC.
_ZONES: Final[Mapping[str, str]] = {
    "X": "Z", "XX": "Z", "XXX": "Z", "x": "+00", "xx": "+0000", "xxx": "+00:00", "Z": "+0000", "ZZZZ": "GMT",
    "z": "UTC", "VV": "UTC",
}  # fmt: skip

_PIECES: Final = re.compile(r"'((?:[^']|'')*)'|(([A-Za-z])\3*)|([^A-Za-z']+)")


def java_format(c: FunctionCall, index: int, *, reading: bool) -> exp.Expression:
    """A constant pattern as a format of strftime, or of strptime for `reading`. INVALID_VALUE for an open quote,
    FEATURE_NOT_SUPPORTED for letters that DuckDB lacks.
    """
    pattern, made, position = c.text(index, example="yyyy", what="a pattern"), "", 0
    while position < len(pattern):
        piece = _PIECES.match(pattern, position)
        if piece is None:
            raise c.error("INVALID_VALUE", f'the pattern "{pattern}" has an open quote')
        position = piece.end()
        if (word := piece[2]) is None:
            plain = piece[4] if piece[1] is None else piece[1].replace("''", "'") or "'"
            made += plain.replace("%", "%%")
        elif word in _LETTERS:
            made += _LETTERS[word].replace("-", "") if reading else _LETTERS[word]
        elif word in _ZONES:
            made += "%z" if reading and word not in ("z", "VV") else "%Z" if reading else _ZONES[word]
        else:
            raise c.not_supported(
                f"{word} in a pattern of {c.name}",
                hint="Supported letters: y, u, M, L, d, D, E, H, h, m, s, S (3, 6 or 9 times), a, X, x, Z, z.",
            )
    return string(made)


def moment(c: FunctionCall, index: int) -> exp.Expression:
    """An argument as a timestamp; a number is milliseconds since 1970."""
    value = c.arguments[index]
    if not value.unknown and value.type.is_integer:
        return fill("make_timestamp(CAST(a0 AS BIGINT) * 1000)", value.expression)
    return c.cast(index, TIMESTAMP).expression


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


def _difference_of_times(value: Value) -> Value:
    """The difference of two times as an interval; that of two dates is a number of days."""
    return Value(fill("to_days(CAST(a0 AS INTEGER))", value.expression), INTERVAL) if value.type == INTEGER else value


def _units(c: FunctionCall) -> exp.Expression:
    """The length of the first argument in units, with the second argument as the unit."""
    value, unit = _difference_of_times(c.arguments[0]), c.text(1, example="SECOND", what="a unit")
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
        return _difference_of_times(c.arguments[0])
    return Value(fill(f"to_seconds(CAST(a0 AS BIGINT) * {_SECONDS[unit]})", count), INTERVAL)


def _interval_of(c: FunctionCall) -> Value:
    """A number of units, an interval, or the text of a number of units, as an interval."""
    unit = c.text(1, example="SECOND", what="a unit")
    value = c.arguments[0]
    if value.type == INTERVAL:
        return value
    count = value if value.type.is_numeric else c.cast(0, DOUBLE)
    if unit in ("MONTH", "YEAR"):
        months = 12 if unit == "YEAR" else 1
        return Value(fill(f"to_months(CAST(a0 AS INTEGER) * {months})", count.expression), INTERVAL)
    seconds = 1 if unit == "SECOND" else _SECONDS[unit]
    return Value(fill(f"to_microseconds(CAST(a0 * {seconds}000000 AS BIGINT))", count.expression), INTERVAL)


_BUILDERS: Final[dict[str, Builder]] = {
    "char_to_timestamp": counted(_read, 2),
    "timestamp_to_char": counted(_shown, 2),
    "unix_timestamp": counted(lambda c: Value(duckdb_cast(_milliseconds(c, 0), BIGINT), BIGINT), 1),
    "to_timestamp": counted(lambda c: Value(moment(c, 0), TIMESTAMP), 1),
    "tsdiff": counted(_difference, 2),
    "in_unit": counted(_in_unit, 2),
    "interval_of": counted(_interval_of, 2),
    "units": counted(lambda c: Value(duckdb_cast(_units(c), DOUBLE), DOUBLE), 2),
}


TIME_FUNCTIONS: Final[dict[str, Builder]] = inserted(_BUILDERS, "$time.")

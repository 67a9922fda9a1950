"""Columns as PostgreSQL writes their values in text, with DateStyle ISO and IntervalStyle postgres."""

from __future__ import annotations

from decimal import Decimal
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.formats.valuetexts import spaced
from watersmeet.types import NUMERIC, SqlType

_STRING: Final = pa.large_string()
_EMPTY: Final = pa.scalar("", _STRING)
#: An element of an array that is read as it stands.
_QUOTED_ELEMENT: Final = r'^$|[\s,{}"\\]|^(?i:null)$'
_QUOTED_FIELD: Final = r'^$|[\s,()"\\]'
_HEX: Final = np.frombuffer(b"".join(b"%02x" % i for i in range(256)), np.uint16)
#: Numbers within these bounds have no exponent in Arrow's texts.
_LEAST_SHORT, _MOST_SHORT = 1e-5, 1e9
_BEFORE_CHRIST: Final = -719162  # days since 1970 of 0001-01-01


def texts(values: pa.Array, kind: SqlType) -> pa.Array:
    """The texts of values of a type, as large strings; NULL stays NULL."""
    match kind.name:
        case "boolean":
            return pc.if_else(values, pa.scalar("t", _STRING), pa.scalar("f", _STRING))
        case "smallint" | "integer" | "bigint" | "varchar":
            return values.cast(_STRING)
        case "jsonb":
            return spaced(values.cast(_STRING))
        case "real" | "double precision":
            return _floats(values)
        case "numeric":
            return _numbers(values, kind)
        case "bytea":
            return _bytes(values)
        case "date":
            return _dated(values, values.cast(_STRING))
        case "time":
            return _short_seconds(values.cast(_STRING))
        case "timestamp":
            return _dated(values, _short_seconds(values.cast(_STRING)))
        case "timestamptz":
            local = values.cast(pa.timestamp("us"))
            return _dated(local, _short_seconds(local.cast(_STRING)), "+00")
        case "interval":
            return _intervals(values)
        case "array":
            return _arrays(values, kind)
        case _:
            return _structs(values, kind)


def _glued(*parts: pa.Array | pa.Scalar | str, separator: str = "", nulls: str = "emit_null") -> pa.Array:
    """The texts of each row, one after the other."""
    texts = [pa.scalar(p, _STRING) if isinstance(p, str) else p.cast(_STRING) for p in parts]
    return pc.binary_join_element_wise(*texts, pa.scalar(separator, _STRING), null_handling=nulls)


def _where(values: pa.Array, found: pa.Array) -> pa.Array:
    """The texts; NULL where the values are."""
    return pc.if_else(pc.is_valid(values), found, pa.scalar(None, _STRING)) if values.null_count else found


def _replaced(values: pa.Array, pattern: str, replacement: str) -> pa.Array:
    return pc.replace_substring_regex(values, pattern, replacement)


def _floats(values: pa.Array) -> pa.Array:
    found = values.cast(_STRING)
    if not _are_short(values) and pc.any(pc.match_substring(found, "e")).as_py():
        found = _replaced(found, r"e([+-])(\d)$", r"e\10\2")
    if not pc.all(pc.is_finite(values)).as_py():
        found = _replaced(_replaced(found, "inf", "Infinity"), "nan", "NaN")
    return found


def _are_short(values: pa.Array) -> bool:
    """Whether numbers are written without an exponent for sure."""
    sizes = np.abs(pc.fill_null(values, 0).to_numpy(zero_copy_only=False))
    least = sizes.min(initial=1, where=sizes > 0)
    return bool(least >= _LEAST_SHORT and sizes.max(initial=0) < _MOST_SHORT)


def _numbers(values: pa.Array, kind: SqlType) -> pa.Array:
    """Digits without an exponent; those of a column without a declared scale end with the last that is not 0."""
    found = values.cast(_STRING)
    small = pc.match_substring(found, "E")
    if pc.any(small).as_py():  # Arrow writes an exponent where a value begins with many zeros
        found = _plain(values, found)
    if kind == NUMERIC and kind.decimals:
        found = _replaced(_replaced(found, r"(\.\d*?)0+$", r"\1"), r"\.$", "")
    return found


def _plain(values: pa.Array, found: pa.Array) -> pa.Array:
    """Texts where those with an exponent are written out: the digits behind the point of the value plus or minus 1."""
    scale = values.type.scale
    small = pc.match_substring(found, "E")
    wide = pc.abs(values).cast(pa.decimal256(60, scale))
    shifted = pc.add(wide, pa.scalar(Decimal(1), pa.decimal256(1, 0))).cast(_STRING)
    signs = pc.if_else(pc.starts_with(found, "-"), "-0", "0")
    return pc.if_else(small, _glued(signs, pc.utf8_slice_codeunits(shifted, 1)), found)


def _short_seconds(values: pa.Array) -> pa.Array:
    """Times without the zeros at the end of the fraction of a second."""
    whole = pc.ends_with(values, ".000000")
    cut = pc.utf8_slice_codeunits(values, 0, -7)
    if pc.all(whole).as_py() is not False:
        return cut
    return pc.if_else(whole, cut, _replaced(values, r"(\.\d*?)0+$", r"\1"))


def _dated(values: pa.Array, found: pa.Array, zone: str = "") -> pa.Array:
    """Dates with their zone, and `BC` for the years before 1; the two moments that are infinite."""
    shown = _glued(found, zone) if zone else found
    width = pa.int32() if pa.types.is_date32(values.type) else pa.int64()
    numbers = values.cast(width)
    first = _BEFORE_CHRIST if width == pa.int32() else _BEFORE_CHRIST * 86_400_000_000
    bounds = pc.min_max(numbers).as_py()
    if bounds["min"] is None or (bounds["min"] >= first and bounds["max"] < np.iinfo(width.to_pandas_dtype()).max):
        return shown
    limits = np.iinfo(width.to_pandas_dtype())
    early = _early(values, zone)
    shown = pc.if_else(pc.less(numbers, first), early, shown)
    shown = pc.if_else(pc.equal(numbers, int(limits.max)), pa.scalar("infinity", _STRING), shown)
    return pc.if_else(pc.equal(numbers, -int(limits.max)), pa.scalar("-infinity", _STRING), shown)


def _early(values: pa.Array, zone: str) -> pa.Array:
    """Moments before the year 1 as PostgreSQL writes them: the year 0 is 1 BC."""
    years = pc.subtract(1, pc.year(values)).cast(_STRING)
    rest = _replaced(values.cast(_STRING), r"^-?\d+(-\d\d-\d\d)", r"\1")
    rest = _short_seconds(rest) if not pa.types.is_date32(values.type) else rest
    return _glued(pc.utf8_lpad(years, 4, "0"), rest, f"{zone} BC")


def interval_parts(values: pa.Array) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Months, days and microseconds of intervals, 0 where they are NULL."""
    kind = np.dtype([("months", "<i4"), ("days", "<i4"), ("nanoseconds", "<i8")])
    values = pa.concat_arrays([values])
    buffer = values.buffers()[1]
    parts = np.frombuffer(buffer, kind, len(values)) if len(values) else np.empty(0, kind)
    there = pc.is_valid(values).to_numpy(zero_copy_only=False)
    months, days = np.where(there, parts["months"], 0), np.where(there, parts["days"], 0)
    return months, days, np.where(there, parts["nanoseconds"] // 1000, 0)


def _intervals(values: pa.Array) -> pa.Array:
    months, days, microseconds = interval_parts(values)
    clock = np.abs(microseconds)
    seconds, fraction = np.divmod(clock, 1_000_000)
    years, rest = np.fix(months / 12).astype(np.int64), np.fmod(months, 12)
    empty = (months == 0) & (days == 0)
    sign = pc.if_else(pa.array(microseconds < 0), "-", pc.if_else(pa.array(_signed(months, days)), "+", ""))
    behind = pc.if_else(pa.array(fraction != 0), _replaced(_glued(".", _padded(fraction, 6)), "0+$", ""), _EMPTY)
    hours, minutes = _padded(seconds // 3600), _padded(seconds // 60 % 60)
    time = _glued(sign, hours, ":", minutes, ":", _padded(seconds % 60), behind)
    time = pc.if_else(pa.array((microseconds != 0) | empty), time, pa.scalar(None, _STRING))
    shown_days = _counted(days, "day")
    shown_days = pc.if_else(pa.array((days > 0) & (months < 0)), _glued("+", shown_days), shown_days)
    parts = [_counted(years, "year"), _counted(rest, "mon"), shown_days, time]
    return _where(values, _glued(*parts, separator=" ", nulls="skip"))


def _signed(months: np.ndarray, days: np.ndarray) -> np.ndarray:
    """Whether a time of day gets a plus: behind a part with a minus, as PostgreSQL does it."""
    return np.where(days != 0, days < 0, months < 0)


def _counted(numbers: np.ndarray, unit: str) -> pa.Array:
    """`3 days`, `1 day`; NULL for 0."""
    words = pc.if_else(pa.array(numbers == 1), f" {unit}", f" {unit}s")
    shown = _glued(pa.array(numbers).cast(_STRING), words)
    return pc.if_else(pa.array(numbers != 0), shown, pa.scalar(None, _STRING))


def _padded(numbers: np.ndarray, width: int = 2) -> pa.Array:
    return pc.utf8_lpad(pa.array(numbers).cast(_STRING), width, "0")


def _bytes(values: pa.Array) -> pa.Array:
    r"""`\x` and two digits for each byte."""
    values = pa.concat_arrays([values.cast(pa.large_binary())])
    _, offsets, data = values.buffers()
    places = np.frombuffer(offsets, np.int64, len(values) + 1) if len(values) else np.zeros(1, np.int64)
    digits = _HEX[np.frombuffer(data or b"", np.uint8)[: places[-1]]]
    shown = pa.LargeStringArray.from_buffers(len(values), pa.py_buffer(places * 2), pa.py_buffer(digits))
    return _where(values, _glued("\\x", shown))


def _arrays(values: pa.Array, kind: SqlType) -> pa.Array:
    """`{1,2,NULL}`."""
    assert kind.element is not None
    values = pa.concat_arrays([values])
    inner = texts(values.values, kind.element)
    if kind.element.name != "array":
        inner = _quoted(inner, _QUOTED_ELEMENT)
    inner = pc.fill_null(inner, "NULL")
    offsets = pc.fill_null(values.offsets, 0).cast(pa.int64())
    lists = pa.LargeListArray.from_arrays(offsets, inner)
    body = pc.binary_join(lists, pa.scalar(",", _STRING))
    return _where(values, _glued("{", body, "}"))


def _structs(values: pa.Array, kind: SqlType) -> pa.Array:
    """`(1,"two words",)`."""
    values = pa.concat_arrays([values])
    fields = [
        pc.fill_null(_quoted(texts(values.field(i), t), _QUOTED_FIELD), "") for i, (_, t) in enumerate(kind.fields)
    ]
    body = _glued(*fields, separator=",")
    return _where(values, _glued("(", body, ")"))


def _quoted(values: pa.Array, pattern: str) -> pa.Array:
    """Texts in quotes where they would be misread otherwise."""
    needed = pc.match_substring_regex(values, pattern)
    if not pc.any(needed).as_py():
        return values
    escaped = _replaced(values, r'(["\\])', r"\\\1")
    return pc.if_else(needed, _glued('"', escaped, '"'), values)

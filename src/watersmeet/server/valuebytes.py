"""PostgreSQL's text encodings (DateStyle ISO, IntervalStyle postgres) and binary encodings of result columns and
parameters. Parameters become literals of a statement's tree.
"""

from __future__ import annotations

import datetime as dt
import math
import re
import struct
import uuid
from collections.abc import Sequence
from decimal import Decimal
from functools import lru_cache
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from sqlglot import exp

from watersmeet.database.grouping import NotSmall, assign_to
from watersmeet.database.sessions.result import Interval
from watersmeet.dialects.statements.preparing import Parameter
from watersmeet.dialects.tree.queries import literal_of
from watersmeet.errors import Error, error
from watersmeet.formats.valuetexts import local_times, spaced
from watersmeet.server.messages import Body, decoded
from watersmeet.server.oids import TEXT, is_created, oid_of, sql_type
from watersmeet.session.statements.preparing import literal
from watersmeet.values.packing import offsets
from watersmeet.values.types import BIGINT, JSON, NUMERIC, TIMESTAMP, UUID, VARCHAR, SqlType

BINARY: Final = pa.large_binary()
NOTHING: Final = pa.scalar(b"", BINARY)
_STRING: Final = pa.large_string()
_EMPTY: Final = pa.scalar("", _STRING)

#: A pattern of array elements that need quotes.
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
        case "smallint" | "integer" | "bigint" | "varchar" | "json" | "uuid":
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
            local, zone = local_times(values)
            return _dated(local, _short_seconds(local.cast(_STRING)), zone)
        case "interval":
            return _intervals(values)
        case "array" | "map":
            return _arrays(values, kind)
        case _:
            return _structs(values, kind)


def _glued(*parts: pa.Array | pa.Scalar | str, separator: str = "", nulls: str = "emit_null") -> pa.Array:
    """The concatenated texts of each row."""
    texts = [pa.scalar(p, _STRING) if isinstance(p, str) else p.cast(_STRING) for p in parts]
    return pc.binary_join_element_wise(*texts, pa.scalar(separator, _STRING), null_handling=nulls)


def _where(values: pa.Array, found: pa.Array) -> pa.Array:
    """The texts `found`, with NULL where values are NULL."""
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
    """Whether numbers are certainly written without an exponent."""
    sizes = np.abs(pc.fill_null(values, 0).to_numpy(zero_copy_only=False))
    least = sizes.min(initial=1, where=sizes > 0)
    return bool(least >= _LEAST_SHORT and sizes.max(initial=0) < _MOST_SHORT)


def _numbers(values: pa.Array, kind: SqlType) -> pa.Array:
    """The texts of numbers without an exponent; if no scale is declared, without trailing zeros."""
    found = values.cast(_STRING)
    small = pc.match_substring(found, "E")
    if pc.any(small).as_py():  # Arrow writes an exponent for values with many leading zeros
        found = _plain(values, found)
    if kind == NUMERIC and kind.decimals:
        found = _replaced(_replaced(found, r"(\.\d*?)0+$", r"\1"), r"\.$", "")
    return found


def _plain(values: pa.Array, found: pa.Array) -> pa.Array:
    """The texts of numbers below 1 without exponents: the decimals of the value plus or minus 1."""
    scale = values.type.scale
    small = pc.match_substring(found, "E")
    wide = pc.abs(values).cast(pa.decimal256(60, scale))
    shifted = pc.add(wide, pa.scalar(Decimal(1), pa.decimal256(1, 0))).cast(_STRING)
    signs = pc.if_else(pc.starts_with(found, "-"), "-0", "0")
    return pc.if_else(small, _glued(signs, pc.utf8_slice_codeunits(shifted, 1)), found)


def _short_seconds(values: pa.Array) -> pa.Array:
    """The texts of times without trailing zeros in the fraction of a second."""
    whole = pc.ends_with(values, ".000000")
    cut = pc.utf8_slice_codeunits(values, 0, -7)
    if pc.all(whole).as_py() is not False:
        return cut
    return pc.if_else(whole, cut, _replaced(values, r"(\.\d*?)0+$", r"\1"))


def _dated(values: pa.Array, found: pa.Array, zone: pa.Array | str = "") -> pa.Array:
    """The texts of dates with their zone, with `BC` for years before 1, and of the infinities."""
    shown = found if isinstance(zone, str) and not zone else _glued(found, zone)
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


def _early(values: pa.Array, zone: pa.Array | str) -> pa.Array:
    """The texts of moments before the year 1 as PostgreSQL writes them: the year 0 is 1 BC."""
    years = pc.subtract(1, pc.year(values)).cast(_STRING)
    rest = _replaced(values.cast(_STRING), r"^-?\d+(-\d\d-\d\d)", r"\1")
    rest = _short_seconds(rest) if not pa.types.is_date32(values.type) else rest
    return _glued(pc.utf8_lpad(years, 4, "0"), rest, zone, " BC")


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
    """Whether a time of day is written with a plus: after a negative part, as in PostgreSQL."""
    return np.where(days != 0, days < 0, months < 0)


def _counted(numbers: np.ndarray, unit: str) -> pa.Array:
    """Texts like `3 days` or `1 day`; NULL for 0."""
    words = pc.if_else(pa.array(numbers == 1), f" {unit}", f" {unit}s")
    shown = _glued(pa.array(numbers).cast(_STRING), words)
    return pc.if_else(pa.array(numbers != 0), shown, pa.scalar(None, _STRING))


def _padded(numbers: np.ndarray, width: int = 2) -> pa.Array:
    return pc.utf8_lpad(pa.array(numbers).cast(_STRING), width, "0")


def _bytes(values: pa.Array) -> pa.Array:
    r"""Texts of `\x` and two digits for each byte."""
    values = pa.concat_arrays([values.cast(pa.large_binary())])
    bounds = offsets(values)
    digits = _HEX[np.frombuffer(values.buffers()[2] or b"", np.uint8)[: bounds[-1]]]
    shown = pa.LargeStringArray.from_buffers(len(values), pa.py_buffer(bounds * 2), pa.py_buffer(digits))
    return _where(values, _glued("\\x", shown))


def _arrays(values: pa.Array, kind: SqlType) -> pa.Array:
    """Texts like `{1,2,NULL}`; of maps like `{key1:1,key2:2}`, as RisingWave writes them."""
    assert kind.element is not None
    values = pa.concat_arrays([values])
    if kind.name == "map":
        parts = [pc.fill_null(texts(values.values.field(i), t), "NULL") for i, t in enumerate(kind.entry)]
    else:
        parts = [texts(values.values, kind.element)]
    inner = _glued(*parts, separator=":")
    if kind.name == "array" and kind.element.name != "array":
        inner = _quoted(inner, _QUOTED_ELEMENT)
    inner = pc.fill_null(inner, "NULL")
    offsets = pc.fill_null(values.offsets, 0).cast(pa.int64())
    lists = pa.LargeListArray.from_arrays(offsets, inner)
    body = pc.binary_join(lists, pa.scalar(",", _STRING))
    return _where(values, _glued("{", body, "}"))


def _structs(values: pa.Array, kind: SqlType) -> pa.Array:
    """Texts like `(1,"two words",)`."""
    values = pa.concat_arrays([values])
    fields = [
        pc.fill_null(_quoted(texts(values.field(i), t), _QUOTED_FIELD, doubled=True), "")
        for i, (_, t) in enumerate(kind.fields)
    ]
    body = _glued(*fields, separator=",")
    return _where(values, _glued("(", body, ")"))


def _quoted(values: pa.Array, pattern: str, *, doubled: bool = False) -> pa.Array:
    """Texts, quoted if they match the pattern. doubled: quotes inside are doubled, as in rows, not escaped."""
    needed = pc.match_substring_regex(values, pattern)
    if not pc.any(needed).as_py():
        return values
    escaped = _replaced(_replaced(values, r"(\\)", r"\\\1"), '(")', r"\1\1" if doubled else r"\\\1")
    return pc.if_else(needed, _glued('"', escaped, '"'), values)


#: 2000-01-01, PostgreSQL's epoch, in days and microseconds since 1970.
EPOCH_DAYS: Final = 10_957

EPOCH_US: Final = EPOCH_DAYS * 86_400_000_000
_INTEGERS: Final = {"smallint": ">i2", "integer": ">i4", "bigint": ">i8", "real": ">f4", "double precision": ">f8"}
_GROUP: Final = 10_000

#: The maximum number of groups of four digits in a number of 38 digits.
_GROUPS: Final = 11

_LIMBS: Final = 5


def encoded(values: pa.Array, kind: SqlType) -> pa.Array:
    """The bytes of values of a type, as large binary; NULL stays NULL. Raises FEATURE_NOT_SUPPORTED for arrays of
    arrays.
    """
    of_one_width = fixed_values(values, kind)
    if of_one_width is not None:
        found = fixed(of_one_width)
        return pc.if_else(pc.is_valid(values), found, pa.scalar(None, BINARY)) if values.null_count else found
    match kind.name:
        case "varchar" | "json" | "bytea" | "map":
            return (texts(values, kind) if kind.name == "map" else values).cast(BINARY)
        case "jsonb":
            return pc.binary_join_element_wise(pa.scalar(b"\1", BINARY), spaced(values).cast(BINARY), NOTHING)
        case "numeric":
            return numbers(values, kind)
        case "array":
            return _binary_arrays(values, kind)
        case _:
            return _binary_structs(values, kind)


def fixed_values(values: pa.Array, kind: SqlType) -> np.ndarray | None:
    """The bytes of values of a type with a fixed width, arbitrary for NULL; None for other types."""
    match kind.name:
        case "smallint" | "integer" | "bigint" | "real" | "double precision":
            return _binary_plain(values).astype(_INTEGERS[kind.name])
        case "boolean":
            return _binary_plain(values.cast(pa.uint8()))
        case "date":
            days = _binary_plain(values.cast(pa.int32())).astype(np.int64)
            return _shifted(days, EPOCH_DAYS, np.int32).astype(">i4")
        case "time":
            return _binary_plain(values.cast(pa.int64())).astype(">i8")
        case "timestamp" | "timestamptz":
            return _shifted(_binary_plain(values.cast(pa.int64())), EPOCH_US, np.int64).astype(">i8")
        case "interval":
            return _binary_intervals(values)
        case "uuid":
            return _binary_uuids(values)
        case _:
            return None


#: The positions of digits in the text of a uuid, and the values of digits by their bytes.
UUID_DIGITS: Final = np.array([i for i in range(36) if i not in (8, 13, 18, 23)])
_DIGITS: Final = np.array([int(chr(i), 16) if chr(i) in "0123456789abcdef" else 0 for i in range(256)], np.uint8)


def _binary_uuids(values: pa.Array) -> np.ndarray:
    texts = pa.concat_arrays([pc.fill_null(values, "0" * 36)]).cast(_STRING)
    digits = _DIGITS[np.frombuffer(contents(texts.cast(BINARY)), np.uint8).reshape(-1, 36)[:, UUID_DIGITS]]
    found: np.ndarray = np.ascontiguousarray(digits[:, ::2] << 4 | digits[:, 1::2]).view("V16")[:, 0]
    return found


def _binary_plain(values: pa.Array) -> np.ndarray:
    """The values as a numpy array, with 0 for NULL."""
    found: np.ndarray = pc.fill_null(values, 0).to_numpy(zero_copy_only=False)
    return found


def _shifted(moments: np.ndarray, epoch: int, kind: type) -> np.ndarray:
    """Moments relative to 2000; the infinities are the least and the greatest number."""
    limits = np.iinfo(kind)
    return np.where(moments == limits.max, moments, np.where(moments == -limits.max, limits.min, moments - epoch))


def _binary_intervals(values: pa.Array) -> np.ndarray:
    months, days, microseconds = interval_parts(values)
    data = np.empty(len(values), np.dtype([("microseconds", ">i8"), ("days", ">i4"), ("months", ">i4")]))
    data["microseconds"], data["days"], data["months"] = microseconds, days, months
    return data


def numbers(values: pa.Array, kind: SqlType) -> pa.Array:
    """Numbers as groups of four digits, preceded by their count, the weight of the first, the sign, and the number of
    decimals.
    """
    scale = kind.decimals
    groups, negative = _groups(values, -scale % 4)
    fractions = -(-scale // 4)
    shown = np.full(len(values), scale, np.int16)
    if kind == NUMERIC:
        shown = _significant(groups[:, _GROUPS - fractions :], scale)
    there = groups != 0
    some = there.any(axis=1)
    first = np.where(some, there.argmax(axis=1), _GROUPS)
    last = np.where(some, _GROUPS - there[:, ::-1].argmax(axis=1), _GROUPS)
    head = np.empty(len(values), np.dtype([("digits", ">i2"), ("weight", ">i2"), ("sign", ">u2"), ("scale", ">i2")]))
    head["digits"], head["weight"] = last - first, np.where(some, _GROUPS - fractions - 1 - first, 0)
    head["sign"], head["scale"] = np.where(negative, 0x4000, 0), shown
    places = np.arange(_GROUPS)
    kept = groups.astype(">i2")[(places >= first[:, None]) & (places < last[:, None])]
    offsets = np.concatenate([[0], np.cumsum(last - first)]).astype(np.int64) * 2
    digits = pa.Array.from_buffers(BINARY, len(values), [None, pa.py_buffer(offsets), pa.py_buffer(kept.tobytes())])
    found = pc.binary_join_element_wise(fixed(head), digits, NOTHING)
    return pc.if_else(pc.is_valid(values), found, pa.scalar(None, BINARY))


def _groups(values: pa.Array, shift: int) -> tuple[np.ndarray, np.ndarray]:
    """The groups of four digits of each number times 10 ** shift, the lowest group last; and the mask of negative
    numbers.
    """
    values = pa.concat_arrays([values])
    words = np.frombuffer(values.buffers()[1] or b"", np.uint64)[: 2 * len(values)].reshape(-1, 2)
    words = np.where(pc.is_valid(values).to_numpy(zero_copy_only=False)[:, None], words, np.uint64(0))
    low, high = words[:, 0], words[:, 1]
    negative = high >> np.uint64(63) == 1
    low = np.where(negative, ~low + np.uint64(1), low)
    high = np.where(negative, ~high + (low == 0), high)
    mask, half = np.uint64(0xFFFF_FFFF), np.uint64(32)
    limbs = np.stack([np.zeros_like(low), high >> half, high & mask, low >> half, low & mask], axis=1)
    carry = np.zeros_like(low)
    for i in reversed(range(_LIMBS)):
        total = limbs[:, i] * np.uint64(10**shift) + carry
        limbs[:, i], carry = total & mask, total >> half
    found = np.empty((len(values), _GROUPS), np.int16)
    for place in reversed(range(_GROUPS)):
        rest = np.zeros_like(low)
        for i in range(_LIMBS):
            total = (rest << half) | limbs[:, i]
            limbs[:, i], rest = np.divmod(total, np.uint64(_GROUP))
        found[:, place] = rest
    return found, negative


def _significant(groups: np.ndarray, scale: int) -> np.ndarray:
    """The number of decimals without trailing zeros."""
    digits = (groups[:, :, None] // np.array([1000, 100, 10, 1], np.int16)) % 10
    flat = digits.reshape(len(groups), -1)[:, :scale] != 0
    found = np.where(flat.any(axis=1), scale - flat[:, ::-1].argmax(axis=1), 0) if scale else np.zeros(len(groups))
    return found.astype(np.int16)


def _binary_arrays(values: pa.Array, kind: SqlType) -> pa.Array:
    """Binary arrays: dimensions, whether there are NULLs, the type, the number and first index of the elements; then
    the elements.
    """
    assert kind.element is not None
    if kind.element.name == "array":
        raise error(
            "FEATURE_NOT_SUPPORTED",
            "arrays of arrays in binary are not supported",
            hint="Ask for the column in text, or cast it to varchar.",
        )
    values = pa.concat_arrays([values])
    elements = sized(encoded(values.values, kind.element))
    lengths = pc.fill_null(pc.list_value_length(values), 0).to_numpy(zero_copy_only=False)
    offsets = pc.fill_null(values.offsets, 0).cast(pa.int64())
    body = pc.binary_join(pa.LargeListArray.from_arrays(offsets, elements), NOTHING)
    short = np.dtype([("dimensions", ">i4"), ("nulls", ">i4"), ("oid", ">i4")])
    nulls = int(values.values.null_count > 0)
    head = np.empty(len(values), np.dtype([*short.descr, ("length", ">i4"), ("first", ">i4")]))
    head["dimensions"], head["nulls"], head["oid"] = 1, nulls, oid_of(kind.element)
    head["length"], head["first"] = lengths, 1
    empty = np.zeros(len(values), short)
    empty["oid"] = oid_of(kind.element)
    front = pc.if_else(pa.array(lengths > 0), fixed(head), fixed(empty))
    found = pc.binary_join_element_wise(front, body, NOTHING)
    return pc.if_else(pc.is_valid(values), found, pa.scalar(None, BINARY))


def _binary_structs(values: pa.Array, kind: SqlType) -> pa.Array:
    """Binary structs: the number of fields; for each its type, length and value."""
    values = pa.concat_arrays([values])
    rows = Rows(len(values))
    rows.put(np.full(len(values), len(kind.fields), ">i4"))
    for i, (_, inner) in enumerate(kind.fields):
        rows.put(np.full(len(values), oid_of(inner), ">i4"))
        rows.put_sized(encoded(values.field(i), inner))
    return pc.if_else(pc.is_valid(values), rows.array(), pa.scalar(None, BINARY))


class Rows:
    """Builds the bytes of rows, field by field from left to right. numpy writes fields of fixed width; one Arrow kernel
    writes the others and joins all.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self._fixed: list[np.ndarray] = []
        self._parts: list[pa.Array] = []

    def put(self, values: np.ndarray) -> None:
        """Adds a field of fixed width: the bytes of each element."""
        self._fixed.append(values)

    def put_sized(self, values: pa.Array | np.ndarray) -> None:
        """Adds values (large binary, or of a fixed width), each after its length; NULL is the length -1."""
        if isinstance(values, np.ndarray):
            self.put(np.full(self.count, values.dtype.itemsize, ">i4"))
            self.put(values)
            return
        lengths = pc.fill_null(pc.binary_length(values), -1).to_numpy(zero_copy_only=False)
        self.put(lengths.astype(">i4"))
        self._flush()
        self._parts.append(values)

    def array(self) -> pa.Array:
        """The rows as large binary."""
        self._flush()
        if len(self._parts) == 1 and not self._parts[0].null_count:
            return self._parts[0]
        return pc.binary_join_element_wise(*self._parts, NOTHING, null_handling="replace", null_replacement=b"")

    def joined(self) -> memoryview:
        """The concatenated bytes of all rows."""
        return contents(self.array())

    def _flush(self) -> None:
        if self._fixed:
            kind = np.dtype([(f"f{i}", part.dtype) for i, part in enumerate(self._fixed)])
            record = np.empty(self.count, kind)
            for i, part in enumerate(self._fixed):
                record[f"f{i}"] = part
            self._fixed = []
            self._parts.append(fixed(record))


def contents(values: pa.Array) -> memoryview:
    """The concatenated bytes of values (large binary)."""
    if not len(values):
        return memoryview(b"")
    bounds = offsets(values)
    return memoryview(values.buffers()[2]).cast("B")[bounds[0] : bounds[-1]]


def fixed(values: np.ndarray) -> pa.Array:
    """The bytes of each element of an array, as large binary."""
    offsets = _offsets(len(values), values.dtype.itemsize)
    return pa.Array.from_buffers(BINARY, len(values), [None, offsets, pa.py_buffer(np.ascontiguousarray(values))])


@lru_cache(maxsize=64)
def _offsets(count: int, width: int) -> pa.Buffer:
    return pa.py_buffer(np.arange(count + 1, dtype=np.int64) * width)


def sized(values: pa.Array) -> pa.Array:
    """Each value (large binary) after its length; NULL is the length -1."""
    rows = Rows(len(values))
    rows.put_sized(values)
    return rows.array()


_NUMBERS: Final = {"smallint": ">h", "integer": ">i", "bigint": ">q", "real": ">f", "double precision": ">d"}
_OID_BYTES: Final = 4
_FLOAT: Final = re.compile(r"-?\d{1,300}(\.\d+)?([eE][-+]?\d{1,2})?", re.ASCII)
_DECIMAL: Final = re.compile(r"-?\d{1,28}(\.\d{1,10})?", re.ASCII)
_BOOLEANS: Final = {"t": True, "f": False, "true": True, "false": False}
_GROUP_DIGITS: Final = 4
_NEGATIVE: Final = 0x4000
_SPECIAL: Final = {0xC000: "NaN", 0xD000: "Infinity", 0xF000: "-Infinity"}
_EPOCH_DATE: Final = dt.date(2000, 1, 1)


def number_of(parameter: Parameter) -> int:
    """The oid of the type of a parameter."""
    if parameter.oid:
        return parameter.oid
    return TEXT if parameter.kind is None else oid_of(parameter.kind)


def parameter_of(oid: int) -> Parameter:
    """A parameter from the oid of its type; 0 for an unspecified type. Raises FEATURE_NOT_SUPPORTED."""
    kind = sql_type(oid)
    return Parameter() if kind is None else Parameter(kind, oid)


def bound(
    values: Sequence[bytes | None], formats: Sequence[int], parameters: Sequence[Parameter]
) -> list[exp.Expression]:
    """The literals of a Bind message. formats: none (all text), one for all, or one for each value.

    Raises PROTOCOL_VIOLATION, INVALID_VALUE.
    """
    forms = for_each(formats, len(values), "values")
    return [_literal(v, f, p) for v, f, p in zip(values, forms, parameters, strict=True)]


def plain(
    values: Sequence[bytes | None], formats: Sequence[int], parameters: Sequence[Parameter]
) -> list[object] | None:
    """The Python values of a Bind message, for a small statement; None if it must run the usual way. Raises
    PROTOCOL_VIOLATION.
    """
    forms = for_each(formats, len(values), "values")
    try:
        return [None if v is None else _plain_value(v, f, p) for v, f, p in zip(values, forms, parameters, strict=True)]
    except NotSmall:
        return None


def _plain_value(value: bytes, form: int, parameter: Parameter) -> object:
    kind = parameter.kind
    if kind == JSON:
        raise NotSmall
    if kind is None or kind == VARCHAR or (kind == UUID and form == 0):
        return decoded(value)
    if form == 1:
        try:
            found = _read(Body(value), len(value), kind)
        except (struct.error, OverflowError, ValueError, Error):
            raise NotSmall from None
        if isinstance(found, str) and kind != UUID:
            raise NotSmall
        return found
    text = decoded(value)
    if kind.is_integer or kind.name in ("date", "timestamp", "timestamptz"):
        assign = assign_to(kind)
        assert assign is not None
        return assign(text)
    if kind.name == "double precision" and _FLOAT.fullmatch(text):
        return float(text)
    if kind.name == "numeric" and _DECIMAL.fullmatch(text):
        return Decimal(text)
    if kind.name == "boolean" and text in _BOOLEANS:
        return _BOOLEANS[text]
    raise NotSmall


def for_each(formats: Sequence[int], count: int, what: str) -> Sequence[int]:
    """The format of each value or column, from none (text), one for all, or one for each. Raises PROTOCOL_VIOLATION."""
    if any(f not in (0, 1) for f in formats):
        raise error("PROTOCOL_VIOLATION", "a format is 0 (text) or 1 (binary)")
    if len(formats) not in (0, 1, count):
        raise error("PROTOCOL_VIOLATION", f"{len(formats)} formats were given for {count} {what}")
    return formats if len(formats) == count else [formats[0] if formats else 0] * count


def _literal(value: bytes | None, form: int, parameter: Parameter) -> exp.Expression:
    """The tree for a value."""
    kind = parameter.kind
    if value is None:
        return literal(None, parameter)
    if form == 0 or kind is None or kind == VARCHAR:
        return literal(decoded(value), parameter)
    try:
        found = _read(Body(value), len(value), kind)
    except (struct.error, OverflowError, ValueError, Error) as cause:
        reason = cause.message if isinstance(cause, Error) else str(cause)
        raise error(
            "INVALID_BINARY_VALUE",
            f"incorrect binary data for type {kind.sql}",
            detail=f"{reason[:1].upper()}{reason[1:]}.",
        ) from None
    if kind.is_integer or isinstance(found, str) or (kind.element in (JSON, UUID) and found):
        return literal(found, parameter)
    return literal_of(found, "")


def _read(body: Body, length: int, kind: SqlType) -> object:
    """Decodes a binary value, to Python or to its text."""
    if kind.name in _NUMBERS:
        form = ">I" if kind == BIGINT and length == _OID_BYTES else _NUMBERS[kind.name]
        (number,) = struct.unpack(form, body.take(length))
        return number if not isinstance(number, float) or math.isfinite(number) else str(number)
    match kind.name:
        case "boolean":
            return struct.unpack(">?", body.take(length))[0]
        case "bytea":
            return body.take(length)
        case "varchar" | "json":
            return decoded(body.take(length))
        case "uuid":
            return str(uuid.UUID(bytes=body.take(length)))
        case "jsonb":
            text = body.take(length)
            return decoded(text[1:] if text[:1] == b"\1" else text)
        case "numeric":
            return _numeric(body)
        case "date":
            return _day(struct.unpack(">i", body.take(length))[0])
        case "time":
            return _clock(struct.unpack(">q", body.take(length))[0])
        case "timestamp" | "timestamptz":
            (moment,) = struct.unpack(">q", body.take(length))
            return _moment(moment, zoned=kind != TIMESTAMP)
        case "interval":
            microseconds, days, months = struct.unpack(">qii", body.take(length))
            return Interval(months, days, microseconds)
        case _:
            return _array(body)


def _numeric(body: Body) -> Decimal | str:
    count, weight, sign = body.number(2), body.number(2), body.number(2) & 0xFFFF
    body.number(2)
    if sign in _SPECIAL:
        return _SPECIAL[sign]
    digits = [body.number(2) for _ in range(count)]
    if any(not 0 <= d < 10**_GROUP_DIGITS for d in digits):
        raise ValueError("a digit is out of range")
    whole = int("".join(f"{d:04}" for d in digits) or "0")
    is_negative = sign == _NEGATIVE and whole != 0
    return Decimal((int(is_negative), tuple(map(int, str(whole))), _GROUP_DIGITS * (weight - len(digits) + 1)))


def _day(days: int) -> dt.date | str:
    if abs(days) >= 2**31 - 1:
        return "infinity" if days > 0 else "-infinity"
    return _EPOCH_DATE + dt.timedelta(days=days)


def _clock(microseconds: int) -> dt.time:
    return (dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(microseconds=microseconds)).time()


def _moment(microseconds: int, *, zoned: bool) -> dt.datetime | str:
    if abs(microseconds) >= 2**63 - 1:
        return "infinity" if microseconds > 0 else "-infinity"
    zone = dt.UTC if zoned else None
    return dt.datetime(1970, 1, 1, tzinfo=zone) + dt.timedelta(microseconds=microseconds + EPOCH_US)


def _array(body: Body) -> list[object]:
    dimensions, _, oid = body.number(4), body.number(4), body.number(4)
    element = VARCHAR if is_created(oid) else sql_type(oid)
    if element is None or dimensions not in (0, 1):
        raise ValueError("arrays have one dimension and a type of their elements")
    if dimensions == 0:
        return []
    length = body.number(4)
    body.number(4)
    values = [body.value() for _ in range(length)]
    return [None if v is None else _read(Body(v), len(v), element) for v in values]

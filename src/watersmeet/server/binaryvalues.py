"""Columns as PostgreSQL writes their values in binary."""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.errors import error
from watersmeet.formats.valuetexts import spaced
from watersmeet.server.buffers import BINARY, NOTHING, Rows, fixed, sized
from watersmeet.server.oids import oid_of
from watersmeet.server.textvalues import interval_parts
from watersmeet.types import NUMERIC, SqlType

#: 2000-01-01, from which PostgreSQL counts, in days and microseconds since 1970.
EPOCH_DAYS: Final = 10_957
EPOCH_US: Final = EPOCH_DAYS * 86_400_000_000

_INTEGERS: Final = {"smallint": ">i2", "integer": ">i4", "bigint": ">i8", "real": ">f4", "double precision": ">f8"}
_GROUP: Final = 10_000
#: Ten-thousands that a number of 38 digits may have, wherever its point is.
_GROUPS: Final = 11
_LIMBS: Final = 5


def encoded(values: pa.Array, kind: SqlType) -> pa.Array:
    """The bytes of values of a type, as large binary; NULL stays NULL. FEATURE_NOT_SUPPORTED for arrays of arrays."""
    of_one_width = fixed_values(values, kind)
    if of_one_width is not None:
        found = fixed(of_one_width)
        return pc.if_else(pc.is_valid(values), found, pa.scalar(None, BINARY)) if values.null_count else found
    match kind.name:
        case "varchar" | "bytea":
            return values.cast(BINARY)
        case "jsonb":
            return pc.binary_join_element_wise(pa.scalar(b"\1", BINARY), spaced(values).cast(BINARY), NOTHING)
        case "numeric":
            return numbers(values, kind)
        case "array":
            return _arrays(values, kind)
        case _:
            return _structs(values, kind)


def fixed_values(values: pa.Array, kind: SqlType) -> np.ndarray | None:
    """The bytes of values of a type that all have one width, any for NULL; None for other types."""
    match kind.name:
        case "smallint" | "integer" | "bigint" | "real" | "double precision":
            return _plain(values).astype(_INTEGERS[kind.name])
        case "boolean":
            return _plain(values.cast(pa.uint8()))
        case "date":
            days = _plain(values.cast(pa.int32())).astype(np.int64)
            return _shifted(days, EPOCH_DAYS, np.int32).astype(">i4")
        case "time":
            return _plain(values.cast(pa.int64())).astype(">i8")
        case "timestamp" | "timestamptz":
            return _shifted(_plain(values.cast(pa.int64())), EPOCH_US, np.int64).astype(">i8")
        case "interval":
            return _intervals(values)
        case _:
            return None


def _plain(values: pa.Array) -> np.ndarray:
    """The values as numpy has them, 0 for NULL."""
    found: np.ndarray = pc.fill_null(values, 0).to_numpy(zero_copy_only=False)
    return found


def _shifted(moments: np.ndarray, epoch: int, kind: type) -> np.ndarray:
    """Moments counted from 2000; the two that are infinite are the greatest and the least number."""
    limits = np.iinfo(kind)
    return np.where(moments == limits.max, moments, np.where(moments == -limits.max, limits.min, moments - epoch))


def _intervals(values: pa.Array) -> np.ndarray:
    months, days, microseconds = interval_parts(values)
    data = np.empty(len(values), np.dtype([("microseconds", ">i8"), ("days", ">i4"), ("months", ">i4")]))
    data["microseconds"], data["days"], data["months"] = microseconds, days, months
    return data


def numbers(values: pa.Array, kind: SqlType) -> pa.Array:
    """Numbers by groups of four digits: how many, the weight of the first, the sign, the digits behind the point."""
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
    """The groups of four digits of each number times 10 ** shift, the last one last; and which are negative."""
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
    """How many digits behind the point there are up to the last that is not 0."""
    digits = (groups[:, :, None] // np.array([1000, 100, 10, 1], np.int16)) % 10
    flat = digits.reshape(len(groups), -1)[:, :scale] != 0
    found = np.where(flat.any(axis=1), scale - flat[:, ::-1].argmax(axis=1), 0) if scale else np.zeros(len(groups))
    return found.astype(np.int16)


def _arrays(values: pa.Array, kind: SqlType) -> pa.Array:
    """Dimensions, whether there are NULLs, type, number and first index of the elements; then these."""
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


def _structs(values: pa.Array, kind: SqlType) -> pa.Array:
    """How many fields there are, and for each its type and its value with the length."""
    values = pa.concat_arrays([values])
    rows = Rows(len(values))
    rows.put(np.full(len(values), len(kind.fields), ">i4"))
    for i, (_, inner) in enumerate(kind.fields):
        rows.put(np.full(len(values), oid_of(inner), ">i4"))
        rows.put_sized(encoded(values.field(i), inner))
    return pc.if_else(pc.is_valid(values), rows.array(), pa.scalar(None, BINARY))

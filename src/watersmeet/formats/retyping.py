"""SQL types of Arrow types, and conversion of other systems' columns to the declared types."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.errors import error
from watersmeet.formats.convert import convert
from watersmeet.formats.scalars import Converted, Mask
from watersmeet.values.times import DAY_US
from watersmeet.values.types import (
    BIGINT,
    BOOLEAN,
    BYTEA,
    DATE,
    DOUBLE,
    INTEGER,
    REAL,
    SMALLINT,
    TIME,
    TIMESTAMP,
    TIMESTAMPTZ,
    VARCHAR,
    Field,
    Schema,
    SqlType,
)


def can_read(found: pa.DataType, kind: SqlType) -> bool:
    """Whether columns of the type `found` can be of the declared type, value by value."""
    if pa.types.is_dictionary(found):
        found = found.value_type
    if pa.types.is_null(found):
        return True
    name = kind.name
    if name in ("varchar", "jsonb"):
        return bool(pa.types.is_string(found) or pa.types.is_large_string(found) or pa.types.is_string_view(found))
    if name == "boolean":
        return bool(pa.types.is_boolean(found))
    if kind.is_integer:
        return bool(pa.types.is_integer(found))
    if kind.is_float:
        return bool(pa.types.is_floating(found) or pa.types.is_integer(found))
    if name == "numeric":
        return bool(pa.types.is_decimal(found) or pa.types.is_integer(found))
    if name == "bytea":
        return bool(
            pa.types.is_binary(found) or pa.types.is_large_binary(found) or pa.types.is_fixed_size_binary(found)
        )
    if name == "date":
        return bool(pa.types.is_date(found))
    if name == "time":
        return bool(pa.types.is_time(found))
    if name in ("timestamp", "timestamptz"):
        return bool(pa.types.is_timestamp(found)) and (found.tz is not None) == (name == "timestamptz")
    if name == "array":
        assert kind.element is not None
        is_list = pa.types.is_list(found) or pa.types.is_large_list(found)
        return bool(is_list and can_read(found.value_type, kind.element))
    if name == "struct":
        return bool(pa.types.is_struct(found)) and all(
            found.get_field_index(part) >= 0 and can_read(found.field(part).type, part_kind)
            for part, part_kind in kind.fields
        )
    return bool(found == kind.arrow)


def retyped(array: pa.Array, kind: SqlType) -> Converted:
    """The column in the declared type; values that don't fit are bad. Raises pa.ArrowException if it can't."""
    try:
        # Parquet's readers don't check that text is UTF-8, nor that decimals have the digits of their type.
        array.validate(full=True)
        bad = None
    except pa.ArrowInvalid:
        bad = _culprits(array, _validated)
        array = pc.if_else(pa.array(~bad), array, pa.scalar(None, array.type))
    done = _retyped_valid(array, kind)
    return Converted(done.column, done.bad if bad is None else bad if done.bad is None else bad | done.bad)


def _retyped_valid(array: pa.Array, kind: SqlType) -> Converted:
    if pa.types.is_null(array.type):
        return Converted(pa.nulls(len(array), kind.arrow))
    if kind.name == "jsonb":
        return convert([array.cast(pa.string())], [kind])[0]
    if kind.name == "time":
        return _in_a_day(pc.cast(array, kind.arrow, safe=False))
    if array.type == kind.arrow:
        return Converted(array)
    if kind.is_float or (kind.name in ("timestamp", "timestamptz") and array.type.unit == "ns"):
        # Nanoseconds are cut to microseconds; whole numbers above 2^53 are rounded, as in a cast in SQL.
        return Converted(pc.cast(array, kind.arrow, safe=False))
    try:
        return Converted(pc.cast(array, kind.arrow))
    except pa.ArrowInvalid:
        bad = _culprits(array, lambda part: pc.cast(part, kind.arrow))
        array = pc.if_else(pa.array(~bad), array, pa.scalar(None, array.type))
        return Converted(pc.cast(array, kind.arrow), bad)


def _in_a_day(times: pa.Array) -> Converted:
    """Times of a day; files may hold any number."""
    numbers = times.cast(pa.int64())
    fits = pc.fill_null(pc.and_(pc.greater_equal(numbers, 0), pc.less(numbers, DAY_US)), fill_value=True)
    bad = ~fits.to_numpy(zero_copy_only=False)
    if not bad.any():
        return Converted(times)
    return Converted(pc.if_else(fits, times, pa.scalar(None, times.type)), bad)


def _validated(array: pa.Array) -> None:
    array.validate(full=True)


def _culprits(array: pa.Array, attempt: Callable[[pa.Array], object]) -> Mask:
    """The rows for which `attempt` raises ArrowInvalid: the slow way, halves until they are alone."""
    bad = np.zeros(len(array), np.bool_)
    nested = pa.types.is_nested(array.type)
    open_ = [(0, len(array))]
    while open_:
        start, end = open_.pop()
        # Of a nested array a slice still holds all values, also those of other rows.
        part = array.take(pa.array(range(start, end))) if nested else array.slice(start, end - start)
        try:
            attempt(part)
        except pa.ArrowInvalid:
            if end - start == 1:
                bad[start] = True
            else:
                middle = (start + end) // 2
                open_ += [(middle, end), (start, middle)]
    return bad


def columns_of(what: str, schema: pa.Schema) -> Schema:
    """The columns of a table elsewhere. FEATURE_NOT_SUPPORTED for a type that SQL does not have. what: the table."""
    found = []
    for field in schema:
        kind = sql_type(field.type)
        if kind is None:
            raise error(
                "FEATURE_NOT_SUPPORTED",
                f'column "{field.name}" of {what} has type {field.type}, which is not supported',
                hint="List the columns that are to be read.",
            )
        found.append(Field(field.name, kind, field.nullable))
    return tuple(found)


def sql_type(kind: pa.DataType) -> SqlType | None:
    """The type of SQL that has all values of a type; None if there is none."""
    if pa.types.is_timestamp(kind):
        return TIMESTAMP if kind.tz is None else TIMESTAMPTZ
    if pa.types.is_decimal128(kind):
        return SqlType("numeric", kind.precision, kind.scale)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        element = sql_type(kind.value_type)
        return None if element is None else SqlType("array", element=element)
    if pa.types.is_struct(kind):
        parts = [(f.name, sql_type(f.type)) for f in kind]
        known = tuple((name, part) for name, part in parts if part is not None)
        return SqlType("struct", fields=known) if len(known) == len(parts) else None
    for known_as, test in (
        (BOOLEAN, pa.types.is_boolean),
        (SMALLINT, lambda k: pa.types.is_int8(k) or pa.types.is_int16(k)),
        (INTEGER, pa.types.is_int32),
        (BIGINT, pa.types.is_int64),
        (REAL, pa.types.is_float32),
        (DOUBLE, pa.types.is_float64),
        (VARCHAR, lambda k: pa.types.is_string(k) or pa.types.is_large_string(k) or pa.types.is_string_view(k)),
        (BYTEA, lambda k: pa.types.is_binary(k) or pa.types.is_large_binary(k) or pa.types.is_fixed_size_binary(k)),
        (DATE, pa.types.is_date),
        (TIME, pa.types.is_time),
    ):
        if test(kind):
            return known_as
    return None

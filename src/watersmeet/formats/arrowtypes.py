"""Types of Arrow as types of SQL."""

from __future__ import annotations

import pyarrow as pa

from watersmeet.errors import error
from watersmeet.types import (
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

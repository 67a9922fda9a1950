"""Timeplus' type names: `int32`, `nullable(string)`, `array(float64)`, `datetime64(3)`. Document 003, all listings (TP-63)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from watersmeet.dialects.sqltypes import numeric
from watersmeet.dialects.tokens import Cursor, span_of
from watersmeet.errors import did_you_mean, error
from watersmeet.types import SqlType

#: Unsigned types are the next larger signed ones: every value has room, sums and differences are as in the others.
_NAMES: Final[dict[str, str]] = {
    "bool": "boolean",
    "int8": "smallint", "int16": "smallint", "int32": "integer", "int": "integer", "integer": "integer", "int64": "bigint",
    "bigint": "bigint", "smallint": "smallint", "uint8": "smallint", "uint16": "integer", "uint32": "bigint", "uint": "bigint",
    "float32": "real", "float": "real", "float64": "double precision", "double": "double precision",
    "string": "varchar", "fixed_string": "varchar",
    "date": "date", "date32": "date", "datetime": "timestamp", "datetime64": "timestamp",
    "json": "jsonb",
}  # fmt: skip
_LARGE: Final = {"uint64": 20, "int128": 38, "uint128": 38}
_LACKING: Final = {"uuid": "Use string.", "ipv4": "Use string.", "ipv6": "Use string.", "map": "Use json.", "tuple": "Use json.",
                   "int256": "Use int128.", "uint256": "Use int128.", "enum8": "Use string.", "enum16": "Use string.", "enum": "Use string."}

#: What a column that is not nullable gets where an INSERT gives nothing (ClickHouse's default of the type).
_DEFAULTS: Final[dict[str, str]] = {
    "boolean": "FALSE", "varchar": "''", "date": "DATE '1970-01-01'", "timestamp": "TIMESTAMP '1970-01-01'", "array": "[]",
    "jsonb": "'{}'",
}


@dataclass(frozen=True)
class ColumnType:
    """A type as a column has it."""

    type: SqlType
    nullable: bool = False


def default_of(kind: SqlType) -> str:
    """The default of a type as DuckDB SQL."""
    return "0" if kind.is_numeric else _DEFAULTS[kind.name]


def read_column_type(cursor: Cursor) -> ColumnType:
    """Reads a type at the cursor. UNDEFINED_OBJECT, FEATURE_NOT_SUPPORTED."""
    place = cursor.name(reserved=True)
    name = place.name.lower()
    if name in ("nullable", "low_cardinality", "array"):
        cursor.expect("(")
        inner = read_column_type(cursor)
        cursor.expect(")")
        if name == "array":
            return ColumnType(SqlType("array", element=inner.type))
        return ColumnType(inner.type, nullable=inner.nullable or name == "nullable")
    if name.startswith("decimal"):
        return _decimal(name, cursor)
    if name in _LARGE:
        return ColumnType(SqlType("numeric", _LARGE[name], 0))
    if name in _LACKING:
        raise error("FEATURE_NOT_SUPPORTED", f"type {name} is not supported", hint=_LACKING[name], sql=cursor.text, span=place.span)
    if name not in _NAMES:
        raise error("UNDEFINED_OBJECT", f'type "{place.name}" does not exist', hint=did_you_mean(name, [*_NAMES, *_LARGE, "array", "nullable"]),
                    sql=cursor.text, span=place.span)
    if cursor.take("("):  # digits of a second, a time zone, a length: values are not cut to them
        cursor.until(")")
        cursor.expect(")")
    return ColumnType(SqlType(_NAMES[name]))


def _decimal(name: str, cursor: Cursor) -> ColumnType:
    """`decimal(p, s)`, `decimal64(s)`."""
    start = cursor.index
    cursor.expect("(")
    first = cursor.integer()
    second = cursor.integer() if cursor.take(",") else None
    cursor.expect(")")
    digits = {"decimal32": 9, "decimal64": 18, "decimal128": 38}.get(name)
    from_to = (digits, first) if digits is not None else (first, second or 0)
    return ColumnType(numeric(*from_to, cursor.text, span_of(cursor.tokens[start - 1 : cursor.index])))

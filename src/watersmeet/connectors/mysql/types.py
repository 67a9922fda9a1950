"""The types of MySQL and MariaDB: the SQL type as which each is read, and the SQL types whose values it stores."""

from __future__ import annotations

from typing import Final, NamedTuple

from watersmeet.values.types import JSONB, REAL, TIMESTAMP, VARCHAR, SqlType

#: The maximum number of digits of a numeric.
_DIGITS: Final = 38
#: The number of fractional digits of a second.
_MICROSECONDS: Final = 6

TEXTS: Final = ("char", "varchar", "tinytext", "text", "mediumtext", "longtext")
BYTES: Final = ("binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob")
WHOLE: Final = ("tinyint", "smallint", "mediumint", "int", "bigint")
NUMBERS: Final = (*WHOLE, "decimal", "year")
#: The prefixes of types that store some different texts as equal values.
LOOSE: Final = ("char(", "uuid", "inet4", "inet6")

#: The columns of a table (schema, name), for `column_of`.
COLUMNS: Final = """
SELECT COLUMN_NAME, DATA_TYPE, COLUMN_TYPE, NUMERIC_PRECISION, NUMERIC_SCALE, IS_NULLABLE
FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s ORDER BY ORDINAL_POSITION
"""


class _Type(NamedTuple):
    """The conversions of a type. read: its SQL type; None: it is only read as a declared text. takes: the names of the
    SQL types whose values are all stored unchanged; None: all types. unsigned: the SQL type of the unsigned form if it
    differs.
    """

    read: SqlType | None
    takes: tuple[str, ...] | None = ()
    unsigned: SqlType | None = None


_SMALLINT, _INTEGER, _BIGINT = SqlType("smallint"), SqlType("integer"), SqlType("bigint")
_UINT64: Final = SqlType("numeric", 20, 0)
TYPES: Final[dict[str, _Type]] = {
    "tinyint": _Type(_SMALLINT, ("boolean",), _SMALLINT),
    "smallint": _Type(_SMALLINT, ("smallint",), _INTEGER),
    "mediumint": _Type(_INTEGER, ("smallint",), _INTEGER),
    "int": _Type(_INTEGER, ("smallint", "integer"), _BIGINT),
    "bigint": _Type(_BIGINT, ("smallint", "integer", "bigint"), _UINT64),
    "year": _Type(_SMALLINT),
    "bit": _Type(None, ("boolean",)),
    "decimal": _Type(None, ("smallint", "integer", "bigint", "numeric")),
    "float": _Type(REAL, ("real",)),
    "double": _Type(SqlType("double precision"), ("real", "double precision")),
    "date": _Type(SqlType("date"), ("date",)),
    "time": _Type(SqlType("time"), ("time",)),
    "datetime": _Type(TIMESTAMP, ("timestamp", "timestamptz")),
    "timestamp": _Type(SqlType("timestamptz"), ("timestamptz",)),
    "json": _Type(JSONB, ("varchar", "jsonb", "struct", "array")),
    **dict.fromkeys(TEXTS, _Type(VARCHAR, None)),
    **dict.fromkeys(("enum", "uuid", "inet4", "inet6"), _Type(VARCHAR, ("varchar",))),
    "set": _Type(VARCHAR),
    "binary": _Type(SqlType("bytea")),
    **dict.fromkeys(BYTES[1:], _Type(SqlType("bytea"), ("bytea",))),
}


class Column(NamedTuple):
    """A column. theirs: the server's type with its parameters. kind: the type without parameters. type: the SQL type;
    None: no equivalent.
    """

    name: str
    theirs: str
    kind: str
    type: SqlType | None
    nullable: bool


def column_of(name: str, kind: str, theirs: str, precision: int | None, scale: int | None, nullable: str) -> Column:
    """The column that a row of `COLUMNS` describes."""
    return Column(name, theirs, kind, read_type(kind, theirs, precision, scale), nullable == "YES")


def read_type(kind: str, theirs: str = "", precision: int | None = None, scale: int | None = None) -> SqlType | None:
    """The SQL type of a column; None if it has no equivalent."""
    if kind == "decimal" and precision is not None and precision <= _DIGITS:
        return SqlType("numeric", precision, scale or 0)
    if kind == "bit" and theirs:
        return SqlType("boolean") if precision == 1 else _UINT64
    known = TYPES.get(kind, _Type(None))
    return known.unsigned if known.unsigned and "unsigned" in theirs else known.read


def takes(kind: SqlType, theirs: str, shown: str) -> bool:
    """Whether a column stores all values of a type. theirs, shown: the column's type without and with parameters."""
    accepted = TYPES.get(theirs, _Type(None)).takes
    return accepted is None or (kind.name in accepted and (kind.name == "boolean" or "unsigned" not in shown))


def rounds(kind: SqlType, theirs: str, scale: int | None, digits: int | None) -> bool:
    """Whether a column silently stores rounded values. scale: the decimals of the type. digits: the fractional digits
    of a second.
    """
    if theirs == "decimal" and kind.name == "numeric":
        return kind.decimals > (scale or 0)
    return theirs in ("time", "datetime", "timestamp") and (digits or 0) < _MICROSECONDS

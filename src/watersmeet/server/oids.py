"""PostgreSQL's oids of types, and the SQL types for them.

PostgreSQL, `pg_type.dat`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from watersmeet.errors import error
from watersmeet.server.messages import Column
from watersmeet.values.declaredtypes import Declared
from watersmeet.values.types import (
    BIGINT,
    BOOLEAN,
    BYTEA,
    DATE,
    DOUBLE,
    INTEGER,
    INTERVAL,
    JSON,
    JSONB,
    NUMERIC,
    REAL,
    SMALLINT,
    TIME,
    TIMESTAMP,
    TIMESTAMPTZ,
    UUID,
    VARCHAR,
    Field,
    SqlType,
)

RECORD: Final = 2249
TEXT: Final = 25
BPCHAR: Final = 1042
#: The type `unknown`, whose values are texts.
UNKNOWN: Final = 705


@dataclass(frozen=True, slots=True)
class PgType:
    """A type of PostgreSQL.

    category: as in pg_type.typcategory. length: the size in bytes, -1 if it varies. array: the oid of its array type.
    """

    oid: int
    name: str
    length: int
    array: int
    category: str


#: PostgreSQL's types by the name of the SQL type.
TYPES: Final[dict[str, PgType]] = {
    "boolean": PgType(16, "bool", 1, 1000, "B"),
    "smallint": PgType(21, "int2", 2, 1005, "N"),
    "integer": PgType(23, "int4", 4, 1007, "N"),
    "bigint": PgType(20, "int8", 8, 1016, "N"),
    "real": PgType(700, "float4", 4, 1021, "N"),
    "double precision": PgType(701, "float8", 8, 1022, "N"),
    "numeric": PgType(1700, "numeric", -1, 1231, "N"),
    "varchar": PgType(1043, "varchar", -1, 1015, "S"),
    "bytea": PgType(17, "bytea", -1, 1001, "U"),
    "date": PgType(1082, "date", 4, 1182, "D"),
    "time": PgType(1083, "time", 8, 1183, "D"),
    "timestamp": PgType(1114, "timestamp", 8, 1115, "D"),
    "timestamptz": PgType(1184, "timestamptz", 8, 1185, "D"),
    "interval": PgType(1186, "interval", 16, 1187, "T"),
    "jsonb": PgType(3802, "jsonb", -1, 3807, "U"),
    "json": PgType(114, "json", -1, 199, "U"),
    "uuid": PgType(2950, "uuid", 16, 2951, "U"),
    "struct": PgType(RECORD, "record", -1, 2287, "P"),
}

#: PostgreSQL's types of columns by the name of their declared type (`Declared`).
DECLARED: Final[dict[str, PgType]] = {
    **{t.name: t for t in TYPES.values()},
    "text": PgType(TEXT, "text", -1, 1009, "S"),
    "bpchar": PgType(BPCHAR, "bpchar", -1, 1014, "S"),
    "name": PgType(19, "name", 64, 1003, "S"),
    "oid": PgType(26, "oid", 4, 1028, "N"),
    "inet": PgType(869, "inet", -1, 1041, "I"),
    "cidr": PgType(650, "cidr", -1, 651, "I"),
}
#: Declared types whose binary form differs from that of their values, so that results have the type of values.
_CATALOG_ONLY: Final = ("oid", "inet", "cidr")

#: SQL types of parameters by PostgreSQL's oids, including types without a separate SQL type.
_BY_OID: Final[dict[int, SqlType]] = {
    16: BOOLEAN,
    17: BYTEA,
    18: VARCHAR,  # "char"
    19: VARCHAR,  # name
    20: BIGINT,
    21: SMALLINT,
    23: INTEGER,
    24: INTEGER,  # regproc
    25: VARCHAR,
    26: BIGINT,  # oid
    114: JSON,
    650: VARCHAR,  # cidr
    700: REAL,
    701: DOUBLE,
    869: VARCHAR,  # inet
    BPCHAR: VARCHAR,
    1043: VARCHAR,
    1082: DATE,
    1083: TIME,
    1114: TIMESTAMP,
    1184: TIMESTAMPTZ,
    1186: INTERVAL,
    1700: NUMERIC,
    2205: BIGINT,  # regclass
    2950: UUID,
    3802: JSONB,
}
_ARRAYS: Final[dict[int, int]] = {
    **{t.array: t.oid for t in DECLARED.values() if t.oid != RECORD},
    1002: 18,
}


#: The type of parameters of a function without types.
_ANY: Final = PgType(2276, "any", 4, 0, "P")


_FIRST_RELATION: Final = 16_384
#: The number of oids reserved for a relation: for itself, its row type or type of arrays, its key's index, its key's
#: constraint, and its rule.
_NUMBERS_OF_ONE: Final = 8


def created_oid(relation_id: str, part: int = 0) -> int:
    """The oid of a relation or a created type by its id, or of one of its parts."""
    number = int(relation_id.lstrip("abcdefghijklmnopqrstuvwxyz"))
    return _FIRST_RELATION + number * _NUMBERS_OF_ONE + part


def is_created(oid: int) -> bool:
    """Whether it is the oid of a type that a user has created."""
    return _FIRST_RELATION <= oid < 1 << 28


def pg_type(kind: SqlType) -> PgType:
    """The type, or that of an array's elements at any depth."""
    while kind.name == "array" and kind.element is not None:
        kind = kind.element
    if kind.name == "map":  # a text, as in RisingWave
        return TYPES["varchar"]
    if kind.name == _ANY.name:
        return _ANY
    if kind.padding:
        return DECLARED["bpchar"]
    if kind.enum_id:
        return PgType(created_oid(kind.enum_id), kind.enum, 4, created_oid(kind.enum_id, 1), "E")
    return TYPES[kind.name]


def oid_of(kind: SqlType) -> int:
    """The oid of a type. Nested arrays have the oid of the array type."""
    found = pg_type(kind)
    return found.array if kind.name == "array" else found.oid


def declared_type(kind: SqlType, declared: Declared | None) -> PgType:
    """The type of a column, or that of its elements."""
    return pg_type(kind) if declared is None else DECLARED[declared.name]


def modifier_of(kind: SqlType, declared: Declared | None = None) -> int:
    """PostgreSQL's modifier of a type: a length, precision and scale of a number, digits of a time; -1 without one."""
    if declared is not None:
        return declared.modifier
    if kind.leaf.padding:
        return kind.leaf.padding + 4
    if kind.name == "numeric" and kind.precision is not None:
        return (kind.precision << 16 | (kind.scale or 0)) + 4
    return -1


def result_column(field: Field, declared: Declared | None = None) -> Column:
    """A column of a result. declared: the declared type of the column of a table that it shows."""
    if declared is not None and declared.name in _CATALOG_ONLY:
        declared = None
    is_array = field.type.name == "array"
    found = declared_type(field.type, declared)
    oid, length = (found.array, -1) if is_array else (found.oid, found.length)
    return Column(field.name, oid, length, modifier_of(field.type, declared))


def sql_type(oid: int) -> SqlType | None:
    """The type of a parameter; None if the client does not specify it. Raises FEATURE_NOT_SUPPORTED."""
    if oid in (0, UNKNOWN):
        return None
    if oid in _BY_OID:
        return _BY_OID[oid]
    if oid in _ARRAYS:
        return SqlType("array", element=_BY_OID[_ARRAYS[oid]])
    if is_created(oid):  # an enum: its place in the statement tells which
        return SqlType("array", element=VARCHAR) if oid % _NUMBERS_OF_ONE == 1 else None
    raise error("FEATURE_NOT_SUPPORTED", f"a parameter of the type with number {oid} is not supported")

"""SQL types, which all layers share, with their RisingWave spelling, their Arrow type in the circuit, and their DuckDB
type in expressions. Event times and timestamps are microseconds; `timestamptz` is UTC.
"""

from __future__ import annotations

import json
import re
import uuid
from dataclasses import dataclass, field, replace
from typing import Any, Final

import pyarrow as pa

#: `numeric` without precision: RisingWave's 28 digits fit in 38 digits with 10 decimals.
DEFAULT_PRECISION: Final = 38
DEFAULT_SCALE: Final = 10

JSON_MAX_DEPTH: Final = 650
"""The maximum depth of objects and arrays in a jsonb value, because Python and DuckDB read them by recursion."""
JSON_DEPTH_RULE: Final = f"a value of type jsonb can't nest more than {JSON_MAX_DEPTH} levels"

_JSON_NESTING: Final = re.compile(r'"(?:[^"\\]|\\.)*"|([\[{])|[\]}]')

#: Groups of four digits, with or without hyphens between them.
_UUID_DIGITS: Final = re.compile(r"(?:[0-9a-fA-F]{4}-?){7}[0-9a-fA-F]{4}")

_ARROW: Final[dict[str, pa.DataType]] = {
    "boolean": pa.bool_(),
    "smallint": pa.int16(),
    "integer": pa.int32(),
    "bigint": pa.int64(),
    "real": pa.float32(),
    "double precision": pa.float64(),
    "varchar": pa.string(),
    "bytea": pa.binary(),
    "date": pa.date32(),
    "time": pa.time64("us"),
    "timestamp": pa.timestamp("us"),
    "timestamptz": pa.timestamp("us", tz="UTC"),
    "interval": pa.month_day_nano_interval(),
    "jsonb": pa.string(),
    "json": pa.string(),
    "uuid": pa.string(),
}

_DUCKDB: Final[dict[str, str]] = {
    "boolean": "BOOLEAN",
    "smallint": "SMALLINT",
    "integer": "INTEGER",
    "bigint": "BIGINT",
    "real": "FLOAT",
    "double precision": "DOUBLE",
    "varchar": "VARCHAR",
    "bytea": "BLOB",
    "date": "DATE",
    "time": "TIME",
    "timestamp": "TIMESTAMP",
    "timestamptz": "TIMESTAMP WITH TIME ZONE",
    "interval": "INTERVAL",
    "jsonb": "JSON",
    "json": "VARCHAR",
    "uuid": "VARCHAR",
}

_INTEGERS: Final = ("smallint", "integer", "bigint")
_FLOATS: Final = ("real", "double precision")


@dataclass(frozen=True, slots=True)
class SqlType:
    """A SQL type. name: a key of `_ARROW`, `numeric`, `array` (with `element`), `struct` (with `fields`) or `map`: its
    values are arrays of entries, structs of `key` and `value`, which is its `element`.

    Values of type uuid are texts in lower case with hyphens, whose order is that of the numbers; values of json are
    texts as written. Values of an enum are texts: it is varchar with name and id of the enum and its `labels` in order,
    which decide how values are ordered, but not whether types are equal. Values of `char(n)` are texts without trailing
    blanks: it is varchar with a `padding` of n, to which results are filled with blanks.
    """

    name: str
    precision: int | None = None
    scale: int | None = None
    element: SqlType | None = None
    fields: tuple[tuple[str, SqlType], ...] = ()
    enum: str = field(default="", compare=False)
    enum_id: str = field(default="", compare=False)
    labels: tuple[str, ...] = field(default=(), compare=False)
    padding: int = field(default=0, compare=False)

    @property
    def arrow(self) -> pa.DataType:
        """The Arrow type of its values."""
        if self.name == "numeric":
            return pa.decimal128(self.precision or DEFAULT_PRECISION, self.decimals)
        if self.element is not None:
            return pa.list_(self.element.arrow)
        if self.name == "struct":
            return pa.struct([pa.field(name, kind.arrow) for name, kind in self.fields])
        return _ARROW[self.name]

    @property
    def duckdb(self) -> str:
        """The DuckDB spelling, as in CAST."""
        if self.name == "numeric":
            return f"DECIMAL({self.precision or DEFAULT_PRECISION},{self.decimals})"
        if self.element is not None:
            return f"{self.element.duckdb}[]"
        if self.name == "struct":
            inner = ", ".join(f'"{name}" {kind.duckdb}' for name, kind in self.fields)
            return f"STRUCT({inner})"
        return _DUCKDB[self.name]

    @property
    def sql(self) -> str:
        """The RisingWave spelling, for messages, DESCRIBE and EXPLAIN."""
        if self.name == "numeric":
            return "numeric" if self.precision is None else f"numeric({self.precision},{self.decimals})"
        if self.name == "array":
            assert self.element is not None
            return f"{self.element.sql}[]"
        if self.name == "map":
            return f"map({', '.join(kind.sql for kind in self.entry)})"
        if self.name == "struct":
            return "struct<" + ", ".join(f"{name} {kind.sql}" for name, kind in self.fields) + ">"
        if self.padding:
            return f"character({self.padding})"
        return self.enum or {
            "varchar": "character varying",
            "timestamp": "timestamp without time zone",
            "timestamptz": "timestamp with time zone",
        }.get(self.name, self.name)

    @property
    def decimals(self) -> int:
        if self.precision is None:
            return DEFAULT_SCALE
        return self.scale or 0

    @property
    def is_integer(self) -> bool:
        """True for smallint, integer and bigint."""
        return self.name in _INTEGERS

    @property
    def is_float(self) -> bool:
        """True for real and double precision."""
        return self.name in _FLOATS

    @property
    def is_numeric(self) -> bool:
        """True for every number type."""
        return self.is_integer or self.is_float or self.name == "numeric"

    @property
    def is_identity(self) -> bool:
        """True if equal values are identical; not for floats (-0.0 = 0.0) and intervals (1 month = 30 days)."""
        return not (self.is_float or self.is_nested or self.name == "interval")

    @property
    def is_nested(self) -> bool:
        """True for arrays, structs and maps."""
        return self.name in ("array", "struct", "map")

    @property
    def has_map(self) -> bool:
        """True for maps, and for arrays and structs with maps."""
        inner = (() if self.element is None else (self.element,)) + tuple(kind for _, kind in self.fields)
        return self.name == "map" or any(kind.has_map for kind in inner)

    def has_enum(self, enum: str) -> bool:
        """Whether it is an enum or contains it."""
        inner = (() if self.element is None else (self.element,)) + tuple(kind for _, kind in self.fields)
        return self.enum == enum or any(kind.has_enum(enum) for kind in inner)

    @property
    def leaf(self) -> SqlType:
        """The type of the elements of an array of any depth; of others the type itself."""
        return self if self.element is None else self.element.leaf

    @property
    def entry(self) -> tuple[SqlType, SqlType]:
        """The types of the keys and values of a map."""
        assert self.element is not None
        (_, key), (_, value) = self.element.fields
        return key, value

    def to_json(self) -> Any:
        """The JSON form; for most types just the name."""
        if self.name == "numeric":
            return ["numeric", self.precision, self.scale]
        if self.element is not None:
            return [self.name, self.element.to_json()]
        if self.name == "struct":
            return ["struct", [[name, kind.to_json()] for name, kind in self.fields]]
        if self.padding:
            return ["char", self.padding]
        return ["enum", self.enum, list(self.labels), self.enum_id] if self.enum else self.name

    @staticmethod
    def from_json(value: Any) -> SqlType:
        """The inverse of `to_json`."""
        if isinstance(value, str):
            return SqlType(value)
        if value[0] == "numeric":
            return SqlType("numeric", value[1], value[2])
        if value[0] == "char":
            return SqlType("varchar", padding=value[1])
        if value[0] == "enum":
            return SqlType("varchar", enum=value[1], labels=tuple(value[2]), enum_id="".join(value[3:]))
        if value[0] in ("array", "map"):
            return SqlType(value[0], element=SqlType.from_json(value[1]))
        return SqlType("struct", fields=tuple((name, SqlType.from_json(kind)) for name, kind in value[1]))


def with_labels(kind: SqlType, enum: str, labels: tuple[str, ...]) -> SqlType:
    """The type with other labels of an enum, also in arrays and structs."""
    if kind.enum == enum:
        return replace(kind, labels=labels)
    element = None if kind.element is None else with_labels(kind.element, enum, labels)
    return replace(kind, element=element, fields=tuple((n, with_labels(t, enum, labels)) for n, t in kind.fields))


def map_of(key: SqlType, value: SqlType) -> SqlType:
    """The type of a map."""
    return SqlType("map", element=SqlType("struct", fields=(("key", key), ("value", value))))


#: The types of keys of maps: equal values must be identical.
MAP_KEYS: Final = (
    "varchar",
    "uuid",
    "smallint",
    "integer",
    "bigint",
    "numeric",
    "boolean",
    "date",
    "timestamp",
    "timestamptz",
)

BOOLEAN: Final = SqlType("boolean")
SMALLINT: Final = SqlType("smallint")
INTEGER: Final = SqlType("integer")
BIGINT: Final = SqlType("bigint")
NUMERIC: Final = SqlType("numeric")
REAL: Final = SqlType("real")
DOUBLE: Final = SqlType("double precision")
VARCHAR: Final = SqlType("varchar")
BYTEA: Final = SqlType("bytea")
DATE: Final = SqlType("date")
TIME: Final = SqlType("time")
TIMESTAMP: Final = SqlType("timestamp")
TIMESTAMPTZ: Final = SqlType("timestamptz")
INTERVAL: Final = SqlType("interval")
JSONB: Final = SqlType("jsonb")
JSON: Final = SqlType("json")
UUID: Final = SqlType("uuid")

_WIDER: Final = {
    "smallint": ("integer", "bigint", "numeric", "double precision"),
    "integer": ("bigint", "numeric", "double precision"),
    "bigint": ("numeric",),
    "real": ("double precision",),
}


def is_wider(kind: SqlType, than: SqlType) -> bool:
    """Whether a type has all values of another numeric type, so that stored values can be read as values of it."""
    return kind.sql.partition("(")[0] in _WIDER.get(than.name, ())


@dataclass(frozen=True, slots=True)
class Field:
    """A column of a relation."""

    name: str
    type: SqlType
    nullable: bool = True

    def to_json(self) -> Any:
        """The JSON form, short because plans consist mostly of columns."""
        return [self.name, self.type.to_json(), self.nullable]

    @staticmethod
    def from_json(value: Any) -> Field:
        """The inverse of `to_json`."""
        return Field(value[0], SqlType.from_json(value[1]), value[2])


Schema = tuple[Field, ...]
#: The origin (relation id, column) of a column that a query returns unchanged; see `Result.origins`.
Origin = tuple[str, str]


def arrow_schema(schema: Schema, *, positional: bool) -> pa.Schema:
    """The Arrow schema of `schema`: columns `c0`, `c1` … if `positional`, else by the fields' names."""
    return pa.schema([pa.field(f"c{i}" if positional else f.name, f.type.arrow) for i, f in enumerate(schema)])


def uuid_text(written: str) -> str | None:
    """The stored form of a uuid from any form that PostgreSQL reads; None for other texts."""
    digits = written.strip()
    digits = digits[1:-1] if digits.startswith("{") and digits.endswith("}") else digits
    if _UUID_DIGITS.fullmatch(digits) is None:
        return None
    return str(uuid.UUID(hex=digits.replace("-", "")))


def is_json(text: str) -> bool:
    """Whether a text is JSON by RFC 8259; DuckDB also accepts a comma before a closing bracket."""

    def refuse(word: str) -> None:
        raise ValueError(word)  # NaN and Infinity

    try:
        json.loads(text, strict=False, parse_constant=refuse)
    except ValueError:
        return False
    except RecursionError:  # it is deep, and DuckDB has read it
        return True
    return True


def is_json_too_deep(text: str) -> bool:
    """Whether a JSON text has more than `JSON_MAX_DEPTH` levels."""
    if text.count("[") + text.count("{") <= JSON_MAX_DEPTH:
        return False
    depth = 0
    for token in _JSON_NESTING.finditer(text):
        if token[1] is not None:
            depth += 1
            if depth > JSON_MAX_DEPTH:
                return True
        elif token[0][0] != '"':
            depth -= 1
    return False

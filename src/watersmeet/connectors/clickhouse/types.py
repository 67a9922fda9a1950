"""The types of ClickHouse: the SQL type as which each is read, and the SQL types whose values it stores."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from watersmeet.errors import error
from watersmeet.values.types import BOOLEAN, JSONB, MAP_KEYS, REAL, TIMESTAMP, VARCHAR, SqlType, map_of

#: The maximum number of digits of a numeric.
_DIGITS: Final = 38
#: The number of fractional digits of a second.
_MICROSECONDS: Final = 6
#: The number of digits of a bigint.
_BIGINT_DIGITS: Final = 19

WHOLE: Final = {
    f"{sign}Int{bits}": (0 if sign else -(1 << bits - 1), (1 << (bits if sign else bits - 1)) - 1)
    for sign in ("", "U")
    for bits in (8, 16, 32, 64, 128, 256)
}
"""The least and the greatest number of each integer type."""
DATES: Final = {
    "Date": (dt.date(1970, 1, 1), dt.date(2149, 6, 6)),
    "Date32": (dt.date(1900, 1, 1), dt.date(2299, 12, 31)),
}
TIMES: Final = {
    "DateTime": (dt.datetime(1970, 1, 1), dt.datetime(2106, 2, 7, 6, 28, 15)),  # noqa: DTZ001 - in UTC
    "DateTime64": (dt.datetime(1900, 1, 1), dt.datetime(2262, 4, 11)),  # noqa: DTZ001
}
"""The first and the last time of each type, without a fraction of the last second."""


class _Type(NamedTuple):
    """The conversions of a type. read: its SQL type; None: it is only read as a declared text. takes: the names of the
    SQL types that it stores, some only within `ClickhouseType.bounds` or with enough digits.
    """

    read: SqlType | None
    takes: tuple[str, ...] = ()


_NUMBERS: Final = ("smallint", "integer", "bigint", "numeric")
_TEXTS: Final = ("varchar", "bytea", "time", "interval", "jsonb", "struct")
_WHOLE: Final = {
    "Int8": SqlType("smallint"),
    "Int16": SqlType("smallint"),
    "UInt16": SqlType("integer"),
    "Int32": SqlType("integer"),
    "UInt32": SqlType("bigint"),
    "Int64": SqlType("bigint"),
    "UInt64": SqlType("numeric", 20, 0),
}
_TYPES: Final[dict[str, _Type]] = {
    **{name: _Type(_WHOLE.get(name), _NUMBERS) for name in WHOLE},
    "UInt8": _Type(SqlType("smallint"), ("boolean", *_NUMBERS)),
    "Float32": _Type(REAL, ("real",)),
    "Float64": _Type(SqlType("double precision"), ("real", "double precision")),
    "Bool": _Type(BOOLEAN, ("boolean",)),
    **dict.fromkeys(DATES, _Type(SqlType("date"), ("date",))),
    "DateTime": _Type(TIMESTAMP),
    "DateTime64": _Type(TIMESTAMP, ("timestamp", "timestamptz")),
    "String": _Type(VARCHAR, _TEXTS),
    "FixedString": _Type(VARCHAR),
    **dict.fromkeys(("UUID", "Enum8", "Enum16", "IPv4", "IPv6"), _Type(VARCHAR, ("varchar",))),
    "JSON": _Type(JSONB, ("jsonb", "struct")),
    **dict.fromkeys(("Map", "Tuple"), _Type(JSONB)),
    "Array": _Type(None, ("array",)),
    **dict.fromkeys((f"Decimal{n}" for n in ("", 32, 64, 128, 256)), _Type(None, _NUMBERS)),
}
#: Type wrappers that don't restrict values; the inner type is the last parameter.
_AROUND: Final = ("LowCardinality", "SimpleAggregateFunction")


@dataclass(frozen=True)
class ClickhouseType:
    """A type without `Nullable` and the like. parts: its parameters. shown: the whole type, as the server shows it."""

    name: str
    parts: tuple[str, ...]
    nullable: bool
    shown: str

    @property
    def read(self) -> SqlType | None:
        """The SQL type that contains all its values, or None."""
        if self.name.startswith("Decimal"):
            precision, scale = self.decimal
            return SqlType("numeric", precision, scale) if precision <= _DIGITS else None
        if self.name == "DateTime64" and self.fraction > _MICROSECONDS:
            return None
        if self.name == "Array":
            element = self.element.read
            # Times in arrays are in the zone of the column.
            return None if element is None or element == TIMESTAMP else SqlType("array", element=element)
        if self.name in ("Map", "Tuple") and "DateTime" in self.shown:
            return None
        if self.name == "Map":
            key, value = (clickhouse_type(part).read for part in self.parts)
            if key is not None and value is not None and key.name in MAP_KEYS:
                return map_of(key, value)
        return _TYPES[self.name].read if self.name in _TYPES else None

    def takes(self, kind: SqlType) -> bool:
        """Whether a column stores the values of a type that are within `bounds`."""
        if kind.name not in _TYPES.get(self.name, _Type(None)).takes:
            return False
        if self.name == "Array":
            # Elements are not compared with bounds, so their types must be equal.
            inner = self.element
            ranged = inner.name in DATES or inner.name in TIMES or inner.name.startswith("UInt")
            return inner.nullable and inner.read == kind.element and not ranged
        if self.name == "DateTime64":
            return self.fraction >= _MICROSECONDS
        if self.name in WHOLE:
            return kind.name != "numeric" or (not kind.scale and kind.precision is not None)
        if self.name.startswith("Decimal"):
            precision, scale = self.decimal
            if kind.is_integer:
                return precision - scale >= _BIGINT_DIGITS
            wanted = kind.arrow
            return bool(scale >= wanted.scale and precision - scale >= wanted.precision - wanted.scale)
        return True

    def rounds(self, kind: SqlType) -> bool:
        """Whether a column that does not take a type would round its values."""
        if kind.name == "timestamp" and self.name in TIMES:
            return not self.takes(kind)
        return kind.name == "numeric" and self.name.startswith("Decimal") and not self.takes(kind)

    def bounds(self, kind: SqlType) -> tuple[Any, Any] | None:
        """The least and the greatest value of a type that a column stores unchanged; None: all."""
        if kind.is_integer or kind.name == "numeric":
            return WHOLE.get(self.name)
        if kind.name == "timestamptz" and self.name in TIMES:
            first, last = TIMES[self.name]
            return first.replace(tzinfo=dt.UTC), last.replace(tzinfo=dt.UTC)
        return (DATES | TIMES).get(self.name) if kind.name in ("date", "timestamp") else None

    @property
    def element(self) -> ClickhouseType:
        """The type of the elements of an Array."""
        return clickhouse_type(self.parts[0])

    @property
    def decimal(self) -> tuple[int, int]:
        """The precision and scale of a Decimal."""
        fixed = {"Decimal32": 9, "Decimal64": 18, "Decimal128": 38, "Decimal256": 76}
        numbers = [int(p) for p in self.parts]
        return (fixed[self.name], numbers[0]) if self.name in fixed else (numbers[0], [*numbers, 0][1])

    @property
    def fraction(self) -> int:
        """The fractional digits of a second of a DateTime64."""
        return int(self.parts[0]) if self.parts else 3


def clickhouse_type(text: str) -> ClickhouseType:
    """Parses a type as the server shows it."""
    nullable, inner = False, text.strip()
    while True:
        name, parts = _split(inner)
        if name == "Nullable":
            nullable = True
        elif name not in _AROUND:
            return ClickhouseType(name, parts, nullable, text)
        inner = parts[-1]


def _split(text: str) -> tuple[str, tuple[str, ...]]:
    """Splits `Name(a, b(c, d))` into the name and its parameters."""
    name, open_, rest = text.partition("(")
    if not open_:
        return text, ()
    if not rest.endswith(")"):
        raise error("INTERNAL_ERROR", f"a type of ClickHouse that can't be read: {text}")
    parts, depth, begin, quoted = [], 0, 0, False
    rest = rest[:-1]
    for i, char in enumerate(rest):
        if char == "'" and rest[i - 1 : i] != "\\":
            quoted = not quoted
        elif not quoted:
            depth += (char == "(") - (char == ")")
            if char == "," and not depth:
                parts.append(rest[begin:i].strip())
                begin = i + 1
    return name, (*parts, rest[begin:].strip())

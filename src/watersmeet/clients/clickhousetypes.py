"""Types of ClickHouse: their names as trees, and the numbers and times that they take.

ClickHouse, "Data Types".
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from typing import Final

from watersmeet.errors import error
from watersmeet.types import BOOLEAN, JSONB, TIMESTAMP, VARCHAR, SqlType

#: Most digits of a numeric here.
_DIGITS: Final = 38
#: Most digits of a second here.
MICROSECONDS: Final = 6

WHOLE: Final = {
    f"{sign}Int{bits}": (0 if sign else -(1 << bits - 1), (1 << (bits if sign else bits - 1)) - 1)
    for sign in ("", "U")
    for bits in (8, 16, 32, 64, 128, 256)
}
"""The least and the greatest number of whole types."""
DATES: Final = {
    "Date": (dt.date(1970, 1, 1), dt.date(2149, 6, 6)),
    "Date32": (dt.date(1900, 1, 1), dt.date(2299, 12, 31)),
}
TIMES: Final = {
    "DateTime": (dt.datetime(1970, 1, 1), dt.datetime(2106, 2, 7, 6, 28, 15)),  # noqa: DTZ001 - in UTC
    "DateTime64": (dt.datetime(1900, 1, 1), dt.datetime(2262, 4, 11)),  # noqa: DTZ001
}
"""What a second's fraction may add is left out."""
_SAME: Final[dict[str, SqlType]] = {
    "Int8": SqlType("smallint"),
    "UInt8": SqlType("smallint"),
    "Int16": SqlType("smallint"),
    "UInt16": SqlType("integer"),
    "Int32": SqlType("integer"),
    "UInt32": SqlType("bigint"),
    "Int64": SqlType("bigint"),
    "UInt64": SqlType("numeric", 20, 0),
    "Float32": SqlType("real"),
    "Float64": SqlType("double precision"),
    "Bool": BOOLEAN,
    "Date": SqlType("date"),
    "Date32": SqlType("date"),
    "DateTime": TIMESTAMP,
    "JSON": JSONB,
    "Map": JSONB,
    "Tuple": JSONB,
    **dict.fromkeys(("String", "FixedString", "UUID", "Enum8", "Enum16", "IPv4", "IPv6"), VARCHAR),
}
#: What others are around, and say nothing of values: the type is the last thing in their parentheses.
_AROUND: Final = ("LowCardinality", "SimpleAggregateFunction")


@dataclass(frozen=True)
class ClickhouseType:
    """A type without what is around it. name: as the server shows it, such as `Decimal`. parts: what stands in its
    parentheses. shown: all of it.
    """

    name: str
    parts: tuple[str, ...]
    nullable: bool
    shown: str

    @property
    def here(self) -> SqlType | None:
        """The type here that has all its values, or None."""
        if self.name.startswith("Decimal"):
            precision, scale = self.decimal
            return SqlType("numeric", precision, scale) if precision <= _DIGITS else None
        if self.name == "DateTime64":
            return TIMESTAMP if self.fraction <= MICROSECONDS else None
        if self.name == "Array":
            inner = clickhouse_type(self.parts[0])
            element = inner.here
            # Within arrays times are in the zone of the column.
            return None if element is None or element == TIMESTAMP else SqlType("array", element=element)
        if self.name in ("Map", "Tuple") and "DateTime" in self.shown:
            return None
        return _SAME.get(self.name)

    @property
    def decimal(self) -> tuple[int, int]:
        """(precision, scale) of a Decimal."""
        fixed = {"Decimal32": 9, "Decimal64": 18, "Decimal128": 38, "Decimal256": 76}
        numbers = [int(p) for p in self.parts]
        return (fixed[self.name], numbers[0]) if self.name in fixed else (numbers[0], [*numbers, 0][1])

    @property
    def fraction(self) -> int:
        """The digits of a second of a DateTime64."""
        return int(self.parts[0]) if self.parts else 3


def clickhouse_type(text: str) -> ClickhouseType:
    """Reads a type as the server shows it."""
    nullable, inner = False, text.strip()
    while True:
        name, parts = _split(inner)
        if name == "Nullable":
            nullable = True
        elif name not in _AROUND:
            return ClickhouseType(name, parts, nullable, text)
        inner = parts[-1]


def _split(text: str) -> tuple[str, tuple[str, ...]]:
    """`Name(a, b(c, d))` as its name and its parts."""
    name, open_, rest = text.partition("(")
    if not open_:
        return text, ()
    if not rest.endswith(")"):
        raise error("INTERNAL_ERROR", f"a type of ClickHouse that can't be read: {text}")
    parts, depth, begin, quoted = [], 0, 0, False
    rest = rest[:-1]
    for place, char in enumerate(rest):
        if char == "'" and rest[place - 1 : place] != "\\":
            quoted = not quoted
        elif not quoted:
            depth += (char == "(") - (char == ")")
            if char == "," and not depth:
                parts.append(rest[begin:place].strip())
                begin = place + 1
    return name, (*parts, rest[begin:].strip())

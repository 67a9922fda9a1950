"""The constructors and type objects of PEP 249."""

from __future__ import annotations

import datetime as dt
from typing import Final

from watersmeet.values.types import SqlType

Date = dt.date
Time = dt.time
Timestamp = dt.datetime
Binary = bytes


def DateFromTicks(ticks: float) -> dt.date:  # noqa: N802 - the name is PEP 249's
    """The UTC date of `ticks` seconds since 1970."""
    return dt.datetime.fromtimestamp(ticks, dt.UTC).date()


def TimeFromTicks(ticks: float) -> dt.time:  # noqa: N802 - the name is PEP 249's
    """The UTC time of day of `ticks` seconds since 1970."""
    return dt.datetime.fromtimestamp(ticks, dt.UTC).time()


def TimestampFromTicks(ticks: float) -> dt.datetime:  # noqa: N802 - the name is PEP 249's
    """The moment `ticks` seconds after 1970, in UTC."""
    return dt.datetime.fromtimestamp(ticks, dt.UTC)


class TypeObject:
    """Equal to the type codes in `Cursor.description` (`SqlType`) whose names it lists."""

    def __init__(self, *names: str) -> None:
        self.names = frozenset(names)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, SqlType):
            return other.name in self.names
        return isinstance(other, TypeObject) and self.names == other.names

    def __hash__(self) -> int:
        return hash(self.names)


STRING: Final = TypeObject("varchar", "jsonb")
BINARY: Final = TypeObject("bytea")
NUMBER: Final = TypeObject("boolean", "smallint", "integer", "bigint", "numeric", "real", "double precision")
DATETIME: Final = TypeObject("date", "time", "timestamp", "timestamptz", "interval")
ROWID: Final = TypeObject("serial")

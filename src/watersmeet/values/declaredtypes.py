"""Declared types of columns: the lengths of texts, digits of times, fields of intervals and forms of addresses that the
types of values lack, as DuckDB SQL.

PostgreSQL 17, 8.3 "Character Types", 8.5 "Date/Time Types", 8.9 "Network Address Types". `char(n)` has no trailing
blanks, which PostgreSQL ignores in comparisons and conversions (also in a text that is compared with it, which
Watersmeet does not); results of SELECT show them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from watersmeet.values.types import SqlType

#: The names of collations by which texts have the order of their UTF-8 bytes.
BYTE_COLLATIONS: Final = ("c", "default", "pg_c_utf8", "posix", "ucs_basic")
ADDRESSES: Final = ("inet", "cidr")
_MOST_NAME: Final = 63
MOST_OID: Final = 2**32 - 1
#: Microseconds from 1970 to 2000, from which PostgreSQL rounds times, halves away from it.
_EPOCH_US: Final = 946_684_800_000_000

_BYTE: Final = "(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
#: IPv4 addresses.
FOUR: Final = f"{_BYTE}([.]{_BYTE}){{3}}"
_GROUP: Final = "[0-9a-fA-F]{1,4}"
#: IPv6 addresses: eight groups, or fewer with `::`; the last two may be an IPv4 address.
_SIX: Final = "|".join([
    f"({_GROUP}:){{7}}({_GROUP}|:)",
    f"({_GROUP}:){{6}}({FOUR}|:{_GROUP}|:)",
    *(f"({_GROUP}:){{{n}}}((:{_GROUP}){{1,{7 - n}}}|(:{_GROUP}){{0,{5 - n}}}:{FOUR}|:)" for n in range(5, 0, -1)),
    f":((:{_GROUP}){{1,7}}|(:{_GROUP}){{0,5}}:{FOUR}|:)",
])  # fmt: skip
#: The texts of inet and cidr.
ADDRESS: Final = f"({FOUR})(/(3[0-2]|[12]?[0-9]))?|({_SIX})(/(12[0-8]|1[01][0-9]|[1-9]?[0-9]))?"

#: The last field of intervals by the bits of a modifier above it (PostgreSQL's INTERVAL_MASK), the finest one first.
_LAST: Final = ((12, "second"), (11, "minute"), (10, "hour"), (3, "day"), (1, "month"), (2, "year"))
_UNITS_US: Final = {"minute": 60_000_000, "hour": 3_600_000_000}


@dataclass(frozen=True, slots=True)
class Declared:
    """The parts of a column's declared type that its values don't show, such as the length of `varchar(40)`.

    Expressions have only the `SqlType`; writing a row and casting apply the rest (`narrowing`). For an
    array it describes the elements.

    name: PostgreSQL's name of the type, as in pg_type.typname. modifier: as in pg_attribute.atttypmod; -1 without one.
    """

    name: str
    modifier: int = -1

    @property
    def is_name(self) -> bool:
        """Whether it is only another name of the type, for any value."""
        return self.name == "text"

    @property
    def length(self) -> int | None:
        """The length of `varchar(n)` and `char(n)`; None without one."""
        return self.modifier - 4 if self.name in ("varchar", "bpchar") and self.modifier > 4 else None

    @property
    def digits(self) -> int | None:
        """The fractional digits of a second to which times and intervals are rounded; None for all."""
        if self.modifier < 0 or self.name not in ("time", "timestamp", "timestamptz", "interval"):
            return None
        return found if (found := self.modifier & 0xFFFF) < 6 else None


def narrowing(kind: SqlType, declared: Declared, item: str = "a0") -> str | None:
    """DuckDB SQL that converts `item`; None if each value stays as it is."""
    if kind.element is not None:
        inner = narrowing(kind.element, declared, "_e")
        return None if inner is None else f"list_transform({item}, lambda _e: {inner})"
    if declared.name in ("varchar", "bpchar"):
        cut = item if declared.length is None else f"left({item}, {declared.length})"
        return f"rtrim({cut}, ' ')" if declared.name == "bpchar" else cut if declared.length is not None else None
    if declared.name == "name":
        return f"left({item}, {_MOST_NAME})"
    if declared.name in ADDRESSES:
        wrong = f"CAST(CAST({item} || ' is no address' AS INTEGER) AS VARCHAR)"
        return f"CASE WHEN regexp_full_match({item}, '{ADDRESS}') THEN {item} ELSE {wrong} END"
    if declared.name == "oid":
        wrong = f"CAST(CAST({item} AS VARCHAR) || ' is no oid' AS BIGINT)"
        return f"CASE WHEN {item} BETWEEN 0 AND {MOST_OID} THEN {item} ELSE {wrong} END"
    return _interval(declared, item) if declared.name == "interval" else _rounded(declared, item)


def _rounded(declared: Declared, item: str) -> str | None:
    """A time with fewer digits."""
    if declared.digits is None:
        return None
    if declared.name == "time":
        return f"CAST(make_timestamp({_round(f'epoch_us({item})', declared.digits)}) AS TIME)"
    moment = f"make_timestamp({_EPOCH_US} + {_round(f'(epoch_us({item}) - {_EPOCH_US})', declared.digits)})"
    moment = moment if declared.name == "timestamp" else f"timezone('UTC', {moment})"
    return f"CASE WHEN isfinite({item}) THEN {moment} ELSE {item} END"


def _round(number: str, digits: int) -> str:
    """A number of microseconds, rounded to digits of a second, halves away from 0."""
    unit = 10 ** (6 - digits)
    return f"CAST(sign({number}) * ((abs({number}) + {unit // 2}) // {unit} * {unit}) AS BIGINT)"


def _interval(declared: Declared, item: str) -> str | None:
    """An interval without the fields after its last one."""
    mask = declared.modifier >> 16
    last = next(name for bit, name in _LAST if mask >> bit & 1)
    if last == "second" and declared.digits is None:
        return None
    months = f"(date_part('year', {item}) * 12 + date_part('month', {item}))"
    months = f"{months} // 12 * 12" if last == "year" else months
    days = "0" if last in ("year", "month") else f"date_part('day', {item})"
    time = (
        f"(date_part('hour', {item}) * 3600000000 + date_part('minute', {item}) * 60000000 + "
        f"date_part('microseconds', {item}))"
    )
    if last in _UNITS_US:
        time = f"{time} // {_UNITS_US[last]} * {_UNITS_US[last]}"
    elif last == "second" and declared.digits is not None:
        time = _round(time, declared.digits)
    else:
        time = "0"
    return f"to_months(CAST({months} AS INTEGER)) + to_days(CAST({days} AS INTEGER)) + to_microseconds({time})"

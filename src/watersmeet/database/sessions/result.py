"""The results that statements return to cursors, and the conversion of Arrow columns to Python values.

| SQL | Python |
|---|---|
| boolean, integers, real, double precision | bool, int, float |
| numeric | decimal.Decimal |
| varchar, bytea | str, bytes |
| date, time, timestamp | datetime.date, datetime.time, datetime.datetime without zone |
| timestamptz | datetime.datetime in the zone of the session |
| interval | Interval, a datetime.timedelta that also has months | | jsonb | the result of json.loads | | arrays,
structs | list, dict | | NULL | None |
"""

from __future__ import annotations

import datetime as dt
import json
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from decimal import Context, Decimal
from typing import Any, Final, Protocol, Self

import pyarrow as pa

from watersmeet.errors import error
from watersmeet.values.times import UTC
from watersmeet.values.types import BIGINT, NUMERIC, VARCHAR, Field, Origin, Schema, SqlType, arrow_schema


class Running(Protocol):
    """A query that runs until it is closed."""

    def rows(self) -> pa.Table:
        """The rows since the last call, with the result's columns. It never waits."""
        ...

    @property
    def ended(self) -> bool:
        """True once no more rows follow, because LIMIT was reached."""
        ...

    @property
    def sign(self) -> int | None:
        """The column that is 1 for inserted and -1 for deleted rows; None if no row is ever deleted."""
        ...

    def unread(self, rows: int) -> None:
        """Records how many of the rows are not returned yet.

        Returns the error that forbids returning them if the query was ended meanwhile and can be resumed.
        """
        ...

    def wait(self, seconds: float) -> None:
        """Returns when rows may be available, or after a timeout in seconds."""
        ...

    def settle(self, most_s: float) -> None:
        """Returns when `rows` would return all rows committed so far, or after a timeout in seconds."""
        ...

    def close(self) -> None:
        """Ends the query."""
        ...


@dataclass(frozen=True)
class Result:
    """The outcome of one statement.

    command: its first words, such as `SELECT` or `CREATE TABLE`. columns, table: the rows; None if it returns no rows.
    rowcount: the number of returned or changed rows; -1 if it has no meaning. running: set for a query that runs until
    it is stopped. origins: for each column the relation's column that it shows unchanged; empty if unknown. zone: the
    time zone of the session, in which the rows of a running query are shown.
    """

    command: str
    columns: Schema = ()
    table: pa.Table | None = None
    rowcount: int = -1
    notices: tuple[str, ...] = field(default=())
    running: Running | None = None
    origins: tuple[Origin | None, ...] = ()
    zone: str = UTC


def rows_result(command: str, columns: Schema, table: pa.Table, origins: tuple[Origin | None, ...] = ()) -> Result:
    """A result with the rows of `table`, whose columns are `columns` in order."""
    return Result(command, columns, table, table.num_rows, origins=origins)


def text_result(
    command: str, names: tuple[str, ...], rows: list[tuple[Any, ...]], numbers: tuple[str, ...] = ()
) -> Result:
    """A result of text columns, except for those in `numbers`, which are bigint."""
    columns = tuple(Field(n, VARCHAR) for n in names)
    return typed_result(command, tuple(_number(c) if c.name in numbers else c for c in columns), rows)


def typed_result(command: str, columns: Schema, rows: list[tuple[Any, ...]]) -> Result:
    """A result of a few rows of Python values."""
    arrays = [pa.array([r[i] for r in rows], c.type.arrow) for i, c in enumerate(columns)]
    table = pa.Table.from_arrays(arrays, schema=arrow_schema(columns, positional=False))
    return rows_result(command, columns, table)


def lines_result(command: str, title: str, lines: list[str]) -> Result:
    """A result of one text column with a row for each line."""
    return text_result(command, (title,), [(line,) for line in lines])


def _number(column: Field) -> Field:
    return Field(column.name, BIGINT, column.nullable)


_DAYS_PER_MONTH: Final = 30
_ONE: Final = Decimal(1)
_DIGITS: Final = Context(prec=60)


class Interval(dt.timedelta):
    """An SQL interval. As a timedelta, a month counts as 30 days, as in SQL's comparison of intervals.

    months, month_days, microseconds_of_day: the three separate parts of an SQL interval.
    """

    months: int
    month_days: int
    microseconds_of_day: int

    def __new__(cls, months: int = 0, days: int = 0, microseconds: int = 0) -> Self:
        self = super().__new__(cls, days=months * _DAYS_PER_MONTH + days, microseconds=microseconds)
        self.months = months
        self.month_days = days
        self.microseconds_of_day = microseconds
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return Interval, (self.months, self.month_days, self.microseconds_of_day)

    def __repr__(self) -> str:
        return f"Interval(months={self.months}, days={self.month_days}, microseconds={self.microseconds_of_day})"


def python_rows(table: pa.Table, types: tuple[SqlType, ...]) -> list[tuple[Any, ...]]:
    """The rows of `table`, whose columns are of `types`, as tuples of Python values.

    Raises INVALID_VALUE if a date or time is outside Python's years 1 to 9999, JSON_TOO_DEEP.
    """
    if not types:
        return [()] * table.num_rows
    columns = [python_values(column, kind) for column, kind in zip(table.columns, types, strict=True)]
    return list(zip(*columns, strict=True))


def python_values(column: pa.ChunkedArray, kind: SqlType) -> list[Any]:
    """The values of one column as Python values. Raises the errors of `python_rows`."""
    convert = _converter(kind)
    try:
        values: list[Any] = column.to_pylist()
        return values if convert is None else [None if v is None else convert(v) for v in values]
    except (ValueError, OverflowError) as cause:
        raise error(
            "INVALID_VALUE",
            f"a value of type {kind.sql} is outside the range of Python's type",
            detail=str(cause),
            hint="Cast the column to varchar, or take the result with cursor.arrow().",
        ) from cause


def _converter(kind: SqlType) -> Callable[[Any], Any] | None:
    """The conversion that is needed after Arrow's own, or None."""
    if kind == NUMERIC:
        return _shortest
    if kind.name == "timestamptz":
        return _zoned
    if kind.name == "interval":
        return _interval
    if kind.name in ("json", "jsonb"):
        return _json
    if kind.name == "uuid":
        return uuid.UUID
    if kind.name == "array" and kind.element is not None:
        inner = _converter(kind.element)
        return None if inner is None else lambda v: [None if x is None else inner(x) for x in v]
    if kind.name == "map":
        key, item = (_converter(part) or _same for part in kind.entry)
        return lambda v: {key(e["key"]): None if e["value"] is None else item(e["value"]) for e in v}
    if kind.name == "struct":
        parts = {name: convert for name, t in kind.fields if (convert := _converter(t)) is not None}
        return None if not parts else lambda v: _struct(v, parts)
    return None


def _same(value: Any) -> Any:
    return value


def _struct(value: dict[str, Any], parts: dict[str, Callable[[Any], Any]]) -> dict[str, Any]:
    return {n: parts[n](v) if n in parts and v is not None else v for n, v in value.items()}


def _shortest(value: Decimal) -> Decimal:
    """A number without trailing zeros, for a column without a declared scale."""
    short = value.normalize(_DIGITS)
    return short if int(short.as_tuple().exponent) <= 0 else short.quantize(_ONE, context=_DIGITS)


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except RecursionError:
        # it is deeper than a stored value: an expression computed it, or Python's stack was nearly exhausted
        raise error(
            "JSON_TOO_DEEP",
            "a value of type jsonb nests more deeply than Python can read",
            hint="Cast the column to varchar, or take the result with cursor.arrow().",
        ) from None


def _zoned(value: dt.datetime) -> dt.datetime:
    """A moment in UTC, or in the zone of its column."""
    return value.astimezone(dt.UTC) if str(value.tzinfo) in (UTC, "None") else value


def in_zone(table: pa.Table, zone: str) -> pa.Table:
    """The rows with every timestamptz in a time zone, for its readers."""
    if zone == UTC or table is None:
        return table
    schema = pa.schema([f.with_type(_type_in(f.type, zone)) for f in table.schema])
    return table if schema == table.schema else table.cast(schema)


def _type_in(kind: pa.DataType, zone: str) -> pa.DataType:
    if pa.types.is_timestamp(kind):
        return kind if kind.tz is None else pa.timestamp(kind.unit, zone)
    if pa.types.is_map(kind):
        return pa.map_(_type_in(kind.key_type, zone), _type_in(kind.item_type, zone))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        field = kind.value_field.with_type(_type_in(kind.value_type, zone))
        return pa.list_(field) if pa.types.is_list(kind) else pa.large_list(field)
    if pa.types.is_struct(kind):
        return pa.struct([f.with_type(_type_in(f.type, zone)) for f in kind])
    return kind


def _interval(value: Any) -> Interval:
    return Interval(value.months, value.days, value.nanoseconds // 1000)

"""The cursor of PEP 249, and its constructors and type objects."""

from __future__ import annotations

import datetime as dt
import importlib
import math
import time
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Any, Final, Protocol, Self

import pyarrow as pa

from watersmeet.database.sessions.result import Result, Running, in_zone, python_rows
from watersmeet.errors import error
from watersmeet.values.types import SqlType

#: The number of rows that are converted to Python values at a time.
_CHUNK_ROWS = 8192

#: The interval at which a running query is polled. With EMIT PERIODIC it outputs rows as time passes, without a commit.
_WAIT_S = 0.1

Row = tuple[Any, ...]
Description = tuple[str, SqlType, None, None, int | None, int | None, bool]


class Executing(Protocol):
    """The methods of a connection that its cursors call."""

    def _execute(self, text: str, parameters: Sequence[Any]) -> Result:
        """Runs the statements of `text`. Returns the result of the last one."""
        ...

    def _execute_many(self, text: str, rows: Sequence[Sequence[Any]]) -> Result:
        """Runs one statement for each of `rows`."""
        ...


class Cursor:
    """A cursor of `connection`.

    arraysize: the default number of rows of `fetchmany`. notices: the notices of the statements of the last `execute`.
    """

    def __init__(self, connection: Executing) -> None:
        self.connection = connection
        self.arraysize = 1
        self.notices: tuple[str, ...] = ()
        self._closed = False
        self._result: Result | None = None
        self._given = pa.table({})
        self._rows: list[Row] = []
        self._taken = 0
        self._read = 0

    def execute(self, operation: str, parameters: Sequence[Any] = ()) -> Cursor:
        """Runs the statements of `operation` in order. The result is that of the last one.

        parameters: a value for each question mark. If a statement fails, earlier ones stay in effect (in a transaction,
        until ROLLBACK). Returns the cursor. Raises `watersmeet.Error`.
        """
        self._forget()
        self._accept(self.connection._execute(operation, parameters))
        return self

    def executemany(self, operation: str, seq_of_parameters: Sequence[Sequence[Any]]) -> Cursor:
        """Runs one statement for each sequence of parameters, in one transaction.

        `rowcount` is the sum. An INSERT of one row of parameters runs once for all of them.
        """
        self._forget()
        self._accept(self.connection._execute_many(operation, list(seq_of_parameters)))
        return self

    @property
    def description(self) -> list[Description] | None:
        """Name, type (`SqlType`), None, None, precision, scale, nullable of each column; None if no rows are
        returned.
        """
        if self._result is None or (self._result.table is None and self._result.running is None):
            return None
        return [(c.name, c.type, None, None, c.type.precision, c.type.scale, c.nullable) for c in self._result.columns]

    @property
    def rowcount(self) -> int:
        """The number of returned or changed rows; -1 if there is no such number."""
        return -1 if self._result is None else self._result.rowcount

    @property
    def statusmessage(self) -> str | None:
        """The first words of the last statement; None before the first one."""
        return None if self._result is None else self._result.command

    @property
    def runs(self) -> bool:
        """Whether the result is that of a running query, which may return more rows."""
        return self._running is not None and not self._running.ended

    @property
    def sign(self) -> int | None:
        """For a running query, the number (from 0) of the column that is 1 for inserted and -1 for deleted rows; None
        if no row is ever deleted.
        """
        return None if self._running is None else self._running.sign

    def wait(self, seconds: float | None = None) -> bool:
        """Waits until a row can be fetched. Returns False if no more rows follow, or none arrived in `seconds`."""
        until_s = math.inf if seconds is None else time.monotonic() + seconds
        while True:
            if self._read < len(self._rows) or self._taken < self._table().num_rows:
                return True
            running = self._running
            left_s = until_s - time.monotonic()
            if running is None or running.ended or left_s <= 0:
                return False
            running.wait(min(left_s, _WAIT_S))

    def fetchone(self) -> Row | None:
        """The next row, None at the end; for a running query, None if there is none now."""
        row = self._next()
        self._hand_out()
        return row

    def _next(self) -> Row | None:
        if self._read >= len(self._rows):  # rows that arrived before an error are returned first
            self._table()
            self._load()
        if self._read == len(self._rows):
            return None
        self._read += 1
        return self._rows[self._read - 1]

    def fetchmany(self, size: int | None = None) -> list[Row]:
        """The next `size` rows (`arraysize` by default), fewer at the end. Does not wait for a query that runs."""
        self._table()
        wanted = self.arraysize if size is None else size
        rows: list[Row] = []
        while len(rows) < wanted and (row := self._next()) is not None:
            rows.append(row)
        self._hand_out()
        return rows

    def fetchall(self) -> list[Row]:
        """All remaining rows; for a running query, those that arrived and were not fetched yet, without waiting."""
        table = self._table()
        rows = self._rows[self._read :]
        rows += python_rows(table.slice(self._taken), self._types())
        self._taken = table.num_rows
        self._rows, self._read = [], 0
        self._hand_out()
        return rows

    def arrow(self) -> pa.Table:
        """All rows of the result as an Arrow table, including those already fetched. Columns may have equal names."""
        return self._table()

    def fetch_arrow_table(self) -> pa.Table:
        """The remaining rows as an Arrow table; for a running query, those that arrived, without waiting.

        This, the next three methods and `__arrow_c_stream__` have the names of the Python APIs of DuckDB and ADBC.
        """
        unread = len(self._rows) - self._read
        table = self._given if unread and self._running is not None else self._table()
        left = table.slice(self._taken - unread)
        self._taken = table.num_rows
        self._rows, self._read = [], 0
        self._hand_out()
        return left

    def fetch_record_batch_reader(self, rows_per_batch: int = 1_000_000) -> pa.RecordBatchReader:
        """The remaining rows, as a reader of Arrow batches with at most `batch_size` rows."""
        left = self.fetch_arrow_table()
        return pa.RecordBatchReader.from_batches(left.schema, left.to_batches(max_chunksize=rows_per_batch))

    def fetch_df(self) -> Any:
        """The remaining rows as a pandas DataFrame. Integers with NULLs become doubles."""
        return self.fetch_arrow_table().to_pandas()

    def pl(self) -> Any:
        """The remaining rows as a Polars DataFrame. Raises LIBRARY_MISSING without Polars."""
        try:
            polars = importlib.import_module("polars")
        except ImportError as cause:
            raise error("LIBRARY_MISSING", "Polars is not installed", hint="pip install polars") from cause
        return polars.from_arrow(self.fetch_arrow_table())

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """All rows of the result as an Arrow stream. Any library that accepts one can read the cursor itself."""
        return self.arrow().__arrow_c_stream__(requested_schema)

    def close(self) -> None:
        """Closes the cursor, and ends a query that runs in it. May be called again."""
        self._closed = True
        self._stop()
        self._result = None
        self._rows = []

    def setinputsizes(self, sizes: Sequence[Any]) -> None:
        """PEP 249: does nothing."""

    def setoutputsize(self, size: int, column: int | None = None) -> None:
        """PEP 249: does nothing."""

    def __iter__(self) -> Iterator[Row]:
        """The remaining rows; for a running query it also waits for future ones, until LIMIT or `close`."""
        while self.wait():
            row = self.fetchone()
            assert row is not None, "wait has said that there is one"
            yield row

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _forget(self) -> None:
        if self._closed:
            raise error("CONNECTION_CLOSED", "the cursor is closed")
        self._stop()
        self._given = pa.table({})
        self._result = None
        self._rows, self._taken, self._read = [], 0, 0
        self.notices = ()

    def _accept(self, result: Result) -> None:
        self._result = result
        self.notices = result.notices

    def _table(self) -> pa.Table:
        if self._closed:
            raise error("CONNECTION_CLOSED", "the cursor is closed")
        if self._running is not None:
            if self._taken == self._given.num_rows:
                assert self._result is not None
                self._given, self._taken = in_zone(self._running.rows(), self._result.zone), 0
            return self._given
        if self._result is None or self._result.table is None:
            raise error("NO_RESULT", "the last statement returned no rows to fetch")
        return self._result.table

    def _hand_out(self) -> None:
        """Reports to a running query that all its rows were returned, except those waiting in this cursor."""
        if self._running is not None:
            self._running.unread(len(self._rows) - self._read + self._given.num_rows - self._taken)

    def _stop(self) -> None:
        """Ends a running query."""
        if self._running is not None:
            self._running.close()

    @property
    def _running(self) -> Running | None:
        return None if self._result is None else self._result.running

    def _types(self) -> tuple[SqlType, ...]:
        assert self._result is not None
        return tuple(c.type for c in self._result.columns)

    def _load(self) -> None:
        """Converts the next chunk to Python values."""
        piece = self._table().slice(self._taken, _CHUNK_ROWS)
        self._rows, self._read = python_rows(piece, self._types()), 0
        self._taken += piece.num_rows


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
    """Compares equal to the type codes in `Cursor.description` (`SqlType`) whose names it lists."""

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

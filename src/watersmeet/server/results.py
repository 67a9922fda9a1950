"""Results as messages: tags, columns, portals, and rows as DataRow messages or rows of COPY.

Arrow's kernels encode a batch of rows as one buffer, with a header for each row, and the length and the value for each
column. Rows of running queries are sent as they arrive.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Final, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.catalog import Catalog
from watersmeet.database.sessions.cancellation import Cancellation
from watersmeet.database.sessions.cursors import OpenCursor
from watersmeet.database.sessions.result import Result, Running
from watersmeet.dialects.tree import statements as st
from watersmeet.errors import error
from watersmeet.server import valuebytes
from watersmeet.server.catalog.answers import CatalogResult
from watersmeet.server.catalog.tables import relation_oid
from watersmeet.server.clients import Clients
from watersmeet.server.messages import Column
from watersmeet.server.oids import result_column
from watersmeet.server.valuebytes import BINARY, Rows
from watersmeet.session.statements.small import Plan
from watersmeet.subscribing.forms import ShownUpdates
from watersmeet.values.types import Schema

Columns = tuple[Column, ...]

#: Commands whose tags have a count.
_COUNTED: Final = ("SELECT", "INSERT", "UPDATE", "DELETE", "MERGE", "COPY", "FETCH", "MOVE")


def complete_tag(result: Result, rows: int | None = None) -> str:
    """The tag of CommandComplete. rows: the number of rows; by default that of the result."""
    if result.command not in _COUNTED:
        return result.command
    count = max(result.rowcount, 0) if rows is None else rows
    return f"INSERT 0 {count}" if result.command == "INSERT" else f"{result.command} {count}"


def has_rows(result: Result) -> bool:
    """Whether a statement returns rows, now or later."""
    return result.table is not None or result.running is not None


def columns_of(result: Result | None, catalog: Catalog) -> tuple[Column, ...] | None:
    """The columns of a result for RowDescription, with their tables; None without rows."""
    if result is None or isinstance(result, CatalogResult):
        return None if result is None else result.described
    columns = tuple(map(result_column, result.columns))
    if not any(result.origins):
        return columns
    found = []
    for field, column, origin in zip(result.columns, columns, result.origins, strict=True):
        relation = None if origin is None else catalog.relations.get(origin[0])
        names = [] if relation is None else [c.name for c in relation.columns if c.name not in relation.unlisted]
        if origin is not None and relation is not None and origin[1] in names:
            column = result_column(field, relation.declared.get(origin[1]))  # noqa: PLW2901
            found.append(replace(column, table=relation_oid(relation), number=names.index(origin[1]) + 1))
        else:
            found.append(column)
    return tuple(found)


@dataclass
class Portal(OpenCursor):
    """A statement with its parameters, and the position in its rows.

    statement: None for an empty one. described: the described columns; None without rows. columns: these columns for
    messages. formats: those of the columns, 0 text and 1 binary. plan, given: for a small statement, its plan, and the
    row that it inserts or the value that it looks up. bind: makes the statement, if it must run the usual way.
    """

    statement: st.Statement | None = None
    described: Schema | None = None
    columns: tuple[Column, ...] | None = None
    formats: tuple[int, ...] = ()
    plan: Plan | None = None
    given: object = None
    bind: Callable[[], st.Statement | None] | None = None


def portal_of(cursor: OpenCursor, columns: tuple[Column, ...] | None) -> Portal:
    """The portal of a cursor of DECLARE."""
    known = {f.name: getattr(cursor, f.name) for f in fields(cursor)}
    return Portal(**known, columns=columns, formats=(int(cursor.binary),) * len(columns or ()))


#: The number of rows that are encoded and sent at once.
BATCH_ROWS: Final = 1 << 16


def data_rows(table: pa.Table, columns: Schema, formats: Sequence[int]) -> Iterator[memoryview]:
    """The DataRow messages of all rows of `table`, batch by batch. formats: 0 text, 1 binary, for each column."""
    for start in range(0, table.num_rows, BATCH_ROWS):
        batch = table.slice(start, BATCH_ROWS)
        fields = list(_fields(batch, columns, formats))
        lengths = np.full(batch.num_rows, 6 + 4 * len(columns), np.int64)
        for field in fields:
            lengths += _sizes_of(field)
        rows = Rows(batch.num_rows)
        rows.put(np.full(batch.num_rows, b"D", "S1"))
        rows.put(lengths.astype(">i4"))
        rows.put(np.full(batch.num_rows, len(columns), ">u2"))
        for field in fields:
            rows.put_sized(field)
        yield rows.joined()


def row_messages(table: pa.Table, columns: Schema, formats: Sequence[int]) -> list[bytes]:
    """The DataRow message of each row of a small table."""
    found = []
    for batch in data_rows(table, columns, formats):
        data, start = bytes(batch), 0
        while start < len(data):
            end = start + 1 + int.from_bytes(data[start + 1 : start + 5])
            found.append(data[start:end])
            start = end
    return found


def binary_copy_rows(table: pa.Table, columns: Schema) -> Iterator[pa.Array]:
    """The rows of COPY … (FORMAT binary), batch by batch, without header and trailer."""
    for start in range(0, table.num_rows, BATCH_ROWS):
        batch = table.slice(start, BATCH_ROWS)
        rows = Rows(batch.num_rows)
        rows.put(np.full(batch.num_rows, len(columns), ">u2"))
        for field in _fields(batch, columns, [1] * len(columns)):
            rows.put_sized(field)
        yield rows.array()


def text_columns(table: pa.Table, columns: Schema) -> list[pa.Array]:
    """The texts of all values, column by column, as large strings."""
    return [valuebytes.texts(_one(table.column(i)), c.type) for i, c in enumerate(columns)]


def _fields(batch: pa.Table, columns: Schema, formats: Sequence[int]) -> Iterator[pa.Array | np.ndarray]:
    """The encoded values of each column: a numpy array if all have the same width and none is NULL."""
    for i, (column, form) in enumerate(zip(columns, formats, strict=True)):
        values = _one(batch.column(i))
        if not form:
            yield valuebytes.texts(values, column.type).cast(BINARY)
        elif not values.null_count and (found := valuebytes.fixed_values(values, column.type)) is not None:
            yield found
        else:
            yield valuebytes.encoded(values, column.type).cast(BINARY)


def _one(column: pa.ChunkedArray) -> pa.Array:
    """The column as one array without an offset."""
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)


def _sizes_of(field: pa.Array | np.ndarray) -> np.ndarray | int:
    """The sizes of the values of a field in bytes, 0 for NULL."""
    if isinstance(field, np.ndarray):
        return field.dtype.itemsize
    found: np.ndarray = pc.fill_null(pc.binary_length(field), 0).to_numpy(zero_copy_only=False)
    return found


def copy_header() -> bytes:
    """The header of a binary COPY."""
    return b"PGCOPY\n\xff\r\n\0" + struct.pack(">ii", 0, 0)


def copy_end() -> bytes:
    """The trailer of a binary COPY."""
    return struct.pack(">h", -1)


#: The interval at which a thread that waits for rows checks for a cancellation.
_CHECK_S: Final = 0.1
#: The interval at which the connection of a waiting client is checked.
_CLIENT_S: Final = 2.0
#: A function that encodes rows.
Encode = Callable[[pa.Table], bytes]


class Send(Protocol):
    """A function that sends encoded rows, possibly none. is_first: whether they are the first rows."""

    async def __call__(self, part: bytes, *, is_first: bool) -> None: ...


async def follow(
    running: Running, encode: Encode, how: object, clients: Clients, cancellation: Cancellation, send: Send
) -> int:
    """Sends the rows of a running query until it has no more, and closes it. Returns their number. Raises
    QUERY_CANCELED.

    how: see `encoded`.
    """
    total = 0
    cancellation.reset()
    try:
        async for part, rows in encoded(running, encode, how, clients):
            if cancellation.canceled:
                raise error("QUERY_CANCELED", "canceling statement due to user request")
            await send(part, is_first=bool(rows) and not total)
            total += rows
    finally:
        await clients.work(running.close)
    return total


async def encoded(running: Running, encode: Encode, how: object, clients: Clients) -> AsyncIterator[tuple[bytes, int]]:
    """The encoded rows of a running query as they arrive, with their number; sometimes none, so that the caller checks
    the connection. how: identifies the encoding.

    Subscribers wait in the event loop, and share the encoded rows of a commit. Other queries poll in threads.
    """
    if not isinstance(running, ShownUpdates):
        async for rows in _asked(running, clients):
            yield (await clients.work(encode, rows) if rows.num_rows else b""), rows.num_rows
        return
    subscriber = running.subscriber
    while True:
        update = await clients.work(subscriber.take) if subscriber.reads else subscriber.take()
        if update is not None:
            yield running.encoded(update, how, encode)
        elif subscriber.ended:
            return
        else:
            yield b"", 0
            waiting = asyncio.ensure_future(subscriber.arrive())
            try:
                await asyncio.wait([waiting], timeout=_CLIENT_S)
            finally:
                waiting.cancel()


async def _asked(running: Running, clients: Clients) -> AsyncIterator[pa.Table]:
    while True:
        ended = running.ended
        yield await clients.work(running.rows)
        if ended:
            return
        await clients.work(running.wait, _CHECK_S)

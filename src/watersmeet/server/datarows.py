"""Columns to DataRow messages and rows of COPY, by Arrow's kernels: no row is an object of Python.

The bytes of all rows are one buffer: header, and for each column the length and the value, joined element by element.
Rows of queries that run until they are stopped are sent as they arrive.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Final, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.database.sessions.cancellation import Cancellation
from watersmeet.database.sessions.result import Running
from watersmeet.errors import error
from watersmeet.server import valuebytes
from watersmeet.server.clients import Clients
from watersmeet.server.valuebytes import BINARY, Rows
from watersmeet.subscribing.forms import ShownUpdates
from watersmeet.values.types import Schema

#: So many rows are encoded, and sent, at once.
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


def binary_copy_rows(table: pa.Table, columns: Schema) -> Iterator[pa.Array]:
    """The rows of COPY … (FORMAT binary), batch by batch, without its header and its end."""
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
    """The bytes of the values of each column: as numpy has them where all have one width and none is NULL."""
    for i, (column, form) in enumerate(zip(columns, formats, strict=True)):
        values = _one(batch.column(i))
        if not form:
            yield valuebytes.texts(values, column.type).cast(BINARY)
        elif not values.null_count and (found := valuebytes.fixed_values(values, column.type)) is not None:
            yield found
        else:
            yield valuebytes.encoded(values, column.type).cast(BINARY)


def _one(column: pa.ChunkedArray) -> pa.Array:
    """The column as one array that begins at its buffers' start."""
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)


def _sizes_of(field: pa.Array | np.ndarray) -> np.ndarray | int:
    """How many bytes the values of a field have, 0 for NULL."""
    if isinstance(field, np.ndarray):
        return field.dtype.itemsize
    found: np.ndarray = pc.fill_null(pc.binary_length(field), 0).to_numpy(zero_copy_only=False)
    return found


def copy_header() -> bytes:
    """What a binary COPY begins with."""
    return b"PGCOPY\n\xff\r\n\0" + struct.pack(">ii", 0, 0)


def copy_end() -> bytes:
    """What a binary COPY ends with."""
    return struct.pack(">h", -1)


#: A thread that waits for rows checks as often whether it should end.
_CHECK_S: Final = 0.1

#: So often the event loop looks whether a client that waits for rows is still there.
_CLIENT_S: Final = 2.0

#: Makes of rows what is sent.
Encode = Callable[[pa.Table], bytes]


class Send(Protocol):
    """Sends what was encoded, maybe nothing. is_first: of the first rows."""

    async def __call__(self, part: bytes, *, is_first: bool) -> None: ...


async def follow(
    running: Running, encode: Encode, how: object, clients: Clients, cancellation: Cancellation, send: Send
) -> int:
    """Sends the rows of a running query until it has no more, and closes it; their number. QUERY_CANCELED.

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
    """The rows of a running query as they come, encoded, and how many they are; now and then nothing, so that the
    caller looks whether its client is still there. how: equal for encodings that give the same bytes.

    Subscribers wait in the event loop, and what one commit gives is encoded once for all. Others ask in threads.
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

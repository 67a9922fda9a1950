"""Pieces: what travels to the buckets.

A piece of rows is an Arrow frame; a clock says how far a side's time has come.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.circuit.operators import Exchange
from watersmeet.frames.shapes import JoinShape, Side
from watersmeet.kernel.arrays import columns as col
from watersmeet.kernel.runs.delta import Delta
from watersmeet.kernel.runs.frames import encode, send
from watersmeet.kernel.runs.order import Diffs
from watersmeet.types import Schema

#: Channels: the rows of a side, and its clock.
ROWS: Final = (0, 1)
CLOCK: Final = (2, 3)
#: The channel of a piece without content: the task that gets it compares the checkpoint's join with its own.
IDENTITY: Final = 4

#: A row further ahead of the time of its micro-batch than this is kept, but does not move the watermark.
AHEAD_US: Final = 24 * 3600 * 1_000_000


@dataclass(frozen=True)
class Piece:
    """What one task sends to one bucket on one channel."""

    bucket: int
    channel: int
    body: bytes


def time_us(array: pa.Array) -> pa.Array:
    """Timestamps as int64 microseconds."""
    return array.view(pa.int64())


def window_starts(times: pa.Array, size_us: int) -> pa.Array:
    """The start of the tumbling window of each time, aligned at 1970-01-01 00:00, of the times' type; NULL for NULL."""
    us = col.words(time_us(times))
    starts = pa.array(
        us - us % size_us, pa.int64(), mask=None if times.null_count == 0 else ~np.asarray(times.is_valid())
    )
    return starts.view(times.type)


class Cutter:
    """Cuts the rows of one task of one side into pieces by bucket, and tells every bucket the time at the end."""

    def __init__(self, shape: JoinShape, index: int) -> None:
        self._side: Side = shape.sides[index]
        self._index = index
        self._buckets = shape.buckets
        self._window_us = shape.window_us
        schema = self._side.schema
        self._exchange = Exchange(("rows",), schema, True, self._side.keys)
        self._top: int | None = None

    @property
    def given(self) -> Schema:
        """The columns that a task has to bring: the window is made here."""
        schema = self._side.schema
        return schema if self._window_us is None else schema[:-1]

    def cut(self, arrays: Sequence[pa.Array], limit_us: int | None, diff: Diffs | None = None) -> Iterator[Piece]:
        """The pieces of some rows. limit_us: later times do not count as time that has come. diff: all 1 by default."""
        columns = self.complete(arrays)
        if self._side.delay_us is not None and self._side.time is not None:
            self._see(columns[self._side.time], limit_us)
        delta = Delta(col.positional(columns), np.ones(len(columns[0]), np.int64) if diff is None else diff)
        for frame in send(self._exchange, delta, self._buckets, 0):
            yield Piece(frame.bucket, ROWS[self._index], memoryview(frame.body).tobytes())

    def complete(self, arrays: Sequence[pa.Array]) -> list[pa.Array]:
        """The side's columns, with the start of the window."""
        if self._window_us is None or self._side.time is None:
            return list(arrays)
        return [*arrays, window_starts(arrays[self._side.time], self._window_us)]

    def clocks(self) -> Iterator[Piece]:
        """The greatest time of all rows so far, for every bucket; nothing if there was none."""
        if self._top is not None:
            body = self._top.to_bytes(8, "little", signed=True)
            yield from (Piece(b, CLOCK[self._index], body) for b in range(self._buckets))

    def _see(self, times: pa.Array, limit_us: int | None) -> None:
        us = time_us(times)
        if limit_us is not None:
            us = us.filter(pc.less_equal(us, limit_us))
        top = pc.max(us).as_py()
        if top is not None and (self._top is None or top > self._top):
            self._top = top


def clock(pieces: Iterable[Piece], index: int) -> int | None:
    """The greatest time that tasks saw on a side, in microseconds."""
    return max(
        (int.from_bytes(p.body, "little", signed=True) for p in pieces if p.channel == CLOCK[index]), default=None
    )


def bodies(delta: Delta, most_bytes: int = 8 << 20) -> Iterator[bytes]:
    """The changes as frames of about `most_bytes`."""
    step = max(1, int(delta.num_rows * most_bytes / max(1, delta.columns.nbytes)))
    for start in range(0, delta.num_rows, step):
        part = Delta(delta.columns.slice(start, step), delta.diff[start : start + step])
        yield memoryview(encode(part)).tobytes()

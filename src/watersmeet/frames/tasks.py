"""What runs in Spark's plain tasks: rows into pieces before the stateful operator, frames into rows behind it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext

from watersmeet.errors import error
from watersmeet.frames.pieces import AHEAD_US, IDENTITY, Cutter, Piece, time_us
from watersmeet.frames.schemas import arrow_columns, batch_of
from watersmeet.frames.shapes import JoinShape, ResultColumn
from watersmeet.kernel.arrays import columns as col
from watersmeet.kernel.runs.delta import Delta
from watersmeet.kernel.runs.frames import decode
from watersmeet.kernel.runs.order import Diffs
from watersmeet.runtime.spark.placing import partition_keys

#: A task gathers rows until they have so many bytes, and cuts them into pieces together.
GATHERED_BYTES: Final = 32 << 20

#: Settings of a running query with the number of partitions of its stateful operators. Spark sets the first one for a
#: checkpoint that has another number than the session.
_PARTITIONS: Final = ("spark.sql.streaming.internal.stateStore.partitions", "spark.sql.shuffle.partitions")

_PIECE: Final = pa.schema([("bucket", pa.int32()), ("channel", pa.int32()), ("body", pa.binary())])


@dataclass(frozen=True)
class Encoder:
    """Rows of one side into pieces.

    The last column of the rows is the time of the micro-batch, the one before it maybe their diff.

    ids: the key of each bucket in Spark. partitions: of the stateful operator, unless the checkpoint has others.
    """

    shape: JoinShape
    index: int
    ids: tuple[int, ...]
    partitions: int

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """See `DataFrame.mapInArrow`."""
        yield from _identities(self.partitions)
        cutter = Cutter(self.shape, self.index)
        for table in gathered(batches):
            now = time_us(col.flat(table.column(table.num_columns - 1)).slice(0, 1))[0].as_py()
            columns = arrow_columns(table, cutter.given)
            diff = differences(table.column(table.num_columns - 2)) if self.shape.sides[self.index].signed else None
            for piece in cutter.cut(columns, now + AHEAD_US, diff):
                yield self._batch(piece)
        for piece in cutter.clocks():
            yield self._batch(piece)

    def _batch(self, piece: Piece) -> pa.RecordBatch:
        return _pieces([self.ids[piece.bucket]], piece.channel, piece.body)


def _pieces(keys: Sequence[int], channel: int, body: bytes) -> pa.RecordBatch:
    """A piece for each key."""
    count = len(keys)
    return pa.RecordBatch.from_arrays(
        [pa.array(keys, pa.int32()), pa.array([channel] * count, pa.int32()), pa.array([body] * count, pa.binary())],
        schema=_PIECE,
    )


def _identities(partitions: int) -> Iterator[pa.RecordBatch]:
    """From the first task of a micro-batch: a piece for each partition of the stateful operator.

    Its key is less than any bucket's, so that Spark gives it to the partition's task before all buckets.
    """
    context = TaskContext.get()
    if context is not None and context.partitionId() == 0:
        found = next(filter(None, map(context.getLocalProperty, _PARTITIONS)), None)
        yield _pieces(partition_keys(int(found or partitions)), IDENTITY, b"")


@dataclass(frozen=True)
class Decoder:
    """Frames of changes into rows of the result. diff: whether these have a last column of +1 and -1."""

    shape: JoinShape
    schema: pa.Schema
    diff: bool

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """See `DataFrame.mapInArrow`."""
        for batch in batches:
            for body in batch.column(0):
                if body.is_valid:
                    yield self.rows(decode(body.as_buffer()))

    def rows(self, delta: Delta) -> pa.RecordBatch:
        """The rows of the result for some changes."""
        arrays = [self._column(o, delta) for o in self.shape.outputs]
        if self.diff:
            arrays.append(pa.array(delta.diff).cast(pa.int32()))
        return batch_of(arrays, self.schema)

    def _column(self, output: ResultColumn, delta: Delta) -> pa.Array:
        found = [col.flat(delta.columns.column(self.shape.columns.index(c))) for c in output.columns]
        values = found[0] if len(found) == 1 else pc.coalesce(*found)
        return _windows(values, self.shape.window_us or 0) if output.window else values


def differences(column: pa.ChunkedArray) -> Diffs:
    """The diffs of rows. INVALID_VALUE if one is NULL."""
    if column.null_count:
        raise error(
            "INVALID_VALUE",
            "a row whose diff is NULL",
            hint="It must be 1 for a row that comes and -1 for one that goes.",
        )
    return np.array(col.flat(column).cast(pa.int64()))


def gathered(batches: Iterable[pa.RecordBatch], most_bytes: int = GATHERED_BYTES) -> Iterator[pa.Table]:
    """The rows of the batches in tables of about `most_bytes`; no table is empty."""
    held: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        if batch.num_rows:
            held.append(batch)
            size += batch.get_total_buffer_size()  # not nbytes: see with_offsets
        if size >= most_bytes:
            yield pa.Table.from_batches(held)
            held, size = [], 0
    if held:
        yield pa.Table.from_batches(held)


def _windows(starts: pa.Array, size_us: int) -> pa.Array:
    """Structs of start and end."""
    ends = pc.add(time_us(starts), size_us).view(starts.type)
    mask = None if starts.null_count == 0 else pa.array(~np.asarray(starts.is_valid()))
    return pa.StructArray.from_arrays([starts, ends], names=["start", "end"], mask=mask)

"""Spark's plain tasks: pieces before the stateful operator, rows behind it, and joins with static rows.

What runs in Spark's plain tasks: rows into pieces before the stateful operator, frames into rows behind it.

A stream joined with rows that don't change: looked up in every task, without state.

The static rows are read once, when `join` is called, and arranged once in each worker. They can't come later, so
nothing is ever taken back, and nothing of the stream is kept.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext

from watersmeet.circuit.circuit import Circuit
from watersmeet.circuit.epochs import Start
from watersmeet.circuit.operators import Arrange
from watersmeet.errors import error
from watersmeet.frames.buckets import AHEAD_US, IDENTITY, Cutter, Piece, repeated, time_us
from watersmeet.frames.circuits import JOINED, compile_join
from watersmeet.frames.shapes import SIDES, JoinShape, ResultColumn, arrow_columns, batch_of
from watersmeet.kernel.arrays import columns as col
from watersmeet.kernel.executor import EpochContext, run_stage
from watersmeet.kernel.operators.arrange import ROWS, split
from watersmeet.kernel.runs.delta import Delta
from watersmeet.kernel.runs.frames import decode, encode
from watersmeet.kernel.runs.order import Diffs
from watersmeet.kernel.runs.run import Run
from watersmeet.kernel.runs.state import StageState
from watersmeet.runtime.spark.shipping import partition_keys

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


_MOST: Final = 8

#: The arranged rows of the static sides that this worker has seen last, by the token of their join.
_arranged: OrderedDict[str, Run] = OrderedDict()


def static_rows(shape: JoinShape, rows: pa.Table) -> bytes:
    """The rows of the static side, to be sent to every worker. rows: the side's columns as Spark gives them."""
    cutter = Cutter(shape, _index(shape))
    columns = cutter.complete(arrow_columns(rows, cutter.given))
    return memoryview(encode(Delta(col.positional(columns), np.ones(rows.num_rows, np.int64)))).tobytes()


@dataclass(frozen=True)
class LookUp:
    """Rows of the stream into rows of the result. rows: a broadcast of `static_rows`. token: names it."""

    shape: JoinShape
    rows: Any
    token: str
    decoder: Decoder

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """See `DataFrame.mapInArrow`."""
        cutter = Cutter(self.shape, 1 - _index(self.shape))
        circuit = compile_join(replace(self.shape, static=None, emit="changes"))
        for table in gathered(batches):
            columns = cutter.complete(arrow_columns(table, cutter.given))
            yield self.decoder.rows(
                self._join(circuit, Delta(col.positional(columns), np.ones(table.num_rows, np.int64)))
            )

    def _join(self, circuit: Circuit, delta: Delta) -> Delta:
        static = _index(self.shape)
        scans = {s.relation_id: s for s in circuit.scans}
        kept = next(o for o in circuit.operators if isinstance(o, Arrange) and o.inputs == (scans[SIDES[static]].id,))
        state = StageState()
        state.trace(kept.id, ROWS).replace([self._static(kept)])
        context = EpochContext(0, Start())
        found = run_stage(circuit, 0, 0, {scans[SIDES[1 - static]].id: [delta]}, (), state, context).published.get(
            JOINED
        )
        return Delta.none(circuit.sinks[0].schema) if found is None else repeated(found)

    def _static(self, kept: Arrange) -> Run:
        """The static rows as the arrangement has them; those with NULL in the key meet nothing."""
        run = _arranged.get(self.token)
        if run is None:
            run = split(decode(self.rows.value), kept.keys, kept.null_safe)[0]
            _arranged[self.token] = run
            if len(_arranged) > _MOST:
                _arranged.popitem(last=False)
        return run


def _index(shape: JoinShape) -> int:
    assert shape.static is not None
    return SIDES.index(shape.static)

"""The Spark tasks of a join: they convert rows to pieces, run the stateful operator, convert changes to rows, and join
with static rows.

The stateful operator is `transformWithState` with the buckets' state in Spark's state store (`Buckets`), or
a stateless operator with the state in files (`BucketsAt`). A stream with a static
side is joined by look-ups in every task, without state: the static rows are read once, when `join` is called, and
arranged once in each worker. They never change, so no row is retracted, and no row of the stream is kept.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle

from watersmeet.circuit.circuit import Circuit
from watersmeet.circuit.epochs import Start
from watersmeet.circuit.operators import Arrange
from watersmeet.errors import error
from watersmeet.frames.buckets import (
    AHEAD_US,
    IDENTITY,
    Cutter,
    Piece,
    Step,
    bodies,
    check_identity,
    check_plan,
    repeated,
    run_bucket,
    time_us,
)
from watersmeet.frames.circuits import JOINED, compile_join
from watersmeet.frames.shapes import SIDES, JoinShape, ResultColumn, arrow_columns, batch_of
from watersmeet.frames.stores import Batch, LocalRuns, PathStore, SparkStore
from watersmeet.kernel.arrays import columns as col
from watersmeet.kernel.executor import EpochContext, run_stage
from watersmeet.kernel.operators.arrange import ROWS, split
from watersmeet.kernel.runs.delta import Delta, Diffs
from watersmeet.kernel.runs.frames import decode, encode
from watersmeet.kernel.runs.run import Run
from watersmeet.kernel.runs.state import StageState
from watersmeet.objectstores import storage
from watersmeet.runtime.spark.shipping import partition_keys
from watersmeet.values.watermarks import Watermark, value

#: The bytes of rows that a task collects before it divides them into pieces.
GATHERED_BYTES: Final = 32 << 20

#: The settings of a running query with the number of partitions of its stateful operators. Spark sets the first one if
#: the checkpoint differs from the session.
_PARTITIONS: Final = ("spark.sql.streaming.internal.stateStore.partitions", "spark.sql.shuffle.partitions")

_PIECE: Final = pa.schema([("bucket", pa.int32()), ("channel", pa.int32()), ("body", pa.binary())])


@dataclass(frozen=True)
class Encoder:
    """Converts the rows of one side to pieces.

    The last column of the rows is the time of the micro-batch; the previous one may be their diff. ids: the key of each
    bucket in Spark. partitions: the number of partitions of the stateful operator, unless the checkpoint has a
    different one; None if the state is in files.
    """

    shape: JoinShape
    index: int
    ids: tuple[int, ...]
    partitions: int | None

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The function for `DataFrame.mapInArrow`."""
        yield from self._identities()
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
        return pieces_batch([self.ids[piece.bucket]], piece.channel, [piece.body])

    def _identities(self) -> Iterator[pa.RecordBatch]:
        """Empty pieces of the first task of a micro-batch: for each partition of the stateful operator, or for each
        bucket whose state is in files.

        The key of a partition is less than any bucket's, so that Spark passes it to the partition's task before all
        buckets.
        """
        context = TaskContext.get()
        if context is None or context.partitionId() != 0:
            return
        keys = self.ids
        if self.partitions is not None:
            keys = partition_keys(partitions_of_task(context, self.partitions))
        yield pieces_batch(keys, IDENTITY, [b""] * len(keys))


def partitions_of_task(context: TaskContext, of_session: int) -> int:
    """The number of partitions of the query's stateful operators; `of_session` if Spark does not tell the task."""
    return int(next(filter(None, map(context.getLocalProperty, _PARTITIONS)), None) or of_session)


def pieces_batch(keys: Sequence[int], channel: int, found: Sequence[bytes]) -> pa.RecordBatch:
    """Pieces of one channel, in one batch. keys: the keys of their buckets. found: their bodies."""
    channels = pa.array(np.full(len(keys), channel, np.int32))
    return pa.RecordBatch.from_arrays(
        [pa.array(keys, pa.int32()), channels, pa.array(found, pa.binary())], schema=_PIECE
    )


@dataclass(frozen=True)
class Decoder:
    """Converts frames of changes to rows of the result. diff: whether the rows have a last column of +1 and -1."""

    shape: JoinShape
    schema: pa.Schema
    diff: bool

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The function for `DataFrame.mapInArrow`."""
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
    """The diffs of rows. Raises INVALID_VALUE if one is NULL."""
    if column.null_count:
        raise error(
            "INVALID_VALUE",
            "a row whose diff is NULL",
            hint="It must be 1 for an inserted row and -1 for a deleted one.",
        )
    return np.array(col.flat(column).cast(pa.int64()))


def gathered(batches: Iterable[pa.RecordBatch], most_bytes: int = GATHERED_BYTES) -> Iterator[pa.Table]:
    """The rows of the batches in non-empty tables of about `most_bytes`."""
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

#: The arranged rows of the most recent static sides of this worker, by the token of their join.
_arranged: OrderedDict[str, Run] = OrderedDict()


def static_rows(shape: JoinShape, rows: pa.Table) -> bytes:
    """The rows of the static side, for every worker. rows: the side's columns from Spark."""
    cutter = Cutter(shape, _index(shape))
    columns = cutter.complete(arrow_columns(rows, cutter.given))
    return memoryview(encode(Delta(col.positional(columns), np.ones(rows.num_rows, np.int64)))).tobytes()


@dataclass(frozen=True)
class LookUp:
    """Converts rows of the stream to rows of the result. rows: what `static_rows` returned. token: the name of the
    join.
    """

    shape: JoinShape
    rows: bytes
    token: str
    decoder: Decoder

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The function for `DataFrame.mapInArrow`."""
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
        """The static rows in the form of the arrangement. Rows with NULL in the key match nothing."""
        run = _arranged.get(self.token)
        if run is None:
            run = split(decode(self.rows), kept.keys, kept.null_safe)[0]
            _arranged[self.token] = run
            if len(_arranged) > _MOST:
                _arranged.popitem(last=False)
        return run


def _index(shape: JoinShape) -> int:
    assert shape.static is not None
    return SIDES.index(shape.static)


#: The input of the stateful operator.
PIECE: Final = "bucket int, channel int, body binary"

#: The output of the stateful operator: a row for each frame of changes, and a row of metrics (without a frame) for each
#: bucket.
FIGURES: Final = ("left_rows", "right_rows", "late_left_rows", "late_right_rows", "state_rows", "state_bytes")

#: The row of metrics also has the watermark of the result, in microseconds.
MARK: Final = "mark"

CHANGES: Final = "frame binary, " + ", ".join(f"{name} bigint" for name in (*FIGURES, MARK))
CHANGES_SCHEMA: Final = pa.schema([("frame", pa.binary()), *((name, pa.int64()) for name in (*FIGURES, MARK))])


class Buckets(StatefulProcessor):  # type: ignore[misc]
    """Runs each bucket of `shape` on its pieces, with the state in Spark's state store."""

    def __init__(self, shape: JoinShape, ids: tuple[int, ...], mark: Watermark) -> None:
        """ids: the key of each bucket in Spark. mark: the watermark of the result."""
        self._shape = shape
        self._mark = mark
        self._numbers = {key: number for number, key in enumerate(ids)}

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._texts = handle.getMapState("texts", "name string", "text string")
        self._chunks = handle.getMapState("chunks", "run string, number int", "body binary")

    def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any) -> Iterator[pd.DataFrame]:  # noqa: N802, N803, ARG002
        store = SparkStore(self._texts, self._chunks, LocalRuns.of_worker())
        bucket = self._numbers.get(int(key[0]))
        if bucket is None:  # the key of this partition, before all buckets
            check_identity(self._shape, store)
            return
        pieces = [
            Piece(bucket, int(channel), bytes(body))
            for frame in rows
            for channel, body in zip(frame["channel"], frame["body"], strict=True)
        ]
        for row in changes(run_bucket(self._shape, bucket, pieces, store), self._mark):
            yield pd.DataFrame([row], columns=CHANGES_SCHEMA.names)

    def close(self) -> None:
        pass


@dataclass(frozen=True)
class BucketsAt:
    """Runs the buckets of a partition on their pieces, with the state in files at `url`. mark: the watermark of the
    result.
    """

    shape: JoinShape
    mark: Watermark
    url: str

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The function for `DataFrame.mapInArrow`. Every bucket gets a piece in every micro-batch."""
        pieces: dict[int, list[Piece]] = {}
        for batch in batches:
            for bucket, channel, body in zip(*batch.to_pydict().values(), strict=True):
                pieces.setdefault(bucket, []).append(Piece(bucket, channel, body))
        if not pieces:
            return
        path, batch_of_task = storage.path_at(self.url), Batch.of_task()
        for bucket, found in pieces.items():
            store = PathStore(path, batch_of_task, bucket, partial(check_plan, self.shape))
            step = run_bucket(self.shape, bucket, [p for p in found if p.channel != IDENTITY], store)
            store.commit()
            yield pa.RecordBatch.from_pylist(list(changes(step, self.mark)), CHANGES_SCHEMA)


def changes(step: Step, mark: Watermark) -> Iterator[dict[str, Any]]:
    """The rows of `CHANGES` for a step."""
    for body in bodies(repeated(step.delta)):
        yield {"frame": body, **dict.fromkeys(FIGURES, 0), MARK: None}
    time_us = value(mark, step.watermarks)
    # Spark treats rows at the watermark as late, joins only rows below it.
    last_us = None if time_us is None else time_us - 1
    figures = dict(zip(FIGURES, (*step.rows, *step.late, *step.state), strict=True))
    yield {"frame": None, **figures, MARK: last_us}

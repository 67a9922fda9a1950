"""The Spark tasks of joins and queries: they convert rows to pieces, run stateful steps, convert changes to rows, and
join with static rows.

A stateful step is `transformWithState` with the buckets' state in Spark's state store (`Buckets`), or a stateless
operator with the state in files (`BucketsAt`). A join has one step. A query has one for each exchange on the way of its
rows: stage 0 of its circuit runs where rows are read (`Reading`), each later stage in a step (`Stage`). A watermark is
known in the buckets only, so late rows are dropped there, as the first operator after an exchange.

A join of a stream with a static side has no state: every task looks its rows up in the static rows, which are read
once, when `join` is called, and arranged once in each worker. They never change, so no row is retracted.
"""

from __future__ import annotations

import json
import os
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import groupby
from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle

from watersmeet.circuit.circuit import Circuit
from watersmeet.circuit.epochs import Live, Start
from watersmeet.circuit.operators import Arrange, LateRowFilter
from watersmeet.errors import error
from watersmeet.frames.buckets import (
    AHEAD_US,
    DAY_US,
    IDENTITY,
    Cutter,
    Piece,
    Plan,
    Store,
    check_identity,
    check_plan,
    opened,
    parts,
    repeated,
    run_bucket,
    run_stored,
    shown_first,
    time_us,
)
from watersmeet.frames.circuits import JOINED, compile_join
from watersmeet.frames.shapes import SIDES, JoinShape, QueryShape, ResultColumn, arrow_columns, batch_of
from watersmeet.frames.stores import Batch, LocalRuns, PathStore, SparkStore
from watersmeet.kernel.arrays import columns as col
from watersmeet.kernel.executor import EpochContext, StageResult, run_stage
from watersmeet.kernel.operators.arrange import ROWS, split
from watersmeet.kernel.runs.delta import Delta, Diffs
from watersmeet.kernel.runs.frames import Frame, decode, encode
from watersmeet.kernel.runs.run import Run
from watersmeet.kernel.runs.state import StageState
from watersmeet.objectstores import storage
from watersmeet.runtime.spark.shipping import partition_keys, spare_repeated_work
from watersmeet.values.watermarks import Watermark, value

if TYPE_CHECKING:
    import pandas as pd

#: The bytes of rows that a task collects before it divides them into pieces.
GATHERED_BYTES: Final = 32 << 20

#: The settings of a running query with the number of partitions of its stateful operators. Spark sets the first one if
#: the checkpoint differs from the session.
_PARTITIONS: Final = ("spark.sql.streaming.internal.stateStore.partitions", "spark.sql.shuffle.partitions")

_PIECE: Final = pa.schema([("bucket", pa.int32()), ("channel", pa.int32()), ("body", pa.binary())])


@dataclass(frozen=True)
class Task:
    """What a task of Spark runs: an operator, in a worker that does not repeat work for each task."""

    operator: Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The function for `DataFrame.mapInArrow`."""
        spare_repeated_work()
        return self.operator(batches)


@dataclass(frozen=True)
class Encoder:
    """Converts the rows of one side to pieces.

    The last column of the rows is the date of the micro-batch; the previous one may be their diff. ids: the key of each
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
            day = col.flat(table.column(table.num_columns - 1)).slice(0, 1).view(pa.int32())[0].as_py()
            columns = arrow_columns(table, cutter.given)
            diff = differences(table.column(table.num_columns - 2)) if self.shape.sides[self.index].signed else None
            yield from self._sent(cutter.cut(columns, day * DAY_US + AHEAD_US, diff))
        yield from self._sent(cutter.clocks())

    def _sent(self, pieces: Iterable[Piece]) -> Iterator[pa.RecordBatch]:
        """Pieces of one channel, in one batch."""
        found = list(pieces)
        if found:
            yield pieces_batch([self.ids[p.bucket] for p in found], found[0].channel, [p.body for p in found])

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


class RowDecoder:
    """Converts frames of changes to rows of the result. diff: whether the rows have a last column of +1 and -1."""

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
        arrays = self.arrays(delta)
        if self.diff:
            arrays.append(pa.array(delta.diff).cast(pa.int32()))
        return batch_of(arrays, self.schema)

    def arrays(self, delta: Delta) -> list[pa.Array]:
        """The columns of the result, without the diff."""
        raise NotImplementedError


@dataclass(frozen=True)
class Decoder(RowDecoder):
    """The decoder of a join."""

    shape: JoinShape
    schema: pa.Schema
    diff: bool

    def arrays(self, delta: Delta) -> list[pa.Array]:
        return [self._column(o, delta) for o in self.shape.outputs]

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


#: The results of a step: pieces, and rows of changes with a `Delta` as frame.
Made = Iterator[Piece | dict[str, Any]]


class BucketStep(Protocol):
    """A stateful step: that of a join, or of a stage of a query. columns: those of rows of changes."""

    columns: ClassVar[pa.Schema]

    @property
    def plan(self) -> Plan:
        """The join or query."""
        ...

    @property
    def folder(self) -> str:
        """The folder of its state below the path of the state, or empty."""
        ...

    def run(self, bucket: int, pieces: Sequence[Piece], store: Store) -> Made:
        """Runs one micro-batch of a bucket. Returns pieces for the next step, or rows of changes.

        When it has returned all, the store has the new state.
        """
        ...


@dataclass(frozen=True)
class JoinStep:
    """The step of a join. mark: the watermark of the result."""

    columns: ClassVar[pa.Schema] = pa.schema([("frame", pa.binary()), *((n, pa.int64()) for n in (*FIGURES, MARK))])
    folder: ClassVar[str] = ""
    plan: JoinShape
    mark: Watermark

    def run(self, bucket: int, pieces: Sequence[Piece], store: Store) -> Made:
        """The rows of `CHANGES`."""
        step = run_bucket(self.plan, bucket, [p for p in pieces if p.channel != IDENTITY], store)
        for part in parts(repeated(step.delta)):
            yield {"frame": part, **dict.fromkeys(FIGURES, 0), MARK: None}
        time_us = value(self.mark, step.watermarks)
        # Spark treats rows at the watermark as late, joins only rows below it.
        last_us = None if time_us is None else time_us - 1
        figures = dict(zip(FIGURES, (*step.rows, *step.late, *step.state), strict=True))
        yield {"frame": None, **figures, MARK: last_us}


class Buckets(StatefulProcessor):  # type: ignore[misc]
    """Runs each bucket of a step on its pieces, with the state in Spark's state store."""

    def __init__(self, step: BucketStep, ids: tuple[int, ...]) -> None:
        """ids: the key of each bucket in Spark."""
        self._step = step
        self._ids = ids
        self._numbers = {key: number for number, key in enumerate(ids)}

    def init(self, handle: StatefulProcessorHandle) -> None:
        spare_repeated_work()
        self._texts = handle.getMapState("texts", "name string", "text string")
        self._chunks = handle.getMapState("chunks", "run string, number int", "body binary")

    def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any) -> Iterator[pd.DataFrame]:  # noqa: N802, N803, ARG002
        import pandas as pd  # noqa: PLC0415 - half a second, which no other task needs

        store = SparkStore(self._texts, self._chunks, LocalRuns.of_worker())
        bucket = self._numbers.get(int(key[0]))
        with shown_first():
            if bucket is None:  # the key of this partition, before all buckets
                check_identity(self._step.plan, store)
                return
            pieces = [
                Piece(bucket, int(channel), bytes(body))
                for frame in rows
                for channel, body in zip(frame["channel"], frame["body"], strict=True)
            ]
            for batch in batches_of(self._step, self._step.run(bucket, pieces, store), self._ids):
                yield pd.DataFrame(batch.to_pydict(), columns=batch.schema.names)

    def close(self) -> None:
        pass


#: The files that a task reads or writes at once: each waits for a disk or an object store.
_WRITERS: Final = 16


@cache
def _writers(_: int) -> ThreadPoolExecutor:
    """The threads of this process for files. Starting them takes longer than small files."""
    return ThreadPoolExecutor(_WRITERS)


@dataclass(frozen=True)
class BucketsAt:
    """Runs the buckets of a partition on their pieces, with the state in files at `url`.

    decoder: converts frames to rows here, so that they pass through Spark only once (`rows_schema`); None: the output
    is rows of changes.
    """

    step: BucketStep
    url: str
    decoder: RowDecoder | None = None

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The function for `DataFrame.mapInArrow`. Every bucket gets a piece in every micro-batch.

        All buckets are committed before the first row is returned: Spark may not read all rows.
        """
        pieces: dict[int, list[Piece]] = {}
        for batch in batches:
            for bucket, channel, body in zip(*batch.to_pydict().values(), strict=True):
                pieces.setdefault(bucket, []).append(Piece(bucket, channel, body))
        if not pieces:
            return
        path, batch_of_task = storage.path_at(self.url), Batch.of_task()
        path = path / self.step.folder if self.step.folder else path
        check = partial(check_plan, self.step.plan)
        made: list[list[Piece | dict[str, Any]]] = []
        pool = _writers(os.getpid())
        with shown_first():
            stores = list(pool.map(lambda bucket: PathStore(path, batch_of_task, bucket, check, pool), pieces))
            for bucket, store in zip(list(pieces), stores, strict=True):
                made.append(list(self.step.run(bucket, pieces.pop(bucket), store)))
            list(pool.map(PathStore.commit, stores))
        for found in made:
            yield from batches_of(self.step, found, range(self.step.plan.buckets), self.decoder)


def batches_of(
    step: BucketStep,
    made: Iterable[Piece | dict[str, Any]],
    ids: Sequence[int],
    decoder: RowDecoder | None = None,
) -> Iterator[pa.RecordBatch]:
    """What a step returned, for Spark. ids: the key of each bucket. decoder: see `BucketsAt`."""
    for channel, found in groupby(made, lambda m: m.channel if isinstance(m, Piece) else None):
        if channel is not None:
            pieces = cast("list[Piece]", list(found))
            yield pieces_batch([ids[p.bucket] for p in pieces], channel, [p.body for p in pieces])
            continue
        rows = cast("list[dict[str, Any]]", list(found))
        if decoder is None:
            yield _encoded(rows, step.columns)
        else:
            yield from (_decoded(row, step.columns, decoder) for row in rows)


def _encoded(rows: Iterable[Mapping[str, Any]], columns: pa.Schema) -> pa.RecordBatch:
    """Rows of changes, with their changes as frames."""
    frames = [None if row["frame"] is None else memoryview(encode(row["frame"])).tobytes() for row in rows]
    return pa.RecordBatch.from_pylist([{**r, "frame": f} for r, f in zip(rows, frames, strict=True)], columns)


def _decoded(row: dict[str, Any], columns: pa.Schema, decoder: RowDecoder) -> pa.RecordBatch:
    """The rows of the result for a row of changes, without metrics; or its metrics, with NULL as row."""
    schema = rows_schema(decoder.schema)
    if row["frame"] is None:
        figures = pa.array([[row[name] for name in columns.names[1:]]], _METRICS)
        return pa.RecordBatch.from_arrays([*(pa.nulls(1, f.type) for f in decoder.schema), figures], schema=schema)
    found = decoder.rows(row["frame"])
    return pa.RecordBatch.from_arrays([*found.columns, pa.nulls(found.num_rows, _METRICS)], schema=schema)


#: The last column of rows with metrics: all metrics, NULL in rows of the result. One column, because every row of the
#: result carries it through Spark.
METRICS: Final = "metrics"
_METRICS: Final = pa.list_(pa.int64())


def rows_schema(result: pa.Schema) -> pa.Schema:
    """The columns of rows with metrics: those of the result by position, `METRICS`."""
    return pa.schema([*(pa.field(f"c{i}", f.type) for i, f in enumerate(result)), pa.field(METRICS, _METRICS)])


#: The channels of a query's pieces: for frames the index of their exchange in the circuit, for others these numbers.
#: `_CLOCKS` minus the number of an input is its clock.
_WAKE: Final = -1
_FIGURES: Final = -2
_IDENTITY: Final = -3
_CLOCKS: Final = -4

#: The output of the last step, as for joins: a row for each frame of changes, and a row of metrics for each bucket.
QUERY_FIGURES: Final = ("input_rows", "late_rows", "state_rows", "state_bytes")
QUERY_CHANGES: Final = "frame binary, " + ", ".join(f"{name} bigint" for name in QUERY_FIGURES)


@dataclass(frozen=True)
class Reading:
    """Runs stage 0 on the rows of one input. The last column of the rows is the time of the micro-batch; the previous
    one may be their diff.

    ids: the key of each bucket in Spark. partitions: see `Encoder`.
    """

    shape: QueryShape
    index: int
    ids: tuple[int, ...]
    partitions: int | None

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The function for `DataFrame.mapInArrow`. Without steps it returns rows of `CHANGES`, otherwise pieces."""
        if self.shape.steps:
            yield from self._woken()
        shape, own = self.shape, self.shape.inputs[self.index]
        tops: dict[int, int] = {}
        read_rows = 0
        scans = [s for s in shape.circuit.scans if s.relation_id == own.relation_id]
        positions = {f.name: i for i, f in enumerate(own.schema)}
        for table in gathered(batches):
            read_rows += len(table)
            now_us = time_us(col.flat(table.column(table.num_columns - 1)).slice(0, 1))[0].as_py()
            arrays = arrow_columns(table, own.schema)
            diff = differences(table.column(table.num_columns - 2)) if own.signed else np.ones(len(table), np.int64)
            _raise(tops, len(shape.inputs), now_us)
            if own.delay_us is not None and own.time is not None:
                us = time_us(arrays[own.time])
                top = pc.max(us.filter(pc.less_equal(us, now_us + DAY_US))).as_py()
                _raise(tops, self.index, None if top is None else top - own.delay_us)
            sources = {s.id: [Delta(col.positional([arrays[positions[n]] for n in s.names]), diff)] for s in scans}
            result = run_stage(shape.circuit, 0, 0, sources, (), StageState(), EpochContext(1, Live()))
            if shape.steps:
                yield from _sent(shape, result.frames, self.ids)
            else:
                rows = list(_rows(result, {"input_rows": len(table)}))
                yield _encoded(rows, Stage.columns)
        if shape.steps and read_rows:
            yield pieces_batch(self.ids[:1], _FIGURES, [json.dumps({"input_rows": read_rows}).encode()])
        if shape.steps and shape.moves_time:
            for clock, top_us in tops.items():
                body = top_us.to_bytes(8, "little", signed=True)
                yield pieces_batch(self.ids, _CLOCKS - clock, [body] * len(self.ids))

    def _woken(self) -> Iterator[pa.RecordBatch]:
        """Empty pieces of the first task of a micro-batch: for each partition of the stateful operator, and for each
        bucket that must run though it has no rows.
        """
        context = TaskContext.get()
        if context is None or context.partitionId() != 0:
            return
        if self.partitions is not None:
            keys = partition_keys(partitions_of_task(context, self.partitions))
            yield pieces_batch(keys, _IDENTITY, [b""] * len(keys))
        if self.partitions is None or context.getLocalProperty("streaming.sql.batchId") in (None, "0"):
            yield pieces_batch(self.ids, _WAKE, [b""] * len(self.ids))


def _raise(tops: dict[int, int], clock: int, time: int | None) -> None:
    if time is not None:
        tops[clock] = max(time, tops.get(clock, time))


def initial_frames(circuit: Circuit, content: Mapping[str, Sequence[pa.Array]]) -> list[Frame]:
    """The frames of stage 0 for the rows of static DataFrames, by scan, and for constants."""
    sources = {i: [Delta(col.positional(list(a)), np.ones(len(a[0]), np.int64))] for i, a in content.items()}
    return run_stage(circuit, 0, 0, sources, (), StageState(), EpochContext(0, Start())).frames


def initial_pieces(circuit: Circuit, frames: Iterable[Frame]) -> dict[int, tuple[Piece, ...]]:
    """The pieces of `initial_frames` by bucket."""
    found: dict[int, list[Piece]] = {}
    for frame in frames:
        body = frame.to_bytes()
        found.setdefault(frame.bucket, []).append(Piece(frame.bucket, circuit.order[frame.channel], body))
    return {bucket: tuple(pieces) for bucket, pieces in found.items()}


@dataclass(frozen=True)
class Stage:
    """A stateful step: stage `number` of a query. initial: the pieces of static rows by bucket, for the first
    micro-batch.
    """

    columns: ClassVar[pa.Schema] = pa.schema([("frame", pa.binary()), *((name, pa.int64()) for name in QUERY_FIGURES)])
    plan: QueryShape
    number: int
    initial: Mapping[int, tuple[Piece, ...]]

    @property
    def folder(self) -> str:
        """Each step has a folder for its state."""
        return f"step-{self.number}"

    @property
    def is_last(self) -> bool:
        """Whether its output is the result."""
        return self.number == self.plan.steps

    def run(self, bucket: int, pieces: Sequence[Piece], store: Store) -> Made:
        """Pieces for the next step, or rows of `QUERY_CHANGES`."""
        circuit, before = opened(self.plan, lambda: self.plan.circuit, store)
        if before.first:
            pieces = [*pieces, *self.initial.get(bucket, ())]
        marks = before.watermarks
        for piece in pieces:
            if piece.channel <= _CLOCKS:
                name = self.plan.clock(_CLOCKS - piece.channel)
                top_us = int.from_bytes(piece.body, "little", signed=True)
                marks[name] = max(top_us, marks.get(name, top_us))
        frames = [
            Frame(bucket, circuit.operators[p.channel].id, number, pa.py_buffer(p.body))
            for number, p in enumerate(pieces)
            if p.channel >= 0
        ]
        result, size = run_stored(circuit, self.number, bucket, {}, frames, store, before, marks)
        figures = self._figures(circuit, pieces, result, size)
        if self.is_last:
            yield from _rows(result, figures)
            return
        for frame in result.frames:
            yield Piece(frame.bucket, circuit.order[frame.channel], frame.to_bytes())
        yield Piece(bucket, _FIGURES, json.dumps(figures).encode())
        yield from (p for p in pieces if p.channel <= _CLOCKS)

    def _figures(
        self, circuit: Circuit, pieces: Sequence[Piece], result: StageResult, size: tuple[int, int]
    ) -> dict[str, int]:
        """The metrics of the bucket up to this stage."""
        found = dict.fromkeys(QUERY_FIGURES, 0)
        for piece in pieces:
            if piece.channel == _FIGURES:
                found.update({name: found[name] + number for name, number in json.loads(piece.body).items()})
        late = [m for i, m in result.metrics.items() if isinstance(circuit.by_id[i], LateRowFilter)]
        found["late_rows"] += sum(m.rows_in - m.rows_out for m in late)
        return {**found, "state_rows": found["state_rows"] + size[0], "state_bytes": found["state_bytes"] + size[1]}


def _rows(result: StageResult, figures: Mapping[str, int]) -> Iterator[dict[str, Any]]:
    """The rows of changes for the output of a stage."""
    for delta in result.published.values():
        for part in parts(repeated(delta)):
            yield {"frame": part, **dict.fromkeys(QUERY_FIGURES, 0)}
    yield {"frame": None, **dict.fromkeys(QUERY_FIGURES, 0), **figures}


def _sent(shape: QueryShape, frames: Sequence[Frame], ids: Sequence[int]) -> Iterator[pa.RecordBatch]:
    """Pieces of frames, in one batch for each exchange."""
    by_channel: dict[str, list[Frame]] = {}
    for frame in frames:
        by_channel.setdefault(frame.channel, []).append(frame)
    for channel, found in by_channel.items():
        bodies_of = [f.to_bytes() for f in found]
        yield pieces_batch([ids[f.bucket] for f in found], shape.circuit.order[channel], bodies_of)


@dataclass(frozen=True)
class QueryDecoder(RowDecoder):
    """The decoder of a query."""

    schema: pa.Schema
    diff: bool

    def arrays(self, delta: Delta) -> list[pa.Array]:
        return [col.flat(c) for c in delta.columns.columns]

"""A query over streaming DataFrames in Spark's tasks: stage 0 of its circuit where rows are read, and each later stage
in a stateful step, with the buckets' state in Spark's state store (`QueryBuckets`) or in files (`QueryBucketsAt`).

The steps form a chain, one for each exchange of the circuit. A piece between two steps is a frame of an exchange, the
clock of an input, or the metrics of earlier stages. A watermark is known in the buckets only, so late rows are dropped
there, as the first operator after each exchange.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from typing import Any, ClassVar, Final

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle

from watersmeet.circuit.circuit import Circuit
from watersmeet.circuit.epochs import Live, Start
from watersmeet.circuit.operators import LateRowFilter
from watersmeet.frames.buckets import (
    AHEAD_US,
    Piece,
    Store,
    bodies,
    check_identity,
    check_plan,
    opened,
    repeated,
    run_stored,
    time_us,
)
from watersmeet.frames.shapes import arrow_columns, batch_of
from watersmeet.frames.stores import Batch, LocalRuns, PathStore, SparkStore
from watersmeet.frames.tasks import differences, gathered, partitions_of_task, pieces_batch
from watersmeet.kernel.arrays import columns as col
from watersmeet.kernel.executor import EpochContext, StageResult, run_stage
from watersmeet.kernel.runs.delta import Delta
from watersmeet.kernel.runs.frames import Frame, decode
from watersmeet.kernel.runs.state import StageState
from watersmeet.objectstores import storage
from watersmeet.runtime.spark.shipping import partition_keys
from watersmeet.values.types import Schema
from watersmeet.values.watermarks import NOW

#: Channels of pieces below 0. A frame's channel is the index of its exchange in the circuit; `IDENTITY` is not used for
#: an exchange, because pieces of the identity have no body.
_WAKE: Final = -1
_FIGURES: Final = -2
_IDENTITY: Final = -3
_CLOCKS: Final = -4

#: The output of the last step, as for joins: a row for each frame of changes, and a row of metrics for each bucket.
FIGURES: Final = ("input_rows", "late_rows", "state_rows", "state_bytes")
CHANGES: Final = "frame binary, " + ", ".join(f"{name} bigint" for name in FIGURES)
_CHANGES_SCHEMA: Final = pa.schema([("frame", pa.binary()), *((name, pa.int64()) for name in FIGURES)])


@dataclass(frozen=True)
class QueryInput:
    """A streaming DataFrame of a query. relation_id: its id in the circuit. time, delay_us: see `Side`."""

    relation_id: str
    schema: Schema
    time: int | None = None
    delay_us: int | None = None
    signed: bool = False


@dataclass(frozen=True)
class QueryShape:
    """A query over streaming DataFrames."""

    what: ClassVar[str] = "query"
    call: ClassVar[str] = "sql"
    parts: ClassVar[str] = "text"
    circuit: Circuit
    inputs: tuple[QueryInput, ...]

    @property
    def buckets(self) -> int:
        """The number of buckets of each stage."""
        return self.circuit.buckets

    @property
    def steps(self) -> int:
        """The number of stateful steps; 0 for a query without state."""
        return self.circuit.last_stage

    @property
    def appends(self) -> bool:
        """Whether no row of the result can be retracted."""
        return self.circuit.sinks[0].append_only

    @cached_property
    def moves_time(self) -> bool:
        """Whether buckets must know the watermarks or the time of the micro-batch."""
        return self.circuit.is_timed or any(i.delay_us is not None for i in self.inputs)

    @cached_property
    def fingerprint(self) -> str:
        """Identifies everything that the state depends on."""
        inputs = [{**asdict(i), "schema": [f.to_json() for f in i.schema]} for i in self.inputs]
        text = json.dumps([self.circuit.fingerprint, inputs], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def clock(self, index: int) -> str:
        """The name of the number of clock `index`: that of an input, or after these the time of the micro-batch."""
        return self.inputs[index].relation_id if index < len(self.inputs) else NOW


@dataclass(frozen=True)
class Reading:
    """Runs stage 0 on the rows of one input. The last column of the rows is the time of the micro-batch; the previous
    one may be their diff.

    ids: the key of each bucket in Spark. partitions: see `Encoder`. first: whether it is the first input of the query,
    which wakes all buckets.
    """

    shape: QueryShape
    index: int
    ids: tuple[int, ...]
    partitions: int | None
    first: bool

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The function for `DataFrame.mapInArrow`. Without steps it returns rows of `CHANGES`, otherwise pieces."""
        if self.shape.steps and self.first:
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
                top = pc.max(us.filter(pc.less_equal(us, now_us + AHEAD_US))).as_py()
                _raise(tops, self.index, None if top is None else top - own.delay_us)
            sources = {s.id: [Delta(col.positional([arrays[positions[n]] for n in s.names]), diff)] for s in scans}
            result = run_stage(shape.circuit, 0, 0, sources, (), StageState(), EpochContext(1, Live()))
            if shape.steps:
                yield from _sent(shape, result.frames, self.ids)
            else:
                yield from _changed(result, {"input_rows": len(table)})
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
        body = memoryview(frame.body).tobytes()
        found.setdefault(frame.bucket, []).append(Piece(frame.bucket, circuit.order[frame.channel], body))
    return {bucket: tuple(pieces) for bucket, pieces in found.items()}


@dataclass(frozen=True)
class Stage:
    """A stateful step: stage `number` of a query. initial: the pieces of static rows by bucket, for the first
    micro-batch.
    """

    shape: QueryShape
    number: int
    initial: Mapping[int, tuple[Piece, ...]]

    @property
    def is_last(self) -> bool:
        """Whether its output is the result."""
        return self.number == self.shape.steps

    def run(self, bucket: int, pieces: Sequence[Piece], store: Store) -> Iterator[Piece | dict[str, Any]]:
        """Runs one micro-batch of a bucket: pieces for the next step, or rows of `CHANGES`. When the first one is
        returned, the store has the new state.
        """
        circuit, before = opened(self.shape, lambda: self.shape.circuit, store)
        if before.first:
            pieces = [*pieces, *self.initial.get(bucket, ())]
        marks = before.watermarks
        for piece in pieces:
            if piece.channel <= _CLOCKS:
                name = self.shape.clock(_CLOCKS - piece.channel)
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
            yield Piece(frame.bucket, circuit.order[frame.channel], memoryview(frame.body).tobytes())
        yield Piece(bucket, _FIGURES, json.dumps(figures).encode())
        yield from (p for p in pieces if p.channel <= _CLOCKS)

    def _figures(
        self, circuit: Circuit, pieces: Sequence[Piece], result: StageResult, size: tuple[int, int]
    ) -> dict[str, int]:
        """The metrics of the bucket up to this stage."""
        found = dict.fromkeys(FIGURES, 0)
        for piece in pieces:
            if piece.channel == _FIGURES:
                found.update({name: found[name] + number for name, number in json.loads(piece.body).items()})
        late = [result.metrics[o.id] for o in circuit.in_stage(self.number) if isinstance(o, LateRowFilter)]
        found["late_rows"] += sum(m.rows_in - m.rows_out for m in late)
        return {**found, "state_rows": found["state_rows"] + size[0], "state_bytes": found["state_bytes"] + size[1]}


def _rows(result: StageResult, figures: Mapping[str, int]) -> Iterator[dict[str, Any]]:
    """The rows of `CHANGES` for the output of a stage."""
    for delta in result.published.values():
        for body in bodies(repeated(delta)):
            yield {"frame": body, **dict.fromkeys(FIGURES, 0)}
    yield {"frame": None, **dict.fromkeys(FIGURES, 0), **figures}


def _changed(result: StageResult, figures: Mapping[str, int]) -> Iterator[pa.RecordBatch]:
    yield pa.RecordBatch.from_pylist(list(_rows(result, figures)), _CHANGES_SCHEMA)


def _sent(shape: QueryShape, frames: Sequence[Frame], ids: Sequence[int]) -> Iterator[pa.RecordBatch]:
    """Pieces of frames, in one batch for each exchange."""
    by_channel: dict[str, list[Frame]] = {}
    for frame in frames:
        by_channel.setdefault(frame.channel, []).append(frame)
    for channel, found in by_channel.items():
        bodies_of = [memoryview(f.body).tobytes() for f in found]
        yield pieces_batch([ids[f.bucket] for f in found], shape.circuit.order[channel], bodies_of)


class QueryBuckets(StatefulProcessor):  # type: ignore[misc]
    """Runs each bucket of a stage on its pieces, with the state in Spark's state store."""

    def __init__(self, stage: Stage, ids: tuple[int, ...]) -> None:
        """ids: the key of each bucket in Spark."""
        self._stage = stage
        self._ids = ids
        self._numbers = {key: number for number, key in enumerate(ids)}

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._texts = handle.getMapState("texts", "name string", "text string")
        self._chunks = handle.getMapState("chunks", "run string, number int", "body binary")

    def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any) -> Iterator[pd.DataFrame]:  # noqa: N802, N803, ARG002
        store = SparkStore(self._texts, self._chunks, LocalRuns.of_worker())
        bucket = self._numbers.get(int(key[0]))
        if bucket is None:  # the key of this partition, before all buckets
            check_identity(self._stage.shape, store)
            return
        pieces = [
            Piece(bucket, int(channel), bytes(body))
            for frame in rows
            for channel, body in zip(frame["channel"], frame["body"], strict=True)
        ]
        for made in self._stage.run(bucket, pieces, store):
            if isinstance(made, Piece):
                row: dict[str, Any] = {"bucket": self._ids[made.bucket], "channel": made.channel, "body": made.body}
                yield pd.DataFrame([row])
            else:
                yield pd.DataFrame([made], columns=_CHANGES_SCHEMA.names)

    def close(self) -> None:
        pass


@dataclass(frozen=True)
class QueryBucketsAt:
    """Runs the buckets of a partition on their pieces, with the state in files at `url`."""

    stage: Stage
    url: str

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The function for `DataFrame.mapInArrow`. Every bucket gets a piece in every micro-batch."""
        pieces: dict[int, list[Piece]] = {}
        for batch in batches:
            for bucket, channel, body in zip(*batch.to_pydict().values(), strict=True):
                pieces.setdefault(bucket, []).append(Piece(bucket, channel, body))
        if not pieces:
            return
        path, batch_of_task = storage.path_at(self.url) / f"stage-{self.stage.number}", Batch.of_task()
        for bucket, found in pieces.items():
            store = PathStore(path, batch_of_task, bucket, partial(check_plan, self.stage.shape))
            made = list(self.stage.run(bucket, found, store))
            store.commit()
            sent = [m for m in made if isinstance(m, Piece)]
            for channel in dict.fromkeys(p.channel for p in sent):
                own = [p for p in sent if p.channel == channel]
                yield pieces_batch([p.bucket for p in own], channel, [p.body for p in own])
            rows = [m for m in made if not isinstance(m, Piece)]
            if rows:
                yield pa.RecordBatch.from_pylist(rows, _CHANGES_SCHEMA)


@dataclass(frozen=True)
class QueryDecoder:
    """Converts frames of changes to rows of the result. diff: whether the rows have a last column of +1 and -1."""

    schema: pa.Schema
    diff: bool

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The function for `DataFrame.mapInArrow`."""
        for batch in batches:
            for body in batch.column(0):
                if body.is_valid:
                    delta = decode(body.as_buffer())
                    arrays = [col.flat(c) for c in delta.columns.columns]
                    yield batch_of([*arrays, *([pa.array(delta.diff).cast(pa.int32())] * self.diff)], self.schema)

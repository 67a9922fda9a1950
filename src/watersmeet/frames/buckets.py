"""Runs one bucket in one micro-batch: its pieces, its changes, its state in a store. Independent of Spark.

A piece is an Arrow frame of rows, or a clock: the greatest time of a side.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, ClassVar, Final, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.circuit.circuit import Circuit
from watersmeet.circuit.epochs import Live, Start
from watersmeet.circuit.operators import Exchange
from watersmeet.errors import Error, error
from watersmeet.frames.circuits import JOINED, compile_join
from watersmeet.frames.shapes import SIDES, JoinShape, Newest, Side
from watersmeet.kernel.arrays import columns as col
from watersmeet.kernel.arrays.hashing import order_keys
from watersmeet.kernel.executor import EpochContext, StageResult, run_stage
from watersmeet.kernel.runs.delta import Delta, Diffs, consolidate
from watersmeet.kernel.runs.frames import Frame, decode, send
from watersmeet.kernel.runs.state import BlobStore, StageState, StateManifest
from watersmeet.system.blobs import BlobRef, Pieces
from watersmeet.values.serialization import from_json, to_json
from watersmeet.values.types import Schema

#: The channels: the rows of a side, and its clock.
ROWS: Final = (0, 1)

CLOCK: Final = (2, 3)

#: The channel of empty pieces, for which a task compares the checkpoint's join with its own.
IDENTITY: Final = 4

DAY_US: Final = 24 * 3600 * 1_000_000

#: Rows whose times are as far as this after the start of their micro-batch's date, or further, are kept, but don't move
#: the watermark. (The date is that of the session's time zone.)
AHEAD_US: Final = 3 * DAY_US


@dataclass(frozen=True)
class Piece:
    """The rows or the clock from one task to one bucket on one channel."""

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
    """Divides the rows of one task of one side into pieces by bucket. At the end each bucket receives the task's
    clock.
    """

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
        """The columns that a task provides; the window is added by `complete`."""
        schema = self._side.schema
        return schema if self._window_us is None else schema[:-1]

    def cut(self, arrays: Sequence[pa.Array], limit_us: int | None, diff: Diffs | None = None) -> Iterator[Piece]:
        """The pieces of some rows. limit_us: the time above which times don't move the clock. diff: all 1 by
        default.
        """
        columns = self.complete(arrays)
        if self._side.delay_us is not None and self._side.time is not None:
            self._see(columns[self._side.time], limit_us)
        delta = Delta(col.positional(columns), np.ones(len(columns[0]), np.int64) if diff is None else diff)
        for frame in send(self._exchange, delta, self._buckets, 0):
            yield Piece(frame.bucket, ROWS[self._index], frame.to_bytes())

    def complete(self, arrays: Sequence[pa.Array]) -> list[pa.Array]:
        """The side's columns, with the start of the window."""
        if self._window_us is None or self._side.time is None:
            return list(arrays)
        return [*arrays, window_starts(arrays[self._side.time], self._window_us)]

    def clocks(self) -> Iterator[Piece]:
        """The greatest time of all rows so far, for every bucket; nothing if there were no rows."""
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
    """The greatest time of a side over all tasks, in microseconds."""
    return max(
        (int.from_bytes(p.body, "little", signed=True) for p in pieces if p.channel == CLOCK[index]), default=None
    )


def parts(delta: Delta, most_bytes: int = 8 << 20) -> Iterator[Delta]:
    """The changes in parts of about `most_bytes`."""
    step = max(1, int(delta.num_rows * most_bytes / max(1, delta.columns.nbytes)))
    for start in range(0, delta.num_rows, step):
        yield Delta(delta.columns.slice(start, step), delta.diff[start : start + step])


#: The version of a bucket's manifest and plan.
FORMAT: Final = 3


#: The texts of a bucket: its circuit, and its state after the last micro-batch.
PLAN: Final = "plan"
MANIFEST: Final = "manifest"


class Store(BlobStore, Protocol):
    """The state of one bucket. A run may be added again under the same name, which depends on its content."""

    def text(self, name: str) -> str | None:
        """The stored text `name` (PLAN, MANIFEST); None for a new bucket."""
        ...

    def keep_text(self, name: str, text: str) -> None:
        """Stores the text `name`."""
        ...

    def add(self, blob: Pieces, rows: int) -> BlobRef:
        """Stores a run."""
        ...

    def remove(self, ref: BlobRef) -> None:
        """Forgets a run."""
        ...


@dataclass(frozen=True)
class Step:
    """The result of a micro-batch. rows, late: the numbers of received and of late rows by side. state: (rows, bytes)
    of the state afterwards. watermarks: the existing watermarks by side, in microseconds.
    """

    delta: Delta
    rows: tuple[int, int]
    late: tuple[int, int]
    state: tuple[int, int]
    watermarks: Mapping[str, int]


def run_bucket(shape: JoinShape, bucket: int, pieces: Sequence[Piece], store: Store) -> Step:
    """Runs one micro-batch of one bucket. When it returns, the store has the new state.

    The result never depends on the order of the pieces. Raises STATE_MISMATCH if the state belongs to another join.
    """
    circuit, before = opened(shape, partial(compile_join, shape), store)
    marks = before.watermarks
    sources: dict[str, list[Delta]] = {}
    rows, late = [0, 0], [0, 0]
    for index, scan in enumerate(_scans(circuit)):
        delta = _received(shape, index, pieces)
        rows[index] = delta.num_rows
        delta = _without_late_rows(shape, index, delta, marks.get(SIDES[index]))
        late[index] = rows[index] - delta.num_rows
        sources[scan] = [_numbered(shape, delta) if index == 1 and isinstance(shape.match, Newest) else delta]
    marks = _advanced(shape, marks, pieces)
    result, size = run_stored(circuit, 0, bucket, sources, (), store, before, marks)
    delta = result.published.get(JOINED) or Delta.none(circuit.sinks[0].schema)
    return Step(delta, (rows[0], rows[1]), (late[0], late[1]), size, marks)


@dataclass(frozen=True)
class Stored:
    """A bucket's manifest before a micro-batch. first: whether it has none, because this is the first one."""

    manifest: Mapping[str, Any]
    first: bool

    @property
    def watermarks(self) -> dict[str, int]:
        """The watermarks after the previous micro-batch, in microseconds."""
        return dict(self.manifest.get("watermarks", {}))


def run_stored(
    circuit: Circuit,
    stage: int,
    bucket: int,
    sources: Mapping[str, Sequence[Delta]],
    frames: Sequence[Frame],
    store: Store,
    before: Stored,
    marks: Mapping[str, int],
) -> tuple[StageResult, tuple[int, int]]:
    """Runs a stage over the stored state of a bucket, and stores its new state. Returns also the rows and bytes of it.

    marks: the watermarks including this micro-batch.
    """
    epoch = before.manifest.get("epoch", -1) + 1
    kept = before.manifest.get("state")
    state = StageState(None if kept is None else StateManifest.from_json(kept), store)
    mode = Start() if before.first else Live()
    context = EpochContext(epoch, mode, watermarks=marks, before=before.watermarks)
    result = run_stage(circuit, stage, bucket, sources, frames, state, context)
    new = state.persist(store.add)
    for ref in state.retired():
        store.remove(ref)
    text = json.dumps({"epoch": epoch, "watermarks": dict(marks), "state": new.to_json()}, separators=(",", ":"))
    store.keep_text(MANIFEST, text)
    sizes = [state.size(o) for o in state.operators]
    return result, (sum(s[0] for s in sizes), sum(s[1] for s in sizes))


def repeated(delta: Delta) -> Delta:
    """The changes with diffs of 1 and -1 only."""
    if bool((np.abs(delta.diff) == 1).all()):
        return delta
    positions = np.repeat(np.arange(delta.num_rows), np.abs(delta.diff))
    return Delta(col.gather_table(delta.columns, positions), np.sign(delta.diff[positions]))


class Plan(Protocol):
    """A join or a query with state. what: "join" or "query". call: the function that makes it. parts: what it consists
    of, in messages.
    """

    what: ClassVar[str]
    call: ClassVar[str]
    parts: ClassVar[str]

    @property
    def buckets(self) -> int:
        """The number of buckets."""
        ...

    @property
    def fingerprint(self) -> str:
        """A hash of everything else that the state depends on."""
        ...


#: Spark's setting for workers whose reports of errors leave causes out.
_SHORT_REPORTS: Final = "SPARK_SIMPLIFIED_TRACEBACK"


@contextmanager
def shown_first() -> Iterator[None]:
    """Makes an error of the block the first lines of its report in Spark. Python reports the cause of an error first;
    here it is a copy of the error, which has no traceback.
    """
    try:
        yield
    except Error as err:
        os.environ.pop(_SHORT_REPORTS, None)
        raise err from error(err.condition, err.message, detail=err.detail, hint=err.hint)


def check_identity(plan: Plan, store: Store) -> None:
    """Raises STATE_MISMATCH if the store's state belongs to another plan. A new store stores the plan's identity.

    Every task runs it before its buckets, with a store that belongs to no bucket: a plan with a different number of
    buckets would find none of the old buckets and start with empty state.
    """
    text = store.text(PLAN)
    if text is None:
        store.keep_text(PLAN, json.dumps(identity(plan), separators=(",", ":")))
    else:
        check_plan(plan, text)


def check_plan(plan: Plan, text: str) -> None:
    """Raises STATE_MISMATCH unless a stored text PLAN is of `plan`."""
    compare(plan, json.loads(text))


def identity(plan: Plan) -> dict[str, Any]:
    """The stored identity of a plan."""
    return {"format": FORMAT, "join": plan.fingerprint, "buckets": plan.buckets}


def compare(plan: Plan, kept: Mapping[str, Any]) -> None:
    """Raises STATE_MISMATCH unless the identity `kept` is that of `plan`."""
    if kept["format"] != FORMAT:
        raise error(
            "STATE_MISMATCH",
            f"the checkpoint's state has format {kept['format']}, this is {FORMAT}",
            hint="Start the query with a new checkpoint.",
        )
    if kept["buckets"] != plan.buckets:
        raise error(
            "STATE_MISMATCH",
            f"the checkpoint was written with buckets={kept['buckets']}, this is {plan.buckets}",
            hint=f"Call {plan.call}(…, buckets={kept['buckets']}).",
        )
    if kept["join"] != plan.fingerprint:
        raise error(
            "STATE_MISMATCH",
            f"the checkpoint was written by another {plan.what}",
            detail=f"The columns, types, {plan.parts} or options of the {plan.what} have changed.",
            hint=f"Call {plan.call} as before, or start the query with a new checkpoint.",
        )


def opened(plan: Plan, compiled: Callable[[], Circuit], store: Store) -> tuple[Circuit, Stored]:
    """The circuit of the bucket's first run, and its state before this micro-batch. compiled: returns the circuit of a
    new bucket.
    """
    text = store.text(PLAN)
    if text is None:
        circuit = compiled()
        store.keep_text(PLAN, json.dumps({**identity(plan), "circuit": to_json(circuit)}, separators=(",", ":")))
        return circuit, Stored({}, first=True)
    kept, circuit = _read_plan(text)
    compare(plan, kept)
    return circuit, Stored(json.loads(store.text(MANIFEST) or "{}"), first=False)


@lru_cache(maxsize=64)
def _read_plan(text: str) -> tuple[Mapping[str, Any], Circuit]:
    """The identity and the circuit of a stored text; buckets and micro-batches share them."""
    found = json.loads(text)
    return found, from_json(Circuit, found.pop("circuit"))


def _scans(circuit: Circuit) -> tuple[str, str]:
    by_relation = {s.relation_id: s.id for s in circuit.scans}
    return by_relation[SIDES[0]], by_relation[SIDES[1]]


def _received(shape: JoinShape, index: int, pieces: Sequence[Piece]) -> Delta:
    found = [decode(p.body) for p in pieces if p.channel == ROWS[index]]
    return Delta.concat(found) if found else Delta.none(shape.sides[index].schema)


def _without_late_rows(shape: JoinShape, index: int, delta: Delta, mark_us: int | None) -> Delta:
    """The rows that are not below the watermark of earlier micro-batches."""
    time = shape.sides[index].time
    if mark_us is None or time is None or not delta.num_rows:
        return delta
    times = delta.arrays[time]
    late = col.words(time_us(times)) < mark_us
    valid = col.validity(times)
    if valid is not None:
        late &= valid
    return delta.take(np.flatnonzero(~late)) if late.any() else delta


def _advanced(shape: JoinShape, marks: Mapping[str, int], pieces: Sequence[Piece]) -> dict[str, int]:
    """The watermarks including this micro-batch."""
    found = dict(marks)
    for index, (name, side) in enumerate(zip(SIDES, shape.sides, strict=True)):
        top = clock(pieces, index)
        if top is not None and side.delay_us is not None:
            found[name] = max(found.get(name, top - side.delay_us), top - side.delay_us)
    return found


def _numbered(shape: JoinShape, delta: Delta) -> Delta:
    """The rows with a number that determines the last of them: by the requested order, then in row order."""
    rows = consolidate(delta)
    assert isinstance(shape.match, Newest)
    number = np.arange(rows.num_rows)
    if shape.match.order is not None:
        values = rows.arrays[shape.match.order]
        keys = order_keys(values)
        valid = col.validity(values)
        words = (keys,) if valid is None else (np.where(valid, keys, 0), valid)
        number[np.lexsort((np.arange(rows.num_rows), *words))] = np.arange(rows.num_rows)
    return Delta(col.positional([*rows.arrays, pa.array(number, pa.int64())]), rows.diff)

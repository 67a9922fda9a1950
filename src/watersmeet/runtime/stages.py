"""The state, the context and the output of a stage in a bucket.

State and context are created from the job for the kernel. The output of a task is one segment, for any number of stages
and buckets, and its receipts.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from watersmeet.catalog import MOST_JOIN_ROWS
from watersmeet.circuit.circuit import Circuit, roles
from watersmeet.circuit.epochs import CLONE, COPY, Fill, Rebuild
from watersmeet.circuit.operators import Join, MultiJoin, TemporalJoin
from watersmeet.errors import Error
from watersmeet.kernel.context import mark_failing
from watersmeet.kernel.operators import STATEFUL
from watersmeet.kernel.runs.delta import Delta, Slicing, are_ones
from watersmeet.kernel.runs.frames import Frame
from watersmeet.kernel.runs.state import StageState, StateManifest
from watersmeet.kernel.runs.trace import MergeBudget
from watersmeet.objectstores.base import ObjectPath
from watersmeet.objectstores.databasefiles import Requests
from watersmeet.runtime.eventtimes import Numbers, promised
from watersmeet.runtime.plans import load_circuit
from watersmeet.runtime.taskcontract import RECEIPT, Intent, Job, Receipt
from watersmeet.store.changes import ChangeWriter, RelationChange
from watersmeet.store.layout import Layout
from watersmeet.store.segmentfiles import SegmentFiles
from watersmeet.store.segments import SegmentWriter
from watersmeet.system.blobs import BlobRef, Pieces
from watersmeet.system.process import lazy_import

if TYPE_CHECKING:
    from watersmeet.kernel import executor
else:
    executor = lazy_import("watersmeet.kernel.executor")

#: Error conditions of unreadable state, which only stop the views of that state.
_DAMAGED: Final = frozenset({"DATABASE_DAMAGED", "STATE_DAMAGED", "STATE_MISMATCH"})

#: The maximum bytes of mapped segments. They only take address space, because the system reclaims pages when it needs
#: them.
_MAPPED_BYTES: Final = 16 << 30

#: In epochs of a fill, segments that were not read for this many epochs are unmapped: they have no current state.
_MAPPED_EPOCHS: Final = 32

#: Live epochs unmap later, because unmapping a gigabyte takes 50 ms: during a fill, its pieces unmap first.
_MAPPED_LIVE_EPOCHS: Final = 48


def layout_of(job: Job) -> Layout:
    """The layout of its database."""
    return _layout_of(job.root, job.database, durable=job.durable)


def segments_of(job: Job) -> SegmentFiles:
    """The segments of its database."""
    return _segments_of(job.root, job.database)


def circuit_of(job: Job) -> Circuit:
    """The circuit of its epoch."""
    return _circuit_of(job.root, job.database, job.intent.circuit)


# Keyed by identity, because an earlier database or fork may have had the same path.
@lru_cache(maxsize=8)
def _layout_of(root: str, database: str, *, durable: bool) -> Layout:  # noqa: ARG001
    return Layout(root, durable=durable, create=False)


@lru_cache(maxsize=8)
def _segments_of(root: str, database: str) -> SegmentFiles:
    layout = _layout_of(root, database, durable=False)
    return SegmentFiles(layout.segments, path=layout.segment, max_mapped_bytes=_MAPPED_BYTES)


def forget_segments() -> None:
    """Unmap the segments that tasks in this process have read. The next task maps its own again."""
    _segments_of.cache_clear()


@lru_cache(maxsize=32)
def _circuit_of(root: str, database: str, fingerprint: str) -> Circuit:
    return load_circuit(_layout_of(root, database, durable=False), fingerprint)


def has_state(circuit: Circuit, stage: int) -> bool:
    """Whether a stage keeps state: stage 0 only if the whole circuit runs in it."""
    return stage > 0 or circuit.buckets == 1


def open_state(
    job: Job, circuit: Circuit, stage: int, bucket: int, output: TaskOutput
) -> tuple[StageState, StateManifest | None]:
    """(the state of a stage in a bucket, without operators that the epoch doesn't keep; the stored state before the
    epoch).
    """
    segments = segments_of(job)
    mode = job.intent.mode
    segments.age(job.intent.epoch, _MAPPED_EPOCHS if isinstance(mode, Fill) else _MAPPED_LIVE_EPOCHS)
    place = f"{stage}/{bucket}"
    stored = place in job.segments and has_state(circuit, stage)
    manifest = _manifest(job, circuit, segments, stage, place) if stored else None
    state = StageState(
        manifest,
        _Blobs(segments),
        budget=MergeBudget(job.merge_bytes, job.workers.piece_bytes),
        parts=segments.parts if isinstance(layout_of(job).segments, ObjectPath) else None,
        early=output.early(segments),
        direct=segments.direct if job.workers.memory_bytes is not None else None,
        stay_bytes=job.workers.stay_bytes(circuit.buckets) or 0,
    )
    kept = mode.kept_state(frozenset(circuit.by_id)).union(job.stopped)
    for operator_id in state.operators - kept:
        state.drop(operator_id)
    for operator_id in mode.clones if isinstance(mode, Fill) and mode.first else ():
        if operator_id in state.operators:
            state.clone(operator_id, CLONE + operator_id)
    return state, manifest


def epoch_context(job: Job, circuit: Circuit, numbers: Numbers) -> executor.EpochContext:
    """The context of the epoch for operators. numbers: the sources' watermarks including the epoch."""
    intent, layout = job.intent, layout_of(job)
    return executor.EpochContext(
        intent.epoch,
        intent.mode,
        watermarks=promised(numbers, intent.now_us, complete=intent.is_complete),
        before=job.watermarks,
        most_rows=_most_rows(circuit, intent),
        stopped=frozenset(job.stopped),
        slicing=Slicing(directory=None if layout.directory is None else str(layout.segments)),
        packed=job.is_sent,
        roles=roles(circuit, job.split) if job.split else {},
        complete=intent.is_complete,
    )


def _manifest(job: Job, circuit: Circuit, segments: SegmentFiles, stage: int, place: str) -> StateManifest | None:
    """The state in a bucket of a stage before the epoch; None if it is damaged and only belongs to stopped views.

    Damage stops all other views of the state.
    """
    try:
        return stored_state(segments, job.segments[place], place)
    except Error as cause:
        damaged = [o.id for o in circuit.in_stage(stage) if o.kind in STATEFUL and o.id not in job.stopped]
        if cause.condition not in _DAMAGED or (not damaged and job.intent.mode.reads_history):
            raise
        if not damaged:
            return None
        mark_failing(cause, *damaged)
        raise


def _most_rows(circuit: Circuit, intent: Intent) -> dict[str, executor.MostRows]:
    """The maximum number of rows that each join may output in the epoch; no limit in a rebuild, which outputs none."""
    if isinstance(intent.mode, Rebuild):
        return {}
    joins = [o.id for o in circuit.operators if isinstance(o, (Join, MultiJoin, TemporalJoin))]
    return {i: executor.MostRows(*intent.most_rows.get(i, (MOST_JOIN_ROWS, MOST_JOIN_ROWS))) for i in joins}


class _Blobs:
    """Reads blobs from segments, in the form that the state requires."""

    def __init__(self, segments: SegmentFiles) -> None:
        self._segments = segments

    def read(self, ref: BlobRef) -> pa.Buffer:
        return self._segments.read_blob(ref)


@cache
def own_executor() -> str:
    """The id of the executor of this process; "" outside of executors, or if it is unknown.

    Python workers can only read the id from the command line of their executor.
    """
    process = os.getppid()
    while process > 0:
        try:
            words = Path(f"/proc/{process}/cmdline").read_bytes().decode(errors="replace").split("\0")
            parent = Path(f"/proc/{process}/stat").read_bytes().rpartition(b")")[2].split()[1]
        except OSError:
            return ""
        if "--executor-id" in words[:-1]:
            return words[words.index("--executor-id") + 1]
        process = int(parent)
    return ""


#: The key of the state in a section of a segment.
_STATE: Final = "state"


def stored_state(segments: SegmentFiles, segment: str, place: str) -> StateManifest:
    """The state that a segment lists for `place`, "stage/bucket"."""
    return StateManifest.from_json(segments.read_section(segment, place)[_STATE]).within(segment)


def section_of(state: StateManifest) -> dict[str, Any]:
    """The section of a segment that lists a state."""
    return {_STATE: state.to_json()}


class TaskOutput:
    """Collects the output of a task and the receipt of each stage and bucket. `finish` writes the segment."""

    def __init__(self, writer: SegmentWriter) -> None:
        self._writer = writer
        self._sections: dict[str, dict[str, Any]] = {}
        self._receipts: list[tuple[int, Receipt]] = []

    def add_change(self, pieces: Iterable[Delta], names: Sequence[str]) -> RelationChange | None:
        """Write the change of a relation with these column names.

        The result is for `add_receipt`. Without rows, writes nothing and returns None.
        """
        blobs = ChangeWriter(self._writer, unread=True)
        for piece in pieces:
            blobs.add(piece.columns.rename_columns(names), None if are_ones(piece.diff) else piece.diff)
        change = blobs.finish()
        return change if change.blobs else None

    def add_state(self, place: str, state: StageState, before: StateManifest | None) -> dict[str, int] | None:
        """Write the state of `place` ("stage/bucket").

        Returns for each operator the growth of its state in bytes. If the state equals `before`, writes nothing and
        returns None.
        """
        new = state.persist(self._writer.add)
        if new == before:
            return None
        self._sections[place] = section_of(new)
        return _grown(StateManifest({}) if before is None else before, new)

    def add_receipt(self, receipt: Receipt, bucket: int) -> None:
        """Add the receipt of a stage in a bucket. bucket: the destination of its frame."""
        self._receipts.append((bucket, receipt))

    def early(self, segments: SegmentFiles) -> EarlyBlobs:
        """Storage for large runs while the task continues. segments: those of the same directory."""
        return EarlyBlobs(self._writer, segments)

    def finish(self, requests: Requests) -> list[Frame]:
        """Write the segment, unless it would be empty. Returns the receipts as frames. requests: added to the first
        receipt.
        """
        segment = self._writer.finish(self._sections)
        frames = []
        for number, (bucket, receipt) in enumerate(self._receipts):
            made = replace(
                receipt,
                segment=segment if f"{receipt.stage}/{receipt.bucket}" in self._sections else None,
                relations={i: change.within(segment) for i, change in receipt.relations.items()},
                executor=own_executor(),
            )
            if not number:
                made = replace(
                    made,
                    requests=requests.count,
                    cache_hits=requests.hits,
                    cache_misses=requests.misses,
                    fetched_bytes=requests.fetched_bytes,
                )
            frames.append(Frame(bucket, RECEIPT, receipt.bucket, made.to_bytes()))
        return frames


class EarlyBlobs:
    """See `kernel.runs.state.Early`."""

    def __init__(self, writer: SegmentWriter, segments: SegmentFiles) -> None:
        self.least_bytes = writer.own_file_bytes
        self._writer = writer
        self._segments = segments

    def add(self, blob: Pieces, rows: int) -> BlobRef:
        """Store `blob`, now or soon, and return its reference. The state keeps the run that contains the blob."""
        return self._writer.add(blob, rows, held=True)

    def read(self, ref: BlobRef) -> pa.Buffer:
        """The bytes of a stored blob, mapped; waits until it is written."""
        self._writer.wait()
        return self._segments.read_blob(ref)

    def drop(self, refs: Iterable[BlobRef]) -> None:
        """Delete stored blobs to which the epoch will not refer."""
        for ref in refs:
            self._writer.drop(ref)


def held_bytes(manifest: StateManifest) -> dict[str, int]:
    """For each operator, the bytes of its state, without those for a view that is being filled."""
    own = [o for o in manifest.operators if not o.startswith((COPY, CLONE))]
    return {o: sum(r.size_bytes for r in manifest.refs_of(o)) for o in own}


def _grown(before: StateManifest, now: StateManifest) -> dict[str, int]:
    """For each operator whose state changed in size, the change in bytes."""
    grown = held_bytes(now)
    for operator_id, size in held_bytes(before).items():
        grown[operator_id] = grown.get(operator_id, 0) - size
    return {i: size for i, size in grown.items() if size}

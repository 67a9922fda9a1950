"""The state and the context of a stage in a bucket, created from the job for the kernel."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

import pyarrow as pa

from watersmeet.catalog import MOST_JOIN_ROWS
from watersmeet.circuit.circuit import Circuit, roles
from watersmeet.circuit.epochs import Rebuild
from watersmeet.circuit.operators import Join, MultiJoin, TemporalJoin
from watersmeet.errors import Error
from watersmeet.kernel.context import mark_failing
from watersmeet.kernel.executor import EpochContext, MostRows
from watersmeet.kernel.operators import STATEFUL
from watersmeet.kernel.runs.delta import Slicing
from watersmeet.kernel.runs.state import StageState, StateManifest
from watersmeet.kernel.runs.trace import MergeBudget
from watersmeet.objectstores.base import ObjectPath
from watersmeet.runtime.eventtimes import Numbers, promised
from watersmeet.runtime.output import TaskOutput, stored_state
from watersmeet.runtime.plans import load_circuit
from watersmeet.runtime.taskcontract import Intent, Job
from watersmeet.store.layout import Layout
from watersmeet.store.segmentfiles import SegmentFiles
from watersmeet.system.blobs import BlobRef

#: Error conditions of unreadable state, which only stop the views of that state.
_DAMAGED: Final = frozenset({"DATABASE_DAMAGED", "STATE_DAMAGED", "STATE_MISMATCH"})

#: The maximum bytes of mapped segments. They only take address space, because the system reclaims pages when it needs
#: them.
_MAPPED_BYTES: Final = 16 << 30

#: Segments that were not read for this many epochs are unmapped, because they have no current state.
_MAPPED_EPOCHS: Final = 32


def layout_of(job: Job) -> Layout:
    """The layout of its database."""
    return _layout_of(job.root, job.database, durable=job.durable)


def segments_of(job: Job) -> SegmentFiles:
    """The segments of its database."""
    return _segments_of(job.root, job.database)


def circuit_of(job: Job) -> Circuit:
    """The circuit of its epoch."""
    return _circuit_of(job.root, job.database, job.intent.circuit)


# Keyed by id, because an earlier database may have had the same path.
@lru_cache(maxsize=8)
def _layout_of(root: str, database: str, *, durable: bool) -> Layout:  # noqa: ARG001
    return Layout(root, durable=durable, create=False)


@lru_cache(maxsize=8)
def _segments_of(root: str, database: str) -> SegmentFiles:
    layout = _layout_of(root, database, durable=False)
    return SegmentFiles(layout.segments, path=layout.segment, max_mapped_bytes=_MAPPED_BYTES)


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
    segments.age(job.intent.epoch, _MAPPED_EPOCHS)
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
    kept = job.intent.mode.kept_state(frozenset(circuit.by_id)).union(job.stopped)
    for operator_id in state.operators - kept:
        state.drop(operator_id)
    return state, manifest


def epoch_context(job: Job, circuit: Circuit, numbers: Numbers) -> EpochContext:
    """The context of the epoch for operators. numbers: the sources' watermarks including the epoch."""
    intent, layout = job.intent, layout_of(job)
    return EpochContext(
        intent.epoch,
        intent.mode,
        watermarks=promised(numbers, intent.time_us, complete=intent.is_complete),
        before=job.watermarks,
        most_rows=_most_rows(circuit, intent),
        stopped=frozenset(job.stopped),
        slicing=Slicing(directory=None if layout.directory is None else str(layout.segments)),
        packed=job.is_sent,
        roles=roles(circuit, job.split) if job.split else {},
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


def _most_rows(circuit: Circuit, intent: Intent) -> dict[str, MostRows]:
    """The maximum number of rows that each join may output in the epoch; no limit in a rebuild, which outputs none."""
    if isinstance(intent.mode, Rebuild):
        return {}
    joins = [o.id for o in circuit.operators if isinstance(o, (Join, MultiJoin, TemporalJoin))]
    return {i: MostRows(*intent.most_rows.get(i, (MOST_JOIN_ROWS, MOST_JOIN_ROWS))) for i in joins}


class _Blobs:
    """Reads blobs from segments, in the form that the state requires."""

    def __init__(self, segments: SegmentFiles) -> None:
        self._segments = segments

    def read(self, ref: BlobRef) -> pa.Buffer:
        return self._segments.read_blob(ref)

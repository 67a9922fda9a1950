"""What one task of an epoch does: read, run one stage in one bucket, write one pack, tell what it did.

Tasks run anywhere (in a worker or in this process) and know only the database's directory and the job. They write files
that nothing refers to yet; the epoch's commit makes them count.

Updates that keep values of a row that is not there: dead letters that only the bucket of the row can tell.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, field, replace
from functools import lru_cache
from typing import Final

import pyarrow as pa

from watersmeet.catalog import MOST_JOIN_ROWS
from watersmeet.circuit.circuit import Circuit, roles
from watersmeet.circuit.epochs import Rebuild
from watersmeet.circuit.operators import SEQ_ROW_BITS, Join, MultiJoin, Operator, Scan, TemporalJoin, Upsert
from watersmeet.connectors.base.deadletters import DeadLetterWriter
from watersmeet.errors import Error
from watersmeet.kernel.context import mark_failing
from watersmeet.kernel.executor import EpochContext, MostRows, run_stage
from watersmeet.kernel.metrics import Orphan
from watersmeet.kernel.operators import STATEFUL
from watersmeet.kernel.runs.delta import Delta, Slicing
from watersmeet.kernel.runs.frames import Frame
from watersmeet.kernel.runs.state import StageState, StateManifest
from watersmeet.kernel.runs.trace import MERGE_BYTES, MergeBudget
from watersmeet.objectstores import databasefiles
from watersmeet.objectstores.base import ObjectPath
from watersmeet.runtime.eventtimes import Numbers, promised, raised, risen
from watersmeet.runtime.output import TaskOutput, stored_state
from watersmeet.runtime.plans import load_circuit
from watersmeet.runtime.slices import count_dead, read_slices, set_row_aside
from watersmeet.runtime.taskcontract import CONTROL, RECEIPT, InputSpec, Intent, Receipt, SourceCounts
from watersmeet.runtime.workers import Workers
from watersmeet.store.layout import Layout
from watersmeet.store.manifests import FailedPart, OperatorCounts, RelationChange
from watersmeet.store.packfiles import PackFiles
from watersmeet.store.packs import PackWriter, epoch_prefix
from watersmeet.system.blobs import BlobRef
from watersmeet.values import serialization
from watersmeet.values.slices import Slice


def set_orphans_aside(
    layout: Layout,
    intent: Intent,
    circuit: Circuit,
    stage: int,
    bucket: int,
    orphans: Mapping[str, Sequence[Orphan]],
) -> dict[str, SourceCounts]:
    """Writes the orphans of a stage in a bucket, by upsert, to the dead letters of their relations, and counts them.

    SOURCE_STOPPED if nothing of the source may be set aside. When history is read again, they were set aside before.
    """
    found: dict[str, SourceCounts] = {}
    if intent.mode.reads_history:
        return found
    pieces = {(p.relation, p.seq): p for p in intent.slices} if orphans else {}
    for op in circuit.in_stage(stage):
        if not isinstance(op, Upsert) or not op.partial:
            continue
        scan = _scan(op, circuit)
        with DeadLetterWriter(layout.dead(scan.relation_id), intent.epoch, bucket=bucket) as dead:
            for orphan in sorted(orphans.get(op.id, ()), key=lambda o: o.seq):
                piece = pieces.get((scan.relation_id, orphan.seq >> SEQ_ROW_BITS))
                set_row_aside(dead, piece, orphan.seq & ((1 << SEQ_ROW_BITS) - 1), _reason(op, scan, orphan))
            if dead.count:
                counts = found[scan.relation_id] = SourceCounts()
                count_dead(dead, scan.relation_id, intent.specs.get(scan.relation_id, InputSpec()), counts)
    return found


def _scan(op: Operator, circuit: Circuit) -> Scan:
    """Whose changes the upsert takes."""
    while not isinstance(op, Scan):
        op = circuit.by_id[op.inputs[0]]
    return op


def _reason(op: Upsert, scan: Scan, orphan: Orphan) -> str:
    columns = ", ".join(f'"{scan.names[i]}"' for i in orphan.kept)
    key = ", ".join(f"{scan.names[k]} = {v}" for k, v in zip(op.keys, orphan.key, strict=True))
    return f"kept: the value of {columns} did not change, but there is no row with {key}"


#: Conditions of state that can't be read: only the views whose state it is stop.
_DAMAGED: Final = frozenset({"DATABASE_DAMAGED", "STATE_DAMAGED", "STATE_MISMATCH"})

#: So much of the packs stays mapped, in address space: the machine takes pages back when it needs them.
_MAPPED_BYTES: Final = 16 << 30

#: And only those that were read in so many epochs: what left the state is not to stay in memory.
_MAPPED_EPOCHS: Final = 32


def prepare() -> None:
    """Makes what reads jobs and circuits and writes receipts, for all workers that are forked from this process."""
    serialization.prepare(read=(Job, Circuit), written=(Circuit, Receipt))


@dataclass(frozen=True)
class Job:
    """One epoch as the tasks see it.

    database: its id. packs: of each "stage/bucket", the pack with the state before the epoch. watermarks: the sources'
    numbers before it. writer: whose epoch it is, as in commits. stopped: operators of views that have failed since the
    epoch was planned. split: the keys that are split, by driver. merge_bytes: how much each bucket of a stage merges.
    workers: who runs the tasks. is_sent: whether Spark brings the rows from stage to stage.
    """

    root: str
    database: str
    durable: bool
    intent: Intent
    packs: dict[str, str]
    watermarks: dict[str, int]
    writer: int
    stopped: tuple[str, ...] = ()
    split: dict[str, tuple[int, ...]] = field(default_factory=dict)
    merge_bytes: int = MERGE_BYTES
    workers: Workers = field(default_factory=Workers)
    is_sent: bool = False


def _layout(job: Job) -> Layout:
    return _layout_of(job.root, job.database, durable=job.durable)


def _packs(job: Job) -> PackFiles:
    return _packs_of(job.root, job.database)


def _circuit(job: Job) -> Circuit:
    return _circuit_of(job.root, job.database, job.intent.circuit)


# What was at the same place may have been another database.
@lru_cache(maxsize=8)
def _layout_of(root: str, database: str, *, durable: bool) -> Layout:  # noqa: ARG001
    return Layout(root, durable=durable, create=False)


@lru_cache(maxsize=8)
def _packs_of(root: str, database: str) -> PackFiles:
    return PackFiles(_layout_of(root, database, durable=False).packs, max_mapped_bytes=_MAPPED_BYTES)


@lru_cache(maxsize=32)
def _circuit_of(root: str, database: str, fingerprint: str) -> Circuit:
    return load_circuit(_layout_of(root, database, durable=False), fingerprint)


class Beginning:
    """When something began."""

    def __init__(self) -> None:
        self.time_ns = time.time_ns()
        self._counter_ns = time.perf_counter_ns()

    @property
    def passed_ns(self) -> int:
        """How long ago that is, whatever happens to the clock."""
        return time.perf_counter_ns() - self._counter_ns


def run_sources(job: Job, task: int) -> list[Frame]:
    """Task number `task` of stage 0: reads its slices; frames for later stages, and its receipt.

    With one bucket it is the whole epoch: it has the state.
    """
    with databasefiles.counting() as requests:
        output = _output(job, 0, task)
        return [*_run_sources(job, task, output), *output.finish(requests)]


def run_bucket(job: Job, stage: int, frames: Iterable[Frame]) -> list[Frame]:
    """A stage above 0 in the bucket that the frames are for: frames for later stages, and receipts.

    Nothing happens if there are no frames.
    """
    frames = list(frames)
    with databasefiles.counting() as requests:
        output = _output(job, stage, frames[0].bucket if frames else 0)
        return [*_run_bucket(job, stage, frames, output), *output.finish(requests)]


def run_whole(job: Job) -> list[Frame]:
    """All stages in all buckets, one after the other; the receipts."""
    circuit = _circuit(job)
    with databasefiles.counting() as requests:
        output = _output(job)
        frames: list[Frame] = []
        for task in range(max(1, len(job.intent.tasks))):
            frames += _run_sources(job, task, output)
        for stage in range(1, circuit.last_stage + 1):
            by_bucket: dict[int, list[Frame]] = {}
            for frame in frames:
                by_bucket.setdefault(frame.bucket, []).append(frame)
            frames = [f for bucket in sorted(by_bucket) for f in _run_bucket(job, stage, by_bucket[bucket], output)]
        return output.finish(requests)


def _output(job: Job, *place: int) -> TaskOutput:
    """What a task writes. place: the stage and the bucket if it runs no more than these."""
    prefix = epoch_prefix(job.intent.epoch, job.writer, *place)
    return TaskOutput(PackWriter(_layout(job).packs, prefix, durable=job.durable))


def _run_sources(job: Job, task: int, output: TaskOutput) -> list[Frame]:
    began = Beginning()
    intent = job.intent
    circuit = _circuit(job)
    slices: Sequence[Slice] = intent.tasks[task] if intent.tasks else ()
    scans = [o for o in circuit.scans if intent.mode.runs(o.id)]
    stored = _readers_of_content(circuit, intent)
    read = [o for o in scans if o.id not in job.stopped]
    found = read_slices(_layout(job), _packs(job), intent, slices, [*read, *stored.values()], job.watermarks)
    sources = {o.id: found.deltas.get(o.id, []) for o in scans}
    sources |= {i: found.deltas.get(scan.id, []) for i, scan in stored.items()}
    seen = {i: c.seen.watermark_us for i, c in found.counts.items() if c.seen.watermark_us is not None}
    seen |= {name: time_us for c in found.counts.values() for name, time_us in c.clocks.items()}
    numbers = raised(risen(job.watermarks, seen), intent.live.idle, intent.live.overrides)
    frames = _run(job, circuit, 0, task, sources, found.counts, (), numbers, output, began)
    if circuit.last_stage > 0 and (circuit.is_timed or (intent.everywhere and task == 0)):
        body = json.dumps(seen).encode()
        frames += [Frame(bucket, CONTROL, task, body) for bucket in range(circuit.buckets)]
    return frames


def _run_bucket(job: Job, stage: int, frames: Iterable[Frame], output: TaskOutput) -> list[Frame]:
    began = Beginning()
    circuit = _circuit(job)
    passed: list[Frame] = []
    work: list[Frame] = []
    seen: list[dict[str, int]] = []
    buckets = set()
    for frame in frames:
        buckets.add(frame.bucket)
        if frame.channel == RECEIPT:
            passed.append(frame)
            continue
        if frame.channel == CONTROL:
            passed.append(frame)
            seen.append(json.loads(bytes(frame.body)))
        work.append(frame)
    if not work:
        return passed
    (bucket,) = buckets
    # Every task of stage 0 has told every bucket what it saw: all buckets of a stage know the same numbers.
    live = job.intent.live
    numbers = raised(risen(job.watermarks, *seen), live.idle, live.overrides)
    rows = [f for f in work if f.channel != CONTROL]
    passed += _run(job, circuit, stage, bucket, {}, {}, rows, numbers, output, began)
    return passed


def _readers_of_content(circuit: Circuit, intent: Intent) -> dict[str, Scan]:
    """For each operator for which the content of a relation stands, the scan that reads that."""
    stored = intent.mode.stored
    return {
        s.inputs[0]: Scan(
            (), s.schema, append_only=s.append_only, relation_id=s.relation_id, names=tuple(f.name for f in s.schema)
        )
        for s in circuit.sinks
        if s.inputs[0] in stored and s.relation_id == stored[s.inputs[0]].relation_id
    }


def _run(
    job: Job,
    circuit: Circuit,
    stage: int,
    bucket: int,
    sources: Mapping[str, Sequence[Delta]],
    counts: Mapping[str, SourceCounts],
    frames: Sequence[Frame],
    numbers: Numbers,
    output: TaskOutput,
    began: Beginning,
) -> list[Frame]:
    intent = job.intent
    packs = _packs(job)
    packs.age(intent.epoch, _MAPPED_EPOCHS)
    place = f"{stage}/{bucket}"
    has_state = stage > 0 or circuit.buckets == 1
    manifest = _manifest(job, circuit, packs, stage, place) if place in job.packs and has_state else None
    parts = packs.parts if isinstance(_layout(job).packs, ObjectPath) else None
    limited = job.workers.memory_bytes is not None
    state = StageState(
        manifest,
        _Blobs(packs),
        budget=MergeBudget(job.merge_bytes, job.workers.piece_bytes),
        parts=parts,
        early=output.early(packs),
        direct=packs.direct if limited else None,
        stay_bytes=job.workers.stay_bytes(circuit.buckets) or 0,
    )
    for operator_id in state.operators - intent.mode.kept_state(frozenset(circuit.by_id)):
        state.drop(operator_id)
    context = EpochContext(
        intent.epoch,
        intent.mode,
        watermarks=promised(numbers, intent.time_us, complete=intent.is_complete),
        before=job.watermarks,
        most_rows=_most_rows(circuit, intent),
        stopped=frozenset(job.stopped),
        slicing=_slicing(_layout(job)),
        narrow=job.is_sent,
        roles=roles(circuit, job.split) if job.split else {},
    )
    names = {s.relation_id: [f.name for f in s.schema] for s in circuit.sinks}
    changes: dict[str, RelationChange] = {}

    def publish(relation_id: str, pieces: Iterable[Delta]) -> None:
        if isinstance(intent.mode, Rebuild):
            for _ in pieces:
                pass
            return
        change = output.add_change(pieces, names[relation_id])
        if change is not None:
            assert relation_id not in changes, f"two sinks publish {relation_id}"
            changes[relation_id] = change

    result = run_stage(circuit, stage, bucket, sources, frames, state, context, publish)
    grown = output.add_state(place, state, manifest) if has_state else None
    read = dict(counts)
    for relation_id, found in set_orphans_aside(_layout(job), intent, circuit, stage, bucket, result.orphans).items():
        own = read.get(relation_id, SourceCounts())
        read[relation_id] = replace(own, dead=own.dead + found.dead, first_dead=own.first_dead or found.first_dead)
    receipt = Receipt(
        stage,
        bucket,
        relations=changes,
        # The sizes of state are in the packs.
        operators={
            i: OperatorCounts(m.rows_in, m.rows_out, m.expression_errors, m.made_rows, m.took_ns // 1000)
            for i, m in result.metrics.items()
        },
        sources=read,
        waiting={i: m.waits_for_us for i, m in result.metrics.items() if m.waits_for_us is not None},
        grown=grown or {},
        hottest={i: (h.rows, h.values) for i, h in result.hottest.items()},
        failures={i: tuple(FailedPart(*astuple(f)) for f in found) for i, found in result.failures.items()},
        began_ns=began.time_ns,
        took_ns=began.passed_ns,
        busiest={i: m.busiest for i, m in result.metrics.items() if m.busiest} if circuit.buckets > 1 else {},
    )
    output.tell(receipt, bucket if stage else bucket % circuit.buckets)
    return result.frames


def _manifest(job: Job, circuit: Circuit, packs: PackFiles, stage: int, place: str) -> StateManifest | None:
    """The state in a bucket of a stage before the epoch; None if it is damaged and only stopped views have a part.

    Damage stops all other views that have a part of it.
    """
    try:
        return stored_state(packs, job.packs[place], place)
    except Error as cause:
        damaged = [o.id for o in circuit.in_stage(stage) if o.kind in STATEFUL and o.id not in job.stopped]
        if cause.condition not in _DAMAGED or (not damaged and job.intent.mode.reads_history):
            raise
        if not damaged:
            return None
        mark_failing(cause, *damaged)
        raise


def _slicing(layout: Layout) -> Slicing:
    return Slicing(directory=None if layout.directory is None else str(layout.packs))


def _most_rows(circuit: Circuit, intent: Intent) -> dict[str, MostRows]:
    """By join, how many rows it may make in the epoch. State that is made anew shows nothing: it has no limit."""
    if isinstance(intent.mode, Rebuild):
        return {}
    joins = [o.id for o in circuit.operators if isinstance(o, (Join, MultiJoin, TemporalJoin))]
    return {i: MostRows(*intent.most_rows.get(i, (MOST_JOIN_ROWS, MOST_JOIN_ROWS))) for i in joins}


class _Blobs:
    """The state's view of the packs."""

    def __init__(self, packs: PackFiles) -> None:
        self._packs = packs

    def read(self, ref: BlobRef) -> pa.Buffer:
        return self._packs.read_blob(ref)

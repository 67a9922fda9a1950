"""A task of an epoch reads slices, runs a stage in a bucket, writes one segment, and returns a receipt.

Tasks run anywhere (in a worker or in this process) and have only the database's path and the job. They write files that
become valid when the epoch's commit refers to them.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, replace
from types import MappingProxyType

from watersmeet.catalog import LATE_COLUMNS
from watersmeet.circuit.circuit import Circuit
from watersmeet.circuit.epochs import Rebuild
from watersmeet.circuit.operators import Scan
from watersmeet.kernel.executor import run_stage
from watersmeet.kernel.metrics import DroppedRows
from watersmeet.kernel.runs.delta import Delta, consolidate
from watersmeet.kernel.runs.frames import Frame
from watersmeet.objectstores import databasefiles
from watersmeet.runtime.eventtimes import Numbers, raised, risen
from watersmeet.runtime.slices import late_delta, read_slices, set_orphans_aside
from watersmeet.runtime.stages import (
    TaskOutput,
    circuit_of,
    epoch_context,
    has_state,
    layout_of,
    open_state,
    segments_of,
)
from watersmeet.runtime.taskcontract import CONTROL, RECEIPT, Intent, Job, Receipt, SourceCounts
from watersmeet.store.manifests import FailedPart, OperatorCounts, RelationChange
from watersmeet.store.segments import SegmentWriter, epoch_prefix
from watersmeet.values import serialization
from watersmeet.values.slices import Slice


def prepare() -> None:
    """Prepare the serialization of jobs, circuits and receipts, for all workers forked from this process."""
    serialization.prepare(read=(Job, Circuit), written=(Circuit, Receipt))


class Beginning:
    """The start of a task."""

    def __init__(self) -> None:
        self.time_ns = time.time_ns()
        self._counter_ns = time.perf_counter_ns()

    @property
    def passed_ns(self) -> int:
        """The time since the start, independent of changes of the clock."""
        return time.perf_counter_ns() - self._counter_ns


def run_sources(job: Job, task: int) -> list[Frame]:
    """Run task number `task` of stage 0. Returns frames for later stages, and its receipt.

    With one bucket, this task is the whole epoch and has the state.
    """
    with databasefiles.counting() as requests:
        output = _output(job, 0, task)
        return [*_run_sources(job, task, output), *output.finish(requests)]


def run_bucket(job: Job, stage: int, frames: Iterable[Frame]) -> list[Frame]:
    """Run a stage above 0 in the bucket of the frames. Returns frames for later stages, and receipts; nothing without
    frames.
    """
    frames = list(frames)
    with databasefiles.counting() as requests:
        output = _output(job, stage, frames[0].bucket if frames else 0)
        return [*_run_bucket(job, stage, frames, output), *output.finish(requests)]


def run_whole(job: Job) -> list[Frame]:
    """Run all stages in all buckets, sequentially. Returns the receipts."""
    circuit = circuit_of(job)
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


def run_here(job: Job) -> list[Receipt]:
    """As `run_whole`, for a caller in this process."""
    return [Receipt.from_bytes(f.to_bytes()) for f in run_whole(job)]


def _output(job: Job, *place: int) -> TaskOutput:
    """The output of a task. place: the stage and the bucket, if the task only runs these."""
    prefix = epoch_prefix(job.intent.epoch, job.writer, *place)
    return TaskOutput(SegmentWriter(layout_of(job).segments, prefix, durable=job.durable))


def _run_sources(job: Job, task: int, output: TaskOutput) -> list[Frame]:
    began = Beginning()
    intent = job.intent
    circuit = circuit_of(job)
    slices: Sequence[Slice] = intent.tasks[task] if intent.tasks else ()
    scans = [o for o in circuit.scans if intent.mode.runs(o.id)]
    stored = _readers_of_content(circuit, intent)
    read = [o for o in scans if o.id not in job.stopped]
    found = read_slices(layout_of(job), segments_of(job), intent, slices, [*read, *stored.values()], job.watermarks)
    sources = {o.id: found.deltas.get(o.id, []) for o in scans}
    sources |= {i: found.deltas.get(scan.id, []) for i, scan in stored.items()}
    seen = {i: c.seen.watermark_us for i, c in found.counts.items() if c.seen.watermark_us is not None}
    seen |= {name: time_us for c in found.counts.values() for name, time_us in c.clocks.items()}
    numbers = _numbers(job, seen)
    late = _late_rows(intent, found.late, output)
    frames = _run(job, circuit, 0, task, sources, found.counts, (), numbers, output, began, late)
    if circuit.last_stage > 0 and (circuit.is_timed or (intent.everywhere and task == 0)):
        body = json.dumps(seen).encode()
        frames += [Frame(bucket, CONTROL, task, body) for bucket in range(circuit.buckets)]
    return frames


def _run_bucket(job: Job, stage: int, frames: Iterable[Frame], output: TaskOutput) -> list[Frame]:
    began = Beginning()
    circuit = circuit_of(job)
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
            seen.append(json.loads(frame.to_bytes()))
        work.append(frame)
    if not work:
        return passed
    (bucket,) = buckets
    # Every task of stage 0 has sent its event times to every bucket, so all buckets of a stage have the same
    # watermarks.
    numbers = _numbers(job, *seen)
    rows = [f for f in work if f.channel != CONTROL]
    passed += _run(job, circuit, stage, bucket, {}, {}, rows, numbers, output, began)
    return passed


def _numbers(job: Job, *seen: Numbers) -> dict[str, int]:
    """The sources' watermarks including the epoch. seen: those of its rows."""
    live, as_of = job.intent.live, job.intent.mode.as_of
    numbers = raised(risen(job.watermarks, *seen), live.idle, live.overrides)
    return numbers if as_of is None else raised(as_of.mixed(numbers, as_of.after), as_of.idle, as_of.overrides)


def _late_rows(intent: Intent, late: Mapping[str, Sequence[Delta]], output: TaskOutput) -> dict[str, RelationChange]:
    """The changes of the relations that keep late rows."""
    kept = {t.late: t for t in intent.event_times.values()}
    found = {}
    for relation_id, rows in late.items():
        change = output.add_change(rows, [*LATE_COLUMNS, *(c.name for c in kept[relation_id].columns)])
        if change is not None:
            found[relation_id] = change
    return found


def _late_rows_of_views(
    intent: Intent, dropped: Mapping[str, Sequence[DroppedRows]], output: TaskOutput
) -> dict[str, RelationChange]:
    """The changes of the relations that keep the late rows of views, in an order independent of that of the input."""
    found = {}
    for operator_id, rows in dropped.items():
        for kept in intent.late.get(operator_id, ()):
            if kept.counts or isinstance(intent.mode, Rebuild):
                continue
            pieces = [late_delta(r.columns.select(kept.positions), intent.now_us, r.below_us) for r in rows]
            change = output.add_change([consolidate(Delta.concat(pieces))], [*LATE_COLUMNS, *kept.columns])
            if change is not None:
                found[kept.relation_id] = change
    return found


def _readers_of_content(circuit: Circuit, intent: Intent) -> dict[str, Scan]:
    """For each operator replaced by the content of a relation, the scan of that content."""
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
    late: Mapping[str, RelationChange] = MappingProxyType({}),
) -> list[Frame]:
    intent = job.intent
    state, before = open_state(job, circuit, stage, bucket, output)
    names = {s.relation_id: [f.name for f in s.schema] for s in circuit.sinks}
    changes: dict[str, RelationChange] = dict(late)

    def publish(relation_id: str, pieces: Iterable[Delta]) -> None:
        if isinstance(intent.mode, Rebuild):
            for _ in pieces:
                pass
            return
        change = output.add_change(pieces, names[relation_id])
        if change is not None:
            assert relation_id not in changes, f"two sinks publish {relation_id}"
            changes[relation_id] = change

    result = run_stage(circuit, stage, bucket, sources, frames, state, epoch_context(job, circuit, numbers), publish)
    changes |= _late_rows_of_views(intent, result.late, output)
    grown = output.add_state(f"{stage}/{bucket}", state, before) if has_state(circuit, stage) else None
    read = dict(counts)
    for relation_id, found in set_orphans_aside(layout_of(job), intent, circuit, stage, bucket, result.orphans).items():
        own = read.get(relation_id, SourceCounts())
        read[relation_id] = replace(own, dead=own.dead + found.dead, first_dead=own.first_dead or found.first_dead)
    receipt = Receipt(
        stage,
        bucket,
        relations=changes,
        # Segments contain the sizes of state.
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
        late={i: sum(r.columns.num_rows for r in rows) for i, rows in result.late.items()},
    )
    output.add_receipt(receipt, bucket if stage else bucket % circuit.buckets)
    return result.frames

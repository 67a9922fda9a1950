"""The committer: creates the job of an epoch from the newest commit, and one commit from the receipts of its tasks."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Final, NamedTuple

from watersmeet.catalog import Catalog, LateRows, PausedQuery, Relation
from watersmeet.circuit.circuit import Circuit
from watersmeet.circuit.epochs import Fill, Rebuild, Recompute, Refresh, Rescale, SplitKeys
from watersmeet.errors import Error, error
from watersmeet.runtime.engine import Database
from watersmeet.runtime.eventtimes import Numbers, clocks, late_rows, raised, risen, waiting
from watersmeet.runtime.handover import differences, rescaled_segments, split_segments
from watersmeet.runtime.limits import Verdict, readers, stopped_operators
from watersmeet.runtime.taskcontract import Intent, Job, Receipt
from watersmeet.runtime.workers import PIECE_MERGE_BYTES, Workers, merge_bytes
from watersmeet.store.commits import Commit, stored_catalog
from watersmeet.store.manifests import (
    REBUILT,
    FailedPart,
    Metrics,
    OperatorCounts,
    Progress,
    RelationChange,
    RelationTotals,
)
from watersmeet.values.slices import SourceSlice

#: Operators without rows are listed if they took longer than this: some delete expired rows.
_MUCH_US: Final = 100
#: The maximum number of failed parts of expressions that the commit log keeps for each operator: the first ones.
_MOST_FAILURES: Final = 16


class Locality(NamedTuple):
    """The numbers of steps of an epoch that ran on the same executor as last time (local), and on another one
    (moved).
    """

    local: int = 0
    moved: int = 0


def job_of(db: Database, circuit: Circuit, intent: Intent, workers: Workers, failing: Collection[str] = ()) -> Job:
    """The job of a planned epoch that follows the newest commit. failing: operators that don't run, nor do the views
    that read them.
    """
    progress, as_of = db.log.progress(), intent.mode.as_of
    stopped = progress.failed.keys() | readers(circuit, failing)
    return Job(
        str(db.layout.root),
        db.layout.identity,
        db.layout.durable,
        intent,
        segments_before(db, intent),
        progress.watermarks if as_of is None else as_of.mixed(progress.watermarks, as_of.before),
        db.log.writer,
        stopped_operators(circuit, stopped) if stopped else (),
        progress.split,
        min(merge_bytes(), PIECE_MERGE_BYTES)
        if isinstance(intent.mode, Fill) and intent.mode.beside
        else merge_bytes(),
        workers,
    )


def segments_before(db: Database, intent: Intent) -> dict[str, str]:
    """The segment, by "stage/bucket", with the state from which the epoch's tasks start."""
    last = db.log.last_epoch()
    segments = last.segments if last else {}
    if not isinstance(intent.mode, Rebuild):
        return {k: p for k, p in segments.items() if not k.startswith(REBUILT)}
    if intent.mode.first:
        return {}
    return {k.removeprefix(REBUILT): p for k, p in segments.items() if k.startswith(REBUILT)}


def commit_epoch(
    db: Database,
    circuit: Circuit,
    intent: Intent,
    receipts: Iterable[Receipt],
    *,
    duration_us: int,
    locality: Locality | None = None,
    failures: Mapping[str, Error] = MappingProxyType({}),
) -> Commit:
    """Commit the epoch, or return its commit if it exists already. locality: that of its tasks.

    failures: for each operator that did not run, its error in an earlier attempt of the epoch.
    """
    last = db.log.last_epoch()
    newest = (last.epoch or 0) if last else 0
    if newest >= intent.epoch:
        assert last is not None
        return last
    if intent.epoch != newest + 1 and db.feed is None:  # a fork has the numbers of its main database
        raise error("INTERNAL_ERROR", f"epoch {intent.epoch} was run after epoch {newest}")
    receipts = sorted(receipts, key=lambda r: (r.stage, r.bucket))
    segments = _segments(circuit, intent, dict(last.segments) if last else {}, receipts)
    if isinstance(intent.mode, (Rescale, SplitKeys)):
        assert last is not None
        segments = _handed(db, circuit, intent.epoch, intent.mode, last)
    relations: dict[str, RelationChange] = {}
    for receipt in receipts:
        for relation_id, change in receipt.relations.items():
            relations[relation_id] = _add(relations.get(relation_id), change)
    catalog = ""
    known = db.catalog()
    if isinstance(intent.mode, Refresh):
        catalog = intent.mode.catalog
        known = stored_catalog(db.layout, catalog) if catalog else known
        relations = differences(
            db, intent.epoch, {**intent.mode.made, **_read_again(intent.mode, known)}, known.relations
        )
    before = db.log.progress()
    verdict = Verdict(db, circuit, intent, receipts, before, segments, failures)
    without = {o.relation_id for outputs in intent.late.values() for o in outputs if o.view in verdict.failed}
    relations = {i: c for i, c in relations.items() if i not in verdict.failed and i not in without}
    recomputed = _recomputed(circuit, intent, verdict)
    if recomputed:
        made = {i: relations.pop(i, RelationChange((), 0, 0)) for i in recomputed}
        relations |= differences(db, intent.epoch, made, known.relations)
    return db.log.append(
        Commit(
            "epoch",
            time_us=time.time_ns() // 1000,
            relations=relations,
            epoch=intent.epoch,
            frontier=intent.frontier,
            segments=segments,
            circuit=intent.circuit,
            catalog=catalog,
            follows=known.follows_epochs,
            progress=_progress(db, circuit, intent, receipts, before, verdict),
            metrics=replace(
                _metrics(db, circuit, intent, receipts, last.metrics if last else Metrics(), relations, recomputed),
                duration_us=duration_us,
                local=locality.local if locality else 0,
                moved=locality.moved if locality else 0,
            ),
        )
    )


def _recomputed(circuit: Circuit, intent: Intent, verdict: Verdict) -> tuple[str, ...]:
    """The views whose new content the epoch has output."""
    sinks = circuit.sinks if isinstance(intent.mode, Recompute) else ()
    return tuple(s.relation_id for s in sinks if intent.mode.begins(s.id) and s.relation_id not in verdict.failed)


def _read_again(mode: Refresh, catalog: Catalog) -> dict[str, str]:
    """The relations with late rows of views that have been filled again from history, in which nothing is late; each
    with the relation from which it gets its content, which is none.
    """
    known = catalog.relations
    again = {view for view, hidden in mode.made.items() if not isinstance(known.get(hidden), PausedQuery)}
    return {i: "" for i, r in known.items() if isinstance(r, LateRows) and r.number and r.owner in again}


def _handed(db: Database, circuit: Circuit, epoch: int, mode: Rescale | SplitKeys, last: Commit) -> dict[str, str]:
    """The segments after an epoch that moves state to other buckets."""
    if isinstance(mode, Rescale):
        return rescaled_segments(db, last, circuit, epoch, mode)
    return split_segments(db, last, circuit, epoch, mode.split)


def _segments(circuit: Circuit, intent: Intent, segments: dict[str, str], receipts: list[Receipt]) -> dict[str, str]:
    """The current segments."""
    rebuilds = isinstance(intent.mode, Rebuild)
    mark = REBUILT if rebuilds else ""
    if intent.mode.is_first or not rebuilds:
        # A rebuild that was abandoned or starts again leaves no segments.
        segments = {k: p for k, p in segments.items() if not k.startswith(REBUILT)}
    segments |= {f"{mark}{r.stage}/{r.bucket}": r.segment for r in receipts if r.segment is not None}
    if rebuilds:
        if intent.frontier.backfill is None:
            segments = {k.removeprefix(REBUILT): p for k, p in segments.items() if k.startswith(REBUILT)}
        return segments
    return {k: p for k, p in segments.items() if int(k.partition("/")[0]) <= circuit.last_stage}


def _add(before: RelationChange | None, change: RelationChange) -> RelationChange:
    if before is None:
        return change
    return RelationChange(
        before.blobs + change.blobs,
        before.inserted_rows + change.inserted_rows,
        before.deleted_rows + change.deleted_rows,
    )


def _progress(
    db: Database, circuit: Circuit, intent: Intent, receipts: list[Receipt], before: Progress, verdict: Verdict
) -> Progress:
    known = db.catalog().relations
    taken: dict[str, list[SourceSlice]] = {}
    late, left_out = Counter(before.late), Counter(before.left_out)
    if not intent.mode.reads_history:
        for piece in intent.slices:
            if isinstance(piece, SourceSlice):
                taken.setdefault(piece.relation, []).append(piece)
    for receipt in receipts:
        late.update({i: counts.seen.late for i, counts in receipt.sources.items() if intent.counts(i)})
    if not isinstance(intent.mode, Rebuild):
        for operator_id, rows in (item for receipt in receipts for item in receipt.late.items()):
            kept = (o for o in intent.late.get(operator_id, ()) if o.view not in verdict.failed)
            late.update({o.relation_id: rows for o in kept})
    left_out.update(late_rows(circuit, _summed(receipts), intent.mode.runs))
    if isinstance(intent.mode, Refresh):
        late.update({i: -late[i] for i in _read_again(intent.mode, db.catalog())})
        left_out |= Counter({view: left_out[hidden] for view, hidden in intent.mode.made.items()})
    split = intent.mode.split if isinstance(intent.mode, SplitKeys) else before.split
    return Progress(
        intent.time_us,
        _numbers(circuit, intent, receipts, before.watermarks, known),
        waiting(circuit, intent, receipts, before.waiting),
        {i: tuple(pieces) for i, pieces in taken.items()},
        verdict.held,
        verdict.failed,
        {i: n for i, n in late.items() if n and i in known},
        {i: n for i, n in left_out.items() if n and i in known},
        {side: keys for side, keys in split.items() if side in circuit.by_id},
        dict(intent.live.later),
        dict(intent.live.silent),
    )


def _summed(receipts: Iterable[Receipt]) -> dict[str, OperatorCounts]:
    """For each operator, the sums of the counts of all tasks."""
    found: dict[str, list[OperatorCounts]] = {}
    for receipt in receipts:
        for operator_id, counts in receipt.operators.items():
            found.setdefault(operator_id, []).append(counts)
    return {
        i: counts[0] if len(counts) == 1 else OperatorCounts(*map(sum, zip(*counts, strict=True)))
        for i, counts in found.items()
    }


def _metrics(
    db: Database,
    circuit: Circuit,
    intent: Intent,
    receipts: list[Receipt],
    before: Metrics,
    relations: dict[str, RelationChange],
    recomputed: Sequence[str],
) -> Metrics:
    """The metrics of the epoch. The totals exclude dropped relations and operators."""
    operators = _summed(receipts)
    known = db.catalog().relations
    totals = {i: t for i, t in before.totals.items() if i in known}
    first_dead = {i: d for i, d in before.first_dead.items() if i in known}
    errors = Counter({i: n for i, n in before.errors.items() if i in circuit.by_id})
    errors.update({i: c.expression_errors for i, c in operators.items() if c.expression_errors})
    failures = {i: parts for i, parts in before.failures.items() if i in circuit.by_id or i in known}
    for receipt in receipts:
        for operator_id, parts in receipt.failures.items():
            failures[operator_id] = _added(failures.get(operator_id, ()), parts)

    def add(relation_id: str, **counts: int) -> None:
        total = totals.get(relation_id, RelationTotals())
        totals[relation_id] = total._replace(**{name: getattr(total, name) + n for name, n in counts.items()})

    if not intent.mode.reads_history:
        for receipt in receipts:
            for relation_id, read in receipt.sources.items():
                add(relation_id, rows=read.rows, size_bytes=read.size_bytes, dead=read.dead, ahead=read.seen.ahead)
                add(relation_id, expression_errors=read.expression_errors)
                if read.failures:
                    failures[relation_id] = _added(failures.get(relation_id, ()), read.failures)
                if read.first_dead is not None:
                    first_dead.setdefault(relation_id, read.first_dead)
    for relation_id in recomputed:
        add(relation_id, recomputed=1)
    for relation_id, change in relations.items():
        add(relation_id, inserted=change.inserted_rows, deleted=change.deleted_rows)
    if not isinstance(intent.mode, Rebuild):
        for relation_id, rows_in in _rows_in(circuit, intent, operators).items():
            add(relation_id, rows_in=rows_in)
    return Metrics(
        rows=sum(c.rows for r in receipts for c in r.sources.values()),
        recomputed=tuple(recomputed),
        idle=tuple(sorted(intent.live.idle)),
        operators={i: c for i, c in operators.items() if _did_something(c)},
        busiest=_busiest(receipts),
        totals=totals,
        first_dead=first_dead,
        errors=dict(errors),
        failures=failures,
        requests=sum(r.requests for r in receipts) + db.requests.fresh(),
        cache_hits=sum(r.cache_hits for r in receipts),
        cache_misses=sum(r.cache_misses for r in receipts),
        fetched_bytes=sum(r.fetched_bytes for r in receipts),
        tasks_us=sum(r.took_ns for r in receipts) // 1000,
        operators_us=sum(c.took_us for c in operators.values()),
    )


def _added(known: tuple[FailedPart, ...], parts: tuple[FailedPart, ...]) -> tuple[FailedPart, ...]:
    """The first few parts of one operator's expressions that failed so far."""
    found = {(p.name, p.column, p.sql): p for p in known}
    for part in parts:
        key = part.name, part.column, part.sql
        if key in found:
            found[key] = found[key]._replace(rows=found[key].rows + part.rows)
        elif len(found) < _MOST_FAILURES:
            found[key] = part
    return tuple(found.values())


def _busiest(receipts: Iterable[Receipt]) -> dict[str, tuple[tuple[int, int], ...]]:
    """For each operator, the numbers of rows by key in all buckets."""
    found: dict[str, Counter[int]] = {}
    for receipt in receipts:
        for operator_id, rows in receipt.busiest.items():
            counts = found.setdefault(operator_id, Counter())
            for key, number in rows:
                counts[key] += number
    return {i: tuple(counts.most_common()) for i, counts in found.items()}


def _did_something(counts: OperatorCounts) -> bool:
    """Whether an operator had rows or took noticeable time."""
    return counts.took_us >= _MUCH_US or any(counts._replace(took_us=0))


def _numbers(
    circuit: Circuit, intent: Intent, receipts: list[Receipt], before: Numbers, known: Mapping[str, Relation]
) -> dict[str, int]:
    """The sources' watermarks, including this epoch."""
    seen = [{i: c.seen.watermark_us} for r in receipts for i, c in r.sources.items() if c.seen.watermark_us is not None]
    seen += [c.clocks for r in receipts for c in r.sources.values()]
    numbers = raised(risen(before, *seen), intent.live.idle, intent.live.overrides)
    if (as_of := intent.mode.as_of) is not None and (as_of.idle or as_of.overrides):
        moved = raised(as_of.mixed(numbers, as_of.after), as_of.idle, as_of.overrides)
        numbers |= {i: moved[i] for i in as_of.own if i in moved}
    own = {name for columns in clocks(circuit).values() for name in columns}
    return {i: n for i, n in numbers.items() if i in known or i in own}


def _rows_in(circuit: Circuit, intent: Intent, operators: dict[str, OperatorCounts]) -> dict[str, int]:
    """For each relation, the number of rows that the scans upstream of its sink read in this epoch."""
    scanned = {s.id: operators[s.id].rows_out for s in circuit.scans if s.id in operators}
    if not any(scanned.values()):
        return {}
    return {
        s.relation_id: sum(n for i, n in scanned.items() if i in circuit.below_sinks[s.relation_id])
        for s in circuit.sinks
        if intent.mode.runs(s.id)
    }

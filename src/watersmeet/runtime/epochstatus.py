"""The status of a database as of its newest epoch, from the commit and the segments that it names."""

from __future__ import annotations

import contextlib
import datetime as dt
import math
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import replace
from typing import Any, Final, NamedTuple

from watersmeet.catalog import DDL_PROGRESS, FILL_PROGRESS, Catalog, MaterializedView, Relation, is_job, job_id
from watersmeet.circuit.circuit import Circuit, Roles, Split, roles
from watersmeet.circuit.epochs import CLONE, COPY, Fill
from watersmeet.circuit.operators import Arrange
from watersmeet.errors import Error
from watersmeet.kernel.arrays.hashing import bucket_of_one
from watersmeet.kernel.operators.arrange import ROWS
from watersmeet.kernel.runs.state import StateManifest
from watersmeet.runtime.backfill import progress_of
from watersmeet.runtime.engine import Database
from watersmeet.runtime.eventtimes import inputs_of_views
from watersmeet.runtime.inputs import read_source_status
from watersmeet.runtime.plans import kept_circuit
from watersmeet.runtime.stages import held_bytes, stored_state
from watersmeet.runtime.status import HotKeyStatus, OperatorStatus, SourceStatus, Status, ViewStatus
from watersmeet.store.commits import Commit, CommitLog
from watersmeet.store.compaction import RelationSizes
from watersmeet.store.manifests import Backfill, Filling, OperatorCounts, RelationTotals, backfill_of
from watersmeet.system import secretvalues

#: The number of keys shown for an arrangement.
_SHOWN: Final = 5


def hottest_keys(
    circuit: Circuit, states: Mapping[str, StateManifest], split: Split
) -> dict[str, tuple[HotKeyStatus, ...]]:
    """For each arrangement that is large enough to be sampled, the keys with the most rows.

    states: by "stage/bucket". split: the split keys.
    """
    found = {}
    now = roles(circuit, split)
    for op in circuit.operators:
        if not isinstance(op, Arrange):
            continue
        given = now.get(op.inputs[0], Roles())
        keys: dict[int, HotKeyStatus] = {}
        for place, state in states.items():
            for ref in state.operators.get(op.id, {}).get(ROWS, ()):
                for key in () if ref.hot is None else ref.hot.found:
                    if key.hash in given.copied and int(place.partition("/")[2]) != bucket_of_one(
                        key.hash, circuit.buckets
                    ):
                        continue  # this view is a copy
                    before = 0 if key.hash not in keys else keys[key.hash].rows
                    keys[key.hash] = HotKeyStatus(key.values, before + key.rows, key.hash in given.keys)
        if keys:
            found[op.id] = tuple(sorted(keys.values(), key=lambda k: k.order)[:_SHOWN])
    return found


_NOTHING: Final = RelationTotals()


class Size(NamedTuple):
    """The size of an operator's state in all buckets. merge_debt_bytes: the part of it that waits for unfinished
    merges.
    """

    rows: int = 0
    size_bytes: int = 0
    merge_debt_bytes: int = 0


Sizes = dict[str, Size]


def epoch_status(db: Database, *, sources: Mapping[str, Mapping[str, Any]] | None = None) -> Status:
    """The status as of the newest epoch, without tables and memory; in any process.

    sources: the sources' own reports, by id; None for their last published reports, in a process without sources.
    """
    commit = db.log.last_epoch()
    head = db.log.head()
    newest = db.log.newest_transaction(head)
    if commit is None or commit.frontier is None or commit.circuit is None:
        return Status(behind=newest)
    circuit = kept_circuit(db.layout, commit.circuit)
    operators = _operators(circuit, commit, _states(db, commit))
    known = db.catalog().relations
    reported = read_source_status(db) if sources is None else sources
    return Status(
        epoch=commit.epoch or 0,
        commit=commit.number,
        transaction=commit.frontier.transaction,
        time_us=commit.time_us,
        behind=max(0, newest - commit.frontier.transaction),
        backfill=commit.frontier.backfill,
        metrics=commit.metrics,
        views=_views(circuit, commit, operators, known),
        sources=_sources(circuit, commit, db.log.read(head).rejected, known, reported),
        operators=operators,
    )


def _views(
    circuit: Circuit, commit: Commit, operators: Mapping[str, OperatorStatus], known: Mapping[str, Relation]
) -> tuple[ViewStatus, ...]:
    """The running views, then the stopped ones, which have no operators."""
    progress, metrics = commit.progress, commit.metrics
    backfill = None if commit.frontier is None else commit.frontier.backfill
    inputs = inputs_of_views(circuit)
    found = {}
    for sink in circuit.sinks:
        view_id = sink.relation_id
        if view_id in known:
            view = _sums(_view(view_id, commit, known), map(operators.__getitem__, circuit.below_sinks[view_id]))
            watermark, name = _held_back(inputs[view_id], progress.watermarks, metrics.idle, known)
            ready = backfill_of(view_id, backfill) is None
            found[view_id] = replace(view, ready=ready, watermark=watermark, held_back_by=name)
    for view_id, failure in progress.failed.items():
        if view_id in known:
            is_paused = view_id not in progress.stopped
            error = None if is_paused else failure
            found[view_id] = replace(_view(view_id, commit, known), error=error, paused=is_paused)
    return tuple(found.values())


def _view(view_id: str, commit: Commit, known: Mapping[str, Relation]) -> ViewStatus:
    """The status of a view without its operators."""
    relation, total = known[view_id], commit.metrics.totals.get(view_id, _NOTHING)
    return ViewStatus(
        view_id,
        relation.shown,
        relation.role,
        rows_in=total.rows_in,
        inserted=total.inserted,
        deleted=total.deleted,
        late=commit.progress.left_out.get(view_id, 0),
        recomputed=total.recomputed,
    )


def _sums(view: ViewStatus, operators: Iterable[OperatorStatus]) -> ViewStatus:
    kept = [o for o in operators if o.state_bytes or o.expression_errors]
    hottest = sorted((k for o in kept for k in o.hot_keys), key=lambda k: k.order)
    return replace(
        view,
        state_rows=sum(o.state_rows for o in kept),
        state_bytes=sum(o.state_bytes for o in kept),
        merge_debt_bytes=sum(o.merge_debt_bytes for o in kept),
        expression_errors=sum(o.expression_errors for o in kept),
        hot_keys=tuple(hottest),
    )


def _sources(
    circuit: Circuit,
    commit: Commit,
    rejected: Mapping[str, int],
    known: Mapping[str, Relation],
    reported: Mapping[str, Mapping[str, Any]],
) -> tuple[SourceStatus, ...]:
    progress, metrics = commit.progress, commit.metrics
    scanned = {s.relation_id for s in circuit.scans}
    found = []
    for relation_id, relation in known.items():
        if relation_id in scanned and (relation.connector or relation.event_time):
            total = metrics.totals.get(relation_id, _NOTHING)
            found.append(
                SourceStatus(
                    relation_id,
                    relation.shown,
                    secretvalues.shown(relation.connector),
                    total.rows,
                    total.size_bytes,
                    total.dead,
                    total.ahead,
                    total.expression_errors,
                    progress.late.get(relation_id, 0) + rejected.get(relation_id, 0),
                    metrics.first_dead.get(relation_id),
                    _text(progress.watermarks.get(relation_id)),
                    relation_id in metrics.idle,
                    reported=reported.get(relation_id, {}),
                )
            )
    return tuple(found)


def _held_back(
    inputs: Iterable[str], numbers: Mapping[str, int], idle: Container[str], known: Mapping[str, Relation]
) -> tuple[str | None, str | None]:
    """The event time of a view, and the name of the input that determines it; of equal inputs, one that is not idle."""
    timed = sorted(
        (numbers.get(i, -math.inf), i in idle, known[i].name) for i in inputs if i in known and known[i].event_time
    )
    if not timed:
        return None, None
    number, _, name = timed[0]
    return None if number == -math.inf else _text(int(number)), name


def _text(time_us: int | None) -> str | None:
    """A time as PostgreSQL writes it."""
    if time_us is None:
        return None
    try:
        return str(dt.datetime.fromtimestamp(0, dt.UTC).replace(tzinfo=None) + dt.timedelta(microseconds=time_us))
    except OverflowError:
        return "-infinity" if time_us < 0 else "infinity"


def state_bytes(db: Database, segments: Mapping[str, str]) -> dict[str, int]:
    """For each operator, the bytes of its state in all buckets. segments: by "stage/bucket"."""
    found: dict[str, int] = {}
    for key, segment in segments.items():
        if key[0].isdigit():
            for operator_id, size in held_bytes(stored_state(db.segments, segment, key)).items():
                found[operator_id] = found.get(operator_id, 0) + size
    return found


def replay_epochs(db: Database, fill: Fill, most_rows: int, most_bytes: int) -> int:
    """The number of epochs in which the arrangements of live views are replayed."""
    if not fill.having("replayed"):
        return 0
    found = _replayed(db, fill)
    return max(1, -(-found.rows // most_rows), -(-found.size_bytes // most_bytes))


def replayed_rows(db: Database, fill: Fill) -> int:
    """The number of rows in the arrangements of live views that a fill replays."""
    return _replayed(db, fill).rows


def stored_rows(db: Database, operators: Container[str]) -> int:
    """The number of rows in the state of some operators."""
    last = db.log.last_epoch()
    return 0 if last is None else sum(size.rows for i, size in state_sizes(db, last).items() if i in operators)


def _replayed(db: Database, fill: Fill) -> Size:
    replayed, last = fill.having("replayed"), db.log.last_epoch()
    if not replayed or last is None:
        return Size()
    sizes = [size for i, size in state_sizes(db, last).items() if i in replayed]
    return Size(sum(s.rows for s in sizes), sum(s.size_bytes for s in sizes))


def state_sizes(db: Database, commit: Commit) -> Sizes:
    """The size of the state of each operator."""
    return _sizes(_states(db, commit))


def _states(db: Database, commit: Commit) -> dict[str, StateManifest]:
    """The stored states, by "stage/bucket"."""
    found = {}
    for key, segment in commit.segments.items():
        # Retention may have deleted the segment meanwhile; the next status reads the segment that replaced it.
        with contextlib.suppress(Error):
            if key[0].isdigit():
                found[key] = stored_state(db.segments, segment, key)
    return found


def _sizes(states: Mapping[str, StateManifest]) -> Sizes:
    sizes: Sizes = {}
    for manifest in states.values():
        for state_id in manifest.operators:
            if state_id.startswith(CLONE):
                continue  # its runs are those of the operator
            operator_id = state_id.removeprefix(COPY)
            before, refs = sizes.get(operator_id, Size()), manifest.refs_of(state_id)
            sizes[operator_id] = Size(
                before.rows + sum(r.rows for r in refs),
                before.size_bytes + sum(r.size_bytes for r in refs),
                before.merge_debt_bytes + manifest.merge_debt_bytes(state_id),
            )
    return sizes


def _operators(circuit: Circuit, commit: Commit, states: Mapping[str, StateManifest]) -> dict[str, OperatorStatus]:
    sizes, hottest = _sizes(states), hottest_keys(circuit, states, commit.progress.split)
    ran, errors = commit.metrics.operators, commit.metrics.errors
    found = {}
    for o in circuit.operators:
        now, size = ran.get(o.id, OperatorCounts()), sizes.get(o.id, Size())
        found[o.id] = OperatorStatus(
            o.kind,
            circuit.stages[o.id],
            now.rows_in,
            now.rows_out,
            now.made_rows,
            now.took_us,
            size.rows,
            size.size_bytes,
            size.merge_debt_bytes,
            errors.get(o.id, 0),
            hottest.get(o.id, ()),
        )
    return found


def _jobs(log: CommitLog, catalog: Catalog) -> list[tuple[MaterializedView, Backfill | None]]:
    """The views that are being filled, each with the progress of its fill if that has begun."""
    last = log.last_epoch()
    backfill = None if last is None or last.frontier is None else last.frontier.backfill
    return [(v, backfill_of(v.id, backfill)) for v in catalog.shown if is_job(v)]


def _ddl_progress(log: CommitLog, sizes: RelationSizes, catalog: Catalog) -> list[tuple[Any, ...]]:  # noqa: ARG001
    """The rows of RisingWave's rw_ddl_progress. The time at which a fill began is unknown."""
    return [
        (
            int(job_id(view)),
            view.sql,
            "BACKGROUND" if view.background else "FOREGROUND",
            f"{100 * (0.0 if fill is None else progress_of(fill)):.2f}%",
            None,
        )
        for view, fill in _jobs(log, catalog)
    ]


def _input_progress(log: CommitLog, sizes: RelationSizes, catalog: Catalog) -> list[tuple[Any, ...]]:
    """The rows of RisingWave's rw_fragment_backfill_progress: the inputs of each view whose history is being read."""
    known, found = sizes.read(), []
    for view, fill in _jobs(log, catalog):
        if fill is None or not isinstance(fill.purpose, Filling):
            continue
        read, inputs = fill.read, catalog.upstream([view.id])
        for relation_id in fill.purpose.beside or fill.relations:
            size, is_left = known.get(relation_id), relation_id in fill.relations and not fill.round
            rows = 0 if size is None else size.rows
            done = max(0, min(read, rows)) if is_left else rows
            read -= done
            part = 100 * done / rows if rows else 100.0 * (not is_left)
            relation = catalog.relations.get(relation_id)
            if relation is not None and relation_id in inputs:
                progress = f"{part:.2f}% ({done}/{rows})"
                found.append((int(job_id(view)), int(relation_id[1:]), view.shown, relation.shown, progress))
    return found


#: The functions that collect the rows of the system relations with the progress of fills.
FILLS: Final[dict[str, Callable[[CommitLog, RelationSizes, Catalog], list[tuple[Any, ...]]]]] = {
    DDL_PROGRESS: _ddl_progress,
    FILL_PROGRESS: _input_progress,
}

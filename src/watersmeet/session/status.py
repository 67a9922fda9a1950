"""The status of the database that a session sees, the rates of its counters, and a picture of its relations."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final, Literal, NamedTuple

from watersmeet.capture.receiving import Receivers, ReceivingStatus
from watersmeet.catalog import Catalog, LateRows, MaterializedView, Relation, Sink, Table, is_job, job_id
from watersmeet.catalog.parts import RowForm
from watersmeet.database.filling import producers_of
from watersmeet.database.scans import late_between
from watersmeet.database.sessions.context import Session
from watersmeet.drawing import place, to_dot, to_svg
from watersmeet.errors import error, error_from_json
from watersmeet.expressions.casts import NO_INTEGER
from watersmeet.planner import Producers
from watersmeet.planner.explain import Failures, generated_text
from watersmeet.planner.topology import topology
from watersmeet.runtime.backfill import progress_of
from watersmeet.runtime.engine import Database
from watersmeet.runtime.epochstatus import epoch_status
from watersmeet.runtime.status import FailedExpression, MemoryStatus, SinkStatus, Status, TableStatus, ViewStatus
from watersmeet.sinkwriters.writers import SinkWriters
from watersmeet.store.commits import CommitLog
from watersmeet.store.compaction import RelationSize
from watersmeet.store.layout import has_writer
from watersmeet.store.manifests import Backfill, FailedPart, RelationTotals, backfill_of
from watersmeet.store.positions import StatusFile

SINK_FORMS: Final[dict[str, RowForm]] = {"append-only": "plain", "upsert": "upsert", "debezium": "debezium"}
SINK_TYPES: Final = {form: name for name, form in SINK_FORMS.items()}


class FillState(NamedTuple):
    """The state of a view's fill. number: that of its job. limit: why it is not as fast as possible. progress: from 0
    to 1.
    """

    number: int | None = None
    limit: str | None = None
    progress: float | None = None


NOT_FILLED: Final = FillState()


def fill_states(session: Session, status: Status) -> tuple[dict[str, FillState], list[ViewStatus]]:
    """The states of the fills of new views by id, and those views of which no history was read yet."""
    found, waiting = {}, []
    begun, backfill = {v.id for v in status.views}, status.backfill
    for view in filter(is_job, session.catalog.shown):
        fill = backfill_of(view.id, backfill)
        progress = 0.0 if fill is None else progress_of(fill)
        found[view.id] = FillState(int(job_id(view)), _held_up(session, view, backfill), progress)
        if view.id not in begun:
            waiting.append(ViewStatus(view.id, view.shown, view.role, ready=False))
    return found, waiting


def _held_up(session: Session, view: MaterializedView, backfill: Backfill | None) -> str | None:
    """As `FillState.limit`, in words."""
    if view.is_paused:
        return "paused: backfill_rate_limit is 0"
    if backfill is not None and backfill_of(view.id, backfill) is None:
        others = [r.shown for i in backfill.purpose.views if (r := session.catalog.relations.get(i)) is not None]
        return f"waits for the fill of {', '.join(others)}"
    return None if view.fill_rate is None else f"at most {view.fill_rate} rows a second"


def sink_statuses(session: Session, sinks: Iterable[Sink]) -> list[SinkStatus]:
    """The statuses of sinks, in order. A process that only reads has only their states and details."""
    running = session.database.service(SinkWriters)
    noted = StatusFile(session.database.layout, "SINKS.json").read() if running is None else {}
    unwritten = session.database.unwritten.to_json()
    found = []
    for sink in sinks:
        status = SinkStatus(sink.id, sink.name, sink.connector.get("connector", "table"), SINK_TYPES[sink.format.rows])
        now = None if running is None else running.status(sink.id)
        if not sink.connector:  # a sink INTO a table only waits after a failure
            failure = unwritten.get(sink.delivers)
            detail = None if failure is None else str(error_from_json(failure)).splitlines()[0]
            status = replace(status, state="running" if failure is None else "retrying", detail=detail)
        elif now is None:
            note = noted.get(sink.id, {})
            status = replace(status, state=note.get("state"), detail=note.get("problem"))
        else:
            status = replace(
                status,
                state=now.state,
                delivered_commit=None if now.offset is None else now.offset.commit,
                delivered_rows=now.delivered_rows,
                commits_behind=now.commits,
                rows_behind=now.rows,
                bytes_behind=now.size_bytes,
                lag_seconds=round(now.seconds, 3),
                detail=now.problem,
            )
        found.append(status)
    return found


class KeptLateRows(NamedTuple):
    """The late rows of a relation, or those that an operator of a view drops.

    late, kept, bytes: the number of late rows so far, that of kept ones, and their bytes. oldest_us, newest_us: the
    times at which kept rows were dropped. number, of, time: for a view, the second argument of `late_rows`, the titles
    of the relations from which rows come, and the column that decides which rows are late.
    """

    relation: str
    late: int
    kept: int
    bytes: int
    oldest_us: int | None
    newest_us: int | None
    number: int | None
    of: str | None
    time: str | None


def late_rows(session: Session, owner: str | None) -> list[KeptLateRows]:
    """The late rows of each relation that may have some, or only of `owner`; those that are only counted last."""
    known, database = session.catalog.relations, session.database
    sizes, progress = database.sizes.read(), database.log.progress()
    late, found = progress.late, []
    for kept in known.values():
        if isinstance(kept, LateRows) and owner in (None, kept.owner) and session.catalog.shows(known[kept.owner]):
            size = sizes.get(kept.id, _EMPTY)
            oldest, newest = late_between(database, session.catalog, kept) if size.rows else (None, None)
            found.append(
                KeptLateRows(
                    known[kept.owner].name,
                    late.get(kept.id if kept.number else kept.owner, 0),
                    size.rows,
                    size.size_bytes,
                    oldest,
                    newest,
                    kept.number or None,
                    " and ".join(known[i].title for i in kept.reads if i in known) or None,
                    kept.time or None,
                )
            )
    owners = {kept.owner for kept in known.values() if isinstance(kept, LateRows)}
    for view, count in progress.left_out.items():
        if count and view in known and view not in owners and owner in (None, view):
            reads = " and ".join(known[i].title for i in known[view].depends_on if i in known)
            found.append(KeptLateRows(known[view].name, count, 0, 0, None, None, None, reads or None, None))
    return found


_EMPTY: Final = RelationSize()
_UNREAD: Final = RelationTotals()

#: The state, by whether a process writes the database; None if that is unknown.
_STATES: Final[dict[bool | None, Literal["running", "stopped", "unknown"]]] = {
    True: "running",
    False: "stopped",
    None: "unknown",
}


def database_status(session: Session, *, memory: bool = True) -> Status:
    """The state of the engine and of everything that it maintains.

    memory: also measure memory, which takes longer than everything else.
    """
    database, catalog = session.database, session.catalog
    if database.read_only:
        opened = Database(database.layout, database.log, database.segments, lambda: database.catalog)
        status = replace(epoch_status(opened), state=_STATES[has_writer(database.layout.root)])
    else:
        status = database.engine.status()
    behind, lag_seconds = _lag(database.log, status.transaction)
    return replace(
        status,
        behind=behind,
        lag_seconds=lag_seconds,
        views=_views(session, status),
        sources=tuple(
            replace(s, failures=_failures_of_source(status, catalog.relations[s.id]))
            for s in status.sources
            if s.id in catalog.relations
        ),
        tables=_tables(session, status),
        memory=memory_status(session) if memory else None,
    )


def _views(session: Session, status: Status) -> tuple[ViewStatus, ...]:
    catalog, problems = session.catalog, session.database.unwritten.to_json()
    producers = producers_of(session) if status.metrics.failures else {}
    found = []
    for view in status.views:
        relation = catalog.relations.get(view.id)
        if relation is not None and not relation.owner and not relation.staged:
            failures = _failures_of_view(session, status, relation, producers) if view.expression_errors else ()
            found.append(replace(view, kind=relation.role, writing=problems.get(view.id), failures=failures))
    return tuple(found)


def _failures_of_view(
    session: Session, status: Status, view: Relation, producers: Producers
) -> tuple[FailedExpression, ...]:
    """The failed parts of a view's expressions."""
    if view.id not in producers:
        return ()
    names = Failures(view, session.catalog, producers)
    found = [
        _failure(names.columns(i, p.column), names.text(i, p.column, p.sql), p)
        for i in names.operators
        for p in status.metrics.failures.get(i, ())
    ]
    return tuple(sorted(found, key=lambda f: (f.columns, f.expression)))


def _failures_of_source(status: Status, source: Relation) -> tuple[FailedExpression, ...]:
    """The generated columns of a source that failed."""
    generated = source.generated
    return tuple(
        _failure([p.name], generated_text(generated[p.name], p.sql), p)
        for p in status.metrics.failures.get(source.id, ())
        if p.name in generated
    )


def _failure(columns: Sequence[str], expression: str, part: FailedPart) -> FailedExpression:
    return FailedExpression(tuple(columns), expression, part.rows, part.reason.replace(NO_INTEGER, ""))


def _tables(session: Session, status: Status) -> tuple[TableStatus, ...]:
    sizes, totals = session.database.sizes.read(), status.metrics.totals
    found = []
    for table in session.catalog.relations.values():
        if isinstance(table, Table) and not table.staged:
            size, total = sizes.get(table.id, _EMPTY), totals.get(table.id, _UNREAD)
            found.append(TableStatus(table.id, table.shown, size.rows, size.size_bytes, total.rows))
    return tuple(found)


def memory_status(session: Session) -> MemoryStatus:
    """The memory that the processes of the database use on this machine, measured at most once a second."""
    database = session.database
    usage = database.meter.read()
    held = MemoryStatus(segments_bytes=database.segments.mapped_bytes, commits_bytes=database.log.cached_bytes)
    if usage is None:
        return held
    return replace(
        held,
        main_bytes=usage.main.own_bytes,
        main_mapped_bytes=usage.main.mapped_bytes,
        workers=usage.worker_count,
        workers_bytes=usage.workers.own_bytes,
        workers_mapped_bytes=usage.workers.mapped_bytes,
        java_bytes=usage.java.total_bytes,
    )


def _lag(log: CommitLog, transaction: int) -> tuple[int, float]:
    """The number of transactions after `transaction`, and the seconds since the first of them was committed."""
    behind, lag_seconds = 0, 0.0
    for commit in log.transactions(transaction, log.head()):
        behind += 1
        if behind == 1:
            lag_seconds = max(0.0, time.time() - commit.time_us / 1e6)
    return behind, lag_seconds


_WINDOW_S: Final = 5.0


class Rates:
    """Rates of named counters."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, Mapping[str, int]]] = deque()

    def update(self, counts: Mapping[str, int], now_s: float | None = None) -> dict[str, float]:
        """The rates per second since the last sample; `counts` is the newest one."""
        now_s = time.monotonic() if now_s is None else now_s
        self._seen.append((now_s, counts))
        while len(self._seen) > 2 and self._seen[1][0] <= now_s - _WINDOW_S:
            self._seen.popleft()
        since_s, before = self._seen[0]
        seconds = max(now_s - since_s, 1e-6)
        return {i: max(0, n - before.get(i, 0)) / seconds if len(self._seen) > 1 else 0.0 for i, n in counts.items()}


TopologyFormat = Literal["svg", "dot"]


def draw_topology(session: Session, kind: TopologyFormat) -> str:
    """All tables, sources and materialized views with their sizes and states, as SVG or DOT. Raises
    INVALID_PARAMETER.
    """
    if kind not in ("svg", "dot"):
        raise error("INVALID_PARAMETER", f'unknown format "{kind}"', hint="The formats are svg and dot.")
    catalog, producers = session.catalog, producers_of(session)
    facts = _facts(database_status(session), catalog, producers)
    diagram = topology(catalog, producers, facts, "watersmeet")
    return to_svg(place(diagram)) if kind == "svg" else to_dot(diagram)


def _facts(status: Status, catalog: Catalog, producers: Producers) -> dict[str, list[str]]:
    """Rows and sizes by relation. The size of a view excludes the views that it reads."""
    facts = {t.id: [f"{_rows(t.rows)}, {_size(t.size_bytes)}"] for t in status.tables}
    for source in status.sources:
        facts[source.id] = [f"{_rows(source.rows)} read"]
    for view in status.views:
        relation = catalog.relations[view.id]
        if isinstance(relation, MaterializedView):
            below = {op.id for i in relation.depends_on for op in producers.get(i, ())}
            kept = [
                status.operators[op.id]
                for op in producers[relation.id]
                if op.id not in below and op.id in status.operators
            ]
            rows, size = sum(k.state_rows for k in kept), sum(k.state_bytes for k in kept)
            facts[view.id] = [_rows(view.rows), f"keeps {_rows(rows)}, {_size(size)}"]
    return facts


def _rows(number: int) -> str:
    return f"{number:,} {'row' if number == 1 else 'rows'}"


def _size(size: float) -> str:
    if size < 1000:
        return f"{size:.0f} B"
    for unit in ("kB", "MB"):
        size /= 1000
        if size < 1000:
            return f"{size:.1f} {unit}"
    return f"{size / 1000:.1f} GB"


def receiving_status(session: Session, relation_id: str) -> ReceivingStatus | None:
    """The status of a received relation; None if this process does not receive it."""
    receivers = session.database.service(Receivers)
    return None if receivers is None else receivers.status(relation_id)

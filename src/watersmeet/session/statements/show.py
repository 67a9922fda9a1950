"""SHOW and DESCRIBE: the content of the catalog and the state of views."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

from watersmeet.binder.context.rules import Described
from watersmeet.binder.dialects import rules_of
from watersmeet.capture.capturing import Captures
from watersmeet.catalog import (
    COMMON_SCHEMA,
    SHOWN,
    SHOWN_CREATED,
    CapturedDatabase,
    CapturedTable,
    Catalog,
    Index,
    Pump,
    QuerySource,
    ReceivedTable,
    Relation,
    Sink,
    Subscription,
    TopicWriter,
)
from watersmeet.connectors.base.deadletters import place_of, read_dead_letters, text_of
from watersmeet.connectors.reference import rows as option_rows
from watersmeet.database.definitions import is_listed, relation_of_kind, undefined_schema
from watersmeet.database.sessions.context import Session, denied
from watersmeet.database.sessions.result import Result, text_result, typed_result
from watersmeet.dialects.schemas import DATABASE, schema_meant, schema_shown
from watersmeet.dialects.tree.statements import Describe, Exists, Show
from watersmeet.dialects.tree.tokens import not_supported
from watersmeet.runtime.status import (
    SOURCE_STATES,
    CapturedTableStatus,
    ErrorJson,
    FailedExpression,
    SourceStatus,
    Status,
    ViewStatus,
    failure_text,
)
from watersmeet.session.features.roles import show_grants, show_roles
from watersmeet.session.features.sharedoptions import show_connections, show_secrets
from watersmeet.session.features.sqlfunctions import like, show_create_function, show_functions
from watersmeet.session.features.subscriptions import show_subscriptions
from watersmeet.session.statements.sinks import show_sinks
from watersmeet.session.statements.topics import processors, topics, undelivered
from watersmeet.session.status import (
    NOT_FILLED,
    database_status,
    fill_states,
    late_rows,
    memory_status,
    receiving_status,
    sink_statuses,
)
from watersmeet.store import retention
from watersmeet.store.retention import changed_bytes
from watersmeet.system.threads import running_workers
from watersmeet.values.times import UTC, length_text
from watersmeet.values.types import BIGINT, BOOLEAN, DOUBLE, INTEGER, TIMESTAMP, TIMESTAMPTZ, VARCHAR, Field, Schema

_LATE: Final = (
    Field("relation", VARCHAR),
    Field("late", BIGINT),
    Field("kept", BIGINT),
    Field("bytes", BIGINT),
    Field("oldest", TIMESTAMPTZ),
    Field("newest", TIMESTAMPTZ),
    Field("number", BIGINT),
    Field("dropped_from", VARCHAR),
    Field("time_column", VARCHAR),
)

#: RisingWave's lists that are always empty in Watersmeet.
_EMPTY: Final = ("internal tables",)
#: SHOW ERRORS reports the clock if the time of epochs is ahead of the machine's clock by more than this.
_CLOCK_AHEAD_S: Final = 60.0

#: Lists of files in the status of a source, each with the problem of its files.
_FILE_PROBLEMS: Final = {
    "replaced": "the file was replaced under its name, its new content is not read",
    "history_lost": "the file was read once, and is no longer there for a view that was created later",
}

_JOBS: Final[Schema] = (
    Field("name", VARCHAR),
    Field("kind", VARCHAR),
    Field("state", VARCHAR),
    Field("rows", BIGINT),
    Field("rows_in", BIGINT),
    Field("rows_out", BIGINT),
    Field("state_rows", BIGINT),
    Field("state_bytes", BIGINT),
    Field("transactions_behind", BIGINT),
    Field("lag_seconds", DOUBLE),
    Field("errors", BIGINT),
    Field("detail", VARCHAR),
    Field("watermark", VARCHAR),
    Field("held_back_by", VARCHAR),
    Field("merge_debt_bytes", BIGINT),
    Field("hot_keys", VARCHAR),
    Field("job", BIGINT),
    Field("progress", DOUBLE),
)


#: The maximum number of hot keys shown for a view.
_HOT_KEYS: Final = 5

_SOURCES: Final[Schema] = (
    Field("Name", VARCHAR),
    Field("State", VARCHAR),
    Field("Reason", VARCHAR),
    Field("Backlog", BIGINT),
    Field("Backlog_bytes", BIGINT),
    Field("Retained_bytes", BIGINT),
)

#: Parts of the status of a source that are separate columns in SHOW JOBS.
_SHOWN_APART: Final = ("id", "name", "connector", "rows", "bytes", "dead", "watermark")

_QUERIES: Final = (
    Field("query_id", VARCHAR),
    Field("started", TIMESTAMP),
    Field("query", VARCHAR),
    Field("state", VARCHAR),
    Field("kept_commits", BIGINT),
    Field("kept_bytes", BIGINT),
)

_WORKERS: Final = (
    Field("worker", VARCHAR),
    Field("works_for", VARCHAR),
    Field("state", VARCHAR),
    Field("detail", VARCHAR),
    Field("pause_s", DOUBLE),
)


def describe(session: Session, statement: Describe) -> Result:
    """DESCRIBE name: the columns and other properties of the relation."""
    return _columns(session, session.relation(statement.name, statement), "DESCRIBE")


def exists(session: Session, statement: Exists) -> Result:
    """EXISTS name: 1 if there is such an object, otherwise 0."""
    name, words = statement.name, statement.kind
    if words == "database":
        found = schema_meant(name.name, session.catalog) is not None
    else:
        relation = session.find(name)
        kind = words.removeprefix("external ").removeprefix("mutable ")
        found = relation is not None and (not kind or kind in relation.words.show_create)
    return typed_result("EXISTS", (Field("result", INTEGER, nullable=False),), [(int(found),)])


def show(session: Session, statement: Show) -> Result:
    """SHOW what."""
    what = statement.what
    if what == "relations" or what in SHOWN:
        return _list(session, statement)
    if what == "create relation":
        assert statement.name is not None
        relation = session.relation(statement.name, statement)
        return _create(session, replace(statement, what=f"create {relation.words.show_create[0]}"))
    if what == "create function":
        return show_create_function(session, statement)
    if what.startswith("create ") and what.removeprefix("create ") in SHOWN_CREATED:
        return _create(session, statement)
    if what == "columns":
        assert statement.name is not None
        return _columns(session, session.relation(statement.name, statement), "SHOW")
    if what in _EMPTY:
        return text_result("SHOW", ("Name",), [])
    if what in _OTHERS:
        return _OTHERS[what](session, statement)
    raise not_supported(f"SHOW {what.upper()}", statement.text, statement.span)


def _list(session: Session, statement: Show) -> Result:
    what = statement.what
    rows = [
        r
        for r in _listed(session, statement)
        if not r.hidden and is_listed(what, r, session.semantics) and _is_like(r.name, statement)
    ]
    if what == "topics" or (what == "tables" and session.semantics.tables == "read"):
        return topics(rows)
    if what == "pumps":
        return _pumps(session, rows)
    if what == "sources":
        return _sources(session, rows)
    if what == "connections":
        return show_connections(rows)
    if what == "sinks":
        return show_sinks(session, rows)
    if what == "subscriptions":
        return show_subscriptions(session, rows)
    if what == "relations":
        return text_result("SHOW", ("Name", "Kind"), [(r.name, r.what) for r in rows])
    if what == "indexes":
        return _indexes(session, rows)
    return text_result("SHOW", ("Name",), [(r.name,) for r in rows])


def _connectors(session: Session, statement: Show) -> Result:  # noqa: ARG001
    """SHOW CONNECTORS [LIKE pattern]: the options of the connectors whose names match; by default of all."""
    names = ("Connector", "Use", "Option", "Type", "Default", "Secret", "Description")
    return text_result("SHOW", names, [row for row in option_rows() if _is_like(row[0], statement)])


def _sources(session: Session, sources: Sequence[Relation]) -> Result:
    """The sources: their state, the reason if it is not `running`, and the number of messages left to read; NULL if
    nothing reads the source. If each query reads a source by itself, its row has the worst state and the sum of
    messages left. The row of a captured database has the bytes of the server's log left to read, and those that the
    server keeps for it.
    """
    known = {s.id: s for s in database_status(session).sources}
    readers: dict[str, list[str]] = {}
    for relation in session.catalog.relations.values():
        if isinstance(relation, QuerySource):
            readers.setdefault(relation.of, []).append(relation.id)
    rows: list[tuple[Any, ...]] = []
    captures = session.database.service(Captures)
    of_tables = (
        r
        for r in session.catalog.relations.values()
        if isinstance(r, CapturedDatabase)
        and r.of_table in session.catalog.relations
        and session.catalog.shows(session.catalog.relations[r.of_table])
    )
    for source in (*sources, *of_tables):
        if isinstance(source, ReceivedTable):
            seen = receiving_status(session, source.id)
            rows.append((source.shown, *((None,) * 5 if seen is None else (*seen, None, None))))
            continue
        if isinstance(source, CapturedDatabase):
            status = None if captures is None else captures.status(source.id)
            name = session.catalog.relations[source.of_table].shown if source.of_table else source.name
            shown = (
                (None,) * 5
                if status is None
                else (status.state, status.reason, None, status.lag_bytes, status.retained_bytes)
            )
            rows.append((name, *shown))
            continue
        found = [known[i] for i in (source.id, *readers.get(source.id, ())) if i in known]
        worst = max((s.health for s in found), key=lambda h: SOURCE_STATES.index(h.state), default=None)
        state, reason = (None, None) if worst is None else (worst.state, worst.reason)
        backlogs = [s.backlog_messages for s in found if s.backlog_messages is not None]
        rows.append((source.name, state, reason, sum(backlogs) if backlogs else None, None, None))
    return typed_result("SHOW", _SOURCES, rows)


def _pumps(session: Session, pumps: Sequence[Relation]) -> Result:
    known = session.catalog.relations
    return text_result(
        "SHOW",
        ("Name", "State", "Stream"),
        [(r.name, "STARTED" if isinstance(r, Pump) else "STOPPED", known[r.feeds].shown) for r in pumps],
    )


def _detail(session: Session, view: ViewStatus, status: Status) -> str | None:
    """The problem of a view that still runs; None if it has none."""
    if view.writing:
        return _unwritten(session, view.id, view.writing)
    read = session.catalog.upstream([view.id])
    held = [s for s in status.sources if s.id in read and s.health.state != "running"]
    if held:
        return "; ".join(f'source "{s.name}" is {s.health.state}' for s in held)
    return f"{view.late} rows were late and were dropped" if view.late else None


def _unwritten(session: Session, view_id: str, failure: ErrorJson) -> str:
    stream = session.catalog.relations[session.catalog.relations[view_id].feeds]
    return f'stream "{stream.shown}" does not accept its rows: {failure_text(failure)}'


def _jobs(session: Session, statement: Show) -> Result:
    """A row for each view, each source and each captured table: its progress, and its errors."""
    status = database_status(session)
    rows: list[tuple[Any, ...]] = []
    fills, waiting = fill_states(session, status)
    for view in (*status.views, *waiting):
        health, fill = status.health_of(view), fills.get(view.id, NOT_FILLED)
        rows.append(
            (
                view.name,
                view.kind,
                health.state,
                view.rows,
                view.rows_in,
                view.rows_out,
                view.state_rows,
                view.state_bytes,
                status.behind,
                round(status.lag_seconds, 3),
                view.expression_errors,
                health.reason or fill.limit or _detail(session, view, status),
                view.watermark,
                view.held_back_by,
                view.merge_debt_bytes,
                "; ".join(k.text for k in view.hot_keys[:_HOT_KEYS]) or None,
                fill.number,
                fill.progress,
            )
        )
    for source in status.sources:
        what, detail = session.catalog.relations[source.id].what, _source_detail(source)
        counts = (None, source.rows, *[None] * 5, source.errors)
        rows.append((source.name, what, status.state, *counts, detail, source.watermark, *[None] * 5))
    table_rows = {t.id: t.rows for t in status.tables}
    for table, capture in _captured(session):
        shown = "filling" if capture.state == "snapshot" else capture.state
        errors, reason = len(_letters(session, table.id)), capture.reason
        rows.append((table.name, table.what, shown, table_rows.get(table.id), *[None] * 6, errors, reason, *[None] * 6))
    return typed_result("SHOW", _JOBS, [r for r in rows if _is_like(r[0], statement)])


def _ahead(seconds: float) -> str:
    return (
        f"the time of the newest epoch is {seconds:.0f} s ahead of the machine's clock, which was set back or is "
        "wrong: now() and PROCTIME() stand still until the clock has reached it, or until ALTER SYSTEM RESET clock"
    )


def _errors(session: Session, statement: Show) -> Result:
    """All errors so far: failed views, errors in expressions, records and files that were set aside."""
    status = database_status(session)
    rows: list[tuple[Any, ...]] = []
    if status.error is not None:
        rows.append((None, "view failed", None, None, failure_text(status.error)))
    rows += [(v.name, "view failed", None, None, failure_text(v.error)) for v in status.views if v.error]
    ahead_s = (session.database.log.progress().time_us - session.database.clock.now_us()) / 1e6
    if ahead_s > _CLOCK_AHEAD_S:
        rows.append((None, "clock", None, None, _ahead(ahead_s)))
    rows += [
        (v.name, "not written", None, None, _unwritten(session, v.id, v.writing)) for v in status.views if v.writing
    ]
    relations: list[ViewStatus | SourceStatus] = [*status.views, *status.sources]
    for relation in relations:
        rows += [(relation.name, "expression", None, None, _failed(f)) for f in relation.failures]
        untold = relation.expression_errors - sum(f.rows for f in relation.failures)
        if untold > 0:
            rows.append((relation.name, "expression", None, None, _nulls(untold, is_rest=bool(relation.failures))))
    known = session.catalog.relations
    rows += [
        (known[i].name, "problem", None, None, failure_text(p))
        for i, p in session.database.external_readers.problems.to_json().items()
        if i in known
    ]
    rows += [
        (relation.name, "not delivered", None, None, why)
        for relation in known.values()
        if (relation.topic is not None or isinstance(relation, TopicWriter))
        and (why := undelivered(session, relation.id)) is not None
    ]
    sinks = sink_statuses(session, [r for r in known.values() if isinstance(r, Sink)])
    rows += [(s.name, f"sink {s.state}", None, None, s.detail) for s in sinks if s.detail]
    for table, capture in _captured(session):
        if capture.reason:
            kind = "stopped" if capture.state == "stalled" else "problem"
            rows.append((table.name, kind, None, None, capture.reason))
        letters = _letters(session, table.id)
        rows += [(table.name, "dead letter", *place_of(d), d["reason"]) for d in letters]
    for source in status.sources:
        rows += [(source.name, "dead letter", *place_of(d), d["reason"]) for d in _letters(session, source.id)]
        rows += [
            (source.name, kind.replace("_", " "), file, None, message)
            for kind, message in _FILE_PROBLEMS.items()
            for file in source.reported.get(kind, ())
        ]
        rows += [(source.name, "unreadable", file, None, why) for file, why in source.reported.get("unreadable", ())]
        rows += [
            (source.name, "partial", file, None, _lacking(columns))
            for file, columns in source.reported.get("partial", ())
        ]
        if source.problem:
            rows.append((source.name, "problem", None, None, source.problem))
    names = (
        Field("relation", VARCHAR),
        Field("kind", VARCHAR),
        Field("file", VARCHAR),
        Field("line", BIGINT),
        Field("message", VARCHAR),
    )
    return typed_result("SHOW", names, [r for r in rows if r[0] is None or _is_like(r[0], statement)])


def _lacking(columns: list[str]) -> str:
    return f"the file has no column {', '.join(columns)}: NULL was read"


def _captured(session: Session) -> list[tuple[CapturedTable, CapturedTableStatus]]:
    """The captured tables visible to the user, each with its status."""
    captures, catalog = session.database.service(Captures), session.catalog
    found = [] if captures is None else [(catalog.relations.get(i), s) for i, s in captures.tables().items()]
    return [(t, s) for t, s in found if isinstance(t, CapturedTable) and catalog.shows(t)]


def _letters(session: Session, relation_id: str) -> list[dict[str, Any]]:
    return read_dead_letters(session.database.layout.dead(relation_id))


def _nulls(count: int, *, is_rest: bool) -> str:
    more = "more " if is_rest else ""
    if count == 1:
        return f"1 {more}value is NULL because of an error"
    return f"{count} {more}values are NULL because of errors"


def _late_rows(session: Session, statement: Show) -> Result:
    """How many rows of each source, table or stream with a watermark were late, and how many a view dropped as late at
    each of its operators that do; and which of these are kept.
    """
    wanted = None if statement.name is None else session.relation(statement.name, statement).id
    return typed_result("SHOW", _LATE, [r for r in late_rows(session, wanted) if _is_like(r[0], statement)])


def _failed(failure: FailedExpression) -> str:
    """A text like `columns p, q: t.x::Int32 is NULL in 2 rows: Could not convert string 'two' to INT32`."""
    names = ", ".join(failure.columns)
    where = f"column{'s' * (len(failure.columns) > 1)} {names}: " if names else ""
    rows = "1 row" if failure.rows == 1 else f"{failure.rows} rows"
    reason = f": {failure.reason}" if failure.reason else ""
    return f"{where}{failure.expression} is NULL in {rows}{reason}"


def _dead_letters(session: Session, statement: Show) -> Result:
    """Records and files of sources that could not be read: their location, the reason, and their text."""
    wanted = None if statement.name is None else session.relation(statement.name, statement)
    rows: list[tuple[Any, ...]] = []
    sources = [(s.id, s.name) for s in database_status(session).sources]
    sources += [(t.id, t.name) for t, _ in _captured(session)]
    for source_id, name in sources:
        if wanted is None or source_id == wanted.id:
            letters = _letters(session, source_id)
            rows += [(name, *place_of(d), d["reason"], text_of(d)) for d in letters]
    names = (
        Field("relation", VARCHAR),
        Field("file", VARCHAR),
        Field("line", BIGINT),
        Field("reason", VARCHAR),
        Field("text", VARCHAR),
    )
    return typed_result("SHOW", names, [r for r in rows if _is_like(r[0], statement)])


def _memory(session: Session, statement: Show) -> Result:
    """The memory of this database's processes on this machine, and the caches of this process."""
    found = memory_status(session)
    rows = [
        ("main", found.main_bytes, found.main_mapped_bytes),
        ("workers", found.workers_bytes, found.workers_mapped_bytes),
        ("java", found.java_bytes, None),
        ("segments", found.segments_bytes, None),
        ("commits", found.commits_bytes, None),
    ]
    names = (Field("part", VARCHAR), Field("bytes", BIGINT), Field("mapped_bytes", BIGINT))
    return typed_result("SHOW", names, [r for r in rows if _is_like(r[0], statement)])


def _variables(session: Session, statement: Show) -> Result:
    rows = [r for r in session.variables.rows() if _is_like(r[0], statement)]
    return text_result("SHOW", ("Name", "Setting", "Description"), rows)


def _parameters(session: Session, statement: Show) -> Result:
    database = session.database
    rows = [
        ("dead_letter_bytes", str(retention.DEAD_BYTES)),
        ("parallelism", str(database.buckets)),
        ("path", str(database.layout.root)),
        ("retention", retention_shown(session.catalog)),
        ("runtime", database.runtime if not database.read_only else "none"),
        ("sink_kept_bytes", str(retention.DELIVERY_BYTES)),
        ("sink_kept_commits", str(retention.DELIVERY_COMMITS)),
    ]
    return text_result("SHOW", ("Name", "Value"), [r for r in rows if _is_like(r[0], statement)])


def retention_shown(catalog: Catalog) -> str:
    """The retention of history, as text."""
    if catalog.retention_us is None:
        return f"{length_text(retention.RETENTION_US)} (default)"
    return length_text(catalog.retention_us)


def _schemas(session: Session, statement: Show) -> Result:
    catalog = session.catalog
    granted = {r.schema for r in catalog.shown}
    known = [s for s in catalog.schemas if catalog.granted is None or s in granted]
    names = [schema_shown(s, session.semantics) for s in (COMMON_SCHEMA, *known)]
    return text_result("SHOW", ("Name",), [(n,) for n in names if _is_like(n, statement)])


def _databases(session: Session, statement: Show) -> Result:
    if session.semantics.schema_word == "database":
        return _schemas(session, statement)
    return text_result("SHOW", ("Name",), [(DATABASE,)] if _is_like(DATABASE, statement) else [])


def _listed(session: Session, statement: Show) -> list[Relation]:
    """The relations of the schema that FROM names, or the indexes of the relation that it names; without FROM, those
    that statements can name without a schema.
    """
    catalog = session.catalog
    if statement.name is None:
        return [r for r in catalog.shown if catalog.by_name(r.name) is r]
    if statement.what == "indexes" and (of := session.find(statement.name)) is not None:
        return [r for r in catalog.shown if of.id in r.depends_on]
    schema = schema_meant(statement.name.name, catalog)
    if schema is None:
        raise undefined_schema(session, statement.name, statement)
    return [r for r in catalog.shown if r.schema == schema and r.is_named]


def _queries(session: Session, statement: Show) -> Result:
    """The running queries with their ids for KILL QUERY and their texts; also subscriptions without a reader, and
    whether the changes for them are still kept.
    """
    running = session.queries()
    rows: list[tuple[Any, ...]] = [(q.name, q.started_us, q.text, "runs", None, None) for q in running]
    database, names = session.database, {q.name for q in running}
    for relation in session.catalog.relations.values():
        if not isinstance(relation, Subscription) or relation.name in names or database.read_only:
            continue
        since, head = database.positions.since(relation.id), database.log.head()
        kept: tuple[Any, ...] = ("lost", None, None)
        if since is not None:
            kept = ("waits", head - since, changed_bytes(database.log, since, head))
        rows.append((relation.name, relation.subscribed_us, relation.sql, *kept))
    rows = sorted((r for r in rows if _is_like(r[0], statement)), key=lambda r: (r[1], r[0]))
    return typed_result("SHOW", _QUERIES, rows)


def _processes(session: Session, statement: Show) -> Result:
    """The running queries with their ids for KILL, as RisingWave lists the statements of all sessions."""
    rows = [(q.name, q.started_us, q.text) for q in session.queries() if _is_like(q.name, statement)]
    return typed_result("SHOW", (_QUERIES[0], _QUERIES[1], _QUERIES[2]), rows)


def _cluster(session: Session, statement: Show) -> Result:
    """The only node: the database, its runtime, and its number of state buckets."""
    database = session.database
    runtime = "none" if database.read_only else database.runtime
    rows = [(str(database.layout.root), runtime, "RUNNING", str(database.buckets))]
    names = ("Path", "Runtime", "State", "Parallelism")
    return text_result("SHOW", names, [r for r in rows if _is_like(r[0], statement)])


def _cursors(session: Session, statement: Show) -> Result:
    """The declared cursors of the session; SHOW SUBSCRIPTION CURSORS only lists those whose rows still arrive."""
    found = [
        n for n, c in session.cursors.items() if c.declared and (statement.what == "cursors" or c.flow is not None)
    ]
    return text_result("SHOW", ("Name",), [(n,) for n in found if _is_like(n, statement)])


def _workers(_: Session, statement: Show) -> Result:
    """The background threads of this process, with the object that each works for, its state and its pause."""
    rows = [
        (w.name.removeprefix("watersmeet-"), w.title or None, w.state, w.problem, w.next_pause_s)
        for w in running_workers()
    ]
    rows = sorted((r for r in rows if _is_like(r[0], statement)), key=lambda r: (r[0], r[1] or ""))
    return typed_result("SHOW", _WORKERS, rows)


_OTHERS: Final[dict[str, Callable[[Session, Show], Result]]] = {
    "all": _variables,
    "databases": _databases,
    "dead letters": _dead_letters,
    "late rows": _late_rows,
    "errors": _errors,
    "connectors": _connectors,
    "cluster": _cluster,
    "cursors": _cursors,
    "functions": show_functions,
    "grants": lambda session, statement: show_grants(session, lambda name: _is_like(name, statement)),
    "jobs": _jobs,
    "memory": _memory,
    "parameters": _parameters,
    "processors": lambda session, statement: processors(session, lambda name: _is_like(name, statement)),
    "processlist": _processes,
    "queries": _queries,
    "subscription cursors": _cursors,
    "users": lambda session, statement: show_roles(session, lambda name: _is_like(name, statement)),
    "roles": lambda session, statement: show_roles(session, lambda name: _is_like(name, statement)),
    "schemas": _schemas,
    "workers": _workers,
    "secrets": lambda session, statement: show_secrets(session, lambda name: _is_like(name, statement)),
}


def _indexes(session: Session, rows: list[Relation]) -> Result:
    known = session.catalog.relations
    return text_result(
        "SHOW",
        ("Name", "On", "Key"),
        [(r.name, known[r.depends_on[0]].shown, ", ".join(r.index_columns)) for r in rows if isinstance(r, Index)],
    )


def _create(session: Session, statement: Show) -> Result:
    """The statement that created a relation. Passwords of external systems are hidden."""
    assert statement.name is not None
    kind = statement.what.removeprefix("create ")
    relation = relation_of_kind(session, statement, statement.name, kind, "SHOW CREATE")
    if not session.catalog.knows([relation.id]):
        detail = "It reads relations that are not granted to you."
        raise denied(f"how {relation.title} is made", statement.text, detail=detail)
    return text_result("SHOW", ("Name", "Create Sql"), [(relation.shown, create_text(session.catalog, relation))])


def create_text(catalog: Catalog, relation: Relation) -> str:
    """The statement that created a relation. Passwords of external systems are hidden."""
    zone = "" if relation.zone == UTC else f" /* computed in the time zone {relation.zone} */"
    return relation.sql + zone + _called_now(catalog, relation)


def _called_now(catalog: Catalog, view: Relation) -> str:
    """The new names of objects in the text of a view, as an SQL comment; empty if none was renamed."""
    called = []
    for relation_id, known in view.known.items():
        actual = catalog.relations.get(relation_id)
        if actual is None:
            continue
        if actual.name != known.name:
            called.append(f"{known.name} is called {actual.name} now")
        called += [
            f"{known.name}.{then} is called {now.name} now"
            for then, now in zip(known.columns, actual.columns, strict=False)
            if then != now.name
        ]
    return f" /* {', '.join(called).replace('*/', '* /')} */" if called else ""


def _columns(session: Session, relation: Relation, command: str) -> Result:
    """A row for each column; for DESCRIBE also rows for the key, the watermarks, the indexes and the kind.

    A field of a topic is NOT NULL if every record with a value has it. The stored value of a tombstone is never read.
    """
    rows: list[Described] = [
        (c.name, c.type.sql, not c.nullable or c.name in relation.always_there)
        for c in relation.columns
        if not c.name.startswith("?")  # of a random stream, for its functions
    ]
    if command == "DESCRIBE":
        rows = rules_of(session.dialect).described(relation, lambda: [*rows, *_facts(session, relation)])
    return typed_result(command, (Field("Name", VARCHAR), Field("Type", VARCHAR), Field("Not Null", BOOLEAN)), rows)


def _facts(session: Session, relation: Relation) -> list[Described]:
    """The properties of a relation other than its columns."""
    rows: list[Described] = []
    if relation.primary_key:
        rows.append(("primary key", ", ".join(relation.primary_key), None))
    if relation.append_only:
        rows.append(("append only", "true", None))
    if relation.time_columns:
        rows.append(("watermark", ", ".join(relation.time_columns), None))
    rows += [
        (r.name, f"index({', '.join(r.index_columns)})", None)
        for r in session.catalog.shown
        if isinstance(r, Index) and relation.id in r.depends_on
    ]
    rows.append(("table description", relation.what, None))
    comments = {"comment": relation.comment, **{f"comment on {c}": text for c, text in relation.comments.items()}}
    rows += [(what, text, None) for what, text in comments.items() if text]
    return rows


def _is_like(name: str, statement: Show) -> bool:
    return statement.like is None or like(name, statement.like)


def _source_detail(source: SourceStatus) -> str | None:
    """The status of a source except for its counts, as JSON; None if there is nothing to report."""
    shown = {k: v for k, v in source.to_dict().items() if k not in _SHOWN_APART and v}
    if "partial" in shown:
        shown["partial"] = [f"{file}: without {', '.join(columns)}" for file, columns in shown["partial"]]
    return json.dumps(shown, ensure_ascii=False, default=str) if shown else None

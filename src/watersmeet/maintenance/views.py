"""Materialized views: binding, compiling and filling them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import Final

from watersmeet.algebra.nodes import Arrivals, ChangeLog, Cut, Node, Reopened, Scan
from watersmeet.algebra.trees import exactly, walk
from watersmeet.binder import BoundQuery
from watersmeet.binder.context.binding import Fill
from watersmeet.binder.context.emissions import JOIN_ROWS_SETTING, Request
from watersmeet.binder.dialects import rules_of
from watersmeet.catalog import CacheFill, MaterializedView, Query, Recomputing, Relation, Sink, SinkConflicts, Source
from watersmeet.circuit import operators
from watersmeet.database.committing import own_transaction
from watersmeet.database.definitions import check_columns, is_same, new_relation, remove, schema_for
from watersmeet.database.filling import (
    FILL_ORDER,
    FILL_RATE,
    RECOMPUTE,
    Bound,
    fill,
    fill_order,
    fill_rate,
    join_order,
    joins_many,
    most_join_rows,
    recomputing,
    shares,
)
from watersmeet.database.reading import check_running, readable
from watersmeet.database.rebuild import bound as bound_query
from watersmeet.database.rebuild import conflicts_of, proves_key, requested, row_key_of, watermarks_of
from watersmeet.database.sessions.context import FilledAloneError, Session, error_at, located
from watersmeet.dialects.tree.definitions import CreateMaterializedView
from watersmeet.dialects.tree.statements import Select, Subscribe
from watersmeet.errors import error
from watersmeet.maintenance.querysources import with_own_sources
from watersmeet.maintenance.refreshing import refresh_read
from watersmeet.planner import compile_view
from watersmeet.runtime.plans import LateRowsError
from watersmeet.sinkwriters.writers import begin, check_keys
from watersmeet.store.readers import Reader
from watersmeet.values.types import Field

_MEMO: Final = (
    "A non-append-only temporal join is used in the query. It would introduce an additional memo-table comparing to "
    "append-only temporal join."
)


def make_writing(session: Session, bound: Bound) -> None:
    """Like `make`, for a view that writes a stream, beginning with its first row."""
    database = session.database
    with contextlib.ExitStack() as held:
        reader = held.enter_context(closing(Reader(database.layout)))
        reader.pin(database.log.head())  # until maintenance follows it
        make(session, bound)
        if session.transaction is not None:
            session.transaction.ends.push(held.pop_all())
        else:
            database.follow()


def make_delivered(session: Session, bound: Bound, stream: Relation) -> None:
    """Creates a view that feeds a stream. Rows of a stream outside of the database are delivered like those of a
    sink.
    """
    if stream.is_unconnected:
        make(session, bound)
        return
    if not stream.is_written_externally:
        make_writing(session, bound)
        return
    with own_transaction(session):
        make(session, bound)
        begin(session.database, bound.relation.id, 1, snapshot=True)


def may_share_key(session: Session, relation: Relation, key: Sequence[str]) -> bool:
    """Whether several rows of a relation may have the same values in the columns `key`."""
    return not session.cancellation.computing(lambda: proves_key(relation, key, readable(session.catalog)))


def with_conflicts(session: Session, sink: Sink, relation: Relation) -> Sink:
    """A sink of a relation with a view of the keys that several rows share. Raises UNIQUE_VIOLATION if there is one
    now.
    """
    tree = conflicts_of(sink, relation)
    view = SinkConflicts(
        session.catalog.new_id(SinkConflicts),
        f"?{sink.name}.conflicts",
        tuple(Field(c.name, c.type, c.nullable) for c in tree.columns),
        schema=sink.schema,
        dialect=session.dialect,
        depends_on=(relation.id,),
        hidden=True,
        owner=sink.id,
    )
    make(session, Bound(tree, view))
    sink = replace(sink, conflicts=view.id)
    check_keys(session.database, session.catalog, sink)
    return sink


def begins(tree: Node) -> bool:
    """Whether the rows of a query depend on the moment at which it begins."""
    return any(isinstance(n, (Arrivals, Cut, Reopened)) for n in walk(tree))


def make(session: Session, bound: Bound) -> None:
    """Compiles and fills a view. Raises the error of a stopped view that it reads; FilledAloneError within `JointFill`
    for a view that depends on the moment at which it is created, or that is more than one relation.
    """
    if session.joint is not None and (bound.fills or begins(bound.tree)):
        raise FilledAloneError
    check_running(session, bound.relation.depends_on, live=True)
    session.database.engine.expect()  # while the view is compiled
    bound, own = with_own_sources(session, bound)
    try:
        _make(session, bound)
    except BaseException:
        if own:
            remove(session, own)
        raise


def _make(session: Session, bound: Bound) -> None:
    database = session.database
    _check_order(session, bound)
    if cuts := [n for n in walk(bound.tree) if isinstance(n, Cut)]:
        database.flush()  # commits before the moment become history
        read = {n.relation_id: cut.moment for cut in cuts for n in walk(cut) if isinstance(n, Scan)}
        sizes = database.sizes.read()
        empty = {i: began for i, began in sorted(read.items()) if i not in sizes or not sizes[i].rows}
        bound = replace(bound, relation=replace(bound.relation, empty=empty))
    replaced = {n.scan for n in walk(bound.tree) if isinstance(n, Arrivals)}
    replaced |= {n for log in walk(bound.tree) if isinstance(log, ChangeLog) for n in walk(log) if isinstance(n, Scan)}
    if settled := frozenset(n.relation_id for n in replaced if not n.append_only):
        database.settle(settled)  # when a query starts, only current rows count as inserted
    try:
        made = _filled(session, bound)
    except LateRowsError:
        made = _filled(session, bound)  # late rows are now left out, so further ones can't make it fail again
    if any(
        isinstance(o, operators.TemporalJoin) and o.memo and not o.clock and o.owner == bound.relation.id for o in made
    ):
        session.notice(_MEMO)
    try:
        for number, found in enumerate(bound.fills):
            make(session, _filling(session, bound.relation, found, number))
            database.follow()
    except BaseException:
        remove(session, {bound.relation.id})
        raise


def _check_order(session: Session, bound: Bound) -> None:
    """Raises FEATURE_NOT_SUPPORTED for a query that starts now and reads relations that the open transaction has
    written, because their rows are committed after its start.
    """
    transaction = session.transaction
    if transaction is None or not any(isinstance(n, (Arrivals, Cut)) for n in walk(bound.tree)):
        return
    written = session.catalog.upstream(bound.relation.depends_on) & transaction.changes.keys()
    if written:
        raise error(
            "FEATURE_NOT_SUPPORTED",
            f"a query that begins in the transaction that has written {session.catalog.relations[min(written)].title} "
            "is not supported",
            detail="The query would count rows that the transaction wrote before it began.",
            hint="COMMIT before the query; in a script that is one transaction, FLUSH.",
        )


def _filled(session: Session, bound: Bound) -> Sequence[operators.Operator]:
    """The operators of a view, compiled and filled. If this raises LateRowsError, nothing is changed."""
    database = session.database
    producers = database.plans.producers
    compiling = partial(
        compile_view,
        bound.tree,
        bound.relation,
        producers if session.joint is None else {**producers, **session.joint.operators},
        join_order(session.variables),
        catalog=session.catalog.as_stored,
        share=shares(session.variables),
        multiway=joins_many(session.variables),
        late=database.log.progress().late,
        left_out=rows_left_out(session),
    )
    made = session.cancellation.computing(compiling)
    fill(session, bound.relation, made)
    return made


def _filling(session: Session, view: Relation, found: Fill, number: int) -> Bound:
    """The hidden view of those rows that a view looks up and that are not in the cache of a dictionary."""
    dictionary = session.catalog.relations[found.dictionary]
    assert dictionary.dictionary is not None
    columns = tuple(
        Field(c.name, t.type, t.nullable) for c, t in zip(dictionary.columns, found.tree.columns, strict=True)
    )
    relation = CacheFill(
        session.catalog.new_id(CacheFill),
        f"?{view.name}.{dictionary.name}.{number}",
        columns,
        dialect=view.dialect,
        hidden=True,
        most_join_rows=view.most_join_rows,
        owner=view.id,
        feeds=dictionary.dictionary.stream,
    )
    return Bound(found.tree, relation)


def rows_left_out(session: Session) -> frozenset[str]:
    """The late-row filters of views that have dropped late rows."""
    left_out = session.database.log.progress().left_out
    views = [ops for i, ops in session.database.plans.producers.items() if left_out.get(i)]
    return frozenset(o.id for ops in views for o in ops if isinstance(o, operators.LateRowFilter))


def moment(session: Session) -> int:
    """The newest commit that a query starting now follows: one of table rows, or of any kind if there are other
    inputs.
    """
    log = session.database.log
    head = log.head()
    if not head or any(r.connector or isinstance(r, Source) for r in session.catalog.relations.values()):
        return head
    return log.newest_transaction(head)


def _current(session: Session, bind: Callable[[int], BoundQuery]) -> BoundQuery:
    """The result of `bind`, over the current content of external relations. bind: called with the result of
    `moment`.
    """
    found = session.cancellation.computing(bind, moment(session))
    if not refresh_read(session, found.depends_on):
        return found
    return session.cancellation.computing(bind, moment(session))


def bind_running(
    session: Session, request: Request, statement: Select | Subscribe, name: str, *, log: bool = False
) -> Bound:
    """The output of a running query as a hidden view `name`.

    log: show its output in the dialect's form of changes. Raises the errors of `DialectRules.running_output`.
    """
    text = statement.text
    bound = _current(session, lambda now: requested(request, readable(session.catalog), text, session.dialect, now))
    session.notices.extend(bound.notices)
    whole = rules_of(session.dialect).running_output(bound, request.query, text) if log else bound.tree
    tree = exactly(whole, whole.columns[: bound.width])
    relation = Query(
        session.catalog.new_id(Query),
        name,
        tuple(replace(c, nullable=t.nullable) for c, t in zip(bound.columns, tree.columns, strict=False)),
        sql=statement.sql,
        dialect=session.dialect,
        path=session.catalog.path,
        zone=session.catalog.zone,
        depends_on=bound.depends_on,
        functions=bound.functions,
        watermarks=watermarks_of(tree),
        hidden=True,
        max_buffered_bytes=bound.max_buffered_bytes,
        most_join_rows=_most_join_rows(session, bound),
    )
    return Bound(tree, relation, bound.rowtime, bound.hidden, bound.fills)


#: Options of views in RisingWave that no result depends on.
_WITHOUT_EFFECT: Final = (
    "backfill_parallelism",
    "cloud.serverless_backfill_enabled",
    "resource_group",
    "source_rate_limit",
    "streaming_max_parallelism",
    "streaming_parallelism",
)


#: Other options of views in RisingWave, with the way round.
_WAYS_ROUND: Final = {
    "refresh.interval.sec": "A view always follows its inputs: leave the option out. CREATE TABLE … AS keeps a copy.",
    "retention_seconds": "WHERE column > now() - INTERVAL '1 day' lets rows go.",
}


def bind_view(session: Session, statement: CreateMaterializedView) -> Bound:
    """The view that the statement would create. Raises errors of the binder, with their positions."""
    for name in sorted(statement.options.keys() - {JOIN_ROWS_SETTING, FILL_RATE, FILL_ORDER, RECOMPUTE}):
        if name not in _WITHOUT_EFFECT:
            message = f"option {name} of a materialized view is not supported"
            hint = _WAYS_ROUND.get(name)
            raise error_at(statement, statement.span, "FEATURE_NOT_SUPPORTED", message, hint=hint)
        session.notice(f"option {name} of a materialized view has no effect")
    query = _current(session, lambda now: bound_query(statement, readable(session.catalog), session.dialect, now))
    session.notices.extend(query.notices)
    check_columns(query.columns, statement)
    relation = new_relation(
        session,
        statement,
        MaterializedView,
        query.columns,
        depends_on=query.depends_on,
        functions=query.functions,
        watermarks=watermarks_of(query.tree),
        max_buffered_bytes=query.max_buffered_bytes,
        most_join_rows=_optional_rows(statement, _most_join_rows(session, query)),
        recompute=_recomputing(session, statement),
        fill_rate=_fill_rate(session, statement),
        fill_order=_fill_order(session, statement, query.depends_on),
        period=query.period,
        signs=query.signs,
        row_key=row_key_of(query.tree),
    )
    return Bound(query.tree, relation, fills=query.fills)


def is_defined(session: Session, statement: CreateMaterializedView) -> bool:
    """Whether CREATE OR REPLACE would recreate an identical view whose content depends only on its query."""
    if not statement.replaces or session.semantics.continuous != "never":
        return False
    existing = session.catalog.by_name(statement.name, schema_for(session, statement))
    if not isinstance(existing, MaterializedView) or existing.sql != statement.sql:
        return False
    if not is_same(existing, bind_view(session, statement).relation):
        return False
    session.notice(f"{existing.title} already has this definition")
    return True


def _most_join_rows(session: Session, query: BoundQuery) -> int:
    return most_join_rows(session.variables) if query.most_join_rows is None else query.most_join_rows


def _fill_rate(session: Session, statement: CreateMaterializedView) -> int | None:
    """The limit in WITH, else that of the session, on the rows of history per second. Raises CONNECTOR_OPTION."""
    with located(statement, statement.span):
        return fill_rate(statement.options.get(FILL_RATE, session.variables.get(FILL_RATE)))


def _recomputing(session: Session, statement: CreateMaterializedView) -> Recomputing:
    """The value in WITH, else that of the session. Raises INVALID_PARAMETER."""
    with located(statement, statement.span):
        return recomputing(statement.options.get(RECOMPUTE, session.variables.get(RECOMPUTE)))


def _fill_order(
    session: Session, statement: CreateMaterializedView, depends_on: Iterable[str]
) -> tuple[tuple[str, str], ...]:
    """The order in WITH of the inputs' history. Raises INVALID_PARAMETER."""
    with located(statement, statement.span):
        return fill_order(session, statement.options.get(FILL_ORDER, "AUTO"), depends_on)


def _optional_rows(statement: CreateMaterializedView, otherwise: int) -> int:
    """The limit in WITH on the rows that a join may make in one epoch. Raises INVALID_PARAMETER."""
    value = statement.options.get(JOIN_ROWS_SETTING)
    if value is None:
        return otherwise
    if not (value.isdecimal() and value.isascii()):
        raise error_at(
            statement,
            statement.span,
            "INVALID_PARAMETER",
            f'option {JOIN_ROWS_SETTING} can\'t be "{value}"',
            hint="Write a whole number; 0 means no limit.",
        )
    return int(value)

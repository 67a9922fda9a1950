"""CREATE VIEW, CREATE MATERIALIZED VIEW, and the streams that views write (INTO)."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any, Final

from watersmeet.binder import bind_query
from watersmeet.catalog import ROWTIME, MaterializedView, Merging, Relation, Stream, View, is_job, job_id
from watersmeet.connectors.base.targets import view_delivery
from watersmeet.connectors.registry import connector_of
from watersmeet.database.assignment import Target, check_types
from watersmeet.database.definitions import (
    add,
    check_columns,
    is_redefined,
    is_same,
    may_create,
    named_columns,
    new_relation,
)
from watersmeet.database.filling import RECOMPUTE, fill_rate, recomputing
from watersmeet.database.producing import unwritten
from watersmeet.database.reading import batch_query, readable
from watersmeet.database.sessions.context import Session, error_at, located, undefined_relation
from watersmeet.database.sessions.result import Result, text_result
from watersmeet.database.sessions.sequences import calls_sequences
from watersmeet.database.writing import accepting, divided_family
from watersmeet.dialects.registry import language_named
from watersmeet.dialects.statements.alter import SetViewOption
from watersmeet.dialects.tree.definitions import CreateMaterializedView, CreateView
from watersmeet.dialects.tree.queries import is_marked
from watersmeet.dialects.tree.statements import CancelJobs
from watersmeet.dialects.tree.tokens import not_supported
from watersmeet.errors import NotSupportedError, did_you_mean
from watersmeet.maintenance.views import bind_view, is_defined, make, make_delivered
from watersmeet.session.features.viewrefresh import pause, twins_of
from watersmeet.session.statements.redefining import check_view, check_view_columns, redefine, replace_view
from watersmeet.values.types import Schema


def target_of(
    session: Session,
    statement: CreateMaterializedView,
    columns: Schema,
    depends_on: tuple[str, ...],
    merging: Merging | None = None,
) -> Relation | None:
    """The stream of INTO; None without INTO. merging: that of a pump that runs a MERGE.

    Raises UNDEFINED_RELATION, READ_ONLY_RELATION, UNDEFINED_COLUMN, DATATYPE_MISMATCH; FEATURE_NOT_SUPPORTED for a
    stream that the view reads.
    """
    name = statement.into
    if name is None:
        return None
    stream = session.relation(name, statement)
    is_external = stream.is_written_externally or stream.is_unconnected
    if not (isinstance(stream, Stream) or is_external):
        raise error_at(
            statement,
            name.span,
            "READ_ONLY_RELATION",
            f"can't write {stream.title} by a view",
            hint="INTO needs a stream that CREATE STREAM made, or one that is written outside.",
        )
    if stream.id in session.catalog.upstream(depends_on, writers=True):
        raise not_supported(
            f'a view INTO the stream "{stream.shown}", which it reads,',
            statement.text,
            name.span,
            detail="Each row that it writes would produce another row.",
        )
    if is_external:
        _check_external(statement, stream, columns, merging)
        return stream
    _check_columns(statement, stream, columns)
    lacking = [k for k in stream.primary_key if k not in [c.name for c in columns]]
    if lacking:
        raise error_at(
            statement,
            name.span,
            "NOT_NULL_VIOLATION",
            f'the view has no column "{lacking[0]}", which is a key of the stream "{stream.shown}"',
        )
    divided = divided_family(stream, [c.name for c in columns])
    if divided is not None:
        raise error_at(
            statement,
            name.span,
            "NOT_NULL_VIOLATION",
            divided,
            hint="A coalesced stream takes all columns of a family, or none.",
        )
    return stream


def _check_external(
    statement: CreateMaterializedView, stream: Relation, columns: Schema, merging: Merging | None
) -> None:
    """Checks an external target. Raises FEATURE_NOT_SUPPORTED for columns that its messages or files don't support."""
    _check_columns(statement, stream, columns)
    if stream.format is not None:
        _check_messages(statement, stream, columns)
        _check_given(statement, stream, columns)
    if not stream.is_unconnected:
        delivery = view_delivery(replace(stream, columns=columns), stream, merging)
        connector_of(delivery).check(delivery)


def _check_messages(statement: CreateMaterializedView, stream: Relation, columns: Schema) -> None:
    assert statement.into is not None
    assert stream.format is not None
    names = [c.name for c in columns]
    for name in names:
        if name in unwritten(stream) and name != ROWTIME:
            raise not_supported(f'writing column "{name}" of {stream.title}', statement.text, statement.into.span)
    for part in stream.computed_parts:
        lacking = [c.name for c in part.value.reads if c.name not in names]
        if lacking:
            raise error_at(
                statement,
                statement.into.span,
                "UNDEFINED_COLUMN",
                f'the view has no column "{lacking[0]}", which {part.column.name[1:]} of {stream.title} reads',
            )
    values = [c.name for c in stream.columns if c.name not in stream.message_parts and c.name != ROWTIME]
    given = [n for n in names if n not in stream.message_parts and n != ROWTIME]
    if stream.format.encoding not in ("json", "parquet") and given != values:
        raise not_supported(
            f"a view that gives other columns than {stream.title} has, or in another order,",
            statement.text,
            statement.into.span,
            detail=f"What is written in {stream.format.encoding.upper()} has {', '.join(values)}, in this order.",
        )


def _check_given(statement: CreateMaterializedView, stream: Relation, columns: Schema) -> None:
    """Raises NOT_NULL_VIOLATION if a view that writes files lacks a column that is NOT NULL when they are read."""
    given = [c.name for c in columns]
    lacking = [c.name for c in stream.columns if not c.nullable and c.name not in given]
    if stream.external is not None and lacking:
        raise error_at(
            statement,
            statement.span if statement.into is None else statement.into.span,
            "NOT_NULL_VIOLATION",
            f'the view has no column "{lacking[0]}", which can\'t be NULL in {stream.title}',
        )


def _check_columns(statement: CreateMaterializedView, stream: Relation, columns: Schema) -> None:
    """Checks the columns that a view writes to a stream. Raises UNDEFINED_COLUMN, DATATYPE_MISMATCH."""
    name = statement.into
    assert name is not None
    taking = accepting(stream) if stream.takes_signs else stream
    known = [c.name for c in taking.columns]
    targets = []
    if stream.external is not None and ROWTIME not in known:
        columns = tuple(c for c in columns if c.name != ROWTIME)  # tables don't have ROWTIME
    for column in columns:
        if column.name not in known:
            raise error_at(
                statement,
                name.span,
                "UNDEFINED_COLUMN",
                f'stream "{stream.shown}" has no column "{column.name}"',
                hint=did_you_mean(column.name, known) or "Name the column with AS.",
            )
        targets.append(Target(taking.column(column.name), statement.span))
    check_types(columns, targets, statement)


def create_view(session: Session, statement: CreateView) -> Result:
    """CREATE VIEW: stored as its text, and bound once to check it.

    It is valid if a batch query or a materialized view can read it (ASOF and look-up joins need a materialized view).
    """
    if not may_create(session, statement, statement.name, statement.name_span, statement.if_not_exists):
        return Result("CREATE VIEW")
    continuous = language_named(session.dialect).semantics.continuous
    if continuous == "streams" or (continuous == "marked" and is_marked(statement.query)):
        columns, depends_on, functions = _streamed(session, statement)
    else:
        try:
            query = batch_query(session, statement.query, statement.text)
            columns, depends_on, functions = named_columns(query.columns, statement), query.named, query.functions
            if calls_sequences(query.sql):
                raise not_supported("a function of sequences in a view", statement.text, statement.name_span)
        except NotSupportedError as refused:
            try:
                columns, depends_on, functions = _streamed(session, statement)
            except NotSupportedError:
                raise refused from None
    check_columns(columns, statement)
    relation = new_relation(session, statement, View, columns, depends_on=depends_on, functions=functions)
    existing = session.catalog.by_name(relation.name, relation.schema)
    if existing is not None and is_redefined(session, statement):
        if not is_same(existing, relation):
            check_view_columns(statement, existing, relation)
            redefine(session, statement, statement.name_span, existing, relation, None)
        return Result("CREATE VIEW")
    if existing is not None:
        if not session.semantics.views_change or session.catalog.dependents(existing.id):
            check_view(session, statement, existing, relation)
        relation = replace(relation, id=existing.id)
    add(session, relation)
    return Result("CREATE VIEW")


def _streamed(session: Session, statement: CreateView) -> tuple[Schema, tuple[str, ...], tuple[str, ...]]:
    """(columns, relations, functions) of a view that a materialized view reads."""
    found = bind_query(
        statement.query,
        readable(session.catalog),
        statement.text,
        session.dialect,
        column_names=statement.column_names,
    )
    return found.columns, found.depends_on, found.functions


def create_materialized_view(session: Session, statement: CreateMaterializedView) -> Result:
    """CREATE MATERIALIZED VIEW: binds, compiles and fills the view. When this returns, it reflects its inputs."""
    if is_defined(session, statement):
        return Result("CREATE MATERIALIZED VIEW")
    if is_redefined(session, statement):
        replace_view(session, statement)
        return Result("CREATE MATERIALIZED VIEW")
    if not may_create(session, statement, statement.name, statement.name_span, statement.if_not_exists):
        return Result("CREATE MATERIALIZED VIEW")
    if statement.without_data:
        session.notice("WITH NO DATA has no effect: a materialized view always has the rows of its query")
    bound = bind_view(session, statement)
    stream = target_of(session, statement, bound.relation.columns, bound.relation.depends_on)
    if stream is None:
        make(session, bound)
    else:
        make_delivered(session, replace(bound, relation=replace(bound.relation, feeds=stream.id)), stream)
    if statement.paused:
        pause(session, session.database.catalog.relations[bound.relation.id])
    return Result("CREATE MATERIALIZED VIEW")


#: The time after which CANCEL JOBS looks again whether fills have ended.
_CANCEL_S: Final = 0.02


def set_option(session: Session, statement: SetViewOption) -> Result:
    """ALTER MATERIALIZED VIEW name SET BACKFILL_RATE_LIMIT or RECOMPUTE: effective for the next pieces of its
    history, or the next epochs, in a transaction after COMMIT. A filled view has the limit while it is filled again.
    """
    session.require_definer("ALTER MATERIALIZED VIEW")
    changes: dict[str, Any] = {}
    with located(statement, statement.value_span):
        if statement.option == RECOMPUTE:
            changes["recompute"] = recomputing("auto" if statement.value.lower() == "default" else statement.value)
        else:
            changes["fill_rate"] = fill_rate(statement.value)
    database, name = session.database, statement.name
    found = session.find(name)
    if found is None and statement.if_exists:
        session.notice(f'materialized view "{name.shown}" does not exist, skipping')
        return Result("ALTER MATERIALIZED VIEW")
    if found is None:
        views = [r.shown for r in session.catalog.shown if isinstance(r, MaterializedView)]
        raise undefined_relation(session.catalog, name, statement, "materialized view", views)
    with database.guard:
        view = session.catalog.relations.get(found.id)
        if not isinstance(view, MaterializedView) or "materialized view" not in view.words.drop:
            message = f'"{found.shown}" is not a materialized view'
            raise error_at(statement, name.span, "CATALOG_TYPE_MISMATCH", message)
        session.put(replace(view, **changes))
        if session.transaction is None:
            session.put(*(replace(twin, **changes) for twin in twins_of(database.catalog, view)))
    return Result("ALTER MATERIALIZED VIEW")


def cancel_jobs(session: Session, statement: CancelJobs) -> Result:
    """CANCEL JOBS: the fills of these views end, and the views don't exist. Returns the ids of those fills."""
    session.require_definer("CANCEL JOBS")
    session.require_no_transaction("CANCEL JOBS")
    database = session.database
    filling = {job_id(r): r.id for r in session.catalog.shown if is_job(r)}
    wanted = dict.fromkeys(given for given in (i.name for i in statement.ids))
    for given in wanted:
        if given not in filling:
            session.notice(f"no view with id {given} is being filled")
    canceled = {filling[given] for given in wanted if given in filling}
    database.canceled_fills.update(canceled)
    while any(r.id in canceled and is_job(r) for r in database.catalog.relations.values()):
        session.cancellation.check()
        time.sleep(_CANCEL_S)
    with database.ddl:  # the circuit runs without them
        database.canceled_fills.difference_update(canceled)
    left = database.catalog.relations.keys()
    ended = [(given,) for given in wanted if given in filling and filling[given] not in left]
    return text_result("CANCEL JOBS", ("Id",), ended)

"""CREATE PUMP: writes the rows of a query over streams to a stream, as long as the pump is started.

A started pump is a materialized view whose rows are copied to its stream; a stopped one is only its text. A pump reads
rows that arrive after its start, and writes everything that arrived before it was stopped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from sqlglot import exp

from watersmeet.binder import bind_query
from watersmeet.binder.clauses.sources import view_statement
from watersmeet.catalog import (
    ROWTIME,
    Catalog,
    LateRows,
    Merging,
    Pump,
    Relation,
    Source,
    StoppedPump,
    Stream,
    turned_into,
)
from watersmeet.database.assignment import merging_of, named_targets
from watersmeet.database.committing import own_transaction
from watersmeet.database.definitions import (
    add,
    check_columns,
    may_create,
    new_relation,
    remove,
    undefined_schema,
    with_dependents,
)
from watersmeet.database.reading import readable
from watersmeet.database.sessions.context import Session, error_at, undefined_relation
from watersmeet.database.sessions.result import Result
from watersmeet.database.sessions.variables import DIALECT, Variables
from watersmeet.database.writing import NO_CLOCK, stream_clock
from watersmeet.dialects.schemas import schema_meant
from watersmeet.dialects.tree.definitions import AlterPump, CreatePump, ResetStream, TruncateStream
from watersmeet.dialects.tree.statements import Delete, Name
from watersmeet.dialects.tree.tokens import quoted
from watersmeet.errors import again, error
from watersmeet.maintenance.views import bind_view, make_delivered
from watersmeet.session.statements.dml import delete
from watersmeet.session.statements.views import target_of
from watersmeet.sinkwriters.writers import SinkWriters

_PUMPS: Final = (Pump, StoppedPump)
#: How long STOP waits for an external target to accept the earlier output of the pump.
_DELIVERY_S: Final = 30.0


def create_pump(session: Session, statement: CreatePump) -> Result:
    """CREATE PUMP name STARTED or STOPPED AS INSERT INTO stream SELECT STREAM …. Also for a stopped pump, errors in the
    query are raised.
    """
    if not may_create(session, statement, statement.name, statement.name_span, statement.if_not_exists):
        return Result("CREATE PUMP")
    statement = _with_columns(session, statement)
    if statement.started:
        _start(session, statement)
        return Result("CREATE PUMP")
    query = bind_query(
        statement.query, readable(session.catalog), statement.text, session.dialect, column_names=statement.column_names
    )
    check_columns(query.columns, statement)
    stream = target_of(session, statement, query.columns, query.depends_on, _merging(session, statement))
    assert stream is not None
    add(
        session,
        new_relation(session, statement, StoppedPump, query.columns, depends_on=query.depends_on, feeds=stream.id),
    )
    return Result("CREATE PUMP")


def alter_pump(session: Session, statement: AlterPump) -> Result:
    """ALTER PUMP name, … START or STOP. A pump already in that state stays unchanged.

    START begins with the pumps that read the output of others, STOP with those that write it, so that no row between
    two pumps is lost. The order of their names has no influence.
    """
    session.require_definer("ALTER PUMP")
    pumps = _in_flow_order(session.catalog, _altered(session, statement))
    for relation in reversed(pumps) if statement.start else pumps:
        with own_transaction(session):
            _alter(session, relation, statement)
    return Result("ALTER PUMP")


def _in_flow_order(catalog: Catalog, pumps: Sequence[Relation]) -> list[Relation]:
    """The pumps, each after those whose rows it reads, directly or indirectly; those of a cycle in any order."""
    writers: dict[str, list[str]] = {}
    for relation in catalog.relations.values():
        if relation.feeds:
            writers.setdefault(relation.feeds, []).append(relation.id)
    order: dict[str, None] = {}
    entered: set[str] = set()

    def visit(relation_id: str) -> None:
        if relation_id in entered or relation_id not in catalog.relations:
            return
        entered.add(relation_id)
        for read in (*catalog.relations[relation_id].depends_on, *writers.get(relation_id, ())):
            visit(read)
        order[relation_id] = None

    for pump in pumps:
        visit(pump.id)
    chosen = {p.id: p for p in pumps}
    return [chosen[i] for i in order if i in chosen]


def _altered(session: Session, statement: AlterPump) -> list[Relation]:
    """The pumps of a statement, each once. Raises UNDEFINED_RELATION, UNDEFINED_OBJECT, CATALOG_TYPE_MISMATCH."""
    return _named(session, statement, _PUMPS, "pump")


def _named(
    session: Session, statement: AlterPump | ResetStream, kinds: tuple[type[Relation], ...], word: str
) -> list[Relation]:
    """The relations of some kinds that a statement names, each once. Raises UNDEFINED_RELATION, UNDEFINED_OBJECT,
    CATALOG_TYPE_MISMATCH.
    """
    known = [r for r in session.catalog.relations.values() if isinstance(r, kinds)]
    found: dict[str, Relation] = {}
    for name in statement.names:
        if name.name == "*":
            schema = name.schema or "*"
            meant = None if schema == "*" else schema_meant(schema, session.catalog)
            if schema != "*" and meant is None:
                raise undefined_schema(session, Name(schema, name.span), statement)
            found |= {r.id: r for r in known if schema == "*" or r.schema == meant}
            continue
        relation = session.find(name)
        if relation is None:
            raise undefined_relation(session.catalog, name, statement, word, [r.shown for r in known])
        if not isinstance(relation, kinds):
            raise error_at(statement, name.span, "CATALOG_TYPE_MISMATCH", f'"{relation.shown}" is not a {word}')
        found[relation.id] = relation
    return [*found.values()]


def reset_stream(session: Session, statement: ResetStream) -> Result:
    """ALTER STREAM name, … RESET: deletes the rows of streams, whose clocks then start again. A foreign stream stays
    unchanged.

    Raises DEPENDENT_OBJECTS for a stream with rows that others read.
    """
    session.require_definer("ALTER STREAM")
    with own_transaction(session):
        for stream in _named(session, statement, (Stream, Source), "stream"):
            if isinstance(stream, Stream) and stream_clock(session, stream) > NO_CLOCK:
                _begin_anew(session, statement, stream)
    return Result("ALTER STREAM")


def truncate_stream(session: Session, statement: TruncateStream) -> Result:
    """TRUNCATE STREAM: deletes all rows. Views over a keyed stream follow. An append stream must have no readers,
    because their rows are never retracted.

    Raises DEPENDENT_OBJECTS, CATALOG_TYPE_MISMATCH.
    """
    command = "TRUNCATE"
    if statement.if_exists and session.find(statement.name) is None:
        session.notice(f'stream "{statement.name.shown}" does not exist, skipping')
        return Result(command)
    stream = session.relation(statement.name, statement)
    if not isinstance(stream, Stream) or not stream.append_only:
        deletion = Delete(text=statement.text, sql=statement.sql, span=statement.span, table=statement.name, alias=None)
        return replace(delete(session, deletion), command=command)
    session.require_definer(command)
    session.require("DELETE", stream, statement.text)
    with own_transaction(session):
        remove(session, with_dependents(session, [stream], statement, cascade=False, verb="truncate"))
        add(session, replace(stream, id=session.catalog.new_id(Stream)))
    return Result(command)


def _begin_anew(session: Session, statement: ResetStream, stream: Stream) -> None:
    remove(session, with_dependents(session, [stream], statement, cascade=False, verb="reset"))
    made = replace(stream, id=session.catalog.new_id(Stream))
    add(session, made)
    session.notice(f"the rows of {stream.title} are deleted, so that its clock begins anew")


def _alter(session: Session, relation: Relation, statement: AlterPump) -> None:
    if statement.start and isinstance(relation, StoppedPump):
        _restart(session, relation)
    elif not statement.start and isinstance(relation, Pump):
        session.database.flush()  # reports errors of the stream now; COMMIT writes the later output
        problem = session.database.unwritten.get(relation.id)
        if problem is not None:
            raise again(problem)
        running = session.database.service(SinkWriters)
        if running is not None:
            running.wait(relation.id, _DELIVERY_S)
        sizes = session.database.sizes.read()
        late = [r for r in session.catalog.relations.values() if isinstance(r, LateRows) and r.owner == relation.id]
        if count := sum(sizes[r.id].rows for r in late if r.id in sizes):
            session.notice(f"{count:,} late rows of {relation.title} are deleted: late_rows() has them until STOP")
        stopped = turned_into(StoppedPump, relation, id=session.catalog.new_id(StoppedPump), append_only=False)
        remove(session, {relation.id})
        add(session, stopped)


def _start(session: Session, statement: CreatePump) -> None:
    bound = bind_view(session, statement)
    merging = _merging(session, statement)
    stream = target_of(session, statement, bound.relation.columns, bound.relation.depends_on, merging)
    assert stream is not None
    pump = turned_into(Pump, bound.relation, feeds=stream.id, merging=merging)
    make_delivered(session, replace(bound, relation=pump), stream)


def _merging(session: Session, statement: CreatePump) -> Merging | None:
    """How the rows of a pump that runs a MERGE are written; None for other pumps."""
    assert statement.into is not None
    into, query = session.relation(statement.into, statement), statement.query
    return merging_of(statement, into, statement.into, statement.targets, query.selects)


def _restart(session: Session, relation: Relation) -> None:
    """Starts a stopped pump. Its names are resolved as when it was created."""
    then = replace(session, variables=Variables(relation.dialect), view=relation)
    then.variables.restore(session.variables.saved())
    then.variables.set(DIALECT, relation.dialect)
    then.variables.set("search_path", ", ".join(map(quoted, relation.path)))
    statement = view_statement(relation)
    assert isinstance(statement, CreatePump)
    statement = _with_columns(then, replace(statement, schema=relation.schema))
    remove(then, {relation.id})
    _start(then, statement)


def _with_columns(session: Session, statement: CreatePump) -> CreatePump:
    """The statement with the target columns of its rows, in the order of the select list."""
    assert statement.into is not None
    stream = session.relation(statement.into, statement)
    columns = (
        [t.column for t in named_targets(stream, statement.targets, statement)] if statement.targets else stream.written
    )
    names = [c.name for c in columns]
    items = statement.query.selects
    selected = len(items)
    if not any(e.is_star for e in items) and selected != len(names) and (statement.targets or selected > len(names)):
        raise error(
            "SYNTAX_ERROR",
            f"INSERT has {selected} expressions for {len(names)} columns",
            sql=statement.text,
            span=statement.into.span,
        )
    if any(e.is_star for e in items):
        return replace(statement, column_names=tuple(names))
    return replace(statement, query=_promoting(statement.query, names), column_names=tuple(names[:selected]))


def _promoting(query: exp.Expression, names: Sequence[str]) -> exp.Expression:
    """The query with the select item for ROWTIME named ROWTIME, which makes it the ROWTIME of the rows."""
    if ROWTIME not in names or not isinstance(query, exp.Select):
        return query
    query = query.copy()
    place = names.index(ROWTIME)
    item = query.expressions[place]
    named = exp.alias_(item.unalias(), exp.to_identifier(ROWTIME, quoted=True), copy=False)
    query.set("expressions", [*query.expressions[:place], named, *query.expressions[place + 1 :]])
    return query

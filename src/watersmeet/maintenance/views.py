"""Views that the circuit keeps up to date: binding, compiling and filling them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import Final

from watersmeet.algebra.nodes import Arrivals, Cut, LateRowFilter, Node, Reopened, Scan
from watersmeet.algebra.rewrites import rewrite
from watersmeet.algebra.trees import exactly, walk
from watersmeet.algebra.watermarks import Watermarks, watermarks
from watersmeet.binder import BoundQuery, as_emitted, bind_query, check_request
from watersmeet.binder import bind_view as bind_view_query
from watersmeet.binder.context.binding import Fill
from watersmeet.binder.context.emissions import JOIN_ROWS_SETTING, Request
from watersmeet.binder.dialects import rules_of
from watersmeet.catalog import CacheFill, MaterializedView, Query, QuerySource, Relation, Source, turned_into
from watersmeet.circuit import operators
from watersmeet.connectors.foreignstreams import OPTIONS_QUERY, starting_options
from watersmeet.connectors.kafka.source import from_place, restarted
from watersmeet.connectors.registry import check_connector
from watersmeet.database.definitions import check_columns, new_relation, remove
from watersmeet.database.filling import Bound, fill, join_order, joins_many, most_join_rows, shares
from watersmeet.database.reading import batch_query, check_running, fetch, readable, runs_on
from watersmeet.database.rebuild import by_source, moved, reading, reopened_scans, scan_of
from watersmeet.database.sessions.context import Session, error_at
from watersmeet.dialects.registry import language_named
from watersmeet.dialects.script import tokenize
from watersmeet.dialects.tree.definitions import CreateMaterializedView
from watersmeet.dialects.tree.queries import read_tree
from watersmeet.dialects.tree.statements import Select, Subscribe
from watersmeet.errors import error
from watersmeet.maintenance.refreshing import refresh_read
from watersmeet.planner import compile_view
from watersmeet.runtime.backfill import LateRowsError
from watersmeet.store.readers import Reader
from watersmeet.values.types import Field
from watersmeet.values.watermarks import Watermark


def queried_options(session: Session, text: str) -> dict[str, str]:
    """The options that the query `text` gives now: of its one row, by the names of its columns, those that are not
    NULL. None if it has no row.

    CONNECTOR_OPTION for several rows; FEATURE_NOT_SUPPORTED for a query that runs until it is stopped; errors of the
    query.
    """
    language = language_named(session.dialect)
    tree = read_tree(tokenize(text, language), text, language.grammar)
    if runs_on(session, tree):
        raise error(
            "FEATURE_NOT_SUPPORTED", f"option {OPTIONS_QUERY} with a query that runs until it is stopped", sql=text
        )
    query = batch_query(session, tree, text)
    rows = fetch(session, query, newest=True)
    if rows.num_rows > 1:
        raise error(
            "CONNECTOR_OPTION",
            f"option {OPTIONS_QUERY} has {rows.num_rows} rows, and one is needed",
            hint="Use WHERE, LIMIT 1 or an aggregate.",
        )
    values = rows.to_pylist()[0].values() if rows.num_rows else ()
    return {c.name: str(value) for c, value in zip(query.columns, values, strict=False) if value is not None}


def begins_now(session: Session, connector: Mapping[str, str], text: str) -> dict[str, str]:
    """The options of the connector of a topic for a query that begins to read it now.

    text: of OPTIONS_QUERY; empty for none. CONNECTOR_OPTION; errors of the query.
    """
    found = starting_options(queried_options(session, text)) if text else {}
    return restarted(connector, found) if found else dict(connector)


_MEMO: Final = (
    "A non-append-only temporal join is used in the query. It would introduce an additional memo-table comparing to "
    "append-only temporal join."
)


def make_writing(session: Session, bound: Bound) -> None:
    """Like `make`, for a view that writes a stream, from its first row on."""
    database = session.database
    with contextlib.ExitStack() as held:
        reader = held.enter_context(closing(Reader(database.layout)))
        reader.pin(database.log.head())  # until it is followed
        make(session, bound)
        if session.transaction is not None:
            session.transaction.ends.push(held.pop_all())
        else:
            database.follow()


def make(session: Session, bound: Bound) -> None:
    """Compiles and fills a view. Raises the error of a view that it reads, if that was stopped."""
    check_running(session, bound.relation.depends_on)
    bound, own = _with_own_sources(session, bound)
    try:
        _make(session, bound)
    except BaseException:
        if own:
            remove(session, own)
        raise


def _with_own_sources(session: Session, bound: Bound) -> tuple[Bound, set[str]]:
    """The view with sources of its own for those that each query reads by itself, and their ids. They are in the
    catalog then, and begin where the query does.
    """
    scans = reopened_scans(bound.tree)
    if not scans:
        return bound, set()
    relation, tree = bound.relation, bound.tree
    read = tree.ids.union(*[s.columns for n in walk(tree) for s in n.scalars])
    number = session.catalog.next_number
    made = []
    for place, scan in enumerate(scans, 1):  # the number before theirs is the view's
        made.append(_own_source(session, scan, relation.id, f"{QuerySource.family[0]}{number + place}", read))
    for source in made:
        session.put(source)
    ids = by_source(made)
    marks = {column: moved(mark, ids) for column, mark in relation.watermarks.items()}
    depends_on = (*relation.depends_on, *(source.id for source in made))
    changed = replace(
        bound, tree=reading(tree, made), relation=replace(relation, watermarks=marks, depends_on=depends_on)
    )
    return changed, {source.id for source in made}


def _own_source(session: Session, node: Reopened, owner: str, source_id: str, read: frozenset[str]) -> QuerySource:
    """What a query reads of a source. read: the ids of the columns that it reads."""
    scan = scan_of(node)
    relation = session.catalog.relations[scan.relation_id]
    assert isinstance(relation, Source)
    unread = {c.name for c in scan.outputs if c.name in relation.unlisted and c.id not in read}
    source = turned_into(
        QuerySource,
        relation,
        id=source_id,
        hidden=True,
        owner=owner,
        of=relation.id,
        start=node.start,
        shards=node.shards,
        strict=node.strict,
        reopened=False,
        columns=tuple(c for c in relation.columns if c.name not in unread),
        message_parts={c: p for c, p in relation.message_parts.items() if c not in unread},
        connector=from_place(begins_now(session, relation.connector, relation.options_query), node.start, node.shards)
        | ({"on_error": "stop"} if node.strict else {}),
    )
    return check_connector(source)


def _make(session: Session, bound: Bound) -> None:
    database = session.database
    _check_order(session, bound)
    if any(isinstance(n, Cut) for n in walk(bound.tree)):
        database.flush()  # what was committed before the moment is history
    replaced = frozenset(
        n.scan.relation_id for n in walk(bound.tree) if isinstance(n, Arrivals) and not n.scan.append_only
    )
    if replaced:
        database.settle(replaced)  # only what is there when a query starts counts as having come
    try:
        made = _filled(session, bound)
    except LateRowsError:
        made = _filled(session, bound)  # now apart from what left them out, so that further ones are no matter
    if any(isinstance(o, operators.TemporalJoin) and o.memo and o.owner == bound.relation.id for o in made):
        session.notice(_MEMO)
    try:
        for number, found in enumerate(bound.fills):
            make(session, _filling(session, bound.relation, found, number))
            database.follow()
    except BaseException:
        remove(session, {bound.relation.id})
        raise


def _check_order(session: Session, bound: Bound) -> None:
    """FEATURE_NOT_SUPPORTED for a query that starts now over relations that the open transaction has written: their
    rows are committed after its start.
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
    """The operators of a view, compiled and filled. LateRowsError, with nothing done."""
    database = session.database
    compiling = partial(
        compile_view,
        bound.tree,
        bound.relation,
        database.plans.producers,
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
    """The hidden view of the rows that a view looks up and the cache of a dictionary lacks."""
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
    """The late-row filters in views, of those views that left rows out."""
    left_out = session.database.log.progress().left_out
    views = [ops for i, ops in session.database.plans.producers.items() if left_out.get(i)]
    return frozenset(o.id for ops in views for o in ops if isinstance(o, operators.LateRowFilter))


def moment(session: Session) -> int:
    """The newest commit that a query starting now follows: of rows of tables, or of any kind if there are other
    inputs.
    """
    log = session.database.log
    head = log.head()
    if not head or any(r.connector or isinstance(r, Source) for r in session.catalog.relations.values()):
        return head
    return log.newest_transaction(head)


def _current(session: Session, bind: Callable[[int], BoundQuery]) -> BoundQuery:
    """The result of `bind`, over the current content of external relations. bind: takes what `moment` returns."""
    found = session.cancellation.computing(bind, moment(session))
    if not refresh_read(session, found.depends_on):
        return found
    return session.cancellation.computing(bind, moment(session))


def bind_running(
    session: Session, request: Request, statement: Select | Subscribe, name: str, *, log: bool = False
) -> Bound:
    """What a running query gives, as a view `name` that no statement can name.

    log: show its output as its dialect shows changes. Errors of `DialectRules.running_output`.
    """
    text = statement.text

    def bind(now: int, closing_us: int | None) -> BoundQuery:
        found = bind_query(
            request.query,
            readable(session.catalog),
            text,
            session.dialect,
            moment=now,
            closing_us=closing_us,
        )
        check_request(request, found.tree, text)
        return found

    bound = _current(session, lambda now: as_emitted(partial(bind, now), request.emission, text))
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
        depends_on=bound.depends_on,
        functions=bound.functions,
        watermarks=watermarks_of(tree),
        hidden=True,
        max_buffered_bytes=bound.max_buffered_bytes,
        most_join_rows=_most_join_rows(session, bound),
    )
    return Bound(tree, relation, bound.rowtime, bound.hidden, bound.fills)


def bind_view(session: Session, statement: CreateMaterializedView) -> Bound:
    """What the statement would create. Errors of the binder, with their places."""
    if other := statement.options.keys() - {JOIN_ROWS_SETTING}:
        name = min(other)
        raise error_at(
            statement, statement.span, "FEATURE_NOT_SUPPORTED", f"option {name} of a materialized view is not supported"
        )
    query = _current(session, lambda now: bind_view_query(statement, readable(session.catalog), session.dialect, now))
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
    )
    return Bound(query.tree, relation, fills=query.fills)


def _most_join_rows(session: Session, query: BoundQuery) -> int:
    return most_join_rows(session.variables) if query.most_join_rows is None else query.most_join_rows


def _optional_rows(statement: CreateMaterializedView, otherwise: int) -> int:
    """The limit in WITH on how many rows a join may make in one epoch. INVALID_PARAMETER."""
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


def watermarks_of(tree: Node, of: Callable[[Node], Watermarks] = watermarks) -> dict[str, Watermark]:
    """The watermarks of the columns by name, as the plan stores them."""
    if not any((isinstance(n, Scan) and n.watermarks) or isinstance(n, LateRowFilter) for n in walk(tree)):
        return {}
    found = of(rewrite(tree))
    return {c.name: found[c.id] for c in tree.columns if c.id in found}

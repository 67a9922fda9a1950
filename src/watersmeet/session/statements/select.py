"""SELECT: over the content as of one moment, or until it is stopped. KILL QUERY."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import duckdb

from watersmeet.catalog import Subscription, turned_into
from watersmeet.database.reading import Bounded, bounded, described, reading, rows_read, runs_on
from watersmeet.database.sessions.context import Session, check_named, error_at
from watersmeet.database.sessions.result import Result, rows_result, text_result
from watersmeet.dialects.tree.statements import KillQuery, Select, Subscribe
from watersmeet.errors import did_you_mean, error
from watersmeet.store.positions import Emitted, Position
from watersmeet.system.libraries import lazy_import

if TYPE_CHECKING:
    from watersmeet.binder import emission
    from watersmeet.binder.context import emissions
    from watersmeet.maintenance import refreshing, views
    from watersmeet.session.services import running
    from watersmeet.sinkwriters import changes
else:
    emission = lazy_import("watersmeet.binder.emission")
    changes = lazy_import("watersmeet.sinkwriters.changes")
    refreshing = lazy_import("watersmeet.maintenance.refreshing")
    running = lazy_import("watersmeet.session.services.running")
    views = lazy_import("watersmeet.maintenance.views")

_NUMBERS: Final = itertools.count(1)


def select(session: Session, statement: Select) -> Result:
    """Runs a query. One that names streams runs until its cursor is closed.

    In a transaction that may write, tables are shown with its own changes.
    """
    if runs_on(session, statement.query):
        shown = running.ShownQuery(start(session, statement, log=session.semantics.changes_topics == "records"))
        return Result("SELECT", shown.columns, running=shown)
    query = bounded(session, statement.query, statement.text)
    table = rows_read(session, lambda: read_now(session, query), query.sql, statement.text, session.result_bytes)
    return rows_result("SELECT", *described(table, query.columns), query.origins)


@contextmanager
def read_now(session: Session, query: Bounded) -> Iterator[duckdb.DuckDBPyConnection]:
    """What `reading` gives, once all that the query reads of other systems has been looked at."""
    outside = refreshing.needed_rows(session, query.narrowed)
    session.show_writes()
    if refreshing.refresh_read(session, [i for i in query.depends_on if i not in outside]):
        session.database.flush()  # a query shows the moment of the newest epoch
    transaction = session.transaction
    newest = transaction is not None and not transaction.read_only
    with reading(session, query, newest=newest, outside=outside) as connection:
        yield connection


def start(session: Session, statement: Select | Subscribe, *, log: bool = False) -> running.RunningQuery:
    """Starts a running query. When this returns, it shows what its inputs have.

    Errors of the binder and the planner. log: give the changes of a table of records as its topic has them.
    """
    session.require_writer("a query that runs until it is stopped")
    database, transaction = session.database, session.transaction
    request = emission.request_of(statement.query, statement.text, session.dialect)
    name = _free_id(session, request, statement.text)
    bound = views.bind_running(session, request, statement, name, log=log)
    check_named(session, bound.relation.depends_on, statement.text)
    followed = changes.Changes(database)
    started_us = database.clock.now_us()
    begin = None
    if isinstance(statement, Subscribe):
        begin = Position(followed.taken, followed.taken, Emitted(left=request.limit, offset=request.offset))
        if transaction is None:
            bound = replace(bound, relation=turned_into(Subscription, bound.relation, subscribed_us=started_us))
    try:
        if begin is not None:
            database.positions.begin(bound.relation.id, begin)
        views.make(session, bound)
    except BaseException:
        followed.close()
        database.positions.forget([bound.relation.id])
        raise
    relation = session.catalog.relations[bound.relation.id]
    if begin is not None and transaction is not None:
        transaction.definitions.subscribe(turned_into(Subscription, relation, subscribed_us=started_us))
    return running.RunningQuery(
        session,
        request,
        relation,
        followed,
        text=statement.sql,
        started_us=started_us,
        rowtime=bound.rowtime,
        hidden=bound.hidden,
        position=begin,
    )


def _free_id(session: Session, request: emissions.Request, text: str) -> str:
    """The id of a new query: the one that it asks for, or a new number. DUPLICATE_OBJECT if another query has it."""
    runs = {q.name for q in session.queries()}
    kept = {r.name for r in session.catalog.relations.values() if isinstance(r, Subscription)}
    wanted = request.query_id
    if wanted is None:
        return next(name for n in _NUMBERS if (name := f"query {n}") not in runs | kept)
    if wanted in runs | kept:
        raise error(
            "DUPLICATE_OBJECT",
            f'a query with id "{wanted}" runs already' if wanted in runs else f'subscription "{wanted}" exists',
            sql=text,
            hint=f"RECOVER FROM '{wanted}' continues it, UNSUBSCRIBE TO '{wanted}' ends it."
            if wanted in kept
            else "Choose another query_id, or end that query: KILL QUERY.",
            code=216,
        )
    return wanted


def kill_query(session: Session, statement: KillQuery) -> Result:
    """KILL QUERY: ends running queries of any cursor of the connection. UNDEFINED_OBJECT, and then ends none."""
    running = {q.name: q for q in session.queries()}
    for name in statement.ids:
        if name.name not in running:
            raise error_at(
                statement,
                name.span,
                "UNDEFINED_OBJECT",
                f'no query with id "{name.name}" runs',
                hint=did_you_mean(name.name, running) or "SHOW QUERIES lists those that run.",
            )
    killed = [running[i] for i in dict.fromkeys(n.name for n in statement.ids)]
    for query in killed:
        query.kill()
    rows = [("finished", q.name, q.text) for q in killed]
    return text_result("KILL QUERY", ("kill_status", "query_id", "query"), rows)

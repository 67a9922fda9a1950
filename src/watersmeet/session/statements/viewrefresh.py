"""REFRESH MATERIALIZED VIEW: stopped views are computed again from their statements, and run again.

PostgreSQL and RisingWave, "REFRESH MATERIALIZED VIEW". Each stopped view is filled as a hidden one over the current
content of its inputs. One commit then starts the stopped views again with the operators of the hidden ones, and changes
their content by the difference: identity, grants, indexes, sinks and subscriptions stay.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from watersmeet.catalog import (
    CacheFill,
    MaterializedView,
    NamedSubscription,
    Query,
    Relation,
    Sink,
    Subscription,
    turned_into,
)
from watersmeet.circuit.operators import Arrivals, Operator
from watersmeet.circuit.operators import Sink as SinkOperator
from watersmeet.connectors.base.deliveries import deliveries
from watersmeet.database import transactions
from watersmeet.database.definitions import remove
from watersmeet.database.filling import fill, undo
from watersmeet.database.rebuild import plan_made_anew
from watersmeet.database.sessions.context import Session, error_at, located, sentence, undefined_relation
from watersmeet.database.sessions.result import Result
from watersmeet.delivery.deliveries import Deliveries
from watersmeet.dialects.statements.refresh import RefreshView
from watersmeet.errors import Error, error, error_from_json
from watersmeet.maintenance.views import moment, rows_left_out
from watersmeet.planner import assemble
from watersmeet.runtime.rebuilds import check_rebuild

_COMMAND = "REFRESH MATERIALIZED VIEW"


def refresh_view(session: Session, statement: RefreshView) -> Result:
    """REFRESH MATERIALIZED VIEW of one view, and the stopped ones that read it, or of all stopped views.

    A view that was not stopped follows its inputs by itself: outside of a transaction the statement waits for it.
    UNDEFINED_RELATION, CATALOG_TYPE_MISMATCH, TRANSACTION_STATE, FEATURE_NOT_SUPPORTED, DEPENDENT_OBJECTS; the error
    of a stopped relation that a view reads; those of filling a view.
    """
    stopped = _stopped(session)
    if statement.name is not None:
        view = _named(session, statement)
        read = {view.id, *(r.id for r in session.catalog.dependents(view.id))}
        if view.id not in stopped:
            session.notice(f"{view.title} keeps itself up to date")
        stopped = {i: r for i, r in stopped.items() if i in read}
    elif not stopped:
        session.notice("no materialized view is stopped")
    if stopped:
        session.require_definer(_COMMAND)
        session.require_no_transaction(_COMMAND)
        with located(statement, statement.span if statement.name is None else statement.name.span):
            refresh(session, stopped)
    if session.transaction is None and not session.database.read_only:
        transactions.flush(session)
    return Result(_COMMAND)


def _stopped(session: Session) -> dict[str, MaterializedView]:
    """All stopped views by id, inputs first. Running queries have ended with the error."""
    catalog = session.database.catalog
    found = [r for i in session.database.log.progress().failed if (r := catalog.relations.get(i)) is not None]
    return refreshable(session, found)


def refreshable(session: Session, relations: Iterable[Relation]) -> dict[str, MaterializedView]:
    """Those of the relations that can be refreshed, by id, inputs first."""
    catalog = session.database.catalog
    views = [r for r in relations if isinstance(r, MaterializedView) and not isinstance(r, Query)]
    return {r.id: r for r in sorted(views, key=lambda r: (len(catalog.upstream([r.id])), r.id))}


def _named(session: Session, statement: RefreshView) -> MaterializedView:
    assert statement.name is not None
    view = session.find(statement.name)
    if view is None:
        names = [r.shown for r in session.catalog.shown if isinstance(r, MaterializedView) and r.is_named]
        raise undefined_relation(session.catalog, statement.name, statement, "materialized view", names)
    if not isinstance(view, MaterializedView):
        raise error_at(
            statement, statement.name.span, "CATALOG_TYPE_MISMATCH", f'"{view.shown}" is not a materialized view'
        )
    return view


def refresh(session: Session, stopped: Mapping[str, MaterializedView]) -> None:
    """Fills hidden views in the order of `stopped`, and starts these again. After an error all is as before."""
    database = session.database
    check_inputs(session, stopped)
    database.flush()
    made: dict[str, str] = {}
    plans: dict[str, Sequence[Operator]] = {}
    try:
        for view in stopped.values():
            plans[view.id] = _plan(session, view, plans)
            _check_readers(session, view, plans[view.id])
            _settle(session, plans[view.id])
            hidden = _hidden(session, view, made)
            *operators, sink = plans[view.id]
            assert isinstance(sink, SinkOperator)
            fill(session, hidden, (*operators, replace(sink, relation_id=hidden.id)))
            made[view.id] = hidden.id
        lost = {view: hidden for view, hidden in made.items() if not database.has_difference(view, hidden)}
        for view_id in lost:
            _check_lost(session, stopped[view_id])
        database.replace_content(lost)
        database.refresh(plans, made)
    except BaseException:
        undo(session, set(made.values()))
        raise
    remove(session, set(made.values()))
    running = database.service(Deliveries)
    for delivery in deliveries(database.catalog):
        if delivery.relation in stopped and running is not None:
            running.restart(delivery.id)
    session.reported_failures.difference_update(stopped)


def check_inputs(session: Session, stopped: Mapping[str, MaterializedView]) -> None:
    """The error of a stopped relation that one of the views reads and the statement does not start again;
    FEATURE_NOT_SUPPORTED for views that fill caches.
    """
    known, failed = session.database.catalog.relations, session.database.log.progress().failed
    for view in stopped.values():
        for relation_id in sorted(session.database.catalog.upstream([view.id])):
            if relation_id in failed and relation_id not in stopped:
                found = error_from_json(failed[relation_id])
                raise error(
                    found.condition,
                    f"{view.title} can't be refreshed: {known[relation_id].title}, which it reads, was stopped",
                    detail=found.message,
                    hint=f"{_COMMAND} ALL refreshes all stopped views."
                    if isinstance(known[relation_id], MaterializedView)
                    else f"Drop both and create them again: {_COMMAND} is for views only.",
                )
        if any(isinstance(r, CacheFill) and r.owner == view.id for r in known.values()):
            raise error(
                "FEATURE_NOT_SUPPORTED",
                f"{_COMMAND} of {view.title}, which fills the cache of a dictionary, is not supported",
                hint="Drop the view and create it again.",
            )


def _plan(session: Session, view: MaterializedView, plans: Mapping[str, Sequence[Operator]]) -> Sequence[Operator]:
    """The plan of a stopped view. plans: of those before it. Operators of other stopped views are not shared."""
    database = session.database
    progress = database.log.progress()
    running = {i: ops for i, ops in database.plans.producers.items() if i not in progress.failed}
    return plan_made_anew(
        view,
        {**running, **plans},
        database.catalog,
        moment=moment(session),
        late=progress.late,
        left_out=rows_left_out(session),
    )


def _settle(session: Session, plan: Sequence[Operator]) -> None:
    """Compacts relations of whose arrivals a view is made, so that their history is their present rows only."""
    circuit = assemble([plan], session.database.buckets)
    arrivals = {o.id for o in circuit.operators if isinstance(o, Arrivals) and o.moment}
    read = circuit.upstream(arrivals)
    if relations := frozenset(s.relation_id for s in circuit.scans if s.id in read):
        session.database.settle(relations)


def _check_readers(session: Session, view: MaterializedView, plan: Sequence[Operator]) -> None:
    """FEATURE_NOT_SUPPORTED if others were given changes of a view whose rows its inputs do not tell again."""
    if readers := _readers(session, view):
        database = session.database
        try:
            check_rebuild(assemble([plan], database.buckets), database.log.progress(), database.catalog.relations)
        except Error as refused:
            raise error(
                "FEATURE_NOT_SUPPORTED",
                f"{view.title} can't be refreshed: {refused.message}",
                detail=f"{refused.detail} {sentence(f'{r.title} depends on its changes' for r in readers)}",
                hint="Drop the view and its readers, and create them again.",
            ) from refused


def _check_lost(session: Session, view: MaterializedView) -> None:
    """DEPENDENT_OBJECTS if others were given changes of a view whose new content no change can tell them."""
    if readers := _readers(session, view):
        raise error(
            "DEPENDENT_OBJECTS",
            f"cannot refresh {view.title} because rows that it showed are lost and other objects depend on its changes",
            detail=sentence(f"{r.title} depends on it" for r in readers),
            hint="Drop these, refresh the view, and create them again.",
        )


def _readers(session: Session, view: MaterializedView) -> list[Relation]:
    """The objects that received the changes of a view: sinks, subscriptions, the view itself if it writes a stream."""
    known = session.database.catalog.relations.values()
    found: list[Relation] = [r for r in known if isinstance(r, Sink) and (r.delivers == view.id or r.id == view.owner)]
    found += [r for r in known if isinstance(r, NamedSubscription) and view.id in r.depends_on]
    return found or ([view] if view.feeds or isinstance(view, Subscription) else [])


def _hidden(session: Session, view: MaterializedView, made: Mapping[str, str]) -> MaterializedView:
    return turned_into(
        MaterializedView,
        view,
        id=session.catalog.new_id(MaterializedView),
        name=f"?{view.name}",
        hidden=True,
        staged=True,
        feeds="",
        depends_on=tuple(made.get(i, i) for i in view.depends_on),
    )

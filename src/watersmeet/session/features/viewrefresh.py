"""REFRESH MATERIALIZED VIEW (PostgreSQL and RisingWave): stopped views are computed again and restarted.

Each stopped view is filled as a hidden one over the current content of its inputs. One commit then restarts the stopped
views with the operators of the hidden ones, and changes their content by the difference, so that they keep their
identity, grants, indexes, sinks and subscriptions.

`reset_clock` sets the time of epochs to the machine's clock. Only this function sets that time back. Timers rely on it,
so the same commit stops the views whose operators follow the clock; they are then refreshed.

SYSTEM PAUSE and RESUME of materialized views (Timeplus): the content of a paused view does not change. All views of a
database have one read position. So the operators of a paused view continue, but their output becomes the content of a
hidden view. RESUME changes the paused view by the difference between the two, in one commit, and its operators write to
it again. Until then its readers, its stream (INTO) and its sinks receive nothing. Views that read a paused one share
its operators, so they are paused and resumed with it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final

from watersmeet.catalog import (
    ARRIVAL,
    CacheFill,
    Catalog,
    MaterializedView,
    NamedSubscription,
    PausedQuery,
    Query,
    Relation,
    Sink,
    SinkQuery,
    Subscription,
    turned_into,
)
from watersmeet.circuit.operators import Arrivals, Operator
from watersmeet.circuit.operators import Sink as SinkOperator
from watersmeet.connectors.base.targets import deliveries
from watersmeet.database import committing
from watersmeet.database.definitions import remove
from watersmeet.database.filling import fill, undo
from watersmeet.database.rebuild import plan_made_anew
from watersmeet.database.sessions.context import Session, error_at, located, sentence, undefined_relation
from watersmeet.database.sessions.result import Result
from watersmeet.dialects.readers import reads
from watersmeet.dialects.tree.definitions import PauseView
from watersmeet.dialects.tree.statements import Name, Statement
from watersmeet.dialects.tree.tokens import Cursor, not_supported, span_of
from watersmeet.errors import Error, error, error_from_json
from watersmeet.maintenance.views import moment, rows_left_out
from watersmeet.planner import assemble
from watersmeet.runtime.plans import check_rebuild
from watersmeet.runtime.reach import follows_clock
from watersmeet.session.handlers import handles
from watersmeet.sinkwriters.writers import SinkWriters

_SYSTEM: Final = "SYSTEM"


@dataclass(frozen=True, kw_only=True)
class RefreshView(Statement):
    """`REFRESH MATERIALIZED VIEW [CONCURRENTLY] name [WITH DATA]`. name: None for ALL, which means all stopped
    views.
    """

    defines: ClassVar[bool] = True

    name: Name | None


@reads("REFRESH")
def read_refresh(cursor: Cursor, base: dict[str, Any]) -> Statement:
    """The cursor stands after REFRESH."""
    cursor.expect("MATERIALIZED", "VIEW")
    cursor.take("CONCURRENTLY")  # readers never wait
    name = None if cursor.take("ALL") else cursor.relation_name()
    if cursor.at("WITH", "NO", "DATA"):
        raise not_supported("WITH NO DATA", cursor.text, span_of(cursor.rest))
    cursor.take("WITH", "DATA")
    cursor.end()
    return RefreshView(**base, name=name)


_COMMAND = "REFRESH MATERIALIZED VIEW"


@handles(RefreshView)
def refresh_view(session: Session, statement: RefreshView) -> Result:
    """REFRESH MATERIALIZED VIEW of one view and its stopped readers, or of all stopped views.

    A view that is not stopped needs no refresh: outside of a transaction the statement waits until it is current.
    Raises UNDEFINED_RELATION, CATALOG_TYPE_MISMATCH, TRANSACTION_STATE, FEATURE_NOT_SUPPORTED, DEPENDENT_OBJECTS, the
    error of a stopped relation that a view reads, and the errors of filling a view.
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
        committing.flush(session)
    return Result(_COMMAND)


def _stopped(session: Session) -> dict[str, MaterializedView]:
    """All stopped views by id, inputs first. Running queries are not among them: an error ends them."""
    catalog = session.database.catalog
    found = [r for i in session.database.log.progress().stopped if (r := catalog.relations.get(i)) is not None]
    return refreshable(session, found)


def refreshable(session: Session, relations: Iterable[Relation]) -> dict[str, MaterializedView]:
    """The refreshable ones of these relations, by id, inputs first."""
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
    """Fills hidden views in the order of `stopped`, and restarts the stopped views with them. An error leaves
    everything unchanged.
    """
    database = session.database
    check_inputs(session, stopped)
    database.flush()
    made: dict[str, str] = {}
    plans: dict[str, Sequence[Operator]] = {}
    try:
        for view in stopped.values():
            plans[view.id] = _plan(session, view, plans)
            _check_readers(session, view, plans[view.id])
            settle(session, plans[view.id])
            hidden = hidden_twin(session, view, made)
            *operators, sink = plans[view.id]
            assert isinstance(sink, SinkOperator)
            fill(session, hidden, (*operators, replace(sink, relation_id=hidden.id)))
            made[view.id] = hidden.id
        _switch(session, stopped, plans, made)
    except BaseException:
        undo(session, set(made.values()))
        raise
    end(session, stopped, made)


def run_again(
    session: Session,
    stopped: Mapping[str, MaterializedView],
    plans: Mapping[str, Sequence[Operator]],
    made: Mapping[str, str],
) -> None:
    """Restarts stopped views with their plans and the content of the hidden views `made`, which it then removes."""
    _switch(session, stopped, plans, made)
    end(session, stopped, made)


def _switch(
    session: Session,
    stopped: Mapping[str, MaterializedView],
    plans: Mapping[str, Sequence[Operator]],
    made: Mapping[str, str],
) -> None:
    database = session.database
    lost = {view: hidden for view, hidden in made.items() if not database.has_difference(view, hidden)}
    for view_id in lost:
        _check_lost(session, stopped[view_id])
    database.replace_content(lost)
    database.circuit.refresh(plans, made)


def end(session: Session, stopped: Collection[str], made: Mapping[str, str]) -> None:
    """Removes hidden views after others took over their content (`made`), and restarts the sinks of those views."""
    database = session.database
    remove(session, set(made.values()))
    running = database.service(SinkWriters)
    for delivery in deliveries(database.catalog):
        if delivery.relation in stopped and running is not None:
            running.restart(delivery.id)
    session.reported_failures.difference_update(stopped)


def check_inputs(session: Session, stopped: Mapping[str, MaterializedView]) -> None:
    """Raises the error of a stopped relation that one of the views reads and that is not restarted with it, and
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
    """The plan of a stopped view. It shares operators with `plans`, those of earlier views, but not with other stopped
    views.
    """
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


def settle(session: Session, plan: Sequence[Operator]) -> None:
    """Compacts relations whose order of arrival determines a view, so that their history consists of their current
    rows.
    """
    circuit = assemble([plan], session.database.buckets)
    arrivals = {o.id for o in circuit.operators if isinstance(o, Arrivals) and o.moment}
    read = circuit.upstream(arrivals)
    if relations := frozenset(s.relation_id for s in circuit.scans if s.id in read):
        session.database.settle(relations)


def _check_readers(session: Session, view: MaterializedView, plan: Sequence[Operator]) -> None:
    """Raises FEATURE_NOT_SUPPORTED if another object has received changes of a view whose rows can't be computed
    again.
    """
    if readers := receivers(session, view):
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
    """Raises DEPENDENT_OBJECTS if another object has received changes of a view that changes can't bring to its new
    content.
    """
    if readers := receivers(session, view):
        raise error(
            "DEPENDENT_OBJECTS",
            f"cannot refresh {view.title} because rows that it showed are lost and other objects depend on its changes",
            detail=sentence(f"{r.title} depends on it" for r in readers),
            hint="Drop these, refresh the view, and create them again.",
        )


def receivers(session: Session, view: MaterializedView) -> list[Relation]:
    """The objects that received the changes of a view: sinks, subscriptions, and the view itself if it writes a
    stream.
    """
    known = session.database.catalog.relations.values()
    found: list[Relation] = [r for r in known if isinstance(r, Sink) and (r.delivers == view.id or r.id == view.owner)]
    found += [r for r in known if isinstance(r, NamedSubscription) and view.id in r.depends_on]
    return found or ([view] if view.feeds or isinstance(view, Subscription) else [])


def hidden_twin(session: Session, view: MaterializedView, made: Mapping[str, str], number: int = 0) -> MaterializedView:
    """The hidden view that is filled in place of a view. made: those for views that it reads; number: of how many
    relations that are not stored yet it follows.
    """
    return turned_into(
        MaterializedView,
        view,
        id=session.catalog.new_id(MaterializedView, number),
        name=f"?{view.name}",
        hidden=True,
        staged=True,
        feeds="",
        late=(),
        depends_on=tuple(made.get(i, i) for i in view.depends_on),
    )


def twins_of(catalog: Catalog, view: MaterializedView) -> list[MaterializedView]:
    """The hidden views that are being filled to replace a view."""
    found = [r for r in catalog.relations.values() if type(r) is MaterializedView and r.hidden and r.staged]
    return [r for r in found if (r.name, r.schema) == (f"?{view.name}", view.schema)]


def reset_clock(session: Session) -> None:
    """Sets the time of epochs back to the machine's clock if it is ahead, and refreshes the views that follow it.

    Raises FEATURE_NOT_SUPPORTED, before any change, if the output of such a view is final or can't be computed again,
    or if event times are those of the epochs. If refreshing fails, the views stay stopped.
    """
    database = session.database
    with database.guard:
        ahead = database.log.progress().time_us > database.clock.now_us()
    if not ahead:
        session.notice("the time of epochs is not ahead of the machine's clock")
        return
    database.flush()
    _check_event_times(session)
    circuit = database.engine.circuit
    timed: set[str] = set()
    if circuit is not None:
        following = {o.id for o in circuit.operators if follows_clock(o)}
        timed = {i for i, below in circuit.below_sinks.items() if not below.isdisjoint(following)}
    found = [r for i, r in database.catalog.relations.items() if i in timed]
    views = refreshable(session, found)
    check_inputs(session, views)
    for view in views.values():
        _check(session, view)
    database.engine.stop_views({r.id: _clock_was_reset(r.reader).to_json() for r in found}, reset_clock=True)
    refresh(session, views)


def _clock_was_reset(name: str) -> Error:
    return error(
        "VIEW_FAILED",
        f"{name} was stopped: the clock was reset",
        hint="REFRESH MATERIALIZED VIEW computes the view again.",
    )


def _check_event_times(session: Session) -> None:
    """Raises FEATURE_NOT_SUPPORTED if rows of a source would be late because their event times are those of epochs."""
    for relation in session.database.catalog.relations.values():
        if relation.connector and relation.event_time is not None and ARRIVAL in relation.defaults.values():
            raise error(
                "FEATURE_NOT_SUPPORTED",
                f"the clock can't be reset: {relation.title} has a watermark and a column AS PROCTIME()",
                detail="Its rows would be late until the machine's clock has reached the time of the newest epoch.",
                hint="Wait until then, or drop it and create it again after the reset.",
            )


def _check(session: Session, view: MaterializedView) -> None:
    """Raises FEATURE_NOT_SUPPORTED for a view that follows the clock and can't be filled again at an earlier time."""
    database = session.database
    plan = database.plans.producers[view.id]
    hint = "Wait until the machine's clock has reached it, or drop the view and create it again after the reset."
    if view.append_only or (view.feeds and not isinstance(view, SinkQuery)):
        raise error(
            "FEATURE_NOT_SUPPORTED",
            f"the clock can't be reset: rows that {view.title} has output by the clock are final",
            hint=hint,
        )
    try:
        check_rebuild(assemble([plan], database.buckets), database.log.progress(), database.catalog.relations)
    except Error as refused:
        raise error(
            "FEATURE_NOT_SUPPORTED",
            f"the clock can't be reset: {view.title} follows it and can't be computed again",
            detail=refused.detail,
            hint=hint,
        ) from refused


@handles(PauseView)
def pause_view(session: Session, statement: PauseView) -> Result:
    """SYSTEM PAUSE or RESUME MATERIALIZED VIEW. Raises UNDEFINED_RELATION, CATALOG_TYPE_MISMATCH, TRANSACTION_STATE,
    DEPENDENT_OBJECTS, and the error of a stopped view.
    """
    session.require_definer(_SYSTEM)
    view = session.find(statement.name)
    if view is None:
        names = [r.shown for r in session.catalog.shown if isinstance(r, MaterializedView) and r.is_named]
        raise undefined_relation(session.catalog, statement.name, statement, "materialized view", names)
    if not isinstance(view, MaterializedView):
        span = statement.name.span
        raise error_at(statement, span, "CATALOG_TYPE_MISMATCH", f'"{view.shown}" is not a materialized view')
    (pause if statement.pause else resume)(session, view)
    return Result(_SYSTEM)


def pause(session: Session, view: Relation) -> None:
    """Pauses a view and the views that read it. Raises DEPENDENT_OBJECTS if a running query reads one."""
    session.require_no_transaction("SYSTEM PAUSE MATERIALIZED VIEW")
    database, kept = session.database, _kept(session)
    if view.id in kept:
        session.notice(f"{view.title} is already paused")
        return
    readers = database.catalog.dependents(view.id)
    running = [r for r in readers if isinstance(r, Query)]
    if running:
        raise error(
            "DEPENDENT_OBJECTS",
            f"cannot pause {view.title} because running queries read it",
            detail=sentence(f"{r.reader} reads it" for r in running),
            hint="End them with KILL QUERY.",
        )
    failed = database.log.progress().stopped
    views = {i: v for i, v in refreshable(session, [view, *readers]).items() if i not in kept and i not in failed}
    if view.id in failed:
        raise error_from_json(failed[view.id])
    made: dict[str, str] = {}
    try:
        for one in views.values():
            *operators, sink = database.plans.producers[one.id]
            assert isinstance(sink, SinkOperator)
            hidden = turned_into(
                PausedQuery,
                one,
                id=session.catalog.new_id(PausedQuery),
                name=f"?{one.name}",
                hidden=True,
                feeds="",
                late=(),
                owner=one.id,
            )
            fill(session, hidden, (*operators, replace(sink, relation_id=hidden.id)))
            made[one.id] = hidden.id
        database.engine.stop_views({i: _paused(v).to_json() for i, v in views.items()})
    except BaseException:
        undo(session, set(made.values()))
        raise
    for reader in list(views.values())[1:]:
        session.notice(f"{reader.title}, which reads {view.title}, is paused with it")


def _paused(view: Relation) -> Error:
    hint = f"Run SYSTEM RESUME MATERIALIZED VIEW {view.shown}."
    return error("VIEW_PAUSED", f"{view.reader} is paused", hint=hint)


def resume(session: Session, view: Relation) -> None:
    """Resumes a view and the views that read it. Raises DEPENDENT_OBJECTS if a view that it reads is paused, and the
    error that stopped the hidden view.
    """
    session.require_no_transaction("SYSTEM RESUME MATERIALIZED VIEW")
    database, kept = session.database, _kept(session)
    if view.id not in kept:
        session.notice(f"{view.title} is not paused")
        return
    below = [database.catalog.relations[i] for i in sorted(database.catalog.upstream([view.id])) if i in kept]
    below = [r for r in below if r.id != view.id]
    if below:
        raise error(
            "DEPENDENT_OBJECTS",
            f"cannot resume {view.title}: {below[0].title}, which it reads, is paused",
            hint=f"SYSTEM RESUME MATERIALIZED VIEW {below[0].shown} resumes both.",
        )
    views = refreshable(session, [view, *database.catalog.dependents(view.id)])
    made = {i: kept[i] for i in views if i in kept}
    stopped = database.log.progress().stopped
    for hidden in made.values():
        if hidden in stopped:
            raise error_from_json(stopped[hidden])
    database.flush()
    plans: Mapping[str, Sequence[Operator]] = {i: database.plans.producers[i] for i in made}
    run_again(session, {i: v for i, v in views.items() if i in made}, plans, made)


def _kept(session: Session) -> dict[str, str]:
    """For each paused view, the hidden view with its later content."""
    known = session.database.catalog.relations.values()
    paused = session.database.log.progress().failed
    return {r.owner: r.id for r in known if isinstance(r, PausedQuery) and r.owner in paused}

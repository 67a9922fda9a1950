"""SYSTEM PAUSE and RESUME of materialized views (Timeplus): the content of a paused view does not change.

All views of a database have one read position. So the operators of a paused view continue, but their output becomes
the content of a hidden view. RESUME changes the paused view by the difference between the two, in one commit, and its
operators write to it again. Until then its readers, its stream (INTO) and its sinks receive nothing.

Views that read a paused one share its operators, so they are paused and resumed with it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from watersmeet.catalog import MaterializedView, PausedQuery, Query, Relation, turned_into
from watersmeet.circuit.operators import Operator
from watersmeet.circuit.operators import Sink as SinkOperator
from watersmeet.database.filling import fill, undo
from watersmeet.database.sessions.context import Session, error_at, sentence, undefined_relation
from watersmeet.database.sessions.result import Result
from watersmeet.dialects.tree.definitions import PauseView
from watersmeet.errors import Error, error, error_from_json
from watersmeet.session.features.viewrefresh import refreshable, run_again
from watersmeet.session.handlers import handles

_COMMAND: Final = "SYSTEM"


@handles(PauseView)
def pause_view(session: Session, statement: PauseView) -> Result:
    """SYSTEM PAUSE or RESUME MATERIALIZED VIEW. Raises UNDEFINED_RELATION, CATALOG_TYPE_MISMATCH, TRANSACTION_STATE,
    DEPENDENT_OBJECTS, and the error of a stopped view.
    """
    session.require_definer(_COMMAND)
    view = session.find(statement.name)
    if view is None:
        names = [r.shown for r in session.catalog.shown if isinstance(r, MaterializedView) and r.is_named]
        raise undefined_relation(session.catalog, statement.name, statement, "materialized view", names)
    if not isinstance(view, MaterializedView):
        span = statement.name.span
        raise error_at(statement, span, "CATALOG_TYPE_MISMATCH", f'"{view.shown}" is not a materialized view')
    (pause if statement.pause else resume)(session, view)
    return Result(_COMMAND)


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

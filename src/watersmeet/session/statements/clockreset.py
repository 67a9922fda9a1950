"""ALTER SYSTEM RESET clock: the time of epochs begins again at the machine's clock.

The time of epochs never falls by itself, because timers rely on that. The statement stops the views whose operators
follow the clock, sets the time in the same commit, and refreshes these views: each is filled at the new time. All other
views go on.
"""

from __future__ import annotations

from watersmeet.catalog import ARRIVAL, MaterializedView, SinkQuery
from watersmeet.database.sessions.context import Session
from watersmeet.errors import Error, error
from watersmeet.planner import assemble
from watersmeet.runtime.idleness import follows_clock
from watersmeet.runtime.rebuilds import check_rebuild
from watersmeet.session.statements.viewrefresh import check_inputs, refresh, refreshable


def reset_clock(session: Session) -> None:
    """Sets the time of epochs to the machine's clock if it is ahead of that, and refreshes the views that follow it.

    FEATURE_NOT_SUPPORTED, with nothing done, if a view that follows the clock has output that is final or can't be
    computed again, or if event times are those of the epochs. An error while the views are refreshed leaves them
    stopped.
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
    database.engine.reset_clock({r.id: _stopped(r.reader).to_json() for r in found})
    refresh(session, views)


def _stopped(name: str) -> Error:
    return error(
        "VIEW_FAILED",
        f"{name} was stopped: the clock was reset",
        hint="REFRESH MATERIALIZED VIEW computes the view again.",
    )


def _check_event_times(session: Session) -> None:
    """FEATURE_NOT_SUPPORTED if rows of a source would be late, as their event times come from the time of epochs."""
    for relation in session.database.catalog.relations.values():
        if relation.connector and relation.event_time is not None and ARRIVAL in relation.defaults.values():
            raise error(
                "FEATURE_NOT_SUPPORTED",
                f"the clock can't be reset: {relation.title} has a watermark and a column AS PROCTIME()",
                detail="Its rows would be late until the machine's clock has reached the time of the newest epoch.",
                hint="Wait until then, or drop it and create it again after the reset.",
            )


def _check(session: Session, view: MaterializedView) -> None:
    """FEATURE_NOT_SUPPORTED for a view that follows the clock and can't be filled again at an earlier time."""
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

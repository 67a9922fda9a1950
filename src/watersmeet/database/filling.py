"""Adds relations that the circuit maintains to catalog and circuit, fills them, and removes them.

Session variables determine the plans of new relations.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final, TypeGuard

from watersmeet.algebra.nodes import Node
from watersmeet.algebra.rewrites import JoinOrder
from watersmeet.binder.context.binding import Fill
from watersmeet.binder.context.emissions import JOIN_ROWS_SETTING
from watersmeet.catalog import MaterializedView, Relation
from watersmeet.circuit.operators import Operator
from watersmeet.connectors.base.sources import rate_limit
from watersmeet.database.plans import Plans
from watersmeet.database.sessions.context import JointFill, Session
from watersmeet.database.sessions.variables import Variables
from watersmeet.errors import Error, error
from watersmeet.objectstores import storage

if TYPE_CHECKING:
    from watersmeet.planner import Producers


@dataclass(frozen=True)
class Bound:
    """A view that is about to be created: the tree of its query, and its catalog entry.

    rowtime, hidden: see `BoundQuery`.
    """

    tree: Node
    relation: MaterializedView
    rowtime: str | None = None
    hidden: bool = False
    fills: tuple[Fill, ...] = ()


#: The variable and the option of views with the maximum number of rows of history per second.
FILL_RATE: Final = "backfill_rate_limit"


def fill_rate(text: str) -> int | None:
    """A limit of rows of history per second; None for any number. Raises CONNECTOR_OPTION."""
    return rate_limit({FILL_RATE: text}, FILL_RATE)


def fill(session: Session, relation: Relation, operators: Sequence[Operator]) -> None:
    """Creates a relation that `operators` maintain. Returns once the relation reflects its inputs.

    On failure nothing remains. Other statements, except those that change the catalog, continue meanwhile. Within
    `JointFill`, the relation only joins those that `fill_together` will create.
    """
    relation = replace(relation, ready=False, append_only=operators[-1].append_only)
    if session.joint is None:
        for what in fill_at_once(session, [relation], {relation.id: operators}).values():
            session.notice(f"{'the query' if relation.hidden else relation.title} lacks {what}")
        return
    seen: Relation | None = relation
    if session.transaction is not None:
        seen = session.transaction.definitions.put(relation, session.database.catalog)
    session.joint.add(relation, replace(seen or relation, ready=True), operators)


def fill_together(session: Session, joint: JointFill) -> bool:
    """Creates and fills the views of several statements in one step. False if that failed and nothing of it remains;
    also if history of an input is missing, which each view must report.
    """
    made = list(joint.relations.values())
    try:
        lost = fill_at_once(session, made, joint.operators)
        if lost:
            undo(session, set(joint.relations))
    except Error as err:
        if err.condition == "QUERY_CANCELED":
            forget_joint(session, joint)
            raise
        lost = {"": ""}
    except BaseException:
        forget_joint(session, joint)
        raise
    if lost:
        forget_joint(session, joint)
    return not lost


def forget_joint(session: Session, joint: JointFill) -> None:
    """Forgets views that were not created in the end."""
    if session.transaction is not None:
        session.transaction.definitions.made.difference_update(joint.relations)


def fill_at_once(
    session: Session, relations: Sequence[Relation], operators: Mapping[str, Sequence[Operator]]
) -> Mapping[str, str]:
    """Creates relations and fills them in one step; on failure none remains. relations: not ready, inputs first.

    Returns what is missing of the history of their inputs, by relation id.
    """
    database = session.database
    ids = [r.id for r in relations]
    try:
        for relation_id in ids:
            database.plans.add(relation_id, operators[relation_id])
        session.put(*relations)
        lost = database.engine.install(database.plans.circuit, ids, partial(_check_canceled, session, frozenset(ids)))
        known = session.catalog.relations  # the limits of fills may have changed meanwhile
        session.put(*(replace(known.get(r.id, r), ready=True) for r in relations))
    except BaseException:
        undo(session, set(ids))
        raise
    return lost


def is_job(relation: Relation) -> TypeGuard[MaterializedView]:
    """Whether a relation is a view that is being filled."""
    return isinstance(relation, MaterializedView) and not relation.ready and not relation.hidden


def job_id(view: Relation) -> str:
    """The id of the fill of a view."""
    return view.id[1:]


def _check_canceled(session: Session, ids: frozenset[str]) -> None:
    """Raises QUERY_CANCELED if the statement that fills views, or the fill of one of them, was canceled."""
    session.cancellation.check()
    if ids & session.database.canceled_fills:
        raise error("QUERY_CANCELED", "the fill of the view was canceled")


def undo(session: Session, ids: set[str]) -> None:
    """Removes relations that no session has seen yet. It raises no error, so that the original error is reported.

    The plan of a relation stays if it is unknown whether its commit succeeded.
    """
    database = session.database
    stored = False
    with database.guard:
        if ids & database.catalog.relations.keys():
            stored = database.forget(ids)
            for relation_id in ids:
                database.content.drop(relation_id)
    database.sink_positions.forget(ids)
    database.sequences.forget(ids)
    with contextlib.suppress(Error):
        _take_out(session, ids, stored=stored)


def clear_away(session: Session, dropped: set[str]) -> None:
    """Removes relations that are no longer in the catalog from the circuit and the disk, and ends their readers."""
    database = session.database
    for query in session.queries():
        if query.id in dropped:
            query.kill()
    for relation_id in dropped:
        session.acknowledgements.pop(relation_id, None)
    with database.guard:
        for relation_id in dropped:
            database.content.drop(relation_id)
    database.follow()
    database.positions.forget(dropped)
    database.sink_positions.forget(dropped)
    database.sequences.forget(dropped)
    install_remaining(session, dropped)
    for relation_id in dropped:
        storage.remove_directory(database.layout.dead(relation_id))


def stop_feeding(session: Session, ids: set[str]) -> None:
    """Removes relations from the circuit but not from the catalog. In a transaction, relations visible to others are
    fed until COMMIT.
    """
    if session.transaction is not None:
        definitions = session.transaction.definitions
        definitions.stopped |= ids - definitions.made
        ids = ids & definitions.made
    install_remaining(session, ids)


def install_remaining(session: Session, dropped: set[str]) -> None:
    """Installs the circuit without the relations `dropped`. On failure the old circuit continues, and the user receives
    a notice.
    """
    try:
        _take_out(session, dropped, stored=True)
    except Error as err:
        session.notice(f"the views keep their old plan: {err.message}")


def _take_out(session: Session, dropped: set[str], *, stored: bool) -> None:
    database = session.database
    if database.plans.producers.keys() & dropped:
        database.plans.remove(dropped, stored=stored)
        database.circuit.reinstall()


def producers_of(session: Session) -> Producers:
    """The operators of the relations that the circuit feeds, by relation id. Read-only processes load them from the
    files.
    """
    database = session.database
    if database.read_only:
        return Plans(database.layout, database.log, database.catalog, 1).producers
    return database.plans.producers


def join_order(variables: Variables) -> JoinOrder:
    """The shape of join trees: RisingWave's `enable_join_ordering` and `streaming_enable_bushy_join`."""
    if not variables.is_on("enable_join_ordering"):
        return "written"
    return "bushy" if variables.is_on("streaming_enable_bushy_join") else "left-deep"


def shares(variables: Variables) -> bool:
    """Whether joins of new views read arrangements of other views."""
    return variables.is_on("streaming_share_arrangements")


def joins_many(variables: Variables) -> bool:
    """Whether inner joins by one key become one operator with many inputs."""
    return variables.is_on("streaming_enable_multiway_join")


def most_join_rows(variables: Variables) -> int:
    """The limit of rows that each join of a new view may make in one epoch, unless the view sets one; 0: none."""
    return int(variables.get(JOIN_ROWS_SETTING))

"""Adds relations that the circuit maintains to catalog and circuit, fills them, and removes them.

Session variables determine the plans of new relations.
"""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from watersmeet.algebra.nodes import Node
from watersmeet.algebra.rewrites import JoinOrder
from watersmeet.binder.context.binding import Fill
from watersmeet.binder.context.emissions import JOIN_ROWS_SETTING
from watersmeet.catalog import RECOMPUTINGS, MaterializedView, Processor, Pump, Recomputing, Relation, is_job
from watersmeet.circuit.operators import Operator, Sink
from watersmeet.connectors.base.sources import rate_limit
from watersmeet.database.opened import Service
from watersmeet.database.plans import Plans
from watersmeet.database.sessions.context import JointFill, Session
from watersmeet.database.sessions.variables import Variables
from watersmeet.dialects.schemas import relation_written
from watersmeet.errors import Error, again, error
from watersmeet.objectstores import storage
from watersmeet.runtime.backfill import in_order
from watersmeet.system.threads import Worker

if TYPE_CHECKING:
    from watersmeet.planner import Producers


_LOG: Final = logging.getLogger(__name__)

#: The time after which WAIT notices a cancel.
_WAIT_S: Final = 0.1


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

#: The option, and the variable, that decides whether epochs compute a view again.
RECOMPUTE: Final = "recompute"


def fill_rate(text: str) -> int | None:
    """A limit of rows of history per second; None for any number. Raises CONNECTOR_OPTION."""
    return rate_limit({FILL_RATE: text}, FILL_RATE)


#: The option with the order in which the history of inputs is read.
FILL_ORDER: Final = "backfill_order"
#: The tokens of an option's value are separated by spaces, also around the dot of a qualified name.
_DOT: Final = re.compile(" ?[.] ?")


def fill_order(session: Session, text: str, depends_on: Iterable[str]) -> tuple[tuple[str, str], ...]:
    """The pairs of inputs, by id, of which the first is read before the second. text: the option's value.

    depends_on: the relations that the view's query names. Raises INVALID_PARAMETER.
    """
    kind, _, listed = text.partition("(")
    if kind.upper() == "NONE":
        session.notice(f"{FILL_ORDER} = NONE has no effect: inputs are read sequentially, smaller ones first")
    if kind.upper() in ("AUTO", "NONE") and not listed:
        return ()
    if kind.upper() != "FIXED" or not listed:
        raise error(
            "INVALID_PARAMETER",
            f"option {FILL_ORDER} can't be {text}",
            hint="It is FIXED (earlier -> later, …), AUTO, or NONE.",
        )
    inputs = session.catalog.upstream(depends_on)
    pairs: list[tuple[str, str]] = []
    for pair in listed.rstrip(")").split(","):
        ids = [_input_id(session, _DOT.sub(".", name.strip()), inputs) for name in pair.split("->")]
        pairs += pairwise(ids)
    found = in_order({i for pair in pairs for i in pair}, pairs)
    if any(found.index(earlier) >= found.index(later) for earlier, later in pairs):
        raise error(
            "INVALID_PARAMETER",
            f"option {FILL_ORDER} has a cycle",
            detail="An input would have to be read before itself.",
        )
    return tuple(pairs)


def _input_id(session: Session, name: str, inputs: Collection[str]) -> str:
    """The id of an input with history that `fill_order` names."""
    found = relation_written(session.catalog, name)
    if found is None or found.id not in inputs or not (found.is_stored or found.connector):
        raise error(
            "INVALID_PARAMETER",
            f"option {FILL_ORDER} names {name}, which the view does not read",
            hint="Name tables, sources and materialized views of its query.",
        )
    return found.id


def fill(session: Session, relation: Relation, operators: Sequence[Operator]) -> None:
    """Creates a relation that `operators` maintain. Returns once the relation reflects its inputs, or at once if the
    session fills views in the background.

    On failure nothing remains. Other statements, except those that change the catalog, continue meanwhile. Within
    `JointFill`, the relation only joins those that `fill_together` will create.
    """
    relation = replace(relation, ready=False, append_only=operators[-1].append_only)
    if type(relation) in _NAMED and not (relation.hidden and relation.name[:1] == "?"):
        relation = with_late_sides(relation, operators)
    if session.joint is None:
        if _in_background(session, [relation]):
            begin_fill(session, [relation], {relation.id: operators})
            return
        for what in fill_at_once(session, [relation], {relation.id: operators}).values():
            session.notice(f"{'the query' if relation.hidden else relation.title} lacks {what}")
        return
    seen: Relation | None = relation
    if session.transaction is not None:
        seen = session.transaction.definitions.put(relation, session.database.catalog)
    session.joint.add(relation, replace(seen or relation, ready=True), operators)


#: The classes of views that statements can name, so that their late rows are kept.
_NAMED: Final = (MaterializedView, Pump, Processor)


def with_late_sides(relation: Relation, operators: Sequence[Operator]) -> Relation:
    """A view with the rows that its operators drop as late."""
    sink = operators[-1]
    if not isinstance(relation, MaterializedView) or not isinstance(sink, Sink):
        return relation
    return replace(relation, late=sink.late)


def fill_together(session: Session, joint: JointFill) -> bool:
    """Creates and fills the views of several statements in one step. False if that failed and nothing of it remains;
    also if history of an input is missing, which each view must report.
    """
    made = list(joint.relations.values())
    if _in_background(session, made):
        begin_fill(session, made, joint.operators)
        return True
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
        for relation in relations:  # in the order of the catalog, as after a restart
            database.plans.add(relation.id, operators[relation.id])
        session.put(*relations)
        lost = database.engine.install(database.plans.circuit, ids, partial(_check_canceled, session, frozenset(ids)))
        known = session.catalog.relations  # the limits of fills may have changed meanwhile
        session.put(*(replace(known.get(r.id, r), ready=True) for r in relations))
    except BaseException:
        undo(session, set(ids))
        raise
    return lost


#: The variable that determines whether CREATE MATERIALIZED VIEW waits until the view is filled.
_BACKGROUND: Final = "background_ddl"


def _in_background(session: Session, relations: Sequence[Relation]) -> bool:
    """Whether new relations are filled after their statement. Those that a transaction creates are filled in it."""
    plain = all(type(r) is MaterializedView and is_job(r) and not r.feeds for r in relations)
    if not (relations and plain and session.variables.is_on(_BACKGROUND)):
        return False
    if session.transaction is not None:
        session.notice(f"{_BACKGROUND} has no effect in a transaction: the views are filled before it ends")
        return False
    return True


def begin_fill(session: Session, relations: Sequence[Relation], operators: Mapping[str, Sequence[Operator]]) -> None:
    """Creates relations that `BackgroundFills` fills; on failure none remains."""
    database = session.database
    ids = {r.id for r in relations}
    try:
        for relation in relations:  # in the order of the catalog, as after a restart
            database.plans.add(relation.id, operators[relation.id])
        session.put(*(replace(r, background=True) for r in relations if isinstance(r, MaterializedView)))
    except BaseException:
        undo(session, ids)
        raise
    fills = database.service(BackgroundFills)
    assert fills is not None
    fills.begin()


class _FillWorker(Worker):
    """Fills the views of `BackgroundFills`, one fill at a time, until none is left.

    ended: whether it takes no further views; changed by a thread that holds the ddl lock.
    """

    state = "running"
    title = "new views"

    def __init__(self, fills: BackgroundFills, session: Session) -> None:
        super().__init__("fills", session.database.clock)
        self.ended = False
        self._fills, self._session = fills, session

    def work(self) -> None:
        database = self._session.database
        try:
            with database.ddl:
                jobs = self._fills.jobs()
                if not jobs or self._fills.is_closing:
                    self.ended = True
                    self.stop()
                    return
                database.engine.install(database.plans.circuit, (), self._check)
            database.engine.fill(self._check)
            with database.ddl:
                self._finish(jobs & self._fills.jobs())
        except Error as cause:
            if not self._fills.is_closing:
                self._give_up(cause)

    def _check(self) -> None:
        if self._fills.is_closing:
            raise error("CONNECTION_CLOSED", "the database is being closed")
        _check_fills(self._session, self._fills.jobs())

    def _finish(self, jobs: set[str]) -> None:
        """Makes the filled views visible. Raises the error of one that was stopped."""
        database = self._session.database
        filled = sorted(jobs & database.engine.live_views)
        database.engine.install(database.plans.circuit, filled, self._check)
        known = database.catalog.relations
        self._session.put(*(replace(r, ready=True, background=False) for i in filled if is_job(r := known[i])))
        database.follow()

    def _give_up(self, cause: Error) -> None:
        """Removes the views that can't be filled."""
        database = self._session.database
        with database.ddl:
            jobs = self._fills.jobs()
            if cause.condition == "QUERY_CANCELED":
                jobs &= database.canceled_fills
                database.canceled_fills -= jobs
            else:
                self._fills.failures.append(cause)
                _LOG.error("a view could not be filled in the background: %s", cause.message)
            undo(self._session, jobs)


class BackgroundFills(Service):
    """Fills views that were created with `background_ddl`, and after a restart also views with a limit.

    is_closing: whether the database is being closed. failures: the errors of fills that ended without their view.
    """

    def __init__(self, session: Session) -> None:
        self.is_closing = False
        self.failures: list[Error] = []
        self._session = session
        self._worker: _FillWorker | None = None

    def start(self) -> None:
        self._session.database.at_close(self._end)
        if self.jobs():
            with self._session.database.ddl:
                self.begin()

    def begin(self) -> None:
        """Begins to fill. The caller holds the ddl lock."""
        if self._worker is None or self._worker.ended:
            self._worker = _FillWorker(self, self._session)
            self._worker.start()

    def jobs(self) -> set[str]:
        """The views that it fills."""
        known = self._session.database.catalog.relations.values()
        return {r.id for r in known if is_job(r) and not r.staged and r.fills_later}

    def wait(self, session: Session) -> None:
        """Waits until all views are filled, and names those that are paused. Raises QUERY_CANCELED, CONNECTION_CLOSED
        if the database is closed, and the error of a fill that has ended without its view.
        """
        told: set[str] = set()
        while (jobs := self.jobs()) and (worker := self._worker) is not None:
            session.cancellation.check()
            known = session.database.catalog.relations
            paused = {r.id: r for r in known.values() if r.id in jobs and is_job(r) and r.is_paused}
            for view_id in paused.keys() - told:
                session.teller(
                    f"waits for {paused[view_id].title}, whose fill is paused: "
                    f"ALTER MATERIALIZED VIEW {paused[view_id].shown} SET BACKFILL_RATE_LIMIT = DEFAULT resumes it"
                )
            told = {*paused}
            if self.is_closing:
                raise error("CONNECTION_CLOSED", "the database is being closed")
            worker.join(_WAIT_S)
        if self.failures:
            raise again(self.failures.pop(0))

    def _end(self) -> None:
        self.is_closing = True
        if self._worker is not None:
            self._worker.join()


def _check_canceled(session: Session, ids: frozenset[str]) -> None:
    """Raises QUERY_CANCELED if the statement that fills views, or the fill of one of them, was canceled."""
    session.cancellation.check()
    _check_fills(session, ids)


def _check_fills(session: Session, ids: set[str] | frozenset[str]) -> None:
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


def recomputing(value: str) -> Recomputing:
    """A value of RECOMPUTE. Raises INVALID_PARAMETER for others."""
    for known in RECOMPUTINGS:
        if value.lower() == known:
            return known
    choices = ", ".join(RECOMPUTINGS)
    raise error("INVALID_PARAMETER", f'option {RECOMPUTE} can\'t be "{value}"', hint=f"Write one of {choices}.")

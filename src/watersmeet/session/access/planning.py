"""What the session variables decide about plans, and the plans that run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from watersmeet.algebra.rewrites import JoinOrder
from watersmeet.binder.context.emissions import JOIN_ROWS_SETTING
from watersmeet.database.plans import Plans
from watersmeet.session.access.context import Session
from watersmeet.session.access.variables import Variables

if TYPE_CHECKING:
    from watersmeet.planner import Producers


def producers_of(session: Session) -> Producers:
    """The operators of the relations that the circuit feeds, by relation id. Who only reads looks them up."""
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
    """How many rows each join of a new view may make in one epoch, unless the view says so itself; 0: any number."""
    return int(variables.get(JOIN_ROWS_SETTING))

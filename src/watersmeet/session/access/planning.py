"""What the session variables decide about plans."""

from __future__ import annotations

from watersmeet.algebra.rewrites import JoinOrder
from watersmeet.binder.context.settings import JOIN_ROWS_SETTING
from watersmeet.session.access.variables import Variables


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

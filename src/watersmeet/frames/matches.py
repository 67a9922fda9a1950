"""What `match=` takes: which of the right rows of a key a left row meets."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Literal

from watersmeet.errors import error


@dataclass(frozen=True)
class AsofMatch:
    """See `asof`."""

    left: str
    right: str
    direction: Literal["backward", "forward"]
    allow_exact: bool
    tolerance: timedelta | str | None


@dataclass(frozen=True)
class LatestMatch:
    """See `latest`."""

    order: str | None


def asof(left: str, right: str, *, direction: Literal["backward", "forward"] = "backward", allow_exact: bool = True,
         tolerance: timedelta | str | None = None) -> AsofMatch:
    """Each left row with the one right row of its key that is nearest in time.

    left, right: columns of one type, mostly times. direction: `backward` looks for the greatest right value at or before
    the left one, `forward` for the least at or after it. allow_exact: whether an equal value counts. tolerance: how far the
    right value may be away, a timedelta or a text such as "10 minutes". Of right rows with equal values the one that
    is first by its columns, in order, counts. NULL meets nothing. INVALID_PARAMETER for another direction.
    """
    if direction not in ("backward", "forward"):
        raise error("INVALID_PARAMETER", f'direction "{direction}" of asof', hint='Use "backward" or "forward".')
    return AsofMatch(left, right, direction, allow_exact, tolerance)


def latest(order: str | None = None) -> LatestMatch:
    """Each left row with the right row of its key that is the newest when the left row comes; never revised.

    Within a micro-batch the right side comes first; of several new right rows of a key the one with the greatest
    column `order` counts (without: the one that is last by a hash of its content, so that a repetition gives the same).
    """
    return LatestMatch(order)

"""What `match=` takes: which of the right rows of a key a left row meets."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from typing import Any, Literal, get_args

from watersmeet.errors import error

Direction = Literal["backward", "forward", "nearest"]


@dataclass(frozen=True)
class AsofMatch:
    """See `asof`."""

    left: str
    right: str
    direction: Direction
    allow_exact_matches: bool
    tolerance: timedelta | str | float | Decimal | None


@dataclass(frozen=True)
class LatestMatch:
    """See `latest`."""

    order: str | None


def asof(
    left: str,
    right: str,
    *,
    direction: Direction = "backward",
    allow_exact_matches: bool = True,
    tolerance: timedelta | str | float | Decimal | None = None,
) -> AsofMatch:
    """Each left row with the one right row of its key whose value is nearest.

    left, right: columns of one type, mostly times. direction: `backward` looks for the greatest right value at or
    before the left one, `forward` for the least at or after it, `nearest` for the nearer one of these two; if they are
    equally near, the one before counts. allow_exact_matches: whether an equal value counts.
    tolerance: how far the right value may be away, the bound included: for times a timedelta or a text such as
    "10 minutes", for numbers a number. Of right rows with equal values the one that is first by its columns, in order,
    counts. NULL meets nothing. INVALID_PARAMETER for another direction.
    """
    _check_name(left)
    _check_name(right)
    if not isinstance(allow_exact_matches, bool):
        raise error(
            "INVALID_PARAMETER", f"allow_exact_matches={allow_exact_matches!r} of asof", hint="Use True or False."
        )
    if direction not in get_args(Direction):
        raise error(
            "INVALID_PARAMETER",
            f'direction "{direction}" of asof',
            hint='Use "backward", "forward" or "nearest".',
        )
    return AsofMatch(left, right, direction, allow_exact_matches, tolerance)


def _check_name(name: Any) -> None:
    if not isinstance(name, str):
        raise error(
            "INVALID_PARAMETER",
            f"asof has a {type(name).__name__} instead of a column name",
            hint='Name the columns: asof("left_ts", "right_ts").',
        )


def latest(order: str | None = None) -> LatestMatch:
    """Each left row with the right row of its key that is the newest when the left row comes; never revised.

    Within a micro-batch the right side comes first; of several new right rows of a key the one with the greatest
    column `order` counts (without: the one that is last by a hash of its content, so that a repetition gives the same).
    """
    if order is not None and not isinstance(order, str):
        raise error(
            "INVALID_PARAMETER",
            f"latest has a {type(order).__name__} instead of a column name",
            hint='Name a column of the right side: latest("seq").',
        )
    return LatestMatch(order)

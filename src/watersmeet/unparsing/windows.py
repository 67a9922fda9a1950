"""Window functions as SQL of DuckDB."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from watersmeet.algebra.nodes import WindowCall, WindowFrame
from watersmeet.algebra.scalars import Scalar
from watersmeet.unparsing.aggregates import aggregate
from watersmeet.unparsing.texts import cast, order_by, sql

_NUMBERED: Final = ("lag", "lead", "nth_value", "ntile")
_FRAMED: Final = ("first_value", "last_value", "nth_value")


def window(call: WindowCall, partition: Sequence[str]) -> str:
    """`call` OVER the rows that are equal in `partition`, of exactly its type."""
    return cast(_call(call, partition), call.type)


def _call(call: WindowCall, partition: Sequence[str]) -> str:
    framed = call.aggregate is not None or call.function in _FRAMED
    parts = [f"PARTITION BY {', '.join(partition)}"] if partition else []
    parts += [p for p in (order_by(call.order), _frame(call.frame) if framed else "") if p]
    over = f" OVER ({' '.join(parts)})"
    if call.aggregate is not None:
        return aggregate(call.aggregate, over)
    arguments = [sql(a) for a in call.arguments]
    if call.function in _NUMBERED:
        arguments.insert(1, str(call.number) if call.varying is None else sql(call.varying))
    return f"{call.function}({', '.join(arguments)}){over}"


def _frame(frame: WindowFrame) -> str:
    low = _bound(frame.start, frame.before, "PRECEDING")
    high = _bound(frame.end, frame.after, "FOLLOWING")
    exclude = "" if frame.exclude == "none" else f" EXCLUDE {frame.exclude.upper()}"
    return f"{frame.mode.upper()} BETWEEN {low} AND {high}{exclude}"


def _bound(place: int | None, distance: Scalar | None, side: str) -> str:
    """A bound of a frame. place: below 0 before the row, above it behind it, None without end."""
    if place is None:
        return f"UNBOUNDED {side}"
    if place == 0:
        return "CURRENT ROW"
    shown = str(abs(place)) if distance is None else f"({sql(distance)})"
    return f"{shown} {'PRECEDING' if place < 0 else 'FOLLOWING'}"

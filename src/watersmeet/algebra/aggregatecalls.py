"""Calls of aggregate functions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from watersmeet.algebra.scalars import Scalar
from watersmeet.algebra.sortkeys import SortKey
from watersmeet.types import SqlType

AggregateFunction = Literal[
    "count",
    "sum",
    "avg",
    "min",
    "max",
    "bool_and",
    "bool_or",
    "var_pop",
    "var_samp",
    "stddev_pop",
    "stddev_samp",
    "array_agg",
    "string_agg",
    "jsonb_agg",
    "jsonb_object_agg",
    "first_value",
    "last_value",
    "mode",
    "percentile_cont",
    "percentile_disc",
    "bit_and",
    "bit_or",
    "bit_xor",
]


@dataclass(frozen=True, slots=True)
class AggregateCall:
    """`function(argument, extra … ORDER BY order) FILTER (WHERE filter)`; count(*) has the argument None.

    order: of ORDER BY in the call, or of WITHIN GROUP.
    extra: the value of jsonb_object_agg, or the delimiter of string_agg if it is not the `constant`.
    constant: the delimiter of string_agg, or the fraction of percentile_cont and percentile_disc.
    """

    function: AggregateFunction
    argument: Scalar | None
    filter: Scalar | None
    distinct: bool
    type: SqlType
    extra: tuple[Scalar, ...] = ()
    order: tuple[SortKey, ...] = ()
    constant: str | float | None = None

    @property
    def scalars(self) -> tuple[Scalar, ...]:
        """All expressions that it reads."""
        found = (self.argument, *self.extra, *(key.value for key in self.order), self.filter)
        return tuple(s for s in found if s is not None)

    def changed(self, change: Callable[[Scalar], Scalar]) -> AggregateCall:
        """The call with another expression for each."""
        argument, condition = (None if s is None else change(s) for s in (self.argument, self.filter))
        order = tuple(replace(key, value=change(key.value)) for key in self.order)
        return replace(self, argument=argument, filter=condition, extra=tuple(map(change, self.extra)), order=order)

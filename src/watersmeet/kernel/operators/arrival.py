"""Joins that are never revised (EMIT ON ARRIVAL): whether a row has partners is decided when it comes.

Within an epoch all changes of the other side come first, on both sides: with dL, dR the changes, new left rows look at
R + dR and new right rows at L + dL. So rows of one epoch find each other in whatever order they came.

Where only left rows are decided (ASOF, semi and anti joins), nothing is kept of them.
"""

from __future__ import annotations

from collections.abc import Sequence

from watersmeet.circuit.operators import ArrivalAsofJoin, ArrivalJoin
from watersmeet.kernel.context import StepContext
from watersmeet.kernel.operators import asof, join
from watersmeet.kernel.operators.arrange import unkept
from watersmeet.kernel.runs.arranged import Arranged
from watersmeet.kernel.runs.delta import Delta
from watersmeet.kernel.runs.sliced import Sliced
from watersmeet.kernel.runs.state import State


def step(op: ArrivalJoin, inputs: Sequence[Arranged | Delta], state: State, ctx: StepContext) -> Delta | Sliced:
    """What the rows of this epoch add to the output; of semi and anti joins the left input is a delta."""
    return join.step(op, _sides(op, inputs), state, ctx)


def asof_step(
    op: ArrivalAsofJoin, inputs: Sequence[Arranged | Delta], state: State, ctx: StepContext
) -> Delta | Sliced:
    """The left rows of this epoch with their partners as of now; the left input is a delta."""
    return asof.step(op, _sides(op, inputs), state, ctx)


def _sides(op: ArrivalJoin | ArrivalAsofJoin, inputs: Sequence[Arranged | Delta]) -> Sequence[Arranged]:
    left, right = inputs
    assert isinstance(right, Arranged)
    if isinstance(left, Arranged):
        return left, right
    return unkept(left, op.left_keys, op.null_safe, right)

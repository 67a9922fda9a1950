"""Process-time temporal joins: each left row meets the right side as it is when the row comes, and keeps what it met.

Within an epoch the right side changes first: with R, dR its content and change, new left rows meet R + dR, and dR
itself changes nothing. So rows that arrive together find each other however they were cut into epochs.

Left rows that only come need no state. Where they may go, a memo remembers what each of them met (`memo`). Where those
that met nothing wait for their first match, they are kept until then (`UnmatchedBuffer`): those of before are looked up
in R + dR like the new ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from watersmeet.circuit.operators import TemporalJoin
from watersmeet.kernel.context import StepContext
from watersmeet.kernel.joins.joined import JoinOutput, JoinSide, PairOutput, Production
from watersmeet.kernel.joins.memo import Memo, UnmatchedBuffer, answered
from watersmeet.kernel.operators.arrange import unkept
from watersmeet.kernel.operators.join import add_pairs, production
from watersmeet.kernel.runs.delta import Delta, Sliced
from watersmeet.kernel.runs.matching import Arranged, near_changes
from watersmeet.kernel.runs.run import arrange
from watersmeet.kernel.runs.state import State
from watersmeet.kernel.runs.trace import PIECE_ROWS
from watersmeet.values.watermarks import NOW


def step(op: TemporalJoin, inputs: Sequence[Any], state: State, ctx: StepContext) -> Delta | Sliced:
    """The changes of the output: of left rows that came, or that waited, what they meet now; of those that went, what
    they met then. TooManyRowsError before anything is looked up; what was changed in the state is then of no use.
    """
    delta: Delta = inputs[0]
    right: Arranged = inputs[1]
    if not delta.num_rows and not (op.waits and right.change.num_rows):
        return Delta.none(op.schema)
    if not op.memo and not op.waits:
        left, still = _sides(op, delta, right, state, ctx)
        return _production(op, left, still, ctx).made(ctx.slicing, left, still)
    if not op.memo:
        out = JoinOutput(op.output, [f.type.arrow for f in op.schema])
        _wait(op, delta, right, out, state, ctx)
        return out.delta()
    # An update that leaves a row as it was is no change: rows are counted before they are looked up.
    rows = arrange(delta, tuple(range(delta.columns.num_columns)))
    memo = Memo(op, state, len(ctx.schemas[0]), ctx.epoch)
    came = np.flatnonzero(rows.diff > 0)
    every = replace(op, join_kind="left")  # rows that meet nothing are remembered, too
    memo.remember(rows.take(came), lambda some, met: _look_up(every, some, right, met, state, ctx))
    memo.take_back(rows.take(np.flatnonzero(rows.diff < 0)))
    return memo.changes()


def _wait(op: TemporalJoin, delta: Delta, right: Arranged, out: JoinOutput, state: State, ctx: StepContext) -> None:
    """Adds what left rows meet that came or waited."""
    every = replace(op, join_kind="left")  # rows that meet nothing wait, also in an inner join

    def look_up(rows: Delta, met: PairOutput) -> Delta:
        left, still = near_changes(unkept(rows, op.left_keys, op.null_safe, right), (False, False))
        add_pairs(every, JoinSide(left, -1), JoinSide(still, 0), met, ctx)
        return left.net_null_keys

    unmatched = UnmatchedBuffer(op, state, [f.type.arrow for f in ctx.schemas[0]], out)
    unmatched.look_up_again(right, look_up)
    if delta.num_rows:
        null_keys = unmatched.look_up(delta, look_up)
        if op.join_kind == "left":
            _add_alone(null_keys, out)  # it can't match: no need to wait
    unmatched.keep()


def _look_up(op: TemporalJoin, delta: Delta, right: Arranged, out: PairOutput, state: State, ctx: StepContext) -> None:
    """Adds what the rows of `delta` meet, in a left join also those that meet nothing."""
    left, still = _sides(op, delta, right, state, ctx)
    for found in _production(op, left, still, ctx).find(PIECE_ROWS):
        out.add(*found)
    if op.join_kind == "left":
        _add_alone(left.net_null_keys, out)


def _sides(
    op: TemporalJoin, delta: Delta, right: Arranged, state: State, ctx: StepContext
) -> tuple[Arranged, Arranged]:
    """Left rows and what they meet."""
    left, still = near_changes(unkept(delta, op.left_keys, op.null_safe, right), (False, False))
    if (
        op.ttl_us is not None and (now_us := ctx.watermarks.get(NOW)) is not None
    ):  # history has no time of its own: each of its rows asks
        still = answered(op, left, still, state, now_us)
    return left, still


def _production(op: TemporalJoin, left: Arranged, still: Arranged, ctx: StepContext) -> Production:
    return production(op, JoinSide(left, -1 if op.join_kind == "left" else 0), JoinSide(still, 0), ctx)


def _add_alone(rows: Delta, out: PairOutput) -> None:
    if rows.num_rows:
        run = arrange(rows, ())
        out.add(run, np.arange(run.num_rows), None, None, run.diff)

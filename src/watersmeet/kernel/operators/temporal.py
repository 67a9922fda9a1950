"""Process-time temporal joins: each left row meets the right side as it is when the row comes, and keeps what it met.

Within an epoch the right side changes first: with R, dR its content and change, new left rows meet R + dR, and dR itself
changes nothing. So rows that arrive together find each other however they were cut into epochs.

Left rows that only come need no state. Where they may go, a memo remembers what each of them met (`memo`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from watersmeet.circuit.operators import TemporalJoin
from watersmeet.kernel.arranged import Arranged
from watersmeet.kernel.context import StepContext
from watersmeet.kernel.delta import Delta
from watersmeet.kernel.joined import JoinOutput, JoinSide, PairOutput
from watersmeet.kernel.memo import Memo
from watersmeet.kernel.operators.arrange import unkept
from watersmeet.kernel.operators.join import add_pairs
from watersmeet.kernel.run import arrange
from watersmeet.kernel.state import State


def step(op: TemporalJoin, inputs: Sequence[Any], state: State, ctx: StepContext) -> Delta:
    """The changes of the output: of left rows that came, what they meet now; of those that went, what they met then."""
    delta: Delta = inputs[0]
    right: Arranged = inputs[1]
    if not delta.num_rows:
        return Delta.empty(pa.schema([(f.name, f.type.arrow) for f in op.schema]))
    if not op.memo:
        out = JoinOutput(op.output, [f.type.arrow for f in op.schema])
        _look_up(op, delta, right, out, ctx)
        return out.delta()
    # An update that leaves a row as it was is no change: rows are counted before they are looked up.
    rows = arrange(delta, tuple(range(delta.columns.num_columns)))
    memo = Memo(op, state, len(ctx.schemas[0]), ctx.epoch)
    came = np.flatnonzero(rows.diff > 0)
    every = replace(op, join_kind="left")  # rows that meet nothing are remembered, too
    memo.remember(rows.take(came), lambda some, met: _look_up(every, some, right, met, ctx))
    memo.take_back(rows.take(np.flatnonzero(rows.diff < 0)))
    return memo.changes()


def _look_up(op: TemporalJoin, delta: Delta, right: Arranged, out: PairOutput, ctx: StepContext) -> None:
    """Adds what the rows of `delta` meet, in a left join also those that meet nothing."""
    left, still = unkept(delta, op.left_keys, op.null_safe, right)
    add_pairs(op, JoinSide(left, -1 if op.join_kind == "left" else 0), JoinSide(still, 0), out, ctx)
    if op.join_kind == "left" and left.loose.num_rows:
        apart = left.apart
        run = arrange(apart, ())
        out.add(run, np.arange(run.num_rows), None, None, run.diff)


"""Fixed rows, given once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from watersmeet.circuit.operators import Constant
from watersmeet.kernel.context import StepContext
from watersmeet.kernel.runs.delta import Delta
from watersmeet.kernel.runs.state import State


def step(op: Constant, inputs: Sequence[Delta], state: State, ctx: StepContext) -> Delta:  # noqa: ARG001
    """The rows, in the first epoch of the state and in bucket 0; nothing otherwise."""
    if not (ctx.initial and ctx.bucket == 0):
        return Delta.none(op.schema)
    return Delta(ctx.evaluator.rows(op.rows_sql, op.schema, ctx.counters), np.ones(len(op.rows_sql), np.int64))

"""Punctual: rows that come too late are left out, and counted as the difference of what came in and went out."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from watersmeet import watermarks
from watersmeet.circuit.operators import Punctual
from watersmeet.kernel.arrays.times import microseconds
from watersmeet.kernel.context import StepContext
from watersmeet.kernel.runs.delta import Delta
from watersmeet.kernel.runs.state import State


def step(op: Punctual, inputs: Sequence[Delta], state: State, ctx: StepContext) -> Delta:  # noqa: ARG001 - the signature of all steps
    """The changes that are not late by the numbers of the epochs before, or those that are."""
    delta = inputs[0]
    bound_us = None if ctx.filling else watermarks.value(op.bound, ctx.before)
    if bound_us is None or not delta.num_rows:
        return delta.take(np.zeros(0, np.int64)) if op.late else delta
    times, valid = microseconds(delta.columns.column(op.column))
    late = (times < bound_us) & (delta.diff > 0)
    if valid is not None:
        late &= valid
    return delta.take(np.flatnonzero(late == op.late)) if op.late or late.any() else delta

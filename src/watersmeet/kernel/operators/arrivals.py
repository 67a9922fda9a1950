"""Arrivals: every row that was written to a relation, and in which order."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from watersmeet.circuit.operators import Arrivals
from watersmeet.kernel.arrays import columns as col
from watersmeet.kernel.context import StepContext
from watersmeet.kernel.runs.delta import Delta
from watersmeet.kernel.runs.state import State


def step(op: Arrivals, inputs: Sequence[Delta], state: State, ctx: StepContext) -> Delta:  # noqa: ARG001 - the signature of all steps
    """The rows that came, also those that a later one of the same epoch replaces: how epochs are cut changes
    nothing.
    """
    delta = inputs[0]
    kept = delta.take(np.flatnonzero(delta.diff > 0))
    *arrays, seq = (col.flat(c) for c in kept.columns.columns)
    epochs = pa.array(np.full(kept.num_rows, -ctx.epoch))
    return Delta(col.positional([*arrays, epochs, pa.array(-seq.to_numpy(zero_copy_only=False))]), kept.diff)

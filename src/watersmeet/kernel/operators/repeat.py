"""Repeat: the multiplicity of each row times a number that the row carries."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from watersmeet.circuit.operators import Repeat
from watersmeet.kernel.arrays import columns as col
from watersmeet.kernel.context import StepContext
from watersmeet.kernel.runs.delta import Delta
from watersmeet.kernel.runs.state import State


def step(op: Repeat, inputs: Sequence[Delta], state: State, ctx: StepContext) -> Delta:  # noqa: ARG001 - the signature of all steps
    """The changes, each diff multiplied; not consolidated: a number that changed comes as its old and its new rows."""
    delta = inputs[0]
    times = col.flat(delta.columns.column(len(op.schema)))
    factor = np.maximum(col.words(times), 0)
    valid = col.validity(times)
    if valid is not None:
        factor = factor * valid
    rows = np.flatnonzero(factor)
    kept = delta.select(range(len(op.schema))).take(rows)
    return Delta(kept.columns, kept.diff * factor[rows])

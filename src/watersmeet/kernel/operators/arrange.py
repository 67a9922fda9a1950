"""Arrangements: the one trace of a relation by a key, which any number of joins read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from watersmeet.circuit.operators import Arrange
from watersmeet.kernel import columns as col
from watersmeet.kernel.arranged import Arranged
from watersmeet.kernel.context import StepContext
from watersmeet.kernel.delta import Delta
from watersmeet.kernel.hashing import is_bijective
from watersmeet.kernel.run import arrange
from watersmeet.kernel.state import State

#: The trace of an arrangement.
ROWS: Final = "rows"


def step(op: Arrange, inputs: Sequence[Delta], state: State, ctx: StepContext) -> Arranged:  # noqa: ARG001
    """The change and the content before it; the state has the change when this returns.

    The state is not touched if nothing changes: it is read when a join asks for it.
    """
    (delta,) = inputs
    loose = np.zeros(delta.num_rows, np.bool_)
    for position, safe in zip(op.keys, op.null_safe, strict=True):
        valid = None if safe else col.validity(col.flat(delta.columns.column(position)))
        if valid is not None:
            loose |= ~valid
    some = bool(loose.any())
    change = arrange(delta.take(np.flatnonzero(~loose)) if some else delta, op.keys)
    apart = delta.take(np.flatnonzero(loose))
    exact = _exact(op, delta)
    if not change.num_rows:
        return Arranged(change, apart, lambda: state.trace(op.id, ROWS).runs, exact=exact)
    trace = state.trace(op.id, ROWS)
    before = trace.runs
    trace.append(change)
    return Arranged(change, apart, lambda: before, exact=exact)


def _exact(op: Arrange, delta: Delta) -> bool:
    """True if equal hashes mean equal keys: NULLs are gone, and the one key's hash is a bijection."""
    if not op.keys:
        return True
    return len(op.keys) == 1 and not op.null_safe[0] and is_bijective(delta.columns.column(op.keys[0]).type)

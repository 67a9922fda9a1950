"""Cut: changes from before a view was made, or those that come after."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from watersmeet.circuit.operators import Cut
from watersmeet.kernel.context import StepContext
from watersmeet.kernel.runs.delta import Delta
from watersmeet.kernel.runs.state import State

_NO_ROWS: Final = np.zeros(0, np.int64)


def step(op: Cut, inputs: Sequence[Delta], state: State, ctx: StepContext) -> Delta:  # noqa: ARG001 - the signature of all steps
    """All changes of the epoch, or none. A backfill reads what was before, every other epoch what came after."""
    delta = inputs[0]
    return delta if ctx.filling == (op.keeps == "before") else delta.take(_NO_ROWS)

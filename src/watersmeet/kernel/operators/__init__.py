"""The operators: one module each, with one pure function `step(op, inputs, state, context) -> Delta`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from watersmeet.kernel.context import StepContext
from watersmeet.kernel.delta import Delta
from watersmeet.kernel.operators import aggregate, constant, join, repeat, union, upsert
from watersmeet.kernel.operators import map as map_operator
from watersmeet.kernel.state import State

Step = Callable[[Any, Sequence[Delta], State, StepContext], Delta]

#: By kind. Scans, exchanges and sinks are the executor's.
STEPS: Final[dict[str, Step]] = {
    "aggregate": aggregate.step,
    "constant": constant.step,
    "join": join.step,
    "map": map_operator.step,
    "repeat": repeat.step,
    "union": union.step,
    "upsert": upsert.step,
}

#: Kinds that keep state.
STATEFUL: Final = frozenset({"aggregate", "join", "upsert"})

"""The operators: one module each, with one pure function `step(op, inputs, state, context) -> Output`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from watersmeet.kernel.context import StepContext
from watersmeet.kernel.operators import (
    aggregate,
    arrange,
    arrival,
    arrivals,
    asof,
    changes,
    constant,
    cut,
    dynamicfilter,
    join,
    laterowfilter,
    multijoin,
    records,
    repeat,
    sort,
    temporal,
    timefilter,
    topn,
    union,
    unnest,
    upsert,
    versions,
    window,
)
from watersmeet.kernel.operators import map as map_operator
from watersmeet.kernel.runs.arranged import Arranged
from watersmeet.kernel.runs.delta import Delta
from watersmeet.kernel.runs.sliced import Sliced
from watersmeet.kernel.runs.state import State

#: What operators hand on: joins read arrangements, all others read changes, which may be too many to be held at once.
OperatorOutput = Delta | Arranged | Sliced

Step = Callable[[Any, Sequence[Any], State, StepContext], OperatorOutput]

#: By kind. Scans, exchanges and sinks are the executor's.
STEPS: Final[dict[str, Step]] = {
    "aggregate": aggregate.step,
    "arrange": arrange.step,
    "arrivalasof": arrival.asof_step,
    "arrivaljoin": arrival.step,
    "arrivals": arrivals.step,
    "asof": asof.step,
    "changes": changes.step,
    "constant": constant.step,
    "cut": cut.step,
    "dynamicfilter": dynamicfilter.step,
    "join": join.step,
    "map": map_operator.step,
    "multijoin": multijoin.step,
    "laterowfilter": laterowfilter.step,
    "records": records.step,
    "repeat": repeat.step,
    "sort": sort.step,
    "temporal": temporal.step,
    "timefilter": timefilter.step,
    "topn": topn.step,
    "union": union.step,
    "unnest": unnest.step,
    "upsert": upsert.step,
    "versions": versions.step,
    "window": window.step,
}

#: Kinds that keep state.
STATEFUL: Final = frozenset(
    {"aggregate", "arrange", "dynamicfilter", "temporal", "timefilter", "topn", "upsert", "versions"}
)

#: Kinds of one input that work on each row alone: they go from slice to slice.
PIECEWISE: Final = frozenset({"cut", "map", "laterowfilter", "repeat", "unnest"})

#: Kinds that know what to do with slices. All others are given their input at once.
TAKE_SLICES: Final = frozenset({"aggregate", "arrange"})

#: Kinds that step in every epoch, as what is timed does: arrangements hand on what they keep.
UNPROMPTED: Final = frozenset({"arrange", "versions"})

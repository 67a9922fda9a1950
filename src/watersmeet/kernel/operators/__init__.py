"""The operators: each a pure function `(op, inputs, state, context) -> Output`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from watersmeet.kernel.context import StepContext
from watersmeet.kernel.operators import (
    aggregate,
    arrange,
    asof,
    changelogs,
    groupjoin,
    join,
    sessions,
    sliding,
    temporal,
    topn,
    window,
)
from watersmeet.kernel.operators.filters import dynamic_filter, late_row_filter, time_filter
from watersmeet.kernel.operators.join import arrival_asof, arrival_join
from watersmeet.kernel.operators.rowwise import (
    arrivals,
    changes,
    constant,
    cut,
    log,
    map_rows,
    records,
    repeat,
    sort,
    union,
    unnest,
)
from watersmeet.kernel.runs.delta import Delta, Sliced
from watersmeet.kernel.runs.matching import Arranged
from watersmeet.kernel.runs.state import State

#: The output of an operator. Joins read arrangements; all others read changes, in slices if memory can't hold them.
OperatorOutput = Delta | Arranged | Sliced

Step = Callable[[Any, Sequence[Any], State, StepContext], OperatorOutput]

#: The step of each kind of operator. The executor itself runs scans, exchanges and sinks.
STEPS: Final[dict[str, Step]] = {
    "aggregate": aggregate.step,
    "arrange": arrange.step,
    "arrivalasof": arrival_asof,
    "arrivaljoin": arrival_join,
    "arrivals": arrivals,
    "asof": asof.step,
    "changelog": log,
    "changes": changes,
    "constant": constant,
    "cut": cut,
    "dynamicfilter": dynamic_filter,
    "groupjoin": groupjoin.step,
    "join": join.step,
    "map": map_rows,
    "multijoin": join.multi_join,
    "laterowfilter": late_row_filter,
    "records": records,
    "repeat": repeat,
    "session": sessions.step,
    "sliding": sliding.step,
    "sort": sort,
    "temporal": temporal.step,
    "timefilter": time_filter,
    "topn": topn.step,
    "union": union,
    "unnest": unnest,
    "upsert": changelogs.upsert,
    "versions": changelogs.keep_versions,
    "window": window.step,
}

#: The kinds of operators with state.
STATEFUL: Final = frozenset(
    {
        "aggregate",
        "arrange",
        "dynamicfilter",
        "groupjoin",
        "session",
        "sliding",
        "temporal",
        "timefilter",
        "topn",
        "upsert",
        "versions",
    }
)

#: The kinds that have one input and process single rows: they run slice by slice.
PIECEWISE: Final = frozenset({"cut", "map", "laterowfilter", "repeat", "unnest"})

#: The kinds that accept slices. All others receive their input in one piece.
TAKE_SLICES: Final = frozenset({"aggregate", "arrange"})

#: The kinds that run in every epoch, like timed ones, because arrangements output their content.
UNPROMPTED: Final = frozenset({"arrange", "versions"})

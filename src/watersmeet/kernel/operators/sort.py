"""Sort: the changes of an epoch in an order."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.circuit.operators import Sort
from watersmeet.kernel.arrays import columns as col
from watersmeet.kernel.context import StepContext
from watersmeet.kernel.runs.delta import Delta
from watersmeet.kernel.runs.state import State


def step(op: Sort, inputs: Sequence[Delta], state: State, ctx: StepContext) -> Delta:  # noqa: ARG001 - the signature of all steps
    """The changes in the order of the operator. Stable."""
    delta = inputs[0]
    keys = [(f"c{i}", "descending" if k.descending else "ascending") for i, k in enumerate(op.order)]
    by = pa.table({f"c{i}": col.flat(delta.columns.column(k.column)) for i, k in enumerate(op.order)})
    order = pc.sort_indices(by, sort_keys=keys).to_numpy()
    return delta.select(range(len(op.schema))).take(order)

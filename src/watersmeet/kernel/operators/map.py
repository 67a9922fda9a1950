"""Filter, then project."""

from __future__ import annotations

from collections.abc import Sequence

from watersmeet.circuit.operators import Map
from watersmeet.kernel.context import StepContext
from watersmeet.kernel.runs.delta import Delta
from watersmeet.kernel.runs.state import State


def step(op: Map, inputs: Sequence[Delta], state: State, ctx: StepContext) -> Delta:  # noqa: ARG001
    """The input's rows where the predicate is true and no required column fails, projected. Order and diffs stay."""
    delta = inputs[0]
    columns, rows = ctx.evaluator.project(
        delta.columns, ctx.schemas[0], op.exprs, op.schema, op.predicate, ctx.counters, delta.num_rows, op.required
    )
    return Delta(columns, delta.diff if rows is None else delta.diff[rows])

"""Repartition: a step that a plan shows; buckets are not partitions, so that rows stay where they are."""

from __future__ import annotations

from collections.abc import Sequence

from watersmeet.circuit.operators import Repartition
from watersmeet.kernel.context import StepContext
from watersmeet.kernel.runs.delta import Delta
from watersmeet.kernel.runs.state import State


def step(op: Repartition, inputs: Sequence[Delta], state: State, ctx: StepContext) -> Delta:  # noqa: ARG001 - the signature of all steps
    """All changes of the epoch."""
    return inputs[0]

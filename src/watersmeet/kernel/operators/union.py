"""All rows of all inputs."""

from __future__ import annotations

from collections.abc import Sequence

from watersmeet.circuit.operators import Union
from watersmeet.kernel.context import StepContext
from watersmeet.kernel.runs.delta import Delta
from watersmeet.kernel.runs.state import State


def step(op: Union, inputs: Sequence[Delta], state: State, ctx: StepContext) -> Delta:  # noqa: ARG001
    """The inputs one after the other."""
    return Delta.concat(inputs)

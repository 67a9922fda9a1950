"""Changes: the rows that come and go, with the time of what caused it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from watersmeet.circuit.operators import CauseSpec, Changes
from watersmeet.kernel.arrays import columns as col
from watersmeet.kernel.context import StepContext
from watersmeet.kernel.runs.cancel import without_cancelling
from watersmeet.kernel.runs.causes import NEVER, greatest, times_us, timestamps
from watersmeet.kernel.runs.delta import Delta
from watersmeet.kernel.runs.groups import Ints
from watersmeet.kernel.runs.state import State


def step(op: Changes, inputs: Sequence[Delta], state: State, ctx: StepContext) -> Delta:  # noqa: ARG001 - the signature of all steps
    """The epoch's rows, with a positive diff each."""
    delta = without_cancelling(inputs[0])
    arrays = [col.flat(c) for c in delta.columns.columns]
    went = delta.diff < 0
    at = np.full(len(went), NEVER)
    for number, cause in enumerate(op.causes):
        matches, times = _changes_of(cause, arrays, ~went, inputs[1:], number)
        at = np.maximum(at, _side(cause, arrays, went, matches, times))
    made = [pa.array(went), timestamps(at, pa.timestamp("us"))]
    return Delta(col.positional([*arrays, *made]), np.abs(delta.diff))


def _changes_of(
    cause: CauseSpec, arrays: Sequence[pa.Array], came: col.Mask, told: Sequence[Delta], number: int
) -> tuple[Sequence[col.Column], Ints]:
    """What changed of a side: the columns that match, and the times."""
    if told:
        *matches, time = told[number].columns.columns
        return matches, times_us(time)
    rows = np.flatnonzero(came)
    time = None if cause.time is None else col.gather(arrays[cause.time], rows)
    times = np.full(len(rows), NEVER) if time is None else times_us(time)
    return [col.gather(arrays[i], rows) for i in cause.match], times


def _side(
    cause: CauseSpec, arrays: Sequence[pa.Array], went: col.Mask, matches: Sequence[col.Column], times: Ints
) -> Ints:
    """The time of each row of one of its sides."""
    count = len(went)
    own = np.full(count, NEVER) if cause.time is None else times_us(arrays[cause.time])
    touched = greatest([arrays[i] for i in cause.match], matches, times, count)
    found = np.where(went & (touched != NEVER), touched, np.maximum(own, touched))
    lacking = np.flatnonzero(own == NEVER) if cause.partners else np.zeros(0, np.int64)
    if len(lacking):
        keys = [col.gather(arrays[i], lacking) for i in cause.match[: cause.partners]]
        known = np.logical_and.reduce([_present(k) for k in keys])
        theirs = greatest(keys, matches[: cause.partners], times, len(lacking))
        found[lacking] = np.maximum(found[lacking], np.where(known, theirs, NEVER))
    return found


def _present(array: pa.Array) -> col.Mask:
    valid = col.validity(array)
    return np.ones(len(array), np.bool_) if valid is None else valid

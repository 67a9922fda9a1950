"""Late-row filter: rows that come too late are left out, and counted as the difference of what came in and went out."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from watersmeet import watermarks
from watersmeet.circuit.operators import LateRowFilter
from watersmeet.kernel.arrays import columns as col
from watersmeet.kernel.arrays.times import microseconds
from watersmeet.kernel.context import StepContext
from watersmeet.kernel.runs.delta import Delta
from watersmeet.kernel.runs.state import State


def step(op: LateRowFilter, inputs: Sequence[Delta], state: State, ctx: StepContext) -> Delta:  # noqa: ARG001 - the signature of all steps
    """The changes that are not late by the numbers of the epochs before, or those that are."""
    delta = inputs[0]
    bound_us = None if ctx.filling else watermarks.value(op.bound, ctx.before)
    if op.age and delta.num_rows:
        return delta.take(np.flatnonzero(_overtaken(op, delta, bound_us) == op.late))
    if bound_us is None or not delta.num_rows:
        return delta.take(np.zeros(0, np.int64)) if op.late else delta
    times, valid = microseconds(delta.columns.column(op.column))
    late = (times < bound_us) & (delta.diff > 0)
    if valid is not None:
        late &= valid
    return delta.take(np.flatnonzero(late == op.late)) if op.late or late.any() else delta


def _overtaken(op: LateRowFilter, delta: Delta, bound_us: int | None) -> col.Mask:
    """Which rows are behind the bound, or behind one that is older; and those without a time."""
    times, valid = microseconds(delta.columns.column(op.column))
    timed = np.ones(len(times), np.bool_) if valid is None else valid
    times = np.where(timed, times, np.iinfo(np.int64).min)
    newest_first = [col.words(col.flat(delta.columns.column(c))).view(np.int64) for c in op.age]
    places = np.lexsort(newest_first[::-1])[::-1]
    least = np.iinfo(np.int64).min if bound_us is None else bound_us
    greatest = np.maximum.accumulate(np.concatenate([np.array([least], np.int64), times[places]]))[:-1]
    late = np.zeros(len(times), np.bool_)
    late[places] = times[places] < greatest
    return late | ~timed

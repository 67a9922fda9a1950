"""Dynamic filter: a comparison with one value that changes.

The rows of the left input are kept in runs sorted by the compared value, so that a move of the bound reads
and gives out only the rows between the old and the new one:

    dL where it passes the new bound   +   L where (passes the new bound) differs from (passes the old one)

A bound that is NULL or not there passes nothing; a NULL on the left never passes and is not kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
import pyarrow as pa

from watersmeet.circuit.operators import DynamicFilter
from watersmeet.errors import error
from watersmeet.kernel.arrays import columns as col
from watersmeet.kernel.arrays.ordering import order_keys, order_words
from watersmeet.kernel.context import StepContext
from watersmeet.kernel.runs.byvalue import by_value
from watersmeet.kernel.runs.cancel import without_cancelling
from watersmeet.kernel.runs.delta import Delta, consolidate
from watersmeet.kernel.runs.run import Run, arrange
from watersmeet.kernel.runs.state import State

_LAST: Final = ~np.uint64(0)


def step(op: DynamicFilter, inputs: Sequence[Delta], state: State, ctx: StepContext) -> Delta:  # noqa: ARG001
    """The changes of the rows that pass, without rows that cancel each other.

    INTERNAL_ERROR if there is more than one bound.
    """
    left, right = inputs
    nothing = Delta.none(op.schema)
    if not (left.num_rows or right.num_rows):
        return nothing
    rows, bounds = state.trace(op.id, "rows"), state.trace(op.id, "bound")
    old = _bound(bounds.runs, right)
    bounds.append(arrange(right, ()))
    new = _bound(bounds.runs, right)
    found = []
    for run in between(rows.runs, old, new, op.comparison):
        values = run.arrays[op.column]
        moved = passes(values, new, op.comparison).astype(np.int64) - passes(values, old, op.comparison)
        at = np.flatnonzero(moved)
        found.append(Delta(col.gather_table(run.columns, at), run.diff[at] * moved[at]))
    change = by_value(left, op.column)
    found.append(change.delta().take(np.flatnonzero(passes(change.arrays[op.column], new, op.comparison))))
    rows.append(change)
    found = [f for f in found if f.num_rows]
    return without_cancelling(Delta.concat(found).select(op.keep)) if found else nothing


def _bound(runs: Sequence[Run], right: Delta) -> pa.Array:
    """The one value that the runs add up to; an array without values if it is NULL or not there."""
    if not runs:
        return right.arrays[0].slice(0, 0)
    now = consolidate(Delta.concat([r.delta() for r in runs]))
    if now.num_rows > 1 or (now.diff != 1).any():
        raise error("INTERNAL_ERROR", f"a dynamic filter has {int(now.diff.sum())} bounds instead of one")
    return now.arrays[0].drop_null()


def passes(values: pa.Array, bound: pa.Array, comparison: str) -> col.Mask:
    """For each of `values`, none NULL, whether it compares so with the only value of `bound`."""
    if not len(bound) or not len(values):
        return np.zeros(len(values), np.bool_)
    keys = order_keys(pa.concat_arrays([values, bound]))
    mine, other = keys[:-1], keys[-1]
    tests = {"<": np.less, "<=": np.less_equal, ">": np.greater, ">=": np.greater_equal}
    mask: col.Mask = tests[comparison](mine, other)
    return mask


def between(runs: Sequence[Run], old: pa.Array, new: pa.Array, comparison: str) -> Iterator[Run]:
    """The parts of `runs` where passing `old` and passing `new` can differ: those between the two bounds."""
    words = [order_words(b) for b in (old, new) if len(b)]
    if not words or (len(words) == 2 and old.equals(new)):
        return
    low, high = min(words)[0], max(words)[0]
    if len(words) == 1:  # the bound comes or goes: all on the side that passes
        low, high = (np.uint64(0), high) if comparison[0] == "<" else (low, _LAST)
    for run in runs:
        start, stop = np.searchsorted(run.hash, low), np.searchsorted(run.hash, high, side="right")
        if start < stop:
            yield run.slice(int(start), int(stop))

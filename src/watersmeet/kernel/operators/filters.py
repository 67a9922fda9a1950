"""Filters by a moving bound: time filters, dynamic filters, late-row filters.

A time filter compares a time with a bound that never decreases: a watermark, or the clock. The rows that the bound has
not passed yet are kept in runs sorted by their time, so that a moving bound reads only the rows between the old and the
new one:

    `<`, `<=`:  dL that the new bound has passed         +   L between the bounds
    `>`, `>=`:  dL that the new bound has not passed yet  -   L between the bounds

Rows that the bound has passed are removed: from small runs at once, from large ones when they are half of the run, so
that a row is rewritten about once. The trace `passed` stores the bound up to which remaining rows count as removed; it
is empty if there are none.

A dynamic filter compares with one changing value. The rows of the left input are kept in runs sorted by the compared
value, so that a moving bound reads and outputs only the rows between the old and the new one:

    dL where it passes the new bound   +   L where (passes the new bound) differs from (passes the old one)

Without a bound, or with a NULL, no row passes; a NULL on the left never passes and is not kept.

A late-row filter drops late rows, and reports them. History has no late rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.circuit.operators import DynamicFilter, LateRowFilter, TimeFilter
from watersmeet.errors import error
from watersmeet.kernel.arrays import columns as col
from watersmeet.kernel.arrays.columns import MOST_DAYS, microseconds
from watersmeet.kernel.arrays.hashing import order_keys, order_words
from watersmeet.kernel.context import StepContext
from watersmeet.kernel.metrics import DroppedRows
from watersmeet.kernel.runs.delta import Delta, canonical_rows, consolidate, without_cancelling
from watersmeet.kernel.runs.run import Run, arrange, make_run
from watersmeet.kernel.runs.state import State
from watersmeet.kernel.runs.trace import Trace, merge_runs
from watersmeet.values import watermarks
from watersmeet.values.times import DAY_US


def by_value(delta: Delta, column: int) -> Run:
    """The changes of rows whose `column` is not NULL, consolidated and sorted by this column.

    The run's hashes are the column's `order_words`, so that `merge_runs` and a trace keep the order; it has no keys.
    """
    arrays = [col.one_form(c) for c in delta.columns.columns]
    valid = col.validity(arrays[column])
    diff = delta.diff
    if valid is not None:
        kept = np.flatnonzero(valid)
        arrays, diff = col.gather_all(arrays, kept), diff[kept]
    words = order_words(arrays[column])
    rows, diff = canonical_rows(arrays, diff, words, whole_row=False)
    return make_run(words[rows], col.gather_all(arrays, rows), diff, ())


#: A run of at most this many rows is rewritten as soon as one of them is not needed.
SMALL_ROWS: Final = 4096


def time_filter(op: TimeFilter, inputs: Sequence[Delta], state: State, ctx: StepContext) -> Delta:
    """The changes of the rows that pass, without rows that cancel each other.

    Raises INTERNAL_ERROR if an append-only output would retract rows: then an input broke its watermark's promise.
    """
    rows = state.trace(op.id, "rows")
    nothing = Delta.none(op.schema)
    if not (inputs[0].num_rows or rows.runs):
        return nothing
    passed = state.trace(op.id, "passed")
    line = _Line(op, passed, DAY_US if ctx.schemas[0][op.column].type.name == "date" else 1)
    line.move(watermarks.value(op.bound, ctx.watermarks))
    change = by_value(inputs[0], op.column)
    cut = line.now(change)
    waits = op.comparison[0] == "<"
    moved = [run.slice(line.before(run), line.now(run)) for run in rows.runs if line.before(run) < line.now(run)]
    found = [r.delta() if waits else r.delta().negated() for r in moved]
    found.append((change.slice(0, cut) if waits else change.slice(cut, change.num_rows)).delta())
    if op.untimed:
        found.append(inputs[0].take(np.flatnonzero(pc.is_null(inputs[0].columns.column(op.column)).to_numpy())))
    _keep(rows, change.slice(cut, change.num_rows) if cut else change, line)
    if not any(line.now(run) for run in rows.runs):
        passed.replace(())
    elif moved:
        passed.replace([line.stored()])
    ctx.counters.waits_for_us = line.next_us(rows)
    found = [f for f in found if f.num_rows]
    if not found:
        return nothing
    out = without_cancelling(Delta.concat(found).select(op.keep))
    if op.stays:
        return out.take(np.flatnonzero(out.diff > 0))
    if op.append_only and (out.diff < 0).any():
        raise error("INTERNAL_ERROR", "rows that were final are taken back")
    return out


class _Line:
    """The bound before this epoch and now.

    passed: the trace with the earlier bound, if it is stored. unit_us: the microseconds per unit of the column.
    """

    def __init__(self, op: TimeFilter, passed: Trace, unit_us: int) -> None:
        self._unit_us = unit_us
        self._side: Any = "left" if op.comparison in ("<", ">=") else "right"
        self._old_us = int(col.words(passed.runs[0].arrays[0])[0]) if passed.runs else None
        self._now_us = self._old_us

    def move(self, bound_us: int | None) -> None:
        """Moves the bound to `bound_us`; it never decreases."""
        if bound_us is not None:
            self._now_us = bound_us if self._now_us is None else max(self._now_us, bound_us)

    def before(self, run: Run) -> int:
        """The number of rows, the run's first ones, that the bound had passed before the epoch."""
        return self._place(run, self._old_us)

    def now(self, run: Run) -> int:
        """The number of rows, the run's first ones, that the bound has passed."""
        return self._place(run, self._now_us)

    def next_us(self, rows: Trace) -> int | None:
        """The least time that the bound has not passed."""
        waiting = [int(run.hash[self.now(run)]) for run in rows.runs if self.now(run) < run.num_rows]
        return (min(waiting) - (1 << 63)) * self._unit_us if waiting else None

    def stored(self) -> Run:
        """The run that stores the bound."""
        return make_run(
            np.zeros(1, np.uint64), [pa.array([self._now_us], pa.timestamp("us"))], np.ones(1, np.int64), ()
        )

    def _place(self, run: Run, bound_us: int | None) -> int:
        if bound_us is None:
            return 0
        bound = -(-bound_us // self._unit_us) if self._side == "left" else bound_us // self._unit_us
        if self._unit_us > 1 and bound <= -MOST_DAYS:
            return 0  # earlier dates count as the first day, as in `microseconds`
        return int(np.searchsorted(run.hash, np.uint64(bound + (1 << 63)), side=self._side))


def _keep(rows: Trace, change: Run, line: _Line) -> None:
    """Adds the change to the trace, without rows that the bound has passed."""
    kept = []
    for run in rows.runs:
        expired_rows = line.now(run)
        if expired_rows and (run.num_rows <= SMALL_ROWS or 2 * expired_rows >= run.num_rows):
            run = run.slice(expired_rows, run.num_rows)  # noqa: PLW2901
        if run.num_rows:
            kept.append(run)

    def merge(runs: Sequence[Run], /, *, whole: bool, above: Sequence[Run] = ()) -> Run:  # noqa: ARG001 - it is gone
        live = [r.slice(line.now(r), r.num_rows) for r in runs if line.now(r) < r.num_rows]
        return merge_runs(live, whole=whole) if live else runs[0].slice(0, 0)

    rows.replace(kept)
    rows.append(change, merge)


_LAST: Final = ~np.uint64(0)
_LAST_US: Final = np.iinfo(np.int64).max


def dynamic_filter(op: DynamicFilter, inputs: Sequence[Delta], state: State, ctx: StepContext) -> Delta:  # noqa: ARG001
    """The changes of the rows that pass, without rows that cancel each other.

    Raises INTERNAL_ERROR if there is more than one bound.
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
    """An array with the one value in the runs; empty if it is NULL or missing."""
    if not runs:
        return right.arrays[0].slice(0, 0)
    now = consolidate(Delta.concat([r.delta() for r in runs]))
    if now.num_rows > 1 or (now.diff != 1).any():
        raise error("INTERNAL_ERROR", f"a dynamic filter has {int(now.diff.sum())} bounds instead of one")
    return now.arrays[0].drop_null()


def passes(values: pa.Array, bound: pa.Array, comparison: str) -> col.Mask:
    """The mask of `values` (none is NULL) that pass the comparison with the only value of `bound`."""
    if not len(bound) or not len(values):
        return np.zeros(len(values), np.bool_)
    keys = order_keys(pa.concat_arrays([values, bound]))
    mine, other = keys[:-1], keys[-1]
    tests = {"<": np.less, "<=": np.less_equal, ">": np.greater, ">=": np.greater_equal}
    mask: col.Mask = tests[comparison](mine, other)
    return mask


def between(runs: Sequence[Run], old: pa.Array, new: pa.Array, comparison: str) -> Iterator[Run]:
    """The parts of `runs` between the two bounds: only there can passing `old` and passing `new` differ."""
    words = [order_words(b) for b in (old, new) if len(b)]
    if not words or (len(words) == 2 and old.equals(new)):
        return
    low, high = min(words)[0], max(words)[0]
    if len(words) == 1:  # the bound appears or disappears: all rows that pass the existing one
        low, high = (np.uint64(0), high) if comparison[0] == "<" else (low, _LAST)
    for run in runs:
        start, stop = np.searchsorted(run.hash, low), np.searchsorted(run.hash, high, side="right")
        if start < stop:
            yield run.slice(int(start), int(stop))


def late_row_filter(op: LateRowFilter, inputs: Sequence[Delta], state: State, ctx: StepContext) -> Delta:  # noqa: ARG001 - the signature of all steps
    """The changes that are not late by the watermarks after the previous epoch; or the late ones."""
    delta = inputs[0]
    bound_us = None if ctx.filling else watermarks.value(op.bound, ctx.before)
    if op.age and delta.num_rows:
        late, below_us = _overtaken(op, delta, bound_us, ctx)
    elif bound_us is None or not delta.num_rows:
        return delta.take(np.zeros(0, np.int64)) if op.late else delta
    else:
        times, valid = microseconds(delta.columns.column(op.column))
        late, below_us = (times < bound_us) & (delta.diff > 0), np.broadcast_to(np.int64(bound_us), len(times))
        if valid is not None:
            late &= valid
    if op.late:
        return delta.take(np.flatnonzero(late))
    if not late.any():
        return delta
    places = np.flatnonzero(late)
    rows = np.repeat(places, delta.diff[places])
    ctx.counters.late.append(DroppedRows(col.gather_table(delta.columns, rows), below_us[rows]))
    return delta.take(np.flatnonzero(~late))


def _overtaken(
    op: LateRowFilter, delta: Delta, bound_us: int | None, ctx: StepContext
) -> tuple[col.Mask, npt.NDArray[np.int64]]:
    """The mask of late rows, and the bound for each row. Rows below the bound, which rises with each older row, are
    late, and those without a time.

    As in the source, times too far ahead of the epoch's time don't move the bound.
    """
    ((term,), least_us) = op.bound, np.iinfo(np.int64).min
    times, valid = microseconds(delta.columns.column(op.column))
    timed = np.ones(len(times), np.bool_) if valid is None else valid
    usable = timed & (times <= watermarks.within(ctx.watermarks.get(watermarks.NOW, _LAST_US) + DAY_US))
    delay_us = -sum(step.amount_us for step in term.steps if isinstance(step, watermarks.Step))
    bounds = np.where(usable, np.maximum(times, least_us + delay_us) - delay_us, least_us)
    newest_first = [col.words(col.flat(delta.columns.column(c))).view(np.int64) for c in op.age]
    places = np.lexsort(newest_first[::-1])[::-1]
    first = np.array([least_us if bound_us is None else bound_us], np.int64)
    below_us = np.empty(len(times), np.int64)
    below_us[places] = np.maximum.accumulate(np.concatenate([first, bounds[places]]))[:-1]
    return (times < below_us) | ~timed, below_us

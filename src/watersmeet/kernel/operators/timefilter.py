"""Time filter: a comparison of a time with a bound that only rises: a watermark, or the clock.

The rows that the bound has not passed yet are kept in runs sorted by their time, so that a bound that moves reads the
rows between the old and the new one and no others:

    `<`, `<=`:  dL that the new bound has passed         +   L between the bounds
    `>`, `>=`:  dL that the new bound has not passed yet  -   L between the bounds

What the bound has passed is of no more use and goes: at once from small runs, from large ones when it is half of them,
so that a row is rewritten about once more in its life. The trace `passed` tells how far rows that are still there
count as gone; it is empty if there are none.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from watersmeet import watermarks
from watersmeet.circuit.operators import TimeFilter
from watersmeet.errors import error
from watersmeet.kernel.arrays import columns as col
from watersmeet.kernel.arrays.times import MOST_DAYS
from watersmeet.kernel.context import StepContext
from watersmeet.kernel.runs.byvalue import by_value
from watersmeet.kernel.runs.cancel import without_cancelling
from watersmeet.kernel.runs.delta import Delta
from watersmeet.kernel.runs.merge import merge_runs
from watersmeet.kernel.runs.run import Run, make_run
from watersmeet.kernel.runs.state import State
from watersmeet.kernel.runs.trace import Trace
from watersmeet.units import DAY_US

#: A run of at most so many rows is rewritten as soon as a row of it is of no more use.
SMALL_ROWS: Final = 4096


def step(op: TimeFilter, inputs: Sequence[Delta], state: State, ctx: StepContext) -> Delta:
    """The changes of the rows that pass, without rows that cancel each other.

    INTERNAL_ERROR if an append-only output would take rows back: then something below broke its watermark's promise.
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
    """How far the bound has come, before this epoch and now.

    passed: the trace with the former, if rows tell of it. unit_us: the microseconds of 1 in the words of the column.
    """

    def __init__(self, op: TimeFilter, passed: Trace, unit_us: int) -> None:
        self._unit_us = unit_us
        self._side: Any = "left" if op.comparison in ("<", ">=") else "right"
        self._old_us = int(col.words(passed.runs[0].arrays[0])[0]) if passed.runs else None
        self._now_us = self._old_us

    def move(self, bound_us: int | None) -> None:
        """The bound is now `bound_us`; it never falls."""
        if bound_us is not None:
            self._now_us = bound_us if self._now_us is None else max(self._now_us, bound_us)

    def before(self, run: Run) -> int:
        """How many of the run's first rows the bound had passed before."""
        return self._place(run, self._old_us)

    def now(self, run: Run) -> int:
        """How many of the run's first rows the bound has passed."""
        return self._place(run, self._now_us)

    def next_us(self, rows: Trace) -> int | None:
        """The least time that the bound has not passed."""
        waiting = [int(run.hash[self.now(run)]) for run in rows.runs if self.now(run) < run.num_rows]
        return (min(waiting) - (1 << 63)) * self._unit_us if waiting else None

    def stored(self) -> Run:
        """The run that remembers how far it is now."""
        return make_run(
            np.zeros(1, np.uint64), [pa.array([self._now_us], pa.timestamp("us"))], np.ones(1, np.int64), ()
        )

    def _place(self, run: Run, bound_us: int | None) -> int:
        if bound_us is None:
            return 0
        bound = -(-bound_us // self._unit_us) if self._side == "left" else bound_us // self._unit_us
        if self._unit_us > 1 and bound <= -MOST_DAYS:
            return 0  # earlier dates count as that day, `microseconds` says
        return int(np.searchsorted(run.hash, np.uint64(bound + (1 << 63)), side=self._side))


def _keep(rows: Trace, change: Run, line: _Line) -> None:
    """Puts the change into the trace, and leaves out what the bound has passed."""
    kept = []
    for run in rows.runs:
        gone = line.now(run)
        if gone and (run.num_rows <= SMALL_ROWS or 2 * gone >= run.num_rows):
            run = run.slice(gone, run.num_rows)  # noqa: PLW2901
        if run.num_rows:
            kept.append(run)

    def merge(runs: Sequence[Run], /, *, whole: bool, above: Sequence[Run] = ()) -> Run:  # noqa: ARG001 - it is gone
        live = [r.slice(line.now(r), r.num_rows) for r in runs if line.now(r) < r.num_rows]
        return merge_runs(live, whole=whole) if live else runs[0].slice(0, 0)

    rows.replace(kept)
    rows.append(change, merge)

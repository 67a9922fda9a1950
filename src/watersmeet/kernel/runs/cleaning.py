"""Cleaning: what a watermark has passed leaves a trace.

Whether a row that is of no more use is still there changes no result, so cleaning is only a matter of cost: a run all
of whose times are below the bound goes without another look, a small one is rewritten without its dead rows as soon as
it has any, a large one when a sample of its times says that half of it is dead. So a row is rewritten about once more
in its life, at most about half of a trace is dead, and a trace is empty once the bound has passed everything. What
happens depends on the runs and the bound alone, so that every replay cleans alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from watersmeet.kernel.arrays.times import microseconds
from watersmeet.kernel.runs.merge import merge_runs
from watersmeet.kernel.runs.run import Run
from watersmeet.kernel.runs.trace import Trace

#: A run of at most so many rows is rewritten as soon as a row of it is of no more use.
SMALL_ROWS: Final = 1024
#: So many times stand for all of a large run.
SAMPLE_ROWS: Final = 1024

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Retention:
    """Rows are of use while `column` (a date or timestamp) is not below `bound_us`.

    nulls: whether those are in which it is NULL.
    """

    column: int
    bound_us: int
    nulls: bool = False

    def live(self, run: Run) -> Run:
        """The rows of the run that are of use: exactly these."""
        if not run.num_rows or self._span(run)[0] >= self.bound_us:
            return run
        return run.take(np.flatnonzero(self._values(run) >= self.bound_us))

    def clean(self, trace: Trace) -> None:
        """Takes rows that are of no more use out of the trace, where it costs little."""
        runs = [self._cleaned(run) for run in trace.runs]
        if any(new is not old for new, old in zip(runs, trace.runs, strict=True)):
            trace.replace(r for r in runs if r.num_rows)
        self._note(trace)

    def take_in(self, trace: Trace, change: Run) -> None:
        """Cleans the trace and puts into it what is of use of the change."""
        self.clean(trace)
        trace.append(self.live(change), self.merge)
        self._note(trace)

    def merge(self, runs: Sequence[Run], /, *, whole: bool, above: Sequence[Run] = ()) -> Run:  # noqa: ARG002 - it is dead
        """`merge_runs` of what is of use."""
        live = [r for r in (self.live(run) for run in runs) if r.num_rows]
        if not live:
            return runs[0].slice(0, 0)
        merged = merge_runs(live, whole=whole)
        if merged.num_rows:
            self._span(merged)  # it may be stored before `_note`
        return merged

    def _cleaned(self, run: Run) -> Run:
        least, greatest = self._span(run)
        if least >= self.bound_us:
            return run
        if greatest < self.bound_us:
            return run.slice(0, 0)
        if run.num_rows > SMALL_ROWS:
            sample = self._values(run)[:: run.num_rows // SAMPLE_ROWS]
            if 2 * np.count_nonzero(sample < self.bound_us) < len(sample):
                return run
        return self.live(run)

    def _span(self, run: Run) -> tuple[int, int]:
        """The least and the greatest time of a run that has rows; stored with it, so that it need not be read for
        that.
        """
        if run.note is None:
            values = self._values(run)
            run.note = [int(values.min()), int(values.max())]
        least, greatest = run.note
        return least, greatest

    def _note(self, trace: Trace) -> None:
        """Runs are stored with their spans."""
        for run in trace.runs:
            if run.ref is None:
                self._span(run)

    def _values(self, run: Run) -> Ints:
        """The times in microseconds; for NULL one below, or above, every bound."""
        values, valid = microseconds(run.arrays[self.column])
        limits = np.iinfo(np.int64)
        return values if valid is None else np.where(valid, values, limits.max if self.nulls else limits.min)

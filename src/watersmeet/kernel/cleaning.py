"""Cleaning: what a watermark has passed leaves a trace.

Whether a row that is of no more use is still there changes no result, so cleaning is only a matter of cost: a run all of whose times
are below the bound goes without another look, a small one is rewritten without its dead rows as soon as it has any,
a large one when a sample of its times says that half of it is dead. So a row is rewritten about once more in its life,
at most about half of a trace is dead, and a trace is empty once the bound has passed everything. What happens depends on the
runs and the bound alone, so that every replay cleans alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from watersmeet.kernel.merge import merge_runs
from watersmeet.kernel.run import Run
from watersmeet.kernel.times import microseconds
from watersmeet.kernel.trace import Trace

#: A run of at most so many rows is rewritten as soon as a row of it is of no more use.
SMALL_ROWS: Final = 1024
#: So many times stand for all of a large run.
SAMPLE_ROWS: Final = 1024

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Retention:
    """Rows are of use while `column` (a date or timestamp) is not below `bound_us`. nulls: whether those are in which it is NULL."""

    column: int
    bound_us: int
    nulls: bool = False

    def live(self, run: Run) -> Run:
        """The rows of the run that are of use: exactly these."""
        if not run.num_rows or self._times(run).least >= self.bound_us:
            return run
        return run.take(np.flatnonzero(self._values(run) >= self.bound_us))

    def clean(self, trace: Trace) -> None:
        """Takes rows that are of no more use out of the trace, where it costs little."""
        runs = [self._cleaned(run) for run in trace.runs]
        if any(new is not old for new, old in zip(runs, trace.runs, strict=True)):
            trace.replace(r for r in runs if r.num_rows)

    def merge(self, runs: Sequence[Run], /, *, whole: bool) -> Run:
        """`merge_runs` of what is of use."""
        live = [r for r in (self.live(run) for run in runs) if r.num_rows]
        return merge_runs(live, whole=whole) if live else runs[0].slice(0, 0)

    def _cleaned(self, run: Run) -> Run:
        times = self._times(run)
        if times.least >= self.bound_us:
            return run
        if times.greatest < self.bound_us:
            return run.slice(0, 0)
        dead = int(np.searchsorted(times.sample, self.bound_us))
        return self.live(run) if run.num_rows <= SMALL_ROWS or 2 * dead >= len(times.sample) else run

    def _times(self, run: Run) -> _Times:
        """What is known of the run's times; computed once in the life of the object."""
        known: dict[tuple[int, bool], _Times] = run.__dict__.setdefault("times", {})
        key = self.column, self.nulls
        if key not in known:
            values = self._values(run)
            sample = np.sort(values[:: max(1, run.num_rows // SAMPLE_ROWS)])
            known[key] = _Times(int(values.min()), int(values.max()), sample)
        return known[key]

    def _values(self, run: Run) -> Ints:
        """The times in microseconds; for NULL one below, or above, every bound."""
        values, valid = microseconds(run.arrays[self.column])
        limits = np.iinfo(np.int64)
        return values if valid is None else np.where(valid, values, limits.max if self.nulls else limits.min)


@dataclass(frozen=True, eq=False)
class _Times:
    """The times of a run. sample: some of them, or all of a small run's, ascending."""

    least: int
    greatest: int
    sample: Ints

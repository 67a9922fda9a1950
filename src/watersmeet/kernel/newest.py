"""Forgetting by watermarks where of what has passed the newest is still asked for: the right side of ASOF joins, versions of rows.

Below the bound nothing changes any more, and nobody asks for anything there but the newest rows of a key: older ones are of no
more use. Whether they are still there changes no result, so they go when it costs little: whenever runs are merged, and
when enough of a trace is of no use, which each run tells by samples of its times that are stored with it. So in each
epoch only these are looked at, a row is rewritten about once more in its life, and a trace without new rows ends with
at most about two rows a key (one in a small trace). All depends on the runs and the bound alone: every replay forgets alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from watersmeet.kernel.merge import merge_in_segments, merge_runs
from watersmeet.kernel.order import stretches
from watersmeet.kernel.run import Run
from watersmeet.kernel.times import microseconds
from watersmeet.kernel.trace import Trace

Ints = npt.NDArray[np.int64]

#: A trace of at most so many rows is rewritten as soon as a row of it is of no more use.
SMALL_ROWS: Final = 1024
#: So many times stand for all of a run.
_SAMPLES: Final = 64
_NEVER: Final = np.iinfo(np.int64).min


@dataclass(frozen=True)
class Newest:
    """Of use are rows whose `column` (a date or timestamp) is not below `bound_us`, and of each key the newest others.

    Of these there may be several with one time. Rows with NULL in the column are of no use.
    """

    column: int
    bound_us: int

    def take_in(self, trace: Trace, change: Run) -> None:
        """Adds changes to the trace, and takes rows that are of no more use out of it if there are enough of them."""
        run = self._pruned(change)
        _told(run, self.column)
        trace.append(run, self.merge)
        if self._is_due(trace):
            merged = merge_in_segments(trace.runs, self.merge, whole=True)
            if merged is not None:
                trace.replace(merged)

    def merge(self, runs: Sequence[Run], /, *, whole: bool) -> Run:
        """One run of what is of use of the newest runs of a trace."""
        merged = self._pruned(merge_runs(runs, whole=whole))
        _told(merged, self.column)
        return merged

    def _is_due(self, trace: Trace) -> bool:
        told = [_told(run, self.column) for run in trace.runs]
        passed = [t.passed(self.bound_us) for t in told]
        if not any(passed):
            return False
        dead = [t.dead(self.bound_us) for t in told]
        left = [p - d for p, d in zip(passed, dead, strict=True)]
        if trace.num_rows <= SMALL_ROWS:
            return any(dead) or sum(n > 0 for n in left) > 1
        return 2 * sum(dead) >= trace.num_rows or sum(left) >= 2 * max(left)

    def _pruned(self, run: Run) -> Run:
        """The run, which nothing newer lies above, without rows that are of no use."""
        times, known = microseconds(run.arrays[self.column])
        kept = np.ones(run.num_rows, np.bool_) if known is None else known.copy()
        if run.pure and run.num_rows:
            # What is in a newest run with a diff above 0 is there: nothing below the bound goes any more.
            passed = kept & (times < self.bound_us) & (run.diff > 0)
            starts, lengths = stretches(run.hash)
            newest = np.maximum.reduceat(np.where(passed, times, _NEVER), starts)
            kept &= ~passed | (times == np.repeat(newest, lengths))
        return run if kept.all() else run.take(np.flatnonzero(kept))


@dataclass(frozen=True, eq=False)
class _Told:
    """What a run tells of its times: samples, ascending, and of how many rows each is.

    times: of all rows; successors: of the next newer row of the same key in the run, where there is one.
    """

    times: Ints
    rows: int
    successors: Ints
    succeeded: int

    def passed(self, bound_us: int) -> int:
        """About how many rows are below the bound; 0 only if none is."""
        return _below(self.times, self.rows, bound_us)

    def dead(self, bound_us: int) -> int:
        """About how many rows are older than another of their key below the bound; 0 only if none is."""
        return _below(self.successors, self.succeeded, bound_us)


def _below(sample: Ints, count: int, bound_us: int) -> int:
    return -(-int(np.searchsorted(sample, bound_us)) * count // len(sample)) if count else 0


def _told(run: Run, column: int) -> _Told:
    """What the run tells; found out once, stored with it."""
    if run.note is None:
        times, known = microseconds(run.arrays[column])
        there = run.diff > 0 if known is None else known & (run.diff > 0)
        hashes, times = run.hash[there], times[there]
        order = np.lexsort((times, hashes))
        hashes, times = hashes[order], times[order]
        first = np.ones(len(times), np.bool_)  # rows of one key and time have one fate
        first[1:] = (hashes[1:] != hashes[:-1]) | (times[1:] != times[:-1])
        starts = np.flatnonzero(first)
        follows = (hashes[starts[1:]] == hashes[starts[:-1]]) & run.pure
        lengths = np.diff(starts, append=len(times))[:-1]
        successors = np.sort(np.repeat(times[starts[1:]][follows], lengths[follows]))
        run.note = [_sample(np.sort(times)).tolist(), len(times), _sample(successors).tolist(), len(successors)]
    times, rows, successors, succeeded = run.note
    return _Told(np.array(times, np.int64), rows, np.array(successors, np.int64), succeeded)


def _sample(ordered: Ints) -> Ints:
    """The least, the greatest and some between."""
    return ordered[np.linspace(0, len(ordered) - 1, min(_SAMPLES, len(ordered))).astype(np.int64)]

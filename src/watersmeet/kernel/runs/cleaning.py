"""Cleaning: removing rows from traces that are no longer needed.

Rows that are not needed change no result, so they are removed when it costs little: when runs are merged, and when
enough of a run is not needed. The rules depend only on the runs and the bound, so that every replay cleans alike.

`Retention`: all rows that a watermark has passed. A run with all times below the bound is dropped unread, a small one
is rewritten as soon as it has such a row, a large one when a sample of its times shows that half of it is not needed.
So a row is rewritten about once, and at most about half of a trace is not needed.

`Newest`: of the rows below the bound only the newest of each key are needed: the right side of ASOF joins, versions of
rows. Each run stores samples of its times, so only they are read in an epoch. A trace without new rows ends with at
most about two rows a key (one in a small trace).

`Best`: only the best rows of each key of an append-only relation are needed: the versions of an ASOF join with a depth.
All runs together have at most a few times the needed rows, as in every trace.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from watersmeet.circuit.operators import SortKey
from watersmeet.kernel.arrays import columns as col
from watersmeet.kernel.arrays.columns import microseconds
from watersmeet.kernel.arrays.hashing import Hashes
from watersmeet.kernel.runs.delta import stretches
from watersmeet.kernel.runs.groups import rank
from watersmeet.kernel.runs.run import Run
from watersmeet.kernel.runs.trace import Trace, merge_runs

#: A run of at most this many rows is rewritten as soon as one of them is not needed.
SMALL_ROWS: Final = 1024
#: A trace of at most this many rows is rewritten as soon as it has a row that is not needed.
SMALL_TRACE_ROWS: Final = 1024

#: The size of the sample of times of a large run.
SAMPLE_ROWS: Final = 1024

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Retention:
    """Rows are needed while `column` (a date or timestamp) is not below `bound_us`.

    nulls: whether rows with NULL in it are needed.
    """

    column: int
    bound_us: int
    nulls: bool = False

    def live(self, run: Run) -> Run:
        """Exactly the rows of the run that are needed."""
        if not run.num_rows or self._span(run)[0] >= self.bound_us:
            return run
        return run.take(np.flatnonzero(self._values(run) >= self.bound_us))

    def clean(self, trace: Trace) -> None:
        """Removes rows that are not needed from the trace where it costs little."""
        runs = [self._cleaned(run) for run in trace.runs]
        if any(new is not old for new, old in zip(runs, trace.runs, strict=True)):
            trace.replace(r for r in runs if r.num_rows)
        self._note(trace)

    def take_in(self, trace: Trace, change: Run) -> None:
        """Cleans the trace and adds the needed rows of the change."""
        self.clean(trace)
        trace.append(self.live(change), self.merge)
        self._note(trace)

    def merge(self, runs: Sequence[Run], /, *, whole: bool, above: Sequence[Run] = ()) -> Run:  # noqa: ARG002 - it is dead
        """Merges runs like `merge_runs`, without the rows that no result needs any more."""
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
        """The least and the greatest time of a non-empty run; stored with it, so that it need not be read."""
        if run.note is None:
            values = self._values(run)
            run.note = [int(values.min()), int(values.max())]
        least, greatest = run.note
        return least, greatest

    def _note(self, trace: Trace) -> None:
        """Stores the runs with their spans."""
        for run in trace.runs:
            if run.ref is None:
                self._span(run)

    def _values(self, run: Run) -> Ints:
        """The times in microseconds; for NULL one below, or above, every bound."""
        values, valid = microseconds(run.arrays[self.column])
        limits = np.iinfo(np.int64)
        return values if valid is None else np.where(valid, values, limits.max if self.nulls else limits.min)


#: The number of sampled times of a run.
_SAMPLES: Final = 64

_NEVER: Final = np.iinfo(np.int64).min


@dataclass(frozen=True)
class Newest:
    """Needed are rows whose `column` (a date or timestamp) is not below `bound_us`, and the `depth` newest others of
    each key.

    Rows with the same time as the last of these are needed, too. Rows with NULL in the column are not.
    """

    column: int
    bound_us: int
    depth: int = 1

    def take_in(self, trace: Trace, change: Run) -> None:
        """Adds changes to the trace, and removes rows that are not needed if there are enough of them."""
        run = self._pruned(change)
        self._samples(run)
        trace.append(run, self.merge)
        if self._is_due(trace):
            trace.merge_all(self.merge)

    def merge(self, runs: Sequence[Run], /, *, whole: bool, above: Sequence[Run] = ()) -> Run:
        """One run of the needed rows of some runs."""
        merged = self._pruned(merge_runs(runs, whole=whole), above)
        self._samples(merged)
        return merged

    def _is_due(self, trace: Trace) -> bool:
        samples = [self._samples(run) for run in trace.runs]
        passed = [t.passed(self.bound_us) for t in samples]
        if not any(passed):
            return False
        dead = [t.dead(self.bound_us) for t in samples]
        left = [p - d for p, d in zip(passed, dead, strict=True)]
        if trace.num_rows <= SMALL_TRACE_ROWS:
            return any(dead) or sum(n > 0 for n in left) > 1
        return 2 * sum(dead) >= trace.num_rows or sum(left) >= 2 * max(left)

    def _pruned(self, run: Run, above: Sequence[Run] = ()) -> Run:
        """The run without rows that are not needed. above: all newer runs of the trace."""
        times, known = microseconds(run.arrays[self.column])
        kept = np.ones(run.num_rows, np.bool_) if known is None else known.copy()
        if run.pure and run.num_rows:
            # A positive diff that no newer run retracts is final: no row below the bound is deleted any more.
            passed = kept & (times < self.bound_us) & (run.diff > 0)
            for newer in above:
                if newer.has_negative:
                    passed &= ~np.isin(run.hash, newer.hash[newer.diff < 0])
            if self.depth == 1:
                starts, lengths = stretches(run.hash)
                newest = np.maximum.reduceat(np.where(passed, times, _NEVER), starts)
                kept &= ~passed | (times == np.repeat(newest, lengths))
            else:
                places = np.flatnonzero(passed)
                kept[places] = _newer(run.hash[places], times[places]) < self.depth
        return run if kept.all() else run.take(np.flatnonzero(kept))

    def _samples(self, run: Run) -> _Samples:
        """The run's samples; computed once, stored with it."""
        if run.note is None:
            times, known = microseconds(run.arrays[self.column])
            there = run.diff > 0 if known is None else known & (run.diff > 0)
            run.note = _tell(run.hash[there], times[there], self.depth, pure=run.pure)
        times, rows, successors, succeeded = run.note
        return _Samples(np.array(times, np.int64), rows, np.array(successors, np.int64), succeeded)


@dataclass(frozen=True, eq=False)
class _Samples:
    """Samples of a run's times, ascending, and the number of rows for each.

    times: of all rows; successors: the times from which rows are not needed: that of the next newer row of the key, or
    of the one `depth` places newer.
    """

    times: Ints
    rows: int
    successors: Ints
    succeeded: int

    def passed(self, bound_us: int) -> int:
        """The approximate number of rows below the bound; 0 only if there is none."""
        return _below(self.times, self.rows, bound_us)

    def dead(self, bound_us: int) -> int:
        """The approximate number of rows older than enough others of their key below the bound; 0 only if there is
        none.
        """
        return _below(self.successors, self.succeeded, bound_us)


def _below(sample: Ints, count: int, bound_us: int) -> int:
    return -(-int(np.searchsorted(sample, bound_us)) * count // len(sample)) if count else 0


def _tell(hashes: Hashes, times: Ints, depth: int, *, pure: bool) -> list[Any]:
    """The fields of `_Samples`, as they are stored."""
    order = np.lexsort((times, hashes))
    hashes, times = hashes[order], times[order]
    ends = _ends(hashes, times)
    behind = ends + depth - 1  # the row that is `depth` positions newer than all rows of this time
    follows = np.flatnonzero(behind < len(times)) if pure else np.zeros(0, np.int64)
    follows = follows[hashes[behind[follows]] == hashes[follows]]
    successors = np.sort(times[behind[follows]])
    return [_sample(np.sort(times)).tolist(), len(times), _sample(successors).tolist(), len(successors)]


def _newer(hashes: Hashes, times: Ints) -> Ints:
    """The number of rows of the same key with a later time."""
    order = np.lexsort((times, hashes))
    hashes, times = hashes[order], times[order]
    found = np.empty(len(order), np.int64)
    found[order] = np.searchsorted(hashes, hashes, side="right") - _ends(hashes, times)
    return found


def _ends(hashes: Hashes, times: Ints) -> Ints:
    """For each row the position after the last one with its key and time; rows are ordered by both."""
    last = np.ones(len(times), np.bool_)
    last[:-1] = (hashes[1:] != hashes[:-1]) | (times[1:] != times[:-1])
    places = np.flatnonzero(last) + 1
    return places[np.searchsorted(places, np.arange(len(times)), side="right")]


def _sample(ordered: Ints) -> Ints:
    """The least, the greatest and some between."""
    return ordered[np.linspace(0, len(ordered) - 1, min(_SAMPLES, len(ordered))).astype(np.int64)]


@dataclass(frozen=True)
class Best:
    """Needed are the first `depth` rows of each key in `order`, and those equal in it to the last of these."""

    order: tuple[SortKey, ...]
    depth: int

    def take_in(self, trace: Trace, change: Run) -> None:
        """Adds rows to the trace; merges remove rows that are not needed."""
        trace.append(self._pruned(change), self.merge, replacing=True)

    def merge(self, runs: Sequence[Run], /, *, whole: bool, above: Sequence[Run] = ()) -> Run:  # noqa: ARG002 - rows only come
        """One run of the needed rows of some runs."""
        return self._pruned(merge_runs(runs, whole=whole))

    def _pruned(self, run: Run) -> Run:
        starts, lengths = stretches(run.hash)
        crowded = np.repeat(lengths > self.depth, lengths)
        if not run.pure or not crowded.any():  # different keys with the same hash keep all rows
            return run
        rows = np.flatnonzero(crowded)
        groups = np.repeat(np.arange(len(starts)), lengths)[rows]
        arrays = [col.gather(run.arrays[key.column], rows) for key in self.order]
        ranking = rank(groups, arrays, [replace(key, column=i) for i, key in enumerate(self.order)])
        places = np.arange(len(rows))
        firsts, counts = stretches(ranking.groups.astype(np.uint64))
        leads = np.flatnonzero(ranking.leads)
        of_peers = np.repeat(leads, np.diff(leads, append=len(rows)))
        beyond = rows[ranking.order[places[of_peers - np.repeat(firsts, counts) >= self.depth]]]
        kept = np.ones(run.num_rows, np.bool_)
        kept[beyond] = False
        return run.take(np.flatnonzero(kept))

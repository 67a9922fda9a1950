"""Cleaning removes rows from traces that are no longer needed.

Such rows change no result, so they are removed when it costs little: when runs are merged, and when enough of a run is
not needed. The rules depend only on the runs and the bound, so that every replay removes the same rows.

`Retention` removes all rows that a watermark has passed. A run with all times below the bound is dropped unread, a
small run is rewritten as soon as it has such a row, a large run when a sample of its times shows that half of it is not
needed. So a row is rewritten about once, and at most about half of a trace is not needed.

`Newest` only keeps the newest of each key's rows below the bound: for the right side of ASOF joins, and versions of
rows. Each run stores samples of its times, and an epoch only reads these. A trace without new rows ends with at most
about two rows a key (one in a small trace).

`Best` only keeps the best rows of each key of an append-only relation: for the versions of an ASOF join with a depth.
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

#: The number of times in the sample of a large run.
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
        """The run with exactly its needed rows."""
        if not run.num_rows or (run.note is not None and run.note[0] >= self.bound_us):
            return run
        values, index = self._values(run)
        needed = (values >= self.bound_us)[index]
        return run if needed.all() else run.take(np.flatnonzero(needed))

    def clean(self, trace: Trace) -> None:
        """Removes unneeded rows from the trace where it costs little."""
        runs = [self._cleaned(run) for run in trace.runs]
        if any(new is not old for new, old in zip(runs, trace.runs, strict=True)):
            trace.replace(r for r in runs if r.num_rows)
        self._note(trace)

    def take_in(self, trace: Trace, change: Run) -> None:
        """Cleans the trace, and adds the needed rows of the change."""
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
            self._span(merged)  # the run may be stored before `_note`
        return merged

    def _cleaned(self, run: Run) -> Run:
        least, greatest = self._span(run)
        if least >= self.bound_us:
            return run
        if greatest < self.bound_us:
            return run.slice(0, 0)
        if run.num_rows > SMALL_ROWS:
            values, index = self._values(run)
            sample = values[index][:: run.num_rows // SAMPLE_ROWS]
            if 2 * np.count_nonzero(sample < self.bound_us) < len(sample):
                return run
        return self.live(run)

    def _span(self, run: Run) -> tuple[int, int]:
        """The least and the greatest time of a non-empty run; stored with the run, whose rows are then not read."""
        if run.note is None:
            values, index = self._values(run)
            values = values if len(values) == run.num_rows else values[index]
            run.note = [int(values.min()), int(values.max())]
        least, greatest = run.note
        return least, greatest

    def _note(self, trace: Trace) -> None:
        """Stores the runs with their spans."""
        for run in trace.runs:
            if run.ref is None:
                self._span(run)

    def _values(self, run: Run) -> tuple[Ints, col.Positions | slice]:
        """(times in microseconds, the index of the run's rows in them). NULL becomes a time below or above every
        bound.
        """
        array, index = run.unordered(self.column)
        values, valid = microseconds(array)
        limits = np.iinfo(np.int64)
        return values if valid is None else np.where(valid, values, limits.max if self.nulls else limits.min), index


#: The number of sampled times of a run, …
_SAMPLES: Final = 64

#: … which are those of this many blocks of rows, of this many rows or more, …
_BLOCKS: Final = 64

#: … if the run is larger.
_BLOCK_ROWS: Final = 256

_NEVER: Final = np.iinfo(np.int64).min


@dataclass(frozen=True)
class Newest:
    """Rows are needed if their `column` (a date or timestamp) is not below `bound_us`, or if they are among the `depth`
    newest others of their key, or as new as the last of these.

    Rows with NULL in the column are not needed.
    """

    column: int
    bound_us: int
    depth: int = 1

    def take_in(self, trace: Trace, change: Run) -> None:
        """Adds changes to the trace, and removes unneeded rows if they are many enough."""
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
        """The run without its unneeded rows. above: all newer runs of the trace."""
        times, known = microseconds(run.arrays[self.column])
        kept = np.ones(run.num_rows, np.bool_) if known is None else known.copy()
        if run.pure and run.num_rows:
            # A positive diff that no newer run retracts is final, because rows below the bound are no longer deleted.
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
        """The run's samples, which are computed once and stored with it."""
        if run.note is None:
            times, known = microseconds(run.arrays[self.column])
            there = np.ones(run.num_rows, np.bool_) if known is None else known
            if run.has_negative:
                there = there & (run.diff > 0)
            hashes, times = (run.hash, times) if there.all() else (run.hash[there], times[there])
            run.note = _tell(hashes, times, self.depth, pure=run.pure)
        times, rows, successors, succeeded = run.note
        return _Samples(np.array(times, np.int64), rows, np.array(successors, np.int64), succeeded)


@dataclass(frozen=True, eq=False)
class _Samples:
    """Ascending samples of a run's times, and the numbers of rows that they stand for.

    times, rows: for all rows. successors, succeeded: for rows with enough newer ones of their key, the time of the row
    `depth` positions newer; a row is not needed once the bound exceeds this time.
    """

    times: Ints
    rows: int
    successors: Ints
    succeeded: int

    def passed(self, bound_us: int) -> int:
        """The approximate number of rows below the bound; 0 only if there is none."""
        return _below(self.times, self.rows, bound_us)

    def dead(self, bound_us: int) -> int:
        """The approximate number of rows with enough newer ones of their key below the bound; 0 only if there is
        none.
        """
        return _below(self.successors, self.succeeded, bound_us)


def _below(sample: Ints, count: int, bound_us: int) -> int:
    return -(-int(np.searchsorted(sample, bound_us)) * count // len(sample)) if count else 0


def latest_us(run: Run, unknown_us: int) -> int:
    """The greatest time of a run of `Newest`; `unknown_us` if it is not known without reading the run."""
    if run.note is None or run.has_negative or not run.note[0]:
        return unknown_us
    return int(run.note[0][-1])


def _tell(hashes: Hashes, times: Ints, depth: int, *, pure: bool) -> list[Any]:
    """The fields of `_Samples` in stored form. hashes: ascending.

    Those of a large run are computed from blocks of its rows. A row's successor in its block is its successor in the
    run or a later row.
    """
    count, width = len(times), max(_BLOCK_ROWS, 4 * depth)
    if count <= _BLOCKS * width:
        every, block = times, np.zeros(count, np.int64)
    else:
        starts = np.linspace(0, count - width, _BLOCKS).astype(np.int64)
        rows = (starts[:, np.newaxis] + np.arange(width)).ravel()
        every = np.append(times[rows], [times.min(), times.max()])
        hashes, times, block = hashes[rows], times[rows], np.repeat(np.arange(_BLOCKS), width)
    order = np.lexsort((times, hashes, block))
    hashes, times, block = hashes[order], times[order], block[order]
    ends = _ends(block, hashes, times)
    behind = ends + depth - 1  # the row that is `depth` positions newer than all rows of this time
    follows = np.flatnonzero(behind < len(times)) if pure else np.zeros(0, np.int64)
    follows = follows[(hashes[behind[follows]] == hashes[follows]) & (block[behind[follows]] == block[follows])]
    successors = np.sort(times[behind[follows]])
    succeeded = len(successors) * count // max(1, len(times))
    return [_sample(np.sort(every)).tolist(), count, _sample(successors).tolist(), succeeded]


def _newer(hashes: Hashes, times: Ints) -> Ints:
    """The number of rows of the same key with a later time."""
    order = np.lexsort((times, hashes))
    hashes, times = hashes[order], times[order]
    found = np.empty(len(order), np.int64)
    found[order] = np.searchsorted(hashes, hashes, side="right") - _ends(hashes, times)
    return found


def _ends(*words: npt.NDArray[Any]) -> Ints:
    """For each row the position after the last one that is equal in all words, by which the rows are ordered."""
    last = np.ones(len(words[0]), np.bool_)
    last[:-1] = np.logical_or.reduce([word[1:] != word[:-1] for word in words])
    places = np.flatnonzero(last) + 1
    return np.repeat(places, np.diff(places, prepend=0))


def _sample(ordered: Ints) -> Ints:
    """The least value, the greatest, and some between them."""
    return ordered[np.linspace(0, len(ordered) - 1, min(_SAMPLES, len(ordered))).astype(np.int64)]


@dataclass(frozen=True)
class Best:
    """Rows are needed if they are among the first `depth` of their key in `order`, or equal to the last of these in
    it.
    """

    order: tuple[SortKey, ...]
    depth: int

    def take_in(self, trace: Trace, change: Run) -> None:
        """Adds rows to the trace; merges remove unneeded rows."""
        trace.append(self._pruned(change), self.merge, replacing=True)

    def merge(self, runs: Sequence[Run], /, *, whole: bool, above: Sequence[Run] = ()) -> Run:  # noqa: ARG002 - rows only come
        """One run of the needed rows of some runs."""
        return self._pruned(merge_runs(runs, whole=whole))

    def _pruned(self, run: Run) -> Run:
        starts, lengths = stretches(run.hash)
        crowded = np.repeat(lengths > self.depth, lengths)
        if not run.pure or not crowded.any():  # if different keys have the same hash, all rows are kept
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

"""The best rows of each key: ORDER BY … LIMIT, and the rows whose row_number (or rank) is at most N.

All rows are kept, in runs sorted by key and order: by a word of the top half of the key's hash, followed by 32 bits
that increase along the order. For a changed key, each run is only read up to the last of its best rows before and after
the epoch. Append-only input keeps only the best rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from watersmeet.circuit.operators import TopN
from watersmeet.kernel.arrays import columns as col
from watersmeet.kernel.arrays.columns import pieces
from watersmeet.kernel.arrays.hashing import Hashes, hash_columns
from watersmeet.kernel.context import StepContext
from watersmeet.kernel.runs.cleaning import Retention
from watersmeet.kernel.runs.cold import near
from watersmeet.kernel.runs.delta import Delta, canonical_rows, taken
from watersmeet.kernel.runs.groups import (
    Groups,
    Ints,
    Ranking,
    Touched,
    first_rows,
    group,
    key_form,
    leading,
    prefixes,
    rank,
    touched,
)
from watersmeet.kernel.runs.run import Run, make_run
from watersmeet.kernel.runs.state import State
from watersmeet.kernel.runs.trace import Trace
from watersmeet.values import watermarks

#: The number of entries of a run that are read beyond the wanted rows, and the factor by which it grows if they are not
#: enough.
FIRST_ROWS: Final = 16
_FURTHER: Final = 8
_LOW: Final = np.uint64(0xFFFFFFFF)
_NO_LIMIT: Final = np.int64(1 << 62)
_PIECE_ROWS: Final = 1 << 20


def step(op: TopN, inputs: Sequence[Delta], state: State, ctx: StepContext) -> Delta:
    """The changes of the best rows, each row once, ordered by the hash of its key and then by the order of the key's
    rows.
    """
    out = _changed(op, inputs[0], state, ctx)
    bound = watermarks.value(op.retain, ctx.watermarks)
    if bound is not None and op.time is not None:
        Retention(op.time, bound, nulls=True).clean(state.trace(op.id, "rows"))
    return out


def _changed(op: TopN, delta: Delta, state: State, ctx: StepContext) -> Delta:
    if not delta.num_rows:
        return Delta.none(op.schema)
    trace = state.trace(op.id, "rows")
    arrays = [col.one_form(c) for c in delta.columns.columns]
    keys = [key_form(arrays[i]) for i in op.keys]
    groups = group(keys, hash_columns(keys, delta.num_rows))
    appends = bool(ctx.append_only and ctx.append_only[0])
    if appends:
        places = _candidates(op, groups, arrays)
        diff = taken(delta.diff, places)  # equal rows are added up with the present ones
    else:
        words = _words(op, arrays, groups.hashes[groups.of_row])
        places, diff = canonical_rows(arrays, delta.diff, words, whole_row=False)
    if not len(places):
        return Delta.none(op.schema)
    arrays, owner = col.gather_all(arrays, places), groups.of_row[places]
    words = _words(op, arrays, groups.hashes[owner]) if appends else words[places]
    removed = np.zeros(groups.count, np.int64)
    np.subtract.at(removed, owner, np.minimum(diff, 0))
    most = _NO_LIMIT if op.limit is None else np.int64(op.limit + op.offset)
    found = _Search(near(trace.runs, lambda: groups.hashes & ~_LOW, int(_LOW)), groups, op.keys).best(most + removed)
    inside = np.flatnonzero(found.complete[owner] | (words < found.horizon[owner]))
    change = Delta(col.positional(col.gather_all(arrays, inside)), diff[inside])
    rows = touched(found.entries, (owner[inside], change), groups.hashes)
    ranking = rank(rows.groups, rows.arrays, op.order)
    before, after = (_chosen(op, ranking, counts[ranking.order], op.offset) for counts in (rows.before, rows.after))
    if appends:
        _keep_best(op, trace, rows, ranking, groups)
    else:
        trace.append(make_run(words, arrays, diff, ()))
    moved = np.flatnonzero(after != before)
    return Delta(col.positional(col.gather_all(rows.arrays, ranking.order[moved])), (after - before)[moved])


def _candidates(op: TopN, groups: Groups, arrays: Sequence[pa.Array]) -> Ints:
    """The positions of the rows that may be among the best of their key; a first sort key decides it for most."""
    if op.limit is None or not op.order:
        return np.arange(len(groups.of_row))
    return first_rows(groups.of_row, arrays, op.order[0], op.limit + op.offset)


def _words(op: TopN, arrays: Sequence[pa.Array], hashes: Hashes) -> Hashes:
    """The words by which the runs are sorted."""
    first = leading([a.type for a in arrays], op.order)
    base = hashes & ~_LOW
    return base if first is None else base | prefixes(arrays[first.column], first)


def _chosen(op: TopN, ranking: Ranking, counts: Ints, offset: int) -> Ints:
    """For each row, in the order of the ranking, the number of its copies between `offset` and the limit."""
    groups = ranking.groups
    total = np.cumsum(counts)
    starts = np.flatnonzero(np.diff(groups, prepend=-1))
    base = np.repeat((total - counts)[starts], np.diff(starts, append=len(groups)))
    end = total - base
    begin = end - counts
    skipped: Ints = np.clip(end, None, offset) - np.clip(begin, None, offset)
    if op.limit is None:
        return counts - skipped
    last = op.offset + op.limit
    if op.with_ties:
        leads = np.flatnonzero(ranking.leads)
        first_of_peers = np.repeat(begin[leads], np.diff(leads, append=len(groups)))
        tied: Ints = np.where(first_of_peers < last, counts - skipped, 0)
        return tied
    inside: Ints = np.clip(end, None, last) - np.clip(begin, None, last)
    chosen: Ints = np.maximum(inside - skipped, 0)
    return chosen


def _keep_best(op: TopN, trace: Trace, rows: Touched, ranking: Ranking, groups: Groups) -> None:
    """Writes the rows that later epochs can output, and deletes the others."""
    old, new = (_chosen(op, ranking, counts[ranking.order], 0) for counts in (rows.before, rows.after))
    moved = np.flatnonzero(new != old)
    arrays = col.gather_all(rows.arrays, ranking.order[moved])
    words = _words(op, arrays, groups.hashes[ranking.groups[moved]])
    places, diff = canonical_rows(arrays, (new - old)[moved], words, whole_row=False)
    trace.append(make_run(words[places], col.gather_all(arrays, places), diff, ()))


@dataclass(frozen=True, eq=False)
class _Best:
    """The first rows of groups.

    entries: pairs of groups and rows. For groups in the mask `complete` they contain all rows; for other groups, the
    rows whose sort word is below the group's `horizon`.
    """

    entries: list[tuple[Ints, Delta]]
    horizon: Hashes
    complete: col.Mask


@dataclass(frozen=True, eq=False)
class _Search:
    """Finds the first rows of groups in `runs`. keys: the key columns of the runs."""

    runs: Sequence[Run]
    groups: Groups
    keys: tuple[int, ...]

    def best(self, wanted: Ints) -> _Best:
        """For each group, entries with at least `wanted` rows (counting copies), or all of its entries."""
        horizon = np.zeros(self.groups.count, np.uint64)
        complete = np.ones(self.groups.count, np.bool_)
        entries: list[tuple[Ints, Delta]] = []
        waiting = np.arange(self.groups.count)
        most = FIRST_ROWS
        while self.runs and len(waiting):
            bound, whole = self._bounds(waiting, np.minimum(wanted[waiting], _NO_LIMIT - most) + most)
            found = self._entries(waiting, bound, whole)
            counts = np.zeros(len(waiting), np.int64)
            for index, rows in found:
                np.add.at(counts, index, rows.diff)
            done = whole | (counts >= wanted[waiting])
            horizon[waiting[done]], complete[waiting[done]] = bound[done], whole[done]
            for index, rows in found:
                kept = np.flatnonzero(done[index])
                if len(kept):
                    entries.append((waiting[index[kept]], rows if len(kept) == len(index) else rows.take(kept)))
            waiting = waiting[~done]
            most *= _FURTHER
        return _Best(entries, horizon, complete)

    def _ranges(self, run: Run, wanted: Ints) -> tuple[Ints, Ints]:
        base = self.groups.hashes[wanted] & ~_LOW
        return np.searchsorted(run.hash, base), np.searchsorted(run.hash, base | _LOW, side="right")

    def _bounds(self, wanted: Ints, most: Ints) -> tuple[Hashes, col.Mask]:
        """For each group, the lowest sort word beyond the first `most` entries of a run; and the mask of groups without
        one.
        """
        bound = np.full(len(wanted), ~np.uint64(0))
        whole = np.ones(len(wanted), np.bool_)
        for run in self.runs:
            low, high = self._ranges(run, wanted)
            more = np.flatnonzero(high - low > most)
            bound[more] = np.minimum(bound[more], run.hash[low[more] + most[more]])
            whole[more] = False
        return bound, whole

    def _entries(self, wanted: Ints, bound: Hashes, whole: col.Mask) -> list[tuple[Ints, Delta]]:
        """The entries (index in `wanted`, rows): all those of groups that are `whole`, and otherwise those with words
        below `bound`.
        """
        found = []
        for run in self.runs:
            low, high = self._ranges(run, wanted)
            high = np.where(whole, high, np.minimum(high, np.searchsorted(run.hash, bound)))
            for index, row in pieces(low, np.maximum(high - low, 0), _PIECE_ROWS):
                keys = [run.arrays[k] for k in self.keys]
                same = np.flatnonzero(self.groups.same(wanted[index], keys, row, hashes_agree=False))
                rows = Delta(col.positional(col.gather_all(run.arrays, row[same])), run.diff[row[same]])
                found.append((index[same], rows))
        return found

"""Trace: the runs of one arrangement, merged geometrically and probed by hash; also traces of the newest row of each
key.

Merging: runs have levels, each with FAN_IN times as many rows as the level below it. As soon as FAN_IN of the newest
runs are of one level or lower, they become one run. Laws: merging never changes the sum of diffs of any row, and it
always depends only on the runs and the budget, so that every replay merges alike.

A merge proceeds from low hashes to high ones, in pieces: the merged piece precedes the runs, which continue after it.
So between two pieces the runs have the same content, in the same order for each hash, and show the progress of the
merge. If the epoch's budget is used up, the merge resumes in the next epoch that changes the trace. Meanwhile newer
runs are added after it, and merged with each other.

In a trace of newest rows, rows have diff 1; diff -1 means that the key is deleted. A merge keeps the newest row of a
key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
import pyarrow as pa

from watersmeet.kernel.arrays import columns as col
from watersmeet.kernel.arrays.columns import distinct, pieces
from watersmeet.kernel.arrays.hashing import Hashes, hash_columns, is_bijective
from watersmeet.kernel.runs.cold import near
from watersmeet.kernel.runs.delta import Delta, Diffs, ones, settle, stretches
from watersmeet.kernel.runs.groups import Groups, Ints
from watersmeet.kernel.runs.run import Merging, Run, make_run

#: The number of runs of comparable size that become one.
FAN_IN: Final = 4

#: All smaller runs are of the lowest level.
LEVEL_0_ROWS: Final = 256

#: Above this size a merge is only worthwhile if it can remove rows, …
MERGED_BYTES: Final = 256 << 20

#: … or merges this many runs.
LARGE_FAN_IN: Final = 16

#: A larger result is cut into chunks of about this size, by ranges of hashes.
CHUNK_BYTES: Final = 128 << 20

#: Rows of one hash are merged in one piece, which must fit in Arrow's 2 GiB, with room to spare.
PIECE_BYTES: Final = 1 << 30

#: With more runs than this, merges ignore the budget. Chunks of one result count as one run.
MOST_RUNS: Final = 64

#: The default number of bytes that a task merges in an epoch: about a second of work.
MERGE_BYTES: Final = 256 << 20

#: A trace may always merge this many bytes, so that chunks don't become tiny, …
LEAST_BYTES: Final = 1 << 20

#: … and this multiple of the epoch's changes. A row is merged once a level, and fewer levels are above an epoch's
#: changes.
_LEVELS: Final = 8

_SAMPLES: Final = 4096


class MergeRuns(Protocol):
    """A function that merges some runs, oldest first. whole: whether there are no older runs. above: all newer runs."""

    def __call__(self, runs: Sequence[Run], /, *, whole: bool, above: Sequence[Run] = ()) -> Run: ...


#: A function that stores a merged run, and returns it in stored form.
Keep = Callable[[Run], Run]


class MergeBudget:
    """The number of bytes of runs that the traces of one task may merge in an epoch.

    piece_bytes: the bytes merged at a time, of which three copies are in memory; by default, as many as suit large
    chunks.
    """

    def __init__(self, most_bytes: int = MERGE_BYTES, piece_bytes: int | None = None) -> None:
        self._least_bytes = min(LEAST_BYTES, most_bytes)
        self._left_bytes = most_bytes
        self.whole_bytes = MERGED_BYTES if piece_bytes is None else piece_bytes
        """Merges below this size are done in one piece, if the epoch's budget allows."""
        self.piece_bytes = CHUNK_BYTES if piece_bytes is None else piece_bytes
        """The size of the pieces of larger merges."""

    @property
    def least_bytes(self) -> int:
        """The minimum size of a piece, except for the last piece of a merge."""
        return self._least_bytes

    def allowed_bytes(self, brought_bytes: int, levels: int = _LEVELS) -> int:
        """The bytes that a trace may merge after a change of `brought_bytes`. levels: the multiple of the change."""
        return max(self._left_bytes, levels * brought_bytes, self._least_bytes)

    def spend(self, merged_bytes: int) -> None:
        """Subtracts merged bytes from the budget."""
        self._left_bytes = max(0, self._left_bytes - merged_bytes)


def settled(
    runs: Iterable[Run],
    merge: MergeRuns,
    budget: MergeBudget,
    keep: Keep | None = None,
    *,
    replacing: bool = False,
    fan_in: int = FAN_IN,
) -> list[Run]:
    """The given runs (oldest first, the newest just added) after merging them as far as the budget allows.

    The smallest merges are first. keep: stores each merged piece before the next one; by default, all stay in memory.
    replacing: newer rows replace older ones without a negative diff, so that merging always removes rows. fan_in: the
    number of runs of comparable size that become one. If it is large, an epoch merges more only if there are more runs.
    """
    runs = list(runs)
    levels = _LEVELS if fan_in < LARGE_FAN_IN else max(1, _count(runs) // fan_in)
    left_bytes = budget.allowed_bytes(runs[-1].size_bytes, levels)
    while True:
        runs = _begun_if_due(runs, len(runs), replacing=replacing, fan_in=fan_in)
        end = _end_of_merges(runs)
        if not end:
            return runs
        start = _start_of_merge(runs, end)
        size = sum(r.size_bytes for r in runs[start:end])
        if _is_crowded(runs):
            most_bytes = size
        elif left_bytes < min(size, budget.least_bytes):
            return runs
        else:
            most_bytes = left_bytes
        newer = len(runs) - end
        merged_bytes = _advance(runs, start, end, merge, min(size, most_bytes), budget, keep)
        left_bytes -= merged_bytes
        budget.spend(merged_bytes)
        stop = len(runs) - newer
        if stop and not runs[stop - 1].merging:  # the merge has ended, maybe after newer runs were added
            runs = _begun_if_due(runs, stop, replacing=replacing, fan_in=fan_in)


def _begun_if_due(runs: list[Run], stop: int, *, replacing: bool, fan_in: int) -> list[Run]:
    """The runs after a merge of the last ones before index `stop` has begun, if it is due and they fit."""
    count = mergeable(runs[_end_of_merges(runs[:stop]) : stop], replacing=replacing, fan_in=fan_in)
    return begun(runs, count, stop) if count and _fits(runs[stop - count : stop]) else runs


def mergeable(runs: Sequence[Run], *, replacing: bool = False, fan_in: int = FAN_IN) -> int:
    """The number of newest runs to merge now; 0 if none. Chunks of one result count as one."""
    tail = members = size = newest = 0
    paying = paid = 0
    pays = True
    garbage = replacing
    position = len(runs)
    while position:
        start = position - 1
        while start and runs[start].continues:  # its first chunks may be merged already
            start -= 1
        group = runs[start:position]
        group_level = level(sum(r.num_rows for r in group))
        if position == len(runs):
            newest = group_level
        if group_level > newest:
            break
        size += sum(r.size_bytes for r in group)
        garbage = garbage or any(r.has_negative for r in group)
        members += 1
        tail += len(group)
        pays = pays and (size <= MERGED_BYTES or garbage)
        if pays:
            paying, paid = tail, members
        position = start
    if paid >= fan_in:
        return paying
    return tail if members >= LARGE_FAN_IN else 0


def level(rows: int) -> int:
    """The level of a run with that many rows."""
    found, rows = 0, rows // LEVEL_0_ROWS
    while rows >= FAN_IN:
        found, rows = found + 1, rows // FAN_IN
    return found


def begun(runs: Sequence[Run], count: int, stop: int | None = None) -> list[Run]:
    """The runs after a merge of the `count` runs before index `stop` has begun; by default, of the newest ones. It has
    not taken any rows yet.
    """
    number = 1 + max((r.merging.number for r in runs if r.merging), default=0)
    stop = len(runs) if stop is None else stop
    found = list(runs[: stop - count])
    for run in runs[stop - count : stop]:
        part = run.part(0, run.num_rows)
        part.merging = Merging(number, made=False, whole=count == stop)
        found.append(part)
    return [*found, *runs[stop:]]


def _end_of_merges(runs: Sequence[Run]) -> int:
    """The index after the newest run that is being merged; 0 if there is none."""
    return next((i + 1 for i in reversed(range(len(runs))) if runs[i].merging), 0)


def _start_of_merge(runs: Sequence[Run], end: int) -> int:
    """The first run of the merge to which the run before `end` belongs."""
    numbers = [None if r.merging is None else r.merging.number for r in runs[:end]]
    return next((i + 1 for i in reversed(range(end)) if numbers[i] != numbers[-1]), 0)


def _is_crowded(runs: Sequence[Run]) -> bool:
    return _count(runs) > MOST_RUNS


def _count(runs: Sequence[Run]) -> int:
    """The number of runs; chunks of one result count as one."""
    return sum(not r.continues for r in runs)


def _fits(runs: Sequence[Run]) -> bool:
    """Whether the rows of each hash fit in one piece."""
    size = sum(r.size_bytes for r in runs)
    if size <= MERGED_BYTES:
        return True
    sample, count = _sample(runs), -(-size // CHUNK_BYTES)
    bounds = np.unique(sample[(np.arange(1, count) * len(sample)) // count])
    cuts = [[0, *np.searchsorted(r.hash, bounds).tolist(), r.num_rows] for r in runs]
    return all(
        sum(r.slice(c[i], c[i + 1]).size_bytes for r, c in zip(runs, cuts, strict=True)) <= PIECE_BYTES
        for i in range(len(bounds) + 1)
    )


def _advance(
    runs: list[Run],
    start: int,
    end: int,
    merge: MergeRuns,
    most_bytes: int,
    budget: MergeBudget,
    keep: Keep | None,
) -> int:
    """Merges a piece of the runs [start, end), whose merge has begun, in place. Returns the bytes of the piece."""
    members = runs[start:end]
    places = _piece(members, most_bytes, budget)
    taken = [r.slice(0, place) for r, place in zip(members, places, strict=True) if place]
    states = [r.merging for r in members if r.merging]
    # Merges of several buckets may have become one.
    whole, made = all(m.whole for m in states), any(m.made for m in states)
    merged = merge(taken, whole=whole, above=runs[end:])
    found = []
    if merged.num_rows:
        merged.continues, merged.merging = made, None
        found.append(merged if keep is None else keep(merged))
        made = True
    for run, place in zip(members, places, strict=True):
        if place < run.num_rows:
            rest = run.behind(place)
            rest.merging = Merging(states[0].number, made=made, whole=whole)
            found.append(rest)
    runs[start:end] = found
    return sum(r.size_bytes for r in taken)


def _piece(runs: Sequence[Run], most_bytes: int, budget: MergeBudget) -> list[int]:
    """For each run, the number of its first rows in the next piece. The piece has about `most_bytes`, but at least all
    rows of one hash.
    """
    size = sum(r.size_bytes for r in runs)
    if size <= min(most_bytes, budget.whole_bytes):
        return [r.num_rows for r in runs]
    most_bytes = min(most_bytes, budget.piece_bytes)
    sample = _sample(runs)
    place = min(len(sample) - 1, len(sample) * most_bytes // size)
    while place:
        places: list[int] = [int(np.searchsorted(r.hash, sample[place])) for r in runs]
        taken = sum(r.slice(0, p).size_bytes for r, p in zip(runs, places, strict=True))
        if 0 < taken <= 2 * most_bytes:
            return places
        place //= 2
    return [int(np.searchsorted(r.hash, sample[0], side="right")) for r in runs]


def _sample(runs: Sequence[Run]) -> Hashes:
    """An ascending sample of the hashes of all rows, including the least."""
    step = max(1, sum(r.num_rows for r in runs) // _SAMPLES)
    found: Hashes = np.sort(np.concatenate([r.hash[::step] for r in runs]))
    return found


def merge_runs(
    runs: Sequence[Run],
    /,
    *,
    whole: bool = False,  # noqa: ARG001 - any diffs may come later
    above: Sequence[Run] = (),  # noqa: ARG001
) -> Run:
    """One run with the same sum of diffs for every row.

    Only rows whose hash occurs with a negative diff can cancel, so only those are compared. Where each deletion of a
    hash is the one of a row, both are left out; other rows of such hashes are consolidated. All others keep the order
    of their runs.
    """
    hashes = np.concatenate([r.hash for r in runs])
    order = np.argsort(hashes, kind="stable")  # timsort merges, because each run is sorted
    arrays = [pa.concat_arrays([r.arrays[i] for r in runs]) for i in range(len(runs[0].arrays))]
    if all(r.all_ones for r in runs):
        diff = ones(len(order))
    else:
        diff = np.concatenate([r.diff for r in runs])[order]
        if any(r.has_negative for r in runs):
            order, diff = _without_cancelled(arrays, hashes, order, diff)
    return make_run(hashes[order], col.gather_all(arrays, order), diff, runs[0].keys)


def _without_cancelled(
    arrays: Sequence[pa.Array], hashes: Hashes, order: col.Positions, diff: Diffs
) -> tuple[col.Positions, Diffs]:
    """The rows `order`, sorted by hash, and their diffs, without those that cancel."""
    starts, lengths = stretches(hashes[order])
    unpaired, kept = _paired(arrays, order, diff, starts, lengths)
    if not unpaired.any():
        return order[kept], diff[kept]
    touched = np.repeat(unpaired, lengths)
    kept &= ~touched
    rows = order[touched]
    known = hash_columns(arrays, len(hashes), as_key=False)[rows] if 2 * len(rows) > len(order) else None
    rows, first = settle(arrays, rows, hashes, row_hashes=known)
    diffs = np.empty_like(diff)
    diffs[order] = diff
    starts = np.flatnonzero(first)
    sums = np.add.reduceat(diffs[rows], starts)
    found = np.flatnonzero(sums)
    order = np.concatenate([order[kept], rows[starts[found]]])
    diff = np.concatenate([diff[kept], sums[found]])
    places = np.argsort(hashes[order], kind="stable")
    return order[places], diff[places]


def _paired(
    arrays: Sequence[pa.Array], order: col.Positions, diff: Diffs, starts: col.Positions, lengths: col.Positions
) -> tuple[col.Mask, col.Mask]:
    """(for each hash, whether its deletions must be compared with all of its rows; the entries to keep of others).

    Pairs the deletions of a hash with its first insertions, in order. Runs have the rows of a key in one order, so
    nearly all deletions then meet the row that they delete: those of whole keys, and those of updates.
    """
    deleted, added = np.flatnonzero(diff < 0), np.flatnonzero(diff > 0)
    owner = np.searchsorted(starts, deleted, side="right") - 1
    firsts, counts = stretches(owner.view(np.uint64))
    rank = np.arange(len(deleted)) - np.repeat(firsts, counts)
    unpaired = np.zeros(len(starts), np.bool_)
    kept = np.ones(len(order), np.bool_)
    place = np.searchsorted(added, starts[owner]) + rank
    partner = np.full(len(deleted), -1)
    there = place < len(added)
    partner[there] = added[place[there]]
    same = there & (partner < (starts + lengths)[owner])
    same[same] = diff[partner[same]] == -diff[deleted[same]]
    mine, theirs = order[deleted[same]], order[partner[same]]
    same[same] = col.rows_equal(col.gather_all(arrays, mine), col.gather_all(arrays, theirs), len(mine))
    unpaired[owner[~same]] = True
    same &= ~unpaired[owner]
    kept[deleted[same]] = False
    kept[partner[same]] = False
    return unpaired, kept


#: The number of pairs that are expanded at a time.
PIECE_ROWS: Final = 1 << 20


@dataclass(frozen=True, eq=False)
class Matches:
    """The rows of `run` for some sorted distinct hashes: each hash has the rows [low, high), which are equal if it has
    none.
    """

    run: Run
    low: col.Positions
    high: col.Positions


class Trace:
    """The current content of an arrangement, as the sum of its runs, oldest first.

    Laws: appending and merging never change the sum of diffs of any row; the runs always depend only on the sequence of
    appended runs. Merges rewrite a row about log4(rows of the trace / rows of a run) times. Large merges take several
    epochs, without changing the content.

    budget: that of the merges in this epoch; several traces may share it. keep: see `settled`.
    """

    def __init__(self, runs: Iterable[Run] = (), budget: MergeBudget | None = None, keep: Keep | None = None) -> None:
        self._runs = tuple(runs)
        self._keep = keep
        self._budget = MergeBudget() if budget is None else budget

    @property
    def runs(self) -> tuple[Run, ...]:
        """The runs, oldest first."""
        return self._runs

    @property
    def num_rows(self) -> int:
        """The number of entries in all runs; a row and its retraction count as two until a merge cancels them."""
        return sum(r.num_rows for r in self._runs)

    @property
    def size_bytes(self) -> int:
        """The number of bytes of the values in all runs."""
        return sum(r.size_bytes for r in self._runs)

    def append(self, run: Run, merge: MergeRuns = merge_runs, *, replacing: bool = False, fan_in: int = FAN_IN) -> None:
        """Adds changes, and merges due runs by `merge` within the budget. replacing, fan_in: as in `settled`."""
        if run.num_rows:
            runs = [*self._runs, run]
            self._runs = tuple(settled(runs, merge, self._budget, self._keep, replacing=replacing, fan_in=fan_in))

    def merge_all(self, merge: MergeRuns) -> None:
        """Starts a merge of all runs, unless they are being merged."""
        if self._runs and not any(r.merging for r in self._runs):
            self._runs = tuple(settled(begun(self._runs, len(self._runs)), merge, self._budget, self._keep))

    def replace(self, runs: Iterable[Run]) -> None:
        """Replaces all runs; nothing is merged."""
        self._runs = tuple(runs)

    def matches(self, hashes: Hashes) -> list[Matches]:
        """For each run, the rows of each of the sorted distinct `hashes`; O(hashes * log rows)."""
        return [find(run, hashes) for run in near(self._runs, lambda: hashes)] if len(hashes) else []

    def lookup(self, hashes: Hashes) -> Iterator[tuple[col.Positions, Run, col.Positions]]:
        """Every entry with one of the sorted distinct `hashes`, as (index of the hash, run, row), in pieces.

        The oldest run is first; within a run, hashes ascend. The caller must compare keys, because different keys may
        have the same hash.
        """
        for m in self.matches(hashes):
            for index, rows in pieces(m.low, m.high - m.low, PIECE_ROWS):
                yield index, m.run, rows

    def entries(self, hashes: Hashes) -> Delta | None:
        """All entries with one of the sorted distinct `hashes`, not consolidated; None if there are none."""
        found = [Delta(col.gather_table(run.columns, rows), run.diff[rows]) for _, run, rows in self.lookup(hashes)]
        return Delta.concat(found) if found else None


def find(run: Run, hashes: Hashes) -> Matches:
    """The rows of each of the sorted distinct `hashes` in `run`."""
    run.expect(hashes)
    if len(hashes) >= _MANY_HASHES and run.num_rows <= _TABLE_ROWS * len(hashes):
        return _looked_up(run, hashes)
    low = np.searchsorted(run.hash, hashes)
    high = low.copy()
    hit = np.flatnonzero(run.hash[np.minimum(low, run.num_rows - 1)] == hashes)
    high[hit] = np.searchsorted(run.hash, hashes[hit], side="right")
    return Matches(run, low, high)


def _looked_up(run: Run, hashes: Hashes) -> Matches:
    """As `find`, by a table of the run's hashes instead of a search for each: a third of the time if few are found.

    The table has the last hash of each range of hashes, of which there are about two for each hash of the run.
    """
    starts, lengths = run.stretches
    whole = len(starts) == run.num_rows
    known = run.hash if whole else run.hash[starts]
    least, span = known[0], int(known[-1]) - int(known[0])
    shift = np.uint64(max(0, span.bit_length() - (2 * len(known)).bit_length()))
    table = np.full((span >> int(shift)) + 1, -1, np.int32)
    table[((known - least) >> shift).view(np.int64)] = np.arange(len(known), dtype=np.int32)
    begin, end = np.searchsorted(hashes, least), np.searchsorted(hashes, known[-1], side="right")
    low, high = np.zeros(len(hashes), np.int64), np.zeros(len(hashes), np.int64)
    wanted = hashes[begin:end]
    places = table[((wanted - least) >> shift).view(np.int64)]
    rows = np.flatnonzero(places >= 0)
    places, wanted = places[rows], wanted[rows]
    rows += begin
    for _ in range(_MOST_STEPS):
        found = known[places]
        hit = np.flatnonzero(found == wanted)
        at, group = places[hit], rows[hit]
        first = at if whole else starts[at]
        low[group] = first
        high[group] = first + (1 if whole else lengths[at])
        behind = np.flatnonzero(found > wanted)
        if not len(behind):
            return Matches(run, low, high)
        rows, places, wanted = rows[behind], places[behind] - 1, wanted[behind]  # not below 0: that is the least hash
    low[rows] = np.searchsorted(run.hash, wanted)
    high[rows] = np.searchsorted(run.hash, wanted, side="right")
    return Matches(run, low, high)


#: At least this many hashes are found by a table …
_MANY_HASHES: Final = 1 << 12

#: … in a run that has at most this many rows for each of them.
_TABLE_ROWS: Final = 8

#: Similar hashes are searched after this many steps.
_MOST_STEPS: Final = 8

_UNKNOWN: Final = -1
_DELETED: Final = -2


def latest_rows(trace: Trace, groups: Groups) -> list[pa.Array] | None:
    """All columns of the newest row of each group; NULL in every column for a group without rows.

    None if no group has rows.
    """
    place = np.full(groups.count, _UNKNOWN, np.int64)
    parts: list[list[pa.Array]] = []
    size = 0
    for run in reversed(near(trace.runs, lambda: groups.hashes)):
        for owner, row in groups.find(run.hash):
            fresh = np.flatnonzero(place[owner] == _UNKNOWN)
            fresh = fresh[groups.same(owner[fresh], run.key_arrays, row[fresh])]
            if not len(fresh):
                continue
            group, found = owner[fresh], row[fresh]
            place[group] = np.where(run.diff[found] < 0, _DELETED, np.arange(size, size + len(group)))
            parts.append(col.gather_all(run.arrays, found))
            size += len(group)
    if not parts:
        return None
    positions = pa.array(place, mask=place < 0)
    return [pa.concat_arrays(pieces).take(positions) for pieces in zip(*parts, strict=True)]


def append_latest(trace: Trace, run: Run) -> None:
    """Adds the rows of `run`, one per key, which replace all older rows of their keys."""
    trace.append(run, merge, replacing=True)


def merge(runs: Sequence[Run], /, *, whole: bool, above: Sequence[Run] = ()) -> Run:  # noqa: ARG001 - see below
    """The newest row of each key of some runs, oldest first.

    whole: there are no older runs, so deleted keys are dropped. Newer runs may be ignored, because they replace these
    rows.
    """
    hashes = np.concatenate([r.hash for r in runs])
    order = np.argsort(hashes, kind="stable")
    arrays = [pa.concat_arrays([r.arrays[i] for r in runs]) for i in range(len(runs[0].arrays))]
    diff = np.concatenate([r.diff for r in runs])
    keys = runs[0].keys
    kept = _last_of_key(hashes[order], order, [arrays[k] for k in keys])
    if whole:
        kept = kept[diff[kept] > 0]
    return make_run(hashes[kept], [col.gather(a, kept) for a in arrays], diff[kept], keys)


def _last_of_key(ordered: Hashes, order: Ints, keys: Sequence[pa.Array]) -> Ints:
    """The last row of each key among rows that are ordered by hash; of rows with one key, later ones are newer."""
    starts, lengths = stretches(ordered)
    last: Ints = order[starts + lengths - 1]
    if len(keys) == 1 and is_bijective(keys[0].type) and keys[0].null_count == 0:
        return last
    later = np.ones(len(order), np.bool_)
    later[starts] = False
    places = np.flatnonzero(later)
    same = col.rows_equal(
        [col.gather(k, order[places - 1]) for k in keys],
        [col.gather(k, order[places]) for k in keys],
        len(places),
        as_key=True,
    )
    if same.all():
        return last
    # Different keys with one hash: about one in 2^64 pairs of keys.
    mixed = distinct(np.searchsorted(starts, places[~same], side="right") - 1)
    kept = [last[i : i + 1] for i in range(len(last))]
    for g in mixed.tolist():
        rows = order[starts[g] : starts[g] + lengths[g]].tolist()
        kept[g] = np.array(list({repr([k[row].as_py() for k in keys]): row for row in rows}.values()), np.int64)
    return np.concatenate(kept)

"""Matching of keys: finding the distinct keys of one run in other runs, and the size of a join's output before it is
computed.

A match by hash is verified on the key itself, once per distinct key and run, which suffices because the runs are pure
(see `Run.parts`).

For each epoch, an arrangement has its change and the content before it. All readers in a stage see the same two, in any
order of execution, because the content before is an immutable list of runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property, partial
from typing import Final, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from watersmeet.kernel.arrays import columns as col
from watersmeet.kernel.arrays.columns import distinct, expanded, pieces
from watersmeet.kernel.arrays.hashing import Hashes
from watersmeet.kernel.metrics import RowsByKey, busiest
from watersmeet.kernel.runs.cold import near
from watersmeet.kernel.runs.delta import Delta, Diffs, are_ones, canonical_rows, consolidate
from watersmeet.kernel.runs.run import Run
from watersmeet.kernel.runs.trace import PIECE_ROWS, find

#: Up to this many entries of several runs are united in one run.
_FEW_ENTRIES: Final = 1 << 14

#: If there are more entries, this number of runs, the largest ones, stay apart.
_LARGE_RUNS: Final = 3

_Value = TypeVar("_Value", bound=np.generic)


class Probe:
    """The distinct keys ("groups") of a pure run: group g is its rows [starts[g], starts[g] + lengths[g]).

    exact: whether equal hashes prove equal keys, so that keys need not be compared.
    """

    def __init__(self, run: Run, *, exact: bool) -> None:
        assert run.pure
        self.run = run
        self.starts, self.lengths = run.stretches
        self.hashes = run.hash[self.starts]
        self._exact = exact
        self._found: dict[int, tuple[Run, col.Positions, col.Positions]] = {}

    @property
    def num_groups(self) -> int:
        """The number of distinct keys."""
        return len(self.starts)

    def of_rows(self, values: npt.NDArray[_Value]) -> npt.NDArray[_Value]:
        """For each row, the value of its group."""
        return values if self.num_groups == self.run.num_rows else np.repeat(values, self.lengths)

    def sums(self) -> Diffs:
        """The sum of diffs of each group."""
        return np.add.reduceat(self.run.diff, self.starts) if self.num_groups else np.zeros(0, np.int64)

    def ranges(self, other: Run) -> tuple[col.Positions, col.Positions]:
        """For each group, the rows [low, high) of the pure run `other` that have its key."""
        if other is self.run:
            return self.starts, self.starts + self.lengths
        if id(other) not in self._found:
            # Keeps `other` alive, so that its id is not reused.
            self._found[id(other)] = (other, *self._ranges(other, self.hashes, self.starts))
        return self._found[id(other)][1:]

    def ranges_of(self, groups: col.Positions, other: Run) -> tuple[col.Positions, col.Positions]:
        """The same for some groups, in ascending order."""
        if other is self.run or id(other) in self._found or 2 * len(groups) > self.num_groups:
            low, high = self.ranges(other)
            return low[groups], high[groups]
        return self._ranges(other, self.hashes[groups], self.starts[groups])

    def _ranges(self, other: Run, hashes: Hashes, firsts: col.Positions) -> tuple[col.Positions, col.Positions]:
        """The rows of `other` for keys, given by their hashes and a row of each."""
        if not len(hashes):
            return firsts, firsts
        found = find(other, hashes)
        low, high = found.low, found.high
        hit = np.flatnonzero(high > low)
        if len(hit) and not self._exact:
            mine, theirs = firsts[hit], low[hit]
            same = col.rows_equal(
                self.run.gather(self.run.keys, mine), other.gather(other.keys, theirs), len(hit), as_key=True
            )
            high[hit[~same]] = theirs[~same]
        return low, high

    def counts(self, others: Iterable[Run]) -> Diffs:
        """For each group, the sum of diffs over all rows of the pure runs `others` that have its key."""
        total = np.zeros(self.num_groups, np.int64)
        for other in others:
            low, high = self.ranges(other)
            if other.all_ones:
                total += high - low
            else:
                for group, row in pieces(low, high - low, PIECE_ROWS):
                    np.add.at(total, group, other.diff[row])
        return total

    def matches(self, others: Iterable[Run]) -> col.Positions:
        """For each group, the number of rows of the pure runs `others` that have its key."""
        total = np.zeros(self.num_groups, np.int64)
        for other in others:
            low, high = self.ranges(other)
            total += high - low
        return total

    def shared(self, other: Probe, marked: col.Mask | None) -> col.Mask:
        """For each group, whether its key is one of the `marked` groups of another probe; None: of all its groups."""
        low, high = self.ranges(other.run)
        found: col.Mask = high > low
        if marked is not None:
            found[found] = marked[np.searchsorted(other.starts, low[found])]
        return found

    def shared_with(self, others: Sequence[Run]) -> col.Positions:
        """Ascending groups, including all whose key occurs in one of the pure runs `others`: those with an equal hash
        if they are few, otherwise all.
        """
        if 2 * sum(other.num_rows for other in others) > self.num_groups:
            return np.arange(self.num_groups)
        hashes = distinct(np.concatenate([self.hashes[:0], *(other.hash for other in others)]))
        places = np.searchsorted(self.hashes, hashes)
        inside = places < self.num_groups
        places, hashes = places[inside], hashes[inside]
        found: col.Positions = places[self.hashes[places] == hashes]
        return found

    def pairs(
        self, other: Run, limit: int = PIECE_ROWS, some: col.Mask | None = None
    ) -> Iterator[tuple[col.Positions, col.Positions]]:
        """All pairs (row of this run, row of `other`) with equal keys, in order, at most `limit` at a time.

        some: the mask of the groups whose pairs are wanted; by default all.
        """
        low, high = self.ranges(other)
        yield from self._expanded(np.flatnonzero(high > low if some is None else (high > low) & some), low, high, limit)

    def emptied(self, change: Run, old: Iterable[Run]) -> col.Mask:
        """For each group, whether the pure run `change` deletes the only row that the pure runs `old` have of its key,
        and has no other row of it.
        """
        old = list(old)
        low, high = self.ranges(change)
        found: col.Mask = (high - low == 1) & (self.matches(old) == 1)
        for run in old:
            first, end = self.ranges(run)
            here = np.flatnonzero(found & (end > first))
            gone, row = low[here], first[here]
            same = change.diff[gone] == -run.diff[row]
            everything = range(len(change.shape[0]))
            same &= col.rows_equal(change.gather(everything, gone), run.gather(everything, row), len(here))
            found[here[~same]] = False
        return found

    def replaced(self, change: Run, old: Sequence[Run], *, complete: bool) -> col.Mask:
        """For each group, whether the pure run `change` deletes the only row that the pure runs `old` have of its key,
        and no other row. It may insert a row.

        complete: as in `Arranged`: then `change` deletes no other row than the one that there is, if that was found by
        `current`. Otherwise the two rows are compared.
        """
        low, high = self.ranges(change)
        found: col.Mask = (high > low) & (high - low <= 2) & (self.matches(old) == 1)
        here = np.flatnonzero(found)
        one, two = _first_two(change, low[here], high[here])
        found[here] = (one < 0) != (two < 0)
        gone = low + 0
        gone[here] += one >= 0
        for run in old:
            first, end = self.ranges(run)
            here = np.flatnonzero(found & (end > first))
            deleted, row = gone[here], first[here]
            same = change.diff[deleted] == -run.diff[row]
            if not complete:
                everything = range(len(change.shape[0]))
                same &= col.rows_equal(change.gather(everything, deleted), run.gather(everything, row), len(here))
            found[here[~same]] = False
        return found

    def part(self, rows: col.Mask) -> Probe:
        """The probe of some rows."""
        return Probe(self.run.lazily(np.flatnonzero(rows)), exact=self._exact)

    def rows_of(
        self, groups: col.Positions, other: Run, limit: int = PIECE_ROWS
    ) -> Iterator[tuple[col.Positions, col.Positions]]:
        """All pairs (group, row of `other`) with equal keys, for the given ascending groups, at most `limit` at a
        time.
        """
        low, high = self.ranges_of(groups, other)
        for index, row in pieces(low, high - low, limit):
            yield groups[index], row

    def current(self, others: Sequence[Run]) -> list[Run]:
        """Runs with the same sums of diffs for the keys of this probe as the pure runs `others`, oldest first, which
        are complete (see `Arranged`).

        Keys that have never had more than one row have only the entry of that row.
        """
        if not any(run.has_negative for run in others):
            return list(others)
        rows = np.zeros(self.num_groups, np.int64)  # that each key has after a run
        single = np.ones(self.num_groups, np.bool_)
        newest, place = np.full(self.num_groups, -1), np.zeros(self.num_groups, np.int64)
        for number, run in enumerate(others):
            low, high = self.ranges(run)
            groups = np.flatnonzero(high > low)
            one, two = _first_two(run, low[groups], high[groups])
            before, added = rows[groups], (one > 0).astype(np.int64) + (two > 0)
            after = before + one + two
            # A deletion deletes a row of the content before this run, which no key has more than once.
            usual = (np.abs(one) == 1) & (np.abs(two) <= 1) & (high - low <= 2)[groups] & (added <= 1)
            usual &= (after - added >= 0) & (after <= 1)
            single[groups[~usual]] = False
            rows[groups] = after
            newest[groups] = np.where(added > 0, number, -1)
            place[groups] = low[groups] + (two > 0)
        found = []
        for number, run in enumerate(others):
            low, high = self.ranges(run)
            counts = np.where(single, newest == number, high - low)
            some = np.flatnonzero(counts)
            if len(some):
                firsts, ends = np.where(single, place, low), np.cumsum(counts)
                view = run.lazily(expanded(firsts[some], counts[some])[1])
                self._found[id(view)] = (view, ends - counts, ends)
                found.append(view)
        return found

    def few(self, others: Sequence[Run]) -> list[Run]:
        """Runs with the same entries for the keys of this probe as the pure runs `others`: one if these are few
        entries, otherwise the largest runs, and one with the entries of all others.
        """
        entries = [int((high - low).sum()) for low, high in map(self.ranges, others)]
        met = [run for run, count in zip(others, entries, strict=True) if count]
        large = [] if sum(entries) <= _FEW_ENTRIES else sorted(met, key=lambda run: run.num_rows)[-_LARGE_RUNS:]
        small = [run for run in met if run not in large]
        return met if len(small) < 2 else [*large, self._united(small)]

    def _united(self, others: Sequence[Run]) -> Run:
        """The entries that have a key of this probe in one run, by key, those of older runs first."""
        collected = self._collected(others, np.arange(self.num_groups))
        assert collected is not None
        groups, arrays, diff = collected
        order = np.argsort(groups, kind="stable")
        weights = None if are_ones(diff) else diff[order]
        columns = col.positional(col.gather_all(arrays, order))
        found = Run(self.hashes[groups[order]], columns, weights, others[0].keys, pure=True)
        counts = np.bincount(groups, minlength=self.num_groups)
        ends = np.cumsum(counts)
        self._found[id(found)] = (found, ends - counts, ends)
        return found

    def content(
        self, others: Iterable[Run], some: col.Positions | None = None
    ) -> tuple[col.Positions, list[pa.Array], Diffs] | None:
        """(groups, columns, diffs) of all rows of `others` that have a key of the groups `some`, by default of
        all; None if there are none.

        The rows are consolidated and ordered by group, then in canonical order.
        """
        collected = self._collected(others, np.arange(self.num_groups) if some is None else some)
        if collected is None:
            return None
        groups, arrays, diffs = collected
        rows, diff = canonical_rows(arrays, diffs, groups.astype(np.uint64), whole_row=False)
        return groups[rows], col.gather_all(arrays, rows), diff

    def _collected(
        self, others: Iterable[Run], some: col.Positions
    ) -> tuple[col.Positions, list[pa.Array], Diffs] | None:
        """(groups, columns, diffs) of all entries of `others` that have a key of the groups `some`, run by run. None
        without entries.
        """
        groups, tables, diffs = [], [], []
        for other in others:
            for group, rows in self.rows_of(some, other):
                groups.append(group)
                tables.append(col.gather_all(other.arrays, rows))
                diffs.append(other.diff[rows])
        if not groups:
            return None
        arrays = [pa.concat_arrays(list(parts)) for parts in zip(*tables, strict=True)]
        return np.concatenate(groups), arrays, np.concatenate(diffs)

    def _expanded(
        self, hit: col.Positions, low: col.Positions, high: col.Positions, limit: int
    ) -> Iterator[tuple[col.Positions, col.Positions]]:
        low, counts = low[hit], (high - low)[hit]
        if self.num_groups == self.run.num_rows:
            mine = self.starts[hit]
            whole = len(mine) == self.run.num_rows
            for index, row in pieces(low, counts, limit):
                yield index if whole else mine[index], row
            return
        for group, mine in pieces(self.starts[hit], self.lengths[hit], limit):  # a group may be of any size
            for index, row in pieces(low[group], counts[group], limit):
                yield mine[index], row


def _first_two(run: Run, low: col.Positions, high: col.Positions) -> tuple[Diffs, Diffs]:
    """The diffs of the first row of each range, and of the second one or 0. No range is empty."""
    if run.all_ones:
        return np.ones(len(low), np.int64), (high - low > 1).astype(np.int64)
    return run.diff[low], np.where(high - low > 1, run.diff[np.minimum(low + 1, run.num_rows - 1)], 0)


def probes(runs: Iterable[Run], *, exact: bool) -> list[Probe]:
    """Probes for all rows of `runs`."""
    return [Probe(part, exact=exact) for run in runs if run.num_rows for part in run.parts]


def parts(runs: Iterable[Run]) -> list[Run]:
    """The pure runs that `runs` consist of."""
    return [part for run in runs if run.num_rows for part in run.parts]


#: More than any limit, because products of many counts may not fit in 64 bits.
_BEYOND: Final = 1 << 62

_TEXT_CHARACTERS: Final = 80


class Amplification:
    """The number of rows that one step of one operator outputs.

    rows: that of all keys. hottest: that of the key with the most.
    """

    def __init__(self) -> None:
        self.rows = 0
        self.hottest = 0
        self._place: tuple[Probe, int] | None = None
        self._terms: list[tuple[Probe, np.ndarray]] = []

    def add(self, probe: Probe, made: np.ndarray) -> None:
        """Adds numbers of rows. made: one for each key of the probe; floats where products may exceed 64 bits."""
        if not len(made):
            return
        self.rows = min(_BEYOND, self.rows + int(made.sum()))
        self._terms.append((probe, made))
        group = int(made.argmax())
        if made[group] > self.hottest:
            self.hottest = min(_BEYOND, int(made[group]))
            self._place = probe, group

    @property
    def busiest(self) -> RowsByKey:
        """As in `Counters`."""
        if not self.rows:
            return ()
        found: dict[int, int] = {}
        for key, rows in (pair for probe, made in self._terms for pair in busiest(probe.hashes, made)):
            found[key] = found.get(key, 0) + rows
        return busiest(np.array(list(found), np.uint64), np.array(list(found.values()), np.int64))

    def hottest_key(self) -> tuple[str | None, ...]:
        """The values of the key with the most rows, as texts; empty for a join without a key."""
        if self._place is None:
            return ()
        probe, group = self._place
        return tuple(shown(a[int(probe.starts[group])]) for a in probe.run.key_arrays)


class TooManyRowsError(Exception):
    """An operator would exceed its limit of rows. None of its output exists."""


def shown(value: pa.Scalar) -> str | None:
    """A value of a key as text, cut if it is long; None for NULL."""
    if not value.is_valid:
        return None
    try:
        text = str(value.as_py())
    except (ValueError, OverflowError):  # a time that Python's types can't represent
        text = str(value.cast(pa.int64()))
    return text if len(text) <= _TEXT_CHARACTERS else text[:_TEXT_CHARACTERS] + "…"


def pairs(probe: Probe, matches: col.Positions) -> col.Positions:
    """For each key of the probe, its number of rows times the number of matches."""
    return probe.lengths * matches


class Arranged:
    """One epoch of an arrangement.

    change: the changes of rows that can match, as a run. null_keys: the changes of rows with a NULL in the key, which
    are not kept; not consolidated. before: returns the runs of the earlier content; called at most once. exact: see
    `Probe`. complete: whether the runs have all changes since the beginning, so that those up to each of them add up to
    the content at some moment.
    """

    def __init__(
        self,
        change: Run,
        null_keys: Delta,
        before: Callable[[], tuple[Run, ...]],
        *,
        exact: bool,
        complete: bool = False,
    ) -> None:
        self.change = change
        self.null_keys = null_keys
        self.exact = exact
        self.complete = complete
        self._before = before

    @property
    def num_rows(self) -> int:
        """The number of changes."""
        return self.change.num_rows + self.null_keys.num_rows

    @cached_property
    def runs_before(self) -> tuple[Run, ...]:
        """The runs of the content before the epoch."""
        return self._before()

    @cached_property
    def old(self) -> list[Run]:
        """The content before the change, as pure runs."""
        return parts(self.runs_before)

    @cached_property
    def changes(self) -> list[Run]:
        """The change as pure runs."""
        return parts([self.change])

    @property
    def new(self) -> list[Run]:
        """The content after the change, as pure runs."""
        return [*self.old, *self.changes]

    @cached_property
    def probes(self) -> list[Probe]:
        """The keys of the change."""
        return probes(self.changes, exact=self.exact)

    @cached_property
    def net_null_keys(self) -> Delta:
        """`null_keys`, consolidated."""
        return consolidate(self.null_keys)


class _Near(Arranged):
    """An arrangement of which only some keys' earlier content is read. Properties of the change are shared with the
    whole one.
    """

    def __init__(self, whole: Arranged, hashes: Callable[[], Hashes]) -> None:
        super().__init__(
            whole.change,
            whole.null_keys,
            lambda: tuple(near(whole.runs_before, hashes)),
            exact=whole.exact,
            complete=whole.complete,
        )
        self._whole = whole

    @cached_property
    def old(self) -> list[Run]:
        return self._whole.old if self.runs_before == self._whole.runs_before else parts(self.runs_before)

    @cached_property
    def changes(self) -> list[Run]:
        return self._whole.changes

    @cached_property
    def probes(self) -> list[Probe]:
        return self._whole.probes

    @cached_property
    def net_null_keys(self) -> Delta:
        return self._whole.net_null_keys


def near_changes(inputs: Sequence[Arranged], own: Sequence[bool]) -> list[Arranged]:
    """The inputs, all by the same key, for an operator that probes each of them only for keys that change in another.

    own: for each input, whether the operator also probes it for keys of its own changes.
    """

    def changed(number: int) -> Hashes:
        return np.concatenate(
            [a.change.hash[: 0 if i == number and not own[i] else None] for i, a in enumerate(inputs)]
        )

    return [_Near(a, partial(changed, i)) for i, a in enumerate(inputs)]

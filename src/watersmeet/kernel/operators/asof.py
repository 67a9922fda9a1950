"""ASOF joins: each left row with the nearest right row of its key, revised when either side changes.

Let m(x, R) be the nearest partner of x in R (none if the residual is not true for it). The output then changes by

    dL * m(., R + dR)   +   L * (m(., R + dR) - m(., R))

in which only left rows whose key is in dR can differ. Both terms are linear in the entries of L, so its runs need no
consolidation. R's rows of the affected keys are consolidated first, because the nearest row does not depend on them
linearly.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import chain, pairwise
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.circuit.operators import BACKWARD, EXACT, FORWARD, ArrivalAsofJoin, AsofComparison, AsofJoin
from watersmeet.kernel.arrays import columns as col
from watersmeet.kernel.arrays.columns import cut, distinct
from watersmeet.kernel.arrays.hashing import has_common_order, order_keys, order_words
from watersmeet.kernel.context import StepContext
from watersmeet.kernel.joins import Found, Production, Residual, only_grow
from watersmeet.kernel.runs.delta import Delta, Diffs, Sliced, canonical_rows, stretches, taken
from watersmeet.kernel.runs.matching import Arranged, Probe, near_changes
from watersmeet.kernel.runs.run import Run, make_run
from watersmeet.kernel.runs.state import State

#: The index that stands for no partner.
NONE: Final = np.int64(-1)

_MOST: Final = 1 << 62

#: All values of a run are read if it has at most this many rows for each changed key.
_FEW_ROWS: Final = 32


class Candidates:
    """The rows of some keys that can be partners, each once; of rows with equal key and value, only the first by
    `ties`.

    Candidates have a positive sum of diffs over `runs` and a non-NULL value. Of rows equal in `ties` (positions of
    columns; NULLs last) the first in canonical order counts, so the choice never depends on the order of arrival; with
    None, any of them counts. depth: only the `depth` rows of a key with the greatest values count; None for all. Group
    g is the g-th key of the probe. some: only these groups are read; None for all.

    Rows stay in their runs until they are chosen. Until then a row is known by its number: all rows of the groups are
    numbered, run by run.
    """

    def __init__(
        self,
        probe: Probe,
        runs: Iterable[Run],
        value: int,
        ties: Sequence[int] | None,
        depth: int | None = None,
        *,
        some: col.Positions | None = None,
    ) -> None:
        self._runs = list(runs)
        #: Whether candidates are rows of the given runs: true if no run retracts a row of another.
        self.plain = not any(run.has_negative for run in self._runs)
        some = np.arange(probe.num_groups) if some is None else some
        # Of each row the group and the row in its run, and the first number of each run.
        found = self._in_runs(probe, some) if self.plain else self._summed(probe, some)
        self._groups, self._rows, self._starts = found
        numbers = np.arange(len(self._rows))
        if not len(numbers):
            return
        (self._values,) = self._columns([value], numbers)
        keys, valid = order_keys(self._values), col.validity(self._values)
        self._scale = _Scale(keys, probe.num_groups)
        places = self._scale.places(self._groups, keys)
        if valid is not None:
            numbers = np.flatnonzero(valid)
            places = places[valid]
        numbers, places = self._first(numbers, places, ties, depth)
        # A last entry stands for no candidate.
        self._ordered, self._places = np.append(numbers, NONE), np.append(places, NONE)

    def nearest(self, groups: col.Positions, values: pa.Array, comparison: AsofComparison) -> col.Positions:
        """For each (group, value) the number of the nearest candidate among those with `value comparison candidate`, or
        NONE.

        values: these have the candidates' type. A NULL has no partner. Of two equally near candidates the smaller
        counts.
        """
        if not len(self._rows):
            return np.full(len(values), NONE)
        scale, places, keys = self._scaled(values)
        wanted, valid = scale.places(groups, keys), col.validity(values)
        firsts, equal, sides = groups * scale.width, comparison in EXACT, []
        if comparison in BACKWARD:
            sides.append(np.searchsorted(places[:-1], wanted, side="right" if equal else "left") - 1)
        if comparison in FORWARD:
            sides.append(np.searchsorted(places[:-1], wanted, side="left" if equal else "right"))
        for number, at in enumerate(sides):
            inside = (places[at] - firsts).view(np.uint64) < scale.width
            sides[number] = np.where(inside if valid is None else inside & valid, self._ordered[at], NONE)
        return sides[0] if len(sides) == 1 else self._nearer(values, *sides)

    def _scaled(self, values: pa.Array) -> tuple[_Scale, col.Positions, col.Positions]:
        """(a scale, the places of the candidates in it, the order keys of `values`)."""
        if has_common_order(values.type):
            return self._scale, self._places, order_keys(values)
        keys = order_keys(pa.concat_arrays([self._values, values]))
        own, groups = keys[self._ordered[:-1]], self._groups[self._ordered[:-1]]
        scale = _Scale(own, int(self._groups.max(initial=0)) + 1)
        return scale, np.append(scale.places(groups, own), NONE), keys[len(self._values) :]

    def _nearer(self, values: pa.Array, before: col.Positions, after: col.Positions) -> col.Positions:
        """The nearer of two candidates, of which one is not above the value and one not below it; or the only
        candidate.
        """
        found = np.where(before == NONE, after, before)
        both = np.flatnonzero((before != NONE) & (after != NONE) & (before != after))
        if len(both):
            low, high = (col.gather(self._values, side[both]) for side in (before, after))
            above = both[nearer_above(col.gather(values, both), low, high)]
            found[above] = after[above]
        return found

    def chosen(self, found: col.Positions) -> tuple[Run | None, col.Positions]:
        """The candidates `found` as a run (None without candidates), and the row of each in it, or NONE."""
        marked = np.zeros(len(self._rows) + 1, np.bool_)
        marked[found] = True
        marked[NONE] = False
        used = np.flatnonzero(marked)
        if not len(used):
            return None, np.full(len(found), NONE)
        arrays = self._columns(range(len(self._runs[0].arrays)), used)
        place = np.cumsum(marked) - 1
        place[NONE] = NONE
        return Run(np.zeros(len(used), np.uint64), col.positional(arrays), None, (), pure=True), place[found]

    def differ(self, mine: col.Positions, other: Candidates, theirs: col.Positions) -> col.Mask:
        """The mask of the found candidates that differ from those found in `other`, which has the same groups, and
        whose runs begin with the runs of this one.
        """
        if self.plain and other.plain:
            numbers_differ: col.Mask = mine != theirs
            return numbers_differ
        differs: col.Mask = (mine == NONE) != (theirs == NONE)
        both = np.flatnonzero((mine != NONE) & (theirs != NONE))
        if not len(both):
            return differs
        one, two = (
            [col.gather(a, at) for a in run.arrays]
            for run, at in (self.chosen(mine[both]), other.chosen(theirs[both]))
            if run is not None
        )
        differs[both] = ~col.rows_equal(one, two, len(both))
        return differs

    def _in_runs(self, probe: Probe, some: col.Positions) -> tuple[col.Positions, col.Positions, col.Positions]:
        """(the group of each row with a key of the groups `some`, the row in its run, the first number of each run)."""
        none = np.zeros(0, np.int64)
        found = [[(none, none), *probe.rows_of(some, run)] for run in self._runs]
        starts = np.cumsum([0, *(sum(len(rows) for _, rows in pieces) for pieces in found)])
        pairs = [(none, none), *chain.from_iterable(found)]
        groups, rows = (np.concatenate(part) for part in zip(*pairs, strict=True))
        return groups, rows, starts

    def _summed(self, probe: Probe, some: col.Positions) -> tuple[col.Positions, col.Positions, col.Positions]:
        """The same, in one run without retracted rows, which replaces all runs."""
        found = probe.content(self._runs, some)
        if found is None:
            self._runs = self._runs[:1]
            none = np.zeros(0, np.int64)
            return none, none, np.zeros(2, np.int64)
        groups, arrays, diff = found
        self._runs = [make_run(np.zeros(len(diff), np.uint64), arrays, diff, ())]
        rows = np.flatnonzero(diff > 0)
        return groups[rows], rows, np.array([0, len(rows)])

    def _columns(self, positions: Sequence[int], some: col.Positions) -> list[pa.Array]:
        """The columns at `positions` of the rows with the ascending numbers `some`."""
        starts = np.searchsorted(some, self._starts)
        found = [
            run.gather(positions, self._rows[some[start:stop]])
            for run, (start, stop) in zip(self._runs, pairwise(starts), strict=True)
            if start < stop
        ]
        return found[0] if len(found) == 1 else [pa.concat_arrays(parts) for parts in zip(*found, strict=True)]

    def _counts(self) -> Diffs:
        """The diff of each row."""
        parts = zip(self._runs, pairwise(self._starts), strict=True)
        return np.concatenate([run.diff[self._rows[start:stop]] for run, (start, stop) in parts])

    def _first(
        self, numbers: col.Positions, places: col.Positions, ties: Sequence[int] | None, depth: int | None
    ) -> tuple[col.Positions, col.Positions]:
        """Of the rows with these numbers and places, the first one of each group and value within the depth, ordered
        by group and value: (their numbers, their places).
        """
        order = np.argsort(places, kind="stable")
        numbers, places = numbers[order], places[order]
        leads = np.ones(len(numbers), np.bool_)
        np.not_equal(places[1:], places[:-1], out=leads[1:])
        total = None if depth is None else np.cumsum(self._counts()[numbers])
        if not len(numbers) or (total is None and leads.all()):
            return numbers, places
        if ties is not None and not leads.all():
            self._lead(numbers, leads, ties)
        firsts = np.flatnonzero(leads)
        if total is not None:
            groups = self._groups[numbers]
            ends = np.append(firsts[1:], len(numbers)) - 1
            lasts = np.searchsorted(groups, groups[firsts], side="right") - 1
            firsts = firsts[total[lasts] - total[ends] < depth]
        return numbers[firsts], places[firsts]

    def _lead(self, numbers: col.Positions, leads: col.Mask, ties: Sequence[int]) -> None:
        """Moves the first row by `ties` of each stretch of equal groups and values to its beginning, as in `leads`."""
        tied = ~leads
        tied[:-1] |= ~leads[1:]
        places = np.flatnonzero(tied)
        places = places[np.argsort(numbers[places])]
        some, stretch = numbers[places], np.cumsum(leads)[places]
        words: list[col.Positions | col.Mask] = []
        for array in reversed(self._columns(ties, some)):
            if col.is_list(array.type) or pa.types.is_struct(array.type):
                continue
            valid = col.validity(array)
            key = order_keys(array)
            words.append(key if valid is None else np.where(valid, key, 0))
            if valid is not None:
                words.append(~valid)
        words.append(stretch)
        order = np.lexsort(words)
        starts, lengths = stretches(stretch[order].astype(np.uint64))
        firsts = np.repeat(order[starts], lengths)
        alike = order[np.logical_and.reduce([word[order] == word[firsts] for word in words])]
        best = some[order[starts]]
        if len(alike) > len(starts):
            alike.sort()  # back to the order of numbers
            arrays = self._columns(range(len(self._runs[0].arrays)), some[alike])
            kept, _ = canonical_rows(
                arrays, np.ones(len(alike), np.int64), stretch[alike].astype(np.uint64), whole_row=False
            )
            begins, _ = stretches(stretch[alike][kept].astype(np.uint64))
            best = some[alike[kept[begins]]]
        numbers[leads & tied] = best


class _Scale:
    """Places: numbers that order pairs (group, value). Each group has a range of `width` places.

    Values are given by their order keys. The scale is made for some of them; other values have a place between those of
    the next ones, or equal to that of no value. count: the number of groups.
    """

    def __init__(self, keys: col.Positions, count: int) -> None:
        self._levels: col.Positions | None = None
        least, greatest = (int(keys.min()), int(keys.max())) if len(keys) else (0, 0)
        limits = np.iinfo(np.int64)
        if least == limits.min or greatest == limits.max or count > _MOST // (greatest - least + 3):
            self._levels = distinct(keys)
            least, greatest = 1, 2 * len(self._levels) - 1
        self._below, self._above = least - 1, greatest + 1
        self.width = greatest - least + 3

    def places(self, groups: col.Positions, keys: col.Positions) -> col.Positions:
        """The place of each pair."""
        if self._levels is not None:
            keys = np.searchsorted(self._levels, keys) + np.searchsorted(self._levels, keys, side="right")
        found = np.clip(keys, self._below, self._above)
        found -= self._below
        found += groups * self.width
        return found


def nearer_above(values: pa.Array, below: pa.Array, above: pa.Array) -> col.Mask:
    """The mask where `above` is nearer to the value than `below`; false where both are equally near.

    All are numbers, dates or times, none is NULL, and below <= value <= above. Differences are exact, those of floats
    are doubles; NaN is the greatest value.
    """
    kind = values.type
    if pa.types.is_decimal(kind):
        wide = pa.decimal256(kind.precision, kind.scale)  # wide enough for the difference of any two values
        value, low, high = (a.cast(wide) for a in (values, below, above))
        return np.asarray(pc.less(pc.subtract(high, value), pc.subtract(value, low)))
    if pa.types.is_floating(kind):
        real, least, most = (col.words(a).astype(np.float64) for a in (values, below, above))
        with np.errstate(over="ignore", invalid="ignore"):
            return _measured(most - real) < _measured(real - least)
    # A non-negative 64-bit difference fits without a sign.
    whole, left, right = (col.words(a).astype(np.int64).view(np.uint64) for a in (values, below, above))
    return right - whole < whole - left


def _measured(differences: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    return np.where(np.isnan(differences), np.inf, differences)


def step(op: AsofJoin, inputs: Sequence[Arranged], state: State, ctx: StepContext) -> Delta | Sliced:  # noqa: ARG001
    """The changes of the join's output; no row of a slice has both signs. Rows may repeat.

    The output of a view can't be limited by its actual changes, whose number is known only later. A row has at most one
    partner, so each left row with a changed key counts twice: before and after.
    """
    if not any(a.num_rows for a in inputs):
        return Delta.none(op.schema)
    left, right = near_changes(inputs, (False, True))
    revised = _Revised(op, left, right)
    rows = left.num_rows + 2 * revised.touched_rows
    null_keys = left.net_null_keys if op.join_kind == "left" and left.null_keys.num_rows else None
    types = [f.type.arrow for f in op.schema]
    found = partial(_found, op, left, right, revised, ctx)
    grows = only_grow([*left.changes, *(left.old if right.probes else ())], null_keys)
    production = Production(rows, found, (null_keys, None), op.output, types, retracts_first=grows)
    return production.made(ctx.slicing, left, right)


def _found(
    op: AsofJoin, left: Arranged, right: Arranged, revised: _Revised, ctx: StepContext, limit: int
) -> Iterator[Found]:
    """The matches of the join, about `limit` rows at a time. If left rows are only inserted, all retractions precede
    the first insertion.
    """
    paired = _Paired(op, None if op.residual is None else Residual(op, ctx))
    for run, rows, candidates, nearest, _ in revised.read(limit):
        yield from paired.all(run, rows, candidates, nearest, -run.diff[rows])
    for run, rows, _, _, (candidates, nearest) in revised.read(limit):
        yield from paired.all(run, rows, candidates, nearest, taken(run.diff, rows))
    depth = op.depth if isinstance(op, ArrivalAsofJoin) else None
    for probe in left.probes:
        now = Candidates(probe, right.new, op.right_value, op.ties, depth)
        groups = probe.of_rows(np.arange(probe.num_groups))
        nearest = now.nearest(groups, probe.run.arrays[op.left_value], op.comparison)
        alone = [np.zeros(0, np.int64)]
        for rows in cut(np.arange(probe.run.num_rows), limit):
            found, without = paired.partners(probe.run, rows, now, nearest[rows], taken(probe.run.diff, rows))
            yield found
            alone.append(rows[without])
        # They follow all rows that have a partner, so that the order does not depend on the slices.
        for rows in cut(np.concatenate(alone), limit):
            yield from paired.alone(probe.run, rows, taken(probe.run.diff, rows))


#: Left rows and what was nearest to them: (run, rows, candidates, which of these), and the last two now.
_Revision = tuple[Run, col.Positions, Candidates, col.Positions, tuple[Candidates, col.Positions]]


class _Revised:
    """The earlier left rows whose nearest row changes."""

    def __init__(self, op: AsofJoin, left: Arranged, right: Arranged) -> None:
        self._op, self._left, self._right = op, left, right
        self._touched = [(probe, self._touched_by(probe)) for probe in right.probes]
        self._kept: list[_Revision] | None = None

    @property
    def touched_rows(self) -> int:
        """At least the number of these rows."""
        return sum(len(rows) for _, touched in self._touched for _, _, rows in touched)

    def read(self, limit: int) -> Iterator[_Revision]:
        """The rows. If they are more than `limit`, they are found again each time. limit: also the size of a piece."""
        if self._kept is not None:
            yield from self._kept
            return
        kept: list[_Revision] = []
        count = 0
        for found in self._find(limit):
            count += len(found[1])
            if count <= limit:
                kept.append(found)
            yield found
        if count <= limit:
            self._kept = kept

    def _find(self, limit: int) -> Iterator[_Revision]:
        op = self._op
        for probe, touched in self._touched:
            marked = np.zeros(probe.num_groups, np.bool_)
            for _, groups, _ in touched:
                marked[groups] = True
            some = np.flatnonzero(marked)
            if not len(some):
                continue
            before, now = (
                Candidates(probe, runs, op.right_value, op.ties, some=some)
                for runs in (self._right.old, self._right.new)
            )
            for run, groups, rows in touched:
                for at in cut(np.arange(len(rows)), limit):
                    values = run.gather([op.left_value], rows[at])[0]
                    was, is_now = (c.nearest(groups[at], values, op.comparison) for c in (before, now))
                    moved = np.flatnonzero(before.differ(was, now, is_now))
                    if len(moved):
                        yield run, rows[at][moved], before, was[moved], (now, is_now[moved])

    def _touched_by(self, probe: Probe) -> list[tuple[Run, col.Positions, col.Positions]]:
        """(run, groups, rows) of the left rows whose nearest row may change: right rows of their key are retracted, or
        an inserted one may be a partner.
        """
        op, run = self._op, probe.run
        retracts = np.zeros(probe.num_groups, np.bool_)
        if run.has_negative:
            retracts = np.minimum.reduceat(run.diff, probe.starts) < 0
            run = run.slice(0, run.num_rows)
            run.weights = None
        near = [(old, *self._within_reach(probe, old)) for old in self._left.old]
        near = [found for found in near if found[1].num_rows]
        some = probe.shared_with([reached for _, reached, _ in near])
        inserted = Candidates(probe, [run], op.right_value, None, some=some)
        touched = []
        for old, reached, places in near:
            for groups, rows in probe.rows_of(some, reached):
                values = reached.gather([op.left_value], rows)[0]
                kept = np.flatnonzero(retracts[groups] | (inserted.nearest(groups, values, op.comparison) != NONE))
                touched.append((old, groups[kept], rows[kept] if places is None else places[rows[kept]]))
        return touched

    def _within_reach(self, probe: Probe, old: Run) -> tuple[Run, col.Positions | None]:
        """(a run with at least those rows of `old` for which some changed right row is a partner, the rows in `old`;
        None if they are all of `old`).

        In a run with few rows for each changed key, reading all values is cheaper than looking up the keys.
        """
        op = self._op
        if (op.comparison in BACKWARD and op.comparison in FORWARD) or old.num_rows > _FEW_ROWS * probe.num_groups:
            return old, None
        values, bounds = order_words(old.arrays[op.left_value]), order_words(probe.run.arrays[op.right_value])
        # NULLs have any number: at worst, more rows are found.
        rows = np.flatnonzero(values >= bounds.min() if op.comparison in BACKWARD else values <= bounds.max())
        return (old, None) if len(rows) == old.num_rows else (old.lazily(rows), rows)


class _Paired:
    """Left rows with their partner, or without one if such rows are output. residual: whether a nearest row is a
    partner.
    """

    def __init__(self, op: AsofJoin, residual: Residual | None) -> None:
        self._extended = op.join_kind == "left"
        self._residual = residual

    def partners(
        self, left: Run, rows: col.Positions, candidates: Candidates, nearest: col.Positions, diff: Diffs
    ) -> tuple[Found, col.Positions]:
        """Rows of `left` with their nearest `candidates`, and the indices in `rows` of those without any."""
        right, chosen = candidates.chosen(nearest)
        met = chosen != NONE
        if self._residual is not None and right is not None:
            some = np.flatnonzero(met)
            met[some] = self._residual.mask((left, rows[some], right, chosen[some]))
        paired = np.flatnonzero(met)
        return (left, rows[paired], right, chosen[paired], taken(diff, paired)), np.flatnonzero(~met)

    def all(
        self, left: Run, rows: col.Positions, candidates: Candidates, nearest: col.Positions, diff: Diffs
    ) -> Iterator[Found]:
        """Rows of `left` with their nearest `candidates`, or without partner."""
        found, without = self.partners(left, rows, candidates, nearest, diff)
        yield found
        yield from self.alone(left, rows[without], taken(diff, without))

    def alone(self, left: Run, rows: col.Positions, diff: Diffs) -> Iterator[Found]:
        """Rows of `left` without a partner, if such rows are output."""
        if self._extended:
            yield left, rows, None, None, diff

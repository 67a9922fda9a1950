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
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.circuit.operators import BACKWARD, EXACT, FORWARD, ArrivalAsofJoin, AsofComparison, AsofJoin
from watersmeet.kernel.arrays import columns as col
from watersmeet.kernel.arrays.columns import cut
from watersmeet.kernel.arrays.hashing import order_keys
from watersmeet.kernel.context import StepContext
from watersmeet.kernel.joins import Found, Production, Residual
from watersmeet.kernel.runs.delta import Delta, Diffs, Sliced, canonical_rows, stretches
from watersmeet.kernel.runs.matching import Arranged, Probe, near_changes
from watersmeet.kernel.runs.run import Run, make_run
from watersmeet.kernel.runs.state import State

#: The index that stands for no partner.
NONE: Final = np.int64(-1)

_MOST: Final = 1 << 62


class Candidates:
    """The rows of some keys that can be partners, each once; of rows with equal key and value, only the first by
    `ties`.

    Candidates have a positive sum of diffs over `runs` and a non-NULL value. Of rows equal in `ties` (positions of
    columns; NULLs last) the first in canonical order counts, so the choice never depends on the order of arrival.
    depth: only the `depth` rows of a key with the greatest values count; None for all. Group g is the g-th key of the
    probe. Rows stay in their runs until they are chosen.
    """

    def __init__(
        self, probe: Probe, runs: Iterable[Run], value: int, ties: Sequence[int], depth: int | None = None
    ) -> None:
        self._runs = list(runs)
        self._value = value
        #: Whether candidates are rows of the given runs: true if no run retracts a row of another.
        self.plain = not any(run.has_negative for run in self._runs)
        found = self._in_runs(probe) if self.plain else self._summed(probe)
        self.groups, self._of_run, self._rows, counts = found
        if not len(counts):
            self.values = pa.nulls(0)
            return
        self.values = self._column(value, np.arange(len(self._rows)))
        valid = col.validity(self.values)
        if valid is not None:
            counts = counts[valid]
            self._narrow(np.flatnonzero(valid))
        self._narrow(self._first(ties, counts, depth))

    def nearest(self, groups: col.Positions, values: pa.Array, comparison: AsofComparison) -> col.Positions:
        """For each (group, value) the nearest candidate among those with `value comparison candidate`, or NONE.

        values: these have the candidates' type. A NULL has no partner. Of two equally near candidates the smaller
        counts.
        """
        if not len(self._rows) or not len(values):
            return np.full(len(values), NONE)
        places, wanted = self._placed(groups, order_keys(pa.concat_arrays([self.values, values])))
        equal, found = comparison in EXACT, []
        if comparison in BACKWARD:
            found.append(np.searchsorted(places, wanted, side="right" if equal else "left") - 1)
        if comparison in FORWARD:
            found.append(np.searchsorted(places, wanted, side="left" if equal else "right"))
        sides = [self._among(groups, values, places) for places in found]
        return sides[0] if len(sides) == 1 else self._nearer(values, *sides)

    def _among(self, groups: col.Positions, values: pa.Array, places: col.Positions) -> col.Positions:
        """The candidates at `places`; NONE where there is none in the group, and for NULLs."""
        inside = (places >= 0) & (places < len(self._rows))
        inside &= self.groups[np.where(inside, places, 0)] == groups
        valid = col.validity(values)
        if valid is not None:
            inside &= valid
        return np.where(inside, places, NONE)

    def _nearer(self, values: pa.Array, before: col.Positions, after: col.Positions) -> col.Positions:
        """The nearer of two candidates, of which one is not above the value and one not below it; or the only
        candidate.
        """
        found = np.where(before == NONE, after, before)
        both = np.flatnonzero((before != NONE) & (after != NONE) & (before != after))
        if len(both):
            low, high = (col.gather(self.values, side[both]) for side in (before, after))
            above = both[nearer_above(col.gather(values, both), low, high)]
            found[above] = after[above]
        return found

    def chosen(self, found: col.Positions) -> tuple[Run | None, col.Positions]:
        """The candidates `found` as a run (None without candidates), and the row of each in it, or NONE."""
        met = found != NONE
        marked = np.zeros(len(self._rows), np.bool_)
        marked[found[met]] = True
        used = np.flatnonzero(marked)
        if not len(used):
            return None, np.full(len(found), NONE)
        used = used[np.argsort(self._of_run[used], kind="stable")]
        arrays = [self._column(i, used) for i in range(self._runs[0].columns.num_columns)]
        place = np.full(len(self._rows), NONE)
        place[used] = np.arange(len(used))
        run = Run(np.zeros(len(used), np.uint64), col.positional(arrays), None, (), pure=True)
        return run, np.where(met, place[np.where(met, found, 0)], NONE)

    def differ(self, mine: col.Positions, other: Candidates, theirs: col.Positions) -> col.Mask:
        """The mask of the found candidates that differ from those found in `other`, whose runs begin with the runs of
        this one.
        """
        differs: col.Mask = (mine == NONE) != (theirs == NONE)
        both = np.flatnonzero((mine != NONE) & (theirs != NONE))
        if not len(both):
            return differs
        one, two = mine[both], theirs[both]
        if self.plain and other.plain:
            differs[both] = (self._of_run[one] != other._of_run[two]) | (self._rows[one] != other._rows[two])
            return differs
        mine_there, theirs_there = (
            [col.gather(a, at) for a in run.arrays]
            for run, at in (self.chosen(one), other.chosen(two))
            if run is not None
        )
        differs[both] = ~col.rows_equal(mine_there, theirs_there, len(both))
        return differs

    def _in_runs(self, probe: Probe) -> tuple[col.Positions, col.Positions, col.Positions, Diffs]:
        """For all rows with a key of the probe: their groups, numbers of runs, rows in the runs, and diffs."""
        none = np.zeros(0, np.int64)
        every = np.arange(probe.num_groups)
        pieces = [(none, none, none, none)]
        for number, run in enumerate(self._runs):
            pieces += [
                (groups, np.full(len(rows), number), rows, run.diff[rows]) for groups, rows in probe.rows_of(every, run)
            ]
        groups, numbers, rows, diffs = (np.concatenate(part) for part in zip(*pieces, strict=True))
        return groups, numbers, rows, diffs

    def _summed(self, probe: Probe) -> tuple[col.Positions, col.Positions, col.Positions, Diffs]:
        """The same, in one run without retracted rows, which replaces all runs."""
        found = probe.content(self._runs)
        if found is None:
            none = np.zeros(0, np.int64)
            return none, none, none, none
        groups, arrays, diff = found
        self._runs = [make_run(np.zeros(len(diff), np.uint64), arrays, diff, ())]
        rows = np.flatnonzero(diff > 0)
        return groups[rows], np.zeros(len(rows), np.int64), rows, diff[rows]

    def _narrow(self, kept: col.Positions) -> None:
        """Keeps only the rows `kept`, in that order."""
        self.groups, self._of_run, self._rows = self.groups[kept], self._of_run[kept], self._rows[kept]
        self.values = col.gather(self.values, kept)

    def _column(self, position: int, some: col.Positions) -> pa.Array:
        """The values of column `position` in the rows `some`, which are ordered by run."""
        starts = np.searchsorted(self._of_run[some], np.arange(len(self._runs) + 1))
        found = [
            col.gather(run.arrays[position], self._rows[some[start:stop]])
            for run, start, stop in zip(self._runs, starts, starts[1:], strict=False)
            if start < stop
        ]
        return found[0] if len(found) == 1 else pa.concat_arrays(found)

    def _placed(self, groups: col.Positions, keys: col.Positions) -> tuple[col.Positions, col.Positions]:
        """Numbers that order the candidates and further pairs (group, value).

        keys: the order keys of the candidates' values, followed by those of the further values.
        """
        count = len(self.values)
        low, width = int(keys.min()), int(keys.max()) - int(keys.min()) + 1
        if int(self.groups[-1]) + 1 <= _MOST // width and int(groups.max()) + 1 <= _MOST // width:
            ranks = keys - low
        else:
            ranks = np.unique(keys, return_inverse=True)[1].astype(np.int64)
            width = int(ranks.max()) + 1
        return self.groups * width + ranks[:count], groups * width + ranks[count:]

    def _first(self, ties: Sequence[int], counts: Diffs, depth: int | None) -> col.Positions:
        """The first row of each group and value within the depth, ordered by group and value."""
        keys = order_keys(self.values)
        rows = np.lexsort((keys, self.groups))
        groups, keys = self.groups[rows], keys[rows]
        leads = np.ones(len(rows), np.bool_)
        leads[1:] = (groups[1:] != groups[:-1]) | (keys[1:] != keys[:-1])
        total = np.cumsum(counts[rows])
        if not leads.all():
            self._lead(rows, leads, ties)
        if depth is None or not len(rows):
            return rows[leads]
        ends = np.append(np.flatnonzero(leads)[1:], len(rows)) - 1
        lasts = np.searchsorted(groups, groups[leads], side="right") - 1
        newest: col.Mask = total[lasts] - total[ends] < depth
        return rows[leads][newest]

    def _lead(self, rows: col.Positions, leads: col.Mask, ties: Sequence[int]) -> None:
        """Moves the first row by `ties` of each stretch of equal groups and values to its beginning, as in `leads`."""
        tied = ~leads
        tied[:-1] |= ~leads[1:]
        places = np.flatnonzero(tied)
        places = places[np.argsort(self._of_run[rows[places]], kind="stable")]
        some, stretch = rows[places], np.cumsum(leads)[places]
        words: list[col.Positions | col.Mask] = []
        for position in reversed(ties):
            array = self._column(position, some)
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
            alike.sort()  # back to the order of runs
            arrays = [self._column(i, some[alike]) for i in range(self._runs[0].columns.num_columns)]
            kept, _ = canonical_rows(
                arrays, np.ones(len(alike), np.int64), stretch[alike].astype(np.uint64), whole_row=False
            )
            begins, _ = stretches(stretch[alike][kept].astype(np.uint64))
            best = some[alike[kept[begins]]]
        rows[leads & tied] = best


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
    rows = left.num_rows + 2 * sum(int(probe.matches(left.old).sum()) for probe in right.probes)
    null_keys = left.net_null_keys if op.join_kind == "left" and left.null_keys.num_rows else None
    types = [f.type.arrow for f in op.schema]
    found = partial(_found, op, left, right, ctx)
    return Production(rows, found, (null_keys, None), op.output, types).made(ctx.slicing, left, right)


def _found(op: AsofJoin, left: Arranged, right: Arranged, ctx: StepContext, limit: int) -> Iterator[Found]:
    """The matches of the join, about `limit` rows at a time."""
    paired = _Paired(op, None if op.residual is None else Residual(op, ctx))
    depth = op.depth if isinstance(op, ArrivalAsofJoin) else None
    for probe in left.probes:
        now = Candidates(probe, right.new, op.right_value, op.ties, depth)
        groups = probe.of_rows(np.arange(probe.num_groups))
        nearest = now.nearest(groups, probe.run.arrays[op.left_value], op.comparison)
        alone = [np.zeros(0, np.int64)]
        for rows in cut(np.arange(probe.run.num_rows), limit):
            found, without = paired.partners(probe.run, rows, now, nearest[rows], probe.run.diff[rows])
            yield found
            alone.append(rows[without])
        # They follow all rows that have a partner, so that the order does not depend on the slices.
        for rows in cut(np.concatenate(alone), limit):
            yield from paired.alone(probe.run, rows, probe.run.diff[rows])
    for probe in right.probes:
        before, now = (Candidates(probe, runs, op.right_value, op.ties) for runs in (right.old, right.new))
        every = np.arange(probe.num_groups)
        for run in left.old:
            for groups, rows in probe.rows_of(every, run, limit):
                values = col.gather(run.arrays[op.left_value], rows)
                was, is_now = (c.nearest(groups, values, op.comparison) for c in (before, now))
                moved = np.flatnonzero(before.differ(was, now, is_now))
                diff = run.diff[rows[moved]]
                for candidates, nearest, signed in ((before, was, -diff), (now, is_now, diff)):
                    found, without = paired.partners(run, rows[moved], candidates, nearest[moved], signed)
                    yield found
                    yield from paired.alone(run, rows[moved][without], signed[without])


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
        return (left, rows[paired], right, chosen[paired], diff[paired]), np.flatnonzero(~met)

    def alone(self, left: Run, rows: col.Positions, diff: Diffs) -> Iterator[Found]:
        """Rows of `left` without a partner, if such rows are output."""
        if self._extended:
            yield left, rows, None, None, diff

"""The parts of joins: their two sides, their output, and their residual conditions, which accept or reject each pair of
rows.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
import pyarrow as pa

from watersmeet.circuit.operators import ArrivalJoin, InputColumn, Join, PairJoin, TemporalJoin
from watersmeet.kernel.arrays import columns as col
from watersmeet.kernel.arrays.columns import cut
from watersmeet.kernel.context import StepContext
from watersmeet.kernel.runs.delta import Delta, Diffs, Sliced, Slicing, joined, ones, without_cancelling
from watersmeet.kernel.runs.matching import Arranged, Probe, probes
from watersmeet.kernel.runs.run import Run

#: A piece of a join's matches: pairs (left run, its rows, right run, its rows), or rows of the side that is not None,
#: with their diffs; None stands for the products of the rows' diffs.
Found = tuple[Run | None, col.Positions | None, Run | None, col.Positions | None, Diffs | None]

#: Up to this many rows are processed at once, whatever their width: measuring the width would cost more than it saves.
FEW_ROWS: Final = 1 << 14


@dataclass(frozen=True, eq=False)
class JoinSide:
    """One input of a join, as its arrangement outputs it.

    sign: +1 if rows with partners are output (semi), -1 if rows without partners are output (outer, anti), 0 if the
    output of a row does not depend on whether it has partners.
    """

    arranged: Arranged
    sign: int

    @property
    def null_keys(self) -> Delta | None:
        """The changes of rows that can't match, if such rows are output."""
        return self.arranged.net_null_keys if self.sign < 0 and self.arranged.null_keys.num_rows else None

    @property
    def changes(self) -> list[Run]:
        """The changes of rows that can match, as pure runs."""
        return self.arranged.changes

    @property
    def probes(self) -> list[Probe]:
        """The keys of the changes."""
        return self.arranged.probes

    @property
    def exact(self) -> bool:
        """See `Probe`."""
        return self.arranged.exact

    @property
    def old(self) -> list[Run]:
        """Pure runs of the content before the epoch."""
        return self.arranged.old

    @property
    def new(self) -> list[Run]:
        """Pure runs of the content after the epoch."""
        return self.arranged.new

    def every(self, _probe: Probe) -> list[Run]:
        """Pure runs of the content before the epoch."""
        return self.old

    def before(self, probe: Probe) -> list[Run]:
        """Pure runs with the rows that the content before the epoch has of the keys of `probe`."""
        return probe.current(self.old) if self.arranged.complete else self.old


#: A term of a join: the keys of one side's change, the runs of the other side, and the mask of the keys that are probed
#: in them; None for all.
Term = tuple[Probe, Run, col.Mask | None]
#: Those of the left side's change, and those of the right side's.
Terms = tuple[list[Term], list[Term]]

#: From this many changes of an input on, keys are looked for whose only row is deleted.
EMPTIED_ROWS: Final = 1 << 12


def empties_keys(arranged: Arranged) -> bool:
    """Whether a change is large and deletes rows, so that keys may lose their only row."""
    found = arranged.changes
    return len(found) == 1 and found[0].num_rows >= EMPTIED_ROWS and found[0].has_negative


def terms(left: JoinSide, right: JoinSide, *, counted: bool) -> tuple[Terms, bool]:
    """(the terms dL * R_new and L_old * dR of the change of all pairs, whether each pair of rows is known to occur only
    once in them).

    counted: whether the partners of each earlier entry are counted. If not, keys are only paired with their current
    row, where it is known (`Probe.current`).

    A deletion in a change and the row that it deletes are separate entries of the content after the change, so a pair
    whose two rows are deleted would be output three times. If a change deletes the only row of a key, the content after
    it is its inserted rows, dR+ or dL+, and the content before it its deleted row. Keys of which the change of one side
    does so are therefore paired as dL * dR+ + L_old * dR or dL * R_old + dL+ * dR, and those of both sides as
    dL+ * dR+ + L_old * dR-. If no key has more than one row, each pair occurs once.
    """
    before = JoinSide.every if counted else JoinSide.before
    olds = [before(right, p) for p in left.probes], [before(left, p) for p in right.probes]
    of_left: list[Term] = [
        (p, run, None) for p, old in zip(left.probes, olds[0], strict=True) for run in (*old, *right.changes)
    ]
    of_right: list[Term] = [(p, run, None) for p, old in zip(right.probes, olds[1], strict=True) for run in old]
    if not (empties_keys(left.arranged) and empties_keys(right.arranged)):
        alone = not (left.probes and right.probes)
        return (of_left, of_right), alone and _is_single([*left.probes, *right.probes], [*olds[0], *olds[1]])
    mine, theirs = left.probes[0], right.probes[0]
    old, their_old = olds[0][0], olds[1][0]
    if counted:
        no_right, no_left = mine.emptied(theirs.run, old), theirs.emptied(mine.run, their_old)
        no_left &= ~theirs.shared(mine, no_right)
        of_left = [(mine, run, ~no_right) for run in old]
        of_left.append((mine, theirs.run, ~(no_right | mine.shared(theirs, no_left))))
        return (of_left, [(theirs, run, ~no_left) for run in their_old]), False
    no_right = mine.replaced(theirs.run, old, complete=right.arranged.complete)
    no_left = theirs.replaced(mine.run, their_old, complete=left.arranged.complete)
    lost, their_lost = mine.shared(theirs, no_left), theirs.shared(mine, no_right)
    inserted, their_inserted = mine.run.diff > 0, theirs.run.diff > 0
    of_left = [(mine, run, ~no_right) for run in old]
    of_left.append((mine, theirs.run, ~(no_right | lost)))
    new = theirs.part(theirs.of_rows(their_lost) & their_inserted)
    of_left.append((mine.part(mine.of_rows(no_right) & (inserted | ~mine.of_rows(lost))), new.run, None))
    of_left.append((mine.part(mine.of_rows(lost & ~no_right) & inserted), theirs.run, None))
    deleted = theirs.part(theirs.of_rows(no_left & their_lost) & ~their_inserted)
    of_right = [(probe, run, some) for run in their_old for probe, some in ((theirs, ~no_left), (deleted, None))]
    found = [t for t in of_left if t[0].num_groups and t[1].num_rows], of_right
    deleting = _deletes(mine) & mine.shared(theirs, None), _deletes(theirs) & theirs.shared(mine, None)
    replaced = bool((lost >= deleting[0]).all() and (their_lost >= deleting[1]).all())
    return found, replaced and _is_single([mine, theirs], [old, their_old])


def _is_single(changed: Sequence[Probe], olds: Sequence[Sequence[Run]]) -> bool:
    """Whether the other side has at most one earlier row of each changed key, and each key few changes."""
    return all(
        int(p.lengths.max(initial=0)) <= 2 and int(p.matches(old).max(initial=0)) <= 1
        for p, old in zip(changed, olds, strict=True)
    )


def _deletes(probe: Probe) -> col.Mask:
    """The mask of keys of which a row is deleted."""
    return np.minimum.reduceat(probe.run.diff, probe.starts) < 0


def matched(probe: Probe, run: Run, some: col.Mask | None) -> col.Positions:
    """For each key of the probe, the number of rows of `run` with which a term pairs it."""
    matches = probe.matches([run])
    return matches if some is None else matches * some


def present(partners: Diffs, sign: int) -> Diffs:
    """For each number of partners, 1 if a row with that many partners is output, else 0."""
    return ((partners > 0) if sign > 0 else (partners <= 0)).astype(np.int64)


def is_revised(op: Join | TemporalJoin) -> bool:
    """Whether earlier rows are output or retracted because their partners change."""
    return not isinstance(op, ArrivalJoin)


class PairOutput(Protocol):
    """Receives the matches of a join."""

    def add(
        self,
        left: Run | None,
        left_rows: col.Positions | None,
        right: Run | None,
        right_rows: col.Positions | None,
        diff: Diffs | None = None,
    ) -> None:
        """Adds pairs, or rows of the side that is not None. diff: by default the product of the rows' diffs."""
        ...


class JoinOutput:
    """Collects output rows: pairs, or rows of one side with NULLs for the other.

    output: the columns of the rows. types: their types. net: whether it is known that no row gets diffs of both signs.
    """

    def __init__(self, output: Sequence[InputColumn], types: Sequence[pa.DataType], *, net: bool = False) -> None:
        self._columns = [(c.input == 0, c.column) for c in output]
        self._types = types
        self._net = net
        self._tables: list[pa.Table] = []
        self._diffs: list[Diffs] = []
        self.num_rows = 0
        """The number of rows added so far."""

    def add(
        self,
        left: Run | None,
        left_rows: col.Positions | None,
        right: Run | None,
        right_rows: col.Positions | None,
        diff: Diffs | None = None,
    ) -> None:
        """Adds pairs, or rows of the side that is not None. diff: by default the product of the rows' diffs."""
        rows = left_rows if left_rows is not None else right_rows
        assert rows is not None
        if not len(rows):
            return
        if diff is None:
            diff = ones(len(rows))
            for run, at in ((left, left_rows), (right, right_rows)):
                if run is not None and not run.all_ones:
                    diff = diff * run.diff[at]

        def columns(is_left: bool, positions: list[int], part: slice) -> list[pa.Array | None]:
            run, at = (left, left_rows) if is_left else (right, right_rows)
            if run is None or at is None:
                return [None] * len(positions)
            return run.gather(positions, at[part])

        self._add(columns, diff)

    def add_null_keys(self, left: Delta | None, right: Delta | None) -> None:
        """Adds rows that can't have partners."""
        delta = left if left is not None else right
        if delta is None:
            return

        def columns(is_left: bool, positions: list[int], part: slice) -> list[pa.Array | None]:
            side = left if is_left else right
            return [None if side is None else side.arrays[p][part] for p in positions]

        self._add(columns, delta.diff)

    def delta(self) -> Delta:
        """The added rows, without those that cancel each other."""
        if not self._tables:
            return Delta(col.positional([pa.nulls(0, t) for t in self._types]), np.zeros(0, np.int64))
        return without_cancelling(Delta(pa.concat_tables(self._tables), joined(self._diffs), net=self._net))

    def _add(self, columns: Callable[[bool, list[int], slice], list[pa.Array | None]], diff: Diffs) -> None:
        """columns: called with (is left side, positions, rows), returns a side's columns, None for those that are all
        NULL.
        """
        waiting = [slice(0, len(diff))]
        while waiting:
            part = waiting.pop(0)
            try:
                sides = {
                    is_left: iter(columns(is_left, [p for side, p in self._columns if side == is_left], part))
                    for is_left in (True, False)
                }
            except pa.ArrowInvalid:  # too long strings for one array: 2 GiB
                middle = (part.start + part.stop) // 2
                if middle == part.start:
                    raise
                waiting[:0] = [slice(part.start, middle), slice(middle, part.stop)]
                continue
            n = part.stop - part.start
            found = [next(sides[is_left]) for is_left, _ in self._columns]
            arrays = [pa.nulls(n, t) if a is None else a for a, t in zip(found, self._types, strict=True)]
            self._tables.append(col.positional(arrays))
            self._diffs.append(diff[part])
            self.num_rows += n


@dataclass(frozen=True)
class Production:
    """The output of a join before it is computed; its maximum size is known.

    rows: the maximum number of rows. find: computes them in pieces of at most the given number. null_keys: output rows
    of both sides that can't have partners. output, types: as in `JoinOutput`. retracts_first, net: as in `Sliced`.
    """

    rows: int
    find: Callable[[int], Iterable[Found]]
    null_keys: tuple[Delta | None, Delta | None]
    output: Sequence[InputColumn]
    types: Sequence[pa.DataType]
    retracts_first: bool = False
    net: bool = False

    def made(self, slicing: Slicing, left: Arranged, right: Arranged) -> Delta | Sliced:
        """The changes: in one piece, or in slices if they are larger than one slice. Rows cancel each other within a
        slice.
        """
        if self.rows <= min(FEW_ROWS, slicing.rows):
            limit = slicing.rows
        else:
            limit = slicing.rows_of(_row_bytes(self.output, left, right))
        if self.rows > limit:
            return Sliced(lambda: self._slices(limit), retracts_first=self.retracts_first, net=self.net)
        out = JoinOutput(self.output, self.types, net=self.net)
        for found in self.find(limit):
            out.add(*found)
        self._add_null_keys(out)
        return out.delta()

    def _slices(self, limit: int) -> Iterator[Delta]:
        out = JoinOutput(self.output, self.types, net=self.net)
        for found in self.find(limit):
            out.add(*found)
            if out.num_rows >= limit:
                yield out.delta()
                out = JoinOutput(self.output, self.types, net=self.net)
        self._add_null_keys(out)
        yield out.delta()

    def _add_null_keys(self, out: JoinOutput) -> None:
        left, right = self.null_keys
        out.add_null_keys(left, None)
        out.add_null_keys(None, right)


def only_grow(runs: Iterable[Run], *null_keys: Delta | None) -> bool:
    """Whether none of the rows is retracted."""
    return not any(run.has_negative for run in runs) and all(d is None or bool((d.diff > 0).all()) for d in null_keys)


def _row_bytes(output: Sequence[InputColumn], left: Arranged, right: Arranged) -> float:
    """The approximate bytes of an output row, from those of its input rows."""
    total = 8.0  # the size of the diff
    for number, side in enumerate((left, right)):
        runs = side.changes or side.old
        rows = sum(r.num_rows for r in runs)
        for i in (o.column for o in output if o.input == number):
            total += sum(r.column_bytes(i) for r in runs) / max(1, rows)
    return total


Pairs = tuple[Run, col.Positions, Run, col.Positions]
_Keep = Callable[[Iterable[Pairs]], Iterable[Pairs]]

#: Small pieces of pairs are evaluated together up to this many rows, to share the fixed cost of an evaluation.
_TOGETHER_ROWS: Final = 1 << 16

#: Pairs are summed by row as soon as there are this many.
_COUNTED_ROWS: Final = 1 << 20


class Residual:
    """The residual condition of a join, evaluated on pairs; only the columns that it mentions are gathered."""

    def __init__(self, op: PairJoin, ctx: StepContext) -> None:
        assert op.residual is not None
        self._sql = op.residual
        mentioned = set(re.findall(r"\b[lr]\d+\b", op.residual))
        self._columns = [
            (side, i, f"{'lr'[side]}{i}")
            for side, schema in enumerate(ctx.schemas)
            for i in range(len(schema))
            if f"{'lr'[side]}{i}" in mentioned
        ]
        self._schema = tuple(ctx.schemas[side][i] for side, i, _ in self._columns)
        self._ctx = ctx

    def filtered(self, pairs: Iterable[Pairs]) -> Iterator[Pairs]:
        """The pairs for which the residual is true; errors count as false. Small pieces are evaluated together."""
        waiting: list[Pairs] = []
        count = 0
        for piece in pairs:
            rows = len(piece[1])
            if waiting and count + rows > _TOGETHER_ROWS:
                yield from self._passed(waiting)
                waiting, count = [], 0
            if rows:
                waiting.append(piece)
                count += rows
        if waiting:
            yield from self._passed(waiting)

    def mask(self, *pieces: Pairs) -> col.Mask:
        """For the pairs of all pieces, the mask where the residual is true; errors count as false."""
        count = sum(len(piece[1]) for piece in pieces)
        if not count:
            return np.zeros(0, np.bool_)
        sides = [[(piece[0], piece[1]) for piece in pieces], [(piece[2], piece[3]) for piece in pieces]]
        arrays = [
            pa.chunked_array([run.gather([i], rows)[0] for run, rows in sides[side]]) for side, i, _ in self._columns
        ]
        table = pa.Table.from_arrays(arrays, names=[name for _, _, name in self._columns])
        return self._ctx.evaluator.mask(table, self._schema, self._sql, self._ctx.counters, count)

    def _passed(self, pieces: Sequence[Pairs]) -> Iterator[Pairs]:
        masks = np.split(self.mask(*pieces), np.cumsum([len(piece[1]) for piece in pieces])[:-1])
        for (left, left_rows, right, right_rows), mask in zip(pieces, masks, strict=True):
            yield left, left_rows[mask], right, right_rows[mask]


class _Partners:
    """For rows of some runs, the sum of the diffs of their partners. Its size depends on the rows, not on the pairs."""

    def __init__(self) -> None:
        self._met: dict[int, _Met] = {}

    def add(self, run: Run, rows: col.Positions, partner: Run, partner_rows: col.Positions) -> None:
        """Adds the diffs of the partners of these pairs."""
        if len(rows):
            self._met.setdefault(id(run), _Met(run)).add(rows, partner.diff[partner_rows])

    def of(self, run: Run) -> tuple[col.Positions, Diffs]:
        """The rows of `run` that have partners, ascending, and the sum of each."""
        met = self._met.get(id(run))
        return (np.zeros(0, np.int64), np.zeros(0, np.int64)) if met is None else met.summed()


class _Met:
    """The rows of one run that have partners."""

    def __init__(self, run: Run) -> None:
        self._run = run  # keeps the run alive, so that its id is not reused
        self._rows: list[col.Positions] = []
        self._diffs: list[Diffs] = []
        self._waiting = 0

    def add(self, rows: col.Positions, diffs: Diffs) -> None:
        self._rows.append(rows)
        self._diffs.append(diffs)
        self._waiting += len(rows)
        if self._waiting > _COUNTED_ROWS:
            rows, sums = self.summed()
            self._rows, self._diffs, self._waiting = [rows], [sums], 0

    def summed(self) -> tuple[col.Positions, Diffs]:
        rows, index = np.unique(np.concatenate(self._rows), return_inverse=True)
        sums = np.zeros(len(rows), np.int64)
        np.add.at(sums, index, np.concatenate(self._diffs))
        return rows, sums


def found_with_residual(
    op: Join | TemporalJoin,
    left: JoinSide,
    right: JoinSide,
    found: Terms,
    residual: Residual,
    limit: int,
    *,
    hold: bool,
) -> Iterator[Found]:
    """The changes of a join with a residual: the same terms as without one, but partners are counted pair by pair,
    `limit` at a time.

    hold: whether all pairs are held until the changes of earlier rows are output, which depend on them. If inputs only
    grow, these are the retractions.
    """
    met = (_Partners(), _Partners())
    held: list[Pairs] = []
    for pair in residual.filtered(joined_pairs(found, limit)):
        l_run, l_rows, r_run, r_rows = pair
        if left.sign:
            met[0].add(l_run, l_rows, r_run, r_rows)
        if right.sign:
            met[1].add(r_run, r_rows, l_run, l_rows)
        if op.join_kind in ("semi", "anti"):
            continue
        if hold:
            held.append(pair)
        else:
            yield *pair, None

    def keep(some: Iterable[Pairs]) -> Iterable[Pairs]:
        return map(_mirror, residual.filtered(map(_mirror, some)))

    if is_revised(op):
        for run, rows, diff in _moved(left, right, met[0], residual.filtered, limit):
            yield run, rows, None, None, diff
        for run, rows, diff in _moved(right, left, met[1], keep, limit):
            yield None, None, run, rows, diff
    for pair in held:
        yield *pair, None
    for run, rows, diff in _unpaired(left, met[0], limit):
        yield run, rows, None, None, diff
    for run, rows, diff in _unpaired(right, met[1], limit):
        yield None, None, run, rows, diff


def joined_pairs(found: Terms, limit: int) -> Iterator[Pairs]:
    """All pairs of the terms with equal keys."""
    of_left, of_right = found
    for probe, run, some in of_left:
        for mine, theirs in probe.pairs(run, limit, some):
            yield probe.run, mine, run, theirs
    for probe, run, some in of_right:
        for mine, theirs in probe.pairs(run, limit, some):
            yield run, theirs, probe.run, mine


def _mirror(pairs: Pairs) -> Pairs:
    return pairs[2], pairs[3], pairs[0], pairs[1]


def _unpaired(side: JoinSide, met: _Partners, limit: int) -> Iterator[tuple[Run, col.Positions, Diffs]]:
    """The changed rows (run, rows, diffs) of `side` that are output because they have, or don't have, partners."""
    for run in side.changes if side.sign else ():
        partners = np.zeros(run.num_rows, np.int64)
        rows, sums = met.of(run)
        partners[rows] = sums
        for rows in cut(np.flatnonzero(present(partners, side.sign)), limit):
            yield run, rows, run.diff[rows]


def _moved(
    side: JoinSide, other: JoinSide, met: _Partners, keep: _Keep, limit: int
) -> Iterator[tuple[Run, col.Positions, Diffs]]:
    """The changes (run, rows, diffs) of the earlier rows of `side` that are output or retracted."""
    moved = [(run, *met.of(run)) for run in side.old] if side.sign else []
    moved = [(run, rows[sums != 0], sums[sums != 0]) for run, rows, sums in moved if sums.any()]
    found = _count([run.take(rows) for run, rows, _ in moved], other.old, keep, limit, exact=side.exact)
    for (run, rows, sums), before in zip(moved, found, strict=True):
        flips = present(before + sums, side.sign) - present(before, side.sign)
        changed = np.flatnonzero(flips)
        for some in cut(changed, limit):
            yield run, rows[some], run.diff[rows[some]] * flips[some]


def _count(runs: list[Run], others: list[Run], keep: _Keep, limit: int, *, exact: bool) -> list[Diffs]:
    """For each row of each of the pure `runs`, the sum of the diffs of its partners in `others`."""
    counts = {id(run): np.zeros(run.num_rows, np.int64) for run in runs}
    pairs = (
        (probe.run, mine, other, theirs)
        for probe in probes(runs, exact=exact)
        for other in others
        for mine, theirs in probe.pairs(other, limit)
    )
    for run, rows, other, kept in keep(pairs):
        np.add.at(counts[id(run)], rows, other.diff[kept])
    return [counts[id(run)] for run in runs]

"""Joins with a residual condition: which pairs count as partners is known only after evaluating it on each."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

import numpy as np
import pyarrow as pa

from watersmeet.circuit.operators import Join, PairJoin, TemporalJoin
from watersmeet.kernel.arrays import columns as col
from watersmeet.kernel.arrays.columns import cut
from watersmeet.kernel.context import StepContext
from watersmeet.kernel.joins.joined import Found, JoinSide, is_revised, present
from watersmeet.kernel.runs.matching import probes
from watersmeet.kernel.runs.order import Diffs
from watersmeet.kernel.runs.run import Run

Pairs = tuple[Run, col.Positions, Run, col.Positions]
_Keep = Callable[[Iterable[Pairs]], Iterable[Pairs]]

#: Pieces of pairs are evaluated together up to so many: what one evaluation costs whatever its size is paid once, not
#: for each two runs.
_TOGETHER_ROWS: Final = 1 << 16
#: Pairs are counted by row as soon as there are so many.
_COUNTED_ROWS: Final = 1 << 20


class Residual:
    """The residual of a join, evaluated on pairs; only the columns it mentions are gathered."""

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
        """Where the residual is true, for the pairs of all pieces; errors count as false."""
        count = sum(len(piece[1]) for piece in pieces)
        if not count:
            return np.zeros(0, np.bool_)
        sides = [[(piece[0], piece[1]) for piece in pieces], [(piece[2], piece[3]) for piece in pieces]]
        arrays = [
            pa.chunked_array([col.gather(run.arrays[i], rows) for run, rows in sides[side]])
            for side, i, _ in self._columns
        ]
        table = pa.Table.from_arrays(arrays, names=[name for _, _, name in self._columns])
        return self._ctx.evaluator.mask(table, self._schema, self._sql, self._ctx.counters, count)

    def _passed(self, pieces: Sequence[Pairs]) -> Iterator[Pairs]:
        masks = np.split(self.mask(*pieces), np.cumsum([len(piece[1]) for piece in pieces])[:-1])
        for (left, left_rows, right, right_rows), mask in zip(pieces, masks, strict=True):
            yield left, left_rows[mask], right, right_rows[mask]


class _Partners:
    """For rows of some runs, the sum of the diffs of their partners. Its size is that of the rows, not of the pairs."""

    def __init__(self) -> None:
        self._met: dict[int, _Met] = {}

    def add(self, run: Run, rows: col.Positions, partner: Run, partner_rows: col.Positions) -> None:
        """Counts pairs."""
        if len(rows):
            self._met.setdefault(id(run), _Met(run)).add(rows, partner.diff[partner_rows])

    def of(self, run: Run) -> tuple[col.Positions, Diffs]:
        """The rows of `run` that met partners, ascending, and the sums."""
        met = self._met.get(id(run))
        return (np.zeros(0, np.int64), np.zeros(0, np.int64)) if met is None else met.summed()


class _Met:
    """The rows of one run that met partners."""

    def __init__(self, run: Run) -> None:
        self._run = run  # keeps it alive, so that its id stays its own
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
    op: Join | TemporalJoin, left: JoinSide, right: JoinSide, residual: Residual, limit: int
) -> Iterator[Found]:
    """The changes of the join. The same terms as without a residual, but counted on pairs, `limit` at a time."""
    met = (_Partners(), _Partners())
    for l_run, l_rows, r_run, r_rows in residual.filtered(_pairs(left, right, limit)):
        if op.join_kind not in ("semi", "anti"):
            yield l_run, l_rows, r_run, r_rows, None
        if left.sign:
            met[0].add(l_run, l_rows, r_run, r_rows)
        if right.sign:
            met[1].add(r_run, r_rows, l_run, l_rows)
    if left.sign:
        for run, rows, diff in _unpaired(left, right, met[0], residual.filtered, limit, revised=is_revised(op)):
            yield run, rows, None, None, diff
    if right.sign:

        def keep(some: Iterable[Pairs]) -> Iterable[Pairs]:
            return map(_mirror, residual.filtered(map(_mirror, some)))

        for run, rows, diff in _unpaired(right, left, met[1], keep, limit, revised=is_revised(op)):
            yield None, None, run, rows, diff


def _pairs(left: JoinSide, right: JoinSide, limit: int) -> Iterator[Pairs]:
    """All pairs of dL * R_new and of L_old * dR with equal keys."""
    for probe in left.probes:
        for run in right.new:
            for mine, theirs in probe.pairs(run, limit):
                yield probe.run, mine, run, theirs
    for probe in right.probes:
        for run in left.old:
            for mine, theirs in probe.pairs(run, limit):
                yield run, theirs, probe.run, mine


def _mirror(pairs: Pairs) -> Pairs:
    return pairs[2], pairs[3], pairs[0], pairs[1]


def _unpaired(
    side: JoinSide, other: JoinSide, met: _Partners, keep: _Keep, limit: int, *, revised: bool
) -> Iterator[tuple[Run, col.Positions, Diffs]]:
    """Changes of the rows of `side` that come out because of having, or not having, partners: (run, rows, diffs)."""
    for run in side.changes:
        partners = np.zeros(run.num_rows, np.int64)
        rows, sums = met.of(run)
        partners[rows] = sums
        for rows in cut(np.flatnonzero(present(partners, side.sign)), limit):
            yield run, rows, run.diff[rows]
    moved = [(run, *met.of(run)) for run in side.old] if revised else []
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

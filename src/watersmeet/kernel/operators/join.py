"""Regular joins: every kind, with retractions on both sides.

The two inputs are arrangements by the join's key. With L, R their contents before the epoch and dL, dR their
changes, the joined pairs change by

    dL * (R + dR)  +  L * dR

A row without partner (null-extended in an outer join, passed by an anti join) exists if the number of
its partners c is 0, so those rows change by

    dL where c(R + dR) = 0   +   L times ([c(R + dR) = 0] - [c(R) = 0])

in which only rows of L whose key is in dR can differ; a semi join has [c > 0] instead. The right side
mirrors it. All terms are linear in the entries of L, so its runs need no consolidation first. Without a
residual c depends on the key alone and is counted per distinct key, never by forming pairs.

A join that is decided on arrival (`arrival.py`) has the first of the two terms only.

Joins that are never revised (EMIT ON ARRIVAL): whether a row has partners is decided when it comes.

Within an epoch all changes of the other side come first, on both sides: with dL, dR the changes, new left rows look at
R + dR and new right rows at L + dL. So rows of one epoch find each other in whatever order they came.

Where only left rows are decided (ASOF, semi and anti joins), nothing is kept of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from watersmeet.circuit.operators import ArrivalAsofJoin, ArrivalJoin, Join, TemporalJoin
from watersmeet.kernel.arrays import columns as col
from watersmeet.kernel.arrays.columns import cut
from watersmeet.kernel.context import StepContext
from watersmeet.kernel.joins.joined import Found, JoinSide, PairOutput, Production, is_revised, present
from watersmeet.kernel.joins.residual import Residual, found_with_residual
from watersmeet.kernel.operators import asof
from watersmeet.kernel.operators.arrange import unkept
from watersmeet.kernel.runs.delta import Delta, Sliced
from watersmeet.kernel.runs.matching import Amplification, Arranged, Probe, near_changes, pairs
from watersmeet.kernel.runs.order import Diffs
from watersmeet.kernel.runs.run import Run
from watersmeet.kernel.runs.state import State
from watersmeet.kernel.runs.trace import PIECE_ROWS


def step(op: Join, inputs: Sequence[Arranged], state: State, ctx: StepContext) -> Delta | Sliced:  # noqa: ARG001
    """The changes of the join's output; cancelled, so that no row of a slice comes with both signs. Rows may repeat.

    TooManyRowsError before any is made.
    """
    if not any(a.num_rows for a in inputs):
        return Delta.none(op.schema)
    left_sign = {"semi": 1, "left": -1, "full": -1, "anti": -1}.get(op.join_kind, 0)
    right_sign = -1 if op.join_kind in ("right", "full") else 0
    # A side's own keys matter where the partners of a row of the other side are counted, before and after.
    inputs = near_changes(inputs, (right_sign != 0, left_sign != 0))
    left, right = (JoinSide(a, sign) for a, sign in zip(inputs, (left_sign, right_sign), strict=True))
    return production(op, left, right, ctx).made(ctx.slicing, *inputs)


def production(op: Join | TemporalJoin, left: JoinSide, right: JoinSide, ctx: StepContext) -> Production:
    """What the join is about to give. TooManyRowsError if it may not."""
    joining = _Joining(op, left, right, ctx)
    ctx.expect(joining.amplification)
    # New rows without partner come out as they are: no more of them than came in, but they are output as well.
    alone = sum(side.arranged.num_rows for side in (left, right) if side.sign)
    types = [f.type.arrow for f in op.schema]
    return Production(
        joining.amplification.rows + alone, joining.found, (left.null_keys, right.null_keys), op.output, types
    )


def add_pairs(op: Join | TemporalJoin, left: JoinSide, right: JoinSide, out: PairOutput, ctx: StepContext) -> None:
    """Adds the changes of pairs and of rows without partner to `out`. TooManyRowsError before any is added."""
    for found in production(op, left, right, ctx).find(PIECE_ROWS):
        out.add(*found)


@dataclass(frozen=True, eq=False)
class _Flips:
    """Keys of a side whose partners come or go.

    groups: of `probe`, the change of the other side. signs: by group, +1 if the rows come out now, -1 if they go.
    """

    probe: Probe
    groups: col.Positions
    signs: Diffs


class _Joining:
    """The terms of one step of a join: how much they make, and what."""

    def __init__(self, op: Join | TemporalJoin, left: JoinSide, right: JoinSide, ctx: StepContext) -> None:
        self._op, self._left, self._right, self._ctx = op, left, right, ctx
        self.amplification = Amplification()
        self._pairs = op.residual is not None or op.join_kind not in ("semi", "anti")
        if self._pairs:
            for probe in left.probes:
                self.amplification.add(probe, pairs(probe, probe.matches(right.new)))
            for probe in right.probes:
                self.amplification.add(probe, pairs(probe, probe.matches(left.old)))
        self._flips: tuple[list[_Flips], list[_Flips]] = ([], [])
        if op.residual is None and is_revised(op):
            self._flips = self._flipped(left, right), self._flipped(right, left)

    def found(self, limit: int) -> Iterator[Found]:
        """All that the join finds, about `limit` rows at a time."""
        left, right = self._left, self._right
        if self._op.residual is not None:
            yield from found_with_residual(self._op, left, right, Residual(self._op, self._ctx), limit)
            return
        if self._pairs:
            for probe in left.probes:
                for run in right.new:
                    for mine, theirs in probe.pairs(run, limit):
                        yield probe.run, mine, run, theirs, None
            for probe in right.probes:
                for run in left.old:
                    for mine, theirs in probe.pairs(run, limit):
                        yield run, theirs, probe.run, mine, None
        for run, rows, diff in _unpaired(left, right, self._flips[0], limit):
            yield run, rows, None, None, diff
        for run, rows, diff in _unpaired(right, left, self._flips[1], limit):
            yield None, None, run, rows, diff

    def _flipped(self, side: JoinSide, other: JoinSide) -> list[_Flips]:
        """The keys of rows of before, of `side`, that come out or go because their partners in `other` do."""
        found: list[_Flips] = []
        for probe in other.probes if side.sign else ():
            before = probe.counts(other.old)
            signs = present(before + probe.sums(), side.sign) - present(before, side.sign)
            groups = np.flatnonzero(signs)
            if len(groups):
                found.append(_Flips(probe, groups, signs))
                self.amplification.add(probe, np.where(signs != 0, probe.matches(side.old), 0))
        return found


def _unpaired(
    side: JoinSide, other: JoinSide, flipped: Sequence[_Flips], limit: int
) -> Iterator[tuple[Run, col.Positions, Diffs]]:
    """Changes of the rows of `side` that come out because of having, or not having, partners: (run, rows, diffs)."""
    for probe in side.probes if side.sign else ():
        alone = np.flatnonzero(probe.of_rows(present(probe.counts(other.new), side.sign)))
        for rows in cut(alone, limit):
            yield probe.run, rows, probe.run.diff[rows]
    for flips in flipped:
        for run in side.old:
            for group, rows in flips.probe.rows_of(flips.groups, run, limit):
                yield run, rows, run.diff[rows] * flips.signs[group]


def arrival_join(op: ArrivalJoin, inputs: Sequence[Arranged | Delta], state: State, ctx: StepContext) -> Delta | Sliced:
    """What the rows of this epoch add to the output; of semi and anti joins the left input is a delta."""
    return step(op, _sides(op, inputs), state, ctx)


def arrival_asof(
    op: ArrivalAsofJoin, inputs: Sequence[Arranged | Delta], state: State, ctx: StepContext
) -> Delta | Sliced:
    """The left rows of this epoch with their partners as of now; the left input is a delta."""
    return asof.step(op, _sides(op, inputs), state, ctx)


def _sides(op: ArrivalJoin | ArrivalAsofJoin, inputs: Sequence[Arranged | Delta]) -> Sequence[Arranged]:
    left, right = inputs
    assert isinstance(right, Arranged)
    if isinstance(left, Arranged):
        return left, right
    return unkept(left, op.left_keys, op.null_safe, right)

"""ASOF joins: each left row with the nearest right row of its key, revised when either side changes.

With m(x, R) the nearest partner of x in R (none if the residual is not true for it), the output changes by

    dL * m(., R + dR)   +   L * (m(., R + dR) - m(., R))

in which only left rows whose key is in dR can differ. Both terms are linear in the entries of L, so its runs need no
consolidation; R's rows of the keys concerned are consolidated first, because which row is nearest is not linear in
them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np

from watersmeet.circuit.operators import ArrivalAsofJoin, AsofJoin
from watersmeet.kernel.arrays import columns as col
from watersmeet.kernel.arrays.columns import cut
from watersmeet.kernel.context import StepContext
from watersmeet.kernel.joins.joined import Found, Production
from watersmeet.kernel.joins.nearest import NONE, Candidates
from watersmeet.kernel.joins.residual import Residual
from watersmeet.kernel.runs.delta import Delta, Sliced
from watersmeet.kernel.runs.matching import Arranged, near_changes
from watersmeet.kernel.runs.order import Diffs
from watersmeet.kernel.runs.run import Run
from watersmeet.kernel.runs.state import State


def step(op: AsofJoin, inputs: Sequence[Arranged], state: State, ctx: StepContext) -> Delta | Sliced:  # noqa: ARG001
    """The changes of the join's output; cancelled, so that no row of a slice comes with both signs. Rows may repeat.

    A row has one partner at most, so what counts as output is each left row whose key changes, before and after. How
    many of them really change is known only then: that is no limit for a view.
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
    """All that the join finds, about `limit` rows at a time."""
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
        # Behind all that have a partner, so that the order is the same however the rows are cut.
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
    """Rows with their partner, or without if that comes out. residual: what makes a nearest row a partner."""

    def __init__(self, op: AsofJoin, residual: Residual | None) -> None:
        self._extended = op.join_kind == "left"
        self._residual = residual

    def partners(
        self, left: Run, rows: col.Positions, candidates: Candidates, nearest: col.Positions, diff: Diffs
    ) -> tuple[Found, col.Positions]:
        """Rows of `left` with the candidates `nearest` to them, and the places in `rows` of those without any."""
        right, chosen = candidates.chosen(nearest)
        met = chosen != NONE
        if self._residual is not None and right is not None:
            some = np.flatnonzero(met)
            met[some] = self._residual.mask((left, rows[some], right, chosen[some]))
        paired = np.flatnonzero(met)
        return (left, rows[paired], right, chosen[paired], diff[paired]), np.flatnonzero(~met)

    def alone(self, left: Run, rows: col.Positions, diff: Diffs) -> Iterator[Found]:
        """Rows of `left` without a partner, if they come out."""
        if self._extended:
            yield left, rows, None, None, diff

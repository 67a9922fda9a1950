"""ASOF joins: each left row with the nearest right row of its key, revised when either side changes.

With m(x, R) the nearest partner of x in R (none if the residual is not true for it), the output changes by

    dL * m(., R + dR)   +   L * (m(., R + dR) - m(., R))

in which only left rows whose key is in dR can differ. Both terms are linear in the entries of L, so its runs need no
consolidation; R's rows of the keys concerned are consolidated first, because which row is nearest is not linear in them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from watersmeet.circuit.operators import ArrivalAsofJoin, AsofJoin
from watersmeet.kernel.arrays import columns as col
from watersmeet.kernel.context import StepContext
from watersmeet.kernel.joins.joined import JoinOutput
from watersmeet.kernel.joins.nearest import NONE, Candidates
from watersmeet.kernel.joins.residual import Residual
from watersmeet.kernel.runs.arranged import Arranged
from watersmeet.kernel.runs.delta import Delta, Diffs
from watersmeet.kernel.runs.run import Run
from watersmeet.kernel.runs.state import State


def step(op: AsofJoin, inputs: Sequence[Arranged], state: State, ctx: StepContext) -> Delta:  # noqa: ARG001
    """The changes of the join's output; cancelled, so that no row comes with both signs, but rows may repeat."""
    if not any(a.num_rows for a in inputs):
        return Delta.empty(pa.schema([(f.name, f.type.arrow) for f in op.schema]))
    left, right = inputs
    depth = op.depth if isinstance(op, ArrivalAsofJoin) else None
    out = _Output(op, None if op.residual is None else Residual(op, ctx))
    for probe in left.probes:
        now = Candidates(probe, right.new, op.right_value, op.ties, depth)
        rows = np.arange(probe.run.num_rows)
        found = now.nearest(probe.of_rows(np.arange(probe.num_groups)), probe.run.arrays[op.left_value], op.comparison)
        out.add(probe.run, rows, now, found, probe.run.diff)
    for probe in right.probes:
        before, now = (Candidates(probe, runs, op.right_value, op.ties) for runs in (right.old, right.new))
        every = np.arange(probe.num_groups)
        for run in left.old:
            for groups, rows in probe.rows_of(every, run):
                values = col.gather(run.arrays[op.left_value], rows)
                was, is_now = (c.nearest(groups, values, op.comparison) for c in (before, now))
                moved = np.flatnonzero(before.differ(was, now, is_now))
                diff = run.diff[rows[moved]]
                out.add(run, rows[moved], before, was[moved], -diff)
                out.add(run, rows[moved], now, is_now[moved], diff)
    if op.join_kind == "left" and left.loose.num_rows:
        out.joined.add_loose(left.apart, None)
    return out.joined.delta()


class _Output:
    """Rows with their partner, or without if that comes out. residual: what makes a nearest row a partner."""

    def __init__(self, op: AsofJoin, residual: Residual | None) -> None:
        self.joined = JoinOutput(op.output, [f.type.arrow for f in op.schema])
        self._extended = op.join_kind == "left"
        self._residual = residual

    def add(self, left: Run, rows: col.Positions, candidates: Candidates, found: col.Positions, diff: Diffs) -> None:
        """Adds rows of `left` with the candidates `found` for them."""
        right, nearest = candidates.chosen(found)
        met = nearest != NONE
        if self._residual is not None and right is not None:
            some = np.flatnonzero(met)
            met[some] = self._residual.mask((left, rows[some], right, nearest[some]))
        paired = np.flatnonzero(met)
        self.joined.add(left, rows[paired], right, nearest[paired], diff[paired])
        if self._extended:
            alone = np.flatnonzero(~met)
            self.joined.add(left, rows[alone], None, None, diff[alone])

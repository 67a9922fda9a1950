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
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from watersmeet.circuit.operators import Join, TemporalJoin
from watersmeet.kernel.arrays import columns as col
from watersmeet.kernel.context import StepContext
from watersmeet.kernel.joins.joined import JoinOutput, JoinSide, PairOutput, is_revised, present
from watersmeet.kernel.joins.residual import Residual, join_with_residual
from watersmeet.kernel.runs.arranged import Arranged
from watersmeet.kernel.runs.delta import Delta, Diffs
from watersmeet.kernel.runs.run import Run
from watersmeet.kernel.runs.state import State


def step(op: Join, inputs: Sequence[Arranged], state: State, ctx: StepContext) -> Delta:  # noqa: ARG001
    """The changes of the join's output; cancelled, so that no row comes with both signs, but rows may repeat."""
    if not any(a.num_rows for a in inputs):
        return Delta.empty(pa.schema([(f.name, f.type.arrow) for f in op.schema]))
    left_sign = {"semi": 1, "left": -1, "full": -1, "anti": -1}.get(op.join_kind, 0)
    right_sign = -1 if op.join_kind in ("right", "full") else 0
    left, right = (JoinSide(a, sign) for a, sign in zip(inputs, (left_sign, right_sign), strict=True))
    out = JoinOutput(op.output, [f.type.arrow for f in op.schema])
    add_pairs(op, left, right, out, ctx)
    out.add_loose(left.loose, None)
    out.add_loose(None, right.loose)
    return out.delta()


def add_pairs(op: Join | TemporalJoin, left: JoinSide, right: JoinSide, out: PairOutput, ctx: StepContext) -> None:
    """Adds the changes of pairs and of rows without partner to `out`."""
    if op.residual is None:
        _join(op, left, right, out)
    else:
        join_with_residual(op, left, right, out, Residual(op, ctx))


def _join(op: Join | TemporalJoin, left: JoinSide, right: JoinSide, out: PairOutput) -> None:
    if op.join_kind not in ("semi", "anti"):
        for probe in left.probes:
            for run in right.new:
                for mine, theirs in probe.pairs(run):
                    out.add(probe.run, mine, run, theirs)
        for probe in right.probes:
            for run in left.old:
                for mine, theirs in probe.pairs(run):
                    out.add(run, theirs, probe.run, mine)
    if left.sign:
        for run, rows, diff in _unpaired(left, right, revised=is_revised(op)):
            out.add(run, rows, None, None, diff)
    if right.sign:
        for run, rows, diff in _unpaired(right, left, revised=is_revised(op)):
            out.add(None, None, run, rows, diff)


def _unpaired(side: JoinSide, other: JoinSide, *, revised: bool) -> Iterator[tuple[Run, col.Positions, Diffs]]:
    """Changes of the rows of `side` that come out because of having, or not having, partners: (run, rows, diffs)."""
    for probe in side.probes:
        rows = np.flatnonzero(probe.of_rows(present(probe.counts(other.new), side.sign)))
        yield probe.run, rows, probe.run.diff[rows]
    if not revised:
        return
    for probe in other.probes:
        before = probe.counts(other.old)
        flips = present(before + probe.sums(), side.sign) - present(before, side.sign)
        groups = np.flatnonzero(flips)
        for run in side.old:
            for group, rows in probe.rows_of(groups, run):
                yield run, rows, run.diff[rows] * flips[group]

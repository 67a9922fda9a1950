"""Regular joins: every kind, with retractions on both sides.

With L, R the contents before the epoch and dL, dR the changes, the joined pairs change by

    dL * (R + dR)  +  L * dR

A row without partner (null-extended in an outer join, passed by an anti join) exists if the number of
its partners c is 0, so those rows change by

    dL where c(R + dR) = 0   +   L times ([c(R + dR) = 0] - [c(R) = 0])

in which only rows of L whose key is in dR can differ; a semi join has [c > 0] instead. The right side
mirrors it. All terms are linear in the entries of L, so its runs need no consolidation first. Without a
residual c depends on the key alone and is counted per distinct key, never by forming pairs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from watersmeet.circuit.operators import Join
from watersmeet.kernel import columns as col
from watersmeet.kernel.context import StepContext
from watersmeet.kernel.delta import Delta, Diffs, consolidate
from watersmeet.kernel.hashing import is_bijective
from watersmeet.kernel.joined import JoinOutput, JoinSide, present
from watersmeet.kernel.matching import parts
from watersmeet.kernel.residual import Residual, join_with_residual
from watersmeet.kernel.run import Run, arrange
from watersmeet.kernel.state import State


def step(op: Join, inputs: Sequence[Delta], state: State, ctx: StepContext) -> Delta:
    """The changes of the join's output; cancelled, so that no row comes with both signs, but rows may repeat."""
    if not any(d.num_rows for d in inputs):
        return Delta.empty(pa.schema([(f.name, f.type.arrow) for f in op.schema]))
    traces = [state.trace(op.id, name) for name in ("left", "right")]
    exact = _exact(op, inputs[0])
    left_sign = {"semi": 1, "left": -1, "full": -1, "anti": -1}.get(op.join_kind, 0)
    right_sign = -1 if op.join_kind in ("right", "full") else 0
    left, right = (
        _side(delta, keys, op.null_safe, parts(trace.runs), exact=exact, sign=sign)
        for delta, keys, trace, sign in zip(inputs, (op.left_keys, op.right_keys), traces,
                                            (left_sign, right_sign), strict=True)
    )
    out = JoinOutput(op)
    if op.residual is None:
        _join(op, left, right, out)
    else:
        join_with_residual(op, left, right, out, Residual(op, ctx))
    out.add_loose(left.loose, None)
    out.add_loose(None, right.loose)
    traces[0].append(left.change)
    traces[1].append(right.change)
    return out.delta()


def _exact(op: Join, left: Delta) -> bool:
    """True if equal hashes mean equal keys: NULLs are gone, and the one key's hash is a bijection."""
    if not op.left_keys:
        return True
    return len(op.left_keys) == 1 and not op.null_safe[0] and is_bijective(left.columns.column(op.left_keys[0]).type)


def _side(delta: Delta, keys: tuple[int, ...], null_safe: tuple[bool, ...], old: list[Run], *, exact: bool,
          sign: int) -> JoinSide:
    """The side of a join: rows with a NULL in the key never match and are kept only if they come out."""
    loose = np.zeros(delta.num_rows, np.bool_)
    for position, safe in zip(keys, null_safe, strict=True):
        valid = None if safe else col.validity(col.flat(delta.columns.column(position)))
        if valid is not None:
            loose |= ~valid
    if not loose.any():
        return JoinSide(arrange(delta, keys), None, old, exact, sign)
    apart = consolidate(delta.take(np.flatnonzero(loose))) if sign < 0 else None
    return JoinSide(arrange(delta.take(np.flatnonzero(~loose)), keys), apart, old, exact, sign)


def _join(op: Join, left: JoinSide, right: JoinSide, out: JoinOutput) -> None:
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
        for run, rows, diff in _unpaired(left, right):
            out.add(run, rows, None, None, diff)
    if right.sign:
        for run, rows, diff in _unpaired(right, left):
            out.add(None, None, run, rows, diff)


def _unpaired(side: JoinSide, other: JoinSide) -> Iterator[tuple[Run, col.Positions, Diffs]]:
    """Changes of the rows of `side` that come out because of having, or not having, partners: (run, rows, diffs)."""
    for probe in side.probes:
        rows = np.flatnonzero(probe.of_rows(present(probe.counts(other.new), side.sign)))
        yield probe.run, rows, probe.run.diff[rows]
    for probe in other.probes:
        before = probe.counts(other.old)
        flips = present(before + probe.sums(), side.sign) - present(before, side.sign)
        groups = np.flatnonzero(flips)
        for run in side.old:
            for group, rows in probe.rows_of(groups, run):
                yield run, rows, run.diff[rows] * flips[group]

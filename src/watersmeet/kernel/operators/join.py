"""Regular joins: every kind, with retractions on both sides; inner joins of many inputs; joins decided on arrival.

The two inputs are arrangements by the join's key. Let L and R be their contents before the epoch and dL and dR their
changes. Then the joined pairs change by

    dL * (R + dR)  +  L * dR

A row without partner (null-extended in an outer join, output of an anti join) exists if the number of its partners c is
0, so those rows change by

    dL where c(R + dR) = 0   +   L times ([c(R + dR) = 0] - [c(R) = 0])

in which only rows of L whose key is in dR can differ; a semi join has [c > 0] instead. The right side mirrors it. All
terms are linear in the entries of L, so its runs need no consolidation first. Without a residual c depends only on the
key and is counted per distinct key, never by forming pairs.

Joins that are never revised (EMIT ON ARRIVAL) only have the first of the two terms, on both sides: new left rows are
joined with R + dR and new right rows with L + dL, so rows of one epoch match in any order. ASOF, semi and anti joins
only decide on left rows, so they keep none.

Inner joins of many inputs by one key have no intermediate results. Let R_i be the content of input i before the epoch,
d_i its change and N_i = R_i + d_i. Then the result changes by

    d_1 * R_2 * R_3 …  +  N_1 * d_2 * R_3 …  +  N_1 * N_2 * d_3 …  + …

(the rule of delta joins). A key of which an input loses its only row is left out of the terms with that input's content
after the change. Each term starts from the keys of its change; keys missing in some other input are dropped
first, so that nothing is gathered for them. The inputs that have several rows of a key are combined one by one, in
pieces, so a result of any size needs little memory.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from watersmeet.circuit.operators import ArrivalAsofJoin, ArrivalJoin, InputColumn, Join, MultiJoin, TemporalJoin
from watersmeet.kernel.arrays import columns as col
from watersmeet.kernel.arrays.columns import cut, pieces
from watersmeet.kernel.context import StepContext
from watersmeet.kernel.joins import (
    FEW_ROWS,
    Found,
    JoinSide,
    PairOutput,
    Production,
    Residual,
    Terms,
    empties_keys,
    found_with_residual,
    is_revised,
    joined_pairs,
    matched,
    only_grow,
    present,
    terms,
)
from watersmeet.kernel.operators import asof
from watersmeet.kernel.operators.arrange import unkept
from watersmeet.kernel.runs.delta import Delta, Diffs, Sliced, ones, without_cancelling
from watersmeet.kernel.runs.matching import Amplification, Arranged, Probe, near_changes, pairs
from watersmeet.kernel.runs.run import Run
from watersmeet.kernel.runs.state import State
from watersmeet.kernel.runs.trace import PIECE_ROWS


def step(op: Join, inputs: Sequence[Arranged], state: State, ctx: StepContext) -> Delta | Sliced:  # noqa: ARG001
    """The changes of the join's output; no row of a slice has both signs. Rows may repeat.

    Raises TooManyRowsError before the first row is computed.
    """
    if not any(a.num_rows for a in inputs):
        return Delta.none(op.schema)
    left_sign = {"semi": 1, "left": -1, "full": -1, "anti": -1}.get(op.join_kind, 0)
    right_sign = -1 if op.join_kind in ("right", "full") else 0
    # A side's own keys matter if partners of the other side's rows are counted, before and after the epoch.
    inputs = near_changes(inputs, (right_sign != 0, left_sign != 0))
    left, right = (JoinSide(a, sign) for a, sign in zip(inputs, (left_sign, right_sign), strict=True))
    return production(op, left, right, ctx).made(ctx.slicing, *inputs)


def production(op: Join | TemporalJoin, left: JoinSide, right: JoinSide, ctx: StepContext) -> Production:
    """The size of the join's output and how to compute it, before any row exists. Raises TooManyRowsError."""
    joining = _Joining(op, left, right, ctx)
    ctx.expect(joining.amplification)
    # New rows without partner are also output, no more than the input has.
    alone = sum(side.arranged.num_rows for side in (left, right) if side.sign)
    types = [f.type.arrow for f in op.schema]
    null_keys = left.null_keys, right.null_keys
    rows = joining.amplification.rows + alone
    return Production(
        rows, joining.found, null_keys, op.output, types, retracts_first=joining.retracts_first, net=joining.net
    )


def add_pairs(op: Join | TemporalJoin, left: JoinSide, right: JoinSide, out: PairOutput, ctx: StepContext) -> None:
    """Adds the changes of pairs and of rows without partner to `out`. Raises TooManyRowsError before any is added."""
    for found in production(op, left, right, ctx).find(PIECE_ROWS):
        out.add(*found)


@dataclass(frozen=True, eq=False)
class _Flips:
    """Keys of a side whose first partner arrives or last partner is deleted.

    groups: those in `probe`, the change of the other side. signs: for each group, +1 if its rows are now output, -1 if
    they are retracted.
    """

    probe: Probe
    groups: col.Positions
    signs: Diffs


#: The bytes of the positions of a pair.
_PAIR_BYTES: Final = 16


class _Joining:
    """The terms of one step of a join: the number of their rows, and the rows themselves."""

    def __init__(self, op: Join | TemporalJoin, left: JoinSide, right: JoinSide, ctx: StepContext) -> None:
        self._op, self._left, self._right, self._ctx = op, left, right, ctx
        self.amplification = Amplification()
        self._pairs = op.residual is not None or op.join_kind not in ("semi", "anti")
        counted = op.residual is not None and bool(left.sign or right.sign)
        self._terms: Terms
        self._terms, self._once = terms(left, right, counted=counted) if self._pairs else (([], []), False)
        for found in self._terms:
            for probe in {id(own): own for own, _, _ in found}.values():
                matches = np.zeros(probe.num_groups, np.int64)
                for own, run, some in found:
                    if own is probe:
                        matches += matched(probe, run, some)
                self.amplification.add(probe, pairs(probe, matches))
        self._flips: tuple[list[_Flips], list[_Flips]] = ([], [])
        if op.residual is None and is_revised(op):
            self._flips = self._flipped(left, right), self._flipped(right, left)

    @property
    def retracts_first(self) -> bool:
        """As in `Sliced`: if inputs only grow, only rows that get their first partner are retracted."""
        left, right = self._left, self._right
        if self._op.residual is not None and (left.sign or right.sign) and not self._hold:
            return False
        runs = [*left.changes, *right.changes]
        runs += right.new if left.probes else ()
        runs += left.new if right.probes else ()
        return only_grow(runs, left.null_keys, right.null_keys)

    @property
    def _hold(self) -> bool:
        """Whether the positions of all pairs can be in memory, because they take no more than a slice."""
        return self.amplification.rows * _PAIR_BYTES <= self._ctx.slicing.bytes

    @property
    def net(self) -> bool:
        """As in `Sliced`: if each pair is output once, and its columns determine both rows."""
        op, sides = self._op, (self._left, self._right)
        if type(op) is not Join or op.join_kind != "inner" or not all(s.arranged.complete for s in sides):
            return False
        shown = {(c.input, c.column) for c in op.output}
        keys = [
            ((0, a), (1, b))
            for a, b in zip(op.left_keys, op.right_keys, strict=True)
            if not col.is_interval(self._ctx.schemas[0][a].type.arrow)
        ]
        shown |= {c for pair in keys if shown & set(pair) for c in pair}
        whole = all((i, c) in shown for i, schema in enumerate(self._ctx.schemas) for c in range(len(schema)))
        return whole and self._once

    def found(self, limit: int) -> Iterator[Found]:
        """All matches of the join, about `limit` rows at a time."""
        left, right = self._left, self._right
        if self._op.residual is not None:
            residual = Residual(self._op, self._ctx)
            yield from found_with_residual(self._op, left, right, self._terms, residual, limit, hold=self._hold)
            return
        for run, rows, diff in _flipping(left, self._flips[0], limit):
            yield run, rows, None, None, diff
        for run, rows, diff in _flipping(right, self._flips[1], limit):
            yield None, None, run, rows, diff
        for l_run, l_rows, r_run, r_rows in joined_pairs(self._terms, limit):
            yield l_run, l_rows, r_run, r_rows, None
        for run, rows, diff in _unpaired(left, right, limit):
            yield run, rows, None, None, diff
        for run, rows, diff in _unpaired(right, left, limit):
            yield None, None, run, rows, diff

    def _flipped(self, side: JoinSide, other: JoinSide) -> list[_Flips]:
        """The keys of earlier rows of `side` that are output or retracted because their partners in `other` change."""
        found: list[_Flips] = []
        for probe in other.probes if side.sign else ():
            before = probe.counts(other.old)
            signs = present(before + probe.sums(), side.sign) - present(before, side.sign)
            groups = np.flatnonzero(signs)
            if len(groups):
                found.append(_Flips(probe, groups, signs))
                self.amplification.add(probe, np.where(signs != 0, probe.matches(side.old), 0))
        return found


def _flipping(side: JoinSide, flipped: Sequence[_Flips], limit: int) -> Iterator[tuple[Run, col.Positions, Diffs]]:
    """The changes (run, rows, diffs) of the earlier rows of `side` that are output or retracted."""
    for flips in flipped:
        for run in side.old:
            for group, rows in flips.probe.rows_of(flips.groups, run, limit):
                yield run, rows, run.diff[rows] * flips.signs[group]


def _unpaired(side: JoinSide, other: JoinSide, limit: int) -> Iterator[tuple[Run, col.Positions, Diffs]]:
    """(run, rows, diffs) of the changed rows of `side` that are output because they have, or don't have, partners."""
    for probe in side.probes if side.sign else ():
        alone = np.flatnonzero(probe.of_rows(present(probe.counts(other.new), side.sign)))
        for rows in cut(alone, limit):
            yield probe.run, rows, probe.run.diff[rows]


def arrival_join(op: ArrivalJoin, inputs: Sequence[Arranged | Delta], state: State, ctx: StepContext) -> Delta | Sliced:
    """The output for this epoch's rows. The left input of semi and anti joins is a delta."""
    return step(op, _sides(op, inputs), state, ctx)


def arrival_asof(
    op: ArrivalAsofJoin, inputs: Sequence[Arranged | Delta], state: State, ctx: StepContext
) -> Delta | Sliced:
    """The left rows of this epoch with their current partners. The left input is a delta."""
    return asof.step(op, _sides(op, inputs), state, ctx)


def _sides(op: ArrivalJoin | ArrivalAsofJoin, inputs: Sequence[Arranged | Delta]) -> Sequence[Arranged]:
    left, right = inputs
    assert isinstance(right, Arranged)
    if isinstance(left, Arranged):
        return left, right
    return unkept(left, op.left_keys, op.null_safe, right)


_TOKEN: Final = re.compile(r"\bt(\d+)_(\d+)\b")


def multi_join(op: MultiJoin, inputs: Sequence[Arranged], state: State, ctx: StepContext) -> Delta | Sliced:  # noqa: ARG001
    """The changes of the join's output; no row of a slice has both signs. Rows may repeat.

    Raises TooManyRowsError before any row is computed.
    """
    inputs = near_changes(inputs, [False] * len(inputs))
    terms = [t for t in _terms(inputs) if len(t.keys)]
    made = Amplification()
    for term in terms:
        made.add(term.probe, term.made())
    ctx.expect(made)
    limit = ctx.slicing.rows
    if made.rows > min(FEW_ROWS, limit):
        limit = ctx.slicing.rows_of(_row_bytes(op, inputs))
    if made.rows > limit:
        return Sliced(lambda: _slices(op, terms, ctx, limit))
    return _one(op, list(_found(op, terms, ctx, limit)))


def _slices(op: MultiJoin, terms: Sequence[_Term], ctx: StepContext, limit: int) -> Iterator[Delta]:
    found: list[Delta] = []
    rows = 0
    for piece in _found(op, terms, ctx, limit):
        found.append(piece)
        rows += piece.num_rows
        if rows >= limit:
            yield _one(op, found)
            found, rows = [], 0
    yield _one(op, found)


def _one(op: MultiJoin, found: list[Delta]) -> Delta:
    if not found:
        return Delta.none(op.schema)
    return without_cancelling(Delta.concat(found))


def _found(op: MultiJoin, terms: Iterable[_Term], ctx: StepContext, limit: int) -> Iterator[Delta]:
    """The matches of the join, at most `limit` rows at a time."""
    for term in terms:
        for rows in term.combinations(limit):
            kept = _kept(op, rows, ctx)
            diff = _diffs(kept)
            if len(diff):
                yield Delta(pa.concat_tables(_gathered(kept, op.output)), diff)


def _row_bytes(op: MultiJoin, inputs: Sequence[Arranged]) -> float:
    """The approximate bytes of an output row, from those of its input rows."""
    total = 8.0  # the size of the diff
    for c in op.output:
        runs = inputs[c.input].changes or inputs[c.input].old
        total += sum(r.column_bytes(c.column) for r in runs) / max(1, sum(r.num_rows for r in runs))
    return total


#: For each input, a run and the row of it in each combination.
_Combinations = dict[int, tuple[Run, col.Positions]]


@dataclass(frozen=True, eq=False)
class _Term:
    """The product of the change of one input and the contents of the others.

    changed: the number of that input. others: the runs of each other input. keys: groups of the probe that all others
    have. counts: the number of rows for each input and group.
    """

    changed: int
    probe: Probe
    others: dict[int, list[Run]]
    keys: col.Positions
    counts: dict[int, col.Positions]

    def made(self) -> np.ndarray:
        """The number of combinations of each group; approximate, because products of many counts may exceed 64 bits."""
        found = np.zeros(self.probe.num_groups)
        found[self.keys] = self.probe.lengths[self.keys]
        for counts in self.counts.values():
            found[self.keys] *= counts[self.keys]
        return found

    def combinations(self, limit: int) -> Iterator[_Combinations]:
        """All combinations of rows with equal keys, at most `limit` at a time."""
        probe, keys = self.probe, self.keys
        for index, rows in pieces(probe.starts[keys], probe.lengths[keys], limit):
            yield from self._combined(keys[index], {self.changed: (probe.run, rows)}, list(self.counts), limit)

    def _combined(
        self, keys: col.Positions, found: _Combinations, rest: Sequence[int], limit: int
    ) -> Iterator[_Combinations]:
        """Combines the rows `found` of some inputs, given with their keys, with those of the inputs `rest`."""
        if not rest:
            yield found
            return
        for run in self.others[rest[0]]:
            low, high = self.probe.ranges(run)
            for index, rows in pieces(low[keys], (high - low)[keys], limit):
                repeated = {i: (some, at[index]) for i, (some, at) in found.items()}
                yield from self._combined(keys[index], {**repeated, rest[0]: (run, rows)}, rest[1:], limit)


def _diffs(rows: _Combinations) -> Diffs:
    """The products of the diffs of combinations."""
    found = ones(next(len(at) for _, at in rows.values()))
    for run, at in rows.values():
        if not run.all_ones:
            found = found * run.diff[at]
    return found


def _terms(inputs: Sequence[Arranged]) -> Iterator[_Term]:
    for changed, arranged in enumerate(inputs):
        others = {
            j: a.new if j < changed else a.old for j, a in enumerate(inputs) if j != changed and arranged.num_rows
        }
        emptied = [a for a in inputs[:changed] if empties_keys(a)]
        for probe in arranged.probes:
            alive = np.ones(probe.num_groups, np.bool_)
            for other in emptied:  # a row and its deletion would only cancel each other
                alive &= ~probe.emptied(other.changes[0], other.old)
            yield _term(changed, probe, others, alive)


def _term(changed: int, probe: Probe, others: dict[int, list[Run]], alive: col.Mask) -> _Term:
    counts: dict[int, col.Positions] = {}
    for j in sorted(others, key=lambda j: sum(r.num_rows for r in others[j])):
        counts[j] = probe.matches(others[j])
        alive &= counts[j] > 0
        if not alive.any():
            break
    keys = np.flatnonzero(alive)
    return _Term(changed, probe, {j: probe.few(runs) for j, runs in others.items()} if len(keys) else {}, keys, counts)


def _kept(op: MultiJoin, rows: _Combinations, ctx: StepContext) -> _Combinations:
    """The combinations for which the residual is true; errors count as false."""
    if op.residual is None:
        return rows
    tokens = sorted({m.group() for m in _TOKEN.finditer(op.residual)})
    read = [InputColumn.of(token) for token in tokens]
    table = pa.Table.from_arrays([_column(rows, c) for c in read], names=tokens)
    schema = tuple(ctx.schemas[c.input][c.column] for c in read)
    mask = ctx.evaluator.mask(table, schema, op.residual, ctx.counters, table.num_rows)
    return {i: (run, at[mask]) for i, (run, at) in rows.items()}


def _column(rows: _Combinations, column: InputColumn) -> pa.Array:
    run, at = rows[column.input]
    return run.gather([column.column], at)[0]


def _gathered(rows: _Combinations, output: Sequence[InputColumn]) -> list[pa.Table]:
    """The output columns of combinations; several tables where the strings of one would exceed 2 GiB."""
    try:
        return [col.positional([_column(rows, c) for c in output])]
    except pa.ArrowInvalid:
        middle = next(len(at) for _, at in rows.values()) // 2
        if not middle:
            raise
        halves = [
            {i: (run, at[part]) for i, (run, at) in rows.items()} for part in (slice(middle), slice(middle, None))
        ]
        return [table for half in halves for table in _gathered(half, output)]

"""A join and GROUP BY its key in one operator.

The pairs of a key are all combinations of its left and right rows. So an aggregate that adds up is the sum over the
rows of one side, times the number of rows of the other side. In a left join, a key without right rows counts as one
right row of NULLs.

For each changed key, the sums of both sides before and after the epoch are computed from the runs of the arrangements,
as differences of running totals. Keys with many rows have their sums in the trace of their side (`SUMS`), in which the
newest row of a key counts. So no epoch reads more than `MOST_ROWS` earlier rows of a changed key.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

import numpy as np
import pyarrow as pa

from watersmeet.circuit.operators import GroupJoin
from watersmeet.errors import error
from watersmeet.kernel.accumulators import Accumulators, Part, accumulators_of
from watersmeet.kernel.arrays import columns as col
from watersmeet.kernel.arrays import exact_sum
from watersmeet.kernel.arrays.columns import expanded
from watersmeet.kernel.context import StepContext
from watersmeet.kernel.operators.aggregate import Side, changed_results
from watersmeet.kernel.runs.cold import near
from watersmeet.kernel.runs.delta import Delta, ones
from watersmeet.kernel.runs.groups import Groups, Ints, key_form
from watersmeet.kernel.runs.matching import Arranged, Probe, parts, probes
from watersmeet.kernel.runs.run import Run, make_run
from watersmeet.kernel.runs.state import State
from watersmeet.kernel.runs.trace import Trace, append_latest, latest_rows

#: The traces with the sums of left and of right rows.
SUMS: Final = ("left", "right")

#: The sums of a key with more entries than this on a side are stored.
MOST_ROWS: Final = 64

#: Totals are those of a whole run if at least this part of its rows is summed.
_DENSE: Final = 8

#: In a group with this many pairs, sums might overflow.
_MOST_PAIRS: Final = float(1 << 31)

#: For each key, the number of rows of a side, and the columns of each accumulator over the side's columns.
_Sums = list[Ints]


def step(op: GroupJoin, inputs: Sequence[Arranged], state: State, ctx: StepContext) -> Delta:
    """The changes of the groups' results; no row has diffs of both signs."""
    schema = tuple(ctx.schemas[c.input][c.column] for c in op.arguments)
    plan = accumulators_of(op.calls, schema)
    found = []
    for probe in _changed_keys(*inputs):
        sides = [_Side(op, n, plan, probe, state.trace(op.id, SUMS[n])).sums(a) for n, a in enumerate(inputs)]
        before, after = (_joined(op, plan, left, right) for left, right in zip(*sides, strict=True))
        keys = [key_form(probe.run.arrays[op.left_keys.index(k)]) for k in op.keys]
        found.append(changed_results(op.calls, plan, op.schema, schema, ctx.counters, keys, (before, after), {}))
    found = [d for d in found if d.num_rows]
    return replace(Delta.concat(found), net=True) if found else Delta.none(op.schema)


def _changed_keys(left: Arranged, right: Arranged) -> list[Probe]:
    """The keys of the changes of both sides, each once."""
    of_left = [(probe, np.arange(probe.num_groups)) for probe in left.probes]
    of_right = [(probe, np.flatnonzero(probe.matches(left.changes) == 0)) for probe in right.probes]
    found = [(probe, some) for probe, some in (*of_left, *of_right) if len(some)]
    if not found:
        return []
    hashes = np.concatenate([probe.hashes[some] for probe, some in found])
    order = np.argsort(hashes, kind="stable")  # it merges, because each part is sorted
    columns = zip(*(probe.run.gather(probe.run.keys, probe.starts[some]) for probe, some in found), strict=True)
    keys = [col.gather(pa.concat_arrays(list(column)), order) for column in columns]
    run = make_run(hashes[order], keys, ones(len(order)), tuple(range(len(keys))))
    return probes([run], exact=left.exact and right.exact)


@dataclass(frozen=True, eq=False)
class _Rows:
    """Some rows of a run by key: those of key `owners[i]` are [starts[i], ends[i]) of `rows`, or of the run if that is
    None.
    """

    run: Run
    owners: Ints
    starts: Ints
    ends: Ints
    rows: Ints | None

    @staticmethod
    def of(run: Run, low: Ints, high: Ints) -> _Rows:
        """The rows [low[i], high[i]) for each key i."""
        owners = np.flatnonzero(high > low)
        low, high = low[owners], high[owners]
        ends = np.cumsum(high - low)
        if len(ends) and int(ends[-1]) * _DENSE >= run.num_rows:
            return _Rows(run, owners, low, high, None)
        return _Rows(run, owners, ends - (high - low), ends, expanded(low, high - low)[1])

    @cached_property
    def weights(self) -> Ints | None:
        """The diffs; None if all are 1."""
        if self.run.all_ones:
            return None
        return self.run.diff if self.rows is None else self.run.diff[self.rows]

    def column(self, position: int) -> pa.Array:
        """The values of a column."""
        return self.run.arrays[position] if self.rows is None else self.run.gather([position], self.rows)[0]

    @cached_property
    def counts(self) -> Ints:
        """The sum of the diffs of each key's rows."""
        return self.ends - self.starts if self.weights is None else self._totals(self.weights)

    def sums(self, part: Part, array: pa.Array) -> list[Ints]:
        """For each key, the columns of an accumulator over `array`."""
        valid = col.validity(array)
        if part.kind == "count":
            return [self.counts if valid is None else self._weighted(valid.astype(np.int64))]
        if part.kind == "squares":
            terms = exact_sum.wide_squares(array)
        elif part.kind == "true":
            terms = col.words(array).astype(np.int64)[np.newaxis, :]
        else:
            values = exact_sum.narrow(array, self.weights)
            terms = exact_sum.limbs_of(array) if values is None else values[np.newaxis, :]
        found = [self._weighted(term if valid is None else np.where(valid, term, 0)) for term in terms]
        return list(exact_sum.split_words(found[0])) if len(found) < len(part.types) else found

    def _weighted(self, values: Ints) -> Ints:
        """The sum of the values of each key's rows times their diffs."""
        return self._totals(values if self.weights is None else values * self.weights)

    def _totals(self, values: Ints) -> Ints:
        """The sum of the values of each key's rows."""
        running = np.zeros(len(values) + 1, np.int64)
        np.cumsum(values, out=running[1:])  # if it wraps around, its differences do so, too
        totals: Ints = running[self.ends] - running[self.starts]
        return totals


@dataclass(frozen=True, eq=False)
class _Side:
    """One side of the join, for the keys of a probe, whose run has only these. trace: that of the side's sums."""

    op: GroupJoin
    number: int
    plan: Accumulators
    probe: Probe
    trace: Trace

    @cached_property
    def parts(self) -> list[tuple[Part, int]]:
        """The accumulators over columns of this side, and these columns."""
        arguments = self.op.arguments
        own = [(p, arguments[p.feed.argument]) for p in self.plan.parts if p.feed.argument is not None]
        return [(p, c.column) for p, c in own if c.input == self.number]

    def sums(self, arranged: Arranged) -> tuple[_Sums, _Sums]:
        """The sums before and after the epoch, which are stored if a key has many rows."""
        probe, count = self.probe, self.probe.num_groups
        none = np.zeros(count, np.int64)
        keys = Groups(none[:0], none, probe.hashes, tuple(key_form(a) for a in probe.run.arrays))
        before = [none.copy() for _ in range(1 + sum(len(p.types) for p, _ in self.parts))]
        found = latest_rows(self.trace, keys) if self.trace.runs else None
        stored = np.zeros(count, np.bool_)
        if found is not None:
            stored = np.asarray(found[0].is_valid())
            before = [a.fill_null(0).to_numpy().copy() for a in found[len(keys.keys) :]]
        entries = none.copy()
        for run in parts(near(arranged.runs_before, lambda: probe.hashes[~stored])):
            low, high = probe.ranges(run)
            high = np.where(stored, low, high)
            entries += high - low
            self._add(before, _Rows.of(run, low, high))
        before = self._normal(before)
        after = [b.copy() for b in before]
        changed = np.zeros(count, np.bool_)
        for run in arranged.changes:
            low, high = probe.ranges(run)
            entries += high - low
            changed |= high > low
            self._add(after, _Rows.of(run, low, high))
        after = self._normal(after)
        self._store(keys, after, np.flatnonzero(changed & (stored | (entries > MOST_ROWS))))
        return before, after

    def _store(self, keys: Groups, sums: _Sums, rows: Ints) -> None:
        if len(rows):
            hashes, arrays = keys.take(rows)
            columns = [s[rows] for s in sums]
            kept = np.where(np.logical_or.reduce([c != 0 for c in columns]), 1, -1)
            arrays += [col.fixed(c, pa.int64()) for c in columns]
            append_latest(self.trace, make_run(hashes, arrays, kept, tuple(range(len(keys.keys)))))

    def _add(self, totals: _Sums, rows: _Rows) -> None:
        """Adds the sums of some rows to `totals`."""
        if not len(rows.owners):
            return
        columns = (c for part, at in self.parts for c in rows.sums(part, rows.column(at)))
        for total, column in zip(totals, (rows.counts, *columns), strict=True):
            total[rows.owners] += column

    def _normal(self, sums: _Sums) -> _Sums:
        """The sums with limbs in normal form."""
        found, at = sums[:1], 1
        for part, _ in self.parts:
            columns = sums[at : at + len(part.types)]
            found += list(exact_sum.carried(np.stack(columns))) if part.kind in ("sum", "squares") else columns
            at += len(part.types)
        return found


def _joined(op: GroupJoin, plan: Accumulators, left: _Sums, right: _Sums) -> Side:
    """The groups, from the sums of both sides."""
    times = right[0] if op.join_kind == "inner" else np.where(right[0] == 0, 1, right[0])
    if (np.abs(left[0].astype(np.float64) * times) >= _MOST_PAIRS).any():
        raise error("AMPLIFICATION_LIMIT", "a join has more than 2,147,483,647 pairs of rows with one key")
    sides, places = (left, right), [1, 1]
    found: list[Ints] = []
    for part in plan.parts:
        if part.feed.argument is None:
            found.append(left[0] * times)
            continue
        number = op.arguments[part.feed.argument].input
        columns = sides[number][places[number] : places[number] + len(part.types)]
        places[number] += len(part.types)
        found += [c * (left[0] if number else times) for c in columns]  # limbs need no normal form to be read
    return Side([col.fixed(c, pa.int64()) for c in found], found[0] > 0)

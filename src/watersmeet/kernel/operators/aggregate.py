"""GROUP BY over changes: aggregate functions with FILTER and DISTINCT, and distinct rows.

What adds up is kept in accumulators; what needs all values is computed anew for the touched groups (`collected`). Each
group has one row of accumulators in the trace `groups`, whose newest row of a key counts. An epoch adds what it brings
to the rows of the groups it touches; where a result changes, the output has the old row with diff -1 and the new one
with diff 1. Everything that adds up is an integer, so results do not depend on the order of the input or on values that
are gone. Per epoch and group, sums are exact while the diffs' absolute values add up to less than 2^31.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from watersmeet.circuit.operators import Aggregate, AggregateSpec
from watersmeet.kernel.aggregates.accumulators import Accumulators, Feeder, accumulators_of, add, result
from watersmeet.kernel.aggregates.collected import Sides, collect, update_extremes
from watersmeet.kernel.arrays import columns as col
from watersmeet.kernel.arrays.hashing import EMPTY_HASH, hash_columns
from watersmeet.kernel.context import StepContext
from watersmeet.kernel.metrics import too_large
from watersmeet.kernel.runs.cleaning import Retention
from watersmeet.kernel.runs.delta import Delta, Sliced, consolidate, slices_of
from watersmeet.kernel.runs.groups import Groups, group, key_form
from watersmeet.kernel.runs.run import make_run
from watersmeet.kernel.runs.state import State
from watersmeet.kernel.runs.trace import Trace, append_latest, latest_rows
from watersmeet.values import watermarks
from watersmeet.values.types import Schema


@dataclass(frozen=True, eq=False)
class _Side:
    """The touched groups before or after the epoch. exists: whether the group has a row in the result."""

    state: list[pa.Array]
    exists: col.Mask


def step(op: Aggregate, inputs: Sequence[Delta | Sliced], state: State, ctx: StepContext) -> Delta:
    """The changes of the groups' results; consolidated. Groups that can't change any more are forgotten.

    Slices are taken in one by one, as if each were an epoch; what that shows in between cancels.
    """
    changes = [_changed(op, delta, state, ctx) for delta in slices_of(inputs[0])]
    changes = [c for c in changes if c.num_rows]
    out = consolidate(Delta.concat(changes)) if len(changes) > 1 else next(iter(changes), _nothing(op))
    bound = watermarks.value(op.retain, ctx.watermarks)
    if bound is not None and op.time is not None:
        retention = Retention(op.time, bound, nulls=True)  # the keys come first in all traces
        for name in state.names(op.id):
            retention.clean(state.trace(op.id, name))
    return out


def _changed(op: Aggregate, delta: Delta, state: State, ctx: StepContext) -> Delta:
    only_row = not op.keys and bool(op.calls)
    if delta.num_rows == 0 and not (only_row and ctx.initial and ctx.bucket == 0):
        return _nothing(op)
    plan = accumulators_of(op, ctx.schemas[0])
    keys = [key_form(delta.columns.column(i)) for i in op.keys]
    groups = group(keys, hash_columns(keys, delta.num_rows))
    if not groups.count:  # the one group exists without rows too
        nothing = np.zeros(0, np.int64)
        groups = Groups(nothing, np.zeros(1, np.int64), np.array([EMPTY_HASH]), ())
    trace = state.trace(op.id, "groups")
    found = latest_rows(trace, groups)
    known = np.zeros(groups.count, np.bool_) if found is None else np.asarray(found[len(keys)].is_valid())
    before = _before(plan, found, len(keys), groups.count)
    append_only = bool(ctx.append_only) and ctx.append_only[0]
    feeder = Feeder(delta, keys, groups, state, op.id)
    after = _after(plan, before, feeder, append_only=append_only)
    collected = collect(op, feeder)
    if only_row:
        old, new = _Side(before, known), _Side(after, np.ones(groups.count, np.bool_))
    else:
        old, new = (_Side(columns, columns[0].to_numpy() > 0) for columns in (before, after))
    _remember(trace, groups, plan, before, after, known, always=only_row)
    return _changes(op, plan, ctx, groups, old, new, collected)


def _nothing(op: Aggregate) -> Delta:
    return Delta.none(op.schema)


def _before(plan: Accumulators, found: list[pa.Array] | None, num_keys: int, count: int) -> list[pa.Array]:
    """The accumulators before the epoch; 0 and NULL for new groups."""
    columns: list[pa.Array] = []
    for part in plan.parts:
        for i, kind in enumerate(part.types, num_keys + part.start):
            is_sum = kind == pa.int64() and part.kind not in ("min", "max")
            if found is None:
                columns.append(pa.array(np.zeros(count, np.int64)) if is_sum else pa.nulls(count, kind))
            else:
                columns.append(found[i].fill_null(0) if is_sum and found[i].null_count else found[i])
    return columns


def _after(plan: Accumulators, before: list[pa.Array], feeder: Feeder, *, append_only: bool) -> list[pa.Array]:
    """The accumulators after the epoch."""
    after = list(before)
    for feed in plan.feeds():
        parts = [p for p in plan.parts if p.feed == feed]
        ends = [p for p in parts if p.kind in ("min", "max")]
        if ends:
            values = update_extremes(feed, ends, [before[p.start] for p in ends], feeder, append_only=append_only)
            for part, value in zip(ends, values, strict=True):
                after[part.start] = value
        if len(ends) < len(parts):
            fed = feeder.feed(feed)
            for part in parts:
                if part not in ends:
                    after[part.columns] = add(part, before[part.columns], fed)
    return after


def _remember(
    trace: Trace,
    groups: Groups,
    plan: Accumulators,
    before: list[pa.Array],
    after: list[pa.Array],
    known: col.Mask,
    *,
    always: bool,
) -> None:
    """Writes the rows that changed; those of groups of which nothing is left say that they are gone."""
    changed = np.zeros(groups.count, np.bool_)
    alive = np.full(groups.count, always)
    if always:
        changed |= ~known
    for part in plan.parts:
        for old, new in zip(before[part.columns], after[part.columns], strict=True):
            changed |= ~col.equal(old, new)
            if part.kind not in ("min", "max") and new.type == pa.int64():
                alive |= new.to_numpy() != 0
    rows = np.flatnonzero(changed & (alive | known))
    hashes, keys = groups.take(rows)
    arrays = [*keys, *(col.gather(a, rows) for a in after)]
    append_latest(trace, make_run(hashes, arrays, np.where(alive[rows], 1, -1), tuple(range(len(keys)))))


def _changes(
    op: Aggregate,
    plan: Accumulators,
    ctx: StepContext,
    groups: Groups,
    old: _Side,
    new: _Side,
    collected: Mapping[AggregateSpec, Sides],
) -> Delta:
    schema: Schema = ctx.schemas[0]
    none = np.zeros(groups.count, np.bool_)

    def results(side: _Side, number: int) -> list[tuple[pa.Array, col.Mask]]:
        found = []
        for call, field in zip(op.calls, op.schema[len(op.keys) :], strict=True):
            if call in collected:
                found.append((collected[call][number].cast(field.type.arrow), none))
            else:
                argument = None if call.argument is None else schema[call.argument].type.arrow
                found.append(result(call, plan, side.state, argument, field.type.arrow))
        return found

    before = results(old, 0) if old.exists.any() else None
    olds = None if before is None else [values for values, _ in before]
    news = results(new, 1)
    same = np.zeros(groups.count, np.bool_)
    if olds is not None:
        same = old.exists & new.exists & col.rows_equal(olds, [values for values, _ in news], groups.count)
    retracted = np.flatnonzero(old.exists & ~same)
    inserted = np.flatnonzero(new.exists & ~same)
    for i, (_, large) in enumerate(news):
        was_large = none if before is None else before[i][1] & old.exists
        rows = int((large & new.exists & ~was_large).sum())
        if rows:
            position = len(op.keys) + i
            ctx.counters.failed(position, "", too_large(op.schema[position].type), rows)
    columns = [col.gather(k, np.concatenate([retracted, inserted])) for k in groups.keys]
    for i, (values, _) in enumerate(news):
        column = col.gather(values, inserted)
        columns.append(column if olds is None else pa.concat_arrays([col.gather(olds[i], retracted), column]))
    diff = np.concatenate([np.full(len(retracted), -1, np.int64), np.ones(len(inserted), np.int64)])
    return Delta(col.positional(columns), diff)

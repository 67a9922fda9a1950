"""Operators that process single rows, or have no state: map, cut, union, constant, sort, repeat, arrivals, unnest.

Also changes as rows that are never deleted: with the times of their causes, as records of a topic, as a numbered log.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, product
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.circuit.base import (
    BUCKET_BITS,
    DELETE,
    EPOCH_BITS,
    INSERT,
    UPDATE_DELETE,
    UPDATE_INSERT,
    CauseSpec,
    ChangeLog,
    Changes,
    Records,
)
from watersmeet.circuit.operators import Arrivals, Constant, Cut, Map, Operator, Repeat, Sort, Union, Unnest
from watersmeet.kernel.arrays import columns as col
from watersmeet.kernel.arrays.columns import Positions, pieces
from watersmeet.kernel.arrays.hashing import Hashes, hash_columns, positions_by_hash
from watersmeet.kernel.context import StepContext
from watersmeet.kernel.operators.changelogs import equal_pairs
from watersmeet.kernel.runs.delta import Delta, Sliced, canonical_rows, without_cancelling
from watersmeet.kernel.runs.groups import NEVER, Groups, Ints, greatest, group, key_form, times_us, timestamps
from watersmeet.kernel.runs.run import Run
from watersmeet.kernel.runs.state import State
from watersmeet.values.packing import offsets


def map_rows(op: Map, inputs: Sequence[Delta], state: State, ctx: StepContext) -> Delta:  # noqa: ARG001
    """The projected input rows where the predicate is true and no required column fails, with their order and diffs."""
    delta = inputs[0]
    columns, rows = ctx.evaluator.project(
        delta.columns, ctx.schemas[0], op.exprs, op.schema, op.predicate, ctx.counters, delta.num_rows, op.required
    )
    whole = keeps_all(op, delta.columns.num_columns)
    if rows is not None:
        return Delta(columns, delta.diff[rows], net=delta.net and whole)
    made = Delta(columns, delta.diff, net=delta.net and whole)
    if delta.runs and whole:
        for keys, run in delta.runs.items():
            places = [[i for i, e in enumerate(op.exprs) if e == f"c{k}"] for k in keys]
            for found in islice(product(*places), _MOST_ORDERS):
                made.runs[found] = Run(run.hash, col.positional(made.normal), run.weights, found, pure=run.pure)
    return made


#: A run is known by at most this many combinations of equal columns.
_MOST_ORDERS: Final = 8


def keeps_all(op: Map, width: int) -> bool:
    """Whether the output has all `width` columns of the input, so that different rows stay different."""
    return {f"c{i}" for i in range(width)} <= set(op.exprs)


_NO_ROWS: Final = np.zeros(0, np.int64)


def cut(op: Cut, inputs: Sequence[Delta], state: State, ctx: StepContext) -> Delta:  # noqa: ARG001 - the signature of all steps
    """All changes of the epoch, or none: a backfill reads the history, every other epoch reads later changes."""
    delta = inputs[0]
    return delta if ctx.filling == (op.keeps == "before") else delta.take(_NO_ROWS)


def union(op: Union, inputs: Sequence[Delta], state: State, ctx: StepContext) -> Delta:  # noqa: ARG001
    """The inputs, concatenated."""
    return Delta.concat([d for d in inputs if d.num_rows] or inputs[:1])


def constant(op: Constant, inputs: Sequence[Delta], state: State, ctx: StepContext) -> Delta:  # noqa: ARG001
    """The constant rows in bucket 0 in the state's first epoch; otherwise nothing."""
    if not (ctx.initial and ctx.bucket == 0):
        return Delta.none(op.schema)
    return Delta(ctx.evaluator.rows(op.rows_sql, op.schema, ctx.counters), np.ones(len(op.rows_sql), np.int64))


def sort(op: Sort, inputs: Sequence[Delta], state: State, ctx: StepContext) -> Delta:  # noqa: ARG001 - the signature of all steps
    """The changes, stably sorted by the operator's order."""
    delta = inputs[0]
    keys = [(f"c{i}", "descending" if k.descending else "ascending") for i, k in enumerate(op.order)]
    by = pa.table({f"c{i}": col.flat(delta.columns.column(k.column)) for i, k in enumerate(op.order)})
    order = pc.sort_indices(by, sort_keys=keys).to_numpy()
    return delta.select(range(len(op.schema))).take(order)


def repeat(op: Repeat, inputs: Sequence[Delta], state: State, ctx: StepContext) -> Delta:  # noqa: ARG001 - the signature of all steps
    """The changes with multiplied diffs, not consolidated: if a row's number changes, the output has its old and its
    new rows.
    """
    delta = inputs[0]
    times = col.flat(delta.columns.column(len(op.schema)))
    factor = np.maximum(col.words(times), 0)
    valid = col.validity(times)
    if valid is not None:
        factor = factor * valid
    rows = np.flatnonzero(factor)
    kept = delta.select(range(len(op.schema))).take(rows)
    return Delta(kept.columns, kept.diff * factor[rows])


def arrivals(op: Arrivals, inputs: Sequence[Delta], state: State, ctx: StepContext) -> Delta:  # noqa: ARG001 - the signature of all steps
    """The inserted rows, including those that a later row of the same epoch replaces, so that the bounds of epochs have
    no effect.
    """
    delta = inputs[0]
    kept = delta.take(np.flatnonzero(delta.diff > 0))
    *arrays, seq = (col.flat(c) for c in kept.columns.columns)
    epochs = pa.array(np.full(kept.num_rows, -ctx.epoch))
    return Delta(col.positional([*arrays, epochs, pa.array(-seq.to_numpy(zero_copy_only=False))]), kept.diff)


_COLUMN: Final = re.compile(r"\b([lr])(\d+)\b")


def unnest(op: Unnest, inputs: Sequence[Delta], state: State, ctx: StepContext) -> Delta | Sliced:  # noqa: ARG001
    """The input's rows with their elements, in order; each result has the diff of its row."""
    delta = inputs[0]
    arrays = delta.arrays
    lists = [_Lists(arrays[i]) for i in op.arrays]
    counts = np.maximum.reduce([x.lengths for x in lists])
    limit = ctx.slicing.rows
    if counts.sum() > limit:
        limit = ctx.slicing.rows_of(sum(arrays[i].nbytes for i in op.keep) / max(1, delta.num_rows))
        return Sliced(lambda: _slices(op, delta, arrays, lists, counts, ctx, limit))
    return Delta.concat(list(_slices(op, delta, arrays, lists, counts, ctx, limit)))


def _slices(
    op: Unnest,
    delta: Delta,
    arrays: Sequence[pa.Array],
    lists: Sequence[_Lists],
    counts: Positions,
    ctx: StepContext,
    limit: int,
) -> Iterator[Delta]:
    """The results: rows with elements, at most `limit` at a time; then the rows without elements, if they are
    output.
    """
    met = np.zeros(delta.num_rows, np.bool_)
    for parents, numbers in pieces(np.zeros(delta.num_rows, np.int64), counts, limit):
        rows, made = parents, _made(op, lists, parents, numbers)
        if op.condition is not None:
            kept = np.flatnonzero(_mask(op, arrays, rows, made, ctx))
            rows, made = rows[kept], col.gather_all(made, kept)
        met[rows] = True
        yield _delta(op, delta, arrays, rows, made)
    alone = np.flatnonzero(~met) if op.outer else np.zeros(0, np.int64)
    yield _delta(op, delta, arrays, alone, [pa.nulls(len(alone), f.type.arrow) for f in op.schema[len(op.keep) :]])


class _Lists:
    """An array column: its elements, and for each row where its elements start and how many they are (0 for NULL)."""

    def __init__(self, array: pa.Array) -> None:
        bounds = offsets(array)
        lengths = np.diff(bounds) if len(array) else np.zeros(0, np.int64)
        valid = col.validity(array)
        self.lengths = lengths if valid is None else np.where(valid, lengths, 0)
        self.starts = bounds[:-1] if len(array) else lengths
        self.elements: pa.Array = array.values

    def take(self, parents: Positions, numbers: Positions) -> pa.Array:
        """For each i, element `numbers[i]` (from 0) of row `parents[i]`; NULL if the row has fewer."""
        places = self.starts[parents] + numbers
        short = numbers >= self.lengths[parents]
        if not short.any():
            return col.gather(self.elements, places)
        return self.elements.take(pa.array(np.where(short, 0, places), mask=short))


def _made(op: Unnest, lists: Sequence[_Lists], parents: Positions, numbers: Positions) -> list[pa.Array]:
    made = [x.take(parents, numbers) for x in lists]
    return [*made, pa.array(numbers + 1)] if op.ordinality else made


def _mask(
    op: Unnest, arrays: Sequence[pa.Array], rows: Positions, made: Sequence[pa.Array], ctx: StepContext
) -> col.Mask:
    """The mask of results for which the condition is true; errors count as false. Gathers only the columns that it
    mentions.
    """
    assert op.condition is not None
    mentioned = sorted({(side, int(i)) for side, i in _COLUMN.findall(op.condition)})
    fields = {"l": ctx.schemas[0], "r": op.schema[len(op.keep) :]}
    columns = [col.gather(arrays[i], rows) if side == "l" else made[i] for side, i in mentioned]
    table = pa.Table.from_arrays(columns, names=[f"{side}{i}" for side, i in mentioned])
    schema = tuple(fields[side][i] for side, i in mentioned)
    return ctx.evaluator.mask(table, schema, op.condition, ctx.counters, len(rows))


def _delta(op: Unnest, delta: Delta, arrays: Sequence[pa.Array], rows: Positions, made: Sequence[pa.Array]) -> Delta:
    return Delta(_table(op, arrays, rows, made), delta.diff[rows])


def _table(op: Unnest, arrays: Sequence[pa.Array], rows: Positions, made: Sequence[pa.Array]) -> pa.Table:
    """The table of the results of `rows`. made: the columns that follow the kept ones."""
    fields = op.schema[len(op.keep) :]
    kept = col.gather_all([arrays[i] for i in op.keep], rows)
    return col.positional(
        [
            *kept,
            *[m if m.type.equals(f.type.arrow) else m.cast(f.type.arrow) for m, f in zip(made, fields, strict=True)],
        ]
    )


def changes(op: Changes, inputs: Sequence[Delta], state: State, ctx: StepContext) -> Delta:  # noqa: ARG001 - the signature of all steps
    """The epoch's changes as rows, each with a positive diff."""
    delta = without_cancelling(inputs[0])
    arrays = [col.flat(c) for c in delta.columns.columns]
    went = delta.diff < 0
    at = np.full(len(went), NEVER)
    for number, cause in enumerate(op.causes):
        matches, times = _changes_of(cause, arrays, ~went, inputs[1:], number)
        at = np.maximum(at, _side(cause, arrays, went, matches, times))
    made = [pa.array(went), timestamps(at, pa.timestamp("us"))]
    return Delta(col.positional([*arrays, *made]), np.abs(delta.diff))


def history_keys(op: Operator, number: int, width: int) -> tuple[int, ...]:
    """The columns of input `number` of an operator that makes changes to rows (`Fill.waiting`), so that it may process
    inserted rows with different values in different epochs; empty if it may not. width: that of the input.
    """
    if not isinstance(op, Changes) or not op.causes:
        return tuple(range(width))
    first = op.causes[0]
    match = first.match[: first.partners or None]  # the first columns of all causes: those of the bucket
    return match if not number else tuple(range(len(match)))


def _changes_of(
    cause: CauseSpec, arrays: Sequence[pa.Array], new: col.Mask, sources: Sequence[Delta], number: int
) -> tuple[Sequence[col.Column], Ints]:
    """The changes of one side: the matching columns, and the times."""
    if sources:
        *matches, time = sources[number].columns.columns
        return matches, times_us(time)
    rows = np.flatnonzero(new)
    time = None if cause.time is None else col.gather(arrays[cause.time], rows)
    times = np.full(len(rows), NEVER) if time is None else times_us(time)
    return [col.gather(arrays[i], rows) for i in cause.match], times


def _side(
    cause: CauseSpec, arrays: Sequence[pa.Array], went: col.Mask, matches: Sequence[col.Column], times: Ints
) -> Ints:
    """The time of each row by one of its sides."""
    count = len(went)
    own = np.full(count, NEVER) if cause.time is None else times_us(arrays[cause.time])
    touched = greatest([arrays[i] for i in cause.match], matches, times, count)
    found = np.where(went & (touched != NEVER), touched, np.maximum(own, touched))
    lacking = np.flatnonzero(own == NEVER) if cause.partners else np.zeros(0, np.int64)
    if len(lacking):
        keys = [col.gather(arrays[i], lacking) for i in cause.match[: cause.partners]]
        known = np.logical_and.reduce([_present(k) for k in keys])
        theirs = greatest(keys, matches[: cause.partners], times, len(lacking))
        found[lacking] = np.maximum(found[lacking], np.where(known, theirs, NEVER))
    return found


def _present(array: pa.Array) -> col.Mask:
    valid = col.validity(array)
    return np.ones(len(array), np.bool_) if valid is None else valid


def log(op: ChangeLog, inputs: Sequence[Delta], state: State, ctx: StepContext) -> Delta:  # noqa: ARG001 - the signature of all steps
    """The epoch's changes as numbered rows, in an order that depends only on them."""
    changed = inputs[0]
    arrays = [col.flat(c) for c in changed.columns.columns]
    hashes = hash_columns(arrays, len(changed.diff), as_key=False)
    rows, diff = canonical_rows([col.one_form(a) for a in arrays], changed.diff, hashes, whole_row=True)
    arrays = col.gather_all(arrays, rows)
    deleted = diff < 0
    ops, order = np.where(deleted, DELETE, INSERT), np.arange(len(diff))
    if op.keys:
        keys = [key_form(arrays[k]) for k in op.keys]
        of_row = group(keys, hash_columns(keys, len(diff))).of_row
        both = np.isin(of_row, of_row[deleted]) & np.isin(of_row, of_row[~deleted])
        ops[both] += UPDATE_INSERT - INSERT
        ops[both & deleted] = UPDATE_DELETE
        order = np.lexsort((~deleted, of_row))
    each = np.repeat(order, np.abs(diff)[order])
    numbers = (ctx.epoch << EPOCH_BITS) | (np.arange(len(each)) << BUCKET_BITS) | ctx.bucket
    made = [pa.array(ops[each], pa.int16()), pa.array(numbers, pa.int64())]
    return Delta(col.positional([*col.gather_all(arrays, each), *made]), np.ones(len(each), np.int64))


def records(op: Records, inputs: Sequence[Delta], state: State, ctx: StepContext) -> Delta:  # noqa: ARG001 - the signature of all steps
    """The epoch's records: those with a value, then tombstones."""
    if op.keys is None:
        delta = without_cancelling(inputs[0])
        new = np.flatnonzero(delta.diff > 0)
        arrays = [col.gather(col.flat(c), new) for c in delta.columns.columns]
        return _records(arrays, 0, delta.diff[new], ctx)
    arrays, found = _net(inputs[0], op.keys)
    diff, times = found.diff, found.times
    new = np.flatnonzero(diff > 0)
    deleted, last = _deleted(op, arrays, found)
    columns = []
    for i, array in enumerate(arrays):
        inserted = col.gather(array, found.rows[new])
        kept = col.gather(array, found.rows[deleted]) if i in op.kept else pa.nulls(len(deleted), array.type)
        columns.append(pa.concat_arrays([inserted, kept]))
    if op.time is not None:
        own, caused = times_us(columns[op.time]), np.concatenate([times[new], last])
        columns[op.time] = timestamps(np.where(caused == NEVER, own, caused), columns[op.time].type)
    return _records(columns, len(deleted), np.concatenate([diff[new], np.ones(len(deleted), np.int64)]), ctx)


def _records(columns: Sequence[pa.Array], tombstones: int, diff: Ints, ctx: StepContext) -> Delta:
    """The columns of records, of which the last `tombstones` have no value."""
    deleted = pa.array(np.repeat([False, True], [len(diff) - tombstones, tombstones]))
    numbers = pa.array(np.full(len(diff), ctx.epoch, np.int64))
    return Delta(col.positional([*columns, deleted, numbers]), diff)


@dataclass(frozen=True, eq=False)
class _Net:
    """The rows with a net diff, above 0 or below 0, and their times. groups: those of all rows by the keys of records,
    None if no row is deleted.
    """

    rows: Ints
    diff: Ints
    times: Ints
    groups: Groups | None


def _net(changes: Delta, keys: Sequence[int]) -> tuple[list[pa.Array], _Net]:
    """(the columns of the changes, their net rows).

    Usually a key has one row, or a deleted and an inserted row that differ. Only other rows are sorted and added up.
    """
    *columns, went, at = [col.flat(c) for c in changes.columns.columns]
    left, times = np.asarray(went.to_numpy(zero_copy_only=False), np.bool_), times_us(at)
    if not left.any():
        return columns, _Net(np.arange(len(left)), changes.diff, times, None)
    diff = np.where(left, -changes.diff, changes.diff)
    forms = [key_form(columns[k]) for k in keys]
    groups = group(forms, hash_columns(forms, len(diff)))
    single = np.zeros(len(diff), np.bool_)
    if not any(col.is_interval(c.type) for c in columns):  # they may be equal in different rows
        single[groups.order[groups.starts[groups.lengths == 1]]] = True
        first = groups.order[groups.starts[groups.lengths == 2]]
        second = groups.order[groups.starts[groups.lengths == 2] + 1]
        differs = ~equal_pairs(
            [c.type for c in columns],
            keys,
            len(first),
            lambda i, at: (col.gather(columns[i], first[at]), col.gather(columns[i], second[at])),
        )
        single[first[differs]] = single[second[differs]] = True
    alone, others = groups.order[single[groups.order]], np.flatnonzero(~single)
    if not len(others):
        return columns, _Net(alone, diff[alone], times[alone], groups)
    some = [col.gather(c, others) for c in columns]
    rows, net, sides = _added_up(some, diff[others], times[others])
    return columns, _Net(
        np.concatenate([alone, others[rows]]),
        np.concatenate([diff[alone], net]),
        np.concatenate([times[alone], sides]),
        groups,
    )


def _added_up(columns: Sequence[pa.Array], diff: Ints, times: Ints) -> tuple[Ints, Ints, Ints]:
    """(distinct rows with a net diff, their diffs, for each the greatest time of the equal rows with its sign)."""
    forms = [col.one_form(c) for c in columns]
    hashes = hash_columns(columns, len(diff), as_key=False)
    rows, net = canonical_rows(forms, diff, hashes, whole_row=True)
    sides = times[rows]
    # Only rows that may be equal to others can have their times. Intervals may be equal with different hashes.
    alike = np.ones(len(diff), np.bool_) if any(col.is_interval(c.type) for c in columns) else _repeated(hashes)
    again, causes = np.flatnonzero(alike[rows]), np.flatnonzero(alike)
    wanted = [*(col.gather(c, rows[again]) for c in columns), pa.array(net[again] < 0)]
    known = [*(col.gather(c, causes) for c in columns), pa.array(diff[causes] < 0)]
    sides[again] = greatest(wanted, known, times[causes], len(again))
    return rows, net, sides


def _repeated(hashes: Hashes) -> col.Mask:
    """The mask of hashes that occur more than once."""
    order = positions_by_hash(hashes)
    same = hashes[order[1:]] == hashes[order[:-1]]
    found = np.zeros(len(hashes), np.bool_)
    found[order[1:][same]] = True
    found[order[:-1][same]] = True
    return found


def _deleted(op: Records, arrays: Sequence[pa.Array], net: _Net) -> tuple[Ints, Ints]:
    """(one net row of each key with deletions only, the greatest time of these)."""
    groups = net.groups
    if groups is None:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    of_row = groups.of_row[net.rows]
    stays = np.zeros(groups.count, np.bool_)
    stays[of_row[net.diff > 0]] = True
    rows = np.flatnonzero((net.diff < 0) & ~stays[of_row])
    kept = [col.gather(col.one_form(arrays[k]), net.rows[rows]) for k in op.kept]
    order, _ = canonical_rows(kept, np.ones(len(rows), np.int64), groups.hashes[of_row[rows]], whole_row=False)
    _, first = np.unique(of_row[rows[order]], return_index=True)
    one = rows[order[first]]
    last = np.full(groups.count, NEVER)
    np.maximum.at(last, of_row[rows], net.times[rows])
    return one, last[of_row[one]]

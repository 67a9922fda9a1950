"""Operators that process single rows, or have no state: map, cut, union, constant, sort, repeat, arrivals, unnest."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.circuit.operators import Arrivals, Constant, Cut, Map, Repeat, Sort, Union, Unnest
from watersmeet.kernel.arrays import columns as col
from watersmeet.kernel.arrays.columns import Positions, pieces
from watersmeet.kernel.context import StepContext
from watersmeet.kernel.runs.delta import Delta, Sliced
from watersmeet.kernel.runs.state import State
from watersmeet.values.packing import offsets


def map_rows(op: Map, inputs: Sequence[Delta], state: State, ctx: StepContext) -> Delta:  # noqa: ARG001
    """The projected input rows where the predicate is true and no required column fails, with their order and diffs."""
    delta = inputs[0]
    columns, rows = ctx.evaluator.project(
        delta.columns, ctx.schemas[0], op.exprs, op.schema, op.predicate, ctx.counters, delta.num_rows, op.required
    )
    return Delta(columns, delta.diff if rows is None else delta.diff[rows])


_NO_ROWS: Final = np.zeros(0, np.int64)


def cut(op: Cut, inputs: Sequence[Delta], state: State, ctx: StepContext) -> Delta:  # noqa: ARG001 - the signature of all steps
    """All changes of the epoch, or none: a backfill reads the history, every other epoch reads later changes."""
    delta = inputs[0]
    return delta if ctx.filling == (op.keeps == "before") else delta.take(_NO_ROWS)


def union(op: Union, inputs: Sequence[Delta], state: State, ctx: StepContext) -> Delta:  # noqa: ARG001
    """The inputs, concatenated."""
    return Delta.concat(inputs)


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

"""Window functions: the touched keys' rows are computed before and after the epoch, and what differs comes out.

All that is kept is the input's arrangement by key. A function's values follow from the rows of its key alone: rows have
a total order (`ranking`), and sums are exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from watersmeet.circuit.operators import SortKey, Window, WindowSpec
from watersmeet.kernel.arrays import columns as col
from watersmeet.kernel.arrays.hashing import hash_columns
from watersmeet.kernel.context import StepContext
from watersmeet.kernel.metrics import Counters, too_large
from watersmeet.kernel.runs.cold import near
from watersmeet.kernel.runs.delta import Delta, consolidate
from watersmeet.kernel.runs.groups import Groups, Ints, Touched, group, key_form, rank, touched
from watersmeet.kernel.runs.matching import Arranged
from watersmeet.kernel.runs.run import Run
from watersmeet.kernel.runs.state import State
from watersmeet.kernel.windows import (
    UNFRAMED,
    Places,
    Rows,
    aggregate_of,
    frame_of,
    framed,
    positional_value,
)
from watersmeet.values.types import Schema

_POSITIONAL = ("first_value", "last_value", "nth_value")


def step(op: Window, inputs: Sequence[Arranged], state: State, ctx: StepContext) -> Delta:  # noqa: ARG001
    """The changes of the touched keys' rows with their window values; no row comes with both signs."""
    (arranged,) = inputs
    change = arranged.change
    if not change.num_rows:
        return Delta.none(op.schema)
    keys = [key_form(change.arrays[i]) for i in op.keys]
    groups = group(keys, hash_columns(keys, change.num_rows))
    rows = touched(
        _entries(near(arranged.runs_before, lambda: groups.hashes), groups, op.keys),
        (groups.of_row, change.delta()),
        groups.hashes,
    )
    return _difference(op, rows, _values(op, rows, ctx), ctx.counters)


def _entries(runs: Sequence[Run], groups: Groups, keys: tuple[int, ...]) -> list[tuple[Ints, Delta]]:
    """All entries of the groups: (groups, rows)."""
    found = []
    for run in runs:
        for owner, row in groups.find(run.hash):
            same = np.flatnonzero(groups.same(owner, [run.arrays[k] for k in keys], row))
            rows = row[same]
            found.append((owner[same], Delta(col.positional(col.gather_all(run.arrays, rows)), run.diff[rows])))
    return found


@dataclass(frozen=True, eq=False)
class _Values:
    """Window values of copies of rows: first those of the rows before the epoch, then those after it.

    rows: of each copy its row; the copies of a row stand together. numbers: which of its copies it is. split: how many
    copies there were before. columns: one for each function. large: for each, where its value is too large, so that it
    is NULL.
    """

    rows: Ints
    numbers: Ints
    split: int
    columns: list[pa.Array]
    large: list[col.Mask]


def _values(op: Window, rows: Touched, ctx: StepContext) -> _Values:
    copies = [_copies(np.arange(len(counts)), counts) for counts in (rows.before, rows.after)]
    starts = [np.cumsum(counts) - counts for counts in (rows.before, rows.after)]
    split = len(copies[0][0])
    columns: list[pa.Array | None] = [None] * len(op.functions)
    large = [np.zeros(split + len(copies[1][0]), np.bool_) for _ in op.functions]
    for order in dict.fromkeys(f.order for f in op.functions):
        ranking = rank(rows.groups, rows.arrays, order)
        sides = [_copies(ranking.order, counts[ranking.order]) for counts in (rows.before, rows.after)]
        # The first copy of the first row of some peers that is there leads them.
        peers = np.cumsum(ranking.leads)
        of_place = np.empty(len(peers), np.int64)
        of_place[ranking.order] = peers
        at = np.concatenate(
            [start[r] + n + offset for start, (r, n), offset in zip(starts, sides, (0, split), strict=True)]
        )
        members = np.concatenate([r for r, _ in sides])
        groups = rows.groups[members]
        partition = np.concatenate([groups[:split], groups[split:] + (int(rows.groups.max(initial=-1)) + 1)])
        leads = np.ones(len(members), np.bool_)
        leads[1:] = (np.diff(of_place[members]) != 0) | (np.diff(partition) != 0)
        placed = Rows(Places(partition, leads), col.gather_all(rows.arrays, members))
        back = np.empty(len(at), np.int64)
        back[at] = np.arange(len(at))
        for i, function in enumerate(op.functions):
            if function.order == order:
                kind = op.schema[len(rows.arrays) + i].type.arrow
                found, is_large = _value(function, placed, order, ctx.schemas[0], kind)
                columns[i] = col.gather(found, back)
                large[i] = is_large[back]
    found_columns = [c for c in columns if c is not None]
    return _Values(
        np.concatenate([r for r, _ in copies]), np.concatenate([n for _, n in copies]), split, found_columns, large
    )


def _copies(order: Ints, counts: Ints) -> tuple[Ints, Ints]:
    """Each row of `order` as often as `counts` says: (row, which copy it is)."""
    starts = np.cumsum(counts) - counts
    return np.repeat(order, counts), np.arange(int(counts.sum())) - np.repeat(starts, counts)


def _value(
    function: WindowSpec, rows: Rows, order: Sequence[SortKey], schema: Schema, kind: pa.DataType
) -> tuple[pa.Array, col.Mask]:
    none = np.zeros(rows.places.count, np.bool_)
    if function.function in UNFRAMED:
        return UNFRAMED[function.function](function, rows).cast(kind), none
    frame = frame_of(function.frame, rows.places, rows.arrays, order)
    if function.function in _POSITIONAL:
        return positional_value(function, rows.arrays[function.arguments[0]], frame), none
    argument = function.arguments[0] if function.arguments else None
    op = aggregate_of(function.function, argument, function.filter)
    return framed(op, rows.arrays, schema, frame, kind)


def _difference(op: Window, rows: Touched, values: _Values, counters: Counters) -> Delta:
    """Copies that are not the same before and after. Copy k before is compared with copy k after."""
    split, count = values.split, len(values.rows)
    pairs = np.minimum(rows.before, rows.after)
    paired = np.flatnonzero(values.numbers < pairs[values.rows])
    old, new = paired[paired < split], paired[paired >= split]
    same = col.rows_equal(
        [col.gather(c, old) for c in values.columns], [col.gather(c, new) for c in values.columns], len(old)
    )
    moved = np.ones(count, np.bool_)
    moved[old[same]] = moved[new[same]] = False
    places = np.flatnonzero(moved)
    for position, large in enumerate(values.large, len(rows.arrays)):
        if failed := int(large[places[places >= split]].sum()):
            counters.failed(position, "", too_large(op.schema[position].type), failed)
    arrays = [*col.gather_all(rows.arrays, values.rows[places]), *col.gather_all(values.columns, places)]
    delta = Delta(col.positional(arrays), np.where(places < split, -1, 1))
    several = (rows.before > 1) | (rows.after > 1)
    return consolidate(delta) if several.any() else delta

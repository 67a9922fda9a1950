"""Records: changes as a log, for topics that a query writes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from watersmeet.circuit.operators import Records
from watersmeet.kernel.arrays import columns as col
from watersmeet.kernel.arrays.hashing import hash_columns
from watersmeet.kernel.context import StepContext
from watersmeet.kernel.runs.cancel import without_cancelling
from watersmeet.kernel.runs.causes import NEVER, greatest, times_us, timestamps
from watersmeet.kernel.runs.delta import Delta
from watersmeet.kernel.runs.groups import Groups, Ints, group, key_form
from watersmeet.kernel.runs.order import canonical_rows
from watersmeet.kernel.runs.state import State


def step(op: Records, inputs: Sequence[Delta], state: State, ctx: StepContext) -> Delta:  # noqa: ARG001 - the signature of all steps
    """The epoch's records: those with a value, then those without."""
    if op.keys is None:
        delta = without_cancelling(inputs[0])
        came = np.flatnonzero(delta.diff > 0)
        arrays = [col.gather(col.flat(c), came) for c in delta.columns.columns]
        return _records(arrays, 0, delta.diff[came], ctx)
    arrays, diff, times = _net(inputs[0])
    came = np.flatnonzero(diff > 0)
    gone, last = _gone(op, arrays, diff, times)
    columns = [
        pa.concat_arrays([col.gather(a, came), col.gather(a, gone) if i in op.kept else pa.nulls(len(gone), a.type)])
        for i, a in enumerate(arrays)
    ]
    if op.time is not None:
        own, caused = times_us(columns[op.time]), np.concatenate([times[came], last])
        columns[op.time] = timestamps(np.where(caused == NEVER, own, caused), columns[op.time].type)
    return _records(columns, len(gone), np.concatenate([diff[came], np.ones(len(gone), np.int64)]), ctx)


def _records(columns: Sequence[pa.Array], gone: int, diff: Ints, ctx: StepContext) -> Delta:
    """The columns of records, of which the last `gone` are without value."""
    deleted = pa.array(np.repeat([False, True], [len(diff) - gone, gone]))
    numbers = pa.array(np.full(len(diff), ctx.epoch, np.int64))
    return Delta(col.positional([*columns, deleted, numbers]), diff)


def _net(changes: Delta) -> tuple[list[pa.Array], Ints, Ints]:
    """The rows of which more came than went (diff above 0) or fewer, and the times of that."""
    *columns, went, at = [col.flat(c) for c in changes.columns.columns]
    left, times = np.asarray(went.to_numpy(zero_copy_only=False), np.bool_), times_us(at)
    if not left.any():
        return columns, changes.diff, times
    diff = np.where(left, -changes.diff, changes.diff)
    forms = [col.one_form(c) for c in columns]
    rows, net = canonical_rows(forms, diff, hash_columns(columns, len(diff), as_key=False), whole_row=True)
    arrays = col.gather_all(columns, rows)
    sides = greatest([*arrays, pa.array(net < 0)], [*columns, pa.array(left)], times, len(rows))
    return arrays, net, sides


def _gone(op: Records, arrays: Sequence[pa.Array], diff: Ints, times: Ints) -> tuple[Ints, Ints]:
    """A row of each key of which rows only went, and the greatest time of these."""
    if op.keys is None or not (diff < 0).any():
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    keys = [key_form(arrays[k]) for k in op.keys]
    groups = group(keys, hash_columns(keys, len(diff)))
    stays = np.zeros(groups.count, np.bool_)
    stays[groups.of_row[diff > 0]] = True
    rows = np.flatnonzero((diff < 0) & ~stays[groups.of_row])
    kept = [col.gather(col.one_form(arrays[k]), rows) for k in op.kept]
    order, _ = canonical_rows(kept, np.ones(len(rows), np.int64), groups.hashes[groups.of_row[rows]], whole_row=False)
    _, first = np.unique(groups.of_row[rows[order]], return_index=True)
    one = rows[order[first]]
    return one, _last(groups, rows, times)[groups.of_row[one]]


def _last(groups: Groups, rows: Ints, times: Ints) -> Ints:
    """Of each group the greatest time of those of its rows that are among `rows`."""
    found = np.full(groups.count, NEVER)
    np.maximum.at(found, groups.of_row[rows], times[rows])
    return found

"""Logs of changes: the rows that come and go with the time of their cause, and the records of a topic."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from watersmeet.circuit.operators import CauseSpec, Changes, Records
from watersmeet.kernel.arrays import columns as col
from watersmeet.kernel.arrays.hashing import hash_columns
from watersmeet.kernel.context import StepContext
from watersmeet.kernel.runs.delta import Delta, without_cancelling
from watersmeet.kernel.runs.groups import NEVER, Groups, Ints, greatest, group, key_form, times_us, timestamps
from watersmeet.kernel.runs.order import canonical_rows
from watersmeet.kernel.runs.state import State


def changes(op: Changes, inputs: Sequence[Delta], state: State, ctx: StepContext) -> Delta:  # noqa: ARG001 - the signature of all steps
    """The epoch's rows, with a positive diff each."""
    delta = without_cancelling(inputs[0])
    arrays = [col.flat(c) for c in delta.columns.columns]
    went = delta.diff < 0
    at = np.full(len(went), NEVER)
    for number, cause in enumerate(op.causes):
        matches, times = _changes_of(cause, arrays, ~went, inputs[1:], number)
        at = np.maximum(at, _side(cause, arrays, went, matches, times))
    made = [pa.array(went), timestamps(at, pa.timestamp("us"))]
    return Delta(col.positional([*arrays, *made]), np.abs(delta.diff))


def _changes_of(
    cause: CauseSpec, arrays: Sequence[pa.Array], came: col.Mask, told: Sequence[Delta], number: int
) -> tuple[Sequence[col.Column], Ints]:
    """What changed of a side: the columns that match, and the times."""
    if told:
        *matches, time = told[number].columns.columns
        return matches, times_us(time)
    rows = np.flatnonzero(came)
    time = None if cause.time is None else col.gather(arrays[cause.time], rows)
    times = np.full(len(rows), NEVER) if time is None else times_us(time)
    return [col.gather(arrays[i], rows) for i in cause.match], times


def _side(
    cause: CauseSpec, arrays: Sequence[pa.Array], went: col.Mask, matches: Sequence[col.Column], times: Ints
) -> Ints:
    """The time of each row of one of its sides."""
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


def records(op: Records, inputs: Sequence[Delta], state: State, ctx: StepContext) -> Delta:  # noqa: ARG001 - the signature of all steps
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

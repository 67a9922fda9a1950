"""Sliding windows over a stream: each row is output once, with the values of its window functions.

Rows arrive in the order of the functions and are never deleted, so the window of a row is complete when it arrives. The
state has the rows that later windows still need, and only the columns that functions read. For the keys of an epoch,
these rows and the new ones are ordered together; only the new ones are output. Sums are differences of running sums of
exact integers that begin again in each epoch, so they don't drift, and no value depends on how rows were cut into
epochs (`arrays.stretches`). EXP_AVG adds up the rows of each window separately.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Final, Literal

import numpy as np
import pyarrow as pa

from watersmeet.circuit.operators import SlidingWindow, SortKey, WindowFrame, WindowSpec
from watersmeet.kernel.accumulators import true_rows
from watersmeet.kernel.arrays import columns as col
from watersmeet.kernel.arrays.hashing import hash_columns, order_keys
from watersmeet.kernel.arrays.stretches import Ints, Stretch
from watersmeet.kernel.context import StepContext
from watersmeet.kernel.metrics import too_large
from watersmeet.kernel.operators.window import aggregate_of, framed, nth
from watersmeet.kernel.runs.cleaning import Best, Retention
from watersmeet.kernel.runs.cold import near
from watersmeet.kernel.runs.delta import Delta, canonical_rows, ones
from watersmeet.kernel.runs.groups import Groups, group, key_form, rank
from watersmeet.kernel.runs.run import Run, make_run
from watersmeet.kernel.runs.state import State
from watersmeet.kernel.runs.trace import Trace
from watersmeet.values import watermarks
from watersmeet.values.types import Schema

#: The trace of the rows that later windows need.
ROWS: Final = "rows"

#: The approximate number of pairs of a row and a row of its window that are created at a time.
_PAIRS: Final = 1 << 20


def step(op: SlidingWindow, inputs: Sequence[Delta], state: State, ctx: StepContext) -> Delta:
    """The new rows with their values, ordered by key and then by the functions' order."""
    delta, trace = inputs[0], state.trace(op.id, ROWS)
    bound = watermarks.value(op.retain, ctx.watermarks)
    retention = None if bound is None or op.time is None else Retention(op.kept.index(op.time), bound)
    if not delta.num_rows:
        if retention is not None:
            retention.clean(trace)
        return Delta.none(op.schema)
    arrays = [col.one_form(c) for c in delta.columns.columns]
    places, new = _placed(op, arrays, delta.diff, trace)
    _take_in(op, trace, new, retention)
    made = []
    for number, function in enumerate(op.functions, len(arrays)):
        kind = op.schema[number].type.arrow
        found, large = places.value(function, ctx.schemas[0], kind)
        if failed := int(large.sum()):
            ctx.counters.failed(number, "", too_large(op.schema[number].type), failed)
        made.append(found)
    rows = places.rows
    return Delta(col.positional([*col.gather_all(arrays, rows), *made]), ones(len(rows)))


def _take_in(op: SlidingWindow, trace: Trace, new: Run, retention: Retention | None) -> None:
    if op.depth is not None:
        order = [SortKey(op.kept.index(k.column), not k.descending, not k.nulls_first) for k in op.functions[0].order]
        Best(tuple(order), op.depth).take_in(trace, new)
    elif retention is not None:
        retention.take_in(trace, new)
    else:
        trace.append(new)


def _placed(op: SlidingWindow, arrays: Sequence[pa.Array], diff: Ints, trace: Trace) -> tuple[Places, Run]:
    """(the places of the kept rows and the new rows of the changed keys, the new rows as a run for the state)."""
    keys = [key_form(arrays[i]) for i in op.keys]
    hashes = hash_columns(keys, len(diff))
    groups, rows, canonical = group(keys, hashes), np.arange(len(diff)), None
    order = tuple(replace(k, column=op.kept.index(k.column)) for k in op.functions[0].order)
    local = tuple(map(op.kept.index, op.keys))
    owners, kept, weights = _carried(op, groups, local, [arrays[i] for i in op.kept], trace)
    narrow = _beside(kept, [arrays[i] for i in op.kept])
    ranking = rank(np.concatenate([owners, groups.of_row]), narrow, order)
    if not ranking.leads.all():
        # Rows that are equal in the order are ordered by their values, then in the canonical order of whole rows.
        canonical = rows, diff = canonical_rows(arrays, diff, hashes, whole_row=False)
        narrow = _beside(kept, [col.gather(arrays[i], rows) for i in op.kept])
        ranking = rank(np.concatenate([owners, groups.of_row[rows]]), narrow, order)
    copies = np.concatenate([weights, diff])[ranking.order]
    assert (copies > 0).all(), "a row of a sliding window was deleted"
    members, partition = ranking.order, ranking.groups
    if (copies > 1).any():
        members, partition = np.repeat(members, copies), np.repeat(partition, copies)
    by_hash = groups.order if canonical is None else np.argsort(groups.of_row[rows], kind="stable")
    run = make_run(
        hashes[rows[by_hash]],
        col.gather_all([a.slice(len(owners)) for a in narrow], by_hash),
        np.asarray(diff)[by_hash],
        local,
    )
    return Places(op.kept, narrow, members, partition, len(owners), rows), run


def _carried(
    op: SlidingWindow, groups: Groups, keys: Sequence[int], new: Sequence[pa.Array], trace: Trace
) -> tuple[Ints, list[pa.Array], Ints]:
    """The rows of the state with keys of the epoch: their groups, columns, and numbers of copies.

    A range omits rows that are too old for all new rows, which the state may still have.
    """
    owners, tables, weights = [np.zeros(0, np.int64)], [], [np.zeros(0, np.int64)]
    oldest = None if op.time is None else _oldest(op, new)
    for run in near(trace.runs, lambda: groups.hashes):
        for owner, row in groups.find(run.hash):
            there = groups.same(owner, [run.arrays[k] for k in keys], row)
            if oldest is not None:
                there &= col.microseconds(run.arrays[op.kept.index(op.time)])[0][row] >= oldest
            found = np.flatnonzero(there)
            owners.append(owner[found])
            tables.append(col.gather_all(run.arrays, row[found]))
            weights.append(run.diff[row[found]])
    columns = [pa.concat_arrays([t[i] for t in tables]) if tables else a.slice(0, 0) for i, a in enumerate(new)]
    return np.concatenate(owners), columns, np.concatenate(weights)


def _oldest(op: SlidingWindow, new: Sequence[pa.Array]) -> int:
    """The least time at which a window of the new rows begins."""
    begins = []
    for frame in dict.fromkeys(f.frame for f in op.functions):
        assert frame.value is not None
        if frame.low is not None:
            begins.append(int(col.microseconds(new[op.kept.index(frame.low)])[0].min()))
        else:
            assert frame.start is not None
            begins.append(int(col.microseconds(new[op.kept.index(frame.value)])[0].min()) + frame.start)
    return min(begins)


def _beside(kept: Sequence[pa.Array], new: Sequence[pa.Array]) -> list[pa.Array]:
    return [pa.concat_arrays([k, n]) if len(k) else n for k, n in zip(kept, new, strict=True)]


class Places:
    """The rows of some partitions, partition after partition in the order of the functions; some of them are new.

    kept: the positions of the columns in the operator's input. columns: those of the rows; the first `carried` rows are
    from the state, the others are new. members: the row at each place. partition: the partition of each place. origins:
    for each new row, its row in the input.
    """

    def __init__(
        self,
        kept: Sequence[int],
        columns: Sequence[pa.Array],
        members: Ints,
        partition: Ints,
        carried: int,
        origins: Ints,
    ) -> None:
        self._kept = kept
        self._columns = columns
        self._members = members
        self._partition = partition
        self._here = np.flatnonzero(members >= carried)
        self._carried = carried
        self._origins = origins
        self._arrays: dict[int, pa.Array] = {}
        self._frames: dict[WindowFrame, Stretch] = {}

    @property
    def rows(self) -> Ints:
        """The row of the input for each result."""
        return self._origins[self._members[self._here] - self._carried]

    def value(self, spec: WindowSpec, schema: Schema, kind: pa.DataType) -> tuple[pa.Array, col.Mask]:
        """The function's value for each new row, and the mask of values that are NULL because they are too large."""
        low, high = self._frame(spec.frame)
        none = np.zeros(len(low), np.bool_)
        if spec.function == "lag":
            return self._lag(spec, low, high), none
        if spec.function == "exp_avg":
            return self._decayed(spec, low, high), none
        if spec.function in ("first_value", "last_value", "nth_value"):
            number = {"first_value": 1, "last_value": -1}.get(spec.function, spec.number)
            return self._nth(spec, low, high, number), none
        argument = spec.arguments[0] if spec.arguments else None
        if spec.distinct and argument is not None:
            return pa.array(self._distinct(argument, spec.filter, low, high)).cast(kind), none
        used = [p for p in (argument, spec.filter) if p is not None] or [self._kept[0]]
        at = {p: i for i, p in enumerate(used)}
        call = aggregate_of(
            spec.function,
            None if argument is None else at[argument],
            None if spec.filter is None else at[spec.filter],
        )
        arrays = [self._array(p) for p in used]
        return framed(call, arrays, tuple(schema[p] for p in used), [(low, high)], kind)

    def _array(self, position: int) -> pa.Array:
        """A column of the input at all places."""
        if position not in self._arrays:
            self._arrays[position] = col.gather(self._columns[self._kept.index(position)], self._members)
        return self._arrays[position]

    # -- frames -----------------------------------------------------------------------------------------------------

    @cached_property
    def _first(self) -> Ints:
        """The first place of the partition of each new row."""
        starts = np.flatnonzero(np.diff(self._partition, prepend=-1))
        lengths = np.diff(starts, append=len(self._partition))
        return np.repeat(starts, lengths)[self._here]

    def _frame(self, frame: WindowFrame) -> Stretch:
        """The window of each new row."""
        if frame not in self._frames:
            low, high = self._first, self._here + 1
            if frame.mode == "rows":
                low = low if frame.start is None else np.maximum(low, self._here + frame.start)
                high = high + (frame.end or 0)
            elif frame.value is not None:
                values = self._times(frame.value)
                if frame.low is not None:
                    low = self._reached(values, self._times(frame.low)[self._here], "left")
                elif frame.start is not None:
                    low = self._reached(values, values[self._here] + frame.start, "left")
                if frame.end:
                    high = self._reached(values, values[self._here] + frame.end, "right")
            self._frames[frame] = low, np.maximum(high, low)
        return self._frames[frame]

    def _times(self, position: int) -> Ints:
        return col.microseconds(self._array(position))[0]

    def _reached(self, values: Ints, targets: Ints, side: Literal["left", "right"]) -> Ints:
        """For each new row, the first place of its partition whose value is not below the target (with side "right",
        above it).
        """
        least, owner = int(values.min()), self._partition[self._here]
        span = int(values.max()) - least + 2
        if span * (int(self._partition[-1]) + 1) >= 1 << 62:
            known = col.distinct(values)
            values, targets = np.searchsorted(known, values), np.searchsorted(known, targets, side)
            side, least, span = "left", 0, len(known) + 1
        words = self._partition * span + (values - least)
        offsets = np.clip(targets - least, -1 if side == "right" else 0, span - 1)
        return np.asarray(np.searchsorted(words, owner * span + offsets, side))

    # -- functions --------------------------------------------------------------------------------------------------

    def _nth(self, spec: WindowSpec, low: Ints, high: Ints, number: int) -> pa.Array:
        """The value of row `number` (from 1) of each window; a negative number is counted from the end."""
        values = self._array(spec.arguments[0])
        valid = col.validity(values) if spec.skips_nulls else None
        if valid is not None:
            total = np.concatenate(([0], np.cumsum(valid)))
            low, high, values = total[low], total[high], col.gather(values, np.flatnonzero(valid))
            if not len(values):
                return pa.nulls(len(low), values.type)
        return nth(values, [(low, high)], abs(number), backwards=number < 0)

    def _lag(self, spec: WindowSpec, low: Ints, high: Ints) -> pa.Array:
        """The value of the row that is `number` rows earlier, or the default if that is outside of the window."""
        found = self._nth(spec, low, self._here if spec.number else high, -max(1, spec.number))
        if len(spec.arguments) == 1:
            return found
        default = col.gather(self._array(spec.arguments[1]), self._here)
        values = self._array(spec.arguments[0])
        valid = col.validity(values) if spec.skips_nulls else None
        total = np.arange(len(values) + 1) if valid is None else np.concatenate(([0], np.cumsum(valid)))
        outside = total[self._here] - total[low] < spec.number
        both = pa.concat_arrays([found, default])
        return col.gather(both, np.where(outside, len(found), 0) + np.arange(len(found)))

    def _distinct(self, position: int, condition: int | None, low: Ints, high: Ints) -> Ints:
        """The number of different values of each window, which is that of the values without an equal one before them
        in it.
        """
        values = key_form(self._array(position))
        valid = col.validity(values)
        weights = np.ones(len(values), np.bool_) if valid is None else valid
        if condition is not None:
            weights = weights & true_rows(self._array(condition))
        rows = np.flatnonzero(weights)
        words, owners = order_keys(values)[rows], self._partition[rows]
        order = np.lexsort((words, owners))
        same = (np.diff(words[order]) == 0) & (np.diff(owners[order]) == 0)
        previous = np.zeros(len(rows), np.int64)  # the place among `rows` plus 1; 0 if there is none
        previous[order[1:][same]] = order[:-1][same] + 1
        total = np.concatenate(([0], np.cumsum(weights)))
        return _count_up_to(previous, total[low], total[high])

    def _decayed(self, spec: WindowSpec, low: Ints, high: Ints) -> pa.Array:
        """The average of each window, weighted so that weights halve with each half-life before the row."""
        argument, times = self._array(spec.arguments[0]), self._times(spec.arguments[1])
        valid = col.validity(argument)
        values = np.asarray(argument.cast(pa.float64()).fill_null(0.0).to_numpy(zero_copy_only=False))
        sums, weights = np.zeros(len(low)), np.zeros(len(low))
        for begin, end in _cut(high - low):
            owner, row = col.expanded(low[begin:end], (high - low)[begin:end])
            weight = np.exp2((times[row] - times[self._here[begin:end]][owner]) / spec.number)
            weight = weight if valid is None else weight * valid[row]
            sums[begin:end] = np.bincount(owner, values[row] * weight, end - begin)
            weights[begin:end] = np.bincount(owner, weight, end - begin)
        known = weights > 0
        with np.errstate(invalid="ignore"):
            return pa.array(np.where(known, sums / np.where(known, weights, 1.0), 0.0), mask=~known)


def _count_up_to(values: Ints, low: Ints, high: Ints) -> Ints:
    """For each pair, how many of values[low:high] are at most `low`. values: from 0 to their number.

    Uses a wavelet matrix: bit by bit, values with a 0 move to the front, and the stretch follows its half.
    """
    found, bound = np.zeros(len(low), np.int64), low + 1
    for bit in range(int(len(values) + 1).bit_length() - 1, -1, -1):
        zero = values >> bit & 1 == 0
        zeros = np.concatenate(([0], np.cumsum(zero)))
        one = bound >> bit & 1 == 1
        found += np.where(one, zeros[high] - zeros[low], 0)
        low, high = (np.where(one, zeros[-1] + p - zeros[p], zeros[p]) for p in (low, high))
        values = np.concatenate([values[zero], values[~zero]])
    return found


def _cut(counts: Ints) -> Iterator[tuple[int, int]]:
    """Ranges of rows with about `_PAIRS` pairs each; the pairs of a row stay together."""
    part = (np.cumsum(counts) - counts) // _PAIRS
    begins = np.flatnonzero(np.diff(part, prepend=-1))
    yield from zip(begins.tolist(), np.append(begins[1:], len(counts)).tolist(), strict=True)

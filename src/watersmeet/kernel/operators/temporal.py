"""Process-time temporal joins: each left row is joined with the right rows of its key at the time of its arrival.


Within an epoch the right side changes first: if R is its content and dR its change, new left rows are joined with R +
dR, and dR has no further effect. So rows that arrive together match, whatever the bounds of epochs.

Append-only left rows need no state. If left rows can be deleted, a memo keeps the matches of each, so that they can be
retracted (`Memo`).

Left rows that wait for their first match are kept until the end of the first epoch in which a right row matches them
(`UnmatchedBuffer`), and are then output once with all matching right rows. So the waiting rows are those without a
match at the end of any epoch since they arrived: a right row that is inserted and deleted within one epoch does not
count.

Answers of look-ups can be reused for a set time, even if the right side changes (Timeplus, "Multi-JOINs and ASOF
JOINs", "Dictionary", "Direct JOIN with Dictionary"). A key without rows is looked up each time. A trace of the join
contains the answers with the time of the epoch of their look-up. Within an epoch all rows of a key have the same
answer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from watersmeet.circuit.operators import InputColumn, TemporalJoin
from watersmeet.kernel.arrays import columns as col
from watersmeet.kernel.arrays.columns import microseconds
from watersmeet.kernel.context import StepContext
from watersmeet.kernel.joins import JoinOutput, JoinSide, PairOutput, Production
from watersmeet.kernel.operators.arrange import unkept
from watersmeet.kernel.operators.join import add_pairs, production
from watersmeet.kernel.runs.cleaning import Retention
from watersmeet.kernel.runs.cold import near
from watersmeet.kernel.runs.delta import Delta, Diffs, Sliced, without_cancelling
from watersmeet.kernel.runs.matching import Arranged, Probe, near_changes, parts, probes
from watersmeet.kernel.runs.run import Run, arrange
from watersmeet.kernel.runs.state import State
from watersmeet.kernel.runs.trace import PIECE_ROWS
from watersmeet.values.watermarks import NOW

#: The trace of a memo.
MEMO: Final = "memo"

Ints = npt.NDArray[np.int64]


class Memo:
    """The memo of a temporal join in one epoch.

    Each of its rows has the left columns that identify a left row, the output columns of the right row, whether there
    was a match, the epoch of the look-up, and the number of equal left rows in that epoch (copies); its diff is copies
    times the right row's diff. Of equal left rows the oldest are retracted first. width: the number of left columns.
    """

    def __init__(self, op: TemporalJoin, state: State, width: int, epoch: int) -> None:
        self._op = op
        self._trace = state.trace(op.id, MEMO)
        self._left = op.identity or tuple(range(width))
        self._width = len(self._left)
        self._epoch = epoch
        self._right = [c for c in op.output if c.input == 1]
        self._found = self._width + len(self._right)
        self._changes: list[Delta] = []

    def remember(self, rows: Run, look_up: Callable[[Delta, PairOutput], None]) -> None:
        """Looks up the consolidated inserted left rows."""
        if not rows.num_rows:
            return
        copies = pa.array(rows.diff, pa.int64())
        met = _Met(self._op, rows.columns.schema, self._left, self._right)
        look_up(Delta(col.positional([*rows.arrays, copies]), np.ones(rows.num_rows, np.int64)), met)
        for found, output in ((True, met.pairs), (False, met.alone)):
            delta = output.delta()
            if delta.num_rows:
                arrays = list(delta.arrays)
                times = np.asarray(arrays.pop(self._width))
                self._add(
                    arrays,
                    np.full(delta.num_rows, found),
                    np.full(delta.num_rows, self._epoch),
                    times,
                    delta.diff * times,
                )

    def take_back(self, rows: Run) -> None:
        """Retracts the matches of the consolidated deleted left rows, as often as each is deleted."""
        if len(self._left) < rows.columns.num_columns:
            rows = arrange(rows.delta().select(self._left), tuple(range(self._width)))
        for probe in probes([rows], exact=False):
            deleted = -probe.sums()
            found = probe.content(parts(near(self._trace.runs, lambda: probe.hashes)))  # noqa: B023
            if found is not None:
                self._shrink(*found, deleted)

    def changes(self) -> Delta:
        """The output's changes. When this returns, the memo contains them."""
        if not self._changes:
            return Delta.none(self._op.schema)
        change = Delta.concat(self._changes)
        self._trace.append(arrange(change, tuple(range(self._width))))
        if self._op.join_kind == "inner":
            change = change.take(np.flatnonzero(np.asarray(change.arrays[self._found])))
        places = {InputColumn(0, c): i for i, c in enumerate(self._left)}
        places |= {c: self._width + i for i, c in enumerate(self._right)}
        return without_cancelling(change.select([places[c] for c in self._op.output]))

    def _shrink(self, groups: Ints, arrays: list[pa.Array], diff: Diffs, deleted: Ints) -> None:
        """Removes `deleted[g]` copies from the look-ups of group g, the oldest first."""
        epochs, copies = np.asarray(arrays[self._found + 1]), np.asarray(arrays[self._found + 2])
        order = np.lexsort((epochs, groups))
        starts = np.ones(len(order), np.bool_)
        starts[1:] = (groups[order][1:] != groups[order][:-1]) | (epochs[order][1:] != epochs[order][:-1])
        firsts = order[starts]  # one row of each look-up
        until = np.cumsum(copies[firsts])
        group_starts = np.concatenate(([True], groups[firsts][1:] != groups[firsts][:-1]))
        base = np.repeat(
            (until - copies[firsts])[group_starts], np.diff(np.append(np.flatnonzero(group_starts), len(firsts)))
        )
        before = until - copies[firsts] - base
        taken = np.clip(deleted[groups[firsts]] - before, 0, copies[firsts])
        left = np.empty(len(order), np.int64)
        left[order] = (copies[firsts] - taken)[np.cumsum(starts) - 1]
        touched = np.flatnonzero(left != copies)
        kept = np.flatnonzero((left != copies) & (left > 0))
        for at, times, signed in ((touched, copies, -diff), (kept, left, diff // copies * left)):
            if len(at):
                some = col.gather_all(arrays[: self._found + 2], at)
                self._changes.append(Delta(col.positional([*some, pa.array(times[at])]), signed[at]))

    def _add(self, arrays: list[pa.Array], found: col.Mask, epochs: Ints, copies: Ints, diff: Diffs) -> None:
        self._changes.append(
            Delta(col.positional([*arrays, pa.array(found), pa.array(epochs), pa.array(copies)]), diff)
        )


class _Met:
    """Receives left rows with their copies and right columns, for pairs and for rows without match."""

    def __init__(self, op: TemporalJoin, left: pa.Schema, kept: Sequence[int], right: list[InputColumn]) -> None:
        of_right = {c: f.type.arrow for c, f in zip(op.output, op.schema, strict=True)}
        types = [*(left.types[i] for i in kept), pa.int64(), *(of_right[c] for c in right)]
        output = [*(InputColumn(0, i) for i in (*kept, len(left))), *right]
        self.pairs, self.alone = JoinOutput(output, types), JoinOutput(output, types)

    def add(
        self,
        left: Run | None,
        left_rows: col.Positions | None,
        right: Run | None,
        right_rows: col.Positions | None,
        diff: Diffs | None = None,
    ) -> None:
        """See `JoinOutput.add`."""
        (self.alone if right_rows is None else self.pairs).add(left, left_rows, right, right_rows, diff)


#: The trace of the rows that wait, by the left keys.
WAITING: Final = "waiting"

#: A function that looks up left rows in the current right side: it adds pairs and rows without match, and returns the
#: rows that can't match.
LookUp = Callable[[Delta, PairOutput], Delta]


class UnmatchedBuffer:
    """The waiting rows of a look-up join in one epoch. Only rows with keys that can match wait.

    left: the Arrow types of left rows.
    """

    def __init__(self, op: TemporalJoin, state: State, left: list[pa.DataType], out: JoinOutput) -> None:
        self._op = op
        self._trace = state.trace(op.id, WAITING)
        self._left = left
        self._out = out
        self._changes: list[Delta] = []

    def look_up_again(self, right: Arranged, look_up: LookUp) -> None:
        """Looks up the waiting rows with keys of new right rows."""
        if not self._trace.runs:
            return
        for probe in right.probes:
            if not (probe.run.diff > 0).any():
                continue
            found = probe.content(parts(near(self._trace.runs, lambda: probe.hashes)))  # noqa: B023
            if found is None:
                continue
            _, arrays, diff = found
            rows = Delta(col.positional(arrays), diff)
            met = _Split(self._out, self._left)
            look_up(rows, met)
            self._changes += [rows.negated(), met.alone.delta()]

    def look_up(self, rows: Delta, look_up: LookUp) -> Delta:
        """Looks up new rows. Those without match wait; a left join first outputs them with NULLs."""
        met = _Split(self._out, self._left, shown=self._op.join_kind == "left")
        null_keys = look_up(rows, met)
        self._changes.append(met.alone.delta())
        return null_keys

    def keep(self) -> None:
        """Adds the changes to the state."""
        changes = [c for c in self._changes if c.num_rows]
        if changes:
            self._trace.append(arrange(Delta.concat(changes), self._op.left_keys))


class _Split:
    """Passes on pairs, and collects the left rows without match. shown: also pass on those."""

    def __init__(self, out: JoinOutput, left: list[pa.DataType], *, shown: bool = False) -> None:
        self._out = out
        self._shown = shown
        self.alone = JoinOutput([InputColumn(0, i) for i in range(len(left))], left)

    def add(
        self,
        left: Run | None,
        left_rows: col.Positions | None,
        right: Run | None,
        right_rows: col.Positions | None,
        diff: Diffs | None = None,
    ) -> None:
        """See `JoinOutput.add`."""
        if right_rows is not None or self._shown:
            self._out.add(left, left_rows, right, right_rows, diff)
        if right_rows is None:
            self.alone.add(left, left_rows, None, None, diff)


#: The trace of answers, with the right side's columns and the time of the look-up.
ANSWERS: Final = "answers"

_Found = list[tuple[list[pa.Array], npt.NDArray[np.int64]]]


def answered(op: TemporalJoin, left: Arranged, right: Arranged, state: State, now_us: int) -> Arranged:
    """The answers to the new rows `left`, to be used instead of `right`.

    When this returns, the state contains them. right: all its changes precede the new rows. now_us: the time of the
    epoch.
    """
    assert op.ttl_us is not None
    bound_us = now_us - op.ttl_us + 1  # an answer expires exactly at the end of its time
    trace = state.trace(op.id, ANSWERS)
    known = trace.runs
    serving: _Found = []
    asked: _Found = []
    for probe in left.probes:
        served = _served(probe, known, bound_us, serving)
        found = probe.content(parts(near(right.runs_before, lambda: probe.hashes)))  # noqa: B023 - asked at once
        if found is not None:
            groups, arrays, diff = found
            rows = np.flatnonzero(~served[groups])
            asked.append((col.gather_all(arrays, rows), diff[rows]))
    none = right.change.slice(0, 0)
    fresh = _one(asked, none.delta())
    if fresh.num_rows:
        moment = pa.array(np.full(fresh.num_rows, now_us), pa.int64()).cast(pa.timestamp("us"))
        dated = Delta(col.positional([*fresh.arrays, moment]), fresh.diff)
        Retention(len(fresh.arrays), bound_us).take_in(trace, arrange(dated, op.right_keys))
    run = arrange(_one([*serving, *asked], none.delta()), op.right_keys)
    return Arranged(
        none, right.null_keys.take(np.zeros(0, np.int64)), lambda: (run,) if run.num_rows else (), exact=right.exact
    )


def _served(probe: Probe, known: Sequence[Run], bound_us: int, serving: _Found) -> npt.NDArray[np.bool_]:
    """The mask of the probe's groups whose answer has not expired; adds these answers to `serving`."""
    served = np.zeros(probe.num_groups, np.bool_)
    found = probe.content(parts(near(known, lambda: probe.hashes)))
    if found is not None:
        groups, arrays, diff = found
        values, _ = microseconds(arrays[-1])
        rows = np.flatnonzero(values >= bound_us)
        served[groups[rows]] = True
        serving.append((col.gather_all(arrays[:-1], rows), diff[rows]))
    return served


def _one(found: _Found, none: Delta) -> Delta:
    return Delta.concat([none, *(Delta(col.positional(arrays), diff) for arrays, diff in found)])


def step(op: TemporalJoin, inputs: Sequence[Any], state: State, ctx: StepContext) -> Delta | Sliced:
    """The changes of the output: current matches of new or waiting left rows, and earlier matches of deleted ones.


    Raises TooManyRowsError before the first look-up; then the changed state must be discarded.
    """
    delta: Delta = inputs[0]
    right: Arranged = inputs[1]
    if not delta.num_rows and not (op.waits and right.change.num_rows):
        return Delta.none(op.schema)
    if not op.memo and not op.waits:
        left, still = _sides(op, delta, right, state, ctx)
        return _production(op, left, still, ctx).made(ctx.slicing, left, still)
    if not op.memo:
        out = JoinOutput(op.output, [f.type.arrow for f in op.schema])
        _wait(op, delta, right, out, state, ctx)
        return out.delta()
    # An update that does not change a row has no effect, because rows are consolidated before they are looked up.
    rows = arrange(delta, tuple(range(delta.columns.num_columns)))
    memo = Memo(op, state, len(ctx.schemas[0]), ctx.epoch)
    came = np.flatnonzero(rows.diff > 0)
    every = replace(op, join_kind="left")  # also remembers rows without a match
    memo.remember(rows.take(came), lambda some, met: _look_up(every, some, right, met, state, ctx))
    memo.take_back(rows.take(np.flatnonzero(rows.diff < 0)))
    return memo.changes()


def _wait(op: TemporalJoin, delta: Delta, right: Arranged, out: JoinOutput, state: State, ctx: StepContext) -> None:
    """Adds the matches of new and waiting left rows."""
    every = replace(op, join_kind="left")  # rows without a match wait, even in an inner join

    def look_up(rows: Delta, met: PairOutput) -> Delta:
        left, still = near_changes(unkept(rows, op.left_keys, op.null_safe, right), (False, False))
        add_pairs(every, JoinSide(left, -1), JoinSide(still, 0), met, ctx)
        return left.net_null_keys

    unmatched = UnmatchedBuffer(op, state, [f.type.arrow for f in ctx.schemas[0]], out)
    unmatched.look_up_again(right, look_up)
    if delta.num_rows:
        null_keys = unmatched.look_up(delta, look_up)
        if op.join_kind == "left":
            _add_alone(null_keys, out)  # these rows can't match, so they need not wait
    unmatched.keep()


def _look_up(op: TemporalJoin, delta: Delta, right: Arranged, out: PairOutput, state: State, ctx: StepContext) -> None:
    """Adds the matches of the rows of `delta`, and in a left join the rows without match."""
    left, still = _sides(op, delta, right, state, ctx)
    for found in _production(op, left, still, ctx).find(PIECE_ROWS):
        out.add(*found)
    if op.join_kind == "left":
        _add_alone(left.net_null_keys, out)


def _sides(
    op: TemporalJoin, delta: Delta, right: Arranged, state: State, ctx: StepContext
) -> tuple[Arranged, Arranged]:
    """Left rows and the arrangement for their look-up."""
    left, still = near_changes(unkept(delta, op.left_keys, op.null_safe, right), (False, False))
    if op.clock:
        return left, _clock(op, still, ctx.watermarks[NOW])
    if (
        op.ttl_us is not None and (now_us := ctx.watermarks.get(NOW)) is not None
    ):  # history has no times of arrival, so each of its rows is looked up
        still = answered(op, left, still, state, now_us)
    elif still.complete and len(left.probes) == 1:
        still = Arranged(still.change, still.null_keys, partial(_current, left.probes[0], still), exact=still.exact)
    return left, still


def _current(probe: Probe, right: Arranged) -> tuple[Run, ...]:
    return tuple(probe.current(right.old))


def _clock(op: TemporalJoin, right: Arranged, now_us: int) -> Arranged:
    """The row that a look-up of the clock finds."""
    none = right.change.slice(0, 0)
    row = pa.array([now_us], pa.int64()).cast(pa.timestamp("us"))
    run = arrange(Delta(col.positional([row]), np.ones(1, np.int64)), op.right_keys)
    return Arranged(none, right.null_keys.take(np.zeros(0, np.int64)), lambda: (run,), exact=right.exact)


def _production(op: TemporalJoin, left: Arranged, still: Arranged, ctx: StepContext) -> Production:
    return production(op, JoinSide(left, -1 if op.join_kind == "left" else 0), JoinSide(still, 0), ctx)


def _add_alone(rows: Delta, out: PairOutput) -> None:
    if rows.num_rows:
        run = arrange(rows, ())
        out.add(run, np.arange(run.num_rows), None, None, run.diff)

"""What left rows of a temporal join met when they came, so that it can be taken back when they go."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from watersmeet.circuit.operators import InputColumn, TemporalJoin
from watersmeet.kernel.arrays import columns as col
from watersmeet.kernel.joins.joined import JoinOutput, PairOutput
from watersmeet.kernel.runs.cancel import without_cancelling
from watersmeet.kernel.runs.cold import near
from watersmeet.kernel.runs.delta import Delta
from watersmeet.kernel.runs.diffs import Diffs
from watersmeet.kernel.runs.matching import parts, probes
from watersmeet.kernel.runs.run import Run, arrange
from watersmeet.kernel.runs.state import State

#: The trace of a memo.
MEMO: Final = "memo"

Ints = npt.NDArray[np.int64]


class Memo:
    """The memo of a temporal join in one epoch.

    A row of it has the left columns that identify a left row, the right columns that come out, whether something was
    met, the epoch of the look-up, and how many equal left rows that epoch brought (copies); its diff is copies times
    the right row's. Of equal left rows the ones that came first go first. width: the number of left columns.
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
        """Looks up the consolidated left rows that came."""
        if not rows.num_rows:
            return
        copies = pa.array(rows.diff, pa.int64())
        met = _Met(self._op, rows.columns.schema, self._left, self._right)
        look_up(Delta(col.positional([*rows.arrays, copies]), np.ones(rows.num_rows, np.int64)), met)
        for found, output in ((True, met.pairs), (False, met.alone)):
            delta = output.delta()
            if delta.num_rows:
                arrays = delta.arrays
                times = np.asarray(arrays.pop(self._width))
                self._add(
                    arrays,
                    np.full(delta.num_rows, found),
                    np.full(delta.num_rows, self._epoch),
                    times,
                    delta.diff * times,
                )

    def take_back(self, rows: Run) -> None:
        """Takes back what the consolidated left rows that go met, as often as each of them goes."""
        if len(self._left) < rows.columns.num_columns:
            rows = arrange(rows.delta().select(self._left), tuple(range(self._width)))
        for probe in probes([rows], exact=False):
            gone = -probe.sums()
            found = probe.content(parts(near(self._trace.runs, lambda: probe.hashes)))  # noqa: B023
            if found is not None:
                self._shrink(*found, gone)

    def changes(self) -> Delta:
        """The output's changes. The memo has them all when this returns."""
        if not self._changes:
            return Delta.none(self._op.schema)
        change = Delta.concat(self._changes)
        self._trace.append(arrange(change, tuple(range(self._width))))
        if self._op.join_kind == "inner":
            change = change.take(np.flatnonzero(np.asarray(change.arrays[self._found])))
        places = {InputColumn(0, c): i for i, c in enumerate(self._left)}
        places |= {c: self._width + i for i, c in enumerate(self._right)}
        return without_cancelling(change.select([places[c] for c in self._op.output]))

    def _shrink(self, groups: Ints, arrays: list[pa.Array], diff: Diffs, gone: Ints) -> None:
        """Takes `gone[g]` copies from the look-ups of group g, the oldest first."""
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
        taken = np.clip(gone[groups[firsts]] - before, 0, copies[firsts])
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
    """Takes left rows, their copies and the right columns: of pairs, and of rows that met nothing."""

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
        """As `JoinOutput.add`."""
        (self.alone if right_rows is None else self.pairs).add(left, left_rows, right, right_rows, diff)

"""Left rows of a look-up join that have met nothing so far, and what they meet when something comes.

A row waits from the epoch in which it came until the end of the first in which a right row fits it. Then it comes out
with all right rows that fit at that time, once, and waits no more. So at the end of every epoch the waiting rows are
those that have met nothing at the end of any epoch since they came: a right row that comes and goes within one epoch
was never there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import pyarrow as pa

from watersmeet.circuit.operators import InputColumn, TemporalJoin
from watersmeet.kernel.arrays import columns as col
from watersmeet.kernel.joins.joined import JoinOutput, PairOutput
from watersmeet.kernel.runs.arranged import Arranged
from watersmeet.kernel.runs.cold import near
from watersmeet.kernel.runs.delta import Delta
from watersmeet.kernel.runs.diffs import Diffs
from watersmeet.kernel.runs.matching import parts
from watersmeet.kernel.runs.run import Run, arrange
from watersmeet.kernel.runs.state import State

#: The trace of the rows that wait, by the left keys.
WAITING: Final = "waiting"

#: Looks left rows up as the right side is now: adds pairs, and rows that meet nothing; gives back those that can't meet
#: any.
LookUp = Callable[[Delta, PairOutput], Delta]


class UnmatchedBuffer:
    """The waiting rows of a look-up join in one epoch. Only rows with keys that can match wait.

    left: Arrow types of left rows.
    """

    def __init__(self, op: TemporalJoin, state: State, left: list[pa.DataType], out: JoinOutput) -> None:
        self._op = op
        self._trace = state.trace(op.id, WAITING)
        self._left = left
        self._out = out
        self._changes: list[Delta] = []

    def look_up_again(self, right: Arranged, look_up: LookUp) -> None:
        """Looks up the waiting rows with whose keys right rows came."""
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
        """Looks up rows that came; those that meet nothing wait, in a left join after they came out with NULLs."""
        met = _Split(self._out, self._left, shown=self._op.join_kind == "left")
        null_keys = look_up(rows, met)
        self._changes.append(met.alone.delta())
        return null_keys

    def keep(self) -> None:
        """Puts the changes into the state."""
        changes = [c for c in self._changes if c.num_rows]
        if changes:
            self._trace.append(arrange(Delta.concat(changes), self._op.left_keys))


class _Split:
    """Hands pairs on, and keeps the left rows that meet nothing. shown: these are handed on as well."""

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
        """As `JoinOutput.add`."""
        if right_rows is not None or self._shown:
            self._out.add(left, left_rows, right, right_rows, diff)
        if right_rows is None:
            self.alone.add(left, left_rows, None, None, diff)

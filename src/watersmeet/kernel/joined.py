"""What joins are made of: their two sides and their output."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa

from watersmeet.circuit.operators import Join
from watersmeet.kernel import columns as col
from watersmeet.kernel.delta import Delta, Diffs, without_cancelling
from watersmeet.kernel.matching import Probe, parts, probes
from watersmeet.kernel.run import Run


@dataclass(frozen=True, eq=False)
class JoinSide:
    """One input. change: its rows that can match, arranged. loose: those with a NULL in the
    key, if they come out.

    old: pure runs of the content before. exact: see `Probe`. sign: of the rows whose presence
    depends on partners: +1 if those with partners come out (semi), -1 if those without (outer, anti),
    0 if partners don't matter.
    """

    change: Run
    loose: Delta | None
    old: list[Run]
    exact: bool
    sign: int

    @cached_property
    def changes(self) -> list[Run]:
        """The changes as pure runs."""
        return parts([self.change])

    @cached_property
    def probes(self) -> list[Probe]:
        """The keys of the changes."""
        return probes(self.changes, exact=self.exact)

    @property
    def new(self) -> list[Run]:
        """Pure runs of the content after."""
        return [*self.old, *self.changes]


def present(partners: Diffs, sign: int) -> Diffs:
    """1 where a row with so many partners comes out, else 0."""
    return ((partners > 0) if sign > 0 else (partners <= 0)).astype(np.int64)


class JoinOutput:
    """Collects output rows: pairs, or rows of one side with NULLs for the other."""

    def __init__(self, op: Join) -> None:
        self._columns = [(name[0] == "l", int(name[1:])) for name in op.output]
        self._types = [f.type.arrow for f in op.schema]
        self._tables: list[pa.Table] = []
        self._diffs: list[Diffs] = []

    def add(self, left: Run | None, left_rows: col.Positions | None, right: Run | None,
            right_rows: col.Positions | None, diff: Diffs | None = None) -> None:
        """Adds pairs, or rows of the side that is not None. diff: by default the product of the rows' diffs."""
        rows = left_rows if left_rows is not None else right_rows
        assert rows is not None
        if not len(rows):
            return
        if diff is None:
            diff = np.ones(len(rows), np.int64)
            for run, at in ((left, left_rows), (right, right_rows)):
                if run is not None and not run.all_ones:
                    diff = diff * run.diff[at]

        def column(is_left: bool, position: int, part: slice) -> pa.Array | None:
            run, at = (left, left_rows) if is_left else (right, right_rows)
            return None if run is None or at is None else col.gather(run.arrays[position], at[part])
        self._add(column, diff)

    def add_loose(self, left: Delta | None, right: Delta | None) -> None:
        """Adds rows that can't have partners."""
        delta = left if left is not None else right
        if delta is None:
            return

        def column(is_left: bool, position: int, part: slice) -> pa.Array | None:
            side = left if is_left else right
            return None if side is None else side.arrays[position][part]
        self._add(column, delta.diff)

    def delta(self) -> Delta:
        """What was added, without rows that cancel each other."""
        if not self._tables:
            return Delta(col.positional([pa.array([], t) for t in self._types]), np.zeros(0, np.int64))
        return without_cancelling(Delta(pa.concat_tables(self._tables), np.concatenate(self._diffs)))

    def _add(self, column: Callable[[bool, int, slice], pa.Array | None], diff: Diffs) -> None:
        parts_left = [slice(0, len(diff))]
        while parts_left:
            part = parts_left.pop(0)
            try:
                found = [column(is_left, position, part) for is_left, position in self._columns]
            except pa.ArrowInvalid:  # strings beyond 2 GiB in one array
                middle = (part.start + part.stop) // 2
                if middle == part.start:
                    raise
                parts_left[:0] = [slice(part.start, middle), slice(middle, part.stop)]
                continue
            n = part.stop - part.start
            arrays = [pa.nulls(n, t) if a is None else a for a, t in zip(found, self._types, strict=True)]
            self._tables.append(col.positional(arrays))
            self._diffs.append(diff[part])

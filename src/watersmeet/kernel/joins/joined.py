"""What joins are made of: their two sides and their output."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
import pyarrow as pa

from watersmeet.circuit.operators import ArrivalJoin, InputColumn, Join, TemporalJoin
from watersmeet.kernel.arrays import columns as col
from watersmeet.kernel.runs.delta import Delta, Sliced, Slicing, without_cancelling
from watersmeet.kernel.runs.matching import Arranged, Probe
from watersmeet.kernel.runs.order import Diffs, joined, ones
from watersmeet.kernel.runs.run import Run

#: What a join finds, in pieces: pairs (left run, its rows, right run, its rows), or rows of the side that is not None.
#: Then the diffs; None for the products of the rows' diffs.
Found = tuple[Run | None, col.Positions | None, Run | None, col.Positions | None, Diffs | None]

#: Rows of any width are held at once up to so many: to ask for their width would cost more than it may save.
FEW_ROWS: Final = 1 << 14


@dataclass(frozen=True, eq=False)
class JoinSide:
    """One input of a join, as its arrangement gives it.

    sign: of the rows whose presence depends on partners: +1 if those with partners come out (semi), -1 if those
    without (outer, anti), 0 if partners don't matter.
    """

    arranged: Arranged
    sign: int

    @property
    def null_keys(self) -> Delta | None:
        """The changes of rows that can't match, if such rows come out."""
        return self.arranged.net_null_keys if self.sign < 0 and self.arranged.null_keys.num_rows else None

    @property
    def changes(self) -> list[Run]:
        """The changes of the others, as pure runs."""
        return self.arranged.changes

    @property
    def probes(self) -> list[Probe]:
        """The keys of the changes."""
        return self.arranged.probes

    @property
    def exact(self) -> bool:
        """See `Probe`."""
        return self.arranged.exact

    @property
    def old(self) -> list[Run]:
        """Pure runs of the content before."""
        return self.arranged.old

    @property
    def new(self) -> list[Run]:
        """Pure runs of the content after."""
        return self.arranged.new


def present(partners: Diffs, sign: int) -> Diffs:
    """1 where a row with so many partners comes out, else 0."""
    return ((partners > 0) if sign > 0 else (partners <= 0)).astype(np.int64)


def is_revised(op: Join | TemporalJoin) -> bool:
    """Whether rows of before come out, or go, because their partners come or go."""
    return not isinstance(op, ArrivalJoin)


class PairOutput(Protocol):
    """Takes what a join finds."""

    def add(
        self,
        left: Run | None,
        left_rows: col.Positions | None,
        right: Run | None,
        right_rows: col.Positions | None,
        diff: Diffs | None = None,
    ) -> None:
        """Adds pairs, or rows of the side that is not None. diff: by default the product of the rows' diffs."""
        ...


class JoinOutput:
    """Collects output rows: pairs, or rows of one side with NULLs for the other.

    output: which columns, of `types`.
    """

    def __init__(self, output: Sequence[InputColumn], types: Sequence[pa.DataType]) -> None:
        self._columns = [(c.input == 0, c.column) for c in output]
        self._types = types
        self._tables: list[pa.Table] = []
        self._diffs: list[Diffs] = []
        self.num_rows = 0
        """The rows that were added."""

    def add(
        self,
        left: Run | None,
        left_rows: col.Positions | None,
        right: Run | None,
        right_rows: col.Positions | None,
        diff: Diffs | None = None,
    ) -> None:
        """Adds pairs, or rows of the side that is not None. diff: by default the product of the rows' diffs."""
        rows = left_rows if left_rows is not None else right_rows
        assert rows is not None
        if not len(rows):
            return
        if diff is None:
            diff = ones(len(rows))
            for run, at in ((left, left_rows), (right, right_rows)):
                if run is not None and not run.all_ones:
                    diff = diff * run.diff[at]

        def columns(is_left: bool, positions: list[int], part: slice) -> list[pa.Array | None]:
            run, at = (left, left_rows) if is_left else (right, right_rows)
            if run is None or at is None:
                return [None] * len(positions)
            return col.gather_all([run.arrays[p] for p in positions], at[part])

        self._add(columns, diff)

    def add_loose(self, left: Delta | None, right: Delta | None) -> None:
        """Adds rows that can't have partners."""
        delta = left if left is not None else right
        if delta is None:
            return

        def columns(is_left: bool, positions: list[int], part: slice) -> list[pa.Array | None]:
            side = left if is_left else right
            return [None if side is None else side.arrays[p][part] for p in positions]

        self._add(columns, delta.diff)

    def delta(self) -> Delta:
        """What was added, without rows that cancel each other."""
        if not self._tables:
            return Delta(col.positional([pa.array([], t) for t in self._types]), np.zeros(0, np.int64))
        return without_cancelling(Delta(pa.concat_tables(self._tables), joined(self._diffs)))

    def _add(self, columns: Callable[[bool, list[int], slice], list[pa.Array | None]], diff: Diffs) -> None:
        """columns(is left side, positions, rows) gives a side's columns, None for those that are all NULL."""
        waiting = [slice(0, len(diff))]
        while waiting:
            part = waiting.pop(0)
            try:
                sides = {
                    is_left: iter(columns(is_left, [p for side, p in self._columns if side == is_left], part))
                    for is_left in (True, False)
                }
            except pa.ArrowInvalid:  # strings beyond 2 GiB in one array
                middle = (part.start + part.stop) // 2
                if middle == part.start:
                    raise
                waiting[:0] = [slice(part.start, middle), slice(middle, part.stop)]
                continue
            n = part.stop - part.start
            found = [next(sides[is_left]) for is_left, _ in self._columns]
            arrays = [pa.nulls(n, t) if a is None else a for a, t in zip(found, self._types, strict=True)]
            self._tables.append(col.positional(arrays))
            self._diffs.append(diff[part])
            self.num_rows += n


@dataclass(frozen=True)
class Production:
    """The output of a join whose size is known, before it is made.

    rows: how many there are at most. find: finds them, at most so many at a time. null_keys:
    rows of both sides that can't have partners, and come out. output, types: as in `JoinOutput`.
    """

    rows: int
    find: Callable[[int], Iterable[Found]]
    null_keys: tuple[Delta | None, Delta | None]
    output: Sequence[InputColumn]
    types: Sequence[pa.DataType]

    def made(self, slicing: Slicing, left: Arranged, right: Arranged) -> Delta | Sliced:
        """The changes: at once, or in slices if they are larger than one; rows that cancel each other are left out
        within a slice.
        """
        if self.rows <= min(FEW_ROWS, slicing.rows):
            limit = slicing.rows
        else:
            limit = slicing.rows_of(_row_bytes(self.output, left, right))
        if self.rows > limit:
            return Sliced(lambda: self._slices(limit))
        out = JoinOutput(self.output, self.types)
        for found in self.find(limit):
            out.add(*found)
        self._add_loose(out)
        return out.delta()

    def _slices(self, limit: int) -> Iterator[Delta]:
        out = JoinOutput(self.output, self.types)
        for found in self.find(limit):
            out.add(*found)
            if out.num_rows >= limit:
                yield out.delta()
                out = JoinOutput(self.output, self.types)
        self._add_loose(out)
        yield out.delta()

    def _add_loose(self, out: JoinOutput) -> None:
        left, right = self.null_keys
        out.add_loose(left, None)
        out.add_loose(None, right)


def _row_bytes(output: Sequence[InputColumn], left: Arranged, right: Arranged) -> float:
    """About the bytes of a row of the output, from those of the rows that it is made of."""
    total = 8.0  # the diff
    for number, side in enumerate((left, right)):
        runs = side.changes or side.old
        rows = sum(r.num_rows for r in runs)
        for i in (o.column for o in output if o.input == number):
            total += sum(r.columns.column(i).nbytes for r in runs) / max(1, rows)
    return total

"""SQLstream's joins in plain Python, row by row and moment by moment, from the rules alone: SQLstream's document and
its rulings.

Nothing is computed from formulas about pairs of rows: the windows' contents are looked at for one moment after the
other. Times are whole numbers, and whatever happens in between two of them does not exist.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

#: Values of a row; what a join gives has those of the left row and then those of the right row.
Values = tuple
Condition = Callable[[Values, Values], bool]


@dataclass
class Stream:
    """Rows in the order in which they came, and how far its time has come (None: no row yet).

    rejected: rows that were earlier than what was before them.
    """

    rows: list[tuple[int, Values]] = field(default_factory=list)
    clock: int | None = None
    rejected: int = 0

    def insert(self, time: int, values: Values) -> None:
        if self.clock is not None and time < self.clock:
            self.rejected += 1
            return
        self.rows.append((time, values))
        self.clock = time

    def bound(self, time: int) -> None:
        """The clock moves without a row."""
        self.clock = time if self.clock is None else max(self.clock, time)

    def where(self, condition: Callable[[Values], bool]) -> Stream:
        """What a filter leaves; the rows that it drops move the clock."""
        return Stream([r for r in self.rows if condition(r[1])], self.clock)


@dataclass(frozen=True)
class Range:
    """RANGE BETWEEN start PRECEDING AND end PRECEDING: both ends belong to it (SS-25).

    Without OVER start is 0 (SS-26).
    """

    start: int
    end: int = 0

    def content(self, stream: Stream, now: int) -> set[int]:
        return {i for i, (time, _) in enumerate(stream.rows) if now - self.start <= time <= now - self.end}

    def entered(self, stream: Stream, row: int) -> int | None:
        return stream.rows[row][0] + self.end


@dataclass(frozen=True)
class Rows:
    """ROWS BETWEEN start PRECEDING AND end PRECEDING, counted from the newest row at the end of the moment (SS-41)."""

    start: int
    end: int = 0

    def content(self, stream: Stream, now: int) -> set[int]:
        newest = sum(time <= now for time, _ in stream.rows) - 1
        return set(range(max(0, newest - self.start), newest - self.end + 1))

    def entered(self, stream: Stream, row: int) -> int | None:
        later = row + self.end
        return stream.rows[later][0] if later < len(stream.rows) else None


@dataclass(frozen=True)
class Unit:
    """ORDER BY FLOOR(ROWTIME TO unit) RANGE CURRENT ROW: rows stay until the next unit begins (SS-65)."""

    size: int

    def content(self, stream: Stream, now: int) -> set[int]:
        return {i for i, (time, _) in enumerate(stream.rows) if time <= now and time // self.size == now // self.size}

    def entered(self, stream: Stream, row: int) -> int | None:
        return stream.rows[row][0]


Window = Range | Rows | Unit

#: How many values a row of each side has, for those that are NULL.
Widths = tuple[int, int]


def join(left: tuple[Stream, Window], right: tuple[Stream, Window], kind: str, on: Condition, widths: Widths) -> Stream:
    """The join of two windowed streams, as a stream: its clock is the lower one (SS-31), its rows come by rowtime
    (SS-36).

    Of each moment what is in the join of the contents and was not before (SS-23), as soon as the clock is there
    (SS-32). A row that
    has no partner when it enters its window comes with NULLs once the clock is past that (SS-33), and its later
    partners all the same.
    """
    (one, one_window), (other, other_window) = left, right
    if one.clock is None or other.clock is None:
        return Stream()
    clock = min(one.clock, other.clock)
    times = [time for stream in (one, other) for time, _ in stream.rows]
    out: list[tuple[int, Values]] = []
    seen: set[tuple[int, int]] = set()
    for now in range(min(times, default=clock), clock + 1):
        here, there = one_window.content(one, now), other_window.content(other, now)
        found = {(i, j) for i in here for j in there if on(one.rows[i][1], other.rows[j][1])}
        out += [(now, one.rows[i][1] + other.rows[j][1]) for i, j in sorted(found - seen)]
        seen |= found
        if now == clock:
            break
        if kind in ("left", "full"):
            new = [i for i in range(len(one.rows)) if one_window.entered(one, i) == now]
            out += [(now, one.rows[i][1] + (None,) * widths[1]) for i in new if i not in {i for i, _ in found}]
        if kind in ("right", "full"):
            new = [j for j in range(len(other.rows)) if other_window.entered(other, j) == now]
            out += [(now, (None,) * widths[0] + other.rows[j][1]) for j in new if j not in {j for _, j in found}]
    return Stream(out, clock)


def grouped(stream: Stream, unit: int | None) -> Stream:
    """Of rows (k, n) the sum of n by k and unit of time, when the unit is over, with its end as rowtime; unit None: of
    one moment, once it is past (SS-28, SS-30).
    """
    sums: dict[tuple[int, Values], int] = {}
    for time, (k, n) in stream.rows:
        end = time if unit is None else (time // unit + 1) * unit
        sums[end, (k,)] = sums.get((end, (k,)), 0) + n
    clock = stream.clock
    over = {
        key: n
        for key, n in sums.items()
        if clock is not None and (key[0] <= clock if unit is not None else key[0] < clock)
    }
    return Stream(sorted(((end, (*k, n)) for (end, k), n in over.items()), key=lambda r: r[0]), clock)


def merged(one: Stream, other: Stream) -> Stream:
    """The rows of both in the order of their times, up to the lower clock (SS-31, SS-36)."""
    if one.clock is None or other.clock is None:
        return Stream()
    clock = min(one.clock, other.clock)
    rows = [r for r in one.rows + other.rows if r[0] <= clock]
    return Stream(sorted(rows, key=lambda r: r[0]), clock)


def with_table(stream: Stream, table: Sequence[Values], kind: str, on: Condition, width: int) -> Stream:
    """Each row with the rows of the table as it was when the query started (SS-53); kind: inner, or left: the stream is
    kept (SS-58).
    """
    out = []
    for time, values in stream.rows:
        met = [values + row for row in table if on(values, row)]
        out += [(time, row) for row in met or ([values + (None,) * width] if kind == "left" else [])]
    return Stream(out, stream.clock)


def with_kept_table(
    stream: Stream, unit: int, table: Sequence[Values], kind: str, on: Condition, widths: Widths
) -> Stream:
    """A stream whose window empties every `unit`, and a table that is kept: kind right, or full (SS-65, SS-66).

    When a unit ends, the rows of the table that met none of its rows come, with the time of its end; a unit without
    rows gives none.
    """
    out = with_table(stream, table, "left" if kind == "full" else "inner", on, widths[1])
    for number in sorted({time // unit for time, _ in stream.rows}):
        end = (number + 1) * unit
        if stream.clock is not None and end <= stream.clock:
            batch = [values for time, values in stream.rows if time // unit == number]
            out.rows += [
                (end, (None,) * widths[0] + row) for row in table if not any(on(values, row) for values in batch)
            ]
    return out

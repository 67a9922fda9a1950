"""Streams with their windows: from when until when a row of a stream takes part in a join.

SQLstream, "JOIN clause", "Working With Streaming Joins", "Example with ROWS", "Using JOINs to Enrich Stream Data"
(SS-10, SS-24, SS-41, SS-65); rulings D-001-13, D-001-19. A row enters at its rowtime, or later if the window ends
before the current row. With RANGE it stays for a length of time. With ROWS it stays until too many rows have followed
it; the time of that is a lead of the rowtime. With units (`ORDER BY FLOOR(ROWTIME TO HOUR)`) it stays until the next
unit begins. Only the end of a moment counts: a row that enters and leaves in the same moment was never in the window.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlglot import exp

from watersmeet.algebra.nodes import Column, Node, Project, SortKey, Window
from watersmeet.algebra.ordered import WindowCall, WindowFrame
from watersmeet.algebra.scalars import Scalar
from watersmeet.algebra.timewindows import interval_of
from watersmeet.algebra.trees import read
from watersmeet.algebra.watermarks import INFINITY
from watersmeet.binder.clauses.newest import arrivals
from watersmeet.binder.context.rules import Binding
from watersmeet.binder.dialects.sqlstream.join_windows import JoinWindow, RangeWindow, RowsWindow
from watersmeet.expressions.rounding import after, floor
from watersmeet.types import TIMESTAMP


@dataclass(frozen=True)
class Framed:
    """A stream as a side of a join.

    relation: its rows, with the columns that the window needs.
    time: their rowtime.
    window: as written.
    enters: when a row enters; infinity: not yet.
    leaves: the first moment after it has left; None: `window` is a RANGE that says how long it stays.
    """

    relation: Node
    time: Scalar
    window: JoinWindow
    enters: Scalar
    leaves: Scalar | None = None


def framed(stream: Node, time: Scalar, window: JoinWindow, binding: Binding) -> Framed:
    """The stream `stream` with the rowtime `time` in `window`."""
    if isinstance(window, RangeWindow):
        return Framed(stream, time, window, Scalar(moved(time, window.end_us), TIMESTAMP, nullable=False))
    if time.column is None:
        rowtime = _column("_rowtime", binding)
        stream, time = Project(stream, (*stream.columns, rowtime), (*map(read, stream.columns), time)), read(rowtime)
    if isinstance(window, RowsWindow):
        return _by_rows(stream, time, window, binding)
    gone = _column("_leaves", binding)
    over = after(floor(time.expression, window.unit), window.unit)
    with_end = Project(
        stream, (*stream.columns, gone), (*map(read, stream.columns), Scalar(over, TIMESTAMP, nullable=False))
    )
    return Framed(with_end, time, window, time, read(gone))


def _by_rows(stream: Node, time: Scalar, window: RowsWindow, binding: Binding) -> Framed:
    """By order of arrival. Rows of a join have none, so those with equal rowtimes are ordered by their values."""
    found = arrivals(stream, binding)
    rows, age = found if found is not None else (stream, ())
    order = (SortKey(time), *(SortKey(read(c), descending=True) for c in age))

    def ahead(places: int) -> WindowCall:
        never = Scalar(INFINITY.copy(), TIMESTAMP, nullable=False)
        return WindowCall("lead", (time, never), places, None, order, WindowFrame("range", None, 0), TIMESTAMP)

    made, calls = [_column("_leaves", binding)], [ahead(window.start + 1)]
    if window.end:
        made.append(_column("_enters", binding))
        calls.append(ahead(window.end))
    numbered = Window(rows, (), tuple(calls), tuple(made), keeps_time=True)
    return Framed(numbered, time, window, read(made[1]) if window.end else time, read(made[0]))


def _column(name: str, binding: Binding) -> Column:
    return binding.new_column(name, TIMESTAMP, nullable=False)


def timestamp(time: Scalar) -> Scalar:
    """A rowtime is a timestamp without time zone, in UTC."""
    return (
        time
        if time.type == TIMESTAMP
        else Scalar(exp.cast(time.expression, TIMESTAMP.duckdb, dialect="duckdb"), TIMESTAMP, time.nullable)
    )


def moved(time: Scalar, amount_us: int) -> exp.Expression:
    """A time plus or minus a constant interval."""
    if not amount_us:
        return time.expression.copy()
    kind = exp.Add if amount_us > 0 else exp.Sub
    return kind(this=time.expression.copy(), expression=interval_of(abs(amount_us)))

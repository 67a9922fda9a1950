"""Compiles the circuit of a join (two scans, their arrangements and the join in one stage for each bucket), and its
horizons.

Horizons define until when rows are needed, and when they are decided, from the watermarks of the two sides. With `lo <=
left time - right time <= hi` for every pair and watermarks Wl, Wr, a left row below Wr + lo matches no later right row:
it is decided. If the output of left rows depends on the existence of partners (left, full, semi, anti), undecided rows
look up their partners again, none of which is below Wr + lo - hi. The right side is symmetric. A left row of an ASOF
join is decided when no nearer right row can arrive. Joins whose partners are determined on arrival only look up rows
for new ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from decimal import ROUND_FLOOR, Context, Decimal
from numbers import Integral, Real
from typing import Any, Final

from watersmeet.circuit import operators
from watersmeet.circuit.circuit import Circuit
from watersmeet.circuit.operators import Arrange, Comparison, InputColumn, Operator, Scan, Sink
from watersmeet.errors import Error, error
from watersmeet.frames.shapes import SIDES, JoinShape, Nearest, Newest, Side, Tolerance, microseconds
from watersmeet.values.times import length_us
from watersmeet.values.types import BIGINT, Field, Schema, SqlType
from watersmeet.values.watermarks import Term, Watermark, both, floored, shifted

#: The maximum duration, 36,000 years; a time plus a longer duration would exceed the range of times.
_LONGEST_US: Final = 1 << 60


def duration_us(value: timedelta | str, what: str) -> int:
    """The microseconds of a timedelta, or of a text such as "1 hour 30 minutes" or "1h30m". Raises INVALID_PARAMETER
    for other values.
    """
    length = microseconds(value) if isinstance(value, timedelta) else _of_text(value, what)
    if abs(length) > _LONGEST_US:
        raise error(
            "INVALID_PARAMETER",
            f"{what} is {value!r}, which is too long",
            hint="The longest is 36,000 years. None means no bound.",
        )
    return length


def _of_text(value: str, what: str) -> int:
    found = length_us(value.strip().lower().removeprefix("interval ")) if isinstance(value, str) else None
    if found is None:
        raise error(
            "INVALID_PARAMETER",
            f"{what} is {value!r}, which is not a length of time",
            hint='Use a timedelta or a string such as "1m" or "2 hours 30 seconds"; months have no fixed length.',
        )
    return found


_TIMES: Final = ("timestamp", "timestamptz", "date")

#: The maximum number of digits of a number that is compared exactly.
_DIGITS: Final = 38

_EXACT: Final = Context(prec=2 * _DIGITS)


def has_distance(kind: SqlType) -> bool:
    """Whether values of the type have a distance: times and numbers."""
    return kind.name in _TIMES or kind.is_numeric


def tolerance_of(value: Any, kind: SqlType) -> Tolerance:
    """The bound `value`, at least 0, between two values of a type.

    value: a timedelta or a text for times, a number for numbers. Raises INVALID_PARAMETER for other values.
    """
    if kind.name in _TIMES:
        if not isinstance(value, (timedelta, str)):
            raise _refused(value, kind, 'Give a timedelta or a text such as "10 minutes".')
        length_us = duration_us(value, "tolerance")
        if length_us < 0:
            raise _refused(value, kind, "It must be at least 0.")
        return Tolerance(us=length_us)
    if not has_distance(kind):
        raise _refused(value, kind, "A tolerance is between times or between numbers.")
    if isinstance(value, bool) or not isinstance(value, (Real, Decimal)):
        raise _refused(value, kind, "Give a number, such as 5 or 0.5.")
    number = _exactly(value)
    if not number.is_finite() or number < 0:
        raise _refused(value, kind, "It must be a finite number of at least 0. None means no bound.")
    if kind.is_float:
        return Tolerance(number=repr(float(number)))
    # Differences are multiples of the last digit's unit, so smaller parts have no effect.
    scale = kind.scale or 0
    if number.adjusted() + scale >= _DIGITS:
        raise _refused(value, kind, "It is greater than any such value. None means no bound.")
    number = number.quantize(Decimal(1).scaleb(-scale), ROUND_FLOOR, _EXACT)
    return Tolerance(number=f"{number:f}")


def tolerance_sql(tolerance: Tolerance, kind: SqlType, left: str, right: str) -> str | None:
    """The bound between columns `left` and `right` of a type as DuckDB SQL; None if unbounded."""
    if tolerance.us is not None:
        return f"abs(epoch_us({left}) - epoch_us({right})) <= {tolerance.us}"
    if tolerance.number is None:
        return None
    if kind.is_float:  # the difference of two infinities is NaN
        away = f"abs({left}::DOUBLE - {right}::DOUBLE)"
        return f"{left} = {right} OR {away} <= CAST('{tolerance.number}' AS DOUBLE)"
    if kind.is_integer:
        return f"abs({left}::HUGEINT - {right}::HUGEINT) <= {tolerance.number}"
    return f"abs({left} - {right}) <= {tolerance.number}"


def _exactly(value: Real | Decimal) -> Decimal:
    """The number exactly as written: 0.1 is a tenth."""
    if isinstance(value, Decimal):
        return value
    return Decimal(int(value)) if isinstance(value, Integral) else Decimal(repr(float(value)))


def _refused(value: Any, kind: SqlType, hint: str) -> Error:
    return error("INVALID_PARAMETER", f"a tolerance of {value!r} between values of type {kind.sql}", hint=hint)


@dataclass(frozen=True)
class Horizon:
    """The watermarks of one side. time: the position of their column; None without watermarks.

    decided: rows for which `time comparison decided` is true match no later row. retain: rows below this watermark are
    not needed; if it is empty, all rows are needed. newest: whether the newest row of each key below it is also needed.
    """

    time: int | None = None
    decided: Watermark = ()
    comparison: Comparison = "<"
    retain: Watermark = ()
    newest: bool = False


def horizons(shape: JoinShape) -> tuple[Horizon, Horizon]:
    """The horizons of the left and the right side."""
    if isinstance(shape.match, Nearest):
        return _nearest(shape, shape.match)
    if shape.within is None and shape.window_us is None:
        return Horizon(), Horizon()
    marks = [_mark(shape, 0), _mark(shape, 1)]
    times = [shape.left.time, shape.right.time]
    lo_us: int | None = 0
    hi_us: int | None = 0
    if shape.window_us is not None:
        marks = [floored(m, shape.window_us) for m in marks]
        times = [len(s.schema) - 1 for s in shape.sides]
    if shape.within is not None:
        low, high = shape.within.lower_us, shape.within.upper_us
        bounds = (None if high is None else -high, None if low is None else -low)
        lo_us, hi_us = bounds if shape.window_us is None else (0, 0)
    decided = (_moved(marks[1], lo_us), _moved(marks[0], None if hi_us is None else -hi_us))
    left_alone = shape.how in ("left", "full", "semi", "anti") and shape.emit != "arrival"
    right_alone = shape.how in ("right", "full") and shape.emit != "arrival"
    retain_left = both(decided[0], _moved(decided[1], lo_us)) if right_alone else decided[0]
    retain_right = both(decided[1], _moved(decided[0], None if hi_us is None else -hi_us)) if left_alone else decided[1]
    return Horizon(times[0], decided[0], "<", retain_left), Horizon(times[1], decided[1], "<", retain_right)


def result_watermark(shape: JoinShape, index: int) -> Watermark:
    """A lower bound, after a micro-batch, of the times of side `index` in rows of later micro-batches; () if unknown.

    A later row of the result contains a new or an undecided row of the side.
    """
    mark = _mark(shape, index)
    on_arrival = shape.emit == "arrival" and (shape.match is not None or shape.how in ("semi", "anti"))
    if on_arrival and index == 0:
        return mark
    horizon = horizons(shape)[index]
    other_time = isinstance(shape.match, Nearest) and horizon.time != shape.sides[index].time
    return () if other_time else both(mark, horizon.decided)


def _nearest(shape: JoinShape, match: Nearest) -> tuple[Horizon, Horizon]:
    marks = [_mark(shape, i) if shape.sides[i].time == p else () for i, p in enumerate((match.left, match.right))]
    tolerance = match.tolerance.us
    decided = _moved(marks[1], None if tolerance is None else -tolerance) if match.looks_ahead else marks[1]
    comparison: Comparison = "<=" if match.comparison == ">" else "<"
    # Undecided and later left rows look back to the newest row, but not further than the tolerance. Older rows are
    # always further away.
    asking = marks[0] if shape.emit == "arrival" else both(marks[0], decided)
    retain = _moved(asking, -(tolerance or 0) if match.looks_back else 0)
    return (
        Horizon(match.left, decided, comparison, decided),
        Horizon(match.right, (), "<", retain, newest=match.looks_back and tolerance is None and bool(retain)),
    )


def _mark(shape: JoinShape, index: int) -> Watermark:
    """The watermark of a side's time."""
    side = shape.sides[index]
    return () if side.delay_us is None or side.time is None else (Term(SIDES[index]),)


def _moved(mark: Watermark, by_us: int | None) -> Watermark:
    """The watermark plus a length of time; empty if the length is unbounded."""
    return () if by_us is None or not mark else shifted(mark, by_us)


#: The relation that the circuit publishes.
JOINED: Final = "joined"


def compile_join(shape: JoinShape) -> Circuit:
    """The circuit of the streaming join `shape`, whose only sink publishes the columns `shape.columns`."""
    made: list[Operator] = []
    last = _Compiler(shape, made).join()
    made.append(Sink((last.id,), last.schema, last.append_only, JOINED))
    circuit = Circuit(1, tuple(made), {o.id: 0 for o in made})
    circuit.check()
    return circuit


def appends(shape: JoinShape) -> bool:
    """Whether no row of the result can be retracted."""
    if shape.emit != "changes" or shape.static is not None:
        return True
    return _grows(shape)


def _grows(shape: JoinShape) -> bool:
    """Whether no returned row can be retracted with emit="changes"."""
    return shape.match is None and shape.how in ("inner", "semi") and not any(s.signed for s in shape.sides)


def residual(shape: JoinShape) -> str | None:
    """The bounds of the two sides' times as DuckDB SQL."""
    if shape.within is None:
        return None
    left, right = f"epoch_us(l{shape.left.time})", f"epoch_us(r{shape.right.time})"
    low, high = shape.within.lower_us, shape.within.upper_us
    bounds = [
        f"{right} - {left} >= {low}" if low is not None else "",
        f"{right} - {left} <= {high}" if high is not None else "",
    ]
    return " AND ".join(b for b in bounds if b) or f"({left} IS NOT NULL AND {right} IS NOT NULL)"


def output_schema(shape: JoinShape, columns: Sequence[InputColumn]) -> Schema:
    """The types of `columns`."""
    return tuple(Field(f"c{i}", shape.sides[c.input].schema[c.column].type) for i, c in enumerate(columns))


def join_operator(
    shape: JoinShape, inputs: Sequence[str], columns: tuple[InputColumn, ...]
) -> operators.Join | operators.AsofJoin:
    """The join, which returns `columns`."""
    arrives = shape.emit == "arrival"
    common: dict[str, Any] = {
        "schema": output_schema(shape, columns),
        "left_keys": shape.left.keys,
        "output": columns,
        "right_keys": shape.right.keys,
        "null_safe": (False,) * len(shape.left.keys),
    }
    match = shape.match
    if isinstance(match, Nearest):
        assert shape.how in ("inner", "left")
        kind = shape.left.schema[match.left].type
        nearest = operators.ArrivalAsofJoin if arrives else operators.AsofJoin
        return nearest(
            tuple(inputs),
            append_only=arrives,
            join_kind=shape.how,
            comparison=match.comparison,
            left_value=match.left,
            right_value=match.right,
            residual=tolerance_sql(match.tolerance, kind, f"l{match.left}", f"r{match.right}"),
            ties=tuple(range(len(shape.right.schema))),
            **common,
        )
    regular = operators.ArrivalJoin if arrives and shape.how != "inner" else operators.Join
    return regular(
        tuple(inputs), append_only=arrives or _grows(shape), join_kind=shape.how, residual=residual(shape), **common
    )


@dataclass(frozen=True)
class Waiting:
    """The rows of the result that may still be retracted, which have a `time` and no `partner`.

    time, partner: columns of the join; if partner is None, rows may have a partner or not. The rows are final when
    `time comparison decided` is true; never if `decided` is empty.
    """

    time: InputColumn
    partner: InputColumn | None
    comparison: Comparison
    decided: Watermark


def waiting(shape: JoinShape) -> tuple[Waiting, ...]:
    """The rows of the result that wait with `emit="final"`; empty for a join that never retracts rows."""
    left, right = horizons(shape)
    if isinstance(shape.match, Nearest):
        return (Waiting(InputColumn(0, shape.match.left), None, left.comparison, left.decided),)
    found = []
    if shape.how in ("left", "full", "anti"):
        partner = None if shape.how == "anti" else InputColumn(1, shape.right.keys[0])
        found.append(Waiting(InputColumn(0, left.time or 0), partner, left.comparison, left.decided))
    if shape.how in ("right", "full"):
        found.append(
            Waiting(
                InputColumn(1, right.time or 0), InputColumn(0, shape.left.keys[0]), right.comparison, right.decided
            )
        )
    return tuple(found)


class _Compiler:
    """Appends the operators of a shape to `made`, inputs first."""

    def __init__(self, shape: JoinShape, made: list[Operator]) -> None:
        self._shape = shape
        self._made = made

    def join(self) -> Operator:
        """The operator whose output is the result."""
        shape = self._shape
        left, right = (self._scan(i, s) for i, s in enumerate(shape.sides))
        if isinstance(shape.match, Newest):
            return self._newest(left, right)
        waits = waiting(shape) if shape.emit == "final" else ()
        columns = tuple(
            dict.fromkeys([*shape.columns, *(c for w in waits for c in (w.time, w.partner) if c is not None)])
        )
        kept = horizons(shape)
        if not (shape.emit == "arrival" and (shape.how in ("semi", "anti") or isinstance(shape.match, Nearest))):
            left = self._arrange(left, shape.left, kept[0])  # else left rows find partners on arrival
        joined = self._add(join_operator(shape, [left.id, self._arrange(right, shape.right, kept[1]).id], columns))
        return self._final(joined, columns, waits) if waits else joined

    def _add(self, op: Operator) -> Operator:
        if op.id not in {o.id for o in self._made}:
            self._made.append(op)
        return op

    def _scan(self, index: int, side: Side) -> Operator:
        ordered = index == 1 and isinstance(self._shape.match, Newest)
        names = tuple(f.name for f in side.schema)
        schema = (*side.schema, Field("_seq", BIGINT)) if ordered else side.schema
        return self._add(Scan((), schema, not side.signed, SIDES[index], names, ordered))

    def _arrange(self, op: Operator, side: Side, horizon: Horizon) -> Operator:
        time = horizon.time if horizon.retain else None
        return self._add(
            Arrange(
                (op.id,),
                op.schema,
                op.append_only,
                side.keys,
                (False,) * len(side.keys),
                0,
                time,
                horizon.retain,
                horizon.newest,
            )
        )

    def _newest(self, left: Operator, right: Operator) -> Operator:
        shape = self._shape
        current = self._add(operators.Upsert((right.id,), shape.right.schema, False, shape.right.keys))
        arranged = self._arrange(current, shape.right, Horizon())
        assert shape.how in ("inner", "left")
        return self._add(
            operators.TemporalJoin(
                (left.id, arranged.id),
                output_schema(shape, shape.columns),
                True,
                join_kind=shape.how,
                left_keys=shape.left.keys,
                right_keys=shape.right.keys,
                null_safe=(False,) * len(shape.left.keys),
                residual=None,
                memo=False,
                owner="",
                output=shape.columns,
            )
        )

    def _final(self, joined: Operator, columns: tuple[InputColumn, ...], waits: Sequence[Waiting]) -> Operator:
        """Makes rows that may be retracted wait until they are decided; others are returned immediately."""
        count = len(self._shape.columns)
        keep, names = tuple(range(count)), tuple(f"c{i}" for i in range(len(columns)))
        schema = joined.schema[:count]
        tests = []
        for w in waits:
            test = f"c{columns.index(w.time)} IS NOT NULL"
            if w.partner is not None:
                test += f" AND c{columns.index(w.partner)} IS NULL"
            tests.append(test)
        parts = [
            self._add(
                operators.Map((joined.id,), schema, True, names[:count], " AND ".join(f"NOT ({t})" for t in tests))
            )
        ]
        for w, test in zip(waits, tests, strict=True):
            held = self._add(operators.Map((joined.id,), joined.schema, False, names, test))
            column = columns.index(w.time)
            parts.append(
                self._add(operators.TimeFilter((held.id,), schema, True, column, w.comparison, w.decided, keep))
            )
        return self._add(operators.Union(tuple(p.id for p in parts), schema, True))

"""The clock, and the time zone of a session.

**Temporal filters**: now() in the conditions of a view.
In WHERE, HAVING and ON a view may compare a value with the time of the epoch (RisingWave, "Temporal filters"):
`input_expr cmp now_expr`, where now_expr never decreases as time passes: now() plus or minus intervals, or truncated to
a minute, day, week or month. Elsewhere now() is an error, because the time of its evaluation would be undefined.

**Zones**: `AT TIME ZONE`, and offsets and arithmetic of timestamptz in the zone in which a statement is bound, as in
PostgreSQL.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import duckdb
from sqlglot import exp

from watersmeet.algebra.scalars import MIRRORED
from watersmeet.algebra.timewindows import UNITS_MONTHS, UNITS_US, epoch_time, not_a_filter, parts_of
from watersmeet.dialects.tree.queries import node_span
from watersmeet.errors import Error
from watersmeet.expressions.context import (
    OFFSET_SECONDS,
    Context,
    Value,
    boolean,
    call,
    columns_of,
    duckdb_cast,
    family,
    fill,
    is_utc,
    local_time,
    moment_of,
    number,
    session_zone,
    string,
    wrap,
)
from watersmeet.values.times import ABBREVIATIONS, DAY_US, UTC, fixed_offset_us, is_zone_name, zone_sql
from watersmeet.values.types import DATE, INTERVAL, TIMESTAMP, TIMESTAMPTZ
from watersmeet.values.watermarks import NOW, MonthStep, Step, Term

Bind = Callable[[exp.Expression, Context], Value]

#: The functions that return the time of the epoch (or its day).
CLOCKS: Final = frozenset({
    "current_date", "current_timestamp", "localtimestamp", "now", "proctime", "statement_timestamp",
    "transaction_timestamp",
})  # fmt: skip
_BARE: Final = (exp.CurrentDate, exp.CurrentTimestamp, exp.Localtimestamp)
_CLAUSES: Final = ("WHERE", "HAVING", "JOIN/ON")


def is_clock(node: exp.Expression) -> bool:
    """True for a call of now() or a similar function."""
    if isinstance(node, exp.Anonymous):
        return isinstance(node.this, str) and node.this.lower() in CLOCKS
    return isinstance(node, _BARE)


def reads_clock(node: exp.Expression) -> bool:
    """True if the expression calls now() outside of its subqueries."""
    return any(is_clock(n) for n in node.walk(prune=lambda n: isinstance(n, exp.Query)))


def refused(node: exp.Expression, ctx: Context, name: str) -> Error:
    """The error for now() in other parts of a view, in RisingWave's words."""
    if ctx.clause in _CLAUSES:
        return _with_text(not_a_filter(node_span(node)), ctx)
    span = node_span(node)
    called, is_call, _ = ("", "", "") if span is None else ctx.text[span.start : span.end].partition("(")
    shown = called.strip() if is_call and called.strip().isidentifier() else name
    message = (
        f"For streaming queries, `{shown.upper()}()` function is only allowed in `WHERE`, `HAVING` and `ON`. "
        f"Found in clause: {ctx.clause}"
    )
    if name == "proctime":
        message = "Function `PROCTIME()` is only allowed in CREATE TABLE/SOURCE. Is `NOW()` what you want?"
    return ctx.error(
        "FEATURE_NOT_SUPPORTED",
        message,
        node,
        detail="The content of a view must depend only on the rows of its relations and the time of the epoch.",
        hint="Compare a column with it: WHERE ts > now() - INTERVAL '1 day'. Or write the time into a column when the "
        "row is inserted: INSERT INTO t SELECT …, now().",
    )


def time_comparison(node: exp.Binary, ctx: Context, bind: Bind) -> Value | None:
    """The value of a comparison with the time of the epoch (see `time_filters`); None for other comparisons."""
    if ctx.volatile_allowed or ctx.clause not in _CLAUSES or not reads_clock(node):
        return None
    left, right = node.this, node.expression
    kind: Any = type(node)
    if reads_clock(left):
        left, right, kind = right, left, MIRRORED.get(kind)
    if kind not in MIRRORED or reads_clock(left):
        raise _with_text(not_a_filter(node_span(node)), ctx)
    value = bind(left, ctx)
    moment = bind(right, _Timeless(ctx))
    if not columns_of(value):
        raise _with_text(not_a_filter(node_span(node)), ctx)
    if value.type.name == "date" or moment.type.name == "date":
        value = (
            Value(duckdb_cast(value.expression, TIMESTAMP), TIMESTAMP, value.nullable) if value.type == DATE else value
        )
    if family(value.type) != "datetime" or family(moment.type) != "datetime":
        raise _with_text(not_a_filter(node_span(node)), ctx)
    reader = _Reader(node, ctx)
    term = reader.term(moment.expression)
    if (value.type == TIMESTAMPTZ) != (moment.type == TIMESTAMPTZ):
        term = term.after(Step("add", reader.offset_us * (1 if moment.type == TIMESTAMPTZ else -1)))
    column = value.finish()
    made = [
        _compared(
            k, Value(column.expression, column.type, column.nullable), epoch_time(term, column.type, node_span(node))
        )
        for k in ((exp.LTE, exp.GTE) if kind is exp.EQ else (kind,))
    ]
    return (
        made[0]
        if len(made) == 1
        else boolean(exp.Paren(this=exp.and_(*[m.expression for m in made], copy=False)), value)
    )


def _compared(kind: type[exp.Expression], value: Value, time: exp.Expression) -> Value:
    return boolean(kind(this=wrap(value.expression), expression=time), value)


def _with_text(err: Error, ctx: Context) -> Error:
    err.sql = ctx.text
    return err


class _Timeless(Context):
    """The context of an operand with now(), which reads no columns."""

    volatile_allowed = True

    def __init__(self, around: Context) -> None:
        super().__init__(around.text, around.clause)

    def column(self, node: exp.Column) -> Value:
        raise _with_text(not_a_filter(node_span(node)), self)


class _Reader:
    """Reads a bound expression of now() as a term. Raises TIME_FILTER for an expression that could decrease."""

    def __init__(self, node: exp.Expression, ctx: Context) -> None:
        self._node = node
        self._ctx = ctx

    def term(self, node: exp.Expression) -> Term:
        """The term of a date, timestamp or timestamptz; a date counts as its midnight."""
        if isinstance(node, exp.Paren):
            return self.term(node.this)
        if isinstance(node, exp.Anonymous):
            return self._called(node)
        if isinstance(node, exp.Cast):
            inner = self.term(node.this)
            if node.to.this == exp.DType.DATE:
                return inner.after(Step("floor", DAY_US))
            if node.to.this in (exp.DType.TIMESTAMP, exp.DType.TIMESTAMPNTZ, exp.DType.TIMESTAMPTZ):
                return inner
        if isinstance(node, (exp.Add, exp.Sub)):
            return self._moved(node)
        raise self._refusal()

    def _called(self, node: exp.Anonymous) -> Term:
        name, arguments = str(node.this).lower(), node.expressions
        if name == "now":
            return Term(NOW)
        if name == "date_trunc":
            unit = arguments[0].name.lower()
            step = Step("floor", *UNITS_US[unit]) if unit in UNITS_US else MonthStep("floor_months", UNITS_MONTHS[unit])
            return self.term(arguments[1]).after(step)
        if name == "timezone" and arguments[0].name.upper() in ("UTC", "GMT", "ETC/UTC"):
            return self.term(arguments[1])
        if name == "timezone" and arguments[0].name == session_zone():
            kind, _ = self._ctx.type_of(arguments[1])
            return self.term(arguments[1]).after(Step("add", self.offset_us * (1 if kind == TIMESTAMPTZ else -1)))
        raise self._refusal()

    def _moved(self, node: exp.Binary) -> Term:
        time, other = node.this, node.expression
        if isinstance(node, exp.Add) and not _has_now(time):
            time, other = other, time
        if not _has_now(time) or _has_now(other):
            raise self._refusal()
        months, amount_us = self._length(other)
        if isinstance(node, exp.Sub):
            months, amount_us = -months, -amount_us
        term = self.term(time)
        return (term.after(MonthStep("clock_months", months)) if months else term).after(Step("add", amount_us))

    def _length(self, node: exp.Expression) -> tuple[int, int]:
        """The months and microseconds of a constant interval, or of a number of days."""
        try:
            kind, _ = self._ctx.type_of(node)
            if kind is not None and kind.is_integer:
                return 0, int(self._ctx.constant(node)) * DAY_US
        except duckdb.Error:
            raise self._refusal() from None
        parts = parts_of(duckdb_cast(node, INTERVAL))
        if parts is None:
            raise self._refusal()
        months, days, nanoseconds = parts
        return months, days * DAY_US + nanoseconds // 1000

    @property
    def offset_us(self) -> int:
        """The microseconds of the session's zone east of UTC. Raises FEATURE_NOT_SUPPORTED for a zone with summer time,
        whose local time goes back once a year.
        """
        offset = 0 if is_utc() else fixed_offset_us(session_zone())
        if offset is None:
            raise self._ctx.not_supported(
                f"a local time or an interval of days in a temporal filter in the time zone {session_zone()}",
                self._node,
                hint="Compare a timestamptz with now() - INTERVAL '24 hours'. Or SET timezone TO 'UTC'.",
            )
        return offset

    def _refusal(self) -> Error:
        return _with_text(not_a_filter(node_span(self._node)), self._ctx)


def _has_now(node: exp.Expression) -> bool:
    return any(isinstance(n, exp.Anonymous) and str(n.this).lower() == "now" for n in node.walk())


def offset_seconds(value: exp.Expression) -> exp.Expression:
    """The seconds east of UTC at a timestamptz."""
    if is_utc():
        return fill("CASE WHEN a0 IS NOT NULL THEN CAST(0 AS BIGINT) END", value)
    return fill(OFFSET_SECONDS, local_time(value), value)


_MONTHS_OF: Final = "(datepart('year', a0) * 12 + datepart('month', a0))"
_PARTS: Final = (
    ("months", f"to_months(CAST({_MONTHS_OF} AS INTEGER))", f"{_MONTHS_OF} <> 0"),
    ("days", "to_days(CAST(datepart('day', a0) AS INTEGER))", "datepart('day', a0) <> 0"),
)
_TIME_OF_DAY: Final = (
    "to_microseconds(datepart('hour', a0) * 3600000000 + datepart('minute', a0) * 60000000 + "
    "datepart('microsecond', a0))"
)


def moved(value: exp.Expression, interval: exp.Expression, sign: str) -> exp.Expression:
    """A timestamptz plus or minus an interval: months and then days by local time, then the rest as elapsed time."""
    parts = parts_of(interval)
    if is_utc() or (parts is not None and not parts[0] and not parts[1]):
        return fill(f"a0 {sign} a1", value, interval)
    made = value
    for index, (_, length, test) in enumerate(_PARTS):
        if parts is None:
            shifted = moment_of(fill(f"a0 {sign} a1", local_time(made), fill(length, interval)))
            made = fill("CASE WHEN a0 THEN a1 WHEN a0 IS NOT NULL THEN a2 END", fill(test, interval), shifted, made)
        elif parts[index]:
            unit = ("MONTH", "DAY")[index]
            made = moment_of(fill(f"a0 {sign} INTERVAL '{parts[index]} {unit}'", local_time(made)))
    if parts is not None and not parts[2]:
        return made
    rest = fill(_TIME_OF_DAY, interval) if parts is None else fill("to_microseconds(a0)", number(parts[2] // 1000))
    return fill(f"a0 {sign} a1", made, rest)


def check_elapsed(interval: exp.Expression, what: str, ctx: Context, node: exp.Expression) -> None:
    """Raises FEATURE_NOT_SUPPORTED for an interval whose length differs in the zone: one of months, that is no
    constant, or of days if the zone has summer time.
    """
    parts = parts_of(duckdb_cast(interval, INTERVAL))
    if parts is None or parts[0] or (parts[1] and fixed_offset_us(session_zone()) is None):
        raise ctx.not_supported(
            f"an interval of days or months in {what} in the time zone {session_zone()}",
            node,
            hint="Write it in hours: interval '24 hours'. Or SET timezone TO 'UTC', where each day has 24 hours.",
        )


#: The functions of DuckDB whose result for a timestamptz is the same in all zones.
_ABSOLUTE: Final = ("epoch", "epoch_ms", "epoch_ns", "epoch_us", "hash", "typeof")


def check_duckdb(name: str, arguments: Sequence[Value], ctx: Context, node: exp.Expression) -> None:
    """Raises FEATURE_NOT_SUPPORTED for a function of DuckDB that would compute the local time of a timestamptz in
    UTC.
    """
    if not is_utc() and name not in _ABSOLUTE and any(a.type == TIMESTAMPTZ and not a.unknown for a in arguments):
        raise ctx.not_supported(
            f"the function {name} of a timestamptz in the time zone {session_zone()}",
            node,
            hint=f"Call it with a timestamp: {name}(… AT TIME ZONE '{session_zone()}').",
        )


#: `AT TIME ZONE` with a zone from a column.
_IN_ZONE: Final = f"timezone({zone_sql('a0')}, a1)"

_SHIFTED: Final = {
    TIMESTAMPTZ: "timezone('UTC', a1) + to_seconds({})",
    TIMESTAMP: "timezone('UTC', a1 - to_seconds({}))",
}


def at_time_zone(wanted: Value, value: Value, ctx: Context, node: exp.Expression) -> Value:
    """`value AT TIME ZONE zone`: for a timestamptz the local time, for a timestamp the moment.

    Raises INVALID_PARAMETER for an unknown constant zone; rows with an unknown zone fail.
    """
    kind = TIMESTAMP if value.type == TIMESTAMPTZ else TIMESTAMPTZ
    if not isinstance(wanted.expression, exp.Literal):
        return Value(fill(_IN_ZONE, wanted.finish().expression, value.expression), kind)
    offset = ABBREVIATIONS.get(wanted.expression.name.upper())
    if offset is None:
        _check_name(wanted.expression, ctx, node)
        return Value(call("timezone", wanted.expression, value.expression), kind)
    if offset == 0:
        return Value(call("timezone", string(UTC), value.expression), kind)
    return Value(fill(_SHIFTED[value.type].format("a0"), number(offset), value.expression), kind)


def _check_name(written: exp.Literal, ctx: Context, node: exp.Expression) -> None:
    """Raises INVALID_PARAMETER for an unknown zone, because a view would have NULL in every row."""
    try:
        if is_zone_name(written.name):
            ctx.check(call("timezone", written, duckdb_cast(string("2000-01-01"), TIMESTAMP)))
            return
    except duckdb.Error:
        pass
    raise ctx.error(
        "INVALID_PARAMETER",
        f'time zone "{written.name}" not recognized',
        node,
        detail="A zone is a name of the time zone database, or an abbreviation whose offset never changed.",
        hint="Write a name such as 'Europe/Berlin' or 'UTC'; 'Etc/GMT-3' is three hours east of UTC.",
    )

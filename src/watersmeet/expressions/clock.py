"""Temporal filters: now() in the conditions of a view.

In WHERE, HAVING and ON a view may compare a value with the time of the epoch (RisingWave, "Temporal filters"):
`input_expr cmp now_expr`, where now_expr never decreases as time passes: now() plus or minus intervals, or truncated to
a minute, day, week or month. Elsewhere now() is an error, because the time of its evaluation would be undefined.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import duckdb
from sqlglot import exp

from watersmeet.algebra.scalars import MIRRORED
from watersmeet.algebra.timewindows import UNITS_MONTHS, UNITS_US, epoch_time, not_a_filter, parts_of
from watersmeet.dialects.tree.queries import node_span
from watersmeet.errors import Error
from watersmeet.expressions.context import Context, Value, boolean, columns_of, duckdb_cast, family, wrap
from watersmeet.values.times import DAY_US
from watersmeet.values.types import DATE, INTERVAL, TIMESTAMP
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
    term = _Reader(node, ctx).term(moment.expression)
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

    def _refusal(self) -> Error:
        return _with_text(not_a_filter(node_span(self._node)), self._ctx)


def _has_now(node: exp.Expression) -> bool:
    return any(isinstance(n, exp.Anonymous) and str(n.this).lower() == "now" for n in node.walk())

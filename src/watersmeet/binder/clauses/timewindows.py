"""TUMBLE and HOP in FROM: a relation's rows with the windows that contain them.

RisingWave, "Joins", "Window joins"; RW-29 to RW-33, RA-10, RA-12, D-000-02; RisingWave, "Time window functions". A row
whose time is NULL is in no window: TUMBLE outputs it with NULL as `window_start` and `window_end`, HOP drops it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import duckdb
from sqlglot import exp

from watersmeet.algebra.nodes import Node, Project, Unnest
from watersmeet.algebra.scalars import Scalar
from watersmeet.algebra.timewindows import TimeWindow, duration_us
from watersmeet.algebra.trees import read
from watersmeet.binder.clauses.arrival import without_closed
from watersmeet.binder.clauses.sources import alias_of, bind_table, check_arguments
from watersmeet.binder.context.binding import Environment, check_alias_list, condition_parts, value_of
from watersmeet.binder.context.rules import Binding, BindQuery, NamedItem, Sourced
from watersmeet.binder.context.scope import Scope, ScopeContext
from watersmeet.dialects.tree.nodes import own_parts
from watersmeet.dialects.tree.queries import name_of, place_of
from watersmeet.errors import Error
from watersmeet.expressions.casts import text_of
from watersmeet.expressions.context import Context, Value, duckdb_cast
from watersmeet.expressions.scalars import bind_value
from watersmeet.values.types import INTERVAL, TIMESTAMP, SqlType

NAMES: Final = ("window_start", "window_end")

_CALL: Final = frozenset({"this", "alias", "joins"})
_WORKAROUND: Final = "Consider using an intermediate CTE or view as workaround."
#: Of HOP: each row is as many rows.
_MOST_WINDOWS: Final = 1_000_000
_TIMES: Final = ("timestamp with time zone", "timestamp", "date")

#: By the SQL of the column with a window's start or end.
Windowed = Mapping[str, TimeWindow]


@dataclass(frozen=True)
class WindowCall:
    """`TUMBLE(relation, time, size [, offset])` or `HOP(relation, time, slide, size [, offset])` as an item of FROM."""

    function: Literal["tumble", "hop"]
    node: exp.Table

    @property
    def place(self) -> exp.Expression:
        """The place of the call."""
        call: exp.Expression = self.node.this
        return call

    @property
    def alias(self) -> tuple[str, tuple[str, ...]]:
        """The qualifier of its columns (the alias, or the name of the relation), and the columns' aliases."""
        alias, names = alias_of(self.node)
        return alias or name_of(self.place.expressions[0].this), names

    def relation(self, ctx: Context) -> exp.Table:
        """The first argument as an item of FROM. FEATURE_NOT_SUPPORTED unless it is a name."""
        check_arguments(self.node, _CALL | own_parts(self.node), ctx.text, "a time window function")
        arguments = self.place.expressions
        first = arguments[0] if arguments else None
        named = self.named
        if named is None:
            raise ctx.error(
                "FEATURE_NOT_SUPPORTED",
                "the 1st arg of window table function should be a table name (incl. source, "
                "CTE, view) but not complex structure (subquery, join, another table function)",
                self.place if first is None else first,
                hint=_WORKAROUND,
            )
        return named

    @property
    def named(self) -> exp.Table | None:
        """The first argument as an item of FROM; None unless it is a name."""
        first = self.place.expressions[0] if self.place.expressions else None
        if not isinstance(first, exp.Column) or not isinstance(first.this, exp.Identifier):
            return None
        schema = first.args.get("table")
        made: exp.Table = self.node.copy()
        for part in ("alias", "joins"):
            made.set(part, None)
        made.set("this", first.this.copy())
        made.set("db", None if schema is None else schema.copy())
        return made

    def read(self, scope: Scope, ctx: Context) -> tuple[TimeWindow, Value]:
        """The windows, and the time in its type (timestamp, also for a date; or timestamptz). scope: the relation's."""
        time = self._time(scope, ctx)
        for column in scope.visible:
            if column.name in NAMES:
                raise ctx.error(
                    "DUPLICATE_COLUMN",
                    "column names `window_start` and `window_end` are not allowed in window table function's input",
                    self.place.expressions[0],
                )
        lengths = [self._length(a, ctx) for a in self.place.expressions[2:]]
        least = 1 if self.function == "tumble" else 2
        if not least <= len(lengths) <= least + 1:
            form = (
                "relation, time column, size [, offset]"
                if least == 1
                else "relation, time column, slide, size [, offset]"
            )
            raise ctx.error(
                "INVALID_PARAMETER",
                "the size arg of window table function should be an interval literal",
                self.place,
                detail=f"Its arguments are {self.function.upper()}({form}).",
            )
        return self._window([us for us, _ in lengths], [text for _, text in lengths], ctx), time

    def _time(self, scope: Scope, ctx: Context) -> Value:
        argument = self.place.expressions[1] if len(self.place.expressions) > 1 else None
        if not isinstance(argument, exp.Column):
            raise ctx.error(
                "FEATURE_NOT_SUPPORTED",
                "the 2nd arg of window table function should be a column name but not complex expression",
                self.place if argument is None else argument,
                hint=_WORKAROUND,
            )
        value = bind_value(argument, ScopeContext(ctx.text, scope, "a time window function"))
        if value.type.name not in ("timestamp", "timestamptz", "date"):
            raise ctx.error(
                "DATATYPE_MISMATCH",
                "the 2nd arg of window table function should be a column of type "
                f"{_TIMES[0]}, {_TIMES[1]} or {_TIMES[2]}",
                argument,
                detail=f'Column "{argument.name}" is of type {value.type.sql}.',
            )
        if value.type.name != "date":
            return value
        return Value(duckdb_cast(value.expression, TIMESTAMP), TIMESTAMP, value.nullable)

    def _length(self, node: exp.Expression, ctx: Context) -> tuple[int, str]:
        """A length in microseconds, and as PostgreSQL prints it. INVALID_PARAMETER, FEATURE_NOT_SUPPORTED."""
        constant = next(node.find_all(exp.Column, exp.Query), None) is None
        value = bind_value(node, Context(ctx.text, "a time window function")) if constant else None
        if value is None or value.type != INTERVAL or value.is_null or _is_nothing(value, ctx):
            raise ctx.error(
                "INVALID_PARAMETER",
                "the size arg of window table function should be an interval literal",
                node,
                hint="Write, for example, INTERVAL '1 minute'.",
            )
        length_us = duration_us(value.expression)
        if length_us is None:
            raise ctx.not_supported(
                "a window with months in its size",
                node,
                detail="Months differ in length.",
                hint="Write days, or group by date_trunc('month', …).",
            )
        return length_us, str(ctx.constant(text_of(value)))

    def _window(self, lengths: Sequence[int], texts: Sequence[str], ctx: Context) -> TimeWindow:
        if self.function == "tumble":
            size, offset = lengths[0], lengths[1] if len(lengths) == 2 else 0
            if size <= 0:
                raise self._refused(f"window_size {texts[0]} must be positive", 2, ctx)
            return TimeWindow("tumble", size, size, offset % size)
        slide, size, offset = lengths[0], lengths[1], lengths[2] if len(lengths) == 3 else 0
        if size <= 0 or slide <= 0:
            raise self._refused(
                f"window_size {texts[1]} and window_slide {texts[0]} must be positive", 2 if slide <= 0 else 3, ctx
            )
        if size % slide:
            raise self._refused(
                f"Invalid arguments for HOP window function: window_size {texts[1]} cannot be divided by "
                f"window_slide {texts[0]}",
                3,
                ctx,
            )
        if size // slide > _MOST_WINDOWS:
            message = f"a HOP window function with more than {_MOST_WINDOWS:,} windows for each row"
            raise ctx.not_supported(message, self.place.expressions[2])
        return TimeWindow("hop", slide, size, offset % slide)

    def _refused(self, message: str, argument: int, ctx: Context) -> Error:
        return ctx.error("INVALID_PARAMETER", message, self.place.expressions[argument])


def _is_nothing(value: Value, ctx: Context) -> bool:
    """Whether a constant is NULL."""
    try:
        return ctx.constant(value.expression) is None
    except duckdb.OutOfRangeException:  # an interval that Python can't hold
        return False


def window_call(node: exp.Expression) -> WindowCall | None:
    """The call if an item of FROM is one, else None."""
    if isinstance(node, exp.Table) and isinstance(node.this, exp.Anonymous):
        name = node.this.name.lower()
        if name in ("tumble", "hop"):
            return WindowCall("tumble" if name == "tumble" else "hop", node)
    return None


def bind_window_call(call: WindowCall, env: Environment, binding: Binding, bind: BindQuery) -> Sourced:
    """The relation of the call and its scope. `binding.collected.windowed` gets its two columns."""
    ctx = Context(env.text, "a time window function")
    relation, scope = bind_table(call.relation(ctx), env, binding, bind)
    window, time = call.read(scope, ctx)
    shown = [c.name for c in scope.visible]
    start = binding.new_column(NAMES[0], time.type, time.nullable and window.function == "tumble")
    end = binding.new_column(NAMES[1], time.type, start.nullable)
    passed = tuple(read(c) for c in relation.columns)
    scalar = time.finish()
    if window.function == "tumble":
        first = Scalar(window.last_start(scalar.expression, time.type), time.type, start.nullable)
        made: Node = Project(relation, (*relation.columns, start), (*passed, first))
    else:
        array = Scalar(window.starts(scalar.expression, time.type), SqlType("array", element=time.type), time.nullable)
        made = Unnest(relation, (array,), (start,))
    if binding.closing_us is not None and scalar.column is not None:
        made = without_closed(made, start, relation, scalar.column, window, binding)
    last = Scalar(window.end(read(start).expression), time.type, start.nullable)
    made = Project(made, (*made.columns, end), (*passed, read(start), last))
    for column in (start, end):
        binding.collected.windowed[value_of(column).expression.sql()] = window
    binding.collected.window_ends.add(value_of(end).expression.sql())
    title, names = call.alias
    item = f'table "{title}"'
    check_alias_list(names, len(shown) + 2, item, env.text, place_of(call.node))
    called = (*names, *[*shown, *NAMES][len(names) :])
    return made, binding.rules.item_scope(made, NamedItem(title, called, item, call.node), env)


def check_join(node: exp.Join, left: Scope, right: Scope, windowed: Windowed, ctx: Context) -> None:
    """WINDOW_JOIN if a condition of the join equates columns of different windows (D-000-02)."""
    if not windowed:
        return
    names = [name_of(i) for i in node.args.get("using") or []]
    if node.method.upper() == "NATURAL":
        names = [c.name for c in left.visible if c.name in {r.name for r in right.visible}]
    for name in names:
        pair = [next((c.value for c in s.visible if c.name == name), None) for s in (left, right)]
        _check_pair(pair[0], pair[1], windowed, node, ctx)
    if node.args.get("on") is not None:
        check_condition(node.args["on"], Scope(left.tables + right.tables, left.visible + right.visible), windowed, ctx)


def check_condition(condition: exp.Expression, scope: Scope, windowed: Windowed, ctx: Context) -> None:
    """WINDOW_JOIN if a part of the condition equates columns of different windows of two items of `scope`."""
    if not windowed:
        return
    for part in condition_parts(condition):
        if isinstance(part, (exp.EQ, exp.NullSafeEQ)):
            first, second = (_found(side, scope) for side in (part.this, part.expression))
            if first is not None and second is not None and first[0] != second[0]:
                _check_pair(first[1], second[1], windowed, part, ctx)


def _found(node: exp.Expression, scope: Scope) -> tuple[int, Value] | None:
    """The item of FROM and the value of a qualified column; None for anything else."""
    while isinstance(node, exp.Paren):
        node = node.this
    if not isinstance(node, exp.Column):
        return None
    alias = name_of(node.args["table"]) if node.args.get("table") else None
    found = [
        (i, c.value)
        for i, t in enumerate(scope.tables)
        for c in t.columns
        if c.name == name_of(node.this) and alias in (None, t.alias)
    ]
    return found[0] if len(found) == 1 else None


def _check_pair(
    first: Value | None, second: Value | None, windowed: Windowed, node: exp.Expression, ctx: Context
) -> None:
    one, other = (windowed.get(v.expression.sql()) if v is not None else None for v in (first, second))
    if one is not None and other is not None and one != other:
        raise ctx.error(
            "WINDOW_JOIN",
            "window join of different windows",
            node,
            detail=f"One side has windows of {one}; the other of {other}.",
            hint="Both sides of a window join take the same window function and size.",
        )

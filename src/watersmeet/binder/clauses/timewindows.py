"""Binds time windows in FROM (TUMBLE, HOP), the order in which rows arrive, and filters of late rows.

RisingWave, "Joins", "Window joins"; RW-29 to RW-33, RA-10, RA-12; RisingWave, "Time window functions". For a row whose
time is NULL, TUMBLE outputs NULL as `window_start` and `window_end`; HOP drops the row.

**Arrival.** LATEST, the versions of an ASOF join, and `changelog(stream, key)` use the newest rows of each key
(Timeplus, "Multi-JOINs and ASOF JOINs", "ASOF JOIN", "LATEST JOIN", "Changelog Streams"). Every written row counts,
even if it replaces one with the same primary key, as in Proton. `Semantics.row_order` sets the order for first_value,
last_value, lag and others: by arrival, or by ROWTIME with ties by arrival.

**Late rows** are dropped from range joins, whose state would otherwise grow without limit (TP-31; Timeplus,
"Multi-JOINs and ASOF JOINs", "Range Bidirectional JOIN"). In Proton a row is late if it is older, by more than the
length of the range, than the lesser of the greatest times of both sides. Watersmeet compares with the greatest times of
earlier epochs, so no row within the range of the present is dropped, and rows that only late rows could match are not
kept. EMIT AFTER WINDOW CLOSE works the same way for a stream without watermark: a row is late for a window that ended
before the greatest time of earlier epochs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

import duckdb
from sqlglot import exp

from watersmeet.algebra.nodes import (
    Apply,
    Arrivals,
    Column,
    Cut,
    Filter,
    Join,
    LateRowFilter,
    Node,
    Project,
    Scan,
    SortKey,
    TemporalJoin,
    TimeFilter,
    TopN,
    Unnest,
    Window,
)
from watersmeet.algebra.properties import keeps_order
from watersmeet.algebra.scalars import Scalar
from watersmeet.algebra.timewindows import TimeWindow, duration_us
from watersmeet.algebra.trees import read
from watersmeet.algebra.watermarks import time_bounds, watermarks
from watersmeet.binder.clauses.closing import in_order_of_time
from watersmeet.binder.clauses.sources import (
    alias_of,
    bind_derived,
    bind_table,
    catalog_relation,
    check_arguments,
    scan,
)
from watersmeet.binder.context.binding import Environment, check_alias_list, condition_parts, scope_columns, value_of
from watersmeet.binder.context.emissions import change_kind
from watersmeet.binder.context.rules import Binding, BindQuery, NamedItem, Sourced
from watersmeet.binder.context.scope import Scope, ScopeContext, single
from watersmeet.catalog import Input, LateRows
from watersmeet.dialects.tree.nodes import RelationArgument, own_parts
from watersmeet.dialects.tree.queries import name_of, node_span
from watersmeet.errors import Error
from watersmeet.expressions.casts import text_of
from watersmeet.expressions.context import Context, RowOrder, Value, duckdb_cast, fill, number
from watersmeet.expressions.scalars import bind_value
from watersmeet.values.spans import own_span, set_span
from watersmeet.values.types import BIGINT, BOOLEAN, INTERVAL, TIMESTAMP, SqlType
from watersmeet.values.watermarks import Idle, Term, Watermark, both, floored, shifted

#: The function in FROM that returns the late rows of a relation.
_LATE_ROWS: Final = "late_rows"


def newest(
    node: Node, keys: Sequence[Scalar], binding: Binding, *, limit: int = 1, value: Scalar | None = None
) -> tuple[Node, tuple[Column, Column]] | None:
    """For each value of `keys`, the `limit` rows of `node` that arrived last, or that have the greatest `value` (the
    newest among equals).

    The rows have the two columns that order them by arrival, the newest first. The result is None if the order is
    unknown; it is known for tables and sources, also under filters and projections.
    """
    found = arrivals(node, binding)
    if found is None:
        return None
    rows, age = found
    order = [SortKey(read(c)) for c in age]
    if value is not None:
        order.insert(0, SortKey(value, descending=True))
    return TopN(rows, tuple(keys), tuple(order), limit), age


def new_age(binding: Binding) -> tuple[Column, Column]:
    """The two columns of `Arrivals`."""
    return (binding.new_column("_epoch", BIGINT, nullable=False), binding.new_column("_seq", BIGINT, nullable=False))


def arrivals(
    node: Node, binding: Binding, *, unnested: bool = False, joined: bool = False
) -> tuple[Node, tuple[Column, Column]] | None:
    """All written rows of `node`, with the two columns that order them by arrival, the newest first; None if the order
    is unknown.

    unnested: whether to accept nodes that turn a row into several (HOP), which arrive together. joined: whether to
    accept joins that are decided when a left row arrives, whose results of a row arrive together, and rows that waited
    for a watermark after they had arrived.
    """
    if isinstance(node, Scan):
        relation = binding.catalog.relations[node.relation_id]
        if not isinstance(relation, Input) or (relation.connector and relation.primary_key):
            return None
        if relation.mode == "changelog":  # the newest row may be deleted later
            return None
        age = new_age(binding)
        return Arrivals(node, age, 0 if node.append_only else binding.moment), age
    if joined and (
        (isinstance(node, TemporalJoin) and not node.waits)
        or (isinstance(node, Apply) and node.arrival and node.kind in ("inner", "left"))
    ):
        found = arrivals(node.left, binding, unnested=unnested, joined=True)
        return None if found is None else (replace(node, left=found[0]), found[1])
    if isinstance(node, Arrivals):
        return node, node.age
    if isinstance(node, LateRowFilter) and node.age:
        by_id = {c.id: c for c in node.columns}
        return node, (by_id[node.age[0]], by_id[node.age[1]])
    if not joined and (final := in_order_of_time(node)) is not None and not isinstance(node, Filter | Project):
        return _aged(*final, binding)
    if isinstance(node, TimeFilter) and node.final and joined:
        found = arrivals(node.input, binding, unnested=unnested, joined=True)
        return None if found is None else (replace(node, input=found[0]), found[1])
    if isinstance(node, Cut) and node.keeps == "before":
        return None
    if not isinstance(node, (Cut, Filter, LateRowFilter, Project, Unnest, Window)):
        return None
    if (isinstance(node, Unnest) and not unnested) or (isinstance(node, Window) and not keeps_order(node)):
        return None
    found = arrivals(node.input, binding, unnested=unnested, joined=joined)
    if found is None:
        return None
    below, age = found
    if isinstance(node, Project):
        added = [c for c in age if c not in node.outputs]
        return replace(node, input=below, outputs=(*node.outputs, *added), exprs=(*node.exprs, *map(read, added))), age
    return replace(node, input=below), age


def _aged(rows: Node, order: Sequence[Column], binding: Binding) -> tuple[Node, tuple[Column, Column]]:
    """The rows, which are output in the order of a time, with columns for this order, the newest first."""
    age, time = new_age(binding), order[0]
    newest = fill("-epoch_us(a0)", duckdb_cast(read(time).expression, TIMESTAMP))
    values = (Scalar(newest, BIGINT, time.nullable), Scalar(number(0), BIGINT, nullable=False))
    return Project(rows, (*rows.columns, *age), (*map(read, rows.columns), *values)), age


class StreamOrder(RowOrder):
    """The row order of `relation`. The columns that order it are read only if a function needs them."""

    def __init__(self, relation: Node, scope: Scope, binding: Binding) -> None:
        self.relation = relation
        self._scope = scope
        self._binding = binding
        self._keys: tuple[SortKey, ...] | None = None
        self._asked = False

    @property
    def known(self) -> tuple[SortKey, ...] | None:
        if not self._asked:
            self._keys, self._asked = self._found(), True
        return self._keys

    def _found(self) -> tuple[SortKey, ...] | None:
        time: tuple[SortKey, ...] = ()
        if self._binding.rules.semantics.row_order == "rowtime":
            rowtime = self._rowtime()
            if rowtime is None:
                return None
            time = (SortKey(rowtime),)
        appended = change_kind(self.relation) == "append"
        if appended and not time and (final := in_order_of_time(self.relation)) is not None:
            self.relation, columns = final
            return tuple(SortKey(read(c)) for c in columns)
        found = arrivals(self.relation, self._binding, unnested=True, joined=bool(time)) if appended else None
        if found is None:
            known = self._binding.rules.time_of_rows(self._scope)
            return time or (None if known is None else (SortKey(known),))
        self.relation, age = found
        return (*time, *(SortKey(read(c), descending=True) for c in age))

    def _rowtime(self) -> Scalar | None:
        """The rowtime of a stream's rows; in a query that ends, of its stored rows."""
        stream = self._scope.stream
        if stream is not None or not self._binding.rules.batch:
            return None if stream is None else stream.rowtime.value.finish()
        node = self.relation
        while isinstance(node, (Filter, Project, Unnest)):
            node = node.input
        times = {i for i, _ in node.watermarks} if isinstance(node, Scan) else set()
        return next((read(c) for c in self.relation.columns if c.id in times), None)


def without_late_rows(joined: Join, binding: Binding) -> Join:
    """The join with late-row filters on both sides; unchanged if a side has no clock."""
    for bound in time_bounds(joined):
        left, right = bound.left.column, bound.right.column
        if left is None or right is None or bound.lo_us is None or bound.hi_us is None:
            continue
        one, other = clock_of(joined.left, left, binding), clock_of(joined.right, right, binding)
        marks = [
            _mark(side, column, clock)
            for side, column, clock in ((joined.left, left, one), (joined.right, right, other))
        ]
        if all(marks):
            late = shifted(both(*marks), -max(-bound.lo_us, bound.hi_us))
            return replace(
                joined,
                left=_late_row_filter(joined.left, left, one, late),
                right=_late_row_filter(joined.right, right, other, late),
            )
    return joined


def without_closed(rows: Node, start: Column, relation: Node, time: str, window: TimeWindow, binding: Binding) -> Node:
    """The rows of a stream with the starts of their windows, except for rows that arrived after their window had
    closed.

    relation: the stream. time: the column that determines the windows. A window closes when the clock has passed its
    end by the delay of EMIT. Rows stay unchanged if the column has a watermark or no clock.
    """
    clock = clock_of(relation, time, binding)
    closing = binding.closing
    if clock is None or closing is None:
        return rows
    binding.collected.delayed = True
    idle = None
    if closing.idle_us is not None:  # after the rise, all windows with a row have ended
        idle = Idle(closing.idle_us, window.size_us + closing.delay_us)
        clock = (*clock[:2], f"{clock[2]}~{idle.after_us}+{idle.rises_us}")
    ended_us = closing.delay_us + window.size_us
    late = shifted(floored(shifted((Term(clock[2]),), -ended_us), window.slide_us, window.offset_us), window.slide_us)
    return LateRowFilter(rows, start.id, late, *clock, idle=idle)


def _mark(side: Node, column: str, clock: tuple[str, str, str] | None) -> Watermark:
    """The watermark of a side: the one that it already has, or its greatest time so far."""
    return watermarks(side).get(column, ()) if clock is None else (Term(clock[2]),)


def clock_of(side: Node, column: str, binding: Binding) -> tuple[str, str, str] | None:
    """The relation, column and number of a side's clock; None for times with a watermark or without a clock."""
    if column in watermarks(side):
        return None
    node = side
    while isinstance(node, (Cut, Filter, Project)):
        if isinstance(node, Project):
            exprs = {c.id: e.column for c, e in zip(node.outputs, node.exprs, strict=True)}
            found = exprs.get(column)
            if found is None:
                return None
            column = found
        node = node.input
    if not isinstance(node, Scan):
        return None
    relation = binding.catalog.relations[node.relation_id]
    if not relation.append_only or relation.is_fed_by_circuit:
        return None
    name = next(n for c, n in zip(node.outputs, node.source_names, strict=True) if c.id == column)
    return relation.id, name, f"{relation.id}.{name}@{binding.moment}"


def _late_row_filter(side: Node, column: str, clock: tuple[str, str, str] | None, late: Watermark) -> Node:
    return side if clock is None else LateRowFilter(side, column, late, *clock)


NAMES: Final = ("window_start", "window_end")
_CALL: Final = frozenset({"this", "alias", "joins"})
_WORKAROUND: Final = "Consider using an intermediate CTE or view as workaround."

#: The greatest number of windows of HOP that may contain one row.
_MOST_WINDOWS: Final = 1_000_000

_TIMES: Final = ("timestamp with time zone", "timestamp", "date")

#: The columns with a window's start or end, by their SQL.
Windowed = Mapping[str, TimeWindow]


def relation_argument(node: exp.Table) -> exp.Table | None:
    """The first argument of a function in FROM as an item of FROM; None unless it is a name."""
    first = node.this.expressions[0] if node.this.expressions else None
    if not isinstance(first, exp.Column) or not isinstance(first.this, exp.Identifier):
        return None
    schema = first.args.get("table")
    made: exp.Table = node.copy()
    for part in ("alias", "joins"):
        made.set(part, None)
    made.set("this", first.this.copy())
    made.set("db", None if schema is None else schema.copy())
    return made


@dataclass(frozen=True)
class WindowCall:
    """`TUMBLE(relation, time, size [, offset])` or `HOP(relation, time, slide, size [, offset])` as an item of FROM."""

    function: Literal["tumble", "hop"]
    node: exp.Table

    @property
    def call(self) -> exp.Expression:
        """The call itself."""
        found: exp.Expression = self.node.this
        return found

    @property
    def alias(self) -> tuple[str, tuple[str, ...]]:
        """The qualifier of the columns (the alias, or the name of the relation), and the aliases of the columns."""
        alias, names = alias_of(self.node)
        first = self.call.expressions[0]
        return alias or ("" if isinstance(first, RelationArgument) else name_of(first.this)), names

    def relation(self, ctx: Context) -> exp.Table:
        """The first argument as an item of FROM. Raises FEATURE_NOT_SUPPORTED unless it is a name."""
        check_arguments(self.node, _CALL | own_parts(self.node), ctx.text, "a time window function")
        arguments = self.call.expressions
        first = arguments[0] if arguments else None
        named = self.named
        if named is None:
            raise ctx.error(
                "FEATURE_NOT_SUPPORTED",
                "the 1st arg of window table function should be a table name (incl. source, "
                "CTE, view) but not complex structure (subquery, join, another table function)",
                self.call if first is None else first,
                hint=_WORKAROUND,
            )
        return named

    @property
    def named(self) -> exp.Table | None:
        """The first argument as an item of FROM; None unless it is a name."""
        return relation_argument(self.node)

    def read(self, scope: Scope, ctx: Context, *, uneven: bool) -> tuple[TimeWindow, Value]:
        """The windows, and the time as timestamp (also for a date) or timestamptz. scope: the scope of the relation.
        uneven: whether the size of HOP may be no multiple of its slide.
        """
        time = self._time(scope, ctx)
        for column in scope.visible:
            if column.name in NAMES:
                raise ctx.error(
                    "DUPLICATE_COLUMN",
                    "column names `window_start` and `window_end` are not allowed in window table function's input",
                    self.call.expressions[0],
                )
        lengths = [self._length(a, ctx) for a in self.call.expressions[2:]]
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
                self.call,
                detail=f"Its arguments are {self.function.upper()}({form}).",
            )
        return self._window([us for us, _ in lengths], [text for _, text in lengths], ctx, uneven=uneven), time

    def _time(self, scope: Scope, ctx: Context) -> Value:
        argument = self.call.expressions[1] if len(self.call.expressions) > 1 else None
        if not isinstance(argument, exp.Column):
            raise ctx.error(
                "FEATURE_NOT_SUPPORTED",
                "the 2nd arg of window table function should be a column name but not complex expression",
                self.call if argument is None else argument,
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
        """A length in microseconds, and as PostgreSQL prints it. Raises INVALID_PARAMETER, FEATURE_NOT_SUPPORTED."""
        if isinstance(node, exp.Literal) and node.is_string:  # its type is unknown, as in PostgreSQL
            span = own_span(node)
            node = exp.cast(node.copy(), exp.DataType.Type.INTERVAL)
            set_span(node, span)
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

    def _window(self, lengths: Sequence[int], texts: Sequence[str], ctx: Context, *, uneven: bool) -> TimeWindow:
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
        if slide > size and uneven:
            raise self._refused(f"the slide {texts[0]} of HOP exceeds its size {texts[1]}", 2, ctx)
        if size % slide and not uneven:
            raise self._refused(
                f"Invalid arguments for HOP window function: window_size {texts[1]} cannot be divided by "
                f"window_slide {texts[0]}",
                3,
                ctx,
            )
        if size // slide > _MOST_WINDOWS:
            message = f"a HOP window function with more than {_MOST_WINDOWS:,} windows for each row"
            raise ctx.not_supported(message, self.call.expressions[2])
        return TimeWindow("hop", slide, size, offset % slide)

    def _refused(self, message: str, argument: int, ctx: Context) -> Error:
        return ctx.error("INVALID_PARAMETER", message, self.call.expressions[argument])


def _is_nothing(value: Value, ctx: Context) -> bool:
    """Whether a constant is NULL."""
    try:
        return ctx.constant(value.expression) is None
    except duckdb.OutOfRangeException:  # an interval that Python can't represent
        return False


def window_call(node: exp.Expression) -> WindowCall | None:
    """The call of TUMBLE or HOP in an item of FROM, or None."""
    if isinstance(node, exp.Table) and isinstance(node.this, exp.Anonymous):
        name = node.this.name.lower()
        if name in ("tumble", "hop"):
            return WindowCall("tumble" if name == "tumble" else "hop", node)
    return None


def bind_window_call(call: WindowCall, env: Environment, binding: Binding, bind: BindQuery) -> Sourced:
    """The relation of the call and its scope. The two columns are added to `binding.collected.windowed`."""
    ctx = Context(env.text, "a time window function")
    first = call.call.expressions[0] if call.call.expressions else None
    if isinstance(first, RelationArgument):
        relation, scope = bind_derived(first, env, binding, bind)
    else:
        relation, scope = bind_table(call.relation(ctx), env, binding, bind)
    window, time = call.read(scope, ctx, uneven=binding.rules.semantics.uneven_hops)
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
        if window.size_us % window.slide_us:  # the oldest start may be that of a window that ended before the row
            inside = exp.GT(this=window.end(read(start).expression), expression=scalar.expression.copy())
            made = Filter(made, Scalar(inside, BOOLEAN, nullable=False))
    partition = binding.rules.substream(call.node, scope, env)
    if binding.closing is not None and scalar.column is not None and partition is None:
        made = without_closed(made, start, relation, scalar.column, window, binding)
    last = Scalar(window.end(read(start).expression), time.type, start.nullable)
    made = Project(made, (*made.columns, end), (*passed, read(start), last))
    for column in (start, end):
        binding.collected.windowed[value_of(column).expression.sql()] = window
    binding.collected.window_ends.add(value_of(end).expression.sql())
    title, names = call.alias
    item = f'table "{title}"'
    check_alias_list(names, len(shown) + 2, item, env.text, node_span(call.node))
    called = (*names, *[*shown, *NAMES][len(names) :])
    found = binding.rules.item_scope(made, NamedItem(title, called, item, call.node), env)
    if binding.closing is None or partition is None:
        return made, found
    return binding.rules.closed(made, partition, (scalar, read(end)), call.node, env, binding), found


def check_join(node: exp.Join, left: Scope, right: Scope, windowed: Windowed, ctx: Context) -> None:
    """Raises WINDOW_JOIN if a condition of the join equates columns of different windows."""
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
    """Raises WINDOW_JOIN if a part of the condition equates columns of different windows of two items of `scope`."""
    if not windowed:
        return
    for part in condition_parts(condition):
        if isinstance(part, (exp.EQ, exp.NullSafeEQ)):
            first, second = (_found(side, scope) for side in (part.this, part.expression))
            if first is not None and second is not None and first[0] != second[0]:
                _check_pair(first[1], second[1], windowed, part, ctx)


def _found(node: exp.Expression, scope: Scope) -> tuple[int, Value] | None:
    """The item of FROM and the value of a qualified column; None for other expressions."""
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


def names_late_rows(node: exp.Expression) -> bool:
    """Whether an item of FROM is `late_rows(relation [, number])`."""
    call = node.this if isinstance(node, exp.Table) else None
    return isinstance(call, exp.Anonymous) and call.name.lower() == _LATE_ROWS


def bind_late_rows(node: exp.Expression, env: Environment, binding: Binding) -> Sourced:
    """The rows of `late_rows(relation [, number])`. number: which of the operators of a view has dropped the rows.

    Raises FEATURE_NOT_SUPPORTED in a query that does not end, and for a relation of which no row is ever late;
    UNDEFINED_RELATION; INVALID_PARAMETER for a number that the view doesn't have, or that is missing.
    """
    named = relation_argument(node)
    assert isinstance(node, exp.Table)
    which = node.this.expressions[1] if len(node.this.expressions) == 2 else None
    is_number = isinstance(which, exp.Literal) and which.this.isdecimal() and not which.is_string
    if named is None or (len(node.this.expressions) != 1 and not is_number):
        raise env.error(
            "SYNTAX_ERROR", "the argument of late_rows must be the name of a source, table, stream or view", node
        )
    if not binding.rules.batch:
        raise env.not_supported(
            f"late_rows in {binding.rules.query_called}",
            node,
            hint="INSERT INTO table SELECT … FROM late_rows(…) writes them into a table that it can read.",
        )
    relation = catalog_relation(named, binding.catalog, env.text, env.ctes)
    binding.depend(relation.id)
    kept = [r for r in binding.catalog.relations.values() if isinstance(r, LateRows) and r.owner == relation.id]
    if not kept:
        raise env.error(
            "FEATURE_NOT_SUPPORTED",
            f"{relation.title} has no late rows",
            named,
            detail="Rows are only late in sources, append-only tables and streams with WATERMARK FOR, and in views "
            "whose joins or windows have a clock of their own.",
        )
    late = next((r for r in kept if (len(kept) == 1 if which is None else r.number == int(which.this))), None)
    if late is None:
        places = (
            f"late_rows({relation.shown}, {r.number}): "
            f"{' and '.join(binding.catalog.relations[i].title for i in r.reads)}"
            for r in kept
        )
        raise env.error(
            "INVALID_PARAMETER",
            f"{relation.title} drops late rows in {len(kept)} places"
            if which is None
            else f"{relation.title} has no place number {which.this} that drops late rows",
            which or named,
            hint=f"{'; '.join(places)}." if kept[0].reads else f"Write late_rows({relation.shown}).",
        )
    alias, names = alias_of(node)
    tree = scan(late, binding)
    title = alias or _LATE_ROWS
    check_alias_list(names, len(tree.outputs), f'table "{title}"', env.text, node_span(node))
    return tree, single(title, scope_columns(tree.outputs, names))

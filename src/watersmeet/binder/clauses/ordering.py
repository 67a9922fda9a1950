"""Binds ORDER BY, LIMIT, OFFSET, FETCH FIRST and DISTINCT ON, which become a TopN, and window functions.

ORDER BY without LIMIT has no effect in a view.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

import duckdb
from sqlglot import exp

from watersmeet.algebra.nodes import Column, Node, Project, SortKey, TopN, Window, WindowCall, WindowFrame
from watersmeet.algebra.scalars import Scalar
from watersmeet.algebra.trees import read
from watersmeet.binder.context.binding import Bound, Environment, Item, OutputColumn, value_of
from watersmeet.binder.context.rules import Binding
from watersmeet.binder.context.scope import ScopeContext
from watersmeet.circuit.operators import COLLECTED
from watersmeet.dialects.tree.nodes import SessionOrder, sql_of
from watersmeet.dialects.tree.queries import name_of
from watersmeet.expressions.aggregatecalls import aggregate_name, bind_call, written
from watersmeet.expressions.calls import constant_of
from watersmeet.expressions.casts import cast, unify
from watersmeet.expressions.clock import check_elapsed
from watersmeet.expressions.context import (
    Context,
    Value,
    duckdb_cast,
    fill,
    first_line,
    is_utc,
    number,
    ranked,
    string,
)
from watersmeet.expressions.scalars import bind_condition, bind_value
from watersmeet.values.types import BIGINT, DOUBLE, INTEGER, INTERVAL, TIMESTAMPTZ, VARCHAR

_NO_EFFECT: Final = "ORDER BY without LIMIT has no effect in a view; order the rows when you read it"
_UNORDERED: Final = ("array", "struct", "map")

#: Every number with fewer digits is a bigint.
_DIGITS: Final = 19


@dataclass(frozen=True)
class Limits:
    """LIMIT and OFFSET of a query. limit: None without LIMIT."""

    limit: int | None
    offset: int
    with_ties: bool


def limits_of(node: exp.Expression, ctx: Context) -> Limits | None:
    """The constants of LIMIT, OFFSET and FETCH of a query; None if it has none of them and its order is
    insignificant.
    """
    limit, offset = node.args.get("limit"), node.args.get("offset")
    with_ties, count = False, None
    if isinstance(limit, exp.Fetch):
        options = limit.args.get("limit_options")
        if options is not None and options.args.get("percent"):
            raise ctx.not_supported("FETCH … PERCENT", limit)
        with_ties = options is not None and bool(options.args.get("with_ties"))
        count = _count(limit.args.get("count") or exp.Literal.number(1), "FETCH", ctx)
        if with_ties and node.args.get("order") is None:
            raise ctx.error("SYNTAX_ERROR", "WITH TIES cannot be specified without ORDER BY clause", limit)
    elif limit is not None and limit.expression.name.upper() != "ALL":
        count = _count(limit.expression, "LIMIT", ctx)
    skipped = 0 if offset is None else _count(offset.expression, "OFFSET", ctx) or 0
    ordered = ctx.batch and node.args.get("order") is not None  # all rows in this order
    return None if count is None and not skipped and not ordered else Limits(count, skipped, with_ties)


def _count(node: exp.Expression, where: str, ctx: Context) -> int | None:
    """The number in LIMIT or OFFSET; None for NULL."""
    if isinstance(node, exp.Literal) and not node.is_string and node.name.isdecimal() and len(node.name) < _DIGITS:
        return int(node.name)  # needs no evaluation, and so no further DuckDB
    place = Context(ctx.text, where, batch=ctx.batch)
    value = bind_value(node, place)
    if value.unknown:
        value = cast(value, BIGINT, place, node)
    if not value.type.is_numeric:
        raise place.error(
            "DATATYPE_MISMATCH", f"argument of {where} must be type bigint, not type {value.type.sql}", node
        )
    try:
        number = ctx.constant(cast(value, BIGINT, place, node).finish().expression)
    except duckdb.Error as err:
        raise place.error("INVALID_VALUE", first_line(err), node) from None
    if number is not None and number < 0:
        raise place.error("INVALID_VALUE", f"{where} must not be negative", node)
    return None if number is None else int(number)


def output_position(node: exp.Expression, names: Sequence[str | None], clause: str, ctx: Context) -> int | None:
    """The index of the output that an item of ORDER BY or DISTINCT ON names or numbers; None for an expression."""
    if isinstance(node, exp.Literal) and not node.is_string:
        position = int(node.name) if node.name.isdecimal() else 0
        if not 1 <= position <= len(names):
            raise ctx.error("SYNTAX_ERROR", f"{clause} position {node.name} is not in select list", node)
        return position - 1
    if isinstance(node, exp.Column) and node.args.get("table") is None:
        name = name_of(node.this)
        found = [i for i, n in enumerate(names) if n == name]
        return found[0] if found else None
    return None


def sort_key(node: exp.Expression, value: Value, ctx: Context) -> SortKey:
    """The key of one item of ORDER BY. By default NULLs sort as larger than all values."""
    if value.type.has_map or (value.type.name in _UNORDERED and not ctx.batch):
        raise ctx.not_supported(f"ORDER BY of a value of type {value.type.sql}", node)
    descending = bool(node.args.get("desc"))
    nulls_first = node.args.get("nulls_first")
    # sqlglot sets `nulls_first` by PostgreSQL's rule if nothing is written.
    return SortKey(ranked(value).finish(), descending, descending if nulls_first is None else bool(nulls_first))


def ordered_items(node: exp.Expression) -> list[Any]:
    """The items of the query's ORDER BY."""
    order = node.args.get("order")
    return [] if order is None else list(order.expressions)


def ended(bound: Bound, node: exp.Expression, env: Environment, binding: Binding) -> Bound:
    """Adds ORDER BY and LIMIT to a set operation, VALUES or query in parentheses. They can only read output columns."""
    ctx = Context(env.text, "ORDER BY", batch=binding.rules.batch)
    items = ordered_items(node)
    keys = [sort_key(o, _of_output(o.this, bound.outputs, ctx), ctx) for o in items]
    limits = limits_of(node, ctx)
    if limits is None:
        note_order(items, binding)
        return bound
    return Bound(limited(bound.relation, keys, limits), bound.outputs)


def note_order(items: Sequence[exp.Expression], binding: Binding) -> None:
    """Adds the notice that ORDER BY without LIMIT has no effect."""
    if items:
        binding.notice(_NO_EFFECT)


def limited(relation: Node, keys: Sequence[SortKey], limits: Limits) -> Node:
    """The rows of `relation` that LIMIT and OFFSET select."""
    return TopN(relation, (), tuple(keys), limits.limit, limits.offset, limits.with_ties)


def _of_output(node: exp.Expression, outputs: Sequence[OutputColumn], ctx: Context) -> Value:
    position = output_position(node, [o.column.name for o in outputs], "ORDER BY", ctx)
    if position is not None:
        return value_of(outputs[position].column)
    if isinstance(node, exp.Column):
        raise ctx.error("UNDEFINED_COLUMN", f'column "{node.name}" does not exist', node)
    raise ctx.not_supported(
        "an expression in ORDER BY of a set operation",
        node,
        hint="Name an output column, or write the query as a subquery in FROM.",
    )


@dataclass(frozen=True)
class OrderLimit:
    """ORDER BY, LIMIT, OFFSET and DISTINCT ON of a SELECT, bound over the input rows of its select list.

    keys: the items of ORDER BY. on: the expressions of DISTINCT ON, or None. limits: None without LIMIT and OFFSET.
    """

    node: exp.Expression
    keys: tuple[SortKey, ...]
    on: tuple[Scalar, ...] | None
    limits: Limits | None

    def below(self, relation: Node) -> Node:
        """Restricts `relation`, the input of the select list, to the rows to output."""
        if self.on is not None:
            relation = TopN(relation, self.on, self.keys[self._matching() :], 1)
        return relation if self.limits is None else limited(relation, self.keys, self.limits)

    def _matching(self) -> int:
        """The number of leading keys that are also in DISTINCT ON, and so are equal in all rows that it compares."""
        on = [s.expression for s in self.on or ()]
        return next((i for i, k in enumerate(self.keys) if k.value.expression not in on), len(self.keys))

    def check(self, ctx: Context) -> None:
        """Raises SYNTAX_ERROR if ORDER BY does not begin with the expressions of DISTINCT ON."""
        count = len({s.expression for s in self.on or ()})
        if (
            self.on is not None
            and self.keys
            and len({k.value.expression for k in self.keys[: self._matching()]}) < min(count, len(self.keys))
        ):
            raise ctx.error(
                "SYNTAX_ERROR",
                "SELECT DISTINCT ON expressions must match initial ORDER BY expressions",
                ordered_items(self.node)[0],
            )

    def above(self, relation: Node, items: Sequence[Item], ctx: Context) -> Node:
        """Restricts `relation`, the distinct rows of the select list, to those that LIMIT selects."""
        keys = []
        for key, place in zip(self.keys, ordered_items(self.node), strict=True):
            same = [i for i, (v, _, _) in enumerate(items) if ranked(v).finish().expression == key.value.expression]
            if not same:
                raise ctx.error(
                    "SYNTAX_ERROR", "for SELECT DISTINCT, ORDER BY expressions must appear in select list", place
                )
            column = relation.columns[same[0]]
            keys.append(SortKey(ranked(value_of(column)).finish(), key.descending, key.nulls_first))
        return relation if self.limits is None else limited(relation, keys, self.limits)


def order_limit_of(node: exp.Expression, items: Sequence[Item], ctx: Context) -> OrderLimit:
    """The ORDER BY, LIMIT, OFFSET and DISTINCT ON of a SELECT whose select list `items` was bound by `ctx`."""
    names = [n for _, n, _ in items]

    def value(part: exp.Expression, clause: str) -> Value:
        position = output_position(part, names, clause, ctx)
        return bind_value(part, ctx) if position is None else items[position][0]

    keys = tuple(sort_key(o, value(o.this, "ORDER BY"), ctx) for o in ordered_items(node))
    clause = node.args.get("distinct")
    on = clause.args.get("on") if isinstance(clause, exp.Distinct) else None
    scalars = None
    if on is not None:
        parts = on.expressions if isinstance(on, exp.Tuple) else [on.this if isinstance(on, exp.Paren) else on]
        scalars = tuple(ranked(value(p, "SELECT DISTINCT ON")).finish() for p in parts)
    found = OrderLimit(node, keys, scalars, limits_of(node, ctx))
    found.check(ctx)
    return found


#: The functions that depend on the whole partition, with their result types.
_RANKS: Final = {
    "row_number": BIGINT,
    "rank": BIGINT,
    "dense_rank": BIGINT,
    "percent_rank": DOUBLE,
    "cume_dist": DOUBLE,
}

_VALUES: Final = ("first_value", "last_value", "nth_value")
_NEIGHBOURS: Final = ("lag", "lead")
_NULLS: Final = (exp.IgnoreNulls, exp.RespectNulls)
_LEAST: Final = {"ntile": 1, "nth_value": 1}
_FROM_START: Final = WindowFrame("rows", None, 0)

NO_PARTITION: Final = (
    "Window function with empty PARTITION BY: all rows are one partition, which is kept in one bucket and "
    "computed again "
    "whenever a row changes. Write PARTITION BY, or ORDER BY … LIMIT if you want the first rows."
)


@dataclass(frozen=True)
class Definition:
    """The content of the parentheses after OVER. session: ORDER BY with a frame SESSION WITH GAP."""

    partition: tuple[exp.Expression, ...]
    order: tuple[Any, ...]
    spec: exp.Expression | None
    session: SessionOrder | None = None


class Definitions:
    """The windows of a WINDOW clause."""

    def __init__(self, nodes: Sequence[exp.Window], ctx: Context) -> None:
        self._named: dict[str, Definition] = {}
        for node in nodes:
            name = name_of(node.this)
            if name in self._named:
                raise ctx.error("SYNTAX_ERROR", f'window "{name}" is already defined', node)
            self._named[name] = self.of(node, ctx)

    def of(self, node: exp.Window, ctx: Context) -> Definition:
        """The definition in OVER, completed by the window that it names."""
        order = node.args.get("order")
        found = Definition(
            tuple(node.args.get("partition_by") or ()),
            tuple(order.expressions) if order is not None else (),
            node.args.get("spec"),
            order if isinstance(order, SessionOrder) else None,
        )
        if node.args.get("alias") is None:
            return found
        name = name_of(node.args["alias"])
        base = self._named.get(name)
        if base is None:
            raise ctx.error("UNDEFINED_OBJECT", f'window "{name}" does not exist', node.args["alias"])
        if found.partition:
            raise ctx.error("SYNTAX_ERROR", f'cannot override PARTITION BY clause of window "{name}"', node)
        if found.order and base.order:
            raise ctx.error("SYNTAX_ERROR", f'cannot override ORDER BY clause of window "{name}"', node)
        if base.spec is not None and (found.order or found.spec is not None):
            raise ctx.error("SYNTAX_ERROR", f'cannot copy window "{name}" because it has a frame clause', node)
        spec, session = base.spec if found.spec is None else found.spec, found.session or base.session
        return Definition(base.partition, base.order or found.order, spec, session)


class Windows:
    """Collects the window functions of a SELECT. definitions: the windows of its WINDOW clause. ctx: the context of its
    rows.
    """

    def __init__(self, definitions: Sequence[exp.Window], ctx: ScopeContext, binding: Binding) -> None:
        self.binding = binding
        self._scope = ctx.scope
        self._definitions = Definitions(definitions, ctx)
        self._found: dict[tuple[Scalar, ...], dict[WindowCall, Column]] = {}
        self._sessions: dict[tuple[tuple[Scalar, ...], Scalar, Scalar], Column] = {}

    def add(self, node: exp.Window, ctx: Context) -> Value:
        """The value of a window function. `ctx` binds its parts, which must not contain other window functions."""
        windows, sets, clause = ctx.windowing, ctx.sets, ctx.clause
        ctx.windowing, ctx.sets, ctx.clause = None, None, "a window function"
        try:
            definition = self._definitions.of(node, ctx)
            partition = tuple(dict.fromkeys(bind_value(p, ctx).finish() for p in definition.partition))
            call = self._call(node.this, definition, ctx)
            if definition.session is not None and call.function not in (*_RANKS, *_NEIGHBOURS, "ntile"):
                partition = (*partition, self._session(partition, call, definition.session, ctx))
        finally:
            ctx.windowing, ctx.sets, ctx.clause = windows, sets, clause
        return self.placed(partition, call, ordered=bool(definition.order))

    def placed(self, partition: tuple[Scalar, ...], call: WindowCall, *, ordered: bool) -> Value:
        """The value of a call with this partition. ordered: whether its window has an ORDER BY."""
        if not partition and not (call.function == "lag" and not ordered):
            self.binding.notice(NO_PARTITION)
        calls = self._found.setdefault(partition, {})
        if call not in calls:
            name = call.function
            given = name in _NEIGHBOURS and len(call.arguments) > 1 and not any(a.nullable for a in call.arguments)
            never = name in _RANKS or name in ("count", "ntile") or given
            calls[call] = self.binding.new_column(name, call.type, not never)
        return value_of(calls[call])

    def tree(self, relation: Node) -> Node:
        """`relation` with the columns of all functions that were added."""
        for (partition, time, gap), start in self._sessions.items():
            relation = self._with_session(relation, partition, time, gap, start)
        for partition, calls in self._found.items():
            relation = Window(relation, partition, tuple(calls), tuple(calls.values()))
        return relation

    def _session(self, partition: tuple[Scalar, ...], call: WindowCall, node: SessionOrder, ctx: Context) -> Scalar:
        """The start of a row's session, by which the frame SESSION WITH GAP partitions further."""
        if len(call.order) != 1 or call.order[0].descending:
            raise ctx.error("SYNTAX_ERROR", "SESSION WITH GAP requires exactly one ascending ORDER BY column", node)
        time = call.order[0].value
        is_time = time.type.name in ("date", "timestamp", "timestamptz")
        if not is_time and not time.type.is_numeric:
            raise ctx.error("DATATYPE_MISMATCH", f"SESSION WITH GAP does not support {time.type.sql}", node)
        written = bind_value(node.args["gap"], ctx)
        gap = cast(written, INTERVAL if is_time else time.type, ctx, node.args["gap"])
        least = duckdb_cast(string("0 seconds"), INTERVAL) if is_time else number(0)
        try:
            positive = ctx.constant(exp.GT(this=gap.finish().expression, expression=least))
        except duckdb.Error:
            positive = None
        if time.type == TIMESTAMPTZ and not is_utc():
            check_elapsed(gap.finish().expression, "the gap of a session", ctx, node.args["gap"])
        if not positive:
            raise ctx.error("INVALID_VALUE", "the gap of a session must be a positive constant", node.args["gap"])
        key = (partition, time, gap.finish())
        if key not in self._sessions:
            self._sessions[key] = self.binding.new_column("session", time.type, nullable=True)
        return value_of(self._sessions[key]).finish()

    def _with_session(
        self, relation: Node, partition: tuple[Scalar, ...], time: Scalar, gap: Scalar, start: Column
    ) -> Node:
        """The rows with the start of their sessions. A row begins one if the row before it is not within the gap
        (RisingWave: a value of at least the last value plus the gap). Rows without a time are one session.
        """
        new, own = self.binding.new_column, relation.columns
        before, first, last = (new(n, time.type, nullable=True) for n in ("before", "first", "last"))
        order = (SortKey(time),)
        lag = WindowCall("lag", (time,), 1, None, order, _FROM_START, time.type)
        rows: Node = Window(relation, partition, (lag,), (before,))
        begins = fill(
            "CASE WHEN a0 IS NULL OR a1 >= a0 + a2 THEN a1 END",
            read(before).expression,
            time.expression,
            gap.expression,
        )
        rows = Project(rows, (*own, first), (*map(read, own), Scalar(begins, time.type)))
        latest = WindowCall("max", (read(first),), 0, None, order, _FROM_START, time.type)
        rows = Window(rows, partition, (latest,), (last,))
        of_row = fill("CASE WHEN a0 IS NOT NULL THEN a1 END", time.expression, read(last).expression)
        return Project(rows, (*own, start), (*map(read, own), Scalar(of_row, time.type)))

    def _call(self, node: exp.Expression, definition: Definition, ctx: Context) -> WindowCall:
        condition = None
        skips = isinstance(node, exp.IgnoreNulls)  # after the parenthesis, or inside it
        if isinstance(node, _NULLS):
            node = node.this
        if isinstance(node, exp.Filter):
            condition = bind_condition(node.expression.this, ctx, "FILTER").finish()
            node = node.this
        name = node.this.lower() if isinstance(node, exp.Anonymous) and isinstance(node.this, str) else ""
        order = tuple(sort_key(o, bind_value(o.this, ctx), ctx) for o in definition.order)
        if not order:
            order = in_arrival_order(node, definition.spec, ctx)
        skips = skips or any(isinstance(p, exp.IgnoreNulls) for p in node.expressions)
        parts = [p.this if isinstance(p, _NULLS) else p for p in node.expressions]
        ranked = name in _RANKS or name in _NEIGHBOURS or name in (*_VALUES, "ntile")
        if any(isinstance(p, exp.Distinct) for p in parts) and (ranked or not ctx.batch):
            raise ctx.not_supported("DISTINCT in a window function", node)
        if ranked:
            if condition is not None:
                raise ctx.not_supported("FILTER for a window function that is not an aggregate", node)
            call = self._ranked(name, parts, node, order, definition, ctx)
            if skips and not (name in _NEIGHBOURS or name in _VALUES):
                raise ctx.not_supported(f"IGNORE NULLS in {name}", node, hint="Its value does not depend on NULLs.")
            if skips and (call.varying is not None or call.number < (name in (*_NEIGHBOURS, "nth_value"))):
                raise ctx.not_supported(f"IGNORE NULLS in {name} with an offset below 1", node, hint="Write 1 or more.")
            return replace(call, skips_nulls=skips)
        if skips:
            raise ctx.not_supported(f"IGNORE NULLS in {name}", node, hint="Aggregates skip NULLs: leave it out.")
        return self._aggregate(name, node, condition, order, definition, ctx)

    def _ranked(
        self,
        name: str,
        parts: list[exp.Expression],
        node: exp.Expression,
        order: tuple[SortKey, ...],
        definition: Definition,
        ctx: Context,
    ) -> WindowCall:
        wanted = {
            "lag": (1, 2, 3),
            "lead": (1, 2, 3),
            "first_value": (1,),
            "last_value": (1,),
            "nth_value": (2,),
            "ntile": (1,),
        }.get(name, (0,))
        if len(parts) not in wanted:
            raise ctx.error(
                "DATATYPE_MISMATCH",
                f"function {name} takes {' or '.join(map(str, wanted))} arguments, not {len(parts)}",
                node,
            )
        if name in _RANKS:
            return WindowCall(name, (), 0, None, order, _FROM_START, _RANKS[name])
        place = {"ntile": 0, "first_value": None, "last_value": None}.get(name, 1)
        given = parts[place] if place is not None and len(parts) > place else None
        varying = None if given is None else _varying(given, ctx)
        number = 1 if given is None or varying is not None else _number(given, name, ctx, least=_LEAST.get(name))
        if name == "ntile":
            return WindowCall(name, (), number, None, order, _FROM_START, INTEGER, varying)
        values = [bind_value(parts[0], ctx)]
        if name in _NEIGHBOURS:
            if len(parts) > 2:
                values.append(bind_value(parts[2], ctx))
            settled, kind = unify(values, [parts[0], *parts[2:]], ctx, name.upper())
            if len(parts) < 3:
                settled = [*settled, *self.binding.rules.missing_neighbor(settled[0], self._scope)]
            return WindowCall(name, tuple(v.finish() for v in settled), number, None, order, _FROM_START, kind, varying)
        value = cast(values[0], VARCHAR, ctx, node) if values[0].unknown else values[0]
        number = 0 if given is None else number
        return WindowCall(name, (value.finish(),), number, None, order, _frame(definition, ctx), value.type, varying)

    def _aggregate(
        self,
        name: str,
        node: exp.Expression,
        condition: Scalar | None,
        order: tuple[SortKey, ...],
        definition: Definition,
        ctx: Context,
    ) -> WindowCall:
        call = written(node)
        if call is None or aggregate_name(node, ctx) is None:
            raise ctx.error(
                "DATATYPE_MISMATCH",
                f"OVER specified, but {name or 'this'} is not a window function nor an aggregate function",
                node,
            )
        found = bind_call(call, lambda _: ctx)
        if ctx.batch:
            whole = replace(found, filter=condition)
            return WindowCall(found.function, (), 0, None, order, _frame(definition, ctx), found.type, aggregate=whole)
        if found.order or found.extra or found.constant is not None or found.function in COLLECTED:
            raise ctx.not_supported(f"{name} as a window function", node)
        arguments = () if found.argument is None else (found.argument,)
        return WindowCall(found.function, arguments, 0, condition, order, _frame(definition, ctx), found.type)


def in_arrival_order(node: exp.Expression, spec: exp.Expression | None, ctx: Context) -> tuple[SortKey, ...]:
    """The row order that the function `node` uses if OVER has no ORDER BY. spec: its frame."""
    rows, call = ctx.row_order, written(node)
    name = "" if call is None else call.name
    if rows is None:
        return ()
    if name in (*_NEIGHBOURS, *_VALUES):
        return rows.keys(node, ctx)
    by_rows = spec is not None and spec.args["kind"].upper() == "ROWS"
    return rows.known or () if by_rows or name in ("row_number", "ntile") else ()


# -- frames -----------------------------------------------------------------------------------------------------
def _number(node: exp.Expression, name: str, ctx: Context, *, least: int | None = None) -> int:
    """A constant integer argument of a window function or frame."""
    value = bind_value(node, Context(ctx.text, f"the number of {name}")) if node.find(exp.Column) is None else None
    if value is None:
        raise ctx.not_supported(
            f"non-const `{'offset' if name in _NEIGHBOURS else 'argument'}` of `{name}` function", node
        )
    if not (value.type.is_integer or value.unknown):
        raise ctx.error("DATATYPE_MISMATCH", f"argument of {name} must be type bigint, not type {value.type.sql}", node)
    number = constant_of(value, BIGINT, node, ctx, example=1)
    if number is None:
        raise ctx.error("INVALID_VALUE", f"argument of {name} must not be null", node)
    if least is not None and number < least:
        raise ctx.error("INVALID_VALUE", f"argument of {name} must be greater than zero", node)
    return int(number)


def _varying(node: exp.Expression, ctx: Context) -> Scalar | None:
    """A non-constant number, which only batch queries allow."""
    if not ctx.batch or node.find(exp.Column) is None:
        return None
    return cast(bind_value(node, ctx), BIGINT, ctx, node).finish()


@dataclass(frozen=True)
class _Bound:
    """A bound of a frame. side: -1 before the row, 1 after it, 0 for CURRENT ROW. distance: None for UNBOUNDED and
    CURRENT ROW.
    """

    side: int
    distance: exp.Expression | None
    unbounded: bool = False

    @property
    def text(self) -> str:
        """The bound as SQL."""
        word = "PRECEDING" if self.side < 0 else "FOLLOWING"
        if self.unbounded:
            return f"UNBOUNDED {word}"
        return "CURRENT ROW" if self.distance is None else f"{sql_of(self.distance, 'postgres')} {word}"


def _bound(spec: exp.Expression, name: str) -> _Bound:
    value, side = spec.args.get(name), -1 if str(spec.args.get(f"{name}_side") or "").upper() == "PRECEDING" else 1
    if value is None or (isinstance(value, str) and value.upper() == "CURRENT ROW"):
        return _Bound(0, None)
    if isinstance(value, str):
        return _Bound(side, None, unbounded=True)
    return _Bound(side, value)


def _frame(definition: Definition, ctx: Context) -> WindowFrame:
    spec = definition.spec
    if definition.session is not None:
        left_out = definition.session.args.get("exclude")
        name = "none" if left_out is None else left_out.name.lower()
        return WindowFrame("rows", None, None, "none" if name == "no others" else name)
    if spec is None:
        return WindowFrame("range", None, 0 if definition.order else None)
    mode: Literal["rows", "range", "groups"] = spec.args["kind"].lower()
    start, end = _bound(spec, "start"), _bound(spec, "end")
    if (
        (start.unbounded and start.side > 0)
        or (end.unbounded and end.side < 0)
        or (not start.unbounded and not end.unbounded and start.side > end.side)
    ):
        raise ctx.error(
            "SYNTAX_ERROR",
            f"window frame bounds `{mode.upper()} BETWEEN {start.text} AND {end.text}` is not valid",
            spec,
        )
    exclude = spec.args.get("exclude")
    left_out = "none" if exclude is None else exclude.name.lower()
    left_out = "none" if left_out == "no others" else left_out
    if mode == "groups" and not definition.order:
        raise ctx.error("SYNTAX_ERROR", "GROUPS mode requires an ORDER BY clause", spec)
    if mode == "range" and (start.distance is not None or end.distance is not None):
        return _range(definition, start, end, left_out, spec, ctx)
    if mode == "range" and not definition.order:
        return WindowFrame("range", None, None, left_out)
    before, after = (None if b.distance is None else _varying(b.distance, ctx) for b in (start, end))
    first = start.side if before is not None else _distance(start, "starting", ctx)
    last = end.side if after is not None else _distance(end, "ending", ctx)
    return WindowFrame(mode, first, last, left_out, before=before, after=after)


def _distance(bound: _Bound, which: str, ctx: Context) -> int | None:
    if bound.unbounded:
        return None
    if bound.distance is None:
        return 0
    number = _number(bound.distance, f"frame {which} offset", ctx)
    if number < 0:
        raise ctx.error("INVALID_VALUE", f"frame {which} offset must not be negative", bound.distance)
    return bound.side * number


def _range(
    definition: Definition, start: _Bound, end: _Bound, exclude: str, spec: exp.Expression, ctx: Context
) -> WindowFrame:
    """A frame of RANGE with offsets; its bounds are values to compare with the sort key."""
    if len(definition.order) != 1:
        raise ctx.error(
            "SYNTAX_ERROR", "RANGE with offset PRECEDING/FOLLOWING requires exactly one ORDER BY column", spec
        )
    (key,) = definition.order
    forward = -1 if key.args.get("desc") else 1
    values, places = [bind_value(key.this, ctx)], [key.this]
    for bound in (start, end):
        if bound.distance is None:
            continue
        if bound.distance.find(exp.Column) is not None:
            raise ctx.not_supported("a frame whose offset is not a constant", bound.distance)
        _check_size(bound.distance, ctx)
        kind = exp.Add if bound.side * forward > 0 else exp.Sub
        values.append(bind_value(kind(this=key.this.copy(), expression=bound.distance.copy()), ctx))
        places.append(bound.distance)
    settled, _ = unify(values, places, ctx, "RANGE")
    value, *bounds = [v.finish() for v in settled]
    low = bounds.pop(0) if start.distance is not None else None
    high = bounds.pop(0) if end.distance is not None else None
    if ctx.batch and value.type == TIMESTAMPTZ and not is_utc():
        for bound in (start, end):
            if bound.distance is not None:
                distance = bind_value(bound.distance, ctx).finish().expression
                check_elapsed(distance, "a frame of a query", ctx, bound.distance)
    if ctx.batch:
        before, after = (None if b.distance is None else bind_value(b.distance, ctx).finish() for b in (start, end))
        first, last = (None if b.unbounded else b.side for b in (start, end))
        return WindowFrame("range", first, last, exclude, before=before, after=after)
    return WindowFrame("range", None if start.unbounded else 0, None if end.unbounded else 0, exclude, value, low, high)


def _check_size(node: exp.Expression, ctx: Context) -> None:
    value = bind_value(node, Context(ctx.text, "a frame"))
    if value.type.is_numeric:
        size = constant_of(value, value.type, node, ctx, example=0)
        if size is None or size < 0:
            raise ctx.error("INVALID_VALUE", "invalid preceding or following size in window function", node)

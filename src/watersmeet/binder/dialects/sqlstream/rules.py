"""SQLstream's rules: a relation with a watermark is a stream, whose rows have a ROWTIME, which `*` omits.

SQLstream, "JOIN clause", "Output Rowtimes" (SS-30, SS-37, SS-64). A relation of any dialect with a watermark is a
stream. Its rowtime is the column ROWTIME, or else the first column with a watermark. The clock belongs to the stored
stream, so rows that a filter drops also advance it.

**GROUP BY** outputs a group once, when the clock has passed it (SS-28: hourly summaries that match in one millisecond).
One of the keys must increase with ROWTIME: FLOOR(ROWTIME TO unit), STEP, date_trunc, or an edge of the windows of
TUMBLE and HOP. Such groups close at the end of the unit or window, which is their rowtime. The key may also be ROWTIME
itself, or ROWTIME rounded up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from sqlglot import exp

from watersmeet.algebra.nodes import AsofJoin, Column, Node, TimeFilter, TopN
from watersmeet.algebra.scalars import Comparison, SortKey
from watersmeet.algebra.timewindows import floor_of, interval_of, months_floor_of
from watersmeet.algebra.trees import exactly, read
from watersmeet.algebra.watermarks import of_scalar, watermarks
from watersmeet.binder.clauses.aggregates import Grouping, spelled_out
from watersmeet.binder.clauses.joins import join
from watersmeet.binder.clauses.ordering import ordered_items
from watersmeet.binder.clauses.sources import star_of
from watersmeet.binder.clauses.timewindows import StreamOrder, window_call
from watersmeet.binder.context.binding import Bound, Environment, Item, check_alias_list, scope_columns, value_of
from watersmeet.binder.context.rules import (
    Binding,
    BindQuery,
    DialectRules,
    Groups,
    JoinClause,
    NamedItem,
    Reading,
    SelectList,
    SelectWindows,
    Sourced,
)
from watersmeet.binder.context.scope import Scope, ScopeColumn, ScopeContext, StreamInput, qualified_items, single
from watersmeet.binder.dialects.sqlstream.rowtimes import (
    TIES,
    check_sorting,
    is_rowtime,
    with_own_rowtime,
    with_rowtime,
)
from watersmeet.binder.dialects.sqlstream.stream_joins import (
    check_equalities,
    clock_join,
    named_windows,
    stream_table_join,
    with_definition,
)
from watersmeet.binder.dialects.sqlstream.stream_windows import StreamWindows
from watersmeet.catalog import ROWTIME
from watersmeet.dialects.sqlstream.grammar import FromLast, StreamSelect, TopItemsSelect, window_of
from watersmeet.dialects.tree.queries import is_marked, node_span
from watersmeet.dialects.tree.tokens import not_supported
from watersmeet.expressions.aggregatecalls import has_aggregate
from watersmeet.expressions.context import Context, RowOrder, Value
from watersmeet.expressions.scalars import bind_value
from watersmeet.values.watermarks import Watermark, both, by_months, floored, shifted


@dataclass(frozen=True)
class Closing:
    """The time at which groups close. node: the SELECT with the closing time in its list.

    comparison, clock: a group closes when this comparison of its closing time with the clock is true.
    first: whether the closing time is added in front of the select list.
    promoted: whether an item of the list is named ROWTIME but is a different time.
    """

    node: exp.Select
    comparison: Comparison
    clock: Watermark
    first: bool
    promoted: bool


class DistinctItems(exp.Group):  # type: ignore[misc]
    """The grouping keys of SELECT DISTINCT."""


def grouped_distinct(node: exp.Select) -> exp.Select | None:
    """SELECT DISTINCT rewritten as GROUP BY of all items; None with a star, a window function, or DISTINCT ON."""
    distinct = node.args["distinct"]
    items = [e.this if isinstance(e, exp.Alias) else e for e in node.expressions]
    if distinct.args.get("on") is not None or any(star_of(e) is not None or e.find(exp.Window) for e in items):
        return None
    made: exp.Select = node.copy()
    made.set("distinct", None)
    made.set("group", DistinctItems(expressions=[e.copy() for e in items]))
    return made


def closing(
    node: exp.Select, relation: Node, scope: Scope, env: Environment, binding: Binding, *, fronted: bool
) -> Closing:
    """The way in which the groups of a SELECT over a stream close. Raises EMIT_NOT_POSSIBLE.

    relation, scope: the result of FROM and WHERE.
    fronted: whether the rowtime is added in front even if the list has it.
    """
    assert scope.stream is not None
    marks = watermarks(relation)
    ctx = ScopeContext(env.text, scope, "GROUP BY")
    group = node.args.get("group")
    what = "SELECT STREAM DISTINCT" if isinstance(group, DistinctItems) else "GROUP BY"
    if group is not None:
        node = node.copy()
        group = spelled_out(group, node.expressions, scope)
        node.set("group", group)
    clock = of_scalar(scope.stream.rowtime.value.finish(), marks)
    for key in [] if group is None else group.expressions:
        value = (
            bind_value(key, ctx)
            if isinstance(key, (exp.Column, exp.Floor, exp.Ceil, exp.Anonymous)) and not key.find(exp.Query)
            else None
        )
        mark = () if value is None else of_scalar(value.finish(), marks)
        found = None if value is None or not mark else _moment(key, value, mark, clock, binding)
        if found is not None:
            made, first, promoted = _with_moment(node, found[0], fronted=fronted)
            return Closing(made, found[1], found[2], first, promoted)
    raise env.error(
        "EMIT_NOT_POSSIBLE",
        f"{what} of a stream needs an expression that rises with ROWTIME",
        group or node,
        detail="Otherwise no group is ever complete.",
        hint=f"Write {what} FLOOR(s.ROWTIME TO HOUR), ….",
    )


def _moment(
    key: exp.Expression, value: Value, mark: Watermark, clock: Watermark, binding: Binding
) -> tuple[exp.Expression, Comparison, Watermark] | None:
    """The time at which a group with this key is complete, the comparison of that time with a clock, and the clock;
    None if unknown.

    mark: the watermark of the key. clock: the watermark of ROWTIME, which suffices if the key is ROWTIME; otherwise the
    watermark of the key is also used.
    """
    rounded = value.expression.this if isinstance(value.expression, exp.Cast) else value.expression
    length, months = floor_of(rounded), months_floor_of(rounded)
    if length is not None:
        return (
            exp.Add(this=key.copy(), expression=interval_of(length[1])),
            "<=",
            _slower(clock, mark, floored(clock, *length[1:])),
        )
    if months is not None:
        ends = exp.Add(
            this=key.copy(),
            expression=exp.Interval(this=exp.Literal.string(str(months[1])), unit=exp.Var(this="MONTH")),
        )
        return ends, "<=", _slower(clock, mark, by_months(clock, "floor_months", months[1]))
    window = binding.collected.windowed.get(value.expression.sql())
    if window is not None:
        is_end = value.expression.sql() in binding.collected.window_ends
        # an incomplete window ends at least one slide after all complete ones
        own = shifted(mark, (0 if is_end else window.size_us) - window.slide_us)
        ends = key.copy() if is_end else exp.Add(this=key.copy(), expression=interval_of(window.size_us))
        return ends, "<=", _slower(clock, own, floored(clock, window.slide_us, window.offset_us))
    # the rowtime of the group's last row may equal the key
    is_last = key.name.upper() == ROWTIME if isinstance(key, exp.Column) else isinstance(key, exp.Ceil)
    return (key.copy(), "<", both(clock, mark)) if is_last else None


def _slower(clock: Watermark, own: Watermark, expected: Watermark) -> Watermark:
    """The clock if the key's watermark follows from it (`expected`), else the clock and the watermark."""
    return clock if own == expected else both(clock, own)


def _with_moment(node: exp.Select, moment: exp.Expression, *, fronted: bool) -> tuple[exp.Select, bool, bool]:
    """The SELECT with the closing time instead of the item ROWTIME, or in front of the list; see `Closing`."""
    made: exp.Select = node.copy()
    shown, promoted = False, False
    items = []
    for item in made.expressions:
        inner = item.this if isinstance(item, exp.Alias) else item
        named = item.alias.upper() == ROWTIME if isinstance(item, exp.Alias) else is_rowtime(inner)
        if is_rowtime(inner):
            shown = shown or named
            items.append(
                exp.alias_(moment.copy(), item.args["alias"] if isinstance(item, exp.Alias) else _rowtime(), copy=False)
            )
            continue
        promoted = promoted or named
        items.append(item)
    first = promoted or not shown or fronted
    if first:
        items.insert(
            0, exp.alias_(moment, exp.to_identifier("RELEASED", quoted=True) if promoted else _rowtime(), copy=False)
        )
    made.set("expressions", items)
    return made, first, promoted


def closed(bound: Bound, how: Closing) -> Bound:
    """The groups of `bound` that are closed. `bound` contains all groups, with the select list of `how`."""
    outputs = bound.outputs
    if isinstance(how.node, TopItemsSelect):
        bound = _with_most(bound, int(how.node.args["most"].name))
    place = 0 if how.first else next(i for i, o in enumerate(outputs) if o.column.name.upper() == ROWTIME)
    same = tuple(o.column.id for o in outputs[1:] if o.column.name.upper() == ROWTIME) if how.promoted else ()
    tree: Node = TimeFilter(bound.relation, outputs[place].column.id, how.comparison, how.clock, final=True, same=same)
    if how.promoted:
        return Bound(exactly(tree, tree.columns[1:]), outputs[1:])
    return Bound(tree, outputs)


def _rowtime() -> exp.Identifier:
    return exp.to_identifier(ROWTIME, quoted=True)


def _with_most(bound: Bound, most: int) -> Bound:
    """The groups of each moment with the greatest counts. The outputs are the moment, the item and its count."""
    moment, item, count = (read(output.column) for output in bound.outputs)
    order = (SortKey(count, descending=True), SortKey(item))
    return Bound(TopN(bound.relation, (moment,), order, most), bound.outputs)


BindUnion = Callable[[exp.SetOperation, Environment, Binding, BindQuery], Bound]


def item_scope(tree: Node, item: NamedItem, env: Environment) -> Scope:
    """The scope of an item of FROM. For a stream it includes the rowtime, which `*` omits."""
    rowtime = rowtime_of(tree)
    columns = [c for c in tree.columns if rowtime is None or c.id != rowtime.id or c.name.upper() != ROWTIME]
    check_alias_list(item.names, len(columns), item.shown, env.text, node_span(item.node))
    stream = None if rowtime is None else StreamInput(ScopeColumn(ROWTIME, value_of(rowtime)))
    return single(item.alias, scope_columns(columns, item.names), item.schema, stream)


def check_stream(node: exp.Select, scope: Scope, env: Environment, binding: Binding) -> None:
    """Raises FEATURE_NOT_SUPPORTED for clauses that a query over streams can't have.

    Items of ORDER BY after ROWTIME are accepted with a notice.
    """
    if env.outer is not None:
        raise env.not_supported("a stream in a subquery of an expression", node, hint="Join it in FROM.")
    if node.args.get("distinct"):
        raise env.not_supported("DISTINCT of a stream", node.args["distinct"])
    if scope.stream is not None and scope.stream.window is not None:
        raise env.not_supported("a window over a stream without a join", scope.stream.window)
    order = ordered_items(node)
    for item in order if node.args.get("limit") else order[:1]:
        if not (isinstance(item.this, exp.Column) and item.this.name.upper() == ROWTIME and not item.args.get("desc")):
            raise env.not_supported(
                "ORDER BY of a stream that does not begin with ROWTIME",
                item,
                hint="Rows are output in the order of ROWTIME.",
            )
    if len(order) > 1:
        binding.notice(TIES)


def over(scope: Scope, node: exp.Expression, env: Environment) -> Scope:
    """The scope of an item of FROM with the window that follows the item."""
    window = window_of(node)
    if window is None:
        return scope
    if scope.stream is None:
        raise env.not_supported(
            "a window over a table",
            window,
            detail="It is not a stream: none of its columns has a watermark.",
            hint="Leave OVER out.",
        )
    return replace(scope, stream=replace(scope.stream, window=window))


def rowtime_of(tree: Node) -> Column | None:
    """The rowtime of the rows of `tree`; None unless it is a stream."""
    marks = watermarks(tree)
    timed = [c for c in tree.columns if c.id in marks]
    return next((c for c in timed if c.name.upper() == ROWTIME), timed[0] if timed else None)


def check_marked(query: exp.Expression, tree: Node, text: str) -> None:
    """Raises FEATURE_NOT_SUPPORTED for a view of streams without the word STREAM.

    A query without STREAM reads stored rows, whose joins have no windows, so the view would differ from its query's
    result.
    """
    if rowtime_of(tree) is not None and not is_marked(query):
        raise not_supported(
            "a view of streams without STREAM",
            text,
            node_span(query),
            detail="Without STREAM a query reads the stored rows once.",
            hint="Write SELECT STREAM.",
        )


def bind_union(
    node: exp.SetOperation, env: Environment, binding: Binding, fronting: Binding, bind: BindQuery, operation: BindUnion
) -> Bound:
    """Binds a set operation. UNION ALL merges streams by their rowtimes: a row is output when the clocks of all streams
    have reached it.

    fronting: binds queries with their rowtime in front. operation: binds the set operation over tables. Raises
    FEATURE_NOT_SUPPORTED for set operations of streams other than UNION ALL.
    """
    sides = [bind(side, env, binding) for side in (node.left, node.right)]
    streams = [rowtime_of(s.relation) is not None for s in sides]
    if any(streams) and (not all(streams) or not isinstance(node, exp.Union) or node.args.get("distinct")):
        raise env.not_supported(
            "a set operation with streams other than UNION ALL of streams",
            node,
            hint="Others would take rows back: write UNION ALL, or a SELECT without STREAM, which ends.",
        )
    hidden = any(s.outputs[0].hidden for s in sides)
    found = operation(node, env, fronting if hidden else binding, bind)
    rowtime = rowtime_of(found.relation)
    if not any(streams):
        return found
    if rowtime is None:
        raise env.not_supported(
            "UNION ALL of streams that select ROWTIME at different places",
            node,
            hint="Select it at the same place in all of them, or in none.",
        )
    tree = TimeFilter(found.relation, rowtime.id, "<=", watermarks(found.relation)[rowtime.id], final=True)
    outputs = tuple(replace(o, hidden=hidden and not i) for i, o in enumerate(found.outputs))
    return Bound(tree, outputs)


@dataclass(frozen=True)
class SqlstreamRules(DialectRules):
    """The rules for streams with a ROWTIME. fronted: whether queries have it in front even if they select it."""

    fronted: bool = False

    def reading(self, query: exp.Expression) -> Reading:
        """SELECT STREAM reads the rows of streams that arrive after its start, and other relations as of its start."""
        return Reading("new of streams", still=is_marked(query))

    def check_query(self, query: exp.Expression, tree: Node, text: str) -> None:
        check_marked(query, tree, text)
        check_equalities(tree, text)

    def rowtime(self, tree: Node) -> str | None:
        found = rowtime_of(tree)
        return None if found is None else found.name

    def item(
        self, node: exp.Expression, select: exp.Select, env: Environment, binding: Binding, plain: Callable[[], Sourced]
    ) -> Sourced:
        """Binds an item with the window that follows it."""
        window = window_of(node)
        if window is not None and window_call(node) is not None:
            raise env.not_supported("OVER in a time window function", window)
        relation, scope = plain()
        scope = over(scope, node, env)
        return relation, with_definition(scope, named_windows(select.args.get("windows") or (), env), env)

    def item_scope(self, tree: Node, item: NamedItem, env: Environment, bound: Bound | None = None) -> Scope:
        """The scope includes the rowtime, but `*` omits it."""
        return item_scope(tree, item, env)

    def check_ending(self, node: exp.Expression, text: str) -> None:
        window = window_of(node)
        if window is not None:
            raise not_supported(
                "a window of a join in a batch query",
                text,
                node_span(window),
                detail="Stored rows are joined as a whole.",
                hint="Write SELECT STREAM, or leave OVER out.",
            )

    def join(self, clause: JoinClause, plain: Callable[[JoinClause], Sourced]) -> Sourced:
        left, right, node = clause.left[1], clause.right[1], clause.node
        relation, scope = join(clause)
        if isinstance(relation, AsofJoin) and (left.stream or right.stream) is not None:
            raise clause.env.not_supported(
                "ASOF JOIN of a stream",
                node.this,
                hint="Windows decide which rows join: JOIN … OVER (RANGE INTERVAL '1' MINUTE PRECEDING) AS x ON ….",
            )
        streams = left.stream is not None and right.stream is not None
        return (clock_join if streams else stream_table_join)(
            relation, scope, left, right, node, clause.env, clause.binding
        )

    def select(
        self, node: exp.Select, relation: Node, scope: Scope, env: Environment, binding: Binding
    ) -> tuple[exp.Select, Node, Scope]:
        """Turns DISTINCT over a stream into groups. An item named ROWTIME becomes the rowtime."""
        check_sorting(node, scope, env)
        if scope.stream is None:
            if isinstance(node, StreamSelect):
                raise env.not_supported(
                    "SELECT STREAM without a stream in FROM",
                    node.word,
                    detail="Nothing in FROM has a ROWTIME, and a table is not tailed as a stream.",
                    hint="Leave STREAM out, or write the rows into a stream (CREATE STREAM).",
                )
            return node, relation, scope
        node, relation, scope = with_own_rowtime(node, relation, scope, env, binding)
        ctx = ScopeContext(env.text, scope, "SELECT")
        if (
            node.args.get("distinct")
            and not node.args.get("group")
            and not any(has_aggregate(e, ctx) for e in node.expressions)
        ):
            node = grouped_distinct(node) or node
        check_stream(node, scope, env, binding)
        return node, relation, scope

    def groups(self, node: exp.Select, relation: Node, scope: Scope, env: Environment, binding: Binding) -> Groups:
        """Outputs a group of a stream once, when it is complete."""
        if scope.stream is None:
            return Groups(node)
        how = closing(node, relation, scope, env, binding, fronted=self.fronted)
        return Groups(how.node, how.first and not how.promoted, lambda bound: closed(bound, how))

    def select_list(
        self, items: Sequence[Item], node: exp.Select, relation: Node, scope: Scope, ctx: Context
    ) -> SelectList:
        """Over a stream, adds the rowtime in front unless it is selected."""
        if scope.stream is None or isinstance(ctx, Grouping):
            return SelectList(items, ordered=scope.stream is not None)
        found, hidden = with_rowtime(items, relation, scope, ctx.text, fronted=self.fronted)
        return SelectList(qualified_items(found, scope), hidden, ordered=True)

    def windows(
        self,
        node: exp.Select,
        rows: RowOrder,
        ctx: ScopeContext,
        env: Environment,
        binding: Binding,
        plain: Callable[[], SelectWindows],
    ) -> SelectWindows:
        """The window functions of a stream: each row is output once."""
        if ctx.scope.stream is None:
            last = node.find(FromLast)
            if last is not None:
                raise env.not_supported("FROM LAST in a query without streams", last.this)
            return plain()
        assert isinstance(rows, StreamOrder)
        return StreamWindows(node.args.get("windows") or (), ctx, env, binding, rows)

    def set_operation(
        self,
        node: exp.SetOperation,
        env: Environment,
        binding: Binding,
        bind: BindQuery,
        plain: Callable[[exp.SetOperation, Environment, Binding, BindQuery], Bound],
    ) -> Bound:
        """UNION ALL of streams merges them by their rowtimes."""
        fronting = replace(binding, rules=replace(self, fronted=True))
        return bind_union(node, env, binding, fronting, bind, plain)

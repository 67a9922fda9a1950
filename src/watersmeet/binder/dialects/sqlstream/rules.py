"""What SQLstream adds to plain SQL: relations with a watermark are streams. Their rows, and queries over them, have a
ROWTIME, which `*` leaves out. Streams are joined over windows, by their clocks.

SQLstream, "JOIN clause"; rulings D-001-16, D-001-21.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from sqlglot import exp

from watersmeet.algebra.nodes import AsofJoin, Node
from watersmeet.binder.clauses.aggregates import Grouping
from watersmeet.binder.clauses.joins import join
from watersmeet.binder.clauses.timewindows import window_call
from watersmeet.binder.context.binding import Bound, Environment, Item
from watersmeet.binder.context.rules import (
    Binding,
    BindQuery,
    DialectRules,
    Groups,
    JoinClause,
    NamedItem,
    Reading,
    SelectList,
    Sourced,
)
from watersmeet.binder.context.scope import Scope, ScopeContext, qualified_items
from watersmeet.binder.dialects.sqlstream.join_windows import named_windows, with_definition
from watersmeet.binder.dialects.sqlstream.rowtimes import (
    bind_union,
    check_marked,
    check_stream,
    item_scope,
    over,
    rowtime_of,
    with_promoted,
    with_rowtime,
)
from watersmeet.binder.dialects.sqlstream.stream_groups import closed, closing, grouped_distinct
from watersmeet.binder.dialects.sqlstream.stream_joins import check_equalities, clock_join, stream_table_join
from watersmeet.dialects.sqlstream.nodes import StreamSelect, window_of
from watersmeet.dialects.tree.queries import is_marked, place_of
from watersmeet.errors import error
from watersmeet.expressions.aggregatecalls import has_aggregate
from watersmeet.expressions.context import Context


@dataclass(frozen=True)
class SqlstreamRules(DialectRules):
    """Streams with a ROWTIME. fronted: queries over them have it in front even if they select it."""

    fronted: bool = False

    def reading(self, query: exp.Expression) -> Reading:
        """Streams: the rows that arrive after the start. SELECT STREAM reads other relations as of its start."""
        return Reading("new of streams", still=is_marked(query))

    def check_query(self, query: exp.Expression, tree: Node, text: str) -> None:
        check_marked(query, tree, text)
        check_equalities(tree, text)

    def rowtime(self, tree: Node) -> str | None:
        found = rowtime_of(tree)
        return None if found is None else found.name

    def item(
        self,
        node: exp.Expression,
        select: exp.Select,
        env: Environment,
        binding: Binding,
        plain: Callable[[], Sourced],
    ) -> Sourced:
        """An item with the window written after it."""
        window = window_of(node)
        if window is not None and window_call(node) is not None:
            raise env.not_supported("OVER in a time window function", window)
        relation, scope = plain()
        scope = over(scope, node, env)
        return relation, with_definition(scope, named_windows(select.args.get("windows") or (), env), env)

    def item_scope(self, tree: Node, item: NamedItem, env: Environment, bound: Bound | None = None) -> Scope:
        """The rowtime can be read, but `*` leaves it out."""
        return item_scope(tree, item, env)

    def check_ending(self, node: exp.Expression, text: str) -> None:
        window = window_of(node)
        if window is not None:
            raise error(
                "FEATURE_NOT_SUPPORTED",
                "a window of a join in a bounded query is not supported",
                sql=text,
                span=place_of(window),
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
    ) -> tuple[exp.Select, Node]:
        """DISTINCT over a stream groups. A column named ROWTIME becomes the rowtime."""
        if scope.stream is None:
            if isinstance(node, StreamSelect):
                raise env.not_supported(
                    "SELECT STREAM without a stream in FROM",
                    node.word,
                    detail="Nothing in FROM has a ROWTIME, and a table is not tailed as a stream.",
                    hint="Leave STREAM out, or write the rows into a stream (CREATE STREAM).",
                )
            return node, relation
        ctx = ScopeContext(env.text, scope, "SELECT")
        relation = with_promoted(node, relation, ctx, binding)
        if (
            node.args.get("distinct")
            and not node.args.get("group")
            and not any(has_aggregate(e, ctx) for e in node.expressions)
        ):
            node = grouped_distinct(node) or node
        check_stream(node, scope, env)
        return node, relation

    def groups(self, node: exp.Select, relation: Node, scope: Scope, env: Environment, binding: Binding) -> Groups:
        """A group of a stream is output once, when it is complete."""
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

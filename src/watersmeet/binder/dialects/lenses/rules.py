"""Lenses' rules for queries over records. Their results have a key and a time in addition to the select list.

Lenses, "Joins"; LS-01 to LS-46.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

from sqlglot import exp

from watersmeet.algebra.nodes import Node
from watersmeet.algebra.scalars import Scalar
from watersmeet.binder.clauses.aggregates import Grouping, spelled_out
from watersmeet.binder.clauses.sources import scan
from watersmeet.binder.clauses.timewindows import window_call
from watersmeet.binder.context.binding import (
    Bound,
    BoundQuery,
    Environment,
    Item,
    Part,
    check_alias_list,
    condition_parts,
)
from watersmeet.binder.context.rules import (
    Binding,
    BindQuery,
    Described,
    DialectRules,
    JoinClause,
    NamedItem,
    RecordsKept,
    SelectList,
    Sourced,
)
from watersmeet.binder.context.scope import Scope, ScopeColumn, ScopeContext
from watersmeet.binder.dialects.lenses.browsing import browsed, check_running
from watersmeet.binder.dialects.lenses.changelog import records_of
from watersmeet.binder.dialects.lenses.projections import exploded, shaped, with_value
from watersmeet.binder.dialects.lenses.record_joins import record_join
from watersmeet.binder.dialects.lenses.records import (
    HIDDEN,
    PLAIN,
    QueryRecords,
    RecordKind,
    RecordLayout,
    bind_records,
    by_key,
    check_decided,
    check_select,
    described,
    layout_of,
    metadata_in,
    records_in,
    scope_of_records,
    starred,
    with_metadata,
)
from watersmeet.binder.dialects.lenses.windows import check_window, grouped, with_event_time
from watersmeet.catalog import KEY_COLUMN, RECORD_TIME, Relation, View
from watersmeet.dialects.lenses.grammar import LateralTable, RecordSelect, RecordTable, WithinJoin, lengths_of, marked
from watersmeet.dialects.schemas import relation_in_from
from watersmeet.dialects.tree.nodes import plain as plain_node
from watersmeet.dialects.tree.queries import node_span
from watersmeet.dialects.tree.tokens import not_supported
from watersmeet.expressions.aggregatecalls import has_aggregate
from watersmeet.expressions.context import Context
from watersmeet.values.watermarks import Watermark


class LensesRules(DialectRules):
    """The rules for queries over records."""

    query_called: ClassVar[str] = "a query over records"

    def running_output(self, query: BoundQuery, asked: exp.Expression, text: str) -> Node:
        """For a table, the changes in the form of its topic's records."""
        records = records_in(query)
        if records is None or records.nature != "table":
            return query.tree
        if not any(c.name == KEY_COLUMN for c in query.columns):
            raise not_supported(
                "SELECT TABLE of records without a key", text, node_span(asked), hint="Select one: expression AS _key."
            )
        return records_of(query)

    def records_kept(self, query: BoundQuery) -> RecordsKept | None:
        records = records_in(query)
        if records is None:
            return None
        layout = records.layout
        return RecordsKept(records.nature == "table", layout.key_format, layout.value_format)

    def query_of_view(self, query: exp.Expression, node: exp.Expression) -> exp.Expression:
        """The query with the word of the SELECT that reads the view."""
        return marked(query, node.is_table) if isinstance(node, RecordTable) else query

    def records_of(self, query: BoundQuery) -> Node:
        return records_of(query)

    def described(self, relation: Relation, plain: Callable[[], list[Described]]) -> list[Described]:
        return plain() if relation.topic is None else described(relation, relation.topic)

    def item(
        self, node: exp.Expression, select: exp.Select, env: Environment, binding: Binding, plain: Callable[[], Sourced]
    ) -> Sourced:
        windowed = window_call(node)
        if windowed is not None:
            raise env.not_supported(
                f"{windowed.function.upper()} over records",
                windowed.call,
                hint="Write WINDOW BY TUMBLE 5m, or WINDOW BY HOP 5m, 1m, before GROUP BY.",
            )
        tree, scope = plain()
        metadata = metadata_in(scope)
        if metadata is None or not isinstance(node, RecordTable):
            return tree, scope
        if node.event_time is not None:
            tree, scope = with_event_time((tree, scope), node.event_time, env, binding)
        return exploded((tree, with_value(scope, metadata.layout.value_format)), node.elements, env, binding)

    def batch_item(
        self, node: exp.Expression, env: Environment, binding: Binding, plain: Callable[[], Sourced]
    ) -> Sourced:
        tree, scope = plain()
        if isinstance(node, exp.Table) and any(c.name == RECORD_TIME for c in scope.visible):
            relation = relation_in_from(node, binding.catalog)
            topic = None if relation is None else relation.topic
            scope = with_value(scope, None if topic is None else topic.value_format)
        return exploded((tree, scope), node.elements if isinstance(node, LateralTable) else (), env, binding)

    def batch_items(self, items: Sequence[Item], ctx: Context) -> Sequence[Item]:
        return shaped(items, ctx).items

    def relation(
        self,
        relation: Relation,
        item: NamedItem,
        env: Environment,
        binding: Binding,
        plain: Callable[[Part | None], Sourced],
    ) -> Sourced:
        """Reads the relation as a stream or as a table, as the SELECT specifies (LS-04)."""
        node = item.node
        kind: RecordKind = "table" if isinstance(node, RecordTable) and node.is_table else "stream"
        if isinstance(relation, View):
            rows, _ = plain(None)
            return rows, scope_of_records(rows, item, kind, PLAIN, env)
        check_running(relation, item, env)
        tree = bind_records(scan(relation, binding), relation, kind, binding, env.text, node_span(node))
        width = next((i for i, c in enumerate(tree.columns) if c.name in HIDDEN), len(tree.columns))
        check_alias_list(item.names, width, item.shown, env.text, node_span(node))
        topic = relation.topic
        layout = (
            PLAIN
            if topic is None
            else RecordLayout(topic.key_format, topic.partitions, topic.value_format, topic.by_hash)
        )
        return tree, scope_of_records(tree, item, kind, layout, env)

    def browsed(
        self, relation: Relation, item: NamedItem, sourced: Sourced, env: Environment, binding: Binding
    ) -> Sourced:
        return browsed(relation, item, sourced, env, binding)

    def item_scope(self, tree: Node, item: NamedItem, env: Environment, bound: Bound | None = None) -> Scope:
        records = None if bound is None else records_in(bound)
        if bound is None or records is None:
            return super().item_scope(tree, item, env, bound)
        check_alias_list(item.names, bound.width, item.shown, env.text, node_span(item.node))
        return scope_of_records(tree, item, records.nature, records.layout, env)

    def time_of_rows(self, scope: Scope) -> Scalar | None:
        metadata = metadata_in(scope)
        return None if metadata is None else metadata.time.finish()

    def time_columns(self, relation: Relation) -> Mapping[str, Watermark]:
        """Includes the columns of topics: joins of records use their watermarks to find late records."""
        return relation.time_columns

    def check_ending(self, node: exp.Expression, text: str) -> None:
        """Rejects clauses over records, which only running queries support."""
        within = lengths_of(node) if isinstance(node, exp.Join) else []
        if within:
            raise not_supported(
                "WITHIN in a query without STREAM and TABLE",
                text,
                node_span(within[0]),
                hint="Write SELECT STREAM, or compare the times (_meta.timestamp) in ON.",
            )
        if not isinstance(node, RecordSelect):
            return
        what = f"SELECT {node.word} inside of a query without STREAM and TABLE"
        hint = (
            "Say SELECT STREAM or SELECT TABLE in the outer query too, or write the rows to a topic "
            f"(INSERT INTO … SELECT {node.word} …) and read that."
        )
        if node.find_ancestor(exp.SetOperation) is not None:
            what = f"a set operation of SELECT {node.word}"
            hint = "Write each side to a topic, and read these without STREAM and TABLE."
        raise not_supported(what, text, node_span(node), hint=hint)

    def join(self, clause: JoinClause, plain: Callable[[JoinClause], Sourced]) -> Sourced:
        elements = clause.node.elements if isinstance(clause.node, WithinJoin) else ()
        return exploded(record_join(clause), elements, clause.env, clause.binding)

    def batch_join(self, clause: JoinClause, plain: Callable[[JoinClause], Sourced]) -> Sourced:
        if not isinstance(clause.node, WithinJoin):
            return plain(clause)
        joined = plain(replace(clause, node=plain_node(clause.node)))
        return exploded(joined, clause.node.elements, clause.env, clause.binding)

    def check_select(self, node: exp.Select, text: str) -> None:
        check_select(node, text)

    def select(
        self, node: exp.Select, relation: Node, scope: Scope, env: Environment, binding: Binding
    ) -> tuple[exp.Select, Node, Scope]:
        """Rejects conditions on streams that change with time. Groups have the records of one window, and no NULL key.
        Aggregates without GROUP BY group by the records' key.
        """
        metadata = metadata_in(scope)
        if metadata is None:
            return node, relation, scope
        where = node.args.get("where")
        if where is not None and metadata.nature == "stream":
            check_decided(condition_parts(where.this), ScopeContext(env.text, scope, "WHERE"))
        ctx = ScopeContext(env.text, scope, "SELECT")
        group = node.args.get("group")
        if group is None and any(has_aggregate(e, ctx) for e in node.expressions):
            group = by_key(node, scope, env.text)
        if group is None:
            check_window(node, env)
            return node, relation, scope
        return grouped(node, group, relation, scope, env, binding)

    def select_list(
        self, items: Sequence[Item], node: exp.Select, relation: Node, scope: Scope, ctx: Context
    ) -> SelectList:
        """Adds the records' key and time at the end."""
        metadata = metadata_in(scope)
        if metadata is None:
            return SelectList(items)
        shape = shaped(items, ctx)
        items = shape.items
        group, groups = node.args.get("group"), isinstance(ctx, Grouping)
        group = None if group is None else spelled_out(group, node.expressions, scope)
        found = with_metadata(items, scope, ctx, group)
        layout = layout_of(found, scope, groups=groups)
        layout = layout if shape.value_format is None else replace(layout, value_format=shape.value_format)

        def finish(bound: Bound) -> Bound:
            kind: RecordKind = "table" if groups else metadata.nature
            return replace(bound, extension=QueryRecords(kind, layout, beside=len(found) - len(items)))

        return SelectList(found, finish=finish)

    def starred(self, columns: Sequence[ScopeColumn], node: exp.Expression, text: str) -> Sequence[ScopeColumn]:
        return starred(columns, node, text)

    def set_operation(
        self,
        node: exp.SetOperation,
        env: Environment,
        binding: Binding,
        bind: BindQuery,
        plain: Callable[[exp.SetOperation, Environment, Binding, BindQuery], Bound],
    ) -> Bound:
        if not isinstance(node, exp.Union) or node.args.get("distinct"):
            raise env.not_supported("a set operation over records", node, hint="UNION ALL of streams is supported.")
        sides: list[QueryRecords | None] = []

        def bound(part: exp.Expression, env: Environment, binding: Binding) -> Bound:
            found = bind(part, env, binding)
            sides.append(records_in(found))
            return found

        found = plain(node, env, binding, bound)
        records = [r for r in sides if r is not None]
        if any(r.nature == "table" or r.beside != records[0].beside for r in records):
            raise env.not_supported(
                "UNION ALL of tables, or of records with and without AS _key,", node, hint="Write two processors."
            )
        same = all(r.layout == records[0].layout for r in records)
        layout = records[0].layout if same else replace(PLAIN, value_format=records[0].layout.value_format)
        return replace(found, extension=replace(records[0], layout=layout))

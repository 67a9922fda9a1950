"""SELECT: FROM, WHERE, GROUP BY, HAVING, the select list, DISTINCT."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from sqlglot import exp

from watersmeet.algebra.relations import Column, Project, Relation, Values
from watersmeet.algebra.scalars import Scalar
from watersmeet.binder.aggregates import Grouping
from watersmeet.binder.binding import Binding, Bound, Environment, Output, distinct, scope_columns
from watersmeet.binder.chains import Chain, SetFunctions
from watersmeet.binder.dialects.lenses.metadata import by_key, check_decided, check_select, layout_of, with_facets
from watersmeet.binder.dialects.sqlstream.join_windows import named_windows, with_definition
from watersmeet.binder.dialects.sqlstream.promotion import with_promoted
from watersmeet.binder.dialects.sqlstream.rowtimes import ROWTIME, over, with_rowtime
from watersmeet.binder.dialects.sqlstream.stream_groups import closed, closing, grouped_distinct
from watersmeet.binder.groupingsets import sets_of
from watersmeet.binder.groupkeys import aliased, spelled_out
from watersmeet.binder.keys import condition_parts
from watersmeet.binder.lookups import dangling, is_looked_up
from watersmeet.binder.order_limit import Ending, Item, ending_of, note_order, ordered_items
from watersmeet.binder.roworder import StreamOrder
from watersmeet.binder.scope import PLAIN, Scope, ScopeColumn, ScopeContext, item_name, single, unaliased_name
from watersmeet.binder.sources import (
    BindQuery,
    alias_of,
    bind_derived,
    bind_table,
    bind_values,
    check_arguments,
    not_supported,
)
from watersmeet.binder.stars import expanded, star_of
from watersmeet.binder.subqueries import Subqueries
from watersmeet.binder.timewindows import bind_window_call, check_condition, window_call
from watersmeet.binder.windows import Windows
from watersmeet.dialects.queries import name_of, place_of
from watersmeet.errors import error
from watersmeet.expressions.aggregatecalls import has_aggregate
from watersmeet.expressions.context import Context
from watersmeet.expressions.scalars import bind_value
from watersmeet.expressions.setfunctions import TableCall, table_call
from watersmeet.expressions.values import Value, columns_of
from watersmeet.types import INTEGER

_KNOWN: Final = frozenset(
    {
        "with_",
        "expressions",
        "from_",
        "joins",
        "where",
        "group",
        "having",
        "distinct",
        "order",
        "limit",
        "offset",
        "laterals",
        "windows",
        "nature",
        "stream",
    }
)
_JOIN: Final = frozenset({"this", "on", "using", "side", "kind", "method", "within", "grace"})

Sourced = tuple[Relation, Scope]


class Selecting:
    """Binds one SELECT. `bind` binds the queries inside it."""

    def __init__(self, node: exp.Select, env: Environment, binding: Binding, bind: BindQuery) -> None:
        self.node = node
        self.env = env
        self.binding = binding
        self.bind = bind
        self.sets = SetFunctions(env, binding)
        self.groups = False
        self.group: exp.Group | None = node.args.get("group")
        self.facets = 0
        self.hidden = False  # the first item is the rowtime, which the select list does not have
        self.layout = PLAIN

    def bound(self) -> Bound:
        """The whole query."""
        self._check()
        relation, scope = self.source()
        if self.node.args.get("stream") and scope.stream is None:
            raise error(
                "FEATURE_NOT_SUPPORTED",
                "SELECT STREAM of what is no stream is not supported",
                sql=self.env.text,
                span=place_of(self.node.args["stream"]),
                detail="Nothing in FROM has a ROWTIME, and a table is not tailed as a stream.",
                hint="Leave STREAM out, or write the rows into a stream (CREATE STREAM).",
            )
        relation = self.where(relation, scope)
        if self.binding.semantics.rowtimes and scope.stream is not None:
            promoting = ScopeContext(self.env.text, scope, "SELECT")
            relation = with_promoted(self.node, relation, promoting, self.binding)
        rows = StreamOrder(relation, scope, self.binding)
        if self.binding.semantics.row_order != "none":
            scope = replace(scope, order=rows)
        found = self.selected(rows, scope)
        if scope.facets is None:
            return found
        return replace(
            found, nature="table" if self.groups else scope.facets.nature, facets=self.facets, layout=self.layout
        )

    def _subqueries(self, scope: Scope) -> Subqueries:
        """Those of a clause whose columns are those of `scope`."""
        return Subqueries(self.env, self.binding, self.bind, scope)

    def _check(self) -> None:
        records = self.binding.semantics.records
        check_arguments(self.node, _KNOWN, self.env.text, "a query over records" if records else "a view")
        if records:
            check_select(self.node, self.env.text)
        for lateral in self.node.args.get("laterals") or []:
            raise not_supported("LATERAL VIEW", lateral, self.env)

    # -- FROM ---------------------------------------------------------------------------------------------------

    def source(self) -> Sourced:
        """FROM with its joins; one row without columns that can be read if there is none."""
        clause = self.node.args.get("from_")
        if clause is None:
            column = self.binding.new_column("dummy", INTEGER, nullable=False)
            one = Scalar(exp.Literal.number(0), INTEGER, nullable=False)
            return Values(((one,),), (column,)), Scope(outer=self.env.outer)
        relation, scope = self._chain(clause.this, self.node.args.get("joins") or [])
        return relation, replace(scope, outer=self.env.outer)

    def _chain(self, first: exp.Expression, joins: Sequence[exp.Join]) -> Sourced:
        """`first JOIN …, second JOIN …`."""
        chain = self._chain_of(self._call(first) or self._item(first))
        for node in joins:
            self._check_join(node)
            chain.add(node, self._call(node.this) or self._item(node.this, chain.left))
        return chain.result()

    def _chain_of(self, first: Sourced | TableCall) -> Chain:
        chain = Chain(self.env, self.binding, self._subqueries)
        chain.start(first)
        return chain

    def _call(self, node: exp.Expression) -> TableCall | None:
        """The set-returning functions that an item of FROM is."""
        return None if window_call(node) is not None else table_call(node)

    def _check_join(self, node: exp.Join) -> None:
        check_arguments(node, _JOIN, self.env.text, "a join")

    def _item(self, node: exp.Expression, left: Scope | None = None) -> Sourced:
        """An item of FROM. left: what stands to its left, for LATERAL."""
        call = self._call(node)
        if call is not None:
            chain = self._chain_of(call)
            return self._nested(chain.result(), node)
        windowed = window_call(node)
        if windowed is not None and self.binding.semantics.records:
            raise not_supported(
                f"{windowed.function.upper()} over records",
                windowed.place,
                self.env,
                hint="Group by a time that is cut: date_trunc('minute', _meta.timestamp).",
            )
        if windowed is not None:
            return self._nested(bind_window_call(windowed, self.env, self.binding, self.bind), node)
        if isinstance(node, exp.Table):
            if left is None and is_looked_up(node) and not self._asked_for_rows():
                raise dangling(node, self.env)
            sourced = bind_table(node, self.env, self.binding, self.bind)
            return self._nested(self._windowed(sourced), node)
        if isinstance(node, exp.Subquery):
            return self._subquery(node)
        if isinstance(node, exp.Values):
            bound = bind_values(node, self.env, self.binding)
            alias, names = alias_of(node)
            return bound.relation, single(alias, scope_columns(bound.relation.columns, names))
        if isinstance(node, exp.Lateral):
            return self._lateral(node, left)
        raise not_supported(f"{type(node).__name__.upper()} in FROM of a view", node, self.env)

    def _asked_for_rows(self) -> bool:
        """Whether the query is a subquery that rows of a stream ask when they come: not groups, which come and go until
        they are closed.
        """
        around = self.env.outer
        while around is not None and around.stream is None:
            around = around.outer
        return self.binding.still and around is not None and around.from_inside is None

    def _lateral(self, node: exp.Lateral, left: Scope | None) -> Sourced:
        check_arguments(node, frozenset({"this", "alias"}), self.env.text, "LATERAL")
        if not isinstance(node.this, exp.Subquery):
            raise not_supported("LATERAL of this form", node, self.env)
        env = Environment(self.env.text, self.env.ctes, self.env.outer if left is None else left)
        return bind_derived(node, env, self.binding, self.bind)

    def _nested(self, sourced: Sourced, node: exp.Expression) -> Sourced:
        if not node.args.get("joins"):
            return sourced
        chain = self._chain_of(sourced)
        for part in node.args["joins"]:
            self._check_join(part)
            chain.add(part, self._call(part.this) or self._item(part.this, chain.left))
        return chain.result()

    def _subquery(self, node: exp.Subquery) -> Sourced:
        check_arguments(node, frozenset({"this", "alias", "joins", "over"}), self.env.text, "a subquery in FROM")
        if isinstance(node.this, (exp.Table, exp.Subquery)):
            relation, scope = self._item(node.this)
            alias, names = alias_of(node)
            if alias is not None:
                shown = [*names, *[c.name for c in scope.visible[len(names) :]]]
                visible = [ScopeColumn(n, c.value) for n, c in zip(shown, scope.visible, strict=True)]
                scope = replace(single(alias, visible, stream=scope.stream), facets=scope.facets)
            return self._nested(self._windowed((relation, over(scope, node, self.env))), node)
        return self._nested(self._windowed(bind_derived(node, self.env, self.binding, self.bind)), node)

    def _windowed(self, sourced: Sourced) -> Sourced:
        """An item of FROM with the definition of the window that it names."""
        return sourced[0], with_definition(
            sourced[1], named_windows(self.node.args.get("windows") or (), self.env), self.env
        )

    # -- WHERE --------------------------------------------------------------------------------------------------

    def where(self, relation: Relation, scope: Scope) -> Relation:
        """The filtered relation."""
        clause = self.node.args.get("where")
        if clause is None:
            return relation
        subqueries = self._subqueries(scope)
        ctx = ScopeContext(self.env.text, scope, "WHERE", subqueries)
        check_condition(clause.this, scope, self.binding.windowed, ctx)
        if scope.facets is not None and scope.facets.nature == "stream":
            check_decided(condition_parts(clause.this), ctx)
        return subqueries.filtered(relation, condition_parts(clause.this), ctx, "WHERE")

    def _check_stream(self, scope: Scope) -> None:
        """FEATURE_NOT_SUPPORTED for what a query over streams can't have."""
        if self.env.outer is not None:
            raise not_supported("a stream in a subquery of an expression", self.node, self.env, hint="Join it in FROM.")
        if self.node.args.get("distinct"):
            raise not_supported("DISTINCT of a stream", self.node.args["distinct"], self.env)
        if scope.stream is not None and scope.stream.window is not None:
            raise not_supported("a window over a stream that is joined with nothing", scope.stream.window, self.env)
        for called in [w for e in self.node.expressions for w in e.find_all(exp.Window)]:
            raise not_supported(
                "a window function over a stream",
                called,
                self.env,
                hint="GROUP BY FLOOR(s.ROWTIME TO HOUR) sums up by time.",
            )
        for item in ordered_items(self.node):
            if not (
                isinstance(item.this, exp.Column) and item.this.name.upper() == ROWTIME and not item.args.get("desc")
            ):
                raise not_supported(
                    "ORDER BY of a stream by anything but ROWTIME",
                    item,
                    self.env,
                    hint="Rows come in the order of ROWTIME.",
                )

    # -- the select list ----------------------------------------------------------------------------------------

    def selected(self, rows: StreamOrder, scope: Scope) -> Bound:
        """GROUP BY, HAVING, the select list and DISTINCT over what WHERE left."""
        streams = self.binding.semantics.rowtimes and scope.stream is not None
        what = "GROUP BY"
        subqueries = self._subqueries(scope)
        below = ScopeContext(self.env.text, scope, "SELECT", subqueries)
        if (
            streams
            and self.node.args.get("distinct")
            and not self.node.args.get("group")
            and not any(has_aggregate(e, below) for e in self.node.expressions)
        ):
            self.node, what = grouped_distinct(self.node) or self.node, "SELECT STREAM DISTINCT"
        if streams:
            self._check_stream(scope)
        having, group = self.node.args.get("having"), self.node.args.get("group")
        if scope.facets is not None and group is None and any(has_aggregate(e, below) for e in self.node.expressions):
            group = self.group = by_key(self.node, scope, self.env.text)
        windows = Windows(self.node.args.get("windows") or (), below, self.binding)
        sorting, how = ordered_items(self.node), None
        if group or having or any(has_aggregate(e, below) for e in [*self.node.expressions, *sorting]):
            self.groups = True
            if streams:
                how = closing(self.node, rows.relation, scope, self.env, self.binding, what)
                self.node, self.hidden = how.node, how.first and not how.promoted
                group = self.node.args.get("group")
            relation, items, ending = self._grouped(rows, below, group, having, windows)
        else:
            items, ending = self._listed(below, scope, windows)
            if streams:
                items, self.hidden = with_rowtime(items, rows.relation, scope, self.env, fronted=self.binding.fronted)
                items = self._qualified(items, scope)
            relation = subqueries.applied(rows.relation)
        relation = self.sets.tree(windows.tree(relation))
        if ending.limits is None and ending.on is None and not streams:
            note_order(sorting, self.binding)
        if self.node.args.get("distinct") and ending.on is None:
            relation, outputs = self._distinct(*self._project(relation, items))
            return Bound(ending.above(relation, items, below), outputs)
        bound = Bound(*self._project(ending.below(relation), items))
        return bound if how is None else closed(bound, how)

    def _listed(self, ctx: Context, scope: Scope, windows: Windows) -> tuple[list[Item], Ending]:
        """The select list and what ends the query, which may call window functions."""
        ctx.windowing = windows
        items = self.items(ctx, scope)
        ending = ending_of(self.node, items, ctx)
        ctx.windowing = None
        return items, ending

    def _grouped(
        self,
        rows: StreamOrder,
        below: ScopeContext,
        group: exp.Group | None,
        having: exp.Having | None,
        windows: Windows,
    ) -> tuple[Relation, list[Item], Ending]:
        """The groups that HAVING leaves, and the select list over them."""
        ctx = self._grouping(group, below, below.scope)
        inside = replace(below.scope, from_inside=ctx.grouped)
        ctx.subqueries = in_items = self._subqueries(inside)
        items, ending = self._listed(ctx, below.scope, windows)
        parts = [] if having is None else condition_parts(having.this)
        ctx.clause = "HAVING"
        ctx.subqueries = in_having = self._subqueries(inside)
        # binding finds further aggregate calls, so that the node of the groups is made after it
        having_parts = in_having.bound(parts, ctx, "HAVING")
        assert isinstance(below.subqueries, Subqueries)
        grouped = ctx.tree(below.subqueries.applied(rows.relation))
        return in_items.applied(having_parts(grouped)), items, ending

    def items(self, ctx: Context, scope: Scope) -> list[Item]:
        """The select list with stars expanded: value, name (None: it has none), place."""
        found: list[Item] = []
        for node in self.node.expressions:
            star = star_of(node)
            if star is not None:
                found += [
                    (ctx.grouped(c.value, c.name, node) if isinstance(ctx, Grouping) else c.value, c.name, node)
                    for c in expanded(star, node, scope, self.env.text)
                ]
                continue
            inner = node.this if isinstance(node, exp.Alias) else node
            name = (
                name_of(node.args["alias"])
                if isinstance(node, exp.Alias)
                else unaliased_name(node, len(found) - self.hidden, self.binding.semantics)
            )
            ctx.sets = self.sets
            found.append((bind_value(inner, ctx), name, node))
            ctx.sets = None
        if scope.facets is not None:
            selected = len(found)
            group = None if self.group is None else spelled_out(self.group, self.node.expressions, scope)
            found = with_facets(found, scope, ctx, group)
            self.facets = len(found) - selected
            self.layout = layout_of(found, scope, groups=isinstance(ctx, Grouping))
            return found
        return found if self.binding.semantics.rowtimes else self._qualified(found, scope)

    def _qualified(self, items: list[Item], scope: Scope) -> list[Item]:
        """The items, of which a later one of the same name has its relation in front in dialects that say so."""
        if self.binding.semantics.repeated == "kept":
            return items
        owners = {
            i: t.alias for t in scope.tables if t.alias for c in (*t.columns, *t.hidden) for i in columns_of(c.value)
        }
        seen: set[str | None] = set()
        named: list[Item] = []
        for value, name, node in items:
            owner = owners.get(value.expression.name) if isinstance(value.expression, exp.Column) else None
            shown = (
                f"{owner}.{name}" if name in seen and owner is not None and not isinstance(node, exp.Alias) else name
            )
            seen.add(shown)
            named.append((value, shown, node))
        return named

    def _project(self, relation: Relation, items: list[Item]) -> tuple[Relation, tuple[Output, ...]]:
        used: set[str] = set()
        columns: list[Column] = []
        outputs: list[Output] = []
        exprs: list[Scalar] = []
        for value, name, node in items:
            scalar = value.finish()
            same = scalar.column
            if same is not None and same in relation.ids and same not in used:
                column = Column(same, name or "?column?", scalar.type, scalar.nullable)
                used.add(same)
            else:
                column = self.binding.new_column(name or "?column?", scalar.type, scalar.nullable)
            columns.append(column)
            exprs.append(scalar)
            outputs.append(
                Output(column, name is not None, value.unknown, place_of(node), hidden=self.hidden and not outputs)
            )
        if isinstance(relation, Values) and len(relation.rows) == 1 and self.node.args.get("from_") is None:
            return Values((tuple(exprs),), tuple(columns)), tuple(outputs)
        return Project(relation, tuple(columns), tuple(exprs)), tuple(outputs)

    def _distinct(self, relation: Relation, outputs: tuple[Output, ...]) -> tuple[Relation, tuple[Output, ...]]:
        relation = distinct(relation, self.binding)
        renamed = [Output(c, o.named, o.unknown, o.span) for c, o in zip(relation.columns, outputs, strict=True)]
        return relation, tuple(renamed)

    # -- GROUP BY -----------------------------------------------------------------------------------------------

    def _grouping(self, group: exp.Group | None, below: ScopeContext, scope: Scope) -> Grouping:
        keys: list[Scalar] = []
        names: list[str] = []
        sets: list[tuple[int, ...]] = []
        found: list[list[tuple[Value, str | None]]] = [[]]
        if group is not None:
            check_arguments(group, frozenset({"expressions"}), self.env.text, "GROUP BY")
            found = sets_of(group, lambda node: self._group_item(node, below, scope), below)
        for items in found:
            places = []
            for value, name in items:
                scalar = value.finish()
                same = [i for i, k in enumerate(keys) if k.expression == scalar.expression]
                places.append(same[0] if same else len(keys))
                if not same:
                    keys.append(scalar)
                    names.append(name or "?column?")
            sets.append(tuple(dict.fromkeys(places)))
        distinct_sets = group is not None and group.args.get("all") is False  # GROUP BY DISTINCT
        if distinct_sets:
            sets = list({frozenset(chosen): chosen for chosen in reversed(sets)}.values())
        return Grouping(below, keys, names, sets, self.binding, "SELECT")

    def _group_item(self, node: exp.Expression, below: ScopeContext, scope: Scope) -> list[tuple[Value, str | None]]:
        while isinstance(node, exp.Paren):
            node = node.this
        if isinstance(node, exp.Tuple):
            return [pair for inner in node.expressions for pair in self._group_item(inner, below, scope)]
        inside = ScopeContext(below.text, scope, "GROUP BY")
        if isinstance(node, exp.Literal) and not node.is_string:
            return [self._select_item(node, inside, scope)]
        return [(bind_value(aliased(node, self.node.expressions, scope) or node, inside), item_name(node))]

    def _select_item(self, node: exp.Literal, ctx: ScopeContext, scope: Scope) -> tuple[Value, str | None]:
        """GROUP BY 1: the first item of the select list."""
        position = int(node.name) if node.name.isdecimal() else 0
        items: list[exp.Expression | Value] = []
        names: list[str | None] = []
        for item in self.node.expressions:
            star = star_of(item)
            if star is not None:
                columns = expanded(star, item, scope, self.env.text)
                items += [c.value for c in columns]
                names += [c.name for c in columns]
            else:
                items.append(item.this if isinstance(item, exp.Alias) else item)
                names.append(name_of(item.args["alias"]) if isinstance(item, exp.Alias) else item_name(item))
        if not 1 <= position <= len(items):
            raise ctx.error("SYNTAX_ERROR", f"GROUP BY position {node.name} is not in select list", node)
        found = items[position - 1]
        return (found if isinstance(found, Value) else bind_value(found, ctx)), names[position - 1]

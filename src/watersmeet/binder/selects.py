"""Binds SELECT: FROM (its items are joined from left to right), WHERE, GROUP BY, HAVING, the select list, DISTINCT."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from sqlglot import exp

from watersmeet.algebra.nodes import Clock, Column, Node, Project, TemporalJoin, Unnest, Values
from watersmeet.algebra.scalars import Scalar, conjunction, conjuncts
from watersmeet.binder.clauses.aggregates import Grouping, aliased, scans_below, sets_of
from watersmeet.binder.clauses.gapfilling import bind_gap_fill, gap_fill_call
from watersmeet.binder.clauses.joins import check_aliases
from watersmeet.binder.clauses.lookups import (
    dangling,
    is_looked_up,
    names_past,
    of_now,
    past_of,
    plain_join,
    refuse_past,
)
from watersmeet.binder.clauses.ordering import OrderLimit, Windows, note_order, order_limit_of, ordered_items
from watersmeet.binder.clauses.sources import (
    READERS,
    SELECT_PARTS,
    alias_of,
    bind_derived,
    bind_table,
    bind_values,
    check_arguments,
    expanded,
    star_of,
)
from watersmeet.binder.clauses.subqueries import Subqueries
from watersmeet.binder.clauses.substreams import FinalOrder, final_groups, final_rows
from watersmeet.binder.clauses.timewindows import (
    StreamOrder,
    bind_late_rows,
    bind_window_call,
    check_condition,
    check_join,
    names_late_rows,
    window_call,
)
from watersmeet.binder.context.binding import (
    Bound,
    Environment,
    Item,
    OutputColumn,
    check_alias_list,
    condition_parts,
    distinct,
    filtered,
    scope_columns,
    value_of,
)
from watersmeet.binder.context.rules import Binding, BindQuery, Groups, JoinClause, SelectList, SelectWindows, Sourced
from watersmeet.binder.context.scope import Scope, ScopeColumn, ScopeContext, item_name, single, unaliased_name
from watersmeet.dialects.tree.nodes import ArrayJoin, CommaJoin, kind_of, own_parts
from watersmeet.dialects.tree.queries import name_of, node_span
from watersmeet.errors import did_you_mean
from watersmeet.expressions.aggregatecalls import has_aggregate
from watersmeet.expressions.calls import FunctionCall
from watersmeet.expressions.context import Context, Value, columns_of, refuse_maps
from watersmeet.expressions.functions import function, is_function
from watersmeet.expressions.scalars import bind_condition, bind_value
from watersmeet.expressions.setfunctions import (
    RECORDS,
    TableCall,
    array_of,
    is_set_function,
    records,
    row_names,
    row_values,
    set_function,
    table_call,
)
from watersmeet.values.types import BIGINT, INTEGER, TIMESTAMP


class SetFunctions:
    """The set-returning functions of a select list, whose rows are output in parallel (RisingWave's ProjectSet)."""

    def __init__(self, env: Environment, binding: Binding) -> None:
        self.env = env
        self.binding = binding
        self.arrays: list[Scalar] = []
        self.elements: list[Column] = []

    def add(self, name: str, array: Value, node: exp.Expression) -> Value:
        """Adds a function that returns the elements of `array`. Returns its value in each row."""
        scalar, kind = array.finish(), array.type.element
        assert kind is not None
        if scalar.columns & {c.id for c in self.elements}:
            raise self.env.not_supported(
                "a set-returning function inside of another", node, hint="Call the inner one in FROM."
            )
        self.arrays.append(scalar)
        self.elements.append(self.binding.new_column(name, kind, nullable=True))
        return value_of(self.elements[-1])

    def tree(self, relation: Node) -> Node:
        """`relation` with the functions' columns."""
        return Unnest(relation, tuple(self.arrays), tuple(self.elements)) if self.arrays else relation


class Clocks:
    """now() in a select list: a column with the time at which a row is computed, which the row keeps. In the argument
    of an aggregate function it is the time of the rows that are aggregated.
    """

    def __init__(self, binding: Binding) -> None:
        self.binding = binding
        self.column: Column | None = None

    def value(self) -> Value:
        """The time."""
        if self.column is None:
            self.column = self.binding.new_column("now", TIMESTAMP, nullable=False)
        return value_of(self.column)

    def tree(self, relation: Node) -> Node:
        """`relation` with the column, if it is read."""
        if self.column is None:
            return relation
        return TemporalJoin(relation, Clock((self.column,)), "inner", (), None, None)


class Chain:
    """A list of items in FROM: `first JOIN …, second JOIN …`. JOIN binds tighter than the comma.

    A table function that reads columns becomes an Unnest of the item with these columns, so it never needs a join.
    """

    def __init__(self, env: Environment, binding: Binding, subqueries: Callable[[Scope], Subqueries]) -> None:
        self.env = env
        self.binding = binding
        self.subqueries = subqueries
        self._items: list[Sourced] = []
        self._written: list[Scope] = []
        self._commas: list[exp.Join] = []

    def start(self, item: Sourced | TableCall) -> None:
        """Starts the list with its first item."""
        item = self._constant(item) if isinstance(item, TableCall) else item
        self._items.append(item)
        self._written.append(item[1])

    def add(self, node: exp.Join, item: Sourced | TableCall) -> None:
        """Adds the next item with a comma or a JOIN."""
        if isinstance(item, TableCall):
            arrays = self._arrays(item, self.left)
            reads = frozenset[str]().union(*[columns_of(a) for a in arrays]) & self.left_ids
            if reads or isinstance(node, ArrayJoin):
                self._lateral(node, item, arrays, reads)
                return
            item = self._constant(item)
        if isinstance(node, CommaJoin):
            self._commas.append(node)
            self._items.append(item)
            self._written.append(item[1])
        else:
            self._items[-1] = self._join(self._items[-1], item, node)
            self._written[-1] = self._items[-1][1]

    def _join(self, left: Sourced, right: Sourced, node: exp.Join) -> Sourced:
        check_join(node, left[1], right[1], self.binding.collected.windowed, Context(self.env.text, "JOIN/ON"))
        self.binding.rules.check_join(node, self.env.text)
        clause = JoinClause(left, right, node, self.env, self.binding, self.subqueries)
        return self.binding.rules.join(clause, plain_join)

    @property
    def left(self) -> Scope:
        """The columns that the next item can read."""
        extension = self._written[0].extension if len(self._written) == 1 else None
        return Scope(
            tuple(t for s in self._written for t in s.tables),
            tuple(c for s in self._written for c in s.visible),
            self.env.outer,
            extension=extension,
        )

    def result(self) -> Sourced:
        """The join of all items. Joins by commas change no column, so the written column order is kept."""
        self._merge()
        relation, scope = self._items[0]
        return relation, replace(self.left, stream=scope.stream)

    def _merge(self) -> None:
        """The join of some items, as one item."""
        whole = self._items[0]
        for item, node in zip(self._items[1:], self._commas, strict=True):
            whole = self._join(whole, item, node)
        self._items, self._written, self._commas = [whole], [self.left], []

    # -- table functions ----------------------------------------------------------------------------------------

    def _arrays(self, call: TableCall, scope: Scope) -> list[Value]:
        """The rows of each function of the item, as arrays."""
        ctx = ScopeContext(self.env.text, scope, "functions in FROM")
        found = []
        for name, arguments, node in call.calls:
            if name in ("tumble", "hop", "session"):
                hint = "The frame SESSION WITH GAP of a window function makes sessions." if name == "session" else None
                raise ctx.not_supported(f"the time window function {name.upper()} in this place", node, hint=hint)
            if call.kinds:
                found.append(self._records(call, ctx))
                continue
            if name in READERS:
                feature = f"a function that reads files in {self.binding.rules.query_called}"
                hint = "INSERT … SELECT from it, or create a source or an external table of the files."
                raise ctx.not_supported(feature, node, hint=hint)
            if not is_set_function(name) and is_function(name, ctx):
                value = function(FunctionCall(name, [bind_value(a, ctx) for a in arguments], arguments, node, ctx))
                found.append(Value(exp.Array(expressions=[value.finish().expression]), array_of(value.type)))
                continue
            if not is_set_function(name):
                wraps = name in ("stream", "table") and arguments and isinstance(arguments[0], exp.Anonymous)
                unknown = arguments[0].name.lower() if wraps else name
                known = ["generate_series", "unnest", *sorted(self.binding.rules.readers)]
                raise self.env.error(
                    "UNDEFINED_FUNCTION",
                    f"table function {unknown} does not exist",
                    arguments[0] if wraps else node,
                    hint=did_you_mean(unknown, known)
                    or ("CREATE FUNCTION … RETURNS TABLE (…) makes one in Python." if wraps else None),
                )
            found.append(
                set_function(FunctionCall(name, [bind_value(a, ctx) for a in arguments], arguments, node, ctx))
            )
        return found

    def _records(self, call: TableCall, ctx: Context) -> Value:
        """The records of a function with a list of column definitions."""
        name, arguments, node = call.calls[0]
        if name not in RECORDS or len(call.calls) > 1 or len(call.kinds) != len(call.names):
            raise ctx.error(
                "SYNTAX_ERROR",
                "a column definition list is only allowed for functions returning record",
                node,
                hint="Write only the names of the columns: AS x (a, b).",
            )
        return records(FunctionCall(name, [bind_value(a, ctx) for a in arguments], arguments, node, ctx), call)

    def _constant(self, call: TableCall) -> Sourced:
        """A relation for a function that reads no columns."""
        column = self.binding.new_column("dummy", INTEGER, nullable=False)
        one = Values(((Scalar(exp.Literal.number(0), INTEGER, nullable=False),),), (column,))
        arrays = self._arrays(call, Scope(outer=self.env.outer))
        unnested = self._unnested(one, call, arrays)
        return unnested, self._scope(call, unnested)

    def _lateral(self, node: exp.Join, call: TableCall, arrays: Sequence[Value], reads: frozenset[str]) -> None:
        if node.side.upper() in ("RIGHT", "FULL"):
            raise self.env.error(
                "SYNTAX_ERROR",
                f"a function that reads columns can't be the right side of {node.side.upper()} JOIN",
                call.calls[0][2],
                detail="The combining JOIN type must be INNER or LEFT for a LATERAL reference.",
            )
        if node.args.get("using") or node.method.upper() == "NATURAL":
            raise self.env.not_supported(
                "USING with a function that reads columns", call.calls[0][2], hint="Write the condition with ON."
            )
        if isinstance(node, CommaJoin):
            self._attach(call, arrays, reads)
            return
        if not reads <= self._items[-1][0].ids:
            self._merge()
        relation, scope = self._items[-1]
        unnested = self._unnested(relation, call, arrays)
        made = self._scope(call, unnested)
        check_aliases(scope, made, node, self.env)
        both = Scope(scope.tables + made.tables, scope.visible + made.visible, self.env.outer, stream=scope.stream)
        self._items[-1] = self._joined(unnested, both, node), both
        self._written[-1] = both

    def _attach(self, call: TableCall, arrays: Sequence[Value], reads: frozenset[str]) -> None:
        """Attaches `f(t.a)` to the item with the columns; joins items if no single item has all of them."""
        if not any(reads <= relation.ids for relation, _ in self._items):
            self._merge()
        at = next(i for i, (relation, _) in enumerate(self._items) if reads <= relation.ids)
        relation, scope = self._items[at]
        unnested = self._unnested(relation, call, arrays)
        made = self._scope(call, unnested)
        if call.title in [t.alias for t in self.left.tables]:
            raise self.env.error(
                "DUPLICATE_OBJECT",
                f'table name "{call.title}" specified more than once',
                call.calls[0][2],
                hint="Give one of them an alias.",
            )
        self._items[at] = (
            unnested,
            Scope(scope.tables + made.tables, scope.visible + made.visible, self.env.outer, stream=scope.stream),
        )
        self._written.append(made)

    def _joined(self, unnested: Unnest, scope: Scope, node: exp.Join) -> Node:
        condition = node.args.get("on")
        parts = (
            []
            if condition is None
            else conjuncts(bind_condition(condition, ScopeContext(self.env.text, scope, "JOIN/ON"), "JOIN/ON").finish())
        )
        parts = [p for p in parts if not (isinstance(p.expression, exp.Boolean) and p.expression.this)]
        if node.side.upper() == "LEFT":
            return Unnest(
                unnested.input,
                unnested.arrays,
                unnested.elements,
                unnested.ordinality,
                outer=True,
                condition=conjunction(parts),
            )
        return filtered(unnested, parts)

    @property
    def left_ids(self) -> frozenset[str]:
        """The ids of the columns of all items."""
        return frozenset[str]().union(*[relation.ids for relation, _ in self._items])

    def _unnested(self, relation: Node, call: TableCall, arrays: Sequence[Value]) -> Unnest:
        kinds = [a.type.element for a in arrays]
        elements = tuple(
            self.binding.new_column(name, kind, nullable=True)
            for (name, _, _), kind in zip(call.calls, kinds, strict=True)
            if kind is not None
        )
        number = self.binding.new_column("ordinality", BIGINT, nullable=True) if call.ordinality else None
        return Unnest(relation, tuple(a.finish() for a in arrays), elements, number)

    def _scope(self, call: TableCall, unnested: Unnest) -> Scope:
        columns = [
            ScopeColumn(name, value)
            for i, element in enumerate(unnested.elements)
            for name, value in zip(row_names(call, i, element.type), row_values(call, value_of(element)), strict=True)
        ]
        if unnested.ordinality is not None:
            columns.append(ScopeColumn("ordinality", value_of(unnested.ordinality)))
        check_alias_list(call.names, len(columns), f'table "{call.title}"', self.env.text, node_span(call.calls[0][2]))
        shown = [*call.names, *[c.name for c in columns[len(call.names) :]]]
        return single(call.title, [ScopeColumn(n, c.value) for n, c in zip(shown, columns, strict=True)])


_JOIN: Final = frozenset({"this", "on", "using", "match_condition", "side", "kind", "method"})
_SUBQUERY: Final = frozenset({"this", "alias", "joins"})


class Selecting:
    """Binds one SELECT. `bind` binds the queries inside it."""

    def __init__(self, node: exp.Select, env: Environment, binding: Binding, bind: BindQuery) -> None:
        self.node = node
        self.env = env
        self.binding = binding
        self.bind = bind
        self.rules = binding.rules
        self.sets = SetFunctions(env, binding)
        self.clocks, self.inner_clocks = Clocks(binding), Clocks(binding)
        self.hidden = False  # the first item was added to the written list

    def bound(self) -> Bound:
        """Binds the whole query."""
        self._check()
        self.node = self.rules.written(self.node, self.env, self.binding)
        relation, scope = self.source()
        relation = self.where(relation, scope)
        self.node, relation, scope = self.rules.select(self.node, relation, scope, self.env, self.binding)
        rows = StreamOrder(relation, scope, self.binding)
        if self.rules.semantics.row_order != "none":
            scope = replace(scope, order=rows)
        return self.selected(rows, scope)

    def _subqueries(self, scope: Scope) -> Subqueries:
        """The subqueries of a clause over the columns of `scope`."""
        return Subqueries(self.env, self.binding, self.bind, scope)

    def _check(self) -> None:
        check_arguments(self.node, SELECT_PARTS | own_parts(self.node), self.env.text, self.rules.query_called)
        self.rules.check_select(self.node, self.env.text)
        for lateral in self.node.args.get("laterals") or []:
            raise self.env.not_supported("LATERAL VIEW", lateral)

    # -- FROM ---------------------------------------------------------------------------------------------------

    def source(self) -> Sourced:
        """FROM with its joins; a single row without columns if there is no FROM."""
        clause = self.node.args.get("from_")
        if clause is None:
            column = self.binding.new_column("dummy", INTEGER, nullable=False)
            one = Scalar(exp.Literal.number(0), INTEGER, nullable=False)
            return Values(((one,),), (column,)), Scope(outer=self.env.outer)
        relation, scope = self._chain(clause.this, self.node.args.get("joins") or [])
        return relation, replace(scope, outer=self.env.outer)

    def _chain(self, first: exp.Expression, joins: Sequence[exp.Join]) -> Sourced:
        """Binds the items of FROM."""
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
        """The set-returning functions of an item of FROM."""
        own = names_late_rows(node) or window_call(node) is not None or gap_fill_call(node) is not None
        found = None if own else table_call(node)
        return None if found is not None and found.calls[0][0] in self.rules.readers else found

    def _check_join(self, node: exp.Join) -> None:
        check_arguments(node, _JOIN | own_parts(node), self.env.text, "a join")

    def _item(self, node: exp.Expression, left: Scope | None = None) -> Sourced:
        """Binds an item of FROM with the joins attached to it. left: the items to its left, for LATERAL."""
        alone = self.rules.item(node, self.node, self.env, self.binding, lambda: self._alone(node, left))
        return self._nested(alone, node)

    def _alone(self, node: exp.Expression, left: Scope | None) -> Sourced:
        call = self._call(node)
        if call is not None:
            return self._chain_of(call).result()
        if names_late_rows(node):
            return bind_late_rows(node, self.env, self.binding)
        windowed = window_call(node)
        if windowed is not None:
            return bind_window_call(windowed, self.env, self.binding, self.bind)
        if (filling := gap_fill_call(node)) is not None:
            return bind_gap_fill(filling, self.env, self.binding, self.bind)
        if isinstance(node, exp.Table):
            if names_past(node):
                if not self.rules.batch:
                    raise refuse_past(node, self.env)
                past = past_of(node, self.env)
                return bind_table(of_now(node), self.env, replace(self.binding, past=past), self.bind)
            if left is None and is_looked_up(node) and not self._asked_for_rows():
                raise dangling(node, self.env)
            return bind_table(node, self.env, self.binding, self.bind)
        if isinstance(node, exp.Subquery):
            return self._subquery(node)
        if isinstance(node, exp.Values):
            bound = bind_values(node, self.env, self.binding, self.bind)
            alias, names = alias_of(node)
            return bound.relation, single(alias, scope_columns(bound.relation.columns, names))
        if isinstance(node, exp.Lateral):
            return self._lateral(node, left)
        raise self.env.not_supported(f"{kind_of(node).__name__.upper()} in FROM of {self.rules.query_called}", node)

    def _asked_for_rows(self) -> bool:
        """Whether the query is a subquery that is evaluated when rows (not groups) of a stream arrive."""
        around = self.env.outer
        while around is not None and around.stream is None:
            around = around.outer
        return self.binding.still and around is not None and around.from_inside is None

    def _lateral(self, node: exp.Lateral, left: Scope | None) -> Sourced:
        check_arguments(node, frozenset({"this", "alias"}), self.env.text, "LATERAL")
        if not isinstance(node.this, exp.Subquery):
            raise self.env.not_supported("LATERAL of this form", node)
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
        check_arguments(node, _SUBQUERY | own_parts(node), self.env.text, "a subquery in FROM")
        if isinstance(node.this, (exp.Table, exp.Subquery)):
            relation, scope = self._item(node.this)
            alias, names = alias_of(node)
            if alias is not None:
                shown = [*names, *[c.name for c in scope.visible[len(names) :]]]
                visible = [ScopeColumn(n, c.value) for n, c in zip(shown, scope.visible, strict=True)]
                scope = replace(single(alias, visible, stream=scope.stream), extension=scope.extension)
            return relation, scope
        return bind_derived(node, self.env, self.binding, self.bind)

    # -- WHERE --------------------------------------------------------------------------------------------------

    def where(self, relation: Node, scope: Scope) -> Node:
        """The filtered relation."""
        clause = self.node.args.get("where")
        if clause is None:
            return relation
        subqueries = self._subqueries(scope)
        ctx = ScopeContext(self.env.text, scope, "WHERE", subqueries)
        check_condition(clause.this, scope, self.binding.collected.windowed, ctx)
        return subqueries.filtered(relation, condition_parts(clause.this), ctx, "WHERE")

    # -- the select list ----------------------------------------------------------------------------------------

    def selected(self, rows: StreamOrder, scope: Scope) -> Bound:
        """Binds GROUP BY, HAVING, the select list and DISTINCT over the rows that pass WHERE."""
        subqueries = self._subqueries(scope)
        below = ScopeContext(self.env.text, scope, "SELECT", subqueries)
        defined = self.node.args.get("windows") or ()
        windows = self.rules.windows(
            self.node, rows, below, self.env, self.binding, lambda: Windows(defined, below, self.binding)
        )
        sorting = ordered_items(self.node)
        grouping = self.node.args.get("group") or self.node.args.get("having")
        grouped = bool(grouping) or any(has_aggregate(e, below) for e in [*self.node.expressions, *sorting])
        if grouped:
            groups = self.rules.groups(self.node, rows.relation, scope, self.env, self.binding)
            self.node, self.hidden = groups.node, groups.hidden
            relation, listed, order_limit = self._grouped(rows, below, windows)
        else:
            groups = Groups(self.node)
            listed, order_limit = self._listed(below, rows.relation, scope, windows)
            relation = subqueries.applied(rows.relation)
        self.hidden = self.hidden or listed.hidden
        relation = self.clocks.tree(self.sets.tree(windows.tree(relation)))
        if order_limit.limits is None and order_limit.on is None and not listed.ordered:
            note_order(sorting, self.binding)
        if self.node.args.get("distinct") and order_limit.on is None:
            relation, outputs = self._distinct(*self._project(relation, listed.items))
            found = Bound(order_limit.above(relation, listed.items, below), outputs)
        else:
            found = Bound(*self._project(order_limit.below(relation), listed.items))
        if not grouped:
            found = replace(found, relation=final_rows(found.relation, self.binding))
        return groups.finish(listed.finish(found))

    def _listed(
        self, ctx: Context, relation: Node, scope: Scope, windows: SelectWindows
    ) -> tuple[SelectList, OrderLimit]:
        """Binds the select list, and ORDER BY and LIMIT, which may call window functions. relation: the rows before
        grouping.
        """
        ctx.windowing = windows
        listed = self.rules.select_list(self.items(ctx, scope), self.node, relation, scope, ctx)
        order_limit = order_limit_of(self.node, listed.items, ctx)
        ctx.windowing = None
        return listed, order_limit

    def _grouped(
        self, rows: StreamOrder, below: ScopeContext, windows: SelectWindows
    ) -> tuple[Node, SelectList, OrderLimit]:
        """The groups that pass HAVING, and the select list over them."""
        having = self.node.args.get("having")
        ctx = self._grouping(self.node.args.get("group"), below, below.scope)
        ctx.order, ctx.scans = FinalOrder(rows, ctx, self.binding), scans_below(rows.relation)
        inside = replace(below.scope, from_inside=ctx.grouped)
        ctx.subqueries = in_items = self._subqueries(inside)
        below.clock = self.inner_clocks.value if self.rules.keeps_clock else None
        listed, order_limit = self._listed(ctx, rows.relation, below.scope, windows)
        below.clock = None
        parts = [] if having is None else condition_parts(having.this)
        ctx.clause = "HAVING"
        ctx.subqueries = in_having = self._subqueries(inside)
        # computed after binding, which finds more aggregate calls
        having_parts = in_having.bound(parts, ctx, "HAVING")
        assert isinstance(below.subqueries, Subqueries)
        aggregated = self.inner_clocks.tree(below.subqueries.applied(rows.relation))
        grouped = final_groups(ctx.tree(aggregated), self.binding)
        return in_items.applied(having_parts(grouped)), listed, order_limit

    def items(self, ctx: Context, scope: Scope) -> list[Item]:
        """The select list with stars expanded, as triples of value, name (or None) and node."""
        found: list[Item] = []
        for node in self.node.expressions:
            star = star_of(node)
            if star is not None:
                found += [
                    (ctx.grouped(c.value, c.name, node) if isinstance(ctx, Grouping) else c.value, c.name, node)
                    for c in expanded(star, node, scope, self.env.text, self.rules)
                ]
                continue
            inner = node.this if isinstance(node, exp.Alias) else node
            name = (
                name_of(node.args["alias"])
                if isinstance(node, exp.Alias)
                else unaliased_name(node, len(found) - self.hidden, self.rules.semantics)
            )
            ctx.sets, ctx.clock = self.sets, self.clocks.value if self.rules.keeps_clock else None
            found.append((bind_value(inner, ctx), name, node))
            ctx.sets, ctx.clock = None, None
        if not found:
            first = next(iter(self.node.expressions), self.node)
            raise ctx.not_supported(
                "a SELECT without columns", first, hint="Leave a column out of EXCEPT, or select a constant."
            )
        return found

    def _project(self, relation: Node, items: Sequence[Item]) -> tuple[Node, tuple[OutputColumn, ...]]:
        used: set[str] = set()
        columns: list[Column] = []
        outputs: list[OutputColumn] = []
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
                OutputColumn(
                    column, name is not None, value.unknown, node_span(node), hidden=self.hidden and not outputs
                )
            )
        if isinstance(relation, Values) and len(relation.rows) == 1 and self.node.args.get("from_") is None:
            return Values((tuple(exprs),), tuple(columns)), tuple(outputs)
        return Project(relation, tuple(columns), tuple(exprs)), tuple(outputs)

    def _distinct(self, relation: Node, outputs: tuple[OutputColumn, ...]) -> tuple[Node, tuple[OutputColumn, ...]]:
        refuse_maps((c.type for c in relation.columns), "DISTINCT over", self.env.text)
        relation = distinct(relation, self.binding)
        renamed = [OutputColumn(c, o.named, o.unknown, o.span) for c, o in zip(relation.columns, outputs, strict=True)]
        return relation, tuple(renamed)

    # -- GROUP BY -----------------------------------------------------------------------------------------------

    def _grouping(self, group: exp.Group | None, below: ScopeContext, scope: Scope) -> Grouping:
        keys: list[Scalar] = []
        names: list[str] = []
        sets: list[tuple[int, ...]] = []
        found: list[list[tuple[Value, str | None]]] = [[]]
        if group is not None:
            self._check_group(group)
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

    def _check_group(self, group: exp.Group) -> None:
        for word in ("rollup", "cube"):
            for part in group.args.get(word) or ():
                hint = f"Write GROUP BY {word.upper()} (…)."
                raise self.env.not_supported(f"WITH {word.upper()} after GROUP BY", part, hint=hint)
        check_arguments(group, frozenset({"expressions"}), self.env.text, "GROUP BY")

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
        """The select item to which a number in GROUP BY refers, counted from 1."""
        position = int(node.name) if node.name.isdecimal() else 0
        items: list[exp.Expression | Value] = []
        names: list[str | None] = []
        for item in self.node.expressions:
            star = star_of(item)
            if star is not None:
                columns = expanded(star, item, scope, self.env.text, self.rules)
                items += [c.value for c in columns]
                names += [c.name for c in columns]
            else:
                items.append(item.this if isinstance(item, exp.Alias) else item)
                names.append(name_of(item.args["alias"]) if isinstance(item, exp.Alias) else item_name(item))
        if not 1 <= position <= len(items):
            raise ctx.error("SYNTAX_ERROR", f"GROUP BY position {node.name} is not in select list", node)
        found = items[position - 1]
        return (found if isinstance(found, Value) else bind_value(found, ctx)), names[position - 1]

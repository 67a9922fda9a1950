"""FROM of bounded queries: relations, CTEs, subqueries, VALUES, table functions, joins."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

from sqlglot import exp

from watersmeet.batch.constants import values
from watersmeet.batch.files import READERS, files_refused, read_file
from watersmeet.batch.roworder import StoredOrder, WindowedOrder
from watersmeet.batch.scalars import BatchContext
from watersmeet.batch.state import (
    Batch,
    Environment,
    Output,
    Translated,
    aliased,
    column,
    not_supported,
    scope_columns,
    table_alias,
)
from watersmeet.binder.binding import check_alias_list
from watersmeet.binder.dialects.registry import rules_of
from watersmeet.binder.scope import Scope, ScopeColumn, single
from watersmeet.binder.sources import alias_of, catalog_relation, check_arguments, view_statement
from watersmeet.binder.sqlfunctions import inlined
from watersmeet.binder.timewindows import NAMES, WindowCall, check_join, window_call
from watersmeet.catalog import Index, Relation, View
from watersmeet.dialects.nodes import CommaJoin, FirstName, MarkedTable, kind_of
from watersmeet.dialects.queries import is_marked, name_of, place_of
from watersmeet.dialects.schemas import with_current_names
from watersmeet.errors import did_you_mean, error
from watersmeet.expressions.casts import coerce
from watersmeet.expressions.context import Context
from watersmeet.expressions.operators import compare
from watersmeet.expressions.scalars import bind_condition, bind_value
from watersmeet.expressions.setfunctions import (
    TableCall,
    is_set_function,
    row_names,
    row_values,
    set_function,
    table_call,
)
from watersmeet.expressions.values import Value, common_type
from watersmeet.expressions.values import call as call_duckdb
from watersmeet.types import BIGINT

Sourced = tuple[exp.Expression, Scope]
Translate = Callable[[exp.Expression, Environment, Batch], Translated]

_TABLE: Final = frozenset({"this", "alias", "db", "joins", "version"})
_JOIN: Final = frozenset({"this", "on", "using", "side", "kind", "method"})


class Sources:
    """Translates one FROM clause."""

    def __init__(self, env: Environment, batch: Batch, translate: Translate) -> None:
        self.env = env
        self.batch = batch
        self.translate = translate

    def context(self, scope: Scope, clause: str) -> BatchContext:
        """The place of an expression over `scope`."""
        return BatchContext(self.env.text, scope, clause, self._subquery_of)

    def _subquery_of(self, node: exp.Expression, scope: Scope) -> Translated:
        return self.translate(node, Environment(self.env.text, self.env.ctes, scope), self.batch)

    def clause(self, first: exp.Expression, joins: Sequence[exp.Join]) -> tuple[exp.From, list[exp.Join], Scope]:
        """FROM and its joins: JOIN binds closer than the comma, and so it is written with parentheses if need be."""
        item, scope = self.item(first, Scope(outer=self.env.outer))
        made: list[exp.Join] = []
        last: Any = item
        groups: list[Scope] = [scope]
        for node in joins:
            self._check_join(node)
            before = _joined(groups, self.env.outer)
            right = self.item(node.this, before)
            if isinstance(node, CommaJoin):
                last = right[0]
                made.append(exp.Join(this=last))
                groups.append(right[1])
                continue
            merged, condition = self._condition(groups[-1], right[1], node)
            groups[-1] = merged
            joined = exp.Join(this=right[0], side=node.side or None, kind=None, on=condition)
            if made and made[-1].args.get("on") is None and made[-1].kind != "CROSS" and len(groups) > 1:
                _nest(made[-1], joined)
            else:
                made.append(joined)
        return exp.From(this=item), made, _joined(groups, self.env.outer)

    def _check_join(self, node: exp.Join) -> None:
        if node.method.upper() == "ASOF":
            raise error(
                "FEATURE_NOT_SUPPORTED",
                "do not support asof join for batch queries",
                sql=self.env.text,
                span=place_of(node.this),
                hint="Use an ASOF join in a materialized view.",
            )
        self.batch.rules.check_ending(node, self.env.text)
        check_arguments(node, _JOIN, self.env.text, "a join")
        self.batch.rules.check_join(node, self.env.text)

    # -- items --------------------------------------------------------------------------------------------------

    def item(self, node: exp.Expression, before: Scope) -> Sourced:
        """One item of FROM. before: what stands left of it, for LATERAL."""
        self.batch.rules.check_ending(node, self.env.text)
        windowed = window_call(node)
        if windowed is not None:
            return self._nested(self._windowed(windowed), node)
        call = table_call(node)
        if call is not None:
            return self._nested(self._function(call, node, before), node)
        if isinstance(node, exp.Table):
            return self._nested(self._table(node), node)
        if isinstance(node, exp.Subquery):
            return self._nested(self._subquery(node), node)
        if isinstance(node, exp.Values):
            alias, names = alias_of(node)
            return self._derived(values(node, self.env), alias, names)
        if isinstance(node, exp.Lateral):
            return self._lateral(node, before)
        raise not_supported(f"{kind_of(node).__name__.upper()} in FROM", node, self.env)

    def _table(self, node: exp.Table) -> Sourced:
        parts = node.stored_parts if isinstance(node, MarkedTable) else frozenset()
        check_arguments(node, _TABLE | parts, self.env.text, "FROM")
        alias, names = alias_of(node)
        if node.args.get("version") is not None:
            raise error(
                "FEATURE_NOT_SUPPORTED",
                "do not support temporal join for batch queries",
                sql=self.env.text,
                span=place_of(node),
                hint="Please use temporal join in streaming queries.",
            )
        name = name_of(node.this)
        if node.args.get("db") is None and name in self.env.ctes:
            cte = self.env.ctes[name]
            made = exp.Table(this=exp.to_identifier(cte.name, quoted=True))
            return self._placed(made, cte.outputs, alias or name, names, node)
        relation = catalog_relation(node, self.batch.catalog, self.env.text, self.env.ctes)
        made, scope = self._relation(relation, alias or name, names, node)
        named = scope if alias is not None else single(name, scope.visible, relation.schema)
        return made, replace(named, order=scope.order)

    def _relation(self, relation: Relation, alias: str, names: Sequence[str], node: exp.Table) -> Sourced:
        self.batch.name(relation.id)
        if isinstance(relation, Index):
            relation = self.batch.catalog.relations[relation.depends_on[0]]
            self.batch.name(relation.id)
        if isinstance(relation, View):
            return self._view(relation, alias, names, node)
        if not relation.is_stored:
            raise error(
                "FEATURE_NOT_SUPPORTED",
                f'{relation.family} "{relation.name}" can\'t be read by a query',
                sql=self.env.text,
                span=place_of(node),
                hint="Create a materialized view over it and read that.",
            )
        self.batch.depend(relation.id)
        actual = (self.batch.catalog.actual or self.batch.catalog).relations[relation.id]
        made = exp.Table(this=exp.to_identifier(self.batch.relation_name(actual), quoted=True))
        outputs = tuple(
            Output(a.name, f.name, f.type, f.nullable)
            for a, f in zip(actual.columns, relation.columns, strict=False)  # a view may know less of them
        )
        placed, scope = self._placed(made, outputs, alias, names, node)
        semantics = self.batch.rules.semantics
        if semantics.row_order != "none":
            scope = replace(scope, order=StoredOrder(relation, made, semantics))
        return placed, scope

    def _view(self, relation: Relation, alias: str, names: Sequence[str], node: exp.Table) -> Sourced:
        statement = view_statement(relation)
        rules = rules_of(relation.dialect)
        batch = replace(self.batch, rules=rules, catalog=self.batch.catalog.seen_by(relation), named=[])
        if is_marked(statement.query):
            raise error(
                "FEATURE_NOT_SUPPORTED",
                f'view "{relation.name}" can\'t be read by a query that ends',
                sql=self.env.text,
                span=place_of(node),
                detail="It is a SELECT STREAM, which runs until it is stopped.",
                hint="Write SELECT STREAM, or read a materialized view of it.",
            )
        query, _ = inlined(statement.query, batch.catalog, relation.dialect, statement.text)
        query = with_current_names(query, batch.catalog, rules.semantics)
        inner = self.translate(query, Environment(statement.text), batch)
        outputs = tuple(
            Output(o.alias, f.name, o.type, o.nullable, window=o.window)
            for o, f in zip(inner.outputs, relation.columns, strict=True)
        )
        return self._derived(Translated(inner.query, outputs), alias, names, node)

    def _placed(
        self, made: exp.Table, outputs: Sequence[Output], alias: str, names: Sequence[str], node: exp.Expression
    ) -> Sourced:
        check_alias_list(names, len(outputs), f'table "{alias}"', self.env.text, place_of(node))
        table = self.batch.alias()
        made.set("alias", table_alias(table))
        self._note_windows(table, outputs)
        return made, single(alias, scope_columns(table, outputs, names))

    def _derived(
        self, inner: Translated, alias: str | None, names: Sequence[str], node: exp.Expression | None = None
    ) -> Sourced:
        check_alias_list(
            names, len(inner.outputs), f'table "{alias}"', self.env.text, place_of(node) if node is not None else None
        )
        table = self.batch.alias()
        self._note_windows(table, inner.outputs)
        return aliased(inner.query, table), single(alias, scope_columns(table, inner.outputs, names))

    def _note_windows(self, table: str, outputs: Sequence[Output]) -> None:
        self.batch.windowed.update({column(table, o.alias).sql(): o.window for o in outputs if o.window is not None})

    def _subquery(self, node: exp.Subquery) -> Sourced:
        alias, names = alias_of(node)
        if _is_item(node.this):
            made, scope = self.item(node.this, Scope(outer=self.env.outer))
            if alias is not None:
                shown = [*names, *[c.name for c in scope.visible[len(names) :]]]
                scope = single(alias, [ScopeColumn(n, c.value) for n, c in zip(shown, scope.visible, strict=True)])
            return made, scope
        if isinstance(node.this, exp.Values):
            return self._derived(values(node.this, self.env), alias, names, node)
        inner = self.translate(_unwrapped(node), Environment(self.env.text, self.env.ctes, self.env.outer), self.batch)
        return self._derived(inner, alias, names, node)

    def _lateral(self, node: exp.Lateral, before: Scope) -> Sourced:
        alias, names = alias_of(node)
        inner_node = node.this
        if not isinstance(inner_node, exp.Subquery):
            raise not_supported("LATERAL other than of a subquery", node, self.env)
        inner = self.translate(inner_node.this, Environment(self.env.text, self.env.ctes, before), self.batch)
        table = self.batch.alias()
        made = exp.Lateral(this=exp.Subquery(this=inner.query), alias=table_alias(table))
        return made, single(alias, scope_columns(table, inner.outputs, names))

    def _function(self, call: TableCall, node: exp.Expression, before: Scope) -> Sourced:
        ctx = self.context(before, "functions in FROM")
        first = call.calls[0][0]
        if first in ("tumble", "hop"):
            raise not_supported(f"the time window function {first.upper()} in this place", call.calls[0][2], self.env)
        if first in READERS:
            if not self.batch.files:
                raise files_refused(f"{first}()", sql=self.env.text, span=place_of(call.calls[0][2]))
            return self._derived(read_file(first, call.calls[0][2], ctx), call.title, call.names, node)
        arrays = []
        for name, arguments, place in call.calls:
            if not is_set_function(name):
                raise error(
                    "UNDEFINED_FUNCTION",
                    f"table function {name} does not exist",
                    sql=self.env.text,
                    span=place_of(place),
                    hint=did_you_mean(name, ["generate_series", "unnest", *READERS]),
                )
            arrays.append(set_function(name, [bind_value(a, ctx) for a in arguments], list(arguments), place, ctx))
        inner = self.batch.alias()
        outputs: list[Output] = []
        shown: list[exp.Expression] = []
        elements = []
        for i, array in enumerate(arrays):
            assert array.type.element is not None
            elements.append(exp.alias_(exp.Explode(this=array.finish().expression), f"e{i}", quoted=True))
            element = Value(column(inner, f"e{i}"), array.type.element)
            for name, value in zip(row_names(call, i, element.type), row_values(element), strict=True):
                outputs.append(Output(f"c{len(shown)}", name, value.type, True))
                shown.append(value.expression)
        if call.ordinality:
            lengths = [call_duckdb("len", a.finish().expression) for a in arrays]
            longest = call_duckdb("greatest", *lengths) if len(lengths) > 1 else lengths[0]
            numbers = call_duckdb("generate_series", exp.Literal.number(1), longest)
            elements.append(exp.alias_(exp.Explode(this=numbers), "n", quoted=True))
            outputs.append(Output(f"c{len(shown)}", "ordinality", BIGINT, True))
            shown.append(column(inner, "n"))
        below = aliased(exp.Select(expressions=elements), inner)
        picked = [exp.alias_(v, o.alias, quoted=True) for v, o in zip(shown, outputs, strict=True)]
        query = exp.Select(expressions=picked, from_=exp.From(this=below))
        return self._derived(Translated(query, tuple(outputs)), call.title, call.names, node)

    def _windowed(self, call: WindowCall) -> Sourced:
        """TUMBLE or HOP, as in a view."""
        ctx = Context(self.env.text, "a time window function")
        relation, scope = self._table(call.relation(ctx))
        window, time = call.read(scope, ctx)
        start = window.last_start(time.expression, time.type)
        if window.function == "hop":
            start = exp.Explode(this=window.starts(time.expression, time.type))
        values = [
            *[c.value for c in scope.visible],
            Value(start, time.type, time.nullable and window.function == "tumble"),
        ]
        names = [*[c.name for c in scope.visible], *NAMES]
        picked = [exp.alias_(v.expression, f"c{i}", quoted=True) for i, v in enumerate(values)]
        query = exp.Select(expressions=picked, from_=exp.From(this=relation))
        outputs = [
            Output(f"c{i}", n, v.type, v.nullable, window=window if i >= len(scope.visible) else None)
            for i, (n, v) in enumerate(zip(names, values, strict=False))
        ]
        below = self.batch.alias()
        ended = [
            exp.alias_(v, f"c{i}", quoted=True)
            for i, v in enumerate(
                [*[column(below, o.alias) for o in outputs], window.end(column(below, outputs[-1].alias))]
            )
        ]
        outputs.append(Output(f"c{len(outputs)}", NAMES[1], time.type, outputs[-1].nullable, window=window))
        whole = exp.Select(expressions=ended, from_=exp.From(this=aliased(query, below)))
        made, found = self._derived(Translated(whole, tuple(outputs)), *call.alias, call.node)
        if scope.order is not None:
            found = replace(found, order=WindowedOrder(scope.order, query, whole, made))
        return made, found

    # -- joins --------------------------------------------------------------------------------------------------

    def _nested(self, sourced: Sourced, node: exp.Expression) -> Sourced:
        """`(a JOIN b ON …)`: the joins that hang on an item."""
        made, scope = sourced
        inner = node.args.get("joins") or []
        if not inner:
            return sourced
        joins: list[exp.Join] = []
        for part in inner:
            self._check_join(part)
            right = self.item(part.this, scope)
            if isinstance(part, CommaJoin):
                raise not_supported("a comma inside of parentheses in FROM", part, self.env)
            scope, condition = self._condition(scope, right[1], part)
            joins.append(exp.Join(this=right[0], side=part.side or None, on=condition))
        return _parenthesised(made, joins), scope

    def _condition(self, left: Scope, right: Scope, node: exp.Join) -> tuple[Scope, exp.Expression]:
        clash = left.clash(right)
        if clash is not None:
            raise error(
                "DUPLICATE_OBJECT",
                f'table name "{clash}" specified more than once',
                sql=self.env.text,
                span=place_of(node.this),
                hint="Give one of them an alias.",
            )
        node = self.batch.rules.join_condition(node, left, right, self.env.text, self.batch.settings)
        side = node.side.upper()
        using = [name_of(i) for i in node.args.get("using") or []]
        if node.method.upper() == "NATURAL":
            names = {c.name for c in right.visible}
            using = [c.name for c in left.visible if c.name in names]
        both = Scope(left.tables + right.tables, left.visible + right.visible, self.env.outer)
        ctx = self.context(both, "JOIN/ON")
        check_join(node, left, right, self.batch.windowed, ctx)
        if using:
            merged, condition = self._using(left, right, side, using, node, ctx)
            rest = [c for c in (*left.visible, *right.visible) if c.name not in using]
            return self._extended(Scope(both.tables, (*merged, *rest), self.env.outer), left, right, side), condition
        condition_node = node.args.get("on")
        condition = exp.true() if condition_node is None else bind_condition(condition_node, ctx, "JOIN/ON").expression
        return self._extended(both, left, right, side), condition

    def _extended(self, scope: Scope, left: Scope, right: Scope, side: str) -> Scope:
        """The scope of a join whose columns may be missing."""
        return _nullable(scope, left, right, side, lambda v: self.batch.rules.unmatched(v, self.batch.settings))

    def _using(
        self, left: Scope, right: Scope, side: str, names: Sequence[str], node: exp.Join, ctx: BatchContext
    ) -> tuple[list[ScopeColumn], exp.Expression]:
        places = list(node.args.get("using") or []) or [node] * len(names)
        merged, conditions = [], []
        for name, place in zip(names, places, strict=True):
            a, b = (self._common(s, name, w, place, ctx) for s, w in ((left, "left"), (right, "right")))
            equality = exp.EQ(this=exp.column(name), expression=exp.column(name))
            conditions.append(compare(equality, a, b, ctx).expression)
            value = b if side == "RIGHT" else a
            if side == "FULL":
                kind = common_type([a.type, b.type])
                assert kind is not None
                first, second = coerce(a, kind, ctx, place), coerce(b, kind, ctx, place)
                value = Value(exp.Coalesce(this=first.expression, expressions=[second.expression]), kind)
            merged.append(ScopeColumn(name, value))
        return merged, exp.and_(*conditions)

    def _common(self, scope: Scope, name: str, side: str, node: exp.Expression, ctx: BatchContext) -> Value:
        found = [c for c in scope.visible if c.name == name]
        if not found:
            raise ctx.error(
                "UNDEFINED_COLUMN",
                f'column "{name}" specified in USING clause does not exist in {side} table',
                node,
                hint=did_you_mean(name, [c.name for c in scope.visible]),
            )
        if len(found) > 1 and not isinstance(node, FirstName):
            raise ctx.error(
                "AMBIGUOUS_COLUMN", f'common column name "{name}" appears more than once in {side} table', node
            )
        return found[0].value


def _is_item(node: exp.Expression) -> bool:
    """True for what stands in parentheses of FROM if it is no query, but a relation or a join."""
    if isinstance(node, exp.Subquery):
        return bool(node.args.get("alias") or node.args.get("joins")) or _is_item(node.this)
    return isinstance(node, exp.Table)


def _unwrapped(node: exp.Subquery) -> exp.Expression:
    """What an item of FROM in parentheses holds."""
    return node.this


def _joined(groups: Sequence[Scope], outer: Scope | None) -> Scope:
    tables = tuple(t for g in groups for t in g.tables)
    order = groups[0].order if len(groups) == 1 else None
    return Scope(tables, tuple(c for g in groups for c in g.visible), outer, order=order)


def _nest(comma: exp.Join, joined: exp.Join) -> None:
    """Puts `joined` inside the item of a comma: `a, (b JOIN c ON …)`."""
    item = comma.this
    comma.set("this", _parenthesised(item, [joined]))


def _parenthesised(item: exp.Expression, joins: list[exp.Join]) -> exp.Expression:
    """`(item JOIN …)`."""
    if isinstance(item, exp.Paren):
        item = item.this
        joins = [*(item.args.get("joins") or []), *joins]
    item.set("joins", joins)
    return exp.Paren(this=item)


def _nullable(scope: Scope, left: Scope, right: Scope, side: str, unmatched: Callable[[Value], Value]) -> Scope:
    """The scope in which all columns of a side that may lack are `unmatched`."""
    extended = {"LEFT": (right,), "RIGHT": (left,), "FULL": (left, right)}.get(side, ())
    if not extended:
        return scope
    changed = {
        c.sql() for s in extended for t in s.tables for k in t.columns for c in k.value.expression.find_all(exp.Column)
    }

    def update(item: ScopeColumn) -> ScopeColumn:
        hit = any(c.sql() in changed for c in item.value.expression.find_all(exp.Column))
        return ScopeColumn(item.name, unmatched(item.value)) if hit else item

    tables = tuple(replace(t, columns=tuple(update(c) for c in t.columns)) for t in scope.tables)
    return Scope(tables, tuple(update(c) for c in scope.visible), scope.outer)

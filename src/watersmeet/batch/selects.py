"""SELECT of bounded queries."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from sqlglot import exp

from watersmeet.batch.scalars import BatchContext, ordered
from watersmeet.batch.sources import Sources, Translate
from watersmeet.batch.state import Batch, Environment, Output, Translated, not_supported
from watersmeet.binder.scope import Scope, ScopeColumn, item_name, unaliased_name
from watersmeet.binder.sources import SELECT_PARTS, check_arguments
from watersmeet.binder.stars import expanded, star_of
from watersmeet.binder.timewindows import check_condition
from watersmeet.binder.windows import Definitions
from watersmeet.dialects.nodes import CommaJoin
from watersmeet.dialects.queries import name_of, place_of
from watersmeet.expressions.aggregatecalls import has_aggregate
from watersmeet.expressions.casts import cast
from watersmeet.expressions.context import UNORDERED, Context
from watersmeet.expressions.parts import words_of
from watersmeet.expressions.scalars import bind_condition, bind_value
from watersmeet.expressions.values import Value
from watersmeet.types import BIGINT


class Selecting:
    """Translates one SELECT."""

    def __init__(self, node: exp.Select, env: Environment, batch: Batch, translate: Translate) -> None:
        self.node = _without_names(node, env) if node.args.get("windows") else node
        self.env = env
        self.batch = batch
        self.sources = Sources(env, batch, translate)

    def translated(self) -> Translated:
        """The whole SELECT, without its WITH."""
        node = self.node
        self.batch.rules.check_ending(node, self.env.text)
        check_arguments(node, SELECT_PARTS, self.env.text, "a query")
        made: dict[str, Any] = {}
        scope = Scope(outer=self.env.outer)
        clause = node.args.get("from_")
        if clause is not None:
            joins = [*(node.args.get("joins") or []), *map(_as_join, node.args.get("laterals") or [])]
            made["from_"], made["joins"], scope = self.sources.clause(clause.this, joins)
        if scope.order is None and self.batch.rules.semantics.row_order != "none":
            scope = replace(scope, order=UNORDERED)
        where = node.args.get("where")
        if where is not None:
            check_condition(where.this, scope, self.batch.windowed, self._context(scope, "WHERE"))
            made["where"] = exp.Where(
                this=bind_condition(where.this, self._context(scope, "WHERE"), "WHERE").expression
            )
        ctx = self._grouping(made, scope)
        items = self._items(ctx, scope)
        having = node.args.get("having")
        if having is not None:
            above = self._above(scope, "HAVING", ctx.keys or [])
            made["having"] = exp.Having(this=bind_condition(having.this, above, "HAVING").expression)
        outputs, expressions = [], []
        combined = ctx.aggregates or bool(node.args.get("distinct"))
        for i, (value, name, place) in enumerate(items):
            scalar = value.finish()
            window = None if combined else self.batch.windowed.get(value.expression.sql())
            outputs.append(
                Output(
                    f"c{i}", name or "?column?", scalar.type, scalar.nullable, value.unknown, place_of(place), window
                )
            )
            expressions.append(exp.alias_(scalar.expression, f"c{i}", quoted=True))
        self._ending(made, ctx, items, outputs)
        return Translated(exp.Select(expressions=expressions, **made), tuple(outputs))

    def _context(self, scope: Scope, clause: str) -> BatchContext:
        return self.sources.context(scope, clause)

    def _above(self, scope: Scope, clause: str, keys: list[Value] | Any) -> BatchContext:
        plain = self._context(scope, clause)
        return BatchContext(
            plain.text,
            scope,
            clause,
            plain.translate,
            aggregates=True,
            windows=clause in ("SELECT", "ORDER BY"),
            keys=keys,
            of_nothing=self.batch.of_nothing,
        )

    # -- GROUP BY -----------------------------------------------------------------------------------------------

    def _grouping(self, made: dict[str, Any], scope: Scope) -> BatchContext:
        """The place of the select list: over groups, if there are any."""
        plain = BatchContext(self.env.text, scope, "SELECT", self._context(scope, "SELECT").translate, windows=True)
        group, having = self.node.args.get("group"), self.node.args.get("having")
        ending = self.node.args.get("order")
        parts = [*self.node.expressions, *(ending.expressions if ending else [])]
        if group is None and having is None and not any(has_aggregate(e, plain) for e in parts):
            return plain
        keys: list[Value] = []
        if group is not None:
            made["group"] = self._group(group, scope, keys)
        return self._above(scope, "SELECT", keys)

    def _group(self, node: exp.Expression, scope: Scope, keys: list[Value]) -> exp.Expression:
        """GROUP BY with its expressions translated; the shape (ROLLUP, CUBE, GROUPING SETS) is kept."""
        made = type(node)()
        for name, part in node.args.items():
            if isinstance(part, list):
                made.set(name, [self._group_part(p, scope, keys) for p in part])
            elif part:
                raise not_supported(f"{words_of(name) or 'what stands here'} in GROUP BY", node, self.env)
        return made

    def _group_part(self, node: exp.Expression, scope: Scope, keys: list[Value]) -> exp.Expression:
        if isinstance(node, (exp.Rollup, exp.Cube)) and not node.expressions:
            word = node.key.upper()
            raise not_supported(f"WITH {word} behind GROUP BY", node, self.env, hint=f"Write GROUP BY {word} (…).")
        if isinstance(node, (exp.Rollup, exp.Cube, exp.GroupingSets, exp.Tuple)):
            return self._group(node, scope, keys)
        if isinstance(node, exp.Paren):
            node = node.this
        value = self._group_item(node, scope)
        keys.append(value)
        expression = value.expression
        if expression.find(exp.Column) is None:
            # a bare constant would be read as a position of the select list
            return (
                exp.Paren(this=value.finish().expression.copy())
                if value.unknown
                else exp.cast(expression.copy(), value.type.duckdb, dialect="duckdb")
            )
        return expression.copy()

    def _group_item(self, node: exp.Expression, scope: Scope) -> Value:
        inside = self._context(scope, "GROUP BY")
        if isinstance(node, exp.Literal) and not node.is_string:
            position = int(node.name) if node.name.isdecimal() else 0
            items = self._unexpanded(scope)
            if not 1 <= position <= len(items):
                raise inside.error("SYNTAX_ERROR", f"GROUP BY position {node.name} is not in select list", node)
            found = items[position - 1]
            return found if isinstance(found, Value) else bind_value(found, inside)
        if isinstance(node, exp.Column) and node.args.get("table") is None:
            name = name_of(node.this)
            same = [e for e in self.node.expressions if isinstance(e, exp.Alias) and name_of(e.args["alias"]) == name]
            if same and not any(c.name == name for c in scope.visible):
                return bind_value(same[0].this, inside)
        return bind_value(node, inside)

    def _unexpanded(self, scope: Scope) -> list[Any]:
        items: list[Any] = []
        for node in self.node.expressions:
            star = star_of(node)
            if star is not None:
                items += [c.value for c in self._starred(star, node, scope)]
            else:
                items.append(node.this if isinstance(node, exp.Alias) else node)
        return items

    # -- the select list ----------------------------------------------------------------------------------------

    def _items(self, ctx: BatchContext, scope: Scope) -> list[tuple[Value, str | None, exp.Expression]]:
        found: list[tuple[Value, str | None, exp.Expression]] = []
        semantics = self.batch.rules.semantics
        for node in self.node.expressions:
            star = star_of(node)
            if star is not None:
                found += [(ctx.grouped(c.value, c.name, node), c.name, node) for c in self._starred(star, node, scope)]
                continue
            inner = node.this if isinstance(node, exp.Alias) else node
            name = (
                name_of(node.args["alias"])
                if isinstance(node, exp.Alias)
                else unaliased_name(node, len(found), semantics)
            )
            if name is None and isinstance(inner, exp.Subquery) and isinstance(inner.this, exp.Select):
                name = _subquery_name(inner.this)
            found.append((bind_value(inner, ctx), name, node))
        return found

    def _starred(self, star: exp.Star, node: exp.Expression, scope: Scope) -> list[ScopeColumn]:
        return expanded(star, node, scope, self.env.text, self.batch.rules)

    # -- DISTINCT, ORDER BY, LIMIT ------------------------------------------------------------------------------

    def _ending(
        self,
        made: dict[str, Any],
        ctx: BatchContext,
        items: list[tuple[Value, str | None, exp.Expression]],
        outputs: list[Output],
    ) -> None:
        clause = self.node.args.get("distinct")
        if clause:
            on = clause.args.get("on") if isinstance(clause, exp.Distinct) else None
            made["distinct"] = exp.Distinct(on=self._distinct_on(on, ctx, items, outputs) if on is not None else None)
        order = self.node.args.get("order")
        if order is not None:
            made["order"] = exp.Order(
                expressions=[ordered(o, self._sort_key(o.this, ctx, items, outputs)) for o in order.expressions]
            )
        made.update(limits(self.node, self._context(Scope(outer=self.env.outer), "LIMIT"), self.env))

    def _distinct_on(
        self,
        on: exp.Expression,
        ctx: BatchContext,
        items: list[tuple[Value, str | None, exp.Expression]],
        outputs: list[Output],
    ) -> exp.Expression:
        parts = on.expressions if isinstance(on, exp.Tuple) else [on.this if isinstance(on, exp.Paren) else on]
        return exp.Tuple(expressions=[self._sort_key(p, ctx, items, outputs, expression=True) for p in parts])

    def _sort_key(
        self,
        node: exp.Expression,
        ctx: BatchContext,
        items: list[tuple[Value, str | None, exp.Expression]],
        outputs: list[Output],
        *,
        expression: bool = False,
    ) -> exp.Expression:
        """An output name, a position, or an expression over the rows.

        It becomes a position of the select list where it can (or, if `expression`, what stands there).
        """
        position = output_position(node, outputs, ctx)
        if position is None:
            place = BatchContext(
                ctx.text,
                ctx.scope,
                "ORDER BY",
                ctx.translate,
                aggregates=ctx.aggregates,
                windows=True,
                keys=ctx.keys,
                of_nothing=ctx.of_nothing,
            )
            value = bind_value(node, place)
            same = [i for i, (v, _, _) in enumerate(items) if v.expression == value.expression]
            if not same:
                return value.expression
            position = same[0]
        return items[position][0].finish().expression if expression else exp.Literal.number(position + 1)


def output_position(node: exp.Expression, outputs: list[Output] | tuple[Output, ...], ctx: Any) -> int | None:
    """The output that an item of ORDER BY names, by name or position; None if it is another expression."""
    if isinstance(node, exp.Literal) and not node.is_string:
        position = int(node.name) if node.name.isdecimal() else 0
        if not 1 <= position <= len(outputs):
            raise ctx.error("SYNTAX_ERROR", f"ORDER BY position {node.name} is not in select list", node)
        return position - 1
    if isinstance(node, exp.Column) and node.args.get("table") is None:
        found = [i for i, o in enumerate(outputs) if o.name == name_of(node.this)]
        if found:
            return found[0]
    return None


def limits(node: exp.Expression, ctx: BatchContext, env: Environment) -> dict[str, exp.Expression]:
    """LIMIT, OFFSET and FETCH of a query."""
    made: dict[str, exp.Expression] = {}
    limit, offset = node.args.get("limit"), node.args.get("offset")
    if isinstance(limit, exp.Fetch):
        if limit.args.get("limit_options"):
            options = limit.args["limit_options"]
            if options.args.get("with_ties") or options.args.get("percent"):
                raise not_supported(f"FETCH … {'PERCENT' if options.args.get('percent') else 'WITH TIES'}", limit, env)
        made["limit"] = exp.Limit(expression=_count(limit.args.get("count") or exp.Literal.number(1), ctx, "FETCH"))
    elif limit is not None and not isinstance(limit.expression, exp.Null):
        made["limit"] = exp.Limit(expression=_count(limit.expression, ctx, "LIMIT"))
    if offset is not None:
        made["offset"] = exp.Offset(expression=_count(offset.expression, ctx, "OFFSET"))
    return made


def _count(node: exp.Expression, ctx: BatchContext, where: str) -> exp.Expression:
    value = bind_value(node, ctx)
    if value.unknown:
        value = cast(value, BIGINT, ctx, node)
    if not value.type.is_numeric:
        raise ctx.error(
            "DATATYPE_MISMATCH", f"argument of {where} must be type bigint, not type {value.type.sql}", node
        )
    return value.expression


def _without_names(node: exp.Select, env: Environment) -> exp.Select:
    """The SELECT with what OVER names in the place of the name."""
    ctx = Context(env.text, "WINDOW")
    node = node.copy()
    definitions = Definitions(node.args["windows"], ctx)
    node.set("windows", None)
    stack: list[exp.Expression] = [node]
    while stack:
        current = stack.pop()
        if isinstance(current, exp.Window) and current.args.get("alias") is not None:
            found = definitions.of(current, ctx)
            current.set("alias", None)
            current.set("partition_by", [p.copy() for p in found.partition])
            current.set("order", exp.Order(expressions=[o.copy() for o in found.order]) if found.order else None)
            current.set("spec", None if found.spec is None else found.spec.copy())
        stack += [c for c in current.iter_expressions() if not isinstance(c, exp.Query)]
    return node


def _as_join(node: exp.Lateral) -> exp.Join:
    return CommaJoin(this=node, kind="CROSS")


def _subquery_name(node: exp.Select) -> str | None:
    first = node.expressions[0] if node.expressions else None
    if isinstance(first, exp.Alias):
        return name_of(first.args["alias"])
    return item_name(first) if first is not None else None

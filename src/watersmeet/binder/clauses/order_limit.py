"""ORDER BY, LIMIT, OFFSET, FETCH FIRST and DISTINCT ON, which make a top-N of a query.

ORDER BY alone has no effect in a view.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import duckdb
from sqlglot import exp

from watersmeet.algebra.nodes import Node, SortKey, TopN
from watersmeet.algebra.scalars import Scalar
from watersmeet.binder.context.binding import Bound, Environment, Item, OutputColumn, value_of
from watersmeet.binder.context.rules import Binding
from watersmeet.dialects.tree.queries import name_of
from watersmeet.expressions.casts import cast
from watersmeet.expressions.context import Context, Value, first_line
from watersmeet.expressions.scalars import bind_value
from watersmeet.values.types import BIGINT

_NO_EFFECT: Final = "ORDER BY without LIMIT has no effect in a view; order the rows when you read it"
_UNORDERED: Final = ("jsonb", "array", "struct")


@dataclass(frozen=True)
class Limits:
    """LIMIT and OFFSET of a query. limit: None if there is none."""

    limit: int | None
    offset: int
    with_ties: bool


def limits_of(node: exp.Expression, ctx: Context) -> Limits | None:
    """LIMIT, OFFSET and FETCH of a query, which must be constants; None if it has none of them, nor an order that
    counts.
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
    ordered = ctx.bounded and node.args.get("order") is not None  # all rows, in this order
    return None if count is None and not skipped and not ordered else Limits(count, skipped, with_ties)


def _count(node: exp.Expression, where: str, ctx: Context) -> int | None:
    """The number in LIMIT or OFFSET; None for NULL."""
    place = Context(ctx.text, where, bounded=ctx.bounded)
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
    """The output that an item of ORDER BY or DISTINCT ON refers to by name or number; None if it is an expression."""
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
    """The key of one item of ORDER BY. NULLs sort as larger than all values, unless the item says otherwise."""
    if value.type.name in _UNORDERED and not ctx.bounded:
        raise ctx.not_supported(f"ORDER BY of a value of type {value.type.sql}", node)
    descending = bool(node.args.get("desc"))
    nulls_first = node.args.get("nulls_first")
    # The parser says `nulls_first` where nothing is written, by PostgreSQL's rule.
    return SortKey(value.finish(), descending, descending if nulls_first is None else bool(nulls_first))


def ordered_items(node: exp.Expression) -> list[Any]:
    """The items of the query's ORDER BY."""
    order = node.args.get("order")
    return [] if order is None else list(order.expressions)


def ended(bound: Bound, node: exp.Expression, env: Environment, binding: Binding) -> Bound:
    """A set operation, VALUES or query in parentheses with what follows it, which sees only its output columns."""
    ctx = Context(env.text, "ORDER BY", bounded=binding.rules.bounded)
    items = ordered_items(node)
    keys = [sort_key(o, _of_output(o.this, bound.outputs, ctx), ctx) for o in items]
    limits = limits_of(node, ctx)
    if limits is None:
        note_order(items, binding)
        return bound
    return Bound(limited(bound.relation, keys, limits), bound.outputs)


def note_order(items: Sequence[exp.Expression], binding: Binding) -> None:
    """Notes for the user that ORDER BY alone has no effect."""
    if items:
        binding.notice(_NO_EFFECT)


def limited(relation: Node, keys: Sequence[SortKey], limits: Limits) -> Node:
    """The rows of `relation` within LIMIT and OFFSET."""
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
    """ORDER BY, LIMIT, OFFSET and DISTINCT ON of a SELECT, over the rows below its select list.

    keys: of ORDER BY. on: of DISTINCT ON, None if it has none. limits: None without LIMIT and OFFSET.
    """

    node: exp.Expression
    keys: tuple[SortKey, ...]
    on: tuple[Scalar, ...] | None
    limits: Limits | None

    def below(self, relation: Node) -> Node:
        """`relation`, which the select list will read, with only the rows that are output."""
        if self.on is not None:
            relation = TopN(relation, self.on, self.keys[self._matching() :], 1)
        return relation if self.limits is None else limited(relation, self.keys, self.limits)

    def _matching(self) -> int:
        """How many of the first keys are in DISTINCT ON, so that its rows are equal in them."""
        on = [s.expression for s in self.on or ()]
        return next((i for i, k in enumerate(self.keys) if k.value.expression not in on), len(self.keys))

    def check(self, ctx: Context) -> None:
        """SYNTAX_ERROR if ORDER BY does not begin with the expressions of DISTINCT ON."""
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
        """`relation`, the distinct rows of the select list, with only those within LIMIT."""
        keys = []
        for key, place in zip(self.keys, ordered_items(self.node), strict=True):
            same = [i for i, (v, _, _) in enumerate(items) if v.finish().expression == key.value.expression]
            if not same:
                raise ctx.error(
                    "SYNTAX_ERROR", "for SELECT DISTINCT, ORDER BY expressions must appear in select list", place
                )
            column = relation.columns[same[0]]
            keys.append(SortKey(value_of(column).finish(), key.descending, key.nulls_first))
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
        scalars = tuple(value(p, "SELECT DISTINCT ON").finish() for p in parts)
    found = OrderLimit(node, keys, scalars, limits_of(node, ctx))
    found.check(ctx)
    return found

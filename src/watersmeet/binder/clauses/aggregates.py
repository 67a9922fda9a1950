"""GROUP BY, aggregate functions, and which columns can be read above them."""

from __future__ import annotations

from collections.abc import Sequence

from sqlglot import exp

from watersmeet.algebra.nodes import Aggregate, AggregateCall, Column, Node
from watersmeet.algebra.scalars import Scalar
from watersmeet.binder.clauses.groupingsets import expanded, grouping
from watersmeet.binder.context.binding import value_of
from watersmeet.binder.context.rules import Binding
from watersmeet.binder.context.scope import ScopeContext, SubqueryValues
from watersmeet.dialects.tree.queries import name_of
from watersmeet.errors import Error
from watersmeet.expressions.aggregatecalls import aggregate_name, bind_call, written
from watersmeet.expressions.context import UNORDERED, Context, RowOrder
from watersmeet.expressions.scalars import bind_value
from watersmeet.expressions.values import Value
from watersmeet.types import BIGINT, INTEGER


def bare(expression: exp.Expression) -> exp.Expression:
    """The expression without parentheses around it."""
    while isinstance(expression, exp.Paren):
        expression = expression.this
    return expression


class Grouping(Context):
    """Expressions above a GROUP BY. Group keys and aggregate calls are collected on the way.

    `below` binds the arguments of aggregate functions. sets: the grouping sets, as positions in `keys`.
    """

    def __init__(
        self,
        below: ScopeContext,
        keys: Sequence[Scalar],
        key_names: Sequence[str],
        sets: Sequence[tuple[int, ...]],
        binding: Binding,
        clause: str,
    ) -> None:
        super().__init__(below.text, clause, bounded=below.bounded)
        self.below = below
        self.binding = binding
        self.keys = tuple(Scalar(bare(k.expression), k.type, k.nullable) for k in keys)
        self.grouping_sets = tuple(sets)
        self.key_columns = tuple(
            binding.new_column(n, k.type, k.nullable or any(i not in chosen for chosen in sets))
            for i, (n, k) in enumerate(zip(key_names, keys, strict=True))
        )
        self.flags = [binding.new_column("flag", INTEGER, nullable=False)] if len(sets) > 1 else []
        self.subqueries: SubqueryValues | None = None
        self.calls: list[AggregateCall] = []
        self.call_columns: list[Column] = []

    @property
    def row_order(self) -> RowOrder | None:
        return None if self.below.row_order is None else UNORDERED

    def tree(self, relation: Node) -> Aggregate:
        """The node that computes all keys and the calls collected so far."""
        if not self.keys and not self.calls:
            self._add(AggregateCall("count", None, None, distinct=False, type=BIGINT), "count", nullable=False)
        if self.flags:
            outputs = (*self.key_columns, *self.flags, *self.call_columns)
            return expanded(relation, self.keys, self.grouping_sets, self.calls, outputs, self.binding)
        return Aggregate(relation, self.keys, tuple(self.calls), (*self.key_columns, *self.call_columns))

    def column(self, node: exp.Column) -> Value:
        table = node.args.get("table")
        shown = f"{name_of(table)}.{name_of(node.this)}" if table is not None else name_of(node.this)
        value = self.below.column(node)
        return self.grouped(value, shown, node) if self.below.scope.gives(value) else value

    def grouped(self, value: Value, shown: str, node: exp.Expression) -> Value:
        """The group key that equals `value` (over the rows below); COLUMN_NOT_GROUPED if there is none."""
        found = self._key(value)
        if found is not None:
            return found
        raise self.error(
            "COLUMN_NOT_GROUPED",
            f'column "{shown}" must appear in the GROUP BY clause or be used in an aggregate function',
            node,
        )

    def special(self, node: exp.Expression) -> Value | None:
        if aggregate_name(node, self) is not None:
            return self._call(node)
        if isinstance(node, exp.Anonymous) and str(node.this).lower() == "grouping":
            return self._grouping(node)
        found = None if self.subqueries is None else self.subqueries.value(node, self)
        if found is not None:
            return found
        if (
            isinstance(node, (exp.Column, exp.Literal, exp.Star))
            or not any(k.column is None for k in self.keys)
            or (node.find(exp.Query, exp.Exists) is not None)
        ):
            return None
        try:
            value = bind_value(node, self.below)
        except Error:
            return None
        return self._key(value)

    def _key(self, value: Value) -> Value | None:
        scalar = value.finish()
        for key, column in zip(self.keys, self.key_columns, strict=True):
            if key.expression == bare(scalar.expression) and key.type == scalar.type:
                return value_of(column)
        return None

    def _grouping(self, node: exp.Anonymous) -> Value:
        places = []
        for argument in node.expressions:
            scalar = bind_value(argument, self._inside("GROUPING")).finish()
            same = [i for i, k in enumerate(self.keys) if k.expression == bare(scalar.expression)]
            if not same:
                raise self.error(
                    "COLUMN_NOT_GROUPED",
                    "arguments to GROUPING must be grouping expressions of the associated query level",
                    argument,
                )
            places.append(same[0])
        if not 1 <= len(places) < 32:
            raise self.error("SYNTAX_ERROR", "GROUPING must have fewer than 32 arguments", node)
        return grouping(places, self.grouping_sets, [value_of(c) for c in self.flags])

    def _call(self, node: exp.Expression) -> Value:
        call = written(node)
        assert call is not None
        bound = bind_call(call, self._inside)
        read = frozenset[str]().union(*(s.columns for s in bound.scalars))
        if read and read <= self.below.scope.ids_around:
            raise self.not_supported("an aggregate function of columns of an outer query alone", node)
        value = self._add(bound, call.name, nullable=bound.function != "count")
        if bound.argument is None or not self._may_have_none(bound):
            return value
        return self.binding.rules.of_nothing(
            value, bound.function, bound.argument.expression, self.below.scope, self.binding.settings
        )

    def _may_have_none(self, call: AggregateCall) -> bool:
        """True if a group may have no values for a call: the group of all rows, filtered calls, or deviations, which
        need two values.
        """
        return (
            call.filter is not None
            or not self.keys
            or len(self.grouping_sets) > 1
            or call.function in ("stddev_samp", "var_samp")
        )

    def _inside(self, clause: str) -> ScopeContext:
        return ScopeContext(self.text, self.below.scope, clause, self.below.subqueries)

    def _add(self, call: AggregateCall, name: str, *, nullable: bool) -> Value:
        if call in self.calls:
            return value_of(self.call_columns[self.calls.index(call)])
        column = self.binding.new_column(name, call.type, nullable)
        self.calls.append(call)
        self.call_columns.append(column)
        return value_of(column)

"""GROUP BY, aggregate functions, and which columns may be read above them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, get_args
from typing import cast as typed

from sqlglot import exp

from watersmeet.algebra.relations import Aggregate, AggregateCall, AggregateFunction, Column, Relation
from watersmeet.algebra.scalars import Scalar
from watersmeet.dialects.binder.casts import cast
from watersmeet.dialects.binder.context import Context
from watersmeet.dialects.binder.expressions import bind_condition, bind_value
from watersmeet.dialects.binder.functions import is_aggregate
from watersmeet.dialects.binder.scope import ScopeContext, SubqueryValues
from watersmeet.dialects.binder.shared import Binding, value_of
from watersmeet.dialects.binder.values import Value, columns_of
from watersmeet.dialects.queries import name_of
from watersmeet.errors import Error
from watersmeet.types import BIGINT, BOOLEAN, DOUBLE, NUMERIC, VARCHAR, SqlType

_FUNCTIONS: Final = get_args(AggregateFunction)
#: Types that have no least and greatest value.
UNORDERED: Final = ("jsonb", "array", "struct", "boolean", "interval")


def aggregate_name(node: exp.Expression, ctx: Context) -> str | None:
    """The name of the aggregate function that `node` calls (under FILTER too), None if it calls none."""
    if isinstance(node, exp.Filter):
        node = node.this
    if not isinstance(node, exp.Anonymous) or not isinstance(node.this, str):
        return None
    name = node.this.lower()
    return name if is_aggregate(name, ctx) else None


def has_aggregate(node: exp.Expression, ctx: Context) -> bool:
    """True if the expression calls an aggregate function outside of subqueries and windows."""
    stack = [node]
    while stack:
        current = stack.pop()
        if isinstance(current, (exp.Query, exp.Window)):
            continue
        if aggregate_name(current, ctx) is not None:
            return True
        stack += list(current.iter_expressions())
    return False


def result_type(name: str, kind: SqlType, node: exp.Expression, ctx: Context) -> SqlType:
    """RisingWave's result type of an aggregate over a type; DATATYPE_MISMATCH if it takes no such type."""
    if name == "count":
        return BIGINT
    if name in ("bool_and", "bool_or"):
        if kind != BOOLEAN:
            raise _no_function(name, kind, node, ctx)
        return BOOLEAN
    if name in ("min", "max"):
        if kind.name in UNORDERED:
            raise _no_function(name, kind, node, ctx)
        return kind
    if not kind.is_numeric:
        raise _no_function(name, kind, node, ctx)
    if name == "sum":
        if kind.is_float:
            return kind
        return BIGINT if kind.name in ("smallint", "integer") else NUMERIC
    return DOUBLE if kind.is_float else NUMERIC


def _no_function(name: str, kind: SqlType, node: exp.Expression, ctx: Context) -> Error:
    return ctx.error("DATATYPE_MISMATCH", f"function {name}({kind.sql}) does not exist", node)


def bare(expression: exp.Expression) -> exp.Expression:
    """The expression without parentheses around it."""
    while isinstance(expression, exp.Paren):
        expression = expression.this
    return expression


class Grouping(Context):
    """Expressions above a GROUP BY: group keys and aggregate calls, which are collected on the way.

    `below` binds what stands inside of aggregate functions.
    """

    def __init__(self, below: ScopeContext, keys: Sequence[Scalar], key_names: Sequence[str],
                 binding: Binding, clause: str) -> None:
        super().__init__(below.text, clause)
        self.below = below
        self.binding = binding
        self.keys = tuple(Scalar(bare(k.expression), k.type, k.nullable) for k in keys)
        self.key_columns = tuple(
            binding.new_column(n, k.type, k.nullable) for n, k in zip(key_names, keys, strict=True))
        self.subqueries: SubqueryValues | None = None
        self.calls: list[AggregateCall] = []
        self.call_columns: list[Column] = []

    def tree(self, relation: Relation) -> Aggregate:
        """The node that computes all keys and the calls that were met so far."""
        if not self.keys and not self.calls:
            self._add(AggregateCall("count", None, None, distinct=False, type=BIGINT), "count", nullable=False)
        return Aggregate(relation, self.keys, tuple(self.calls), (*self.key_columns, *self.call_columns))

    def column(self, node: exp.Column) -> Value:
        table = node.args.get("table")
        shown = f"{name_of(table)}.{name_of(node.this)}" if table is not None else name_of(node.this)
        value = self.below.column(node)
        return self.grouped(value, shown, node) if self.below.scope.gives(value) else value

    def grouped(self, value: Value, shown: str, node: exp.Expression) -> Value:
        """The group key that `value` (of the rows below) is; COLUMN_NOT_GROUPED if it is none."""
        found = self._key(value)
        if found is not None:
            return found
        raise self.error("COLUMN_NOT_GROUPED",
                         f'column "{shown}" must appear in the GROUP BY clause or be used in an aggregate function', node)

    def special(self, node: exp.Expression) -> Value | None:
        name = aggregate_name(node, self)
        if name is not None:
            return self._call(name, node)
        found = None if self.subqueries is None else self.subqueries.value(node, self)
        if found is not None:
            return found
        if isinstance(node, (exp.Column, exp.Literal, exp.Star)) or not any(k.column is None for k in self.keys) or (
                node.find(exp.Query, exp.Exists) is not None):
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

    def _call(self, name: str, node: exp.Expression) -> Value:
        condition = None
        inner = node
        if isinstance(node, exp.Filter):
            inner = node.this
            condition = bind_condition(node.expression.this, self._inside("FILTER"), "FILTER").finish()
        name = "bool_and" if name == "every" else name
        if name not in _FUNCTIONS:
            raise self.not_supported(f"the aggregate function {name} in a view", node)
        call = self._bound(typed("AggregateFunction", name), inner, condition)
        return self._add(call, name, nullable=name != "count")

    def _inside(self, clause: str) -> ScopeContext:
        return ScopeContext(self.text, self.below.scope, clause, self.below.subqueries)

    def _bound(self, name: AggregateFunction, node: exp.Expression, condition: Scalar | None) -> AggregateCall:
        arguments = list(node.expressions)
        distinct = False
        if len(arguments) == 1 and isinstance(arguments[0], exp.Distinct):
            distinct = True
            arguments = list(arguments[0].expressions)
        if not arguments or (len(arguments) == 1 and isinstance(arguments[0], exp.Star)):
            if name != "count" or not node.expressions:
                raise self.error("DATATYPE_MISMATCH", f"function {name}() does not exist", node)
            return AggregateCall("count", None, condition, distinct=False, type=BIGINT)
        if len(arguments) > 1:
            raise self.error("DATATYPE_MISMATCH", f"{name} takes one argument, not {len(arguments)}", node)
        if isinstance(arguments[0], exp.Order):
            raise self.not_supported(f"ORDER BY in {name}", node)
        value = bind_value(arguments[0], self._inside("the argument of an aggregate function"))
        if columns_of(value) and not self.below.scope.gives(value):
            raise self.not_supported("an aggregate function of columns of the query around it alone", node)
        if value.unknown:
            value = cast(value, DOUBLE if name in ("sum", "avg") else BOOLEAN if name.startswith("bool") else VARCHAR,
                         self, node)
        kind = result_type(name, value.type, node, self)
        scalar = value.finish()
        if name == "count" and not distinct and not scalar.nullable:
            return AggregateCall("count", None, condition, distinct=False, type=BIGINT)
        distinct = distinct and name in ("count", "sum", "avg")
        return AggregateCall(name, scalar, condition, distinct, kind)

    def _add(self, call: AggregateCall, name: str, *, nullable: bool) -> Value:
        if call in self.calls:
            return value_of(self.call_columns[self.calls.index(call)])
        column = self.binding.new_column(name, call.type, nullable)
        self.calls.append(call)
        self.call_columns.append(column)
        return value_of(column)

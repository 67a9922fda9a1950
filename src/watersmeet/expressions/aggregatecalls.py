"""Binds calls of aggregate functions: their arguments, orders and result types."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, get_args
from typing import cast as typed

from sqlglot import exp

from watersmeet.algebra.nodes import AggregateCall, AggregateFunction, SortKey
from watersmeet.algebra.scalars import Scalar
from watersmeet.dialects.tree.nodes import AnyRow
from watersmeet.errors import Error
from watersmeet.expressions.calls import FunctionCall, by_duckdb, constant_of
from watersmeet.expressions.casts import cast, coerce, text_of
from watersmeet.expressions.context import Context, Value, ranked
from watersmeet.expressions.functions import is_aggregate
from watersmeet.expressions.jsonfunctions import made_of
from watersmeet.expressions.scalars import bind_condition, bind_value
from watersmeet.values.types import (
    BIGINT,
    BOOLEAN,
    BYTEA,
    DEFAULT_PRECISION,
    DOUBLE,
    JSONB,
    NUMERIC,
    VARCHAR,
    SqlType,
)

_SAME: Final = {
    "every": "bool_and", "stddev": "stddev_samp", "variance": "var_samp", "approx_count_distinct": "count",
    "approx_percentile": "percentile_disc", "json_agg": "jsonb_agg", "json_object_agg": "jsonb_object_agg",
}  # fmt: skip
_APPROXIMATE: Final = "approx_percentile"
_DEVIATIONS: Final = ("var_pop", "var_samp", "stddev_pop", "stddev_samp")
#: The window functions that DuckDB lists as aggregates.
OF_WINDOWS: Final = frozenset(
    {"row_number", "rank", "dense_rank", "percent_rank", "cume_dist", "ntile", "lag", "lead", "nth_value"}
)
_BITS: Final = ("bit_and", "bit_or", "bit_xor")
_WITHIN: Final = ("mode", "percentile_cont", "percentile_disc")
#: The functions whose result depends on the order of the rows.
_ORDERED: Final = ("array_agg", "string_agg", "jsonb_agg", "jsonb_object_agg", "first_value", "last_value")
_OF_ONE_ROW: Final = ("first_value", "last_value")
#: The functions on which DISTINCT has no effect.
_IDEMPOTENT: Final = ("min", "max", "bool_and", "bool_or", "bit_and", "bit_or")
#: The types without an order.
UNORDERED: Final = ("jsonb", "array", "struct")
_ARGUMENTS: Final = {"string_agg": 2, "jsonb_object_agg": 2, "mode": 0}


@dataclass(frozen=True)
class Written:
    """A call as written. name: in lower case. order: the items of ORDER BY, or of WITHIN GROUP if `within` is set."""

    node: exp.Expression
    name: str
    arguments: tuple[exp.Expression, ...]
    distinct: bool
    order: tuple[exp.Ordered, ...]
    within: bool
    filter: exp.Expression | None


def written(node: exp.Expression) -> Written | None:
    """The call in `node`, which FILTER and WITHIN GROUP may enclose; None for other nodes."""
    inner, condition, order, within = node, None, (), False
    if isinstance(inner, exp.Filter):
        inner, condition = inner.this, inner.expression.this
    if isinstance(inner, exp.WithinGroup):
        order, within, inner = tuple(inner.expression.expressions), True, inner.this
    if not isinstance(inner, exp.Anonymous) or not isinstance(inner.this, str):
        return None
    arguments = list(inner.expressions)
    if arguments and isinstance(arguments[-1], exp.Order):
        order = tuple(arguments[-1].expressions)
        arguments[-1] = arguments[-1].this
    distinct = len(arguments) == 1 and isinstance(arguments[0], exp.Distinct)
    if distinct:
        arguments = list(arguments[0].expressions)
    return Written(node, inner.this.lower(), tuple(arguments), distinct, order, within, condition)


def aggregate_name(node: exp.Expression, ctx: Context) -> str | None:
    """The name of the aggregate function that `node` calls, possibly with FILTER and WITHIN GROUP, or None."""
    found = written(node)
    return found.name if found is not None and is_aggregate(found.name, ctx) else None


def check_over(name: str, node: exp.Expression, ctx: Context) -> None:
    """Raises SYNTAX_ERROR for a window function without OVER (PostgreSQL 17, 9.22)."""
    if name in OF_WINDOWS:
        raise ctx.error("SYNTAX_ERROR", f"window function {name} requires an OVER clause", node)


def has_aggregate(node: exp.Expression, ctx: Context) -> bool:
    """True if the expression calls an aggregate function without OVER and outside of subqueries."""
    stack = [node]
    while stack:
        current = stack.pop()
        if isinstance(current, exp.Query):
            continue
        if isinstance(current, exp.Window):
            function = current.this.this if isinstance(current.this, exp.Filter) else current.this
            stack += [n for n in current.iter_expressions() if n is not current.this]
            stack += [*function.expressions, *([current.this.expression] if function is not current.this else [])]
            continue
        if aggregate_name(current, ctx) is not None:
            return True
        stack += list(current.iter_expressions())
    return False


def result_type(name: str, kind: SqlType, node: exp.Expression, ctx: Context) -> SqlType:
    """The result type of an aggregate over a type, as in PostgreSQL. Raises DATATYPE_MISMATCH for an unsupported
    type.
    """
    written_name, name = name, _SAME.get(name, name)
    if name == "count":
        return BIGINT
    if name in ("first_value", "last_value"):
        return kind
    if name == "array_agg":
        return SqlType("array", element=kind)
    if name in ("min", "max", "mode", "percentile_disc"):
        if kind.labels:
            raise ctx.not_supported(f"{name} of an enum", node, hint="ORDER BY column LIMIT 1 follows its order.")
        if kind.name in UNORDERED or (kind == BOOLEAN and name in ("min", "max")):
            raise _no_function(name, kind, node, ctx)
        return kind
    wanted, result = _typed(name, kind)
    if not wanted:
        raise _no_function(written_name, kind, node, ctx)
    return result


def _typed(name: str, kind: SqlType) -> tuple[bool, SqlType]:
    """Whether the function accepts the type, and its result type."""
    if name in ("bool_and", "bool_or"):
        return kind == BOOLEAN, BOOLEAN
    if name in _BITS:
        return kind.is_integer, kind
    if name == "string_agg":
        return kind in (VARCHAR, BYTEA), VARCHAR if kind == VARCHAR else kind
    if name == "percentile_cont":
        return kind.is_numeric, DOUBLE
    if name == "sum" and (kind.is_float or kind.is_integer):
        return True, kind if kind.is_float else BIGINT if kind.name in ("smallint", "integer") else NUMERIC
    if name == "sum" and kind.precision is not None:
        return True, SqlType("numeric", DEFAULT_PRECISION, kind.decimals)
    return kind.is_numeric, DOUBLE if kind.is_float else NUMERIC


def _no_function(name: str, kind: SqlType, node: exp.Expression, ctx: Context) -> Error:
    hint = f"Values of type {kind.sql} have no order. Cast them to varchar." if kind.name in UNORDERED else None
    return ctx.error("DATATYPE_MISMATCH", f"function {name}({kind.sql}) does not exist", node, hint=hint)


def bind_call(call: Written, place: Callable[[str], Context]) -> AggregateCall:
    """The call with bound arguments. `place` returns the context of a clause before grouping.

    Raises FEATURE_NOT_SUPPORTED for an aggregate function that views do not support, DATATYPE_MISMATCH for unsupported
    arguments.
    """
    ctx = place("the argument of an aggregate function")
    check_over(call.name, call.node, ctx)
    name = _SAME.get(call.name, call.name)
    known = name in get_args(AggregateFunction)
    if not known and not ctx.batch:
        raise ctx.not_supported(f"the aggregate function {name} in a view", call.node)
    condition = None
    if call.filter is not None:
        condition = bind_condition(call.filter, place("FILTER"), "FILTER").finish()
    if not known:
        return _Binder(call, typed("AggregateFunction", name), condition, ctx).by_duckdb()
    return _Binder(call, typed("AggregateFunction", name), condition, ctx).bound()


@dataclass(frozen=True)
class _Binder:
    call: Written
    name: AggregateFunction
    filter: Scalar | None
    ctx: Context

    def by_duckdb(self) -> AggregateCall:
        """The call of a function that only DuckDB has; DuckDB determines its type."""
        call, ctx = self.call, self.ctx
        if call.within:
            raise ctx.not_supported(f"{call.name} WITHIN GROUP", call.node)
        values = [bind_value(n, ctx) for n in call.arguments]
        kind = by_duckdb(FunctionCall(call.name, values, call.arguments, call.node, ctx)).type
        scalars = tuple(v.finish() for v in values)
        first = scalars[0] if scalars else None
        return AggregateCall(self.name, first, self.filter, call.distinct, kind, scalars[1:], self._order())

    def bound(self) -> AggregateCall:
        call, name = self.call, self.name
        if call.within != (name in _WITHIN):
            raise self._wrong_clause()
        if name == "count" and len(call.arguments) == 1 and isinstance(call.arguments[0], exp.Star):
            return self._count_rows()
        nodes = [item.this for item in call.order] if call.within else list(call.arguments)
        if not nodes or isinstance(nodes[0], exp.Star):
            raise self._mismatch([])
        if call.within:
            return self._within(nodes)
        values = [bind_value(n, self.ctx) for n in nodes]
        if len(values) != _ARGUMENTS.get(name, 1):
            if len(values) > 1 and name not in _ARGUMENTS:
                raise self.ctx.error(
                    "DATATYPE_MISMATCH", f"{call.name} takes one argument, not {len(values)}", call.node
                )
            raise self._mismatch(values)
        return self._plain(values)

    def _plain(self, values: Sequence[Value]) -> AggregateCall:
        name = self.name
        first = self._known(values[0])
        constant: str | None = None
        extra: tuple[Scalar, ...] = ()
        if name in ("jsonb_agg", "jsonb_object_agg"):
            if name == "jsonb_object_agg":
                extra = (self._json(values[1]),)
            scalar, kind = self._json_key(first) if extra else self._json(first), JSONB
        else:
            kind = result_type(self.call.name, first.type, self.call.node, self.ctx)
            scalar = first.finish()
        if name == "string_agg" and values[1].unknown and kind == VARCHAR:
            constant = "" if values[1].is_null else values[1].expression.name
        elif name == "string_agg":
            if not values[1].unknown and values[1].type != kind:
                raise self._mismatch(values)
            extra = (coerce(values[1], kind, self.ctx, self.call.node).finish(),)
        if name == "count" and not self._distinct and not scalar.nullable:
            return self._count_rows()
        order = (self._order() or self._in_arrival_order(scalar)) if name in _ORDERED else ()
        if self._distinct and self.call.order:
            self._check_distinct(order, [s.expression for s in (first.finish(), scalar, *extra)])
        return AggregateCall(name, scalar, self.filter, self._distinct, kind, extra, order, constant)

    @property
    def _distinct(self) -> bool:
        return self.call.name == "approx_count_distinct" or (self.call.distinct and self.name not in _IDEMPOTENT)

    def _count_rows(self) -> AggregateCall:
        return AggregateCall("count", None, self.filter, distinct=False, type=BIGINT)

    def _known(self, value: Value) -> Value:
        """The argument, where an untyped literal gets the default type of the function's arguments."""
        if not value.unknown:
            return value
        number = self.name in ("sum", "avg", "percentile_cont", *_DEVIATIONS)
        kind = (
            DOUBLE if number else BOOLEAN if self.name.startswith("bool") else BIGINT if self.name in _BITS else VARCHAR
        )
        return cast(value, kind, self.ctx, self.call.node)

    def _json(self, value: Value) -> Scalar:
        value = cast(value, VARCHAR, self.ctx, self.call.node) if value.unknown else value
        return made_of(value).finish()

    def _json_key(self, value: Value) -> Scalar:
        """The name of a field as jsonb: a quoted text."""
        return self._json(Value(text_of(value), VARCHAR, value.nullable))

    def _within(self, nodes: Sequence[exp.Expression]) -> AggregateCall:
        """An ordered-set aggregate, whose argument is the expression in WITHIN GROUP."""
        call = self.call
        if call.distinct:
            raise self.ctx.error("SYNTAX_ERROR", "cannot use DISTINCT with WITHIN GROUP", call.node)
        fraction = self._fraction()
        if len(nodes) > 1:
            raise self.ctx.error(
                "DATATYPE_MISMATCH", f"{call.name} takes one key in WITHIN GROUP, not {len(nodes)}", call.node
            )
        value = self._known(bind_value(nodes[0], self.ctx))
        kind = result_type(self.name, value.type, call.node, self.ctx)
        if self.name == "percentile_cont" or call.name == _APPROXIMATE:
            kind = result_type("percentile_cont", value.type, call.node, self.ctx)
            value = cast(value, DOUBLE, self.ctx, call.node)
        scalar = value.finish()
        item = call.order[0]
        order = (SortKey(scalar, bool(item.args.get("desc")), bool(item.args.get("nulls_first"))),)
        return AggregateCall(self.name, scalar, self.filter, distinct=False, type=kind, order=order, constant=fraction)

    def _fraction(self) -> float | None:
        """The first direct argument, which must be a literal from 0 to 1. The error that approx_percentile may have
        changes nothing: the percentile is exact.
        """
        most = 2 if self.call.name == _APPROXIMATE else _ARGUMENTS.get(self.name, 1)
        if not _ARGUMENTS.get(self.name, 1) <= len(self.call.arguments) <= most:
            raise self._mismatch([bind_value(a, self.ctx) for a in self.call.arguments])
        if self.name == "mode":
            return None
        node = self.call.arguments[0]
        fraction = constant_of(bind_value(node, self.ctx), DOUBLE, node, self.ctx, example=0.5)
        if fraction is None:
            raise self.ctx.not_supported(f"{self.name} with a fraction that is not a constant number", node)
        if not 0 <= fraction <= 1:
            raise self.ctx.error("INVALID_VALUE", f"percentile value {fraction:g} is not between 0 and 1", node)
        return float(fraction)

    def _order(self) -> tuple[SortKey, ...]:
        items = []
        for node in self.call.order:
            value = bind_value(node.this, self.ctx)
            value = cast(value, VARCHAR, self.ctx, node) if value.unknown else value
            if value.type.name in UNORDERED and value.type != JSONB:
                raise self.ctx.not_supported(f"ORDER BY of {value.type.sql} in an aggregate", node)
            items.append(
                SortKey(ranked(value).finish(), bool(node.args.get("desc")), bool(node.args.get("nulls_first")))
            )
        return tuple(items)

    def _in_arrival_order(self, value: Scalar) -> tuple[SortKey, ...]:
        """The order of arrival for calls without ORDER BY; lists only use it if it is known. value: the argument."""
        rows, name = self.ctx.row_order, self.name
        if rows is None or self.call.distinct or name not in (*_OF_ONE_ROW, "array_agg", "string_agg"):
            return ()
        if rows.known is None and self.call.node.find(AnyRow) is not None and value.type.name not in UNORDERED:
            return (SortKey(value),)
        return rows.keys(self.call.node, self.ctx) if name in _OF_ONE_ROW else rows.known or ()

    def _check_distinct(self, order: Sequence[SortKey], arguments: Sequence[exp.Expression]) -> None:
        if any(item.value.expression not in arguments for item in order):
            raise self.ctx.error(
                "SYNTAX_ERROR",
                "in an aggregate with DISTINCT, ORDER BY expressions must appear in argument list",
                self.call.order[0],
            )

    def _mismatch(self, values: Sequence[Value]) -> Error:
        shown = ", ".join("unknown" if v.unknown else v.type.sql for v in values)
        return self.ctx.error("DATATYPE_MISMATCH", f"function {self.call.name}({shown}) does not exist", self.call.node)

    def _wrong_clause(self) -> Error:
        what = "needs WITHIN GROUP (ORDER BY …)" if self.name in _WITHIN else "takes no WITHIN GROUP"
        return self.ctx.error("SYNTAX_ERROR", f"{self.call.name} {what}", self.call.node)

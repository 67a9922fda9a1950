"""Scalars of bounded queries: what views refuse, DuckDB does (subqueries, aggregates of all kinds, windows)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import duckdb
from sqlglot import exp

from watersmeet.batch.aggregates import AS_VIEWS, as_view
from watersmeet.batch.state import Translated
from watersmeet.binder.aggregates import bare
from watersmeet.binder.scope import Scope, ScopeContext
from watersmeet.binder.windows import as_they_came
from watersmeet.dialects.nodes import sql_of
from watersmeet.dialects.queries import name_of
from watersmeet.errors import Error
from watersmeet.expressions.aggregatecalls import Written, aggregate_name, bind_call, check_over, result_type, written
from watersmeet.expressions.calls import mismatch
from watersmeet.expressions.casts import cast
from watersmeet.expressions.context import UNORDERED, Context, RowOrder, first_line, typed_null
from watersmeet.expressions.operators import comparable
from watersmeet.expressions.scalars import bind_condition, bind_value
from watersmeet.expressions.values import Value, call, duckdb_cast, number, wrap
from watersmeet.types import BIGINT, BOOLEAN, DOUBLE, INTEGER, NUMERIC, VARCHAR, SqlType

Translate = Callable[[exp.Expression, Scope], Translated]

_TYPED: Final = ("count", "sum", "avg", "min", "max", "bool_and", "bool_or", "every")
_WINDOWED: Final[dict[str, SqlType | None]] = {
    "row_number": BIGINT, "rank": BIGINT, "dense_rank": BIGINT, "ntile": BIGINT, "percent_rank": DOUBLE,
    "cume_dist": DOUBLE, "lag": None, "lead": None, "first_value": None, "last_value": None, "nth_value": None,
}  # fmt: skip
_ORDERED_SETS: Final = {"mode": "mode", "percentile_cont": "quantile_cont", "percentile_disc": "quantile_disc"}
_RENAMED: Final = {"every": "bool_and", "jsonb_agg": "json_group_array"}


#: Of a value, the function's name, its argument and the scope below.
OfNothing = Callable[[Value, str, exp.Expression, Scope], Value]


def _unchanged(value: Value, function: str, argument: exp.Expression, scope: Scope) -> Value:  # noqa: ARG001
    return value


class BatchContext(ScopeContext):
    """An expression of a bounded query. `translate` translates the subqueries in it.

    aggregates: whether aggregate functions may be called here. keys: if not None, the expressions of GROUP
    BY; a column outside of aggregates must be one of them. of_nothing: the value of an
    aggregate function that may get no rows.
    """

    volatile_allowed = True

    def __init__(
        self,
        text: str,
        scope: Scope,
        clause: str,
        translate: Translate,
        *,
        aggregates: bool = False,
        windows: bool = False,
        keys: Sequence[Value] | None = None,
        of_nothing: OfNothing | None = None,
    ) -> None:
        super().__init__(text, scope, clause)
        self.of_nothing: OfNothing = of_nothing or _unchanged
        self.translate = translate
        self.aggregates = aggregates
        self.windows = windows
        self.keys = keys

    @property
    def row_order(self) -> RowOrder | None:
        return super().row_order if self.keys is None or self.scope.order is None else UNORDERED

    def rows_of(self, name: str, array: Callable[[], Value], node: exp.Expression) -> Value:
        if self.clause != "SELECT":
            return super().rows_of(name, array, node)
        rows = array()
        assert rows.type.element is not None
        if rows.expression.find(exp.Explode) is not None:
            raise self.not_supported(
                "a set-returning function inside of another", node, hint="Call the inner one in FROM."
            )
        return Value(exp.Explode(this=rows.finish().expression), rows.type.element)

    def inside(self, clause: str) -> BatchContext:
        """The place inside of an aggregate function: no grouping, no further aggregates."""
        return BatchContext(self.text, self.scope, clause, self.translate)

    def column(self, node: exp.Column) -> Value:
        value = super().column(node)
        table = node.args.get("table")
        shown = f"{name_of(table)}.{name_of(node.this)}" if table is not None else name_of(node.this)
        return self.grouped(value, shown, node)

    def grouped(self, value: Value, shown: str, node: exp.Expression) -> Value:
        """`value` itself; COLUMN_NOT_GROUPED if it is neither a group key nor of a query further out."""
        if self.keys is None or any(k.expression == value.expression for k in self.keys):
            return value
        own = {c.sql() for t in self.scope.tables for s in t.columns for c in s.value.expression.find_all(exp.Column)}
        if not any(c.sql() in own for c in value.expression.find_all(exp.Column)):
            return value
        raise self.error(
            "COLUMN_NOT_GROUPED",
            f'column "{shown}" must appear in the GROUP BY clause or be used in an aggregate function',
            node,
        )

    def special(self, node: exp.Expression) -> Value | None:
        if isinstance(node, exp.Window):
            return self._window(node)
        if isinstance(node, exp.Anonymous) and str(node.this).lower() == "grouping" and self.keys is not None:
            inside = self.inside("GROUPING")
            return Value(
                duckdb_cast(call("grouping", *[bind_value(a, inside).expression for a in node.expressions]), INTEGER),
                INTEGER,
                nullable=False,
            )
        inner = node.this if isinstance(node, exp.Filter) else node
        if isinstance(inner, exp.WithinGroup) and inner.this.name.lower() in AS_VIEWS:
            found_call = written(node)
            assert found_call is not None
            return self._as_view(found_call)
        if isinstance(node, exp.WithinGroup):
            return self._within_group(node)
        if isinstance(node, exp.Filter) and isinstance(node.this, exp.WithinGroup):
            condition = bind_condition(node.expression.this, self.inside("FILTER"), "FILTER").expression
            return self._within_group(node.this, condition)
        if aggregate_name(node, self) is not None:
            return self._aggregate(node)
        found = self._subquery(node)
        if found is not None or not self.keys or isinstance(node, (exp.Column, exp.Literal, exp.Star)):
            return found
        if any(not isinstance(k.expression, exp.Column) for k in self.keys):
            return self._key(node)
        return None

    def _key(self, node: exp.Expression) -> Value | None:
        try:
            value = bind_value(node, self.inside("GROUP BY"))
        except Error:
            return None
        found = [k for k in self.keys or () if bare(k.expression) == bare(value.expression)]
        return found[0] if found else None

    # -- subqueries ---------------------------------------------------------------------------------------------

    def _subquery(self, node: exp.Expression) -> Value | None:
        if isinstance(node, exp.Exists):
            inner = self.translate(node.this, self.scope)
            return Value(exp.Exists(this=inner.query), BOOLEAN, nullable=False)
        if isinstance(node, exp.In) and node.args.get("query") is not None:
            return self._in(node, node.args["query"])
        if (
            isinstance(node, (exp.EQ, exp.NEQ, exp.LT, exp.LTE, exp.GT, exp.GTE))
            and isinstance(node.expression, (exp.Any, exp.All))
            and _is_query(node.expression.this)
        ):
            return self._quantified(node)
        if isinstance(node, (exp.Subquery, exp.Select, exp.SetOperation)):
            return self._scalar(node)
        if _is_array_of_rows(node):
            inner = self._single_column(node.expressions[0])
            kind = SqlType("array", element=inner.outputs[0].type)
            return Value(call("array", inner.query), kind, exact=False)
        return None

    def _single_column(self, node: exp.Expression) -> Translated:
        inner = self.translate(node, self.scope)
        if len(inner.outputs) != 1:
            raise self.error("SYNTAX_ERROR", "subquery must return only one column", node)
        return inner

    def _scalar(self, node: exp.Expression) -> Value:
        inner = self._single_column(node)
        output = inner.outputs[0]
        return Value(exp.Subquery(this=inner.query), output.type, nullable=True)

    def _in(self, node: exp.In, query: exp.Expression) -> Value:
        items = list(node.this.expressions) if isinstance(node.this, exp.Tuple) else [node.this]
        inner = self.translate(query, self.scope)
        if len(inner.outputs) != len(items):
            few = "few" if len(inner.outputs) < len(items) else "many"
            raise self.error("SYNTAX_ERROR", f"subquery has too {few} columns", query)
        sides = []
        for item, output in zip(items, inner.outputs, strict=True):
            value = bind_value(item, self)
            equality = exp.EQ(this=item.copy(), expression=item.copy())
            other = Value(exp.null(), output.type) if not output.unknown else Value(exp.null(), VARCHAR)
            sides.append(comparable(equality, value, other, self)[0].finish().expression)
        left: exp.Expression = sides[0] if len(sides) == 1 else exp.Tuple(expressions=sides)
        return Value(exp.In(this=wrap(left), query=exp.Subquery(this=inner.query)), BOOLEAN)

    def _quantified(self, node: Any) -> Value:
        inner = self._single_column(node.expression.this)
        value = bind_value(node.this, self)
        left, _ = comparable(node, value, Value(exp.null(), inner.outputs[0].type), self)
        quantifier = type(node.expression)(this=exp.Subquery(this=inner.query))
        return Value(type(node)(this=wrap(left.expression), expression=quantifier), BOOLEAN)

    # -- aggregates and windows ---------------------------------------------------------------------------------

    def _aggregate(self, node: exp.Expression, *, over: bool = False) -> Value:
        found = written(node)
        if not over and found is not None:
            check_over(found.name, node, self)
        if not self.aggregates and not over:
            raise self.error("COLUMN_NOT_GROUPED", f"aggregate functions are not allowed in {self.clause}", node)
        if not over and found is not None and found.name in AS_VIEWS and found.arguments:
            return self._as_view(found)
        if found is not None and found.name == "jsonb_object_agg":
            raise self.not_supported("jsonb_object_agg in a query", node, hint="A materialized view can have it.")
        condition = None
        inner: Any = node
        if isinstance(node, exp.Filter):
            inner = node.this
            condition = bind_condition(node.expression.this, self.inside("FILTER"), "FILTER").expression
        name = inner.this.lower()
        place = self.inside("the argument of an aggregate function")
        if over:
            place = BatchContext(
                self.text, self.scope, place.clause, self.translate, aggregates=self.aggregates, keys=self.keys
            )
        arguments, values = self._arguments(inner, place)

        def complete(function: str, parts: list[exp.Expression]) -> exp.Expression:
            made: exp.Expression = exp.Anonymous(this=function, expressions=parts)
            return made if condition is None else exp.Filter(this=made, expression=exp.Where(this=condition.copy()))

        expression = complete(_RENAMED.get(name, name), arguments)
        if name in _TYPED:
            value = self._typed(name, expression, values, node, complete, arguments, over=over)
            return value if over or not values else self.of_nothing(value, name, values[0].expression, self.scope)
        try:
            kind, _ = self.type_of(
                exp.Anonymous(this=_RENAMED.get(name, name), expressions=[typed_null(v) for v in values])
            )
        except duckdb.BinderException as err:
            raise mismatch(name, values, node, self, err) from None
        except duckdb.Error as err:
            raise self.error("INVALID_VALUE", first_line(err), node) from None
        if kind is None:
            raise self.not_supported(f"the result type of {name}", node)
        return Value(expression, kind, exact=False)

    def _as_view(self, found: Written) -> Value:
        bound = bind_call(found, self.inside)
        value = as_view(bound)
        if bound.argument is None:
            return value
        return self.of_nothing(value, bound.function, bound.argument.expression, self.scope)

    def _arguments(self, node: exp.Expression, place: Context) -> tuple[list[exp.Expression], list[Value]]:
        """The translated arguments, DISTINCT and ORDER BY kept, and their values alone."""
        parts: list[exp.Expression] = []
        values: list[Value] = []
        for argument in node.expressions:
            if isinstance(argument, exp.Star):
                parts.append(exp.Star())
            elif isinstance(argument, exp.Distinct):
                found = [bind_value(e, place) for e in argument.expressions]
                values += found
                parts.append(exp.Distinct(expressions=[v.expression for v in found]))
            elif isinstance(argument, exp.Order):
                value = bind_value(argument.this, place)
                values.append(value)
                ordered = [self._ordered(o, place) for o in argument.expressions]
                parts.append(exp.Order(this=value.expression, expressions=ordered))
            else:
                value = bind_value(argument, place)
                values.append(value)
                parts.append(value.expression)
        return parts, values

    def _typed(
        self,
        name: str,
        expression: exp.Expression,
        values: list[Value],
        node: exp.Expression,
        complete: Callable[[str, list[exp.Expression]], exp.Expression],
        arguments: list[exp.Expression],
        *,
        over: bool,
    ) -> Value:
        if name == "count":
            if len(values) > 1:
                raise self.error("DATATYPE_MISMATCH", f"count takes one argument, not {len(values)}", node)
            return Value(expression, BIGINT, nullable=False)
        if len(values) != 1:
            raise self.error("DATATYPE_MISMATCH", f"{name} takes one argument, not {len(values)}", node)
        value = values[0]
        if value.unknown:
            value = cast(value, DOUBLE if name in ("sum", "avg") else VARCHAR, self, node)
        kind = result_type("bool_and" if name == "every" else name, value.type, node, self)
        if name == "avg" and kind == NUMERIC and not over:
            return Value(_exact_average(complete("sum", arguments), complete("count", arguments)), NUMERIC)
        exact = name in ("min", "max") and value.exact
        return Value(expression if exact else duckdb_cast(expression, kind), kind)

    def _within_group(self, node: exp.WithinGroup, condition: exp.Expression | None = None) -> Value:
        function, order = node.this, node.expression.expressions
        name = function.this.lower() if isinstance(function, exp.Anonymous) else ""
        if name not in _ORDERED_SETS or len(order) != 1:
            raise self.not_supported(f"{name or 'this function'} WITHIN GROUP", node)
        place = self.inside("the argument of an aggregate function")
        value = bind_value(order[0].this, place)
        fractions = [bind_value(a, place).expression for a in function.expressions]
        if order[0].args.get("desc"):
            fractions = [exp.Sub(this=number(1), expression=wrap(f)) for f in fractions]
        kind = DOUBLE if name == "percentile_cont" else value.type
        made = call(_ORDERED_SETS[name], value.expression, *fractions)
        if condition is not None:
            made = exp.Filter(this=made, expression=exp.Where(this=condition.copy()))
        found = Value(duckdb_cast(made, kind), kind)
        return self.of_nothing(found, name, value.expression, self.scope)

    def _ordered(self, node: exp.Expression, place: Context) -> exp.Expression:
        return ordered(node, bind_value(node.this, place).expression)

    def _window(self, node: exp.Window) -> Value:
        if not self.windows:
            raise self.error("COLUMN_NOT_GROUPED", f"window functions are not allowed in {self.clause}", node)
        if node.args.get("alias") is not None:
            raise self.not_supported("a named window", node)
        function = node.this
        place = BatchContext(
            self.text, self.scope, "a window", self.translate, aggregates=self.aggregates, keys=self.keys
        )
        if aggregate_name(function, self) is not None and function.find(exp.Anonymous).this.lower() not in _WINDOWED:
            value = self._aggregate(function, over=True)
            inner = value.expression
        else:
            value = self._window_function(function, place)
            inner = value.expression
        partition = [bind_value(p, place).expression for p in node.args.get("partition_by") or []]
        order, spec = node.args.get("order"), _spec(node.args.get("spec"), place)
        keys = [self._ordered(o, place) for o in order.expressions] if order else []
        if not keys and (came := as_they_came(function, node.args.get("spec"), place)):
            keys = [exp.Ordered(this=k.value.expression.copy(), desc=k.descending or None) for k in came]
            spec = spec or _whole_partition()
        over = exp.Window(
            this=inner.this if isinstance(inner, exp.Cast) else inner,
            partition_by=partition,
            order=exp.Order(expressions=keys) if keys else None,
            spec=spec,
        )
        return Value(duckdb_cast(over, value.type), value.type, value.nullable)

    def _window_function(self, node: exp.Expression, place: BatchContext) -> Value:
        name = node.this.lower() if isinstance(node, exp.Anonymous) and isinstance(node.this, str) else ""
        if name not in _WINDOWED:
            raise self.not_supported(f"{sql_of(node, 'postgres')} as a window function", node)
        arguments, values = self._arguments(node, place)
        kind = _WINDOWED[name] or (values[0].type if values else BIGINT)
        return Value(exp.Anonymous(this=name, expressions=arguments), kind, nullable=_WINDOWED[name] is None)


def _is_query(node: exp.Expression) -> bool:
    while isinstance(node, exp.Paren):
        node = node.this
    return isinstance(node, exp.Query)


def _is_array_of_rows(node: exp.Expression) -> bool:
    """True for `ARRAY (SELECT …)`."""
    named = isinstance(node, exp.Array) or (isinstance(node, exp.Anonymous) and str(node.this).lower() == "array")
    return named and len(node.expressions) == 1 and isinstance(node.expressions[0], exp.Query)


def _spec(spec: exp.Expression | None, place: Context) -> exp.Expression | None:
    if spec is None:
        return None
    made = spec.copy()
    for name in ("start", "end"):
        bound = made.args.get(name)
        if isinstance(bound, exp.Expression):
            made.set(name, bind_value(bound, place).expression)
    return made


def _whole_partition() -> exp.WindowSpec:
    """The frame of a window whose rows are all peers."""
    return exp.WindowSpec(kind="ROWS", start="UNBOUNDED", start_side="PRECEDING", end="UNBOUNDED", end_side="FOLLOWING")


def ordered(node: exp.Expression, expression: exp.Expression) -> exp.Ordered:
    """ORDER BY `expression` in the direction of `node`, NULLs where PostgreSQL puts them."""
    descending = bool(node.args.get("desc"))
    nulls_first = node.args.get("nulls_first")
    first = descending if nulls_first is None else bool(nulls_first)
    return exp.Ordered(this=expression, desc=descending or None, nulls_first=first)


def _exact_average(total: exp.Expression, count: exp.Expression) -> exp.Expression:
    """Sum / count to ten digits behind the point, rounded half away from zero: what views compute."""
    huge = exp.DataType.build("HUGEINT", dialect="duckdb")
    scaled = exp.Cast(this=exp.Mul(this=total, expression=number("10000000000")), to=huge)
    twice = exp.Mul(this=scaled, expression=number(2))
    half = exp.Mul(this=call("sign", scaled.copy()), expression=count.copy())
    divisor = exp.Paren(this=exp.Mul(this=count.copy(), expression=number(2)))
    quotient = exp.IntDiv(this=exp.Paren(this=exp.Add(this=twice, expression=half)), expression=divisor)
    whole = exp.Cast(this=quotient, to=exp.DataType.build("DECIMAL(38,0)", dialect="duckdb"))
    return duckdb_cast(exp.Mul(this=whole, expression=number("0.0000000001")), NUMERIC)

"""Set-returning functions: each as an array whose elements are its rows.

PostgreSQL 17, 9.26 "Set Returning Functions" and table 9.49 (jsonb); RisingWave, "Set-returning functions". What an
array can't say (that a NULL argument gives no rows) the operator does: a NULL array has no elements.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sqlglot import exp

from watersmeet.dialects.tree.queries import name_of
from watersmeet.expressions.calls import Arguments, Builder, count_checked, limited, mismatch_of
from watersmeet.expressions.casts import cast, coerce
from watersmeet.expressions.context import Context, Value, call, common_type, duckdb_cast, fill, number, string, wrap
from watersmeet.expressions.textfunctions import TEXT_FUNCTIONS, matches, split
from watersmeet.values.types import BIGINT, INTEGER, INTERVAL, JSONB, NUMERIC, TIMESTAMP, VARCHAR, SqlType

#: Of a number or a time in a series.
_ELEMENT_BYTES: Final = 8


def set_function(
    name: str, arguments: Arguments, nodes: list[exp.Expression], node: exp.Expression, ctx: Context
) -> Value:
    """The array of the rows of `name(arguments)`."""
    found = _BUILDERS[name](arguments, nodes, node, ctx)
    scalar = found.finish()
    return Value(scalar.expression, scalar.type, scalar.nullable)


def is_set_function(name: str) -> bool:
    """True for the names of set-returning functions, those that are refused among them."""
    return name in _BUILDERS


def array_of(kind: SqlType) -> SqlType:
    """The type of arrays of `kind`."""
    return SqlType("array", element=kind)


@dataclass(frozen=True)
class TableCall:
    """An item of FROM that calls set-returning functions side by side.

    calls: name, arguments and place of each. alias, names: of the item.
    """

    calls: tuple[tuple[str, tuple[exp.Expression, ...], exp.Expression], ...]
    alias: str | None
    names: tuple[str, ...]
    ordinality: bool
    lateral: bool

    @property
    def title(self) -> str:
        """The name of the item: its alias or the first function's name."""
        return self.alias or self.calls[0][0]


def table_call(node: exp.Expression) -> TableCall | None:
    """The call that an item of FROM is; None if it is something else."""
    lateral = isinstance(node, exp.Lateral)
    inner = node.this if lateral else node
    number_of = None
    calls: list[tuple[str, tuple[exp.Expression, ...], exp.Expression]] = []
    if isinstance(inner, exp.Unnest):
        number_of = inner.args.get("offset")
        calls = [("unnest", (e,), inner) for e in inner.expressions]
    elif isinstance(inner, exp.Table) and inner.args.get("rows_from"):
        for part in inner.args["rows_from"]:
            found = table_call(part)
            calls += found.calls if found is not None else []
    else:
        function = inner.this if isinstance(inner, exp.Table) else inner
        if not isinstance(function, exp.Anonymous):
            return None
        name = str(function.this if isinstance(function.this, str) else function.this.name).lower()
        calls = [(name, tuple(function.expressions), function)]
        number_of = inner.args.get("ordinality") or node.args.get("ordinality")
    alias = node.args.get("alias") or inner.args.get("alias")
    shown, names = None, []
    if isinstance(alias, exp.TableAlias):
        shown = name_of(alias.this) if alias.this is not None else None
        names = [name_of(c.this if isinstance(c, exp.ColumnDef) else c) for c in alias.args.get("columns") or []]
    if isinstance(number_of, exp.Identifier):  # sqlglot takes the last name for it
        names.append(name_of(number_of))
    return TableCall(tuple(calls), shown, tuple(names), bool(number_of), lateral)


def row_names(call_: TableCall, index: int, element: SqlType) -> tuple[str, ...]:
    """The names of the columns that call number `index` gives: of a struct's fields, else the item's or the
    function's.
    """
    if element.name == "struct":
        return tuple(name for name, _ in element.fields)
    return (call_.title if len(call_.calls) == 1 else call_.calls[index][0],)


def row_values(element: Value) -> list[Value]:
    """The columns of an element: the fields of a struct, else itself."""
    if element.type.name != "struct":
        return [element]
    return [Value(call("struct_extract", element.expression, string(name)), kind) for name, kind in element.type.fields]


def _unnest(arguments: Arguments, _nodes: list[exp.Expression], node: exp.Expression, ctx: Context) -> Value:
    count_checked("unnest", arguments, (1,), node, ctx)
    value = arguments[0]
    if value.type.name != "array":
        raise ctx.error(
            "DATATYPE_MISMATCH", f"function unnest({value.type.sql}) does not exist", node, detail="It takes an array."
        )
    depth, kind = 1, value.type.element
    while kind is not None and kind.name == "array":
        depth, kind = depth + 1, kind.element
    assert kind is not None
    whole = value.finish().expression
    for _ in range(depth - 1):  # all elements of all dimensions, one by one
        whole = call("flatten", whole)
    return Value(whole, array_of(kind), value.nullable)


def _series(name: str) -> Builder:
    def build(arguments: Arguments, nodes: list[exp.Expression], node: exp.Expression, ctx: Context) -> Value:
        count_checked(name, arguments, (2, 3), node, ctx)
        known = [a.type for a in arguments[:2] if not a.unknown]
        kind = common_type(known) if known else None
        if kind is not None and kind.is_numeric:
            if len(arguments) == 3 and not arguments[2].unknown:
                kind = common_type([kind, arguments[2].type]) or kind
            values = [
                cast(a, kind, ctx, n) if a.unknown else coerce(a, kind, ctx, n)
                for a, n in zip(arguments, nodes, strict=True)
            ]
            if not kind.is_float:
                _check_step(values, node, ctx)
                return _numbers(name, values, BIGINT if kind.is_integer and kind != INTEGER else kind)
        if kind is not None and kind.name in ("date", "timestamp", "timestamptz") and len(arguments) == 3:
            kind = TIMESTAMP if kind.name == "date" else kind
            bounds = [cast(a, kind, ctx, n) for a, n in zip(arguments[:2], nodes[:2], strict=True)]
            step = cast(arguments[2], INTERVAL, ctx, node)
            if step.type == INTERVAL:
                first, last = (b.expression for b in bounds)
                last = _last(first, last, step.expression, kind, "epoch_us")
                return Value(call(name, first, last, step.expression), array_of(kind))
        raise mismatch_of(
            name,
            arguments,
            node,
            ctx,
            "It takes two integers or numerics and maybe a step, or two timestamps and an interval.",
        )

    return build


def _check_step(values: list[Value], node: exp.Expression, ctx: Context) -> None:
    step = values[2].expression if len(values) == 3 else None
    if isinstance(step, exp.Literal) and float(step.name) == 0:
        raise ctx.error("INVALID_VALUE", "step size cannot equal zero", node)


def _last(
    first: exp.Expression, last: exp.Expression, step: exp.Expression, kind: SqlType, measure: str = ""
) -> exp.Expression:
    """The end of a series, which fails for a row that would make it too long. Series without a column are as long as
    their author wants. measure: the DuckDB function that makes numbers of what is counted.
    """
    if not any(e.find(exp.Column) for e in (first, last, step)):
        return last
    span = f"abs(CAST({measure}(a1) AS DOUBLE) - {measure}(a0)) / abs(nullif({measure}(a2), 0))"
    return fill(limited(f"{span} * {_ELEMENT_BYTES}", kind=kind.duckdb), first, last, step)


def _numbers(name: str, values: list[Value], kind: SqlType) -> Value:
    if kind.is_integer:
        bounds = [duckdb_cast(v.expression, BIGINT) for v in values]
        bounds[1] = _last(bounds[0], bounds[1], bounds[2] if len(bounds) == 3 else number(1), BIGINT)
        series = call(name, *bounds)
        return Value(duckdb_cast(series, array_of(kind)), array_of(kind))
    # start + i * step, because DuckDB's function has integers only
    first = values[0].expression
    step = values[2].expression if len(values) == 3 else duckdb_cast(number(1), NUMERIC)
    last = _last(first, values[1].expression, step, NUMERIC)
    span = exp.Paren(this=exp.Sub(this=wrap(last), expression=wrap(first)))
    steps = exp.Div(this=span, expression=call("nullif", step, number(0)))
    count = duckdb_cast(call("floor" if name == "generate_series" else "ceil", steps), BIGINT)
    last_index = count if name == "generate_series" else exp.Sub(this=count, expression=number(1))
    index = exp.to_identifier("_i")
    item = exp.Add(this=wrap(first), expression=exp.Mul(this=index, expression=wrap(step)))
    each = exp.Lambda(this=duckdb_cast(item, NUMERIC), expressions=[exp.to_identifier("_i")])
    return Value(call("list_transform", call("generate_series", number(0), last_index), each), array_of(NUMERIC))


def _subscripts(arguments: Arguments, _nodes: list[exp.Expression], node: exp.Expression, ctx: Context) -> Value:
    count_checked("generate_subscripts", arguments, (2, 3), node, ctx)
    if arguments[0].type.name != "array" or len(arguments) == 3 or arguments[1].expression.sql() != "1":
        raise ctx.not_supported("generate_subscripts other than of the first dimension of an array", node)
    series = call("generate_series", number(1), call("len", arguments[0].expression))
    return Value(duckdb_cast(series, array_of(INTEGER)), array_of(INTEGER))


def _document(name: str, arguments: Arguments, node: exp.Expression, ctx: Context) -> exp.Expression:
    count_checked(name, arguments, (1,), node, ctx)
    value = cast(arguments[0], JSONB, ctx, node) if arguments[0].unknown else arguments[0]
    if value.type != JSONB:
        raise mismatch_of(name, arguments, node, ctx, "It takes a jsonb.")
    return value.expression


def _elements(name: str, *, text: bool) -> Builder:
    def build(arguments: Arguments, _nodes: list[exp.Expression], node: exp.Expression, ctx: Context) -> Value:
        document = _document(name, arguments, node, ctx)
        reader = "json_extract_string" if text else "json_extract"
        return Value(call(reader, document, string("$[*]")), array_of(VARCHAR if text else JSONB))

    return build


def _each(name: str, *, text: bool) -> Builder:
    def build(arguments: Arguments, _nodes: list[exp.Expression], node: exp.Expression, ctx: Context) -> Value:
        document = _document(name, arguments, node, ctx)
        kind = VARCHAR if text else JSONB
        pairs = call(
            "list_zip",
            call("json_keys", document),
            call("json_extract_string" if text else "json_extract", document, string("$.*")),
        )
        row = SqlType("struct", fields=(("key", VARCHAR), ("value", kind)))
        return Value(duckdb_cast(pairs, array_of(row)), array_of(row))

    return build


def _keys(arguments: Arguments, _nodes: list[exp.Expression], node: exp.Expression, ctx: Context) -> Value:
    return Value(call("json_keys", _document("jsonb_object_keys", arguments, node, ctx)), array_of(VARCHAR))


def _split_to_table(arguments: Arguments, _nodes: list[exp.Expression], node: exp.Expression, ctx: Context) -> Value:
    return split("regexp_split_to_table", arguments, node, ctx)


def _regexp_matches(arguments: Arguments, _nodes: list[exp.Expression], node: exp.Expression, ctx: Context) -> Value:
    return matches(arguments, node, ctx)


def _string_to_table(arguments: Arguments, nodes: list[exp.Expression], node: exp.Expression, ctx: Context) -> Value:
    return TEXT_FUNCTIONS["string_to_array"](arguments, nodes, node, ctx)


def _refused(name: str) -> Builder:
    def build(_arguments: Arguments, _nodes: list[exp.Expression], node: exp.Expression, ctx: Context) -> Value:
        raise ctx.not_supported(f"the set-returning function {name}", node)

    return build


_BUILDERS: Final[dict[str, Builder]] = {
    "generate_series": _series("generate_series"), "range": _series("range"), "generate_subscripts": _subscripts,
    "jsonb_array_elements": _elements("jsonb_array_elements", text=False),
    "jsonb_array_elements_text": _elements("jsonb_array_elements_text", text=True),
    "jsonb_each": _each("jsonb_each", text=False), "jsonb_each_text": _each("jsonb_each_text", text=True),
    "jsonb_object_keys": _keys, "regexp_matches": _regexp_matches, "regexp_split_to_table": _split_to_table,
    "string_to_table": _string_to_table, "unnest": _unnest,
    **{n: _refused(n) for n in ("jsonb_to_record", "jsonb_to_recordset", "jsonb_populate_recordset")},
}  # fmt: skip

"""Binds set-returning functions, each as an array whose elements are its rows.

PostgreSQL 17, 9.26 "Set Returning Functions" and table 9.49 (jsonb); RisingWave, "Set-returning functions". A NULL
argument results in a NULL array, for which the operator outputs no rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sqlglot import exp

from watersmeet.algebra.timewindows import parts_of
from watersmeet.dialects.tree.queries import name_of, node_span
from watersmeet.dialects.tree.sqltypes import type_of_tree
from watersmeet.errors import Span
from watersmeet.expressions.calls import Builder, FunctionCall, counted, limited
from watersmeet.expressions.casts import cast, coerce
from watersmeet.expressions.clock import check_elapsed
from watersmeet.expressions.context import (
    SKIPPED_TWICE,
    Value,
    call,
    common_type,
    duckdb_cast,
    failing,
    fill,
    is_utc,
    number,
    session_zone,
    string,
    wrap,
)
from watersmeet.expressions.jsonfunctions import populated, read_as
from watersmeet.expressions.sqljsonpaths import path_of
from watersmeet.expressions.textfunctions import TEXT_FUNCTIONS, matches, split
from watersmeet.values.types import (
    BIGINT,
    INTEGER,
    INTERVAL,
    JSON,
    JSONB,
    NUMERIC,
    TIMESTAMP,
    TIMESTAMPTZ,
    VARCHAR,
    SqlType,
)

#: The size in bytes of a number or a time in a series.
_ELEMENT_BYTES: Final = 8


def set_function(c: FunctionCall) -> Value:
    """The array with the rows of a call."""
    scalar = _BUILDERS[c.name](c).finish()
    return Value(scalar.expression, scalar.type, scalar.nullable)


def is_set_function(name: str) -> bool:
    """True for the name of a set-returning function, also an unsupported one."""
    return name in _BUILDERS


def array_of(kind: SqlType) -> SqlType:
    """The array type with elements of type `kind`."""
    return SqlType("array", element=kind)


@dataclass(frozen=True)
class TableCall:
    """An item of FROM with one or more set-returning functions in parallel.

    calls: the name, the arguments and the span of each function. alias, names: the aliases of the item and its columns.
    kinds: the types of the columns, in a list of definitions: `AS x (a int, b varchar)`. whole: whether an element that
    is a struct is one column, instead of a column for each field.
    """

    calls: tuple[tuple[str, tuple[exp.Expression, ...], exp.Expression], ...]
    alias: str | None
    names: tuple[str, ...]
    ordinality: bool
    lateral: bool
    kinds: tuple[exp.DataType, ...] = ()
    whole: bool = False

    @property
    def title(self) -> str:
        """The name of the item: its alias, or the name of the first function."""
        return self.alias or self.calls[0][0]


def table_call(node: exp.Expression) -> TableCall | None:
    """The call in an item of FROM; None for other items."""
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
    shown, names, kinds = None, [], []
    if isinstance(alias, exp.TableAlias):
        shown = name_of(alias.this) if alias.this is not None else None
        names = [name_of(c.this if isinstance(c, exp.ColumnDef) else c) for c in alias.args.get("columns") or []]
        kinds = [c.args["kind"] for c in alias.args.get("columns") or [] if isinstance(c, exp.ColumnDef)]
    if isinstance(number_of, exp.Identifier):  # sqlglot takes the last name as its alias
        names.append(name_of(number_of))
    whole = bool(inner.args.get("whole"))
    return TableCall(tuple(calls), shown, tuple(names), bool(number_of), lateral, tuple(kinds), whole)


def row_names(call_: TableCall, index: int, element: SqlType) -> tuple[str, ...]:
    """The column names of call number `index`: the fields of a struct, else the name of the item or the function."""
    if element.name == "struct" and not call_.whole:
        return tuple(name for name, _ in element.fields)
    return (call_.title if len(call_.calls) == 1 else call_.calls[index][0],)


def row_values(call_: TableCall, element: Value) -> list[Value]:
    """The columns of an element: the fields of a struct, else the element itself."""
    if element.type.name != "struct" or call_.whole:
        return [element]
    return [Value(call("struct_extract", element.expression, string(name)), kind) for name, kind in element.type.fields]


def _unnest(c: FunctionCall) -> Value:
    value = c.arguments[0]
    if value.type.name != "array":
        raise c.mismatch("It takes an array.")
    depth, kind = 1, value.type.element
    while kind is not None and kind.name == "array":
        depth, kind = depth + 1, kind.element
    assert kind is not None
    whole = value.finish().expression
    for _ in range(depth - 1):  # all elements of all dimensions in one list
        whole = call("flatten", whole)
    return Value(whole, array_of(kind), value.nullable)


def _series(c: FunctionCall) -> Value:
    known = [a.type for a in c.arguments[:2] if not a.unknown]
    kind = common_type(known) if known else None
    if kind is not None and kind.is_numeric:
        if len(c.arguments) == 3 and not c.arguments[2].unknown:
            kind = common_type([kind, c.arguments[2].type]) or kind
        values = [coerce(a, kind, c.ctx, n) for a, n in zip(c.arguments, c.nodes, strict=True)]
        if not kind.is_float:
            _check_step(values, c)
            return _numbers(c.name, values, BIGINT if kind.is_integer and kind != INTEGER else kind)
    if kind is not None and kind.name in ("date", "timestamp", "timestamptz") and len(c.arguments) == 3:
        kind = TIMESTAMP if kind.name == "date" else kind
        first, last = (cast(a, kind, c.ctx, n).expression for a, n in zip(c.arguments[:2], c.nodes[:2], strict=True))
        step = c.cast(2, INTERVAL)
        if kind == TIMESTAMPTZ and not is_utc():
            parts = parts_of(step.expression)
            if parts is not None and any(parts[:2]) and not parts[2] and min(parts) * max(parts) == 0:
                last = _last(first, last, step.expression, kind, "epoch_us")
                return Value(
                    _local_series(c.name, first, last, step.expression, forward=max(parts) > 0), array_of(kind)
                )
            check_elapsed(step.expression, "a series of timestamptz", c.ctx, c.nodes[2])
        if step.type == INTERVAL:
            last = _last(first, last, step.expression, kind, "epoch_us")
            return Value(call(c.name, first, last, step.expression), array_of(kind))
    raise c.mismatch("It takes two integers or numerics and maybe a step, or two timestamps and an interval.")


#: Local times, from the first to a day after the last. At the first one that summer time skips, the series moves on by
#: the length of the gap, and so do all later ones, because each is computed from the one before it, as in PostgreSQL.
_LOCAL: Final = "generate_series(timezone({zone}, a0), timezone({zone}, a1) {sign} INTERVAL 2 DAY, a2)"
_IS_SKIPPED: Final = "timezone({zone}, timezone({zone}, {time})) <> {time}"
_SKIPPED: Final = f"list_position(list_transform(_s, lambda _t: {_IS_SKIPPED.replace('{time}', '_t')}), true)"
_GAP: Final = "timezone({zone}, timezone({zone}, _s[_k])) - _s[_k]"
_MOVED: Final = "list_transform(_s, lambda _t, _i: CASE WHEN _i > _k THEN _t + ({gap}) ELSE _t END)"
_MOMENTS: Final = (
    "list_filter(list_transform(_m, lambda _t, _i: CASE WHEN _i = 1 THEN a0 WHEN _i > _k AND {skipped} THEN {failing} "
    "ELSE timezone({zone}, _t) END), lambda _x: _x {within} a1)"
)


def _local_series(
    name: str, first: exp.Expression, last: exp.Expression, step: exp.Expression, *, forward: bool
) -> exp.Expression:
    """A series of timestamptz in steps of days and months of the session's time zone."""
    zone = string(session_zone()).sql(dialect="duckdb")
    within = ("<" if forward else ">") + ("=" if name == "generate_series" else "")
    failed = failing(SKIPPED_TWICE, "_t", TIMESTAMPTZ.duckdb)
    moments = _MOMENTS.format(
        zone=zone, skipped=_IS_SKIPPED.format(zone=zone, time="_t"), failing=failed, within=within
    )
    moved = _MOVED.format(gap=_GAP.format(zone=zone))
    series = _LOCAL.format(zone=zone, sign="+" if forward else "-")
    given = f"list_transform([{moved}], lambda _m: {moments})[1]"
    placed = f"list_transform([coalesce({_SKIPPED.format(zone=zone)}, len(_s))], lambda _k: {given})[1]"
    whole = f"list_transform([{series}], lambda _s: {placed})[1]"
    return fill(f"CASE WHEN a0 IS NOT NULL AND a1 IS NOT NULL THEN {whole} END", first, last, step)


def _check_step(values: list[Value], c: FunctionCall) -> None:
    step = values[2].expression if len(values) == 3 else None
    if isinstance(step, exp.Literal) and float(step.name) == 0:
        raise c.error("INVALID_VALUE", "step size cannot equal zero")


def _last(
    first: exp.Expression, last: exp.Expression, step: exp.Expression, kind: SqlType, measure: str = ""
) -> exp.Expression:
    """The end of a series, whose computation fails for a row with too long a series. Constant series have no limit.
    measure: the DuckDB function that converts the bounds to numbers.
    """
    if not any(e.find(exp.Column) for e in (first, last, step)):
        return last
    span = f"abs(CAST({measure}(a1) AS DOUBLE) - {measure}(a0)) / abs(nullif({measure}(a2), 0))"
    return fill(limited(f"{span} * {_ELEMENT_BYTES}", kind=kind.duckdb), first, last, step)


def steps_between(first: exp.Expression, last: exp.Expression, step: exp.Expression, kind: SqlType) -> exp.Expression:
    """The times `first`, `first + step` … before `last`; only `first` if there is no later one. Computing a series that
    is too long fails.
    """
    end = _last(first, last, step, kind, "epoch_us")
    series = "CASE WHEN a1 > a0 AND isfinite(a0) AND isfinite(a1) THEN range(a0, a2, a3) ELSE [a0] END"
    return fill(series, first, last, end, step)


def _numbers(name: str, values: list[Value], kind: SqlType) -> Value:
    if kind.is_integer:
        bounds = [duckdb_cast(v.expression, BIGINT) for v in values]
        bounds[1] = _last(bounds[0], bounds[1], bounds[2] if len(bounds) == 3 else number(1), BIGINT)
        series = call(name, *bounds)
        return Value(duckdb_cast(series, array_of(kind)), array_of(kind))
    # this computes start + i * step, because DuckDB's function supports only integers
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


def _subscripts(c: FunctionCall) -> Value:
    if c.arguments[0].type.name != "array" or len(c.arguments) == 3 or c.arguments[1].expression.sql() != "1":
        raise c.not_supported("generate_subscripts other than of the first dimension of an array")
    series = call("generate_series", number(1), call("len", c.arguments[0].expression))
    return Value(duckdb_cast(series, array_of(INTEGER)), array_of(INTEGER))


def _document(c: FunctionCall) -> exp.Expression:
    value = c.cast(0, JSONB) if c.arguments[0].unknown or c.arguments[0].type == JSON else c.arguments[0]
    if value.type != JSONB:
        raise c.mismatch("It takes a jsonb.")
    return value.expression


def _members(c: FunctionCall, path: str) -> tuple[exp.Expression, SqlType]:
    """The members of a document at a path, and their type: text if the function's name ends with `_text`, else
    jsonb.
    """
    name, kind = ("json_extract_string", VARCHAR) if c.name.endswith("_text") else ("json_extract", JSONB)
    return call(name, _document(c), string(path)), kind


def _elements(c: FunctionCall) -> Value:
    found, kind = _members(c, "$[*]")
    return Value(found, array_of(kind))


def _each(c: FunctionCall) -> Value:
    found, kind = _members(c, "$.*")
    row = SqlType("struct", fields=(("key", VARCHAR), ("value", kind)))
    return Value(duckdb_cast(call("list_zip", call("json_keys", _document(c)), found), array_of(row)), array_of(row))


def _keys(c: FunctionCall) -> Value:
    return Value(call("json_keys", _document(c)), array_of(VARCHAR))


def _populated(c: FunctionCall) -> Value:
    """The records of the elements of an array (PostgreSQL 17, jsonb_populate_recordset)."""
    item = exp.to_identifier("_r")
    record = populated(c.arguments[0], item.copy(), c.ctx, c.node)
    elements = call("json_extract", c.cast(1, JSONB).expression, string("$[*]"))
    each = exp.Lambda(this=record.finish().expression, expressions=[item])
    return Value(call("list_transform", elements, each), array_of(record.type))


def _path_query(c: FunctionCall) -> Value:
    items = path_of(c).items
    return Value(fill(f"CASE WHEN a0 IS NOT NULL THEN {items} END", c.cast(0, JSONB).expression), array_of(JSONB))


def _expanded(c: FunctionCall) -> Value:
    """The elements of an array with their numbers from 1: information_schema._pg_expandarray."""
    array = c.arguments[0]
    if array.type.element is None:
        raise c.mismatch("It takes an array.")
    kind = array_of(SqlType("struct", fields=(("x", array.type.element), ("n", INTEGER))))
    rows = fill("list_transform(a0, lambda _e, _i: struct_pack(x := _e, n := _i))", array.finish().expression)
    return Value(duckdb_cast(rows, kind), kind)


def _undefined(c: FunctionCall) -> Value:
    raise c.error(
        "SYNTAX_ERROR",
        "a column definition list is required for functions returning record",
        f"Write it in FROM: {c.name}(…) AS x (a int, b varchar).",
    )


#: The functions whose records have the columns of a list of definitions, and whether they return several.
RECORDS: Final = {"jsonb_to_record": False, "jsonb_to_recordset": True}


def records(c: FunctionCall, item_of_from: TableCall) -> Value:
    """The array with the records of jsonb_to_record or jsonb_to_recordset, whose columns an item of FROM defines."""
    span = node_span(c.node) or Span(0, 0)
    kinds = [type_of_tree(kind, c.ctx.text, span) for kind in item_of_from.kinds]
    kind = SqlType("struct", fields=tuple(zip(item_of_from.names, kinds, strict=True)))
    document = c.cast(0, JSONB).expression
    item = exp.to_identifier("_r")
    record = read_as(Value(item.copy(), JSONB), kind, c.ctx, c.node)
    rows = call("json_extract", document, string("$[*]")) if RECORDS[c.name] else fill("[a0]", document)
    each = exp.Lambda(this=record.finish().expression, expressions=[item])
    return Value(duckdb_cast(call("list_transform", rows, each), array_of(kind)), array_of(kind))


_BUILDERS: Final[dict[str, Builder]] = {
    "generate_series": counted(_series, 2, 3), "range": counted(_series, 2, 3),
    "generate_subscripts": counted(_subscripts, 2, 3),
    "jsonb_array_elements": counted(_elements, 1), "jsonb_array_elements_text": counted(_elements, 1),
    "jsonb_each": counted(_each, 1), "jsonb_each_text": counted(_each, 1), "jsonb_object_keys": counted(_keys, 1),
    "regexp_matches": counted(matches, 2, 3), "regexp_split_to_table": counted(split, 2, 3),
    "string_to_table": TEXT_FUNCTIONS["string_to_array"], "unnest": counted(_unnest, 1),
    "jsonb_to_record": _undefined, "jsonb_to_recordset": _undefined, "_pg_expandarray": counted(_expanded, 1),
    "jsonb_populate_recordset": counted(_populated, 2), "jsonb_path_query": counted(_path_query, 2, 3, 4),
}  # fmt: skip

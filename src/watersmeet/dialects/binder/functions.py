"""Scalar functions: RisingWave's names and results, DuckDB's expressions.

A function that is not in the tables here goes to DuckDB under its own name, so what both
systems call the same needs no entry. `special` holds those that need more than a name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import duckdb
from sqlglot import exp

from watersmeet.dialects.binder.casts import cast, text_of, unify
from watersmeet.dialects.binder.context import Context, first_line, typed_null
from watersmeet.dialects.binder.formats import strftime_format
from watersmeet.dialects.binder.values import Value, call, duckdb_cast, number, string
from watersmeet.errors import did_you_mean
from watersmeet.types import (
    BYTEA,
    DATE,
    DOUBLE,
    INTEGER,
    JSONB,
    NUMERIC,
    TIMESTAMP,
    TIMESTAMPTZ,
    VARCHAR,
    SqlType,
)

Arguments = Sequence[Value]

#: RisingWave's name -> DuckDB's.
_RENAMED: Final[dict[str, str]] = {
    "array_cat": "list_concat", "btrim": "trim", "cardinality": "len",
    "ceiling": "ceil", "char_length": "length", "character_length": "length", "jsonb_array_length": "json_array_length",
    "jsonb_build_array": "json_array", "jsonb_build_object": "json_object", "power": "pow", "to_jsonb": "to_json",
    "array_distinct": "list_distinct", "array_contains": "list_has_all", "array_max": "list_max",
    "array_min": "list_min", "array_sum": "list_sum",
}  # fmt: skip

#: Result types that differ from DuckDB's.
_RESULTS: Final[dict[str, SqlType]] = {
    "array_length": INTEGER, "array_ndims": INTEGER, "array_position": INTEGER, "ascii": INTEGER, "bit_length": INTEGER,
    "cardinality": INTEGER, "char_length": INTEGER, "character_length": INTEGER, "date_part": DOUBLE,
    "jsonb_array_length": INTEGER, "length": INTEGER, "position": INTEGER, "strpos": INTEGER,
    "jsonb_build_array": JSONB, "jsonb_build_object": JSONB, "to_jsonb": JSONB, "regexp_count": INTEGER,
}  # fmt: skip

#: Functions of one number whose result has the argument's type.
_KEEP_TYPE: Final = frozenset({"abs", "ceil", "ceiling", "floor"})

#: Functions that DuckDB has and that a database must not offer.
_FORBIDDEN: Final = frozenset({
    "currval", "error", "getvariable", "nextval", "setseed", "sleep_ms", "stats", "write_log", "pg_sleep",
    "current_connection_id", "current_query_id", "current_transaction_id", "txid_current", "in_search_path",
    "current_setting", "getenv", "remap_struct", "can_cast_implicitly", "create_sort_key",
})  # fmt: skip

_FORBIDDEN_PREFIXES: Final = ("pg_", "has_", "inet_", "duckdb_", "__internal", "icu_")

#: Functions whose value does not follow from their arguments.
_VOLATILE: Final = frozenset({
    "clock_timestamp", "current_date", "current_time", "current_timestamp", "gen_random_uuid", "localtime",
    "localtimestamp", "now", "proctime", "random", "statement_timestamp", "today", "transaction_timestamp", "uuid",
    "uuidv4", "uuidv7", "setseed", "pg_backend_pid", "version", "current_user", "session_user", "user",
    "current_database", "current_schema", "current_role", "current_catalog",
})  # fmt: skip

_TABLE_FUNCTIONS: Final = frozenset({
    "generate_series", "generate_subscripts", "jsonb_array_elements", "jsonb_array_elements_text", "jsonb_each",
    "jsonb_each_text", "jsonb_object_keys", "jsonb_to_record", "jsonb_to_recordset", "jsonb_populate_recordset",
    "range", "regexp_matches", "unnest",
})  # fmt: skip


def function(name: str, arguments: Arguments, nodes: list[exp.Expression], node: exp.Expression, ctx: Context) -> Value:
    """The value of `name(arguments)`; UNDEFINED_FUNCTION or DATATYPE_MISMATCH."""
    if name in _FORBIDDEN or name.startswith(_FORBIDDEN_PREFIXES):
        raise _undefined(name, node, ctx)
    if name in _TABLE_FUNCTIONS:
        raise ctx.not_supported(f"the set-returning function {name} in an expression", node)
    if name in _VOLATILE or ctx.oracle.functions().get(name, ("", ""))[1] not in ("", "CONSISTENT"):
        refuse_volatile(name, node, ctx)
    if name in _SPECIAL:
        return _SPECIAL[name](arguments, nodes, node, ctx)
    known = ctx.oracle.functions()
    target = _RENAMED.get(name, name)
    if target not in known or known[target][0] not in ("scalar", "macro"):
        raise _undefined(name, node, ctx)
    return by_duckdb(name, target, arguments, node, ctx)


def is_aggregate(name: str, ctx: Context) -> bool:
    """True for the names of aggregate functions."""
    return ctx.oracle.functions().get(name, ("", ""))[0] == "aggregate" or name in ("every", "jsonb_agg")


def refuse_volatile(name: str, node: exp.Expression, ctx: Context) -> None:
    """FEATURE_NOT_SUPPORTED in a view: its content would not follow from its input."""
    if not ctx.volatile_allowed:
        raise ctx.error("FEATURE_NOT_SUPPORTED", f"{name}() is not supported in a view", node,
                        detail="The content of a view has to follow from the rows of its relations alone.")


def _undefined(name: str, node: exp.Expression, ctx: Context) -> Exception:
    scalars = [n for n, (kind, _) in ctx.oracle.functions().items() if kind in ("scalar", "macro", "aggregate")]
    names = {*scalars, *_RENAMED, *_SPECIAL} - _FORBIDDEN
    words = [n for n in names if n.replace("_", "").isalnum() and not n.startswith(_FORBIDDEN_PREFIXES)]
    return ctx.error("UNDEFINED_FUNCTION", f"function {name} does not exist", node, hint=did_you_mean(name, words))


def by_duckdb(name: str, target: str, arguments: Arguments, node: exp.Expression, ctx: Context) -> Value:
    """A call of DuckDB's function `target`, typed by DuckDB."""
    expression = call(target, *[a.expression for a in arguments])
    probe = call(target, *[typed_null(a) for a in arguments])
    try:
        kind, duckdb_name = ctx.type_of(probe)
    except duckdb.BinderException as err:
        raise mismatch(name, arguments, node, ctx, err) from None
    except duckdb.Error as err:
        raise ctx.error("INVALID_VALUE", first_line(err), node) from None
    if kind is None:
        raise ctx.error("DATATYPE_MISMATCH", f"function {name} gives a {duckdb_name}, which is no SQL type here", node)
    if name in _RESULTS:
        return Value(duckdb_cast(expression, _RESULTS[name]), _RESULTS[name])
    if name in _KEEP_TYPE and arguments and arguments[0].type.is_numeric:
        kind = arguments[0].type
    return Value(expression, kind, exact=kind.duckdb.upper() == duckdb_name.upper())


def mismatch(name: str, arguments: Arguments, node: exp.Expression, ctx: Context, err: duckdb.Error) -> Exception:
    """PostgreSQL's error for a function that exists, but not with these argument types."""
    shown = ", ".join("unknown" if a.unknown else a.type.sql for a in arguments)
    candidates = [line.strip() for line in str(err).splitlines() if "->" in line and "(" in line]
    detail = "The function exists as " + "; ".join(candidates[:4]) + "." if candidates else first_line(err) + "."
    return ctx.error("DATATYPE_MISMATCH", f"function {name}({shown}) does not exist", node, detail=detail)


def _count(name: str, arguments: Arguments, wanted: tuple[int, ...], node: exp.Expression, ctx: Context) -> None:
    if len(arguments) not in wanted:
        shown = ", ".join("unknown" if a.unknown else a.type.sql for a in arguments)
        raise ctx.error("DATATYPE_MISMATCH", f"function {name}({shown}) does not exist", node,
                        detail=f"It takes {' or '.join(map(str, wanted))} arguments, not {len(arguments)}.")


def _coalesce(arguments: Arguments, nodes: list[exp.Expression], node: exp.Expression, ctx: Context) -> Value:
    _count("coalesce", arguments, tuple(range(1, max(2, len(arguments) + 1))), node, ctx)
    values, kind = unify(list(arguments), nodes, ctx, "COALESCE")
    return Value(exp.Coalesce(this=values[0].expression, expressions=[v.expression for v in values[1:]]), kind,
                 all(v.nullable for v in values))


def _extreme(name: str) -> Callable[[Arguments, list[exp.Expression], exp.Expression, Context], Value]:
    def build(arguments: Arguments, nodes: list[exp.Expression], node: exp.Expression, ctx: Context) -> Value:
        _count(name, arguments, tuple(range(1, max(2, len(arguments) + 1))), node, ctx)
        values, kind = unify(list(arguments), nodes, ctx, name.upper())
        return Value(call(name, *[v.expression for v in values]), kind, all(v.nullable for v in values))

    return build


def _nullif(arguments: Arguments, nodes: list[exp.Expression], node: exp.Expression, ctx: Context) -> Value:
    _count("nullif", arguments, (2,), node, ctx)
    if arguments[0].unknown and not arguments[1].unknown:
        arguments = [cast(arguments[0], arguments[1].type, ctx, node), arguments[1]]
    values, _ = unify(list(arguments), nodes, ctx, "NULLIF")
    first = arguments[0].finish() if not arguments[0].unknown else values[0].finish()
    condition = exp.EQ(this=values[0].expression, expression=values[1].expression)
    whole = exp.Case(ifs=[exp.If(this=condition, true=exp.null())], default=first.expression)
    return Value(exp.Paren(this=whole), first.type)


def _concat(arguments: Arguments, _nodes: list[exp.Expression], node: exp.Expression, ctx: Context) -> Value:
    texts = [cast(a, VARCHAR, ctx, node).expression if a.unknown else text_of(a) for a in arguments]
    return Value(call("concat", *texts), VARCHAR, nullable=False)


def _concat_ws(arguments: Arguments, _nodes: list[exp.Expression], node: exp.Expression, ctx: Context) -> Value:
    texts = [cast(a, VARCHAR, ctx, node).expression if a.unknown else text_of(a) for a in arguments]
    return Value(call("concat_ws", *texts), VARCHAR)


def _constant_text(value: Value, name: str, node: exp.Expression, ctx: Context) -> str:
    if not value.unknown or value.is_null:
        raise ctx.not_supported(f"{name} with a format that is not a constant", node)
    return str(value.expression.name)


def _to_char(arguments: Arguments, _nodes: list[exp.Expression], node: exp.Expression, ctx: Context) -> Value:
    _count("to_char", arguments, (2,), node, ctx)
    if arguments[0].type.name not in ("timestamp", "timestamptz", "date"):
        raise ctx.not_supported(f"to_char of {arguments[0].type.sql}", node)
    pattern = strftime_format(_constant_text(arguments[1], "to_char", node, ctx), node, ctx)
    return Value(call("strftime", arguments[0].expression, string(pattern)), VARCHAR)


def _to_timestamp(arguments: Arguments, _nodes: list[exp.Expression], node: exp.Expression, ctx: Context) -> Value:
    _count("to_timestamp", arguments, (1, 2), node, ctx)
    if len(arguments) == 1:
        seconds = cast(arguments[0], DOUBLE, ctx, node)
        return Value(call("to_timestamp", seconds.expression), TIMESTAMPTZ)
    pattern = strftime_format(_constant_text(arguments[1], "to_timestamp", node, ctx), node, ctx)
    text = cast(arguments[0], VARCHAR, ctx, node)
    return Value(duckdb_cast(call("strptime", text.expression, string(pattern)), TIMESTAMPTZ), TIMESTAMPTZ)


def _to_date(arguments: Arguments, _nodes: list[exp.Expression], node: exp.Expression, ctx: Context) -> Value:
    _count("to_date", arguments, (2,), node, ctx)
    pattern = strftime_format(_constant_text(arguments[1], "to_date", node, ctx), node, ctx)
    text = cast(arguments[0], VARCHAR, ctx, node)
    return Value(duckdb_cast(call("strptime", text.expression, string(pattern)), DATE), DATE)


def _date_trunc(arguments: Arguments, _nodes: list[exp.Expression], node: exp.Expression, ctx: Context) -> Value:
    _count("date_trunc", arguments, (2, 3), node, ctx)
    if arguments[1].unknown:
        arguments = [arguments[0], cast(arguments[1], TIMESTAMP, ctx, node), *arguments[2:]]
    if arguments[0].unknown and arguments[0].expression.name.lower() not in _TRUNCATED:
        raise ctx.error("INVALID_VALUE", f'unit "{arguments[0].expression.name}" not recognized', node,
                        hint=did_you_mean(arguments[0].expression.name.lower(), _TRUNCATED))
    value = by_duckdb("date_trunc", "date_trunc", arguments[:2], node, ctx)
    kind = TIMESTAMP if arguments[1].type == DATE else arguments[1].type
    if len(arguments) == 3:
        raise ctx.not_supported("date_trunc with a time zone", node)
    return Value(duckdb_cast(value.expression, kind), kind) if value.type != kind else value


_TRUNCATED: Final = ("microseconds", "milliseconds", "second", "minute", "hour", "day", "week", "month", "quarter", "year",
                    "decade", "century", "millennium")


def _round(arguments: Arguments, _nodes: list[exp.Expression], node: exp.Expression, ctx: Context) -> Value:
    _count("round", arguments, (1, 2), node, ctx)
    value = cast(arguments[0], DOUBLE, ctx, node) if arguments[0].unknown else arguments[0]
    if value.type.is_float and len(arguments) == 1:
        return Value(call("round_even", duckdb_cast(value.expression, DOUBLE), number(0)), DOUBLE)
    if len(arguments) == 2 or value.type.name == "numeric":
        value = Value(duckdb_cast(value.expression, NUMERIC), NUMERIC)
    found = by_duckdb("round", "round", [value, *arguments[1:]], node, ctx)
    return Value(duckdb_cast(found.expression, value.type), value.type)


def _trunc(arguments: Arguments, _nodes: list[exp.Expression], node: exp.Expression, ctx: Context) -> Value:
    _count("trunc", arguments, (1,), node, ctx)
    found = by_duckdb("trunc", "trunc", arguments, node, ctx)
    kind = arguments[0].type
    return Value(duckdb_cast(found.expression, kind), kind) if kind.is_numeric else found


def _pad(name: str) -> Callable[[Arguments, list[exp.Expression], exp.Expression, Context], Value]:
    def build(arguments: Arguments, _nodes: list[exp.Expression], node: exp.Expression, ctx: Context) -> Value:
        _count(name, arguments, (2, 3), node, ctx)
        filler = arguments[2] if len(arguments) == 3 else Value(string(" "), VARCHAR, nullable=False)
        return by_duckdb(name, name, [*arguments[:2], filler], node, ctx)

    return build


def _octet_length(arguments: Arguments, _nodes: list[exp.Expression], node: exp.Expression, ctx: Context) -> Value:
    _count("octet_length", arguments, (1,), node, ctx)
    name = "octet_length" if arguments[0].type == BYTEA else "strlen"
    found = by_duckdb("octet_length", name, arguments, node, ctx)
    return Value(duckdb_cast(found.expression, INTEGER), INTEGER)


def _encode(arguments: Arguments, _nodes: list[exp.Expression], node: exp.Expression, ctx: Context) -> Value:
    _count("encode", arguments, (2,), node, ctx)
    kind = _constant_text(arguments[1], "encode", node, ctx).lower()
    if kind == "hex":
        return Value(call("lower", call("hex", arguments[0].expression)), VARCHAR)
    if kind == "base64":
        return Value(call("to_base64", arguments[0].expression), VARCHAR)
    raise ctx.not_supported(f"encode to {kind}", node)


def _decode(arguments: Arguments, _nodes: list[exp.Expression], node: exp.Expression, ctx: Context) -> Value:
    _count("decode", arguments, (2,), node, ctx)
    kind = _constant_text(arguments[1], "decode", node, ctx).lower()
    functions = {"hex": "from_hex", "base64": "from_base64"}
    if kind not in functions:
        raise ctx.not_supported(f"decode of {kind}", node)
    return Value(call(functions[kind], arguments[0].expression), BYTEA)


def _sha(name: str) -> Callable[[Arguments, list[exp.Expression], exp.Expression, Context], Value]:
    def build(arguments: Arguments, _nodes: list[exp.Expression], node: exp.Expression, ctx: Context) -> Value:
        _count(name, arguments, (1,), node, ctx)
        return Value(call("from_hex", call(name, arguments[0].expression)), BYTEA)

    return build


def _json_typeof(arguments: Arguments, _nodes: list[exp.Expression], node: exp.Expression, ctx: Context) -> Value:
    _count("jsonb_typeof", arguments, (1,), node, ctx)
    kind = call("json_type", arguments[0].expression)
    names = {"OBJECT": "object", "ARRAY": "array", "VARCHAR": "string", "BOOLEAN": "boolean", "NULL": "null"}
    ifs = [exp.If(this=string(k), true=string(v)) for k, v in names.items()]
    number_case = exp.Case(ifs=[exp.If(this=exp.Not(this=exp.Is(this=kind, expression=exp.null())),
                                       true=string("number"))])
    return Value(exp.Paren(this=exp.Case(this=kind.copy(), ifs=ifs, default=number_case)), VARCHAR)


def _json_path(text: bool) -> Callable[[Arguments, list[exp.Expression], exp.Expression, Context], Value]:
    def build(arguments: Arguments, _nodes: list[exp.Expression], node: exp.Expression, ctx: Context) -> Value:
        keys = [_constant_text(a, "jsonb_extract_path", node, ctx) for a in arguments[1:]]
        return json_extract(arguments[0], keys, text=text)

    return build


def json_extract(document: Value, keys: Sequence[str], *, text: bool) -> Value:
    """What lies in `document` under the path of `keys`; digits are also array positions."""
    path = "$" + "".join(f"[{k}]" if k.lstrip("-").isdecimal() else '."' + k.replace('"', '\\"') + '"' for k in keys)
    path = path.replace("[-", "[#-")
    if text:
        return Value(call("json_extract_string", document.expression, string(path)), VARCHAR)
    return Value(call("json_extract", document.expression, string(path)), JSONB)


def _array_length(arguments: Arguments, _nodes: list[exp.Expression], node: exp.Expression, ctx: Context) -> Value:
    _count("array_length", arguments, (1, 2), node, ctx)
    if arguments[0].type.name != "array":
        raise mismatch("array_length", arguments, node, ctx, duckdb.BinderException("It takes an array"))
    if len(arguments) == 2 and arguments[1].expression.sql() != "1":
        raise ctx.not_supported("array_length of an inner dimension", node)
    length = call("nullif", call("len", arguments[0].expression), number(0))
    return Value(duckdb_cast(length, INTEGER), INTEGER)


def _array_remove(arguments: Arguments, _nodes: list[exp.Expression], node: exp.Expression, ctx: Context) -> Value:
    _count("array_remove", arguments, (2,), node, ctx)
    raise ctx.not_supported("array_remove", node)


def _regexp_match(arguments: Arguments, _nodes: list[exp.Expression], node: exp.Expression, ctx: Context) -> Value:
    _count("regexp_match", arguments, (2,), node, ctx)
    raise ctx.not_supported("regexp_match", node, hint="regexp_extract(text, pattern, group) exists.")


def _now(name: str, kind: SqlType) -> Callable[[Arguments, list[exp.Expression], exp.Expression, Context], Value]:
    def build(_arguments: Arguments, _nodes: list[exp.Expression], node: exp.Expression, ctx: Context) -> Value:
        refuse_volatile(name, node, ctx)
        return Value(duckdb_cast(call("now"), kind), kind, nullable=False)

    return build


def _mod(arguments: Arguments, _nodes: list[exp.Expression], node: exp.Expression, ctx: Context) -> Value:
    _count("mod", arguments, (2,), node, ctx)
    divisor = arguments[1].expression if arguments[1].type.is_integer else call("nullif", arguments[1].expression,
                                                                                number(0))
    found = by_duckdb("mod", "mod", [arguments[0], Value(divisor, arguments[1].type)], node, ctx)
    return Value(duckdb_cast(found.expression, found.type), found.type)


_SPECIAL: Final[dict[str, Callable[[Arguments, list[exp.Expression], exp.Expression, Context], Value]]] = {
    "array_length": _array_length, "array_remove": _array_remove, "coalesce": _coalesce, "concat": _concat,
    "concat_ws": _concat_ws, "current_date": _now("current_date", DATE),
    "current_timestamp": _now("current_timestamp", TIMESTAMPTZ), "date_trunc": _date_trunc, "decode": _decode,
    "encode": _encode, "greatest": _extreme("greatest"), "jsonb_extract_path": _json_path(text=False),
    "jsonb_extract_path_text": _json_path(text=True), "jsonb_typeof": _json_typeof, "least": _extreme("least"),
    "localtimestamp": _now("localtimestamp", TIMESTAMP), "lpad": _pad("lpad"), "mod": _mod,
    "now": _now("now", TIMESTAMPTZ), "nullif": _nullif, "octet_length": _octet_length,
    "proctime": _now("proctime", TIMESTAMPTZ), "regexp_match": _regexp_match, "round": _round, "rpad": _pad("rpad"),
    "sha256": _sha("sha256"), "to_char": _to_char, "to_date": _to_date, "to_timestamp": _to_timestamp,
    "trunc": _trunc,
}  # fmt: skip

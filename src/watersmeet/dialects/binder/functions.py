"""Scalar functions: RisingWave's names and results, DuckDB's expressions.

A function that is not in the tables here goes to DuckDB under its own name, so what both
systems call the same needs no entry. `special` holds those that need more than a name.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import duckdb
from sqlglot import exp

from watersmeet.dialects.binder.calls import (
    Arguments,
    Builder,
    by_duckdb,
    constant_text,
    count_checked,
    mismatch,
    refuse_volatile,
)
from watersmeet.dialects.binder.casts import cast, text_of, unify
from watersmeet.dialects.binder.context import Context
from watersmeet.dialects.binder.datefunctions import DATE_FUNCTIONS
from watersmeet.dialects.binder.setfunctions import is_set_function, set_function
from watersmeet.dialects.binder.values import Value, call, duckdb_cast, number, string, wrap
from watersmeet.errors import did_you_mean
from watersmeet.types import (
    BIGINT,
    BYTEA,
    DOUBLE,
    INTEGER,
    JSONB,
    NUMERIC,
    VARCHAR,
)

#: RisingWave's name -> DuckDB's.
_RENAMED: Final[dict[str, str]] = {
    "array_cat": "list_concat", "btrim": "trim", "cardinality": "len",
    "ceiling": "ceil", "char_length": "length", "character_length": "length", "jsonb_array_length": "json_array_length",
    "jsonb_build_array": "json_array", "jsonb_build_object": "json_object", "power": "pow", "to_jsonb": "to_json",
    "array_distinct": "list_distinct", "array_contains": "list_has_all", "array_max": "list_max",
    "array_min": "list_min", "array_sum": "list_sum",
}  # fmt: skip

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


def function(name: str, arguments: Arguments, nodes: list[exp.Expression], node: exp.Expression, ctx: Context) -> Value:
    """The value of `name(arguments)`; UNDEFINED_FUNCTION or DATATYPE_MISMATCH."""
    if name in _FORBIDDEN or name.startswith(_FORBIDDEN_PREFIXES):
        raise _undefined(name, node, ctx)
    if is_set_function(name):
        return ctx.rows_of(name, lambda: set_function(name, arguments, nodes, node, ctx), node)
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


def _undefined(name: str, node: exp.Expression, ctx: Context) -> Exception:
    scalars = [n for n, (kind, _) in ctx.oracle.functions().items() if kind in ("scalar", "macro", "aggregate")]
    names = {*scalars, *_RENAMED, *_SPECIAL} - _FORBIDDEN
    words = [n for n in names if n.replace("_", "").isalnum() and not n.startswith(_FORBIDDEN_PREFIXES)]
    return ctx.error("UNDEFINED_FUNCTION", f"function {name} does not exist", node, hint=did_you_mean(name, words))


def _at_least(count: int, arguments: Arguments) -> tuple[int, ...]:
    return (max(count, len(arguments)),)


def _coalesce(arguments: Arguments, nodes: list[exp.Expression], node: exp.Expression, ctx: Context) -> Value:
    count_checked("coalesce", arguments, _at_least(1, arguments), node, ctx)
    values, kind = unify(list(arguments), nodes, ctx, "COALESCE")
    return Value(exp.Coalesce(this=values[0].expression, expressions=[v.expression for v in values[1:]]), kind,
                 all(v.nullable for v in values))


def _extreme(name: str) -> Builder:
    def build(arguments: Arguments, nodes: list[exp.Expression], node: exp.Expression, ctx: Context) -> Value:
        count_checked(name, arguments, _at_least(1, arguments), node, ctx)
        values, kind = unify(list(arguments), nodes, ctx, name.upper())
        return Value(call(name, *[v.expression for v in values]), kind, all(v.nullable for v in values))

    return build


def _nullif(arguments: Arguments, nodes: list[exp.Expression], node: exp.Expression, ctx: Context) -> Value:
    count_checked("nullif", arguments, (2,), node, ctx)
    if arguments[0].unknown and not arguments[1].unknown:
        arguments = [cast(arguments[0], arguments[1].type, ctx, node), arguments[1]]
    values, _ = unify(list(arguments), nodes, ctx, "NULLIF")
    first = arguments[0].finish() if not arguments[0].unknown else values[0].finish()
    condition = exp.EQ(this=wrap(values[0].expression), expression=wrap(values[1].expression))
    whole = exp.Case(ifs=[exp.If(this=condition, true=exp.null())], default=first.expression)
    return Value(exp.Paren(this=whole), first.type)


def _concat(arguments: Arguments, _nodes: list[exp.Expression], node: exp.Expression, ctx: Context) -> Value:
    count_checked("concat", arguments, _at_least(1, arguments), node, ctx)
    texts = [cast(a, VARCHAR, ctx, node).expression if a.unknown else text_of(a) for a in arguments]
    return Value(call("concat", *texts), VARCHAR, nullable=False)


def _concat_ws(arguments: Arguments, _nodes: list[exp.Expression], node: exp.Expression, ctx: Context) -> Value:
    count_checked("concat_ws", arguments, _at_least(2, arguments), node, ctx)
    texts = [cast(a, VARCHAR, ctx, node).expression if a.unknown else text_of(a) for a in arguments]
    return Value(call("concat_ws", *texts), VARCHAR)


def _round(arguments: Arguments, _nodes: list[exp.Expression], node: exp.Expression, ctx: Context) -> Value:
    count_checked("round", arguments, (1, 2), node, ctx)
    value = cast(arguments[0], DOUBLE, ctx, node) if arguments[0].unknown else arguments[0]
    if value.type.is_float and len(arguments) == 1:
        return Value(call("round_even", duckdb_cast(value.expression, DOUBLE), number(0)), DOUBLE)
    if len(arguments) == 2 or value.type.name == "numeric":
        value = Value(duckdb_cast(value.expression, NUMERIC), NUMERIC)
    found = by_duckdb("round", "round", [value, *arguments[1:]], node, ctx)
    return Value(duckdb_cast(found.expression, value.type), value.type)


def _trunc(arguments: Arguments, _nodes: list[exp.Expression], node: exp.Expression, ctx: Context) -> Value:
    count_checked("trunc", arguments, (1,), node, ctx)
    found = by_duckdb("trunc", "trunc", arguments, node, ctx)
    kind = arguments[0].type
    return Value(duckdb_cast(found.expression, kind), kind) if kind.is_numeric else found


def _pad(name: str) -> Builder:
    def build(arguments: Arguments, _nodes: list[exp.Expression], node: exp.Expression, ctx: Context) -> Value:
        count_checked(name, arguments, (2, 3), node, ctx)
        filler = arguments[2] if len(arguments) == 3 else Value(string(" "), VARCHAR, nullable=False)
        return by_duckdb(name, name, [*arguments[:2], filler], node, ctx)

    return build


def _octet_length(arguments: Arguments, _nodes: list[exp.Expression], node: exp.Expression, ctx: Context) -> Value:
    count_checked("octet_length", arguments, (1,), node, ctx)
    name = "octet_length" if arguments[0].type == BYTEA else "strlen"
    found = by_duckdb("octet_length", name, arguments, node, ctx)
    return Value(duckdb_cast(found.expression, INTEGER), INTEGER)


def _encode(arguments: Arguments, _nodes: list[exp.Expression], node: exp.Expression, ctx: Context) -> Value:
    count_checked("encode", arguments, (2,), node, ctx)
    kind = constant_text(arguments[1], "encode", node, ctx).lower()
    if kind == "hex":
        return Value(call("lower", call("hex", arguments[0].expression)), VARCHAR)
    if kind == "base64":
        return Value(call("to_base64", arguments[0].expression), VARCHAR)
    raise ctx.not_supported(f"encode to {kind}", node)


def _decode(arguments: Arguments, _nodes: list[exp.Expression], node: exp.Expression, ctx: Context) -> Value:
    count_checked("decode", arguments, (2,), node, ctx)
    kind = constant_text(arguments[1], "decode", node, ctx).lower()
    functions = {"hex": "from_hex", "base64": "from_base64"}
    if kind not in functions:
        raise ctx.not_supported(f"decode of {kind}", node)
    return Value(call(functions[kind], arguments[0].expression), BYTEA)


def _sha(name: str) -> Builder:
    def build(arguments: Arguments, _nodes: list[exp.Expression], node: exp.Expression, ctx: Context) -> Value:
        count_checked(name, arguments, (1,), node, ctx)
        return Value(call("from_hex", call(name, arguments[0].expression)), BYTEA)

    return build


def _to_hex(arguments: Arguments, _nodes: list[exp.Expression], node: exp.Expression, ctx: Context) -> Value:
    count_checked("to_hex", arguments, (1,), node, ctx)
    if not arguments[0].type.is_integer:
        raise mismatch("to_hex", arguments, node, ctx, duckdb.BinderException("It takes an integer"))
    whole: exp.Expression = duckdb_cast(arguments[0].expression, BIGINT)
    if arguments[0].type != BIGINT:  # negative ones have 32 bits
        whole = exp.Paren(this=exp.BitwiseAnd(this=whole, expression=number(0xFFFFFFFF)))
    return Value(call("lower", call("to_hex", whole)), VARCHAR, arguments[0].nullable)


def _format(_arguments: Arguments, _nodes: list[exp.Expression], node: exp.Expression, ctx: Context) -> Value:
    # DuckDB's function of this name has other signs in its pattern.
    raise ctx.not_supported("format", node, hint="Join the pieces with ||.")


def _json_typeof(arguments: Arguments, _nodes: list[exp.Expression], node: exp.Expression, ctx: Context) -> Value:
    count_checked("jsonb_typeof", arguments, (1,), node, ctx)
    kind = call("json_type", arguments[0].expression)
    names = {"OBJECT": "object", "ARRAY": "array", "VARCHAR": "string", "BOOLEAN": "boolean", "NULL": "null"}
    ifs = [exp.If(this=string(k), true=string(v)) for k, v in names.items()]
    number_case = exp.Case(ifs=[exp.If(this=exp.Not(this=exp.Is(this=kind, expression=exp.null())),
                                       true=string("number"))])
    return Value(exp.Paren(this=exp.Case(this=kind.copy(), ifs=ifs, default=number_case)), VARCHAR)


def _json_path(text: bool) -> Builder:
    def build(arguments: Arguments, _nodes: list[exp.Expression], node: exp.Expression, ctx: Context) -> Value:
        count_checked("jsonb_extract_path", arguments, _at_least(2, arguments), node, ctx)
        keys = [constant_text(a, "jsonb_extract_path", node, ctx) for a in arguments[1:]]
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
    count_checked("array_length", arguments, (1, 2), node, ctx)
    if arguments[0].type.name != "array":
        raise mismatch("array_length", arguments, node, ctx, duckdb.BinderException("It takes an array"))
    if len(arguments) == 2 and arguments[1].expression.sql() != "1":
        raise ctx.not_supported("array_length of an inner dimension", node)
    length = call("nullif", call("len", arguments[0].expression), number(0))
    return Value(duckdb_cast(length, INTEGER), INTEGER)


def _array_remove(arguments: Arguments, _nodes: list[exp.Expression], node: exp.Expression, ctx: Context) -> Value:
    count_checked("array_remove", arguments, (2,), node, ctx)
    raise ctx.not_supported("array_remove", node)


def _regexp_match(arguments: Arguments, _nodes: list[exp.Expression], node: exp.Expression, ctx: Context) -> Value:
    count_checked("regexp_match", arguments, (2,), node, ctx)
    raise ctx.not_supported("regexp_match", node, hint="regexp_extract(text, pattern, group) exists.")


def _mod(arguments: Arguments, _nodes: list[exp.Expression], node: exp.Expression, ctx: Context) -> Value:
    count_checked("mod", arguments, (2,), node, ctx)
    divisor = arguments[1].expression if arguments[1].type.is_integer else call("nullif", arguments[1].expression,
                                                                                number(0))
    found = by_duckdb("mod", "mod", [arguments[0], Value(divisor, arguments[1].type)], node, ctx)
    return Value(duckdb_cast(found.expression, found.type), found.type)


_SPECIAL: Final[dict[str, Builder]] = {
    **DATE_FUNCTIONS, "array_length": _array_length, "array_remove": _array_remove, "coalesce": _coalesce,
    "concat": _concat, "concat_ws": _concat_ws, "decode": _decode, "encode": _encode, "format": _format, "greatest": _extreme("greatest"),
    "jsonb_extract_path": _json_path(text=False), "jsonb_extract_path_text": _json_path(text=True),
    "jsonb_typeof": _json_typeof, "least": _extreme("least"), "lpad": _pad("lpad"), "mod": _mod, "nullif": _nullif,
    "octet_length": _octet_length, "regexp_match": _regexp_match, "round": _round, "rpad": _pad("rpad"),
    "sha1": _sha("sha1"), "sha256": _sha("sha256"), "to_hex": _to_hex, "trunc": _trunc,
}  # fmt: skip

"""Functions by name, and expressions on texts with their own syntax: LIKE, SUBSTRING, `->`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import reduce
from typing import Any, Final

from sqlglot import exp

from watersmeet.errors import did_you_mean
from watersmeet.expressions import nestedfunctions, textfunctions
from watersmeet.expressions.calls import (
    Arguments,
    Builder,
    by_duckdb,
    constant_of,
    constant_text,
    count_checked,
    limited,
    refuse_volatile,
)
from watersmeet.expressions.casts import cast, unify
from watersmeet.expressions.context import Context, Value, boolean, call, duckdb_cast, fill, string, wrap
from watersmeet.expressions.datefunctions import DATE_FUNCTIONS
from watersmeet.expressions.lenient import LENIENT_FUNCTIONS
from watersmeet.expressions.mathfunctions import MATH_FUNCTIONS
from watersmeet.expressions.nestedfunctions import ARRAY_FUNCTIONS, JSON_FUNCTIONS, json_element, json_extract, walked
from watersmeet.expressions.operators import no_operator, quantified
from watersmeet.expressions.setfunctions import is_set_function, set_function
from watersmeet.expressions.textfunctions import REGEX_FUNCTIONS, TEXT_FUNCTIONS
from watersmeet.values.types import BOOLEAN, DOUBLE, INTEGER, JSONB, VARCHAR, SqlType

#: Functions that DuckDB has and that a database must not offer.
_FORBIDDEN: Final = frozenset({
    "currval", "error", "getvariable", "nextval", "setseed", "sleep_ms", "stats", "write_log", "pg_sleep",
    "current_connection_id", "current_query_id", "current_transaction_id", "txid_current", "in_search_path",
    "current_setting", "getenv", "remap_struct", "can_cast_implicitly", "create_sort_key",
    # of DuckDB's own catalog
    "col_description", "current_schemas", "format_pg_type", "format_type", "map_to_pg_oid", "obj_description",
    "shobj_description",
})  # fmt: skip

_FORBIDDEN_PREFIXES: Final = ("pg_", "has_", "inet_", "duckdb_", "__internal", "icu_")

#: Functions whose value does not follow from their arguments.
_VOLATILE: Final = frozenset({
    "clock_timestamp", "current_date", "current_time", "current_timestamp", "gen_random_uuid", "localtime",
    "localtimestamp", "now", "proctime", "random", "statement_timestamp", "today", "transaction_timestamp", "uuid",
    "uuidv4", "uuidv7", "setseed", "pg_backend_pid", "version", "current_user", "session_user", "user",
    "current_database", "current_schema", "current_role", "current_catalog",
})  # fmt: skip

#: Aggregate functions that DuckDB calls otherwise.
_AGGREGATES: Final = frozenset({
    "every", "first_value", "jsonb_agg", "jsonb_object_agg", "last_value", "percentile_cont", "percentile_disc",
})  # fmt: skip


def function(name: str, arguments: Arguments, nodes: list[exp.Expression], node: exp.Expression, ctx: Context) -> Value:
    """The value of `name(arguments)`; UNDEFINED_FUNCTION or DATATYPE_MISMATCH."""
    check_function(name, node, ctx)
    if is_set_function(name):
        return ctx.rows_of(name, lambda: set_function(name, arguments, nodes, node, ctx), node)
    if name in LENIENT_FUNCTIONS:  # put there by a grammar
        return LENIENT_FUNCTIONS[name](arguments, nodes, node, ctx)
    known = ctx.oracle.functions()
    if name in _VOLATILE or known.get(name, ("", ""))[1] not in ("", "CONSISTENT"):
        refuse_volatile(name, node, ctx)
    if name in _SPECIAL:
        return _SPECIAL[name](arguments, nodes, node, ctx)
    if name in ("array_resize", "list_resize"):
        arguments = _resized(arguments)
    return by_duckdb(name, name, arguments, node, ctx)


def check_function(name: str, node: exp.Expression, ctx: Context) -> None:
    """UNDEFINED_FUNCTION unless there is a function of one row called so; its arguments need not be known."""
    if name in _FORBIDDEN or name.startswith(_FORBIDDEN_PREFIXES):
        raise _undefined(name, node, ctx)
    if is_set_function(name) or name in LENIENT_FUNCTIONS or name in _SPECIAL:
        return
    if ctx.oracle.functions().get(name, ("", ""))[0] not in ("scalar", "macro"):
        raise _undefined(name, node, ctx)


def is_aggregate(name: str, ctx: Context) -> bool:
    """True for the names of aggregate functions."""
    return ctx.oracle.functions().get(name, ("", ""))[0] == "aggregate" or name in _AGGREGATES


def _undefined(name: str, node: exp.Expression, ctx: Context) -> Exception:
    scalars = [n for n, (kind, _) in ctx.oracle.functions().items() if kind in ("scalar", "macro", "aggregate")]
    names = {*scalars, *_SPECIAL} - _FORBIDDEN
    words = [n for n in names if n.replace("_", "").isalnum() and not n.startswith(_FORBIDDEN_PREFIXES)]
    hint = did_you_mean(name, words, nearness=0.7)
    return ctx.error("UNDEFINED_FUNCTION", f"function {name} does not exist", node, hint=hint)


def _at_least(count: int, arguments: Arguments) -> tuple[int, ...]:
    return (max(count, len(arguments)),)


def _coalesce(arguments: Arguments, nodes: list[exp.Expression], node: exp.Expression, ctx: Context) -> Value:
    count_checked("coalesce", arguments, _at_least(1, arguments), node, ctx)
    values, kind = unify(list(arguments), nodes, ctx, "COALESCE")
    return Value(
        exp.Coalesce(this=values[0].expression, expressions=[v.expression for v in values[1:]]),
        kind,
        all(v.nullable for v in values),
    )


def _extreme(name: str) -> Builder:
    def build(arguments: Arguments, nodes: list[exp.Expression], node: exp.Expression, ctx: Context) -> Value:
        count_checked(name, arguments, _at_least(1, arguments), node, ctx)
        values, kind = unify(list(arguments), nodes, ctx, name.upper())
        return Value(call(name, *[v.expression for v in values]), kind, all(v.nullable for v in values))

    return build


def _resized(arguments: Arguments) -> Arguments:
    """The arguments of a function that makes an array as long as its second one says.

    If the number is too large, also the array is NULL: DuckDB returns an empty one if only the number is.
    """
    if len(arguments) < 2 or arguments[1].unknown:
        return arguments
    array, count = arguments[0].finish().expression, arguments[1]
    limit = limited("CAST(a0 AS BIGINT) * 8", "a0")
    number = fill(limit, count.expression)
    checked = f"({limit})".replace("a0", "a1")
    whole = fill(f"CASE WHEN a1 IS NULL OR {checked} IS NOT NULL THEN a0 END", array, count.expression)
    return [replace(arguments[0], expression=whole), replace(count, expression=number), *arguments[2:]]


def _nullif(arguments: Arguments, nodes: list[exp.Expression], node: exp.Expression, ctx: Context) -> Value:
    count_checked("nullif", arguments, (2,), node, ctx)
    if arguments[0].unknown and not arguments[1].unknown:
        arguments = [cast(arguments[0], arguments[1].type, ctx, node), arguments[1]]
    values, _ = unify(list(arguments), nodes, ctx, "NULLIF")
    first = arguments[0].finish() if not arguments[0].unknown else values[0].finish()
    condition = exp.EQ(this=wrap(values[0].expression), expression=wrap(values[1].expression))
    whole = exp.Case(ifs=[exp.If(this=condition, true=exp.null())], default=first.expression)
    return Value(exp.Paren(this=whole), first.type)


def _nulls(name: str, *, counted: str) -> Builder:
    def build(arguments: Arguments, _nodes: list[exp.Expression], node: exp.Expression, ctx: Context) -> Value:
        count_checked(name, arguments, _at_least(1, arguments), node, ctx)
        parts = [fill(f"CASE WHEN a0 IS {counted} THEN 1 ELSE 0 END", a.expression) for a in arguments]
        total = reduce(lambda a, b: exp.Add(this=a, expression=b), parts)
        return Value(duckdb_cast(total, INTEGER), INTEGER, nullable=False)

    return build


_SPECIAL: Final[dict[str, Builder]] = {
    **DATE_FUNCTIONS, **MATH_FUNCTIONS, **TEXT_FUNCTIONS, **REGEX_FUNCTIONS,
    **ARRAY_FUNCTIONS, **JSON_FUNCTIONS,
    "coalesce": _coalesce, "greatest": _extreme("greatest"), "least": _extreme("least"), "nullif": _nullif,
    "num_nonnulls": _nulls("num_nonnulls", counted="NOT NULL"), "num_nulls": _nulls("num_nulls", counted="NULL"),
}  # fmt: skip

Bind = Callable[[exp.Expression, Context], Value]
Reader = Callable[[Any, Context, Bind], Value]
_TEXTS: Final = SqlType("array", element=VARCHAR)


def _as_text(node: exp.Expression, owner: exp.Expression, sign: str, ctx: Context, bind: Bind) -> Value:
    value = bind(node, ctx)
    if value.unknown:
        return cast(value, VARCHAR, ctx, owner)
    if value.type != VARCHAR:
        raise no_operator(ctx, owner, sign, value.type, VARCHAR)
    return value


def _like(node: Any, ctx: Context, bind: Bind) -> Value:
    return _matched(node, None, ctx, bind)


def _matched(node: Any, escape: exp.Expression | None, ctx: Context, bind: Bind) -> Value:
    sign = "~~" if isinstance(node, exp.Like) else "~~*"
    text = _as_text(node.this, node, sign, ctx, bind)
    if isinstance(node.expression, (exp.Any, exp.All)):
        if isinstance(node.expression.this.unnest(), exp.Query):
            raise ctx.not_supported("LIKE ANY and LIKE ALL of a subquery", node)
        array = _text_array(bind(node.expression.this.unnest(), ctx), ctx, node)
        pattern = Value(exp.to_identifier("_e"), VARCHAR)
        each = _negated(node, _one_match(node, text, pattern, escape, ctx, bind))
        return quantified(array, each, every=isinstance(node.expression, exp.All))
    pattern = _as_text(node.expression, node, sign, ctx, bind)
    return boolean(_negated(node, _one_match(node, text, pattern, escape, ctx, bind)), text, pattern)


def _one_match(
    node: Any, text: Value, pattern: Value, escape: exp.Expression | None, ctx: Context, bind: Bind
) -> exp.Expression:
    match: exp.Expression = type(node)(this=wrap(text.expression), expression=wrap(pattern.expression))
    if escape is not None:
        return exp.Escape(this=match, expression=bind(escape, ctx).expression)
    if not pattern.expression.is_string or "\\" in pattern.expression.name:
        # a backslash escapes in PostgreSQL, in DuckDB only if it is told so
        match = exp.Escape(this=match, expression=string("\\"))
    return match


def _text_array(array: Value, ctx: Context, node: exp.Expression) -> Value:
    kind = SqlType("array", element=VARCHAR)
    if array.unknown:
        return cast(array, kind, ctx, node)
    if array.type != kind:
        raise ctx.error("DATATYPE_MISMATCH", "op ANY/ALL (array) requires array on right side", node)
    return array


def _negated(node: Any, match: exp.Expression) -> exp.Expression:
    """The match, or its opposite for NOT LIKE and NOT ILIKE, which sqlglot may write as a flag."""
    return exp.Not(this=exp.Paren(this=match)) if node.args.get("negate") else match


def _escape(node: Any, ctx: Context, bind: Bind) -> Value:
    if isinstance(node.this, exp.SimilarTo):
        return _similar_to(node.this, node.expression, ctx, bind)
    if not isinstance(node.this, (exp.Like, exp.ILike)):
        raise ctx.not_supported("ESCAPE here", node)
    return _matched(node.this, node.expression, ctx, bind)


def _regexp(node: Any, ctx: Context, bind: Bind) -> Value:
    insensitive = isinstance(node, exp.RegexpILike)
    sign = "~*" if insensitive else "~"
    text = _as_text(node.this, node, sign, ctx, bind)
    pattern = _as_text(node.expression, node, sign, ctx, bind)
    return Value(textfunctions.matched(text, pattern, "i" if insensitive else "", node, ctx), BOOLEAN)


def _similar(node: Any, ctx: Context, bind: Bind) -> Value:
    return _similar_to(node, string("\\"), ctx, bind)


def _similar_to(node: Any, escape: exp.Expression, ctx: Context, bind: Bind) -> Value:
    text = _as_text(node.this, node, "SIMILAR TO", ctx, bind)
    given, sign = bind(node.expression, ctx), bind(escape, ctx)
    pattern = textfunctions.similar(
        constant_text(given, "SIMILAR TO", node, ctx, example="", what="a pattern"),
        constant_text(sign, "SIMILAR TO", node, ctx, example="\\", what="an escape character"),
        node,
        ctx,
    )
    return Value(call("regexp_full_match", text.expression, pattern, string("s")), BOOLEAN)


def _position(node: Any, ctx: Context, bind: Bind) -> Value:
    nodes = [node.this, node.args["substr"]]
    return function("strpos", [bind(n, ctx) for n in nodes], nodes, node, ctx)


def _substring(node: Any, ctx: Context, bind: Bind) -> Value:
    start, length = node.args.get("start"), node.args.get("length")
    if start is None:
        start = exp.Literal.number(1)
    nodes = [n for n in (node.this, start, length) if n is not None]
    values = [bind(n, ctx) for n in nodes]
    if len(values) == 2 and (values[1].unknown or values[1].type == VARCHAR) and not values[1].is_null:
        text = _as_text(node.this, node, "SUBSTRING", ctx, bind)
        return textfunctions.substring(text, cast(values[1], VARCHAR, ctx, node), node, ctx)
    return function("substring", values, nodes, node, ctx)


def _trim(node: Any, ctx: Context, bind: Bind) -> Value:
    name = {"LEADING": "ltrim", "TRAILING": "rtrim"}.get((node.args.get("position") or "").upper(), "btrim")
    nodes = [n for n in (node.this, node.args.get("expression")) if n is not None]
    return function(name, [bind(n, ctx) for n in nodes], nodes, node, ctx)


def _overlay(node: Any, ctx: Context, bind: Bind) -> Value:
    nodes = [n for n in (node.this, node.expression, node.args["from_"], node.args.get("for_")) if n is not None]
    return function("overlay", [bind(n, ctx) for n in nodes], nodes, node, ctx)


def _called(name: str) -> Reader:
    """An operator that is a function of its operand or operands."""

    def read(node: Any, ctx: Context, bind: Bind) -> Value:
        nodes = [n for n in (node.this, node.args.get("expression")) if n is not None]
        values = [bind(n, ctx) for n in nodes]
        if name in ("sqrt", "cbrt"):
            values = [cast(v, DOUBLE, ctx, node) for v in values]
        return function(name, values, nodes, node, ctx)

    return read


def _json(node: Any, ctx: Context, bind: Bind) -> Value:
    as_text = isinstance(node, exp.JSONExtractScalar)
    sign = "->>" if as_text else "->"
    document, key = bind(node.this, ctx), bind(node.expression, ctx)
    if document.unknown:
        document = cast(document, JSONB, ctx, node)
    if document.type != JSONB:
        raise no_operator(ctx, node, sign, document.type, key.type)
    found = json_element(document, key, text=as_text)
    if found is None:
        raise no_operator(ctx, node, sign, document.type, key.type)
    return found


def _json_path(node: Any, ctx: Context, bind: Bind) -> Value:
    as_text = isinstance(node, exp.JSONBExtractScalar)
    document, path = bind(node.this, ctx), bind(node.expression, ctx)
    sign = "#>>" if as_text else "#>"
    if document.type != JSONB or document.unknown or not (path.unknown or path.type == _TEXTS):
        raise no_operator(ctx, node, sign, document.type, path.type)
    if isinstance(path.expression, exp.Array):
        return walked(document, path.expression.expressions, text=as_text)
    keys = constant_of(path, _TEXTS, node, ctx, example=[])
    if keys is None or None in keys:
        raise ctx.not_supported(f"{sign} with a path that is not a constant", node)
    return json_extract(document, keys, text=as_text)


def _json_exists(how: str) -> Reader:
    name = {"one": "jsonb_exists", "any": "jsonb_exists_any", "all": "jsonb_exists_all"}[how]
    return _called(name)


def _contains(node: Any, ctx: Context, bind: Bind) -> Value:
    left, right = bind(node.this, ctx), bind(node.expression, ctx)
    if isinstance(node, exp.ArrayContainedBy):
        left, right = right, left
    left = cast(left, right.type, ctx, node) if left.unknown else left
    right = cast(right, left.type, ctx, node) if right.unknown else right
    if left.type == JSONB:
        return nestedfunctions.contains(left, right)
    if left.type.name != "array" or right.type != left.type:
        raise no_operator(ctx, node, "@>", left.type, right.type)
    # NULL is no element of any array, which DuckDB leaves out.
    template = "list_has_all(a0, a1) AND len(a1) = list_count(a1)"
    return Value(fill(template, left.expression, right.expression), BOOLEAN)


def _array_overlaps(node: Any, ctx: Context, bind: Bind) -> Value:
    left, right = bind(node.this, ctx), bind(node.expression, ctx)
    left = cast(left, right.type, ctx, node) if left.unknown else left
    right = cast(right, left.type, ctx, node) if right.unknown else right
    if left.type.name != "array" or right.type != left.type:
        raise no_operator(ctx, node, "&&", left.type, right.type)
    return Value(call("list_has_any", left.expression, right.expression), BOOLEAN)


READERS: Final[dict[type, Reader]] = {
    exp.Like: _like, exp.ILike: _like, exp.Escape: _escape, exp.RegexpLike: _regexp, exp.RegexpILike: _regexp,
    exp.SimilarTo: _similar, exp.StrPosition: _position, exp.Substring: _substring, exp.Trim: _trim,
    exp.Overlay: _overlay, exp.JSONExtract: _json, exp.JSONExtractScalar: _json, exp.JSONBExtract: _json_path,
    exp.JSONBContainsTopKey: _json_exists("one"), exp.JSONBContainsAnyTopKeys: _json_exists("any"),
    exp.JSONBContainsAllTopKeys: _json_exists("all"), exp.ArrayOverlaps: _array_overlaps,
    exp.Sqrt: _called("sqrt"), exp.Cbrt: _called("cbrt"), exp.StartsWith: _called("starts_with"),
    exp.JSONBExtractScalar: _json_path, exp.ArrayContainsAll: _contains, exp.ArrayContainedBy: _contains,
}  # fmt: skip

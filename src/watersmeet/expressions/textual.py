"""Expressions with a syntax of their own on texts and JSON: LIKE, regular expressions, SUBSTRING, `->` …."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from sqlglot import exp

from watersmeet.expressions import jsonb, patterns, regexfunctions
from watersmeet.expressions.calls import constant_of, constant_text
from watersmeet.expressions.casts import cast
from watersmeet.expressions.context import Context
from watersmeet.expressions.functions import function
from watersmeet.expressions.jsonfunctions import json_element, json_extract, walked
from watersmeet.expressions.operators import no_operator, quantified
from watersmeet.expressions.templates import fill
from watersmeet.expressions.values import Value, boolean, call, string, wrap
from watersmeet.types import BOOLEAN, DOUBLE, JSONB, VARCHAR, SqlType

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
    return Value(regexfunctions.matched(text, pattern, "i" if insensitive else "", node, ctx), BOOLEAN)


def _similar(node: Any, ctx: Context, bind: Bind) -> Value:
    return _similar_to(node, string("\\"), ctx, bind)


def _similar_to(node: Any, escape: exp.Expression, ctx: Context, bind: Bind) -> Value:
    text = _as_text(node.this, node, "SIMILAR TO", ctx, bind)
    given, sign = bind(node.expression, ctx), bind(escape, ctx)
    pattern = patterns.similar(
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
        return regexfunctions.substring(text, cast(values[1], VARCHAR, ctx, node), node, ctx)
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
        return jsonb.contains(left, right)
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

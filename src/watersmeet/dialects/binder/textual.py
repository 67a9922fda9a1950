"""Expressions with a syntax of their own on texts and JSON: LIKE, regular expressions, SUBSTRING, `->` …."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from sqlglot import exp

from watersmeet.dialects.binder.casts import cast
from watersmeet.dialects.binder.context import Context
from watersmeet.dialects.binder.functions import json_extract
from watersmeet.dialects.binder.operators import no_operator
from watersmeet.dialects.binder.values import Value, boolean, call, duckdb_cast, string, wrap
from watersmeet.types import BOOLEAN, INTEGER, JSONB, VARCHAR

Bind = Callable[[exp.Expression, Context], Value]
Reader = Callable[[Any, Context, Bind], Value]


def _as_text(node: exp.Expression, owner: exp.Expression, sign: str, ctx: Context, bind: Bind) -> Value:
    value = bind(node, ctx)
    if value.unknown:
        return cast(value, VARCHAR, ctx, owner)
    if value.type != VARCHAR:
        raise no_operator(ctx, owner, sign, value.type, VARCHAR)
    return value


def _like(node: Any, ctx: Context, bind: Bind) -> Value:
    sign = "~~" if isinstance(node, exp.Like) else "~~*"
    text = _as_text(node.this, node, sign, ctx, bind)
    if isinstance(node.expression, (exp.Any, exp.All)):
        raise ctx.not_supported("LIKE ANY and LIKE ALL", node)
    pattern = _as_text(node.expression, node, sign, ctx, bind)
    match: exp.Expression = type(node)(this=wrap(text.expression), expression=wrap(pattern.expression))
    if not pattern.expression.is_string or "\\" in pattern.expression.name:
        # a backslash escapes in PostgreSQL, in DuckDB only if it is told so
        match = exp.Escape(this=match, expression=string("\\"))
    return boolean(_negated(node, match), text, pattern)


def _negated(node: Any, match: exp.Expression) -> exp.Expression:
    """The match, or its opposite for NOT LIKE and NOT ILIKE, which sqlglot may write as a flag."""
    return exp.Not(this=exp.Paren(this=match)) if node.args.get("negate") else match


def _escape(node: Any, ctx: Context, bind: Bind) -> Value:
    if not isinstance(node.this, (exp.Like, exp.ILike)):
        raise ctx.not_supported("ESCAPE here", node)
    text = _as_text(node.this.this, node, "~~", ctx, bind)
    pattern = _as_text(node.this.expression, node, "~~", ctx, bind)
    match = type(node.this)(this=wrap(text.expression), expression=wrap(pattern.expression))
    whole = exp.Escape(this=match, expression=bind(node.expression, ctx).expression)
    return boolean(_negated(node.this, whole), text, pattern)


def _regexp(node: Any, ctx: Context, bind: Bind) -> Value:
    insensitive = isinstance(node, exp.RegexpILike)
    sign = "~*" if insensitive else "~"
    text = _as_text(node.this, node, sign, ctx, bind)
    pattern = _as_text(node.expression, node, sign, ctx, bind)
    options = [string("i")] if insensitive else []
    return Value(call("regexp_matches", text.expression, pattern.expression, *options), BOOLEAN)


def _similar(node: Any, ctx: Context, bind: Bind) -> Value:
    text = _as_text(node.this, node, "SIMILAR TO", ctx, bind)
    if not node.expression.is_string:
        raise ctx.not_supported("SIMILAR TO with a pattern that is not a constant", node)
    pattern = "".join(_SIMILAR_SIGNS.get(c, c) for c in node.expression.name)
    return Value(call("regexp_full_match", text.expression, string(pattern)), BOOLEAN)


_SIMILAR_SIGNS: Final = {"%": ".*", "_": ".", ".": "\\.", "^": "\\^", "$": "\\$"}


def _position(node: Any, ctx: Context, bind: Bind) -> Value:
    text = _as_text(node.this, node, "POSITION", ctx, bind)
    part = _as_text(node.args["substr"], node, "POSITION", ctx, bind)
    return Value(duckdb_cast(call("strpos", text.expression, part.expression), INTEGER), INTEGER,
                 text.nullable or part.nullable)


def _substring(node: Any, ctx: Context, bind: Bind) -> Value:
    text = _as_text(node.this, node, "SUBSTRING", ctx, bind)
    start, length = node.args.get("start"), node.args.get("length")
    arguments = [text.expression]
    if start is None:
        arguments.append(exp.Literal.number(1))
    for part in (start, length):
        if part is None:
            continue
        value = bind(part, ctx)
        if value.unknown or not value.type.is_integer:
            raise ctx.not_supported("SUBSTRING with a pattern", node, hint="regexp_extract(text, pattern) exists.")
        arguments.append(value.expression)
    return Value(call("substring", *arguments), VARCHAR)


def _trim(node: Any, ctx: Context, bind: Bind) -> Value:
    text = _as_text(node.this, node, "TRIM", ctx, bind)
    characters = node.args.get("expression")
    name = {"LEADING": "ltrim", "TRAILING": "rtrim"}.get((node.args.get("position") or "").upper(), "trim")
    arguments = [text.expression]
    if characters is not None:
        arguments.append(_as_text(characters, node, "TRIM", ctx, bind).expression)
    return Value(call(name, *arguments), VARCHAR)


def _overlay(node: Any, ctx: Context, bind: Bind) -> Value:
    text = _as_text(node.this, node, "OVERLAY", ctx, bind).expression
    part = _as_text(node.expression, node, "OVERLAY", ctx, bind).expression
    start = wrap(bind(node.args["from_"], ctx).expression)
    length_node = node.args.get("for_")
    length = wrap(bind(length_node, ctx).expression) if length_node is not None else call("length", part)
    before = call("substring", text, exp.Literal.number(1), exp.Sub(this=start, expression=exp.Literal.number(1)))
    after = call("substring", text, exp.Add(this=start.copy(), expression=length))
    return Value(exp.Paren(this=exp.DPipe(this=exp.DPipe(this=before, expression=part), expression=after)), VARCHAR)


def _json(node: Any, ctx: Context, bind: Bind) -> Value:
    as_text = isinstance(node, exp.JSONExtractScalar)
    sign = "->>" if as_text else "->"
    document, key = bind(node.this, ctx), bind(node.expression, ctx)
    if document.unknown:
        document = cast(document, JSONB, ctx, node)
    if document.type != JSONB:
        raise no_operator(ctx, node, sign, document.type, key.type)
    if key.unknown and not key.is_null:
        # digits in a string are a key, not a position
        path = string('$."' + key.expression.name.replace('"', '\\"') + '"')
    elif key.type.is_integer or key.type == VARCHAR:
        path = key.expression
    else:
        raise no_operator(ctx, node, sign, document.type, key.type)
    if as_text:
        return Value(call("json_extract_string", document.expression, path), VARCHAR)
    return Value(call("json_extract", document.expression, path), JSONB)


def _json_path(node: Any, ctx: Context, bind: Bind) -> Value:
    as_text = isinstance(node, exp.JSONBExtractScalar)
    document, path = bind(node.this, ctx), bind(node.expression, ctx)
    sign = "#>>" if as_text else "#>"
    if document.type != JSONB or document.unknown:
        raise no_operator(ctx, node, sign, document.type, path.type)
    if not path.unknown or path.is_null:
        raise ctx.not_supported(f"{sign} with a path that is not a constant", node)
    keys = [k.strip().strip('"') for k in path.expression.name.strip("{} ").split(",") if k.strip()]
    return json_extract(document, keys, text=as_text)


def _contains(node: Any, ctx: Context, bind: Bind) -> Value:
    left, right = bind(node.this, ctx), bind(node.expression, ctx)
    if isinstance(node, exp.ArrayContainedBy):
        left, right = right, left
    if left.type == JSONB:
        right = cast(right, JSONB, ctx, node) if right.unknown else right
        return Value(call("json_contains", left.expression, right.expression), BOOLEAN)
    if left.type.name != "array" or right.type != left.type:
        raise no_operator(ctx, node, "@>", left.type, right.type)
    return Value(call("list_has_all", left.expression, right.expression), BOOLEAN)


READERS: Final[dict[type, Reader]] = {
    exp.Like: _like, exp.ILike: _like, exp.Escape: _escape, exp.RegexpLike: _regexp, exp.RegexpILike: _regexp,
    exp.SimilarTo: _similar, exp.StrPosition: _position, exp.Substring: _substring, exp.Trim: _trim,
    exp.Overlay: _overlay, exp.JSONExtract: _json, exp.JSONExtractScalar: _json, exp.JSONBExtract: _json_path,
    exp.JSONBExtractScalar: _json_path, exp.ArrayContainsAll: _contains, exp.ArrayContainedBy: _contains,
}  # fmt: skip

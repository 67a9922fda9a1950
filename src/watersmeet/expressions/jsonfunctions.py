"""Functions of jsonb (PostgreSQL 17, table 9.47)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from sqlglot import exp

from watersmeet.expressions import jsonb
from watersmeet.expressions.calls import Arguments, Builder, count_checked, mismatch_of
from watersmeet.expressions.casts import cast, text_of
from watersmeet.expressions.context import Context
from watersmeet.expressions.signatures import builders, signature
from watersmeet.expressions.templates import fill
from watersmeet.expressions.values import Value, call, duckdb_cast, string
from watersmeet.types import JSONB, VARCHAR, SqlType

_TYPEOF: Final = (
    "CASE json_type(a0) WHEN 'OBJECT' THEN 'object' WHEN 'ARRAY' THEN 'array' WHEN 'VARCHAR' THEN 'string' "
    "WHEN 'BOOLEAN' THEN 'boolean' WHEN 'NULL' THEN 'null' ELSE CASE WHEN a0 IS NOT NULL THEN 'number' END END"
)
#: One key of a path: a place of an array, a key of an object.
_STEP: Final = (
    "CASE WHEN json_type(a0) = 'ARRAY' THEN json_extract(a0, TRY_CAST(a1 AS BIGINT)) "
    "ELSE json_extract(a0, '$.\"' || replace(a1, '\"', '\\\"') || '\"') END"
)


def json_extract(document: Value, keys: Sequence[str], *, text: bool) -> Value:
    """What lies in `document` under the path of `keys`; digits are also array positions."""
    path = "$" + "".join(f"[{k}]" if k.lstrip("-").isdecimal() else '."' + k.replace('"', '\\"') + '"' for k in keys)
    path = path.replace("[-", "[#-")
    if text:
        return Value(call("json_extract_string", document.expression, string(path)), VARCHAR)
    return Value(call("json_extract", document.expression, string(path)), JSONB)


def json_element(document: Value, key: Value, *, text: bool) -> Value | None:
    """What lies in `document` under a key or at a position; None for a key of another type than text and integer."""
    if key.unknown and not key.is_null:
        # digits in a string are a key, not a position
        path = string('$."' + key.expression.name.replace('"', '\\"') + '"')
    elif key.type.is_integer or key.type == VARCHAR:
        path = key.expression
    else:
        return None
    if text:
        return Value(call("json_extract_string", document.expression, path), VARCHAR)
    return Value(call("json_extract", document.expression, path), JSONB)


def walked(document: Value, keys: Sequence[exp.Expression], *, text: bool) -> Value:
    """The same for keys that are computed."""
    found = document.expression
    for key in keys:
        found = fill(_STEP, found, key)
    return Value(call("json_extract_string", found, string("$")), VARCHAR) if text else Value(found, JSONB)


def _path(name: str, *, text: bool) -> Builder:
    def build(arguments: Arguments, nodes: list[exp.Expression], node: exp.Expression, ctx: Context) -> Value:
        count_checked(name, arguments, (max(2, len(arguments)),), node, ctx)
        document = cast(arguments[0], JSONB, ctx, node) if arguments[0].unknown else arguments[0]
        if document.type != JSONB:
            raise mismatch_of(name, arguments, node, ctx, "It takes a jsonb and keys.")
        keys = [cast(a, VARCHAR, ctx, n) for a, n in zip(arguments[1:], nodes[1:], strict=True)]
        if all(k.expression.is_string for k in keys):
            return json_extract(document, [k.expression.name for k in keys], text=text)
        return walked(document, [k.expression for k in keys], text=text)

    return build


def _exists(name: str, how: str, kind: SqlType) -> Builder:
    def build(arguments: Arguments, _nodes: list[exp.Expression], node: exp.Expression, ctx: Context) -> Value:
        count_checked(name, arguments, (2,), node, ctx)
        document, keys = cast(arguments[0], JSONB, ctx, node), arguments[1]
        keys = cast(keys, kind, ctx, node) if keys.unknown else keys
        if keys.type != kind:
            raise mismatch_of(name, arguments, node, ctx, f"It takes a jsonb and a {kind.sql}.")
        return jsonb.exists(document, keys, how=how)

    return build


def _made(arguments: Arguments, nodes: list[exp.Expression], node: exp.Expression, ctx: Context) -> Value:
    count_checked("to_jsonb", arguments, (1,), node, ctx)
    return jsonb.made_of(_known(arguments[0], nodes[0], ctx))


def _array(arguments: Arguments, nodes: list[exp.Expression], _node: exp.Expression, ctx: Context) -> Value:
    items = [jsonb.made_of(_known(a, n, ctx)).expression for a, n in zip(arguments, nodes, strict=True)]
    return Value(duckdb_cast(call("json_array", *items), JSONB), JSONB, nullable=False)


def _object(arguments: Arguments, nodes: list[exp.Expression], node: exp.Expression, ctx: Context) -> Value:
    if len(arguments) % 2:
        raise ctx.error("INVALID_VALUE", "argument list must have even number of elements", node)
    items = []
    for i, (argument, written) in enumerate(zip(arguments, nodes, strict=True)):
        value = _known(argument, written, ctx)
        items.append(jsonb.made_of(value).expression if i % 2 else text_of(value))
    return Value(duckdb_cast(call("json_object", *items), JSONB), JSONB, nullable=False)


def _known(value: Value, node: exp.Expression, ctx: Context) -> Value:
    """A bare literal is a text."""
    return cast(value, VARCHAR, ctx, node) if value.unknown else value


_TEXTS: Final = SqlType("array", element=VARCHAR)

JSON_FUNCTIONS: Final[dict[str, Builder]] = {
    **builders({
        "jsonb_array_length": [signature("jsonb", "int",
        "CASE json_type(a0) WHEN 'ARRAY' THEN json_array_length(a0) END")],
        "jsonb_typeof": [signature("jsonb", "text", _TYPEOF)],
        "jsonb_strip_nulls": [signature("jsonb", "jsonb", jsonb.WITHOUT_NULLS)],
    }),
    "jsonb_build_array": _array, "jsonb_build_object": _object, "to_jsonb": _made,
    "jsonb_exists": _exists("jsonb_exists", "one", VARCHAR), "jsonb_exists_all": _exists("jsonb_exists_all", "all",
    _TEXTS),
    "jsonb_exists_any": _exists("jsonb_exists_any", "any", _TEXTS),
    "jsonb_extract_path": _path("jsonb_extract_path", text=False),
    "jsonb_extract_path_text": _path("jsonb_extract_path_text", text=True),
}  # fmt: skip

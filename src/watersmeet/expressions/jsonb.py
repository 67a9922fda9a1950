"""What jsonb can do beside being read: `||`, `-`, `?`, and functions that make or change documents (PostgreSQL 17, 9.16)."""

from __future__ import annotations

from typing import Final

from sqlglot import exp

from watersmeet.expressions.context import Context
from watersmeet.expressions.signatures import fill
from watersmeet.expressions.values import Value
from watersmeet.types import BOOLEAN, JSONB, VARCHAR

_ENTRIES: Final = "map_from_entries(list_zip(json_keys({0}), json_extract({0}, '$.*')))"
_LIST: Final = "CASE json_type({0}) WHEN 'ARRAY' THEN json_extract({0}, '$[*]') ELSE [{0}] END"
_JOINED: Final = (
    "CASE WHEN json_type(a0) = 'OBJECT' AND json_type(a1) = 'OBJECT' THEN "
    f"to_json(map_concat({_ENTRIES.format('a0')}, {_ENTRIES.format('a1')})) "
    f"ELSE to_json(list_concat({_LIST.format('a0')}, {_LIST.format('a1')})) END"
)
_WITHOUT_KEY: Final = (
    "CASE json_type(a0) WHEN 'OBJECT' THEN to_json(map_from_entries(list_filter(list_zip(json_keys(a0), json_extract(a0, '$.*')), "
    "lambda _e: NOT list_contains({0}, struct_extract(_e, 1))))) WHEN 'ARRAY' THEN to_json(list_filter(json_extract(a0, '$[*]'), "
    "lambda _e: NOT (json_type(_e) = 'VARCHAR' AND list_contains({0}, json_extract_string(_e, '$'))))) END"
)
#: Number `_i` (from 1) of the elements, without the one that the argument counts from 0 or from the end.
_WITHOUT_PLACE: Final = (
    "CASE json_type(a0) WHEN 'ARRAY' THEN to_json(list_filter(json_extract(a0, '$[*]'), lambda _e, _i: "
    "_i - 1 <> CASE WHEN a1 < 0 THEN json_array_length(a0) + a1 ELSE a1 END)) END"
)
#: The keys of an object, the texts in an array, a text.
_TOP: Final = (
    "CASE json_type(a0) WHEN 'OBJECT' THEN json_keys(a0) WHEN 'ARRAY' THEN list_transform(list_filter(json_extract(a0, '$[*]'), "
    "lambda _e: json_type(_e) = 'VARCHAR'), lambda _e: json_extract_string(_e, '$')) WHEN 'VARCHAR' THEN [json_extract_string(a0, '$')] "
    "ELSE CASE WHEN a0 IS NOT NULL THEN CAST([] AS VARCHAR[]) END END"
)


def joined(left: Value, right: Value) -> Value:
    """`left || right`: the keys of both objects (the right ones count), or the elements of both."""
    return Value(exp.Cast(this=fill(_JOINED, left.expression, right.expression), to=exp.DataType.build("JSON", dialect="duckdb")),
                 JSONB)


def without(document: Value, part: Value, ctx: Context, node: exp.Expression) -> Value:
    """`document - part`: without a key, keys, or the element at a place."""
    if part.type.is_integer:
        template = _WITHOUT_PLACE
    elif part.type == VARCHAR:
        template = _WITHOUT_KEY.format("[a1]")
    elif part.type.element == VARCHAR:
        template = _WITHOUT_KEY.format("a1")
    else:
        raise ctx.error("DATATYPE_MISMATCH", f"operator does not exist: jsonb - {part.type.sql}", node)
    return Value(fill(template, document.expression, part.expression), JSONB)


def exists(document: Value, keys: Value, *, how: str) -> Value:
    """`document ? key`, `?|`, `?&`. how: one, any, all."""
    template = {"one": "list_contains({0}, a1)", "any": "list_has_any({0}, a1)", "all": "list_has_all({0}, a1)"}[how]
    return Value(fill(template.format(f"({_TOP})"), document.expression, keys.expression), BOOLEAN)

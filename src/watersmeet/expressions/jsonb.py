"""What jsonb can do beside being read: `||`, `-`, `?`, and functions that make or change documents (PostgreSQL 17,
9.16).
"""

from __future__ import annotations

from typing import Final

from sqlglot import exp

from watersmeet.expressions.casts import text_of
from watersmeet.expressions.context import Context
from watersmeet.expressions.templates import fill
from watersmeet.expressions.values import Value, call, duckdb_cast, string
from watersmeet.types import BOOLEAN, JSON_MAX_DEPTH, JSONB, TIMESTAMP, VARCHAR, SqlType

_ENTRIES: Final = "map_from_entries(list_zip(json_keys({0}), json_extract({0}, '$.*')))"
_LIST: Final = "CASE json_type({0}) WHEN 'ARRAY' THEN json_extract({0}, '$[*]') ELSE [{0}] END"
_JOINED: Final = (
    "CASE WHEN json_type(a0) = 'OBJECT' AND json_type(a1) = 'OBJECT' THEN "
    f"to_json(map_concat({_ENTRIES.format('a0')}, {_ENTRIES.format('a1')})) "
    f"ELSE to_json(list_concat({_LIST.format('a0')}, {_LIST.format('a1')})) END"
)
_WITHOUT_KEY: Final = (
    "CASE json_type(a0) WHEN 'OBJECT' THEN to_json(map_from_entries(list_filter(list_zip(json_keys(a0), "
    "json_extract(a0, '$.*')), "
    "lambda _e: NOT list_contains({0}, struct_extract(_e, 1))))) WHEN 'ARRAY' THEN "
    "to_json(list_filter(json_extract(a0, '$[*]'), "
    "lambda _e: NOT (json_type(_e) = 'VARCHAR' AND list_contains({0}, json_extract_string(_e, '$'))))) END"
)
#: Number `_i` (from 1) of the elements, without the one that the argument counts from 0 or from the end.
_WITHOUT_PLACE: Final = (
    "CASE json_type(a0) WHEN 'ARRAY' THEN to_json(list_filter(json_extract(a0, '$[*]'), lambda _e, _i: "
    "_i - 1 <> CASE WHEN a1 < 0 THEN json_array_length(a0) + a1 ELSE a1 END)) END"
)
#: The keys of an object, the texts in an array, a text.
_TOP: Final = (
    "CASE json_type(a0) WHEN 'OBJECT' THEN json_keys(a0) WHEN 'ARRAY' THEN "
    "list_transform(list_filter(json_extract(a0, '$[*]'), "
    "lambda _e: json_type(_e) = 'VARCHAR'), lambda _e: json_extract_string(_e, '$')) WHEN 'VARCHAR' THEN "
    "[json_extract_string(a0, '$')] "
    "ELSE CASE WHEN a0 IS NOT NULL THEN CAST([] AS VARCHAR[]) END END"
)
#: Of the text DOC. Brackets outside strings as +1 and -1; the greatest sum so far is kept above 32 bits, the sum below.
_DEPTH: Final = (
    "list_reduce(list_transform(string_split(regexp_replace(regexp_replace(DOC, "
    r"""'"(?:[^"\\]|\\.)*"', '', 'g'), '[^\[\]{}]', '', 'g'), ''), """
    "lambda _c: CASE WHEN _c IN ('[', '{') THEN CAST(1 AS BIGINT) ELSE CAST(-1 AS BIGINT) END), "
    "lambda _s, _d: greatest(_s // 4294967296, _s % 4294967296 + _d) * 4294967296 + _s % 4294967296 + _d, "
    "CAST(0 AS BIGINT)) // 4294967296"
)
#: DuckDB compares and merges documents by recursion: some ten thousand levels end the process. A text that is shorter
#: than this has fewer; of a longer one they are counted. It comes from a cast: what columns hold is shallow.
_SHALLOW: Final = (
    "CASE WHEN length(CAST(DOC AS VARCHAR)) < 65536 OR DOC IS NULL THEN DOC "
    f"WHEN {_DEPTH.replace('DOC', 'CAST(DOC AS VARCHAR)')} <= {JSON_MAX_DEPTH} THEN DOC "
    "ELSE error(concat('jsonb nests too deeply', left(CAST(DOC AS VARCHAR), 0))) END"
)
_WRITTEN: Final = ("bytea", "interval", "timestamp", "timestamptz")
_ISO: Final = "replace(CAST(a0 AS VARCHAR), ' ', 'T')"
_ISO_ZONED: Final = f"regexp_replace({_ISO}, '[+]00$', '+00:00')"
WITHOUT_NULLS: Final = f"json_merge_patch('{{}}', {_SHALLOW.replace('DOC', 'a0')})"
"""The template of jsonb_strip_nulls."""


def made_of(value: Value) -> Value:
    """`to_jsonb(value)`: times, intervals, bytea, and floats that JSON has no numbers for are texts, in PostgreSQL's
    form.
    """
    return Value(duckdb_cast(call("to_json", _member(value.finish().expression, value.type, 0)), JSONB), JSONB)


def _member(expression: exp.Expression, kind: SqlType, depth: int) -> exp.Expression:
    """A value from which DuckDB makes PostgreSQL's JSON."""
    text = text_of(Value(expression, kind)) if kind.name in ("bytea", "interval") or kind.is_float else expression
    if kind.name in ("timestamp", "timestamptz"):
        return fill(_ISO if kind == TIMESTAMP else _ISO_ZONED, expression)
    if kind.is_float:
        return fill("CASE WHEN isfinite(a0) THEN CAST(a1 AS JSON) ELSE to_json(a1) END", expression, text)
    if not _is_converted(kind):
        return text
    if kind.element is not None:
        item = exp.to_identifier(f"_j{depth}")
        each = exp.Lambda(this=_member(item.copy(), kind.element, depth + 1), expressions=[item])
        return call("list_transform", expression, each)
    fields = [
        exp.PropertyEQ(
            this=exp.to_identifier(name, quoted=True),
            expression=_member(call("struct_extract", expression, string(name)), field, depth),
        )
        for name, field in kind.fields
    ]
    none = exp.If(this=exp.Is(this=exp.Paren(this=expression.copy()), expression=exp.null()), true=exp.null())
    return exp.Paren(this=exp.Case(ifs=[none], default=exp.Struct(expressions=fields)))


def _is_converted(kind: SqlType) -> bool:
    """Whether an array or struct has values that DuckDB writes otherwise."""
    inner = [field for _, field in kind.fields] if kind.element is None else [kind.element]
    return any(k.is_float or k.name in _WRITTEN or _is_converted(k) for k in inner)


def contains(whole: Value, part: Value) -> Value:
    """`whole @> part`."""
    template = f"json_contains({_SHALLOW.replace('DOC', 'a0')}, {_SHALLOW.replace('DOC', 'a1')})"
    return Value(fill(template, whole.expression, part.expression), BOOLEAN)


def joined(left: Value, right: Value) -> Value:
    """`left || right`: the keys of both objects (the right ones count), or the elements of both."""
    return Value(
        exp.Cast(
            this=fill(_JOINED, left.expression, right.expression), to=exp.DataType.build("JSON", dialect="duckdb")
        ),
        JSONB,
    )


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

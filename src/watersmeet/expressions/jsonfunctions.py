"""Functions and operators of jsonb (PostgreSQL 17, 9.16)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from sqlglot import exp

from watersmeet.expressions.calls import Arguments, Builder, builders, count_checked, mismatch_of, signature
from watersmeet.expressions.casts import cast, text_of
from watersmeet.expressions.context import Context, Value, call, duckdb_cast, fill, string
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
        return exists(document, keys, how=how)

    return build


def _made(arguments: Arguments, nodes: list[exp.Expression], node: exp.Expression, ctx: Context) -> Value:
    count_checked("to_jsonb", arguments, (1,), node, ctx)
    return made_of(_known(arguments[0], nodes[0], ctx))


def _array(arguments: Arguments, nodes: list[exp.Expression], _node: exp.Expression, ctx: Context) -> Value:
    items = [made_of(_known(a, n, ctx)).expression for a, n in zip(arguments, nodes, strict=True)]
    return Value(duckdb_cast(call("json_array", *items), JSONB), JSONB, nullable=False)


def _object(arguments: Arguments, nodes: list[exp.Expression], node: exp.Expression, ctx: Context) -> Value:
    if len(arguments) % 2:
        raise ctx.error("INVALID_VALUE", "argument list must have even number of elements", node)
    items = []
    for i, (argument, written) in enumerate(zip(arguments, nodes, strict=True)):
        value = _known(argument, written, ctx)
        items.append(made_of(value).expression if i % 2 else text_of(value))
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
        "jsonb_strip_nulls": [signature("jsonb", "jsonb", WITHOUT_NULLS)],
    }),
    "jsonb_build_array": _array, "jsonb_build_object": _object, "to_jsonb": _made,
    "jsonb_exists": _exists("jsonb_exists", "one", VARCHAR), "jsonb_exists_all": _exists("jsonb_exists_all", "all",
    _TEXTS),
    "jsonb_exists_any": _exists("jsonb_exists_any", "any", _TEXTS),
    "jsonb_extract_path": _path("jsonb_extract_path", text=False),
    "jsonb_extract_path_text": _path("jsonb_extract_path_text", text=True),
}  # fmt: skip

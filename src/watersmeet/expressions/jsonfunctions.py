"""Binds functions and operators of jsonb (PostgreSQL 17, 9.16)."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, Final

from sqlglot import exp

from watersmeet.expressions.calls import (
    Builder,
    FunctionCall,
    at_least,
    builders,
    constant_of,
    counted,
    signature,
)
from watersmeet.expressions.casts import cast, text_of
from watersmeet.expressions.context import (
    NO_INDEX,
    TOO_DEEP,
    Context,
    Value,
    call,
    document,
    duckdb_cast,
    failing,
    fill,
    is_utc,
    string,
    zoned_text,
)
from watersmeet.system.duckdbs import JSON_STRING, JSON_TEXT
from watersmeet.values.types import BOOLEAN, JSONB, TIMESTAMP, TIMESTAMPTZ, VARCHAR, SqlType

_ENTRIES: Final = "map_from_entries(list_zip(json_keys({0}), json_extract({0}, '$.*')))"
_LIST: Final = "CASE json_type({0}) WHEN 'ARRAY' THEN json_extract({0}, '$[*]') ELSE [{0}] END"

#: The object of a list of pairs, in the order of the bytes of their keys.
_OF_PAIRS: Final = "to_json(map_from_entries(list_sort({0})))"
_BOTH: Final = f"map_entries(map_concat({_ENTRIES.format('a0')}, {_ENTRIES.format('a1')}))"

_JOINED: Final = (
    f"CASE WHEN json_type(a0) = 'OBJECT' AND json_type(a1) = 'OBJECT' THEN {_OF_PAIRS.format(_BOTH)} "
    "WHEN a0 IS NOT NULL AND a1 IS NOT NULL THEN "
    f"to_json(list_concat({_LIST.format('a0')}, {_LIST.format('a1')})) END"
)

_WITHOUT_KEY: Final = (
    "CASE json_type(a0) WHEN 'OBJECT' THEN to_json(map_from_entries(list_filter(list_zip(json_keys(a0), "
    "json_extract(a0, '$.*')), "
    "lambda _e: NOT list_contains({0}, struct_extract(_e, 1))))) WHEN 'ARRAY' THEN "
    "to_json(list_filter(json_extract(a0, '$[*]'), "
    "lambda _e: NOT (json_type(_e) = 'VARCHAR' AND list_contains({0}, json_extract_string(_e, '$'))))) END"
)

#: The indexes `_i` (from 1) of all elements but one, which the argument counts from 0 or from the end.
_WITHOUT_PLACE: Final = (
    "CASE json_type(a0) WHEN 'ARRAY' THEN to_json(list_filter(json_extract(a0, '$[*]'), lambda _e, _i: "
    "_i - 1 <> CASE WHEN a1 < 0 THEN json_array_length(a0) + a1 ELSE a1 END)) END"
)

#: The keys of an object, the strings in an array, or a single string.
_TOP: Final = (
    "CASE json_type(a0) WHEN 'OBJECT' THEN json_keys(a0) WHEN 'ARRAY' THEN "
    "list_transform(list_filter(json_extract(a0, '$[*]'), "
    "lambda _e: json_type(_e) = 'VARCHAR'), lambda _e: json_extract_string(_e, '$')) WHEN 'VARCHAR' THEN "
    "[json_extract_string(a0, '$')] "
    "ELSE CASE WHEN a0 IS NOT NULL THEN CAST([] AS VARCHAR[]) END END"
)

_WRITTEN: Final = ("bytea", "interval", "timestamp", "timestamptz")
_ISO: Final = "replace(CAST(a0 AS VARCHAR), ' ', 'T')"
_ISO_ZONED: Final = f"regexp_replace({_ISO}, '[+]00$', '+00:00')"
#: The same from the text in a zone, whose offset may have minutes.
_ISO_IN_ZONE: Final = "regexp_replace(replace(a0, ' ', 'T'), '([+-][0-9]{2})$', '\\1:00')"
_NULL_MEMBER: Final = rf"{JSON_STRING}\s*:\s*null\s*,?|({JSON_STRING})"
_LAST_COMMA: Final = rf"({JSON_STRING})|,\s*(}})"
WITHOUT_NULLS: Final = (
    f"CAST(regexp_replace(regexp_replace(CAST(a0 AS VARCHAR), '{_NULL_MEMBER}', '\\1', 'g'), "
    f"'{_LAST_COMMA}', '\\1\\2', 'g') AS JSON)"
)
"""The template of jsonb_strip_nulls."""


def made_of(value: Value, *, ordered: bool = True) -> Value:
    """`to_jsonb(value)`, where times, intervals, bytea, NaN and infinities become texts in PostgreSQL's form.

    ordered: whether keys are in the order of their bytes, as in jsonb, instead of that of the fields, as in json.
    """
    made = _member(value.finish().expression, value.type, 0, ordered=ordered)
    return Value(duckdb_cast(call("to_json", made), JSONB), JSONB)


def _member(expression: exp.Expression, kind: SqlType, depth: int, *, ordered: bool) -> exp.Expression:
    """A value that DuckDB converts to PostgreSQL's JSON."""
    text = text_of(Value(expression, kind)) if kind.name in ("bytea", "interval") or kind.is_float else expression
    if kind.name in ("timestamp", "timestamptz"):
        if kind == TIMESTAMPTZ and not is_utc():
            return fill(_ISO_IN_ZONE, zoned_text(expression))
        return fill(_ISO if kind == TIMESTAMP else _ISO_ZONED, expression)
    if kind.is_float:
        return fill("CASE WHEN isfinite(a0) THEN CAST(a1 AS JSON) ELSE to_json(a1) END", expression, text)
    if not _is_converted(kind, ordered=ordered):
        return text
    if kind.name == "map":
        item = exp.to_identifier(f"_j{depth}")
        key, value = (call("struct_extract", item.copy(), string(name)) for name in ("key", "value"))
        parts = (text_of(Value(key, kind.entry[0])), _member(value, kind.entry[1], depth + 1, ordered=ordered))
        each = exp.Lambda(this=fill("struct_pack(k := a0, v := a1)", *parts), expressions=[item])
        pairs = call("list_transform", expression, each)
        return call("map_from_entries", call("list_sort", pairs) if ordered else pairs)
    if kind.element is not None:
        item = exp.to_identifier(f"_j{depth}")
        each = exp.Lambda(this=_member(item.copy(), kind.element, depth + 1, ordered=ordered), expressions=[item])
        return call("list_transform", expression, each)
    fields = [
        exp.PropertyEQ(
            this=exp.to_identifier(name, quoted=True),
            expression=_member(call("struct_extract", expression, string(name)), field, depth, ordered=ordered),
        )
        for name, field in (sorted(kind.fields, key=_key_of_field) if ordered else kind.fields)
    ]
    none = exp.If(this=exp.Is(this=exp.Paren(this=expression.copy()), expression=exp.null()), true=exp.null())
    return exp.Paren(this=exp.Case(ifs=[none], default=exp.Struct(expressions=fields)))


def _key_of_field(field: tuple[str, SqlType]) -> bytes:
    return field[0].encode()


def _is_converted(kind: SqlType, *, ordered: bool) -> bool:
    """Whether an array or struct has values whose JSON differs in DuckDB, or fields in another order than its keys."""
    if kind.name == "map" or (ordered and list(kind.fields) != sorted(kind.fields, key=_key_of_field)):
        return True
    inner = [field for _, field in kind.fields] if kind.element is None else [kind.element]
    return any(k.is_float or k.name in _WRITTEN or _is_converted(k, ordered=ordered) for k in inner)


#: The depth to which `@>` compares documents that are not constants.
_COMPARED_DEPTH: Final = 5


def contains(whole: Value, part: Value, ctx: Context, node: exp.Expression) -> Value:
    """`whole @> part` (PostgreSQL 17, 8.14.3), where DuckDB's json_contains would search at any depth.

    A part that is not a constant fails if it is nested too deeply.
    """
    constant = constant_of(part, JSONB, node, ctx, example="{}")
    if isinstance(constant, str):
        test = _contains_constant("a0", json.loads(constant), 0, top=True)
        return Value(fill(f"CASE WHEN a0 IS NOT NULL THEN {test} END", whole.expression), BOOLEAN)
    test = _contains_at("a0", "a1", _COMPARED_DEPTH, top=True)
    template = f"CASE WHEN a0 IS NOT NULL AND a1 IS NOT NULL THEN {test} END"
    return Value(fill(template, whole.expression, part.expression), BOOLEAN)


def _constant(value: Any) -> str:
    return "CAST('" + json.dumps(value, ensure_ascii=False).replace("'", "''") + "' AS JSON)"


def _key_path(key: str) -> str:
    """The path of a member as a literal."""
    return "'$.\"" + key.replace("'", "''").replace("\\", "\\\\").replace('"', '\\"') + "\"'"


def _contains_constant(whole: str, part: Any, depth: int, *, top: bool = False) -> str:
    """The SQL of `whole @> part` for a constant part. top: whether an array may contain a scalar."""
    if isinstance(part, dict):
        tests = [
            f"coalesce({_contains_constant(f'json_extract({whole}, {_key_path(k)})', v, depth)}, false)"
            for k, v in part.items()
        ]
        return f"(json_type({whole}) = 'OBJECT'{''.join(f' AND {t}' for t in tests)})"
    if isinstance(part, list):
        item = f"_c{depth}"
        tests = [
            f"len(list_filter(json_extract({whole}, '$[*]'), lambda {item}: "
            f"{_contains_constant(item, v, depth + 1)})) > 0"
            for v in part
        ]
        return f"(json_type({whole}) = 'ARRAY'{''.join(f' AND {t}' for t in tests)})"
    same = _SAME_SCALAR.format(whole, _constant(part))
    return _or_in_array(whole, _constant(part), same, f"_c{depth}") if top else same


#: Whether two values are the same scalar: numbers by value, texts without regard to escapes.
_SAME_SCALAR: Final = (
    "coalesce(json_type({0}) NOT IN ('OBJECT', 'ARRAY') AND json_type({1}) NOT IN ('OBJECT', 'ARRAY') AND "
    "(CAST({0} AS VARCHAR) = CAST({1} AS VARCHAR) OR json_type({0}) = 'VARCHAR' AND json_type({1}) = 'VARCHAR' AND "
    "json_extract_string({0}, '$') = json_extract_string({1}, '$') OR json_type({0}) NOT IN ('VARCHAR', 'NULL', "
    "'BOOLEAN') AND json_type({1}) NOT IN ('VARCHAR', 'NULL', 'BOOLEAN') AND "
    "TRY_CAST({0} AS DOUBLE) = TRY_CAST({1} AS DOUBLE)), false)"
)


#: The members of a container as rows of a key and a value; the key of an element is empty.
_CHILDREN: Final = (
    "CASE json_type({0}) WHEN 'OBJECT' THEN list_zip(json_keys({0}), json_extract({0}, '$.*')) "
    "ELSE list_transform(json_extract({0}, '$[*]'), lambda _e: row('', _e)) END"
)
_IS_CONTAINER: Final = "coalesce(json_type({0}) IN ('OBJECT', 'ARRAY'), false)"


def _contains_at(whole: str, part: str, levels: int, *, top: bool = False) -> str:
    """The SQL of `whole @> part` down to some levels, below which it fails."""
    scalar = _SAME_SCALAR.format(whole, part)
    if levels == 0:
        deep = failing(TOO_DEEP, part, "BOOLEAN")
        return f"CASE WHEN {_IS_CONTAINER.format(part)} THEN {deep} ELSE {scalar} END"
    if top:
        scalar = _or_in_array(whole, part, scalar, f"_o{levels}")
    child, other = f"_i{levels}", f"_o{levels}"
    deeper = _contains_at(f"struct_extract({other}, 2)", f"struct_extract({child}, 2)", levels - 1)
    found = (
        f"len(list_filter({_CHILDREN.format(whole)}, lambda {other}: "
        f"struct_extract({other}, 1) = struct_extract({child}, 1) AND {deeper}))"
    )
    return (
        f"CASE WHEN {_IS_CONTAINER.format(part)} THEN coalesce(json_type({whole}) = json_type({part}) AND "
        f"len(list_filter({_CHILDREN.format(part)}, lambda {child}: {found} = 0)) = 0, false) ELSE {scalar} END"
    )


def _or_in_array(whole: str, part: str, same: str, item: str) -> str:
    """Whether a scalar is the same, or an element of an array."""
    within = f"list_filter(json_extract({whole}, '$[*]'), lambda {item}: {_SAME_SCALAR.format(item, part)})"
    return f"CASE json_type({whole}) WHEN 'ARRAY' THEN len({within}) > 0 ELSE {same} END"


def joined(left: Value, right: Value) -> Value:
    """`left || right`: the keys of both objects (the right value of a common key), or the elements of both arrays."""
    return Value(
        exp.Cast(
            this=fill(_JOINED, left.expression, right.expression), to=exp.DataType.build("JSON", dialect="duckdb")
        ),
        JSONB,
    )


def without(document: Value, part: Value, ctx: Context, node: exp.Expression) -> Value:
    """`document - part`, which removes a key, several keys, or the element at an index."""
    if part.type.is_integer:
        template = _WITHOUT_PLACE
    elif part.type == VARCHAR:
        template = _WITHOUT_KEY.format("[a1]")
    elif part.type.element == VARCHAR:
        template = _WITHOUT_KEY.format("a1")
    else:
        raise ctx.error("DATATYPE_MISMATCH", f"operator does not exist: jsonb - {part.type.sql}", node)
    return Value(fill(template, document.expression, part.expression), JSONB)


_TYPEOF: Final = (
    "CASE json_type(a0) WHEN 'OBJECT' THEN 'object' WHEN 'ARRAY' THEN 'array' WHEN 'VARCHAR' THEN 'string' "
    "WHEN 'BOOLEAN' THEN 'boolean' WHEN 'NULL' THEN 'null' ELSE CASE WHEN a0 IS NOT NULL THEN 'number' END END"
)

#: One step of a path: an array index or the key of an object.
_STEP: Final = (
    "CASE WHEN json_type(a0) = 'ARRAY' THEN json_extract(a0, TRY_CAST(a1 AS BIGINT)) "
    "ELSE json_extract(a0, '$.\"' || replace(a1, '\"', '\\\"') || '\"') END"
)


def json_extract(document: Value, keys: Sequence[str], *, text: bool) -> Value:
    """The part of `document` at the path `keys`; digits are also array indexes."""
    path = "$" + "".join(f"[{k}]" if k.lstrip("-").isdecimal() else '."' + k.replace('"', '\\"') + '"' for k in keys)
    path = path.replace("[-", "[#-")
    if text:
        return text_at(document.expression, string(path))
    return Value(call("json_extract", document.expression, string(path)), JSONB)


def text_at(document: exp.Expression, path: exp.Expression) -> Value:
    """The text of the member at a path of DuckDB: of a string its content, else the text of the jsonb."""
    return Value(call(JSON_TEXT, document, path), VARCHAR)


def json_element(document: Value, key: Value, *, text: bool) -> Value | None:
    """The part of `document` at a key or index; None if the key is neither a text nor an integer."""
    if key.unknown and not key.is_null:
        # digits in a string are a key, not an index
        path = string('$."' + key.expression.name.replace('"', '\\"') + '"')
    elif key.type.is_integer or key.type == VARCHAR:
        path = key.expression
    else:
        return None
    if text:
        return text_at(document.expression, path)
    return Value(call("json_extract", document.expression, path), JSONB)


def walked(document: Value, keys: Sequence[exp.Expression], *, text: bool) -> Value:
    """Like `json_extract`, for computed keys."""
    found = document.expression
    for key in keys:
        found = fill(_STEP, found, key)
    return text_at(found, string("$")) if text else Value(found, JSONB)


def walked_array(document: Value, path: Value, *, text: bool) -> Value:
    """Like `walked`, for a computed array of keys; NULL for a NULL among them."""
    step = _STEP.replace("a0", "_d").replace("a1", "_k.k")
    found = fill(
        "struct_extract(list_reduce(list_transform(list_transform(a1, lambda _k: _k), lambda _k: "
        "struct_pack(d := CAST(NULL AS JSON), k := _k)), lambda _d, _k: struct_pack(d := STEP, k := ''), "
        "struct_pack(d := a0, k := '')), 'd')".replace("STEP", step.replace("_d", "_d.d")),
        document.expression,
        path.expression,
    )
    return text_at(found, string("$")) if text else Value(found, JSONB)


_JSON_KINDS: Final = {
    "VALUE": "json_valid(a0)", "OBJECT": "coalesce(json_type({0}) = 'OBJECT', false)",
    "ARRAY": "coalesce(json_type({0}) = 'ARRAY', false)",
    "SCALAR": "coalesce(json_type({0}) NOT IN ('OBJECT', 'ARRAY'), false)",
}  # fmt: skip


def is_json(text: exp.Expression, kind: str) -> exp.Expression:
    """`text IS JSON kind`. kind: VALUE, OBJECT, ARRAY or SCALAR."""
    test = _JSON_KINDS[kind.upper()].format("CASE WHEN json_valid(a0) THEN a0 END")
    return fill(f"CASE WHEN a0 IS NOT NULL THEN {test} END", text)


def _path(c: FunctionCall) -> Value:
    text, document = c.name.endswith("_text"), c.arguments[0]
    document = c.cast(0, JSONB) if document.unknown else document
    if document.type != JSONB:
        raise c.mismatch("It takes a jsonb and keys.")
    keys = [cast(a, VARCHAR, c.ctx, n) for a, n in zip(c.arguments[1:], c.nodes[1:], strict=True)]
    if all(k.expression.is_string for k in keys):
        return json_extract(document, [k.expression.name for k in keys], text=text)
    return walked(document, [k.expression for k in keys], text=text)


def _exists(template: str, kind: SqlType) -> Builder:
    """`document ? key`, `?|` or `?&` by a template over the keys {0} of the document."""

    def build(c: FunctionCall) -> Value:
        document, keys = c.cast(0, JSONB), c.arguments[1]
        keys = c.cast(1, kind) if keys.unknown else keys
        if keys.type != kind:
            raise c.mismatch(f"It takes a jsonb and a {kind.sql}.")
        return Value(fill(template.format(f"({_TOP})"), document.expression, keys.expression), BOOLEAN)

    return counted(build, 2)


def _is_jsonb(c: FunctionCall) -> bool:
    """Whether a function makes jsonb. Others make json, whose keys keep their order."""
    return "jsonb" in c.name


def _made(c: FunctionCall) -> Value:
    return made_of(_known(c.arguments[0], c.nodes[0], c.ctx), ordered=_is_jsonb(c))


def _as_json(c: FunctionCall) -> Value:
    """`row_to_json(row [, pretty])`, whose JSON is a jsonb."""
    if len(c.arguments) == 2 and constant_of(c.arguments[1], BOOLEAN, c.node, c.ctx, example=False) is not False:
        raise c.not_supported(f"{c.name} with line feeds", hint="Write jsonb_pretty(to_jsonb(x)).")
    return _made(c)


def _array(c: FunctionCall) -> Value:
    given = zip(c.arguments, c.nodes, strict=True)
    items = [made_of(_known(a, n, c.ctx), ordered=_is_jsonb(c)).expression for a, n in given]
    return Value(duckdb_cast(call("json_array", *items), JSONB), JSONB, nullable=False)


def _object(c: FunctionCall) -> Value:
    if len(c.arguments) % 2:
        raise c.error("INVALID_VALUE", "argument list must have even number of elements")
    ordered = _is_jsonb(c)
    values = [_known(a, n, c.ctx) for a, n in zip(c.arguments, c.nodes, strict=True)]
    pairs = [
        (text_of(k), made_of(v, ordered=ordered).expression) for k, v in zip(values[::2], values[1::2], strict=True)
    ]
    constant = all(isinstance(key, exp.Literal) for key, _ in pairs)
    if ordered and constant:  # of equal keys the last counts
        last = {key.name: (key, value) for key, value in pairs}
        pairs = [last[name] for name in sorted(last, key=str.encode)]
    made = duckdb_cast(call("json_object", *[part for pair in pairs for part in pair]), JSONB)
    return Value(made if constant or not ordered else document(made), JSONB, nullable=False)


def _known(value: Value, node: exp.Expression, ctx: Context) -> Value:
    """The value, where an untyped literal is a text."""
    return cast(value, VARCHAR, ctx, node) if value.unknown else value


_TEXTS: Final = SqlType("array", element=VARCHAR)


def _path_keys(value: Value, node: exp.Expression, ctx: Context, name: str) -> list[str]:
    """The keys of a constant path."""
    keys = constant_of(value, _TEXTS, node, ctx, example=[])
    if keys is None or None in keys:
        raise ctx.not_supported(f"{name} with a path that is not a constant", node, hint="Write it as '{a,0}'.")
    return list(keys)


def _index(key: str) -> int | None:
    return int(key) if key.lstrip("-").isdecimal() else None


def _changed(document: str, keys: Sequence[str], depth: int, change: Callable[[str, str], tuple[str, str]]) -> str:
    """The SQL of a document after a change at a path. change: from a document and the last key to the SQL of the
    changed object and of the changed array.
    """
    whole, key = f"_w{depth}", keys[0]
    index = _index(key)
    if len(keys) == 1:
        of_object, of_array = change(whole, key)
    else:
        inner = f"struct_extract(_e{depth}, 2)"
        deeper = _changed(inner, keys[1:], depth + 1, change)
        quoted = key.replace("'", "''")
        of_object = (
            f"to_json(map_from_entries(list_transform({_PAIRS.format(whole)}, lambda _e{depth}: CASE WHEN "
            f"struct_extract(_e{depth}, 1) = '{quoted}' THEN row(struct_extract(_e{depth}, 1), {deeper}) ELSE "
            f"row(struct_extract(_e{depth}, 1), {inner}) END)))"
        )
        at = _place(whole, index)
        of_array = (
            f"to_json(list_transform(json_extract({whole}, '$[*]'), lambda _x{depth}, _n{depth}: CASE WHEN "
            f"_n{depth} = {at} THEN {_changed(f'_x{depth}', keys[1:], depth + 1, change)} ELSE _x{depth} END))"
        )
    if index is None:
        of_array = failing(NO_INDEX, whole, "JSON")
    return (
        f"list_extract(list_transform([{document}], lambda {whole}: CASE json_type({whole}) WHEN 'OBJECT' THEN "
        f"CAST({of_object} AS JSON) WHEN 'ARRAY' THEN CAST({of_array} AS JSON) ELSE {whole} END), 1)"
    )


_PAIRS: Final = "list_zip(json_keys({0}), json_extract({0}, '$.*'))"


def _place(whole: str, index: int | None) -> str:
    """The place from 1 of an index, which counts from the end if it is negative."""
    return f"{(index or 0) + 1}" if (index or 0) >= 0 else f"json_array_length({whole}) + {(index or 0) + 1}"


def _set(c: FunctionCall) -> Value:
    """`jsonb_set(target, path, value [, create_if_missing])`."""
    document, value = c.cast(0, JSONB), c.cast(2, JSONB)
    keys = _path_keys(c.arguments[1], c.nodes[1], c.ctx, c.name)
    create = True if len(c.arguments) < 4 else constant_of(c.arguments[3], BOOLEAN, c.node, c.ctx, example=True)
    if create is None:
        raise c.not_supported("jsonb_set with create_if_missing that is not a constant")
    if not keys:
        return document

    def change(whole: str, key: str) -> tuple[str, str]:
        quoted, index = key.replace("'", "''"), _index(key)
        kept = (
            f"list_transform({_PAIRS.format(whole)}, lambda _e: CASE WHEN struct_extract(_e, 1) = '{quoted}' "
            "THEN row(struct_extract(_e, 1), a1) ELSE row(struct_extract(_e, 1), struct_extract(_e, 2)) END)"
        )
        listed = f"json_extract({whole}, '$[*]')"
        replaced = f"list_transform({listed}, lambda _x, _n: CASE WHEN _n = {_place(whole, index)} THEN a1 ELSE _x END)"
        if create:
            kept = (
                f"CASE WHEN list_contains(json_keys({whole}), '{quoted}') THEN {kept} "
                f"ELSE list_sort(list_append({_PAIRS.format(whole)}, row('{quoted}', a1))) END"
            )
            replaced = (
                f"CASE WHEN {_place(whole, index)} > json_array_length({whole}) THEN list_append({listed}, a1) "
                f"WHEN {_place(whole, index)} < 1 THEN list_prepend(a1, {listed}) ELSE {replaced} END"
            )
        return f"to_json(map_from_entries({kept}))", f"to_json({replaced})"

    template = f"CASE WHEN a1 IS NOT NULL THEN {_changed('a0', keys, 0, change)} END"
    return Value(duckdb_cast(fill(template, document.expression, value.expression), JSONB), JSONB)


def without_path(document: Value, path: Value, ctx: Context, node: exp.Expression) -> Value:
    """`document #- path`."""
    keys = _path_keys(path, node, ctx, "#-")

    def change(whole: str, key: str) -> tuple[str, str]:
        quoted = key.replace("'", "''")
        kept = f"list_filter({_PAIRS.format(whole)}, lambda _e: struct_extract(_e, 1) <> '{quoted}')"
        at = _place(whole, _index(key))
        listed = f"list_filter(json_extract({whole}, '$[*]'), lambda _x, _n: _n <> {at})"
        return f"to_json(map_from_entries({kept}))", f"to_json({listed})"

    if not keys:
        return document
    return Value(duckdb_cast(fill(_changed("a0", keys, 0, change), document.expression), JSONB), JSONB)


#: The object of the keys a0 and the texts a1, in which the last of equal keys counts.
_OF_TEXTS: Final = _OF_PAIRS.format(
    "list_transform(list_filter(range(1, len(a0) + 1), lambda _i: NOT list_contains(a0[_i + 1 : len(a0)], a0[_i])), "
    "lambda _i: row(a0[_i], a1[_i]))"
)


def _object_of_texts(c: FunctionCall) -> Value:
    """`jsonb_object(array of keys and values)`, or of keys and of values."""
    arrays = [c.cast(i, _TEXTS) for i in range(len(c.arguments))]
    if any(a.type != _TEXTS for a in arrays):
        raise c.mismatch("It takes one or two arrays of texts.")
    if len(arrays) == 2:
        keys, values = (a.expression for a in arrays)
    else:
        half = "list_transform(range(1, len(a0) // 2 + 1), lambda _i: a0[2 * _i {}])"
        keys, values = (fill(half.format(at), arrays[0].expression) for at in ("- 1", ""))
    return Value(fill(_OF_TEXTS, keys, values), JSONB)


def read_as(value: Value, kind: SqlType, ctx: Context, node: exp.Expression, depth: int = 0) -> Value:
    """A member of a jsonb as a value of a type: the rules of jsonb_populate_record (PostgreSQL 17, table 9.49)."""
    if kind == JSONB:
        return Value(fill("CASE WHEN json_type(a0) <> 'NULL' THEN a0 END", value.expression), JSONB)
    if kind.name == "struct":
        members = [
            Value(call("json_extract", value.expression, string(_member_path(name))), JSONB) for name, _ in kind.fields
        ]
        fields = [
            exp.PropertyEQ(
                this=exp.to_identifier(name, quoted=True),
                expression=read_as(member, field, ctx, node, depth).finish().expression,
            )
            for member, (name, field) in zip(members, kind.fields, strict=True)
        ]
        made = fill("CASE WHEN json_type(a0) = 'OBJECT' THEN a1 END", value.expression, exp.Struct(expressions=fields))
        return Value(duckdb_cast(made, kind), kind)
    if kind.name == "map":
        item = exp.to_identifier(f"_m{depth}")
        place = fill("list_extract(json_extract(a0, '$.*'), a1)", value.expression, item)
        member = read_as(Value(place, JSONB), kind.entry[1], ctx, node, depth + 1).finish().expression
        key = cast(Value(fill("list_extract(json_keys(a0), a1)", value.expression, item), VARCHAR), kind.entry[0], ctx,
                   node)  # fmt: skip
        each = exp.Lambda(this=fill("struct_pack(key := a0, value := a1)", key.expression, member), expressions=[item])
        places = fill("CASE WHEN json_type(a0) = 'OBJECT' THEN range(1, len(json_keys(a0)) + 1) END", value.expression)
        return Value(duckdb_cast(call("list_transform", places, each), kind), kind)
    if kind.element is not None:
        item = exp.to_identifier(f"_m{depth}")
        read = read_as(Value(item.copy(), JSONB), kind.element, ctx, node, depth + 1).finish().expression
        listed = fill("CASE WHEN json_type(a0) = 'ARRAY' THEN json_extract(a0, '$[*]') END", value.expression)
        made = call("list_transform", listed, exp.Lambda(this=read, expressions=[item]))
        return Value(duckdb_cast(made, kind), kind)
    return cast(text_at(value.expression, string("$")), kind, ctx, node)


def _member_path(name: str) -> str:
    return '$."' + name.replace("\\", "\\\\").replace('"', '\\"') + '"'


def populated(base: Value, document: exp.Expression, ctx: Context, node: exp.Expression) -> Value:
    """The record of an object: its members, or the fields of `base` whose names are no keys of it."""
    kind = base.type
    if base.unknown or kind.name != "struct":
        raise ctx.error(
            "DATATYPE_MISMATCH",
            "the first argument must be a struct",
            node,
            hint="Cast it, for example: NULL::struct<a int, b varchar>.",
        )
    made = read_as(Value(document, JSONB), kind, ctx, node)
    if base.is_null or (isinstance(base.expression, exp.Cast) and isinstance(base.expression.this, exp.Null)):
        return made
    fields = [
        exp.PropertyEQ(
            this=exp.to_identifier(name, quoted=True),
            expression=fill(
                "CASE WHEN list_contains(json_keys(a0), a1) THEN a2 ELSE a3 END",
                document,
                string(name),
                call("struct_extract", made.expression, string(name)),
                call("struct_extract", base.finish().expression, string(name)),
            ),
        )
        for name, _ in kind.fields
    ]
    return Value(duckdb_cast(exp.Struct(expressions=fields), kind), kind)


def _populate(c: FunctionCall) -> Value:
    return populated(c.arguments[0], c.cast(1, JSONB).expression, c.ctx, c.node)


def _elements(c: FunctionCall) -> Value:
    found = fill("CASE json_type(a0) WHEN 'ARRAY' THEN json_extract(a0, '$[*]') END", c.cast(0, JSONB).expression)
    return Value(found, SqlType("array", element=JSONB))


JSON_FUNCTIONS: Final[dict[str, Builder]] = {
    **builders({
        "jsonb_array_length": [
            signature("jsonb", "int", "CASE json_type(a0) WHEN 'ARRAY' THEN json_array_length(a0) END")],
        "jsonb_typeof": [signature("jsonb", "text", _TYPEOF)],
        "jsonb_strip_nulls": [signature("jsonb", "jsonb", WITHOUT_NULLS)],
        "jsonb_pretty": [signature("jsonb", "text", "json_pretty(a0)")],
    }),
    **dict.fromkeys(("json_build_array", "jsonb_build_array"), _array),
    **dict.fromkeys(("json_build_object", "jsonb_build_object"), _object),
    **dict.fromkeys(("to_json", "to_jsonb"), counted(_made, 1)),
    **dict.fromkeys(("array_to_json", "row_to_json"), counted(_as_json, 1, 2)),
    "jsonb_exists": _exists("list_contains({0}, a1)", VARCHAR),
    "jsonb_exists_all": _exists("list_has_all({0}, a1)", _TEXTS),
    "jsonb_exists_any": _exists("list_has_any({0}, a1)", _TEXTS),
    "jsonb_extract_path": at_least(_path, 2), "jsonb_extract_path_text": at_least(_path, 2),
    "jsonb_object": counted(_object_of_texts, 1, 2), "jsonb_populate_record": counted(_populate, 2),
    "jsonb_set": counted(_set, 3, 4), "jsonb_to_array": counted(_elements, 1),
}  # fmt: skip


def subscript(document: Value, keys: Sequence[Value | None], node: exp.Expression, ctx: Context) -> Value:
    """`j['key']` and `j[0]` (PostgreSQL 17, 8.14.5). None stands for a slice."""
    found = json_element(document, keys[0], text=False) if len(keys) == 1 and keys[0] is not None else None
    if found is None:
        raise ctx.error("DATATYPE_MISMATCH", "jsonb subscript must be coercible to either integer or text", node)
    return found

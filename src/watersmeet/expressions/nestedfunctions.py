"""Binds functions and operators of nested values: jsonb (PostgreSQL 17, 9.16), arrays, structs and rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from sqlglot import exp

from watersmeet.dialects.tree.nodes import sql_of
from watersmeet.dialects.tree.queries import name_of
from watersmeet.expressions.calls import (
    Builder,
    FunctionCall,
    at_least,
    builders,
    check_count,
    constant_of,
    counted,
    signature,
)
from watersmeet.expressions.casts import cast, coerce, text_of, unify
from watersmeet.expressions.context import Context, Value, call, common_type, duckdb_cast, fill, number, string
from watersmeet.values.types import (
    BIGINT,
    BOOLEAN,
    INTEGER,
    JSON_MAX_DEPTH,
    JSONB,
    NUMERIC,
    TIMESTAMP,
    VARCHAR,
    SqlType,
)

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

#: The nesting depth of the text DOC. Brackets outside strings count +1 and -1; the high 32 bits hold the greatest sum
#: so far, the low ones the current sum.
_DEPTH: Final = (
    "list_reduce(list_transform(string_split(regexp_replace(regexp_replace(DOC, "
    r"""'"(?:[^"\\]|\\.)*"', '', 'g'), '[^\[\]{}]', '', 'g'), ''), """
    "lambda _c: CASE WHEN _c IN ('[', '{') THEN CAST(1 AS BIGINT) ELSE CAST(-1 AS BIGINT) END), "
    "lambda _s, _d: greatest(_s // 4294967296, _s % 4294967296 + _d) * 4294967296 + _s % 4294967296 + _d, "
    "CAST(0 AS BIGINT)) // 4294967296"
)

#: DuckDB compares and merges documents recursively, so ten thousand levels crash the process. A text below this length
#: has fewer levels; in longer texts they are counted. Only casts need the test, because values of columns are shallow.
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
    """`to_jsonb(value)`, where times, intervals, bytea, NaN and infinities become texts in PostgreSQL's form."""
    return Value(duckdb_cast(call("to_json", _member(value.finish().expression, value.type, 0)), JSONB), JSONB)


def _member(expression: exp.Expression, kind: SqlType, depth: int) -> exp.Expression:
    """A value that DuckDB converts to PostgreSQL's JSON."""
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
    """Whether an array or struct has values whose JSON differs in DuckDB."""
    inner = [field for _, field in kind.fields] if kind.element is None else [kind.element]
    return any(k.is_float or k.name in _WRITTEN or _is_converted(k) for k in inner)


def contains(whole: Value, part: Value) -> Value:
    """`whole @> part`."""
    template = f"json_contains({_SHALLOW.replace('DOC', 'a0')}, {_SHALLOW.replace('DOC', 'a1')})"
    return Value(fill(template, whole.expression, part.expression), BOOLEAN)


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
        return Value(call("json_extract_string", document.expression, string(path)), VARCHAR)
    return Value(call("json_extract", document.expression, string(path)), JSONB)


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
        return Value(call("json_extract_string", document.expression, path), VARCHAR)
    return Value(call("json_extract", document.expression, path), JSONB)


def walked(document: Value, keys: Sequence[exp.Expression], *, text: bool) -> Value:
    """Like `json_extract`, for computed keys."""
    found = document.expression
    for key in keys:
        found = fill(_STEP, found, key)
    return Value(call("json_extract_string", found, string("$")), VARCHAR) if text else Value(found, JSONB)


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


def _made(c: FunctionCall) -> Value:
    return made_of(_known(c.arguments[0], c.nodes[0], c.ctx))


def _array(c: FunctionCall) -> Value:
    items = [made_of(_known(a, n, c.ctx)).expression for a, n in zip(c.arguments, c.nodes, strict=True)]
    return Value(duckdb_cast(call("json_array", *items), JSONB), JSONB, nullable=False)


def _object(c: FunctionCall) -> Value:
    if len(c.arguments) % 2:
        raise c.error("INVALID_VALUE", "argument list must have even number of elements")
    items = []
    for i, (argument, written) in enumerate(zip(c.arguments, c.nodes, strict=True)):
        value = _known(argument, written, c.ctx)
        items.append(made_of(value).expression if i % 2 else text_of(value))
    return Value(duckdb_cast(call("json_object", *items), JSONB), JSONB, nullable=False)


def _known(value: Value, node: exp.Expression, ctx: Context) -> Value:
    """The value, where an untyped literal is a text."""
    return cast(value, VARCHAR, ctx, node) if value.unknown else value


_TEXTS: Final = SqlType("array", element=VARCHAR)

JSON_FUNCTIONS: Final[dict[str, Builder]] = {
    **builders({
        "jsonb_array_length": [
            signature("jsonb", "int", "CASE json_type(a0) WHEN 'ARRAY' THEN json_array_length(a0) END")],
        "jsonb_typeof": [signature("jsonb", "text", _TYPEOF)],
        "jsonb_strip_nulls": [signature("jsonb", "jsonb", WITHOUT_NULLS)],
    }),
    "jsonb_build_array": _array, "jsonb_build_object": _object, "to_jsonb": counted(_made, 1),
    "jsonb_exists": _exists("list_contains({0}, a1)", VARCHAR),
    "jsonb_exists_all": _exists("list_has_all({0}, a1)", _TEXTS),
    "jsonb_exists_any": _exists("list_has_any({0}, a1)", _TEXTS),
    "jsonb_extract_path": at_least(_path, 2), "jsonb_extract_path_text": at_least(_path, 2),
}  # fmt: skip

#: Returns the result type of an array function for an element type.
Result = Callable[[SqlType], SqlType]


def dimensions(kind: SqlType) -> int:
    """The nesting depth of the type's arrays."""
    return 0 if kind.element is None else 1 + dimensions(kind.element)


def _array_of(kind: SqlType) -> SqlType:
    return SqlType("array", element=kind)


def _element(kind: SqlType) -> SqlType:
    return kind


def _sum(kind: SqlType) -> SqlType:
    return kind if kind.is_float else BIGINT if kind.name in ("smallint", "integer") else NUMERIC


def _shaped(shape: str, template: str, result: Result | SqlType) -> Builder:
    """A function of arrays. shape: a letter for each argument: `a` array, `e` element, `i` integer."""

    def build(c: FunctionCall) -> Value:
        pairs = list(zip(c.arguments, shape, strict=True))
        known = [
            a.type if s == "e" else a.type.element
            for a, s in pairs
            if not a.unknown and (s == "e" or (s == "a" and a.type.name == "array"))
        ]
        kinds = [k for k in known if k is not None]
        kind = common_type(kinds) if kinds else None
        fits = all(
            a.unknown or s == "e" or (a.type.name == "array" if s == "a" else a.type.is_integer) for a, s in pairs
        )
        if kind is None or not fits:
            words = {"a": "an array", "e": "an element", "i": "an integer"}
            raise c.mismatch(f"It takes {', '.join(words[s] for s in shape)}.")
        wanted = {"a": _array_of(kind), "e": kind, "i": INTEGER}
        values = [
            a if a.type == wanted[s] and not a.unknown else coerce(a, wanted[s], c.ctx, n)
            for (a, s), n in zip(pairs, c.nodes, strict=True)
        ]
        found = result if isinstance(result, SqlType) else result(kind)
        return Value(duckdb_cast(fill(template, *[v.expression for v in values]), found), found)

    return counted(build, len(shape))


def _length(template: str) -> Builder:
    """A function of an array and a constant dimension. Deeper dimensions are those of the first element."""

    def build(c: FunctionCall) -> Value:
        array, dimension = c.arguments
        wanted = constant_of(dimension, INTEGER, c.node, c.ctx, example=1)
        if array.type.name != "array" or wanted is None:
            raise c.mismatch("It takes an array and the number of a dimension.")
        if not 1 <= wanted <= dimensions(array.type):
            return Value(duckdb_cast(exp.null(), INTEGER), INTEGER)
        inner = array.finish().expression
        for _ in range(wanted - 1):
            inner = fill("list_extract(a0, 1)", inner)
        return Value(duckdb_cast(fill(template, inner), INTEGER), INTEGER)

    return counted(build, 2)


_UPPER: Final = _length("nullif(len(a0), 0)")


def _array_length(c: FunctionCall) -> Value:
    one = Value(exp.Literal.number(1), INTEGER, nullable=False)
    return _UPPER(c.over([*c.arguments, one]) if len(c.arguments) == 1 else c)


def _cardinality(c: FunctionCall) -> Value:
    if c.arguments[0].type.name != "array":
        raise c.mismatch("It takes an array.")
    array = c.arguments[0].finish().expression
    for _ in range(dimensions(c.arguments[0].type) - 1):
        array = fill("flatten(a0)", array)
    return Value(duckdb_cast(fill("len(a0)", array), INTEGER), INTEGER)


def _ndims(c: FunctionCall) -> Value:
    depth = dimensions(c.arguments[0].type)
    if not depth:
        raise c.mismatch("It takes an array.")
    found = fill(f"CASE WHEN len(a0) > 0 THEN {depth} END", c.arguments[0].expression)
    return Value(duckdb_cast(found, INTEGER), INTEGER)


def _array_position(c: FunctionCall) -> Value:
    check_count(c, 2, 3)
    return (_POSITION if len(c.arguments) == 2 else _POSITION_FROM)(c)


#: `||` and similar functions treat NULL as an empty array (9.19).
_APPENDED: Final = "list_append(coalesce(a0, []), a1)"

_PREPENDED: Final = "list_prepend(a0, coalesce(a1, []))"

#: Two concatenated arrays; NULL if both are NULL.
JOINED: Final = "CASE WHEN a0 IS NULL THEN a1 WHEN a1 IS NULL THEN a0 ELSE list_concat(a0, a1) END"

_SAME: Final = "(_e IS NOT DISTINCT FROM a1)"

_POSITION: Final = _shaped("ae", "list_position(a0, a1)", INTEGER)
_POSITION_FROM: Final = _shaped(
    "aei", "list_position(list_slice(a0, greatest(a2, 1), len(a0)), a1) + greatest(a2, 1) - 1", INTEGER
)

ARRAY_FUNCTIONS: Final[dict[str, Builder]] = {
    "array_append": _shaped("ae", _APPENDED, _array_of),
    "array_cat": _shaped("aa", JOINED, _array_of),
    "array_contains": _shaped("aa", "list_has_all(a0, a1)", BOOLEAN),
    "array_dims": _shaped("a", "CASE WHEN len(a0) > 0 THEN '[1:' || len(a0) || ']' END", VARCHAR),
    "array_distinct": _shaped("a", "list_filter(a0, lambda _e, _i: list_position(a0, _e) = _i)", _array_of),
    "array_length": _array_length,
    "array_lower": _length("CASE WHEN len(a0) > 0 THEN 1 END"),
    "array_max": _shaped("a", "list_max(a0)", _element),
    "array_min": _shaped("a", "list_min(a0)", _element),
    "array_ndims": counted(_ndims, 1),
    "array_position": _array_position,
    "array_positions": _shaped("ae", f"list_filter(list_transform(a0, lambda _e, _i: CASE WHEN {_SAME} THEN _i END), "
                                     "lambda _p: _p IS NOT NULL)", _array_of(INTEGER)),
    "array_prepend": _shaped("ea", _PREPENDED, _array_of),
    "array_remove": _shaped("ae", f"list_filter(a0, lambda _e: NOT {_SAME})", _array_of),
    "array_replace": _shaped("aee", f"list_transform(a0, lambda _e: CASE WHEN {_SAME} THEN a2 ELSE _e END)", _array_of),
    "array_reverse": _shaped("a", "list_reverse(a0)", _array_of),
    "array_sort": _shaped("a", "list_sort(a0, 'ASC', 'NULLS LAST')", _array_of),
    "array_sum": _shaped("a", "list_sum(a0)", _sum),
    "array_upper": _UPPER,
    "cardinality": counted(_cardinality, 1),
    "trim_array": _shaped(
        "ai", "CASE WHEN a1 BETWEEN 0 AND len(a0) THEN list_slice(a0, 1, len(a0) - a1) END", _array_of),
}  # fmt: skip

_PRESENT: Final = "list_filter(a0, lambda _e: _e IS NOT NULL)"
_ONCE: Final = f"list_distinct({_PRESENT})"

#: Values by frequency: the sign of the count, then the value.
_BY_FREQUENCY: Final = (
    "list_slice(list_transform(list_sort(list_transform(list_distinct(a0), "
    "lambda _v: struct_pack(n := {sign}len(list_filter(a0, lambda _o: _o = _v)), v := _v))), "
    "lambda _s: _s.v), 1, a1)"
)

#: Functions of all values of a group and a number: grammars substitute them for aggregate functions (`$`: no text can
#: name them). Without NULLs.
RANKING_FUNCTIONS: Final[dict[str, Builder]] = {
    "$collected": _shaped("ai", f"list_slice({_PRESENT}, 1, a1)", _array_of),
    "$collected_once": _shaped(
        "ai", f"list_slice(list_filter({_PRESENT}, lambda _e, _i: list_position({_PRESENT}, _e) = _i), 1, a1)",
        _array_of),
    "$greatest": _shaped("ai", f"list_slice(list_reverse_sort({_PRESENT}), 1, a1)", _array_of),
    "$greatest_once": _shaped("ai", f"list_slice(list_reverse_sort({_ONCE}), 1, a1)", _array_of),
    "$least": _shaped("ai", f"list_slice(list_sort({_PRESENT}), 1, a1)", _array_of),
    "$least_frequent": _shaped("ai", _BY_FREQUENCY.format(sign=""), _array_of),
    "$least_once": _shaped("ai", f"list_slice(list_sort({_ONCE}), 1, a1)", _array_of),
    "$most_frequent": _shaped("ai", _BY_FREQUENCY.format(sign="-"), _array_of),
}  # fmt: skip

Bind = Callable[[exp.Expression, Context], Value]
Reader = Callable[[Any, Context, Bind], Value]


def _array_literal(node: Any, ctx: Context, bind: Bind) -> Value:
    if not node.expressions:
        raise ctx.error(
            "DATATYPE_MISMATCH", "cannot determine type of empty array", node, hint="Cast it, for example: '{}'::int[]."
        )
    if isinstance(node.expressions[0], exp.Query):
        raise ctx.not_supported("ARRAY (SELECT …)", node)
    values, kind = unify([bind(e, ctx) for e in node.expressions], list(node.expressions), ctx, "ARRAY")
    return Value(exp.Array(expressions=[v.expression for v in values]), SqlType("array", element=kind), nullable=False)


def _bracket(node: Any, ctx: Context, bind: Bind) -> Value:
    value = bind(node.this, ctx)
    if value.type == JSONB and not value.unknown:
        return _json_element(value, node, ctx, bind)
    if value.type.name != "array" or value.type.element is None:
        raise ctx.error("DATATYPE_MISMATCH", f"cannot subscript type {value.type.sql} because it is not an array", node)
    if len(node.expressions) != 1:
        raise ctx.not_supported("an array slice of several dimensions", node)
    inner = node.expressions[0]
    if isinstance(inner, exp.Slice):
        return _slice(value, inner, node, ctx, bind)
    position = _index(inner, node, ctx, bind).expression
    if not (isinstance(position, exp.Literal) and int(position.name) > 0):
        position = fill("CASE WHEN a0 > 0 THEN a0 END", position)  # DuckDB counts negative indexes from the end
    return Value(call("array_extract", value.expression, position), value.type.element)


def _json_element(document: Value, node: Any, ctx: Context, bind: Bind) -> Value:
    """The subscripts `j['key']` and `j[0]` of jsonb (PostgreSQL 17, 8.14.5)."""
    keys = [None if isinstance(n, exp.Slice) else bind(n, ctx) for n in node.expressions]
    found = json_element(document, keys[0], text=False) if len(keys) == 1 and keys[0] is not None else None
    if found is None:
        raise ctx.error("DATATYPE_MISMATCH", "jsonb subscript must be coercible to either integer or text", node)
    return found


def _index(node: exp.Expression, place: exp.Expression, ctx: Context, bind: Bind) -> Value:
    index = bind(node, ctx)
    if index.unknown:
        index = cast(index, INTEGER, ctx, node)
    if not index.type.is_integer:
        raise ctx.error("DATATYPE_MISMATCH", "array subscript must have type integer", place)
    return index


def _slice(value: Value, node: exp.Slice, place: exp.Expression, ctx: Context, bind: Bind) -> Value:
    """The existing elements of `a[2:3]`, `a[:2]` or `a[2:]` (PostgreSQL 17, 8.15.3)."""
    first = number(1) if node.this is None else _index(node.this, place, ctx, bind).expression
    last = (
        call("len", value.expression)
        if node.expression is None
        else _index(node.expression, place, ctx, bind).expression
    )
    cut = fill(
        "CASE WHEN a1 IS NULL OR a2 IS NULL THEN NULL WHEN a2 < greatest(a1, 1) THEN list_slice(a0, 1, 0) "
        "ELSE list_slice(a0, greatest(a1, 1), a2) END",
        value.expression,
        first,
        last,
    )
    return Value(cut, value.type)


def _dot(node: Any, ctx: Context, bind: Bind) -> Value:
    if isinstance(node.expression, exp.Anonymous):
        name = node.expression.name.lower()
        raise ctx.error("UNDEFINED_FUNCTION", f"function {sql_of(node.this, 'postgres')}.{name} does not exist", node)
    return field_of(bind(node.this, ctx), node.expression, ctx, node)


def field_of(value: Value, identifier: exp.Expression, ctx: Context, node: exp.Expression) -> Value:
    """`(value).identifier`."""
    name = name_of(identifier)
    if value.type.name != "struct":
        raise ctx.error(
            "DATATYPE_MISMATCH",
            f"column notation .{name} applied to type {value.type.sql}, which is not a struct",
            node,
        )
    kind = dict(value.type.fields).get(name)
    if kind is None:
        raise ctx.error("UNDEFINED_COLUMN", f'field "{name}" not found in {value.type.sql}', node)
    return Value(call("struct_extract", value.expression, exp.Literal.string(name)), kind)


def row(nodes: list[exp.Expression], ctx: Context, bind: Bind) -> Value:
    """`row(…)` as a struct with the fields f1, f2 …"""
    values = [bind(n, ctx) for n in nodes]
    scalars = [v.finish() for v in values]
    fields = tuple((f"f{i + 1}", s.type) for i, s in enumerate(scalars))
    pairs = [
        exp.PropertyEQ(this=exp.to_identifier(f[0]), expression=s.expression)
        for f, s in zip(fields, scalars, strict=True)
    ]
    return Value(exp.Struct(expressions=pairs), SqlType("struct", fields=fields), nullable=False, parts=tuple(values))


READERS: Final[dict[type, Reader]] = {exp.Array: _array_literal, exp.Bracket: _bracket, exp.Dot: _dot}

"""Functions of texts and bytes (PostgreSQL 17, 9.4 and 9.5), regular expressions apart."""

from __future__ import annotations

import re
from typing import Final

from sqlglot import exp

from watersmeet.dialects.tree.tokens import RESERVED
from watersmeet.expressions.calls import (
    Arguments,
    Builder,
    apply,
    builders,
    constant_text,
    count_checked,
    limited,
    mismatch_of,
    signature,
)
from watersmeet.expressions.casts import cast, text_of
from watersmeet.expressions.context import Context, Value, call, fill, string
from watersmeet.values.types import BOOLEAN, BYTEA, VARCHAR

_WORDS: Final = ", ".join(f"'{w}'" for w in sorted(RESERVED))

#: `substr` from a place before the text takes only what reaches into it; DuckDB counts negative places from the end.
_FROM: Final = "substring(a0, CAST(greatest(a1, 1) AS BIGINT))"
_FROM_FOR: Final = (
    "CASE WHEN a2 < 0 THEN NULL ELSE substring(a0, CAST(greatest(a1, 1) AS BIGINT), "
    "greatest(CAST(a1 AS BIGINT) + a2 - greatest(a1, 1), 0)) END"
)
_BYTES_FROM: Final = "from_hex(substring(hex(a0), CAST(greatest(a1, 1) AS BIGINT) * 2 - 1))"
_BYTES_FROM_FOR: Final = (
    "from_hex(substring(hex(a0), CAST(greatest(a1, 1) AS BIGINT) * 2 - 1, "
    "2 * greatest(CAST(a1 AS BIGINT) + a2 - greatest(a1, 1), 0)))"
)

_SUBSTRING: Final = (
    signature("text int", "text", _FROM),
    signature("text int int", "text", _FROM_FOR),
    signature("bytea int", "bytea", _BYTES_FROM),
    signature("bytea int int", "bytea", _BYTES_FROM_FOR),
)
_OVERLAY: Final = "substring(a0, 1, a2 - 1) || a1 || substring(a0, CAST(a2 AS BIGINT) + {})"
_QUOTED: Final = (
    "CASE WHEN contains(a0, '\\') THEN ' E''' || replace(replace(a0, '\\', '\\\\'), '''', '''''') || '''' "
    "ELSE '''' || replace(a0, '''', '''''') || '''' END"
)
_IDENTIFIER: Final = (
    f"CASE WHEN regexp_full_match(a0, '[a-z_][a-z0-9_$]*') AND a0 NOT IN ({_WORDS}) THEN a0 "
    "ELSE '\"' || replace(a0, '\"', '\"\"') || '\"' END"
)

_PADDED: Final = limited("CAST(a1 AS BIGINT) * 4")
_PAD: Final = f"CASE WHEN a2 = '' THEN left(a0, greatest(a1, 0)) ELSE {{}}(a0, {_PADDED}, a2) END"
_LENGTH: Final = (signature("text", "int", "length(a0)"), signature("bytea", "int", "octet_length(a0)"))

_BY_SIGNATURE: Final[dict[str, Builder]] = builders({
    "ascii": [signature("text", "int", "ascii(a0)")], "chr": [signature("int", "text", "chr(nullif(a0, 0))")],
    "bit_length": [signature("text", "int", "strlen(a0) * 8"), signature("bytea", "int", "octet_length(a0) * 8")],
    "btrim": [signature("text", "text", "trim(a0, ' ')"), signature("text text", "text", "trim(a0, a1)")],
    "char_length": [_LENGTH[0]], "character_length": [_LENGTH[0]], "length": _LENGTH,
    "convert_from": [signature("bytea text", "text", "decode(a0)")], "convert_to": [signature("text text", "bytea",
    "encode(a0)")],
    "initcap": [signature("text", "text", "array_to_string(list_transform(regexp_extract_all(lower(a0), "
                          "'[\\pL\\pN]+|[^\\pL\\pN]+'), lambda _w: upper(_w[1]) || _w[2:]), '')")],
    "left": [signature("text int", "text", "left(a0, a1)")], "right": [signature("text int", "text", "right(a0, a1)")],
    "lower": [signature("text", "text", "lower(a0)")], "upper": [signature("text", "text", "upper(a0)")],
    "lpad": [signature("text int", "text", f"lpad(a0, {_PADDED}, ' ')"),
             signature("text int text", "text", _PAD.format("lpad"))],
    "rpad": [signature("text int", "text", f"rpad(a0, {_PADDED}, ' ')"),
             signature("text int text", "text", _PAD.format("rpad"))],
    "ltrim": [signature("text", "text", "ltrim(a0, ' ')"), signature("text text", "text", "ltrim(a0, a1)")],
    "rtrim": [signature("text", "text", "rtrim(a0, ' ')"), signature("text text", "text", "rtrim(a0, a1)")],
    "md5": [signature("text", "text", "md5(a0)"), signature("bytea", "text", "md5(a0)")],
    "octet_length": [signature("text", "int", "strlen(a0)"), signature("bytea", "int", "octet_length(a0)")],
    "overlay": [signature("text text int", "text", _OVERLAY.format("length(a1)")),
                signature("text text int int", "text", _OVERLAY.format("a3"))],
    "quote_ident": [signature("text", "text", _IDENTIFIER)],
    "repeat": [signature("text int", "text", f"repeat(a0, {limited('strlen(a0) * CAST(a1 AS BIGINT)')})")],
    "replace": [signature("text text text", "text", "CASE WHEN a1 = '' THEN a0 ELSE replace(a0, a1, a2) END")],
    "reverse": [signature("text", "text", "reverse(a0)")],
    "sha1": [signature("bytea", "bytea", "from_hex(sha1(a0))"), signature("text", "bytea", "from_hex(sha1(a0))")],
    "sha256": [signature("bytea", "bytea", "from_hex(sha256(a0))"), signature("text", "bytea", "from_hex(sha256(a0))")],
    "split_part": [signature("text text int", "text", "CASE WHEN a2 = 0 THEN NULL WHEN a1 = '' THEN "
                             "CASE WHEN abs(a2) = 1 THEN a0 ELSE '' END ELSE split_part(a0, a1, a2) END")],
    "starts_with": [signature("text text", "bool", "starts_with(a0, a1)")],
    "string_to_array": [signature("text text", "text[]",
    "CASE WHEN a0 = '' THEN CAST([] AS VARCHAR[]) WHEN a1 IS NULL THEN "
                                  "string_split(a0, '') WHEN a1 = '' THEN [a0] ELSE string_split(a0, a1) END"),
                        signature("text text text", "text[]",
                        "list_transform(CASE WHEN a0 = '' THEN CAST([] AS VARCHAR[]) "
                                  "WHEN a1 IS NULL THEN string_split(a0, '') WHEN a1 = '' THEN [a0] "
                                  "ELSE string_split(a0, a1) END, lambda _e: nullif(_e, a2))")],
    "strpos": [signature("text text", "int", "strpos(a0, a1)")],
    "substr": _SUBSTRING, "substring": _SUBSTRING,
    "to_hex": [signature("int", "text", "lower(to_hex(CAST(a0 AS BIGINT) & 4294967295))"),
               signature("bigint", "text", "lower(to_hex(a0))")],
    "translate": [signature("text text text", "text", "translate(a0, a1, a2)")],
})  # fmt: skip


def output(value: Value, ctx: Context, node: exp.Expression) -> exp.Expression:
    """The text that a value is written as: like its cast, but booleans are t and f (RisingWave's `bool_out`)."""
    if value.unknown:
        return cast(value, VARCHAR, ctx, node).expression
    if value.type == BOOLEAN:
        return fill("CASE WHEN a0 THEN 't' WHEN NOT a0 THEN 'f' END", value.expression)
    return text_of(value)


def _concat(arguments: Arguments, _nodes: list[exp.Expression], node: exp.Expression, ctx: Context) -> Value:
    count_checked("concat", arguments, (max(1, len(arguments)),), node, ctx)
    return Value(call("concat", *[output(a, ctx, node) for a in arguments]), VARCHAR, nullable=False)


def _concat_ws(arguments: Arguments, _nodes: list[exp.Expression], node: exp.Expression, ctx: Context) -> Value:
    count_checked("concat_ws", arguments, (max(2, len(arguments)),), node, ctx)
    return Value(call("concat_ws", *[output(a, ctx, node) for a in arguments]), VARCHAR)


def _array_to_string(name: str) -> Builder:
    return lambda arguments, _nodes, node, ctx: _joined_array(name, arguments, node, ctx)


def _joined_array(name: str, arguments: Arguments, node: exp.Expression, ctx: Context) -> Value:
    count_checked(name, arguments, (2, 3), node, ctx)
    element = arguments[0].type.element
    if element is None or element.name == "array":
        raise mismatch_of(name, arguments, node, ctx, "It takes an array of one dimension.")
    each = exp.Lambda(
        this=output(Value(exp.to_identifier("_e"), element), ctx, node), expressions=[exp.to_identifier("_e")]
    )
    texts = call("list_transform", arguments[0].expression, each)
    more = [cast(a, VARCHAR, ctx, node).expression for a in arguments[1:]]
    if next(more[0].find_all(exp.Column, exp.Subquery), None) is not None:
        raise ctx.not_supported(f"{name} with a separator that is not a constant", node)
    if len(more) == 2:
        texts = fill("list_transform(a0, lambda _t: coalesce(_t, a1))", texts, more[1])
    return Value(fill("CASE WHEN a1 IS NOT NULL THEN array_to_string(a0, a1) END", texts, more[0]), VARCHAR)


def _quote_literal(name: str, null: str | None) -> Builder:
    def build(arguments: Arguments, _nodes: list[exp.Expression], node: exp.Expression, ctx: Context) -> Value:
        count_checked(name, arguments, (1,), node, ctx)
        quoted = fill(_QUOTED, cast(arguments[0], VARCHAR, ctx, node).expression)
        return Value(quoted if null is None else call("coalesce", quoted, string(null)), VARCHAR)

    return build


_SPECIFIER: Final = re.compile(r"%(?:(\d+)\$)?(-?\d*|\*)([sIL%])")


def _format(arguments: Arguments, _nodes: list[exp.Expression], node: exp.Expression, ctx: Context) -> Value:
    """`format('…%s…', …)` (9.4.1) with a constant pattern, without widths."""
    pattern = constant_text(arguments[0], "format", node, ctx, example="") if arguments else ""
    count_checked("format", arguments, (max(1, len(arguments)),), node, ctx)
    pieces, at, position = [], 0, 0
    for found in re.finditer("%", pattern):
        if found.start() < position:
            continue
        match = _SPECIFIER.match(pattern, found.start())
        if match is None:
            raise ctx.error(
                "INVALID_VALUE", f'unrecognized format() type specifier "{pattern[found.start() + 1 :][:1]}"', node
            )
        if match[2]:
            raise ctx.not_supported("a width in format", node, hint="Use lpad or rpad.")
        pieces.append(string(pattern[position : match.start()]))
        position = match.end()
        if match[3] == "%":
            pieces.append(string("%"))
            continue
        at = int(match[1]) if match[1] else at + 1
        if not 1 <= at < len(arguments):
            raise ctx.error("INVALID_VALUE", "too few arguments for format()", node)
        text = output(arguments[at], ctx, node)
        shown = {"s": text, "I": fill(_IDENTIFIER, text), "L": call("coalesce", fill(_QUOTED, text), string("NULL"))}
        pieces.append(shown[match[3]])
    return Value(call("concat", *pieces, string(pattern[position:])), VARCHAR, nullable=False)


def _encode(arguments: Arguments, _nodes: list[exp.Expression], node: exp.Expression, ctx: Context) -> Value:
    count_checked("encode", arguments, (2,), node, ctx)
    kind = constant_text(arguments[1], "encode", node, ctx, example="hex").lower()
    value = cast(arguments[0], BYTEA, ctx, node) if arguments[0].unknown else arguments[0]
    templates = {"hex": "lower(hex(a0))", "base64": "to_base64(a0)"}
    if value.type != BYTEA:
        raise mismatch_of("encode", arguments, node, ctx, "It takes a bytea.")
    if kind not in templates:
        raise ctx.not_supported(f"encode to {kind}", node, hint="hex and base64 are supported.")
    return apply(templates[kind], [value], VARCHAR, ctx, node)


def _decode(arguments: Arguments, _nodes: list[exp.Expression], node: exp.Expression, ctx: Context) -> Value:
    count_checked("decode", arguments, (2,), node, ctx)
    kind = constant_text(arguments[1], "decode", node, ctx, example="hex").lower()
    functions = {"hex": "from_hex", "base64": "from_base64"}
    if kind not in functions:
        raise ctx.not_supported(f"decode of {kind}", node, hint="hex and base64 are supported.")
    return Value(call(functions[kind], cast(arguments[0], VARCHAR, ctx, node).expression), BYTEA)


TEXT_FUNCTIONS: Final[dict[str, Builder]] = {
    **_BY_SIGNATURE, "array_join": _array_to_string("array_join"),
    "array_to_string": _array_to_string("array_to_string"), "concat": _concat, "concat_ws": _concat_ws,
    "decode": _decode, "encode": _encode, "format": _format, "quote_literal": _quote_literal("quote_literal", None),
    "quote_nullable": _quote_literal("quote_nullable", "NULL"),
}  # fmt: skip

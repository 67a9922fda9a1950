"""Binds functions of texts, bytes and regular expressions (PostgreSQL 17, 9.4, 9.5 and 9.7)."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final

from sqlglot import exp

from watersmeet.dialects.tree.nodes import is_open
from watersmeet.dialects.tree.tokens import RESERVED
from watersmeet.expressions.calls import (
    Builder,
    FunctionCall,
    apply,
    at_least,
    builders,
    counted,
    in_python,
    limited,
    refuse_volatile,
    signature,
)
from watersmeet.expressions.casts import cast, text_of
from watersmeet.expressions.context import Context, Value, call, duckdb_cast, fill, native, number, string
from watersmeet.expressions.regexpatterns import groups, options, regex, replacement
from watersmeet.values import POSTGRES_VERSION
from watersmeet.values.calledfunctions import SLEEP
from watersmeet.values.types import BIGINT, BOOLEAN, BYTEA, DOUBLE, INTEGER, INTERVAL, VARCHAR, SqlType

_WORDS: Final = ", ".join(f"'{w}'" for w in sorted(RESERVED))

#: `substr` from a position before the text returns only the part inside the text; DuckDB counts negative positions from
#: the end.
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

_BYTES_OVERLAY: Final = (
    "from_hex(substring(hex(a0), 1, 2 * (CAST(a2 AS BIGINT) - 1)) || hex(a1) || "
    "substring(hex(a0), greatest(2 * (CAST(a2 AS BIGINT) + {}) - 1, 1)))"
)

#: The position of bytes within bytes, of which only even positions of the digits count.
_BYTES_POSITION: Final = (
    "CASE WHEN octet_length(a1) = 0 THEN 1 ELSE coalesce(list_position(list_transform(range(1, octet_length(a0) + 1), "
    "lambda _p: hex(a0)[2 * _p - 1 : 2 * (_p + octet_length(a1) - 1)]), hex(a1)), 0) END"
)

_QUOTED: Final = (
    "CASE WHEN contains(a0, '\\') THEN 'E''' || replace(replace(a0, '\\', '\\\\'), '''', '''''') || '''' "
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
    "gen_random_uuid": [signature("", "uuid", "gen_random_uuid()")],
    "ascii": [signature("text", "int", "ascii(a0)")], "chr": [signature("int", "text", "chr(nullif(a0, 0))")],
    "bit_length": [signature("text", "int", "strlen(a0) * 8"), signature("bytea", "int", "octet_length(a0) * 8")],
    "btrim": [signature("text", "text", "trim(a0, ' ')"), signature("text text", "text", "trim(a0, a1)")],
    "char_length": [_LENGTH[0]], "character_length": [_LENGTH[0]], "length": _LENGTH,
    "convert_from": [signature("bytea text", "text", "decode(a0)")],
    "convert_to": [signature("text text", "bytea", "encode(a0)")],
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
                signature("text text int int", "text", _OVERLAY.format("a3")),
                signature("bytea bytea int", "bytea", _BYTES_OVERLAY.format("octet_length(a1)")),
                signature("bytea bytea int int", "bytea", _BYTES_OVERLAY.format("a3"))],
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
    "strpos": [signature("text text", "int", "strpos(a0, a1)"), signature("bytea bytea", "int", _BYTES_POSITION)],
    "substr": _SUBSTRING, "substring": _SUBSTRING,
    "secure_compare": [signature("text text", "bool", "a0 = a1")],
    "to_ascii": [signature("text", "text", "strip_accents(a0)")],
    "to_hex": [signature("int", "text", "lower(to_hex(CAST(a0 AS BIGINT) & 4294967295))"),
               signature("bigint", "text", "lower(to_hex(a0))")],
    "translate": [signature("text text text", "text", "translate(a0, a1, a2)")],
})  # fmt: skip


def output(value: Value, ctx: Context, node: exp.Expression) -> exp.Expression:
    """The text of a value: the result of a cast, but t or f for booleans (RisingWave's `bool_out`)."""
    if value.unknown:
        return cast(value, VARCHAR, ctx, node).expression
    if value.type == BOOLEAN:
        return fill("CASE WHEN a0 THEN 't' WHEN NOT a0 THEN 'f' END", value.expression)
    return text_of(value)


def _concat(c: FunctionCall) -> Value:
    return Value(call("concat", *[output(a, c.ctx, c.node) for a in c.arguments]), VARCHAR, nullable=False)


def _concat_ws(c: FunctionCall) -> Value:
    return Value(call("concat_ws", *[output(a, c.ctx, c.node) for a in c.arguments]), VARCHAR)


def _array_to_string(c: FunctionCall) -> Value:
    element = c.arguments[0].type.element
    if element is None or element.name == "array":
        raise c.mismatch("It takes an array of one dimension.")
    item = exp.to_identifier("_e")
    each = exp.Lambda(this=output(Value(item.copy(), element), c.ctx, c.node), expressions=[item])
    texts = call("list_transform", c.arguments[0].expression, each)
    more = [c.cast(i, VARCHAR).expression for i in range(1, len(c.arguments))]
    if more[0].find(exp.Column, exp.Subquery) is not None:
        raise c.not_supported(f"{c.name} with a separator that is not a constant")
    if len(more) == 2:
        texts = fill("list_transform(a0, lambda _t: coalesce(_t, a1))", texts, more[1])
    return Value(fill("CASE WHEN a1 IS NOT NULL THEN array_to_string(a0, a1) END", texts, more[0]), VARCHAR)


def _quote_literal(c: FunctionCall) -> Value:
    return Value(fill(_QUOTED, c.cast(0, VARCHAR).expression), VARCHAR)


def _quote_nullable(c: FunctionCall) -> Value:
    return Value(call("coalesce", _quote_literal(c).expression, string("NULL")), VARCHAR)


_SPECIFIER: Final = re.compile(r"%(?:(\d+)\$)?(-?\d*|\*)([sIL%])")


def _format(c: FunctionCall) -> Value:
    """`format('…%s…', …)` (9.4.1)."""
    first = c.arguments[0]
    if not (first.unknown or first.expression.is_string) and next(first.expression.find_all(exp.Column), None):
        return _format_rows(c)
    pattern = c.text(0, example="")
    pieces, at, position = [], 0, 0
    for found in re.finditer("%", pattern):
        if found.start() < position:
            continue
        match = _SPECIFIER.match(pattern, found.start())
        if match is None:
            raise c.error("INVALID_VALUE", f'unrecognized format() type specifier "{pattern[found.start() + 1 :][:1]}"')
        if match[2] == "*":
            raise c.not_supported("a width of an argument in format", hint="Use lpad or rpad.")
        pieces.append(string(pattern[position : match.start()]))
        position = match.end()
        if match[3] == "%":
            pieces.append(string("%"))
            continue
        at = int(match[1]) if match[1] else at + 1
        if not 1 <= at < len(c.arguments):
            raise c.error("INVALID_VALUE", "too few arguments for format()")
        text = output(c.arguments[at], c.ctx, c.node)
        shown = {"s": text, "I": fill(_IDENTIFIER, text), "L": call("coalesce", fill(_QUOTED, text), string("NULL"))}
        pieces.append(_padded(shown[match[3]], match[2]))
    return Value(call("concat", *pieces, string(pattern[position:])), VARCHAR, nullable=False)


def _padded(text: exp.Expression, width: str) -> exp.Expression:
    """A text with spaces before it up to a width, or after it if the width is negative."""
    if not width.strip("-"):
        return text
    spaces = f"repeat(' ', greatest({int(width.strip('-'))} - length(coalesce(a0, '')), 0))"
    return fill(f"concat(a0, {spaces})" if width.startswith("-") else f"concat({spaces}, a0)", text)


#: `format` with the pattern a0 and the texts a1: the specifiers, in their order or by their number.
_FORMATTED: Final = (
    "array_to_string(list_transform(regexp_extract_all(a0, '%(?:[0-9]+\\$)?[sIL%]|[^%]+|%'), lambda _t, _i: "
    "CASE WHEN _t = '%%' THEN '%' WHEN NOT regexp_full_match(_t, '%([0-9]+\\$)?[sIL]') THEN _t ELSE "
    "list_extract(CASE right(_t, 1) WHEN 's' THEN list_transform(a1, lambda _v: coalesce(_v, '')) WHEN 'I' THEN "
    f"list_transform(a1, lambda _v: {_IDENTIFIER.replace('a0', '_v')}) ELSE "
    f"list_transform(a1, lambda _v: coalesce({_QUOTED.replace('a0', '_v')}, 'NULL')) END, "
    "coalesce(CAST(nullif(regexp_extract(_t, '[0-9]+'), '') AS BIGINT), "
    "len(list_filter(regexp_extract_all(a0, '%(?:[0-9]+\\$)?[sIL%]|[^%]+|%')[1 : _i], "
    "lambda _o: regexp_full_match(_o, '%[sIL]'))))) END), '')"
)


def _format_rows(c: FunctionCall) -> Value:
    """`format` with a pattern of each row."""
    texts = exp.Array(expressions=[output(a, c.ctx, c.node) for a in c.arguments[1:]])
    return apply(_FORMATTED, [c.cast(0, VARCHAR), Value(texts, _TEXTS)], VARCHAR, c.ctx, c.node)


#: The bytes a0 in PostgreSQL's `escape` format: the zero byte and bytes above 127 in octal digits.
_ESCAPED: Final = (
    "array_to_string(list_transform(range(1, octet_length(a0) + 1), lambda _p: CASE WHEN hex(a0)[2 * _p - 1 : 2 * _p] "
    "= '5C' THEN '\\\\' WHEN hex(a0)[2 * _p - 1 : 2 * _p] = '00' OR hex(a0)[2 * _p - 1 : 2 * _p] >= '80' THEN "
    "printf('\\%03o', CAST('0x' || hex(a0)[2 * _p - 1 : 2 * _p] AS INTEGER)) "
    "ELSE chr(CAST('0x' || hex(a0)[2 * _p - 1 : 2 * _p] AS INTEGER)) END), '')"
)
_UNESCAPED: Final = (
    "from_hex(array_to_string(list_transform(regexp_extract_all(a0, '(?s)\\\\[0-3][0-7]{2}|\\\\\\\\|[^\\\\]+|\\\\'), "
    "lambda _t: CASE WHEN _t = '\\\\' THEN '5C' WHEN length(_t) = 4 AND starts_with(_t, '\\') THEN "
    "printf('%02X', CAST(_t[2] AS INTEGER) * 64 + CAST(_t[3] AS INTEGER) * 8 + CAST(_t[4] AS INTEGER)) "
    "WHEN _t = '\\' THEN 'invalid' ELSE hex(_t) END), ''))"
)
#: PostgreSQL breaks the lines of base64 after 76 characters, and ignores white space when it reads them.
_BASE64: Final = "regexp_replace(to_base64(a0), '(.{76})', '\\1\n', 'g')"
_FROM_BASE64: Final = "from_base64(regexp_replace(a0, '\\s', '', 'g'))"


def _encode(c: FunctionCall) -> Value:
    kind = c.text(1, example="hex").lower()
    value = c.cast(0, BYTEA) if c.arguments[0].unknown else c.arguments[0]
    templates = {"hex": "lower(hex(a0))", "base64": _BASE64, "escape": _ESCAPED}
    if value.type != BYTEA:
        raise c.mismatch("It takes a bytea.")
    if kind not in templates:
        raise c.not_supported(f"encode to {kind}", hint="hex, base64 and escape are supported.")
    return apply(templates[kind], [value], VARCHAR, c.ctx, c.node)


def _decode(c: FunctionCall) -> Value:
    kind = c.text(1, example="hex").lower()
    templates = {"hex": "from_hex(a0)", "base64": _FROM_BASE64, "escape": _UNESCAPED}
    if kind not in templates:
        raise c.not_supported(f"decode of {kind}", hint="hex, base64 and escape are supported.")
    return Value(fill(templates[kind], c.cast(0, VARCHAR).expression), BYTEA)


#: HMAC (RFC 2104). Both hash functions have blocks of 64 bytes; a longer key is hashed first.
_HMAC_KEY: Final = "unhex(rpad(hex(CASE WHEN octet_length(a0) > 64 THEN unhex(HASH(a0)) ELSE a0 END), 128, '0'))"
_HMAC: Final = (
    f"unhex(HASH(CAST(xor(CAST({_HMAC_KEY} AS BIT), CAST(unhex(repeat('5c', 64)) AS BIT)) AS BLOB) || "
    f"unhex(HASH(CAST(xor(CAST({_HMAC_KEY} AS BIT), CAST(unhex(repeat('36', 64)) AS BIT)) AS BLOB) || a1))))"
)


def _hmac(c: FunctionCall) -> Value:
    kind = c.text(2, example="sha256", what="a hash function").lower()
    if kind not in ("sha1", "sha256"):
        raise c.not_supported(f"hmac with {kind}", hint="sha1 and sha256 are supported.")
    given = [c.cast(i, VARCHAR) if a.unknown else a for i, a in enumerate(c.arguments[:2])]
    if any(a.type not in (VARCHAR, BYTEA) for a in given):
        raise c.mismatch("It takes a key and a message of type varchar or bytea.")
    parts = [fill("encode(a0)", a.expression) if a.type == VARCHAR else a.expression for a in given]
    return Value(fill(_HMAC.replace("HASH", kind), *parts), BYTEA)


_TEXTS: Final = SqlType("array", element=VARCHAR)


def _in_encoding(c: FunctionCall) -> Value:
    """convert_to, convert_from. Raises FEATURE_NOT_SUPPORTED for another encoding than UTF-8."""
    encoding = c.text(1, example="UTF8", what="an encoding")
    if encoding.upper().replace("-", "") not in ("UTF8", "UNICODE"):
        raise c.not_supported(f"the encoding {encoding} in {c.name}", hint="Texts are in UTF8.")
    return _BY_SIGNATURE[c.name](c)


#: The value of version().
VERSION: Final = string(f"PostgreSQL {POSTGRES_VERSION} (Watersmeet)")

TEXT_FUNCTIONS: Final[dict[str, Builder]] = {
    **_BY_SIGNATURE, "array_join": counted(_array_to_string, 2, 3), "array_to_string": counted(_array_to_string, 2, 3),
    "concat": at_least(_concat, 1), "concat_ws": at_least(_concat_ws, 2), "format": at_least(_format, 1),
    "decode": counted(_decode, 2), "encode": counted(_encode, 2), "hmac": counted(_hmac, 3),
    "convert_from": counted(_in_encoding, 2), "convert_to": counted(_in_encoding, 2),
    "quote_literal": counted(_quote_literal, 1), "quote_nullable": counted(_quote_nullable, 1),
}  # fmt: skip


#: AES without an initialization vector (RisingWave, "Cryptographic functions"): `aes[-cbc|-ecb][/pad:pkcs|none]`.
_CIPHER: Final = """
import re
from cryptography.hazmat.primitives import padding
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

def f(data, key, kind):
    found = re.fullmatch("aes(?:-(cbc|ecb))?(?:/pad:(pkcs|none))?", kind.lower())
    if found is None:
        raise ValueError(f"the cipher {kind} is not supported: aes[-cbc|-ecb][/pad:pkcs|none]")
    cipher = Cipher(algorithms.AES(key), modes.ECB() if found[1] == "ecb" else modes.CBC(bytes(16)))
    padded = found[2] != "none"
"""
_ENCRYPT: Final = (
    _CIPHER
    + """
    padder, steps = padding.PKCS7(128).padder(), cipher.encryptor()
    data = padder.update(data) + padder.finalize() if padded else data
    return steps.update(data) + steps.finalize()
"""
)
_DECRYPT: Final = (
    _CIPHER
    + """
    unpadder, steps = padding.PKCS7(128).unpadder(), cipher.decryptor()
    data = steps.update(data) + steps.finalize()
    return unpadder.update(data) + unpadder.finalize() if padded else data
"""
)


def _sleep(c: FunctionCall, seconds: Value) -> Value:
    refuse_volatile(c)
    return native(SLEEP, [replace(seconds, expression=seconds.finish().expression)], VARCHAR, volatile=True)


IN_PYTHON: Final[dict[str, Builder]] = {
    "encrypt": in_python(_ENCRYPT, "bytea bytea text", "bytea"),
    "decrypt": in_python(_DECRYPT, "bytea bytea text", "bytea"),
    "pg_sleep": counted(lambda c: _sleep(c, c.cast(0, DOUBLE)), 1),
    "pg_sleep_for": counted(lambda c: _sleep(c, Value(call("epoch", c.cast(0, INTERVAL).expression), DOUBLE)), 1),
}  # fmt: skip


class _Match:
    """The arguments of a call: the text from the start position on, the pattern and the options."""

    def __init__(
        self, c: FunctionCall, *, start: int | None = None, flags: int | None = None, everywhere: bool = False
    ) -> None:
        self.c = c
        self.text = c.cast(0, VARCHAR).expression
        self.given = c.cast(1, VARCHAR)
        if start is not None and len(c.arguments) > start:
            self.text = call("substring", self.text, c.cast(start, INTEGER).expression)
        written = c.text(flags, example="", what="flags") if flags is not None and len(c.arguments) > flags else ""
        self.everywhere = "g" in written
        self.options = string(options(written, c.node, c.ctx, everywhere=everywhere).replace("g", ""))
        self.pattern = regex(self.given, c.node, c.ctx)

    @property
    def groups(self) -> int:
        """The number of groups of the pattern, which must be a constant."""
        if is_open(self.given.expression):
            return 0
        if not self.given.expression.is_string:
            feature = f"{self.c.name} with a pattern that is not a constant"
            raise self.c.not_supported(feature, hint="regexp_count, regexp_replace and ~ take one.")
        return groups(self.given.expression.name)

    def call(self, name: str, *more: exp.Expression) -> exp.Expression:
        """A call of DuckDB's function `name` with text, pattern, `more` and options."""
        return call(name, self.text, self.pattern, *more, self.options)

    def texts(self) -> exp.Expression:
        """The groups of the first match, or the whole match if the pattern has no groups; NULL without a match."""
        wanted = range(1, self.groups + 1) if self.groups else [0]
        parts = [self.call("regexp_extract", number(i)) for i in wanted]
        return fill("CASE WHEN a0 THEN a1 END", self.call("regexp_matches"), exp.Array(expressions=parts))


def _match(c: FunctionCall) -> Value:
    return Value(_Match(c, flags=2).texts(), _TEXTS)


def matches(c: FunctionCall) -> Value:
    """The array with the rows of regexp_matches; flag `g` returns one for each match."""
    found = _Match(c, flags=2, everywhere=True)
    kind = SqlType("array", element=_TEXTS)
    if not found.everywhere:
        return Value(fill("CASE WHEN a0 THEN [a1] END", found.call("regexp_matches"), found.texts()), kind)
    wanted = range(1, found.groups + 1) if found.groups else [0]
    lists = [found.call("regexp_extract_all", number(i)) for i in wanted]
    items = exp.Array(expressions=[fill("list_extract(a0, _i)", x) for x in lists])
    count = call("len", lists[0])
    each = exp.Lambda(this=items.transform(_as_parameter), expressions=[exp.to_identifier("_i")])
    return Value(call("list_transform", call("range", number(1), fill("a0 + 1", count)), each), kind)


def _as_parameter(node: exp.Expression) -> exp.Expression:
    return exp.to_identifier("_i") if isinstance(node, exp.Column) and node.name == "_i" else node


def split(c: FunctionCall) -> Value:
    """The array of the pieces between matches."""
    return Value(_Match(c, flags=2).call("string_split_regex"), _TEXTS)


def _count(c: FunctionCall) -> Value:
    found = _Match(c, start=2, flags=3)
    return Value(duckdb_cast(call("len", found.call("regexp_extract_all", number(0))), INTEGER), INTEGER)


def _like(c: FunctionCall) -> Value:
    return Value(_Match(c, flags=2).call("regexp_matches"), BOOLEAN)


#: The text with the match number a2 replaced by a3. a0: the pieces between the matches a1.
_NTH_REPLACED: Final = (
    "array_to_string(list_transform(a0, lambda _s, _n: _s || CASE WHEN _n > len(a1) THEN '' WHEN _n = a2 THEN a3 "
    "ELSE a1[_n] END), '')"
)


def _replace_from(c: FunctionCall) -> Value:
    """`regexp_replace(text, pattern, replacement, start [, N [, flags]])` (PostgreSQL 17, 9.7.3)."""
    found = _Match(c, start=3, flags=5, everywhere=True)
    number_of = c.cast(4, INTEGER).expression if len(c.arguments) > 4 else number(0 if found.everywhere else 1)
    text = replacement(c.cast(2, VARCHAR))
    if not text.is_string:
        raise c.not_supported("regexp_replace from a position with a replacement that is not a constant")
    parts = [p for p in re.split(r"(\\.)", text.name) if p]
    listed = [
        fill("list_extract(a0, a1)", found.call("regexp_extract_all", number(int(p[1]))), number_of)
        if p[0] == "\\" and p[1].isdecimal()
        else string(p[1:] if p[0] == "\\" else p)
        for p in parts
    ]
    every = call("regexp_replace", found.text, found.pattern, text, string(found.options.name + "g"))
    one = fill(
        _NTH_REPLACED,
        found.call("string_split_regex"),
        found.call("regexp_extract_all", number(0)),
        number_of,
        call("concat", string(""), *listed),
    )
    before = call("left", c.cast(0, VARCHAR).expression, fill("a0 - 1", c.cast(3, INTEGER).expression))
    return Value(fill("a0 || CASE WHEN a1 = 0 THEN a2 ELSE a3 END", before, number_of, every, one), VARCHAR)


def _replace(c: FunctionCall) -> Value:
    if len(c.arguments) > 4 or (
        len(c.arguments) == 4 and not c.arguments[3].unknown and c.arguments[3].type.is_integer
    ):
        return _replace_from(c)
    found = _Match(c, flags=3, everywhere=True)
    text = replacement(c.cast(2, VARCHAR))
    options = string(found.options.name + ("g" if found.everywhere else ""))
    return Value(call("regexp_replace", found.text, found.pattern, text, options), VARCHAR)


def _substr(c: FunctionCall) -> Value:
    found = _Match(c, start=2, flags=4)
    number_of = c.cast(3, BIGINT).expression if len(c.arguments) > 3 else number(1)
    group = c.cast(5, INTEGER).expression if len(c.arguments) > 5 else number(0)
    return Value(call("list_extract", found.call("regexp_extract_all", group), number_of), VARCHAR)


def _extract(c: FunctionCall) -> Value:
    """The regexp_extract of DuckDB and Spark: the match or a group of it; '' without a match."""
    found = _Match(c)
    group = c.cast(2, INTEGER).expression if len(c.arguments) > 2 else number(0)
    return Value(found.call("regexp_extract", group), VARCHAR)


def substring(text: Value, pattern: Value, node: exp.Expression, ctx: Context) -> Value:
    """`substring(text FROM pattern)`: the first group of the match, or the whole match; NULL without a match."""
    found = _Match(FunctionCall("substring", [text, pattern], [node, node], node, ctx))
    group = 1 if found.groups else 0
    return Value(
        fill("CASE WHEN a0 THEN a1 END", found.call("regexp_matches"), found.call("regexp_extract", number(group))),
        VARCHAR,
    )


def matched(text: Value, pattern: Value, flags: str, node: exp.Expression, ctx: Context) -> exp.Expression:
    """`text ~ pattern`. flags: `i` for `~*`."""
    return call("regexp_matches", text.expression, regex(pattern, node, ctx), string(options(flags, node, ctx)))


REGEX_FUNCTIONS: Final[dict[str, Builder]] = {
    "regexp_count": counted(_count, 2, 3, 4), "regexp_extract": counted(_extract, 2, 3),
    "regexp_like": counted(_like, 2, 3), "regexp_match": counted(_match, 2, 3),
    "regexp_replace": counted(_replace, 3, 4, 5, 6), "regexp_split_to_array": counted(split, 2, 3),
    "regexp_substr": counted(_substr, 2, 3, 4, 5, 6),
}  # fmt: skip

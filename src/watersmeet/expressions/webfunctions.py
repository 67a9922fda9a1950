"""Binds ClickHouse's functions of URLs, addresses of IP, encodings, hashes, points and readable numbers.

A text that is no URL has empty parts. Addresses are texts; their numbers are bigint (IPv4) and 16 bytes (IPv6); IPv4
addresses are in `::ffff:0:0/96` (RFC 4291, section 2.2). Texts with a zone (`fe80::1%eth0`) are not addresses. A text
that is not an address fails, like a cast. Hashes are bytes; `hex` shows them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from sqlglot import exp

from watersmeet.expressions.calls import Builder, FunctionCall, Signature, at_least, builders, counted, signature
from watersmeet.expressions.casts import cast
from watersmeet.expressions.context import Value, call, duckdb_cast, fill, native, string
from watersmeet.values.declaredtypes import FOUR
from watersmeet.values.types import BIGINT, BOOLEAN, BYTEA, DOUBLE, INTEGER, REAL, SMALLINT, VARCHAR, SqlType

#: The number of hexadecimal digits in an address.
DIGITS: Final = 32
#: The first digits of IPv4 addresses.
IPV4: Final = "0" * 20 + "ffff"

_GROUP: Final = "[0-9a-f]{1,4}"
_GROUPS: Final = f"(({_GROUP}:)*{_GROUP})?"


def address_sql(text: str) -> str:
    """SQL of the 32 lower-case hexadecimal digits of an address; NULL for other texts. text: an SQL expression."""
    tail = "regexp_extract(_t, '[0-9.]*$')"
    parts = ", ".join(f"TRY_CAST(split_part({tail}, '.', {i}) AS INTEGER)" for i in range(1, 5))
    # An IPv4 address at the end becomes two groups.
    groups = (
        f"CASE WHEN regexp_matches(_t, ':{FOUR}$') THEN left(_t, length(_t) - length({tail})) || "
        f"format('{{:02x}}{{:02x}}:{{:02x}}{{:02x}}', {parts}) ELSE _t END"
    )
    left, right = "split_part(_s, '::', 1)", "substring(_s, strpos(_s, '::') + 2)"
    is_cut = " AND ".join(f"regexp_full_match({part}, '{_GROUPS}')" for part in (left, right))
    whole = (
        f"CASE WHEN regexp_full_match(_s, '({_GROUP}:){{7}}{_GROUP}') THEN {_padded('_s')} "
        f"WHEN contains(_s, '::') AND {is_cut} "
        f"AND length({_padded(left)}) + length({_padded(right)}) <= 28 THEN {_padded(left)} || "
        f"repeat('0', CAST(32 - length({_padded(left)}) - length({_padded(right)}) AS BIGINT)) || {_padded(right)} END"
    )
    six = f"list_transform(list_transform([lower({text})], lambda _t: {groups}), lambda _s: {whole})[1]"
    four = (
        f"'{IPV4}' || array_to_string(list_transform(string_split({text}, '.'), "
        "lambda _p: format('{:02x}', TRY_CAST(_p AS INTEGER))), '')"
    )
    return f"CASE WHEN regexp_full_match({text}, '{FOUR}') THEN {four} ELSE {six} END"


def _padded(groups: str) -> str:
    """SQL of groups with leading zeros and without colons."""
    return (
        f"CASE WHEN {groups} = '' THEN '' ELSE "
        f"array_to_string(list_transform(string_split({groups}, ':'), lambda _g: lpad(_g, 4, '0')), '') END"
    )


def network_sql(digits: str) -> str:
    """SQL of the key for stored address ranges: the first 16 bits of an IPv6 address, or of the IPv4 address."""
    return f"CASE WHEN starts_with({digits}, '{IPV4}') THEN '4' || {digits}[25:28] ELSE '6' || {digits}[1:4] END"


def rest_sql(digits: str) -> str:
    """SQL of the bits of an address after those of `network_sql`."""
    return f"CASE WHEN starts_with({digits}, '{IPV4}') THEN {digits}[29:32] ELSE {digits}[5:32] END"


def _text(template: str) -> list[Signature]:
    return [signature("text", "text", template)]


def _part(pattern: str, group: int = 1) -> str:
    """A template of a part of the URL a0; '' without a match."""
    return f"regexp_extract(a0, '{pattern}', {group})"


#: The scheme, which may be missing, and the user of a URL.
_SCHEME: Final = "^(?:[A-Za-z][A-Za-z0-9+.-]*:)?(?://)?"
_HOST: Final = f"{_SCHEME}(?:[^/?#@]*@)?([^/?#:@]*)"
_AUTHORITY: Final = "^(?:[A-Za-z][A-Za-z0-9+.-]*:)?//[^/?#]*"
_DOMAIN: Final = "CASE WHEN contains({0}, '.') OR starts_with(a0, 'http') THEN {0} ELSE '' END".format(_part(_HOST))
#: The part of a URL from its path on.
_REST: Final = f"regexp_replace(a0, '{_AUTHORITY}', '')"
_PARAMETERS: Final = f"string_split({_part('[?]([^#]*)')}, '&')"
_NAMED: Final = f"list_filter({_PARAMETERS}, lambda _p: contains(_p, '='))"


def _four(then: str, otherwise: str) -> str:
    """A template by whether the text a0 is an IPv4 address."""
    return f"CASE WHEN regexp_full_match(a0, '{FOUR}') THEN {then} ELSE {otherwise} END"


def _six(digits: str) -> str:
    """A template over the 32 digits `_d` of the address a0, NULL for other texts."""
    return f"list_transform([{address_sql('a0')}], lambda _d: {digits})[1]"


_NUMBER: Final = " + ".join(
    f"CAST(split_part(a0, '.', {i}) AS BIGINT) * {256 ** (4 - i)}" for i in range(1, 5)
)  # fmt: skip
#: A cast that fails with the text in its message.
_FAILS: Final = "CAST(a0 AS BIGINT)"
_IS_FOUR: Final = f"coalesce({_four('true', 'false')}, false)"


def _dotted(number: str, last: str | None = None) -> str:
    """The text of the number of an IPv4 address."""
    parts = [f"(({number} // {256 ** (3 - i)}) % 256)" for i in range(4)]
    parts[3] = parts[3] if last is None else f"'{last}'"
    return " || '.' || ".join(parts)


def _shown(digits: str) -> str:
    """The text of 32 hexadecimal digits: IPv4 in its form, the longest run of zeros as `::`."""
    group = f"ltrim({digits}[_g * 4 + 1:_g * 4 + 4], '0')"
    groups = f"list_transform(range(0, 8), lambda _g: coalesce(nullif({group}, ''), '0'))"
    cut = "_t"
    for zeros in range(2, 9):  # the longest run is tested first
        run = ":".join(["0"] * zeros)
        there = f"regexp_matches(_t, '(^|:){run}(:|$)')"
        cut = f"CASE WHEN {there} THEN regexp_replace(_t, '(^|:){run}(:|$)', '::') ELSE {cut} END"
    number = f"CAST('0x' || {digits}[25:32] AS BIGINT)"
    four = f"'::ffff:' || {_dotted(number)}"
    six = f"list_transform([array_to_string({groups}, ':')], lambda _t: {cut})[1]"
    return f"CASE WHEN starts_with({digits}, '{IPV4}') THEN {four} ELSE {six} END"


#: The digits of an address that is one, else a failing cast.
_BYTES: Final = _six("CASE WHEN _d IS NULL AND a0 IS NOT NULL THEN encode(CAST(CAST(a0 AS BIGINT) AS VARCHAR)) "
                            "ELSE from_hex(_d) END")  # fmt: skip

_SIZES: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB", "ZiB", "YiB")
_DECIMAL_SIZES: Final = ("B", "KB", "MB", "GB", "TB", "PB", "EB", "ZB", "YB")
_QUANTITIES: Final = ("", " thousand", " million", " billion", " trillion", " quadrillion", " quintillion")


def _readable(words: tuple[str, ...], base: int, space: str) -> str:
    """A number with two decimals and the word of its size."""
    cases = " ".join(
        f"WHEN abs(a0) >= {float(base) ** i!r} THEN printf('%.2f{space}{word}', a0 / {float(base) ** i!r})"
        for i, word in reversed([*enumerate(words)][1:])
    )
    return f"CASE {cases} ELSE printf('%.2f{space}{words[0]}', a0) END"


#: Units of sizes in bytes.
_UNITS: Final = {
    "b": 1, **{f"{sign}b": 1000 ** (i + 1) for i, sign in enumerate("kmgtpe")},
    **{f"{sign}ib": 1024 ** (i + 1) for i, sign in enumerate("kmgtpe")},
}  # fmt: skip


def _sized(otherwise: str) -> str:
    """A number of bytes from a text such as `1.5 KiB`. otherwise: the template for other texts."""
    cases = " ".join(f"WHEN '{unit}' THEN {size}" for unit, size in _UNITS.items())
    form = "'^([0-9]+(?:[.][0-9]+)?) *([A-Za-z]+)$'"
    factor = f"CASE lower(regexp_extract(a0, {form}, 2)) {cases} END"
    found = f"CAST(ceil(CAST(nullif(regexp_extract(a0, {form}, 1), '') AS DOUBLE) * {factor}) AS BIGINT)"
    return f"CASE WHEN {found} IS NOT NULL THEN {found} WHEN a0 IS NOT NULL THEN {otherwise} END"


_LETTERS: Final = "0123456789bcdefghjkmnpqrstuvwxyz"

#: A bit of a place: bits of longitude and latitude alternate. _g: both as numbers of 30 bits.
_PLACE_BIT: Final = (
    "CASE WHEN (5 * _i + _b) % 2 = 0 THEN _g.x ELSE _g.y END // CAST(pow(2, 29 - (5 * _i + _b) // 2) AS BIGINT) % 2"
)


def _geohash(letters: str) -> str:
    """The geohash of a longitude and a latitude. letters: a template of its length."""
    parts = [
        f"least(greatest(CAST(floor((a{i} + {whole // 2}) / {whole} * 1073741824) AS BIGINT), 0), 1073741823)"
        for i, whole in enumerate((360, 180))
    ]
    five = f"list_sum(list_transform(range(0, 5), lambda _b: ({_PLACE_BIT}) * CAST(pow(2, 4 - _b) AS BIGINT)))"
    letter = f"substring('{_LETTERS}', CAST({five} AS INTEGER) + 1, 1)"
    text = f"array_to_string(list_transform(range(0, {letters}), lambda _i: {letter}), '')"
    both = f"struct_pack(x := {parts[0]}, y := {parts[1]})"
    return f"CASE WHEN a0 IS NOT NULL AND a1 IS NOT NULL THEN list_transform([{both}], lambda _g: {text})[1] END"


def _geohash_decode(c: FunctionCall) -> Value:
    """The middle of the cell of a geohash: its longitude and latitude."""
    text = fill("left(a0, 12)", c.cast(0, VARCHAR).expression)
    number = f"coalesce(nullif(strpos('{_LETTERS}', substring(a0, _i // 5 + 1, 1)), 0), 32) - 1"
    parts = []
    for first, whole in ((0, 360), (1, 180)):
        count = f"((5 * length(a0) + {1 - first}) // 2)"
        bit = f"(({number}) // CAST(pow(2, 4 - _i % 5) AS BIGINT) % 2)"
        value = f"{bit} * CAST(pow(2, {count} - 1 - _i // 2) AS BIGINT)"
        total = f"coalesce(list_sum(list_transform(range({first}, 5 * length(a0), 2), lambda _i: {value})), 0)"
        side = fill(f"{whole} * ({total} + 0.5) / pow(2, {count}) - {whole // 2}", text)
        parts.append(Value(duckdb_cast(side, DOUBLE), DOUBLE))
    pairs = [exp.PropertyEQ(this=exp.to_identifier(str(i + 1), quoted=True), expression=p.expression)
             for i, p in enumerate(parts)]  # fmt: skip
    kind = SqlType("struct", fields=(("1", DOUBLE), ("2", DOUBLE)))
    return Value(exp.Struct(expressions=pairs), kind, parts=tuple(parts))


#: Units of durations with their seconds: a year has 365 days, a month 30.5.
_LENGTHS: Final = {
    "years": 31_536_000, "months": 2_635_200, "days": 86_400, "hours": 3600, "minutes": 60, "seconds": 1,
}  # fmt: skip


def _readable_time(c: FunctionCall) -> Value:
    """A number of seconds as a text such as `1 hour and 2 minutes`, whose greatest unit is the second argument."""
    most = "years" if len(c.arguments) < 2 else c.text(1, example="years", what="a unit").lower()
    if most not in _LENGTHS:
        raise c.error("INVALID_VALUE", f'unit "{most}" not recognized', hint=f"Units: {', '.join(_LENGTHS)}.")
    parts, rest = [], "_n"
    for unit in [*_LENGTHS][[*_LENGTHS].index(most) :]:
        size = _LENGTHS[unit]
        count = f"({rest} // {size})"
        word = f"' {unit[:-1]}' || CASE WHEN {count} = 1 THEN '' ELSE 's' END"
        parts.append(f"CASE WHEN {count} > 0 THEN CAST({count} AS VARCHAR) || {word} END")
        rest = f"({rest} % {size})"
    written = f"list_transform([CAST(trunc(abs(a0)) AS BIGINT)], lambda _n: [{', '.join(parts)}])[1]"
    listed = f"list_filter({written}, lambda _e: _e IS NOT NULL)"
    joined = (
        "CASE WHEN len(_l) = 0 THEN '0 seconds' WHEN len(_l) = 1 THEN _l[1] "
        "ELSE array_to_string(list_slice(_l, 1, len(_l) - 1), ', ') || ' and ' || _l[len(_l)] END"
    )
    text = f"list_transform([{listed}], lambda _l: {joined})[1]"
    whole = f"CASE WHEN a0 IS NOT NULL THEN CASE WHEN a0 < 0 THEN '-' ELSE '' END || {text} END"
    return Value(fill(whole, c.cast(0, DOUBLE).expression), VARCHAR)


_BY_SIGNATURE: Final[dict[str, Builder]] = builders({
    "protocol": _text(_part("^([A-Za-z][A-Za-z0-9+.-]*):")),
    "domain": _text(_DOMAIN), "domain_without_www": _text(f"regexp_replace({_DOMAIN}, '^www[.]', '')"),
    "top_level_domain": _text(f"CASE WHEN regexp_matches({_DOMAIN}, '[0-9]$') THEN '' "
                              f"ELSE regexp_extract({_DOMAIN}, '[.]([^.]+)$', 1) END"),
    "netloc": _text(_part(f"{_SCHEME}([^/?#]*)")),
    "port": [signature("text", "int", f"coalesce(TRY_CAST({_part(_HOST + ':([0-9]+)', 2)} AS INTEGER), 0)"),
             signature("text int", "int", f"coalesce(TRY_CAST({_part(_HOST + ':([0-9]+)', 2)} AS INTEGER), a1)")],
    "path": _text(f"regexp_extract({_REST}, '^[^?#]*')"), "path_full": _text(_REST), "path_all": _text(_REST),
    "fragment": _text(_part("#(.*)")), "query_string": _text(_part("[?]([^#]*)")),
    "query_string_and_fragment": _text("CASE WHEN contains(a0, '?') THEN regexp_extract(a0, '[?](.*)', 1) "
                                       "ELSE regexp_extract(a0, '#.*') END"),
    "extract_url_parameter": [signature(
        "text text", "text", f"coalesce(list_extract(list_transform(list_filter({_PARAMETERS}, "
        "lambda _p: starts_with(_p, a1 || '=')), lambda _p: substring(_p, length(a1) + 2)), 1), '')")],
    "extract_url_parameters": [signature("text", "text[]", _NAMED)],
    "extract_url_parameter_names": [
        signature("text", "text[]", f"list_transform({_NAMED}, lambda _p: split_part(_p, '=', 1))")],
    "cut_query_string": _text("regexp_replace(a0, '[?][^#]*', '')"),
    "cut_fragment": _text("regexp_replace(a0, '#.*', '')"),
    "cut_query_string_and_fragment": _text("regexp_replace(a0, '[?#].*', '')"),
    "cut_www": _text("regexp_replace(a0, '^([A-Za-z][A-Za-z0-9+.-]*://)www[.]', '\\1')"),
    "decode_url_component": _text("url_decode(a0)"), "encode_url_component": _text("url_encode(a0)"),
    "ipv4_num_to_string": [signature("bigint", "text", _dotted("a0"))],
    "ipv4_num_to_string_class_c": [signature("bigint", "text", _dotted("a0", "xxx"))],
    "ipv4_string_to_num": [signature("text", "bigint", _four(_NUMBER, _FAILS))],
    "ipv4_string_to_num_or_default": [signature("text", "bigint", _four(_NUMBER, "0"))],
    "ipv4_string_to_num_or_null": [signature("text", "bigint", _four(_NUMBER, "NULL"))],
    "to_ipv4": [signature("text", "text", _four("a0", f"CAST({_FAILS} AS VARCHAR)")),
                signature("bigint", "text", _dotted("a0"))],
    "to_ipv4_or_default": _text(_four("a0", "'0.0.0.0'")), "to_ipv4_or_null": _text(_four("a0", "NULL")),
    "ipv4_to_ipv6": [signature("text", "text", _four("'::ffff:' || a0", f"CAST({_FAILS} AS VARCHAR)")),
                     signature("bigint", "bytea", f"from_hex('{IPV4}' || format('{{:08x}}', a0))")],
    "ipv6_num_to_string": [
        signature("bytea", "text", f"list_transform([lower(hex(a0))], lambda _d: {_shown('_d')})[1]")],
    "ipv6_string_to_num": [signature("text", "bytea", _BYTES)],
    "to_ipv6": _text(_six(f"CASE WHEN _d IS NULL AND a0 IS NOT NULL THEN CAST(CAST(a0 AS BIGINT) AS VARCHAR) "
                                 f"ELSE {_shown('_d')} END")),
    "to_ipv6_or_default": _text(_six(f"CASE WHEN _d IS NULL THEN '::' ELSE {_shown('_d')} END")),
    "to_ipv6_or_null": _text(_six(f"CASE WHEN _d IS NOT NULL THEN {_shown('_d')} END")),
    "is_ipv4_string": [signature("text", "bool", _IS_FOUR)],
    "is_ipv6_string": [signature("text", "bool", f"({address_sql('a0')}) IS NOT NULL AND NOT {_IS_FOUR}")],
    "base64_decode": _text("decode(from_base64(a0))"),
    "try_base64_decode": _text("coalesce(TRY(decode(from_base64(a0))), '')"),
    "base64_encode": [signature("text", "text", "to_base64(encode(a0))"), signature("bytea", "text", "to_base64(a0)")],
    "hex": [signature("text", "text", "hex(encode(a0))"), signature("bytea", "text", "hex(a0)"),
            signature("bigint", "text", "CASE WHEN a0 = 0 THEN '00' WHEN length(hex(a0)) % 2 = 1 THEN '0' || hex(a0) "
                                        "ELSE hex(a0) END")],
    "unhex": [signature("text", "bytea", "from_hex(CASE WHEN length(a0) % 2 = 1 THEN '0' || a0 ELSE a0 END)")],
    "bin": [signature("bigint", "text", "lpad(bin(a0), CAST((length(bin(a0)) + 7) // 8 * 8 AS INTEGER), '0')"),
            signature("text", "text", "array_to_string(list_transform(regexp_extract_all(hex(encode(a0)), '..'), "
                                      "lambda _b: lpad(bin(CAST('0x' || _b AS INTEGER)), 8, '0')), '')")],
    **{name: [signature("text", "bytea", f"from_hex({name}(a0))"), signature("bytea", "bytea", f"from_hex({name}(a0))")]
       for name in ("md5", "sha1", "sha256")},
    "format_readable_size": [signature("double", "text", _readable(_SIZES, 1024, " "))],
    "format_readable_quantity": [signature("double", "text", _readable(_QUANTITIES, 1000, ""))],
    "format_readable_decimal_size": [signature("double", "text", _readable(_DECIMAL_SIZES, 1000, " "))],
    "parse_readable_size": [signature("text", "bigint", _sized(_FAILS))],
    "parse_readable_size_or_null": [signature("text", "bigint", _sized("NULL"))],
    "parse_readable_size_or_zero": [signature("text", "bigint", _sized("0"))],
    "geohash_encode": [signature("double double", "text", _geohash("12")),
                       signature("double double int", "text",
                                 _geohash("CASE WHEN a2 BETWEEN 1 AND 12 THEN a2 ELSE 12 END"))],
    "mac_num_to_string": [signature("bigint", "text", "regexp_replace(lpad(hex(a0), 12, '0'), "
                                    "'(..)(..)(..)(..)(..)(..)', '\\1:\\2:\\3:\\4:\\5:\\6')")],
    "mac_string_to_num": [signature(
        "text", "bigint", "coalesce(CASE WHEN regexp_full_match(a0, '[0-9A-Fa-f]{2}(:[0-9A-Fa-f]{2}){5}') "
        "THEN CAST('0x' || replace(a0, ':', '') AS BIGINT) END, 0)")],
    "uuid_string_to_num": [
        signature("text", "bytea", "from_hex(replace(CAST(CAST(a0 AS UUID) AS VARCHAR), '-', ''))")],
    "uuid_num_to_string": [signature("bytea", "text", "CAST(CAST(lower(hex(a0)) AS UUID) AS VARCHAR)")],
    "ipv6_string_to_num_or_null": [signature("text", "bytea", _six("CASE WHEN _d IS NOT NULL THEN from_hex(_d) END"))],
    "ipv6_string_to_num_or_default": [
        signature("text", "bytea", _six(f"from_hex(CASE WHEN _d IS NULL THEN '{'0' * 32}' ELSE _d END)"))],
    "to_string_cut_to_zero": [signature("bytea", "text", "decode(from_hex(regexp_replace(hex(a0), "
                                        "'^((?:..)*?)00.*$', '\\1')))"), signature("text", "text", "a0")],
    "append_trailing_char_if_absent": [signature(
        "text text", "text", "CASE WHEN a0 = '' OR ends_with(a0, a1) THEN a0 ELSE a0 || a1 END")],
})  # fmt: skip

_PAIR: Final = SqlType("struct", fields=(("1", VARCHAR), ("2", VARCHAR)))


def _range_of(template: str) -> Builder:
    """The first and the last address of a network, as a tuple. template: their array, over the address and its bits."""

    def build(c: FunctionCall) -> Value:
        parts = [c.cast(0, VARCHAR).expression, duckdb_cast(c.arguments[1].expression, SqlType("bigint"))]
        pair = 'list_transform([a0], lambda _l: struct_pack("1" := _l[1], "2" := _l[2]))[1]'
        return Value(duckdb_cast(fill(pair, fill(template, *parts)), _PAIR), _PAIR)

    return counted(build, 2)


_NETWORK: Final = f"struct_pack(n := {_four(_NUMBER, _FAILS)}, s := CAST(pow(2, 32 - a1) AS BIGINT))"
_LOW: Final = "(_p.n - _p.n % _p.s)"
_HIGH: Final = "(_p.n - _p.n % _p.s + _p.s - 1)"
_RANGE_4: Final = f"list_transform([{_NETWORK}], lambda _p: [{_dotted(_LOW)}, {_dotted(_HIGH)}])[1]"


def _filled(digit: str) -> str:
    """The digits of an address, whose bits after the first a1 are those of `digit`."""
    mask = {"0": "CAST(floor(_v / _m) * _m AS INTEGER)", "f": "CAST(floor(_v / _m) * _m + _m - 1 AS INTEGER)"}[digit]
    mixed = (
        (
            "list_transform([struct_pack(v := CAST('0x' || coalesce(nullif(_d[a1 // 4 + 1], ''), '0') AS INTEGER), "
            f"m := CAST(pow(2, 4 - a1 % 4) AS INTEGER))], lambda _q: format('{{:x}}', {mask}))[1]"
        )
        .replace("_v", "_q.v")
        .replace("_m", "_q.m")
    )
    return f"rpad(left(_d, a1 // 4) || CASE WHEN a1 % 4 > 0 THEN {mixed} ELSE '' END, 32, '{digit}')"


_ENDS: Final = ", ".join(f"list_transform([{_filled(d)}], lambda _e: {_shown('_e')})[1]" for d in "0f")
_RANGE_6: Final = _six(f"[{_ENDS}]")


def _in_range(c: FunctionCall) -> Value:
    """Whether an address is in a network in CIDR notation."""
    address, network = (c.cast(i, VARCHAR).expression for i in (0, 1))
    prefix = fill("split_part(a0, '/', 1)", network)
    bits = fill("CAST(split_part(a0, '/', 2) AS BIGINT)", network)
    length = fill("a1 + CASE WHEN contains(a0, ':') THEN 0 ELSE 96 END", prefix, bits)
    digits = [fill(_filled("0").replace("_d", "a0"), fill(address_sql("a0"), a), length) for a in (address, prefix)]
    return Value(fill("a0 = a1", *digits), BOOLEAN)


def _of_address(sql: str) -> Builder:
    """A text computed from the digits `_d` of the IP address in the argument; NULL for other texts."""
    template = f"list_transform([{address_sql('a0')}], lambda _d: {sql})[1]"

    def build(c: FunctionCall) -> Value:
        address = c.arguments[0].finish()
        if address.type != VARCHAR:
            message = f"an address of IP is a string, not {address.type.sql}"
            raise c.ctx.error("DATATYPE_MISMATCH", message, c.nodes[0])
        return Value(fill(template, address.expression), VARCHAR)

    return build


def _format(c: FunctionCall) -> Value:
    """`format('{} {}', a, b)` with a constant pattern."""
    pattern = c.text(0, example="{}", what="a pattern")
    texts = [c.cast(i, VARCHAR).expression for i in range(1, len(c.arguments))]
    return Value(call("format", string(pattern), *texts), VARCHAR)


#: The sides of a polygon that a horizontal line to the right of a point crosses.
_CROSSED: Final = (
    "len(list_filter(range(1, len(a2) + 1), lambda _i: (a2[_i].y > a1) <> (a2[_i % len(a2) + 1].y > a1) AND "
    "a0 < (a2[_i % len(a2) + 1].x - a2[_i].x) * (a1 - a2[_i].y) / (a2[_i % len(a2) + 1].y - a2[_i].y) + a2[_i].x))"
    " % 2 = 1"
)


def _in_polygon(c: FunctionCall) -> Value:
    """Whether a point is in a polygon, an array of points."""
    point, polygon = c.arguments
    element = polygon.type.element
    if len(point.type.fields) != 2 or element is None or len(element.fields) != 2:
        raise c.mismatch("It takes a point (x, y) and an array of points.")
    x, y = (
        duckdb_cast(fill(f"struct_extract(a0, '{name}')", point.finish().expression), DOUBLE)
        for name, _ in point.type.fields
    )
    corners = "list_transform(a0, lambda _p: struct_pack(x := CAST({} AS DOUBLE), y := CAST({} AS DOUBLE)))".format(
        *(f"struct_extract(_p, '{name}')" for name, _ in element.fields)
    )
    return Value(fill(_CROSSED, x, y, fill(corners, polygon.finish().expression)), BOOLEAN)


def _fixed(c: FunctionCall) -> Value:
    """A text or bytes of a fixed length, unchanged."""
    value = c.arguments[0]
    return value if value.type == BYTEA and not value.unknown else c.cast(0, VARCHAR)


_UINT64: Final = SqlType("numeric", 20, 0)

#: The hashes of any number of texts by their result.
_HASHES: Final = {
    **dict.fromkeys(("half_md5", "murmur_hash2_64", "murmur_hash3_64", "sip_hash64", "xx_hash64", "xxh3"), _UINT64),
    **dict.fromkeys(("murmur_hash2_32", "murmur_hash3_32", "xx_hash32"), BIGINT),
    **dict.fromkeys(("murmur_hash3_128", "sip_hash128"), BYTEA),
}


def _parts(value: Value) -> list[Value]:
    """A value, or the elements of a tuple."""
    return [p for part in value.parts for p in _parts(part)] if value.parts else [value]


def _of_texts(kind: SqlType, count: int | None = 1) -> Builder:
    """A native function of texts or bytes. count: the number of arguments; None for any."""

    def build(c: FunctionCall) -> Value:
        values = [v if v.type == BYTEA else _as_text(v, c) for a in c.arguments for v in _parts(a)]
        return native(c.name, values, kind)

    return at_least(build, 1) if count is None else counted(build, count)


def _as_text(value: Value, c: FunctionCall) -> Value:
    if value.unknown:
        return cast(value, VARCHAR, c.ctx, c.node)
    if value.type != VARCHAR:
        hint = f"ClickHouse hashes the bytes of its own type: write {c.name}(to_string(x))."
        raise c.not_supported(f"{c.name} of {value.type.sql}", hint=hint)
    return value


_NUMBERS: Final = (BOOLEAN, SMALLINT, INTEGER, BIGINT, _UINT64)


def _city_hash(c: FunctionCall) -> Value:
    values = [
        v if not v.unknown and v.type in (BYTEA, REAL, DOUBLE, *_NUMBERS) else _as_text(v, c)
        for a in c.arguments
        for v in _parts(a)
    ]
    return native(c.name, values, _UINT64)


def _int_hash(c: FunctionCall) -> Value:
    if c.arguments[0].type not in _NUMBERS[1:]:
        raise c.mismatch("It takes an integer.")
    return native(c.name, c.arguments, BIGINT if c.name == "int_hash32" else _UINT64)


def _decoded(c: FunctionCall) -> Value:
    return Value(call("decode", _of_texts(BYTEA)(c).expression), VARCHAR)


#: Digests that DuckDB lacks, under their own names in all dialects.
DIGESTS: Final[Mapping[str, Builder]] = {f"sha{bits}": _of_texts(BYTEA) for bits in (224, 384, 512)}

_NATIVE: Final[Mapping[str, Builder]] = {
    **DIGESTS,
    **{name: _of_texts(kind, None) for name, kind in _HASHES.items()},
    "base58_decode": _decoded, "base58_encode": _of_texts(VARCHAR), "city_hash64": at_least(_city_hash, 1),
    "hive_hash": _of_texts(INTEGER), "java_hash": _of_texts(INTEGER), "md4": _of_texts(BYTEA),
    **dict.fromkeys(("int_hash32", "int_hash64"), counted(_int_hash, 1)),
}  # fmt: skip

#: Names are those of the reference; grammars insert them with the prefix `$`.
WEB_FUNCTIONS: Final[Mapping[str, Builder]] = {
    **_BY_SIGNATURE, **_NATIVE,
    "address_network": _of_address(network_sql("_d")), "address_rest": _of_address(rest_sql("_d")),
    "format": at_least(_format, 1), "ipv4_cidr_to_range": _range_of(_RANGE_4),
    "ipv6_cidr_to_range": _range_of(_RANGE_6), "is_ip_address_in_range": counted(_in_range, 2),
    "format_readable_time_delta": counted(_readable_time, 1, 2), "geohash_decode": counted(_geohash_decode, 1),
    "point_in_polygon": counted(_in_polygon, 2), "to_fixed_string": counted(_fixed, 2),
}  # fmt: skip

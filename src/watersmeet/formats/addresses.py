"""Addresses of IP as texts: SQL of DuckDB that reads them.

All addresses are of one space, that of IPv6, in which those of IPv4 are `::ffff:0:0/96`. Source: RFC 4291, section 2.2,
for the texts; zones (`fe80::1%eth0`) are none.
"""

from __future__ import annotations

from typing import Final

DIGITS: Final = 32
"""Of an address in hexadecimal."""
IPV4: Final = "0" * 20 + "ffff"
"""What those of IPv4 begin with."""
_BYTE: Final = "(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
_FOUR: Final = f"{_BYTE}(\\.{_BYTE}){{3}}"
_GROUP: Final = "[0-9a-f]{1,4}"
_GROUPS: Final = f"(({_GROUP}:)*{_GROUP})?"


def address_sql(text: str) -> str:
    """The 32 lower-case hexadecimal digits of an address; NULL for what is none. text: an expression."""
    tail = "regexp_extract(_t, '[0-9.]*$')"
    parts = ", ".join(f"TRY_CAST(split_part({tail}, '.', {i}) AS INTEGER)" for i in range(1, 5))
    # What ends as an address of IPv4 does is written as two groups.
    groups = (
        f"CASE WHEN regexp_matches(_t, ':{_FOUR}$') THEN left(_t, length(_t) - length({tail})) || "
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
    return f"CASE WHEN regexp_full_match({text}, '{_FOUR}') THEN {four} ELSE {six} END"


def _padded(groups: str) -> str:
    """Groups with all their digits, and without colons."""
    return (
        f"CASE WHEN {groups} = '' THEN '' ELSE "
        f"array_to_string(list_transform(string_split({groups}, ':'), lambda _g: lpad(_g, 4, '0')), '') END"
    )


def network_sql(digits: str) -> str:
    """The key under which ranges of addresses are kept: the first 16 bits, of IPv4 those of the address itself."""
    return f"CASE WHEN starts_with({digits}, '{IPV4}') THEN '4' || {digits}[25:28] ELSE '6' || {digits}[1:4] END"


def rest_sql(digits: str) -> str:
    """What is behind that."""
    return f"CASE WHEN starts_with({digits}, '{IPV4}') THEN {digits}[29:32] ELSE {digits}[5:32] END"

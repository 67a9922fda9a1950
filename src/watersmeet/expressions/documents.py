"""Binds ClickHouse's functions that extract from texts: JSON documents, regular expressions, pairs of keys and values.

A path of JSON is a list of constant keys and of indexes from 1. A missing part, a part of another type and an invalid
document are 0, false or ''. Patterns are those of RE2, in which `.` also matches the end of a line.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from sqlglot import exp

from watersmeet.errors import did_you_mean
from watersmeet.expressions.arrayfunctions import array_of, default_of
from watersmeet.expressions.calls import (
    Builder,
    FunctionCall,
    Signature,
    at_least,
    builders,
    constant_of,
    counted,
    in_python,
    limited,
    signature,
)
from watersmeet.expressions.casts import cast, coerce, unify
from watersmeet.expressions.context import Value, call, duckdb_cast, fill, number, string
from watersmeet.expressions.jsonfunctions import made_of
from watersmeet.expressions.nestedfunctions import ENTRY_FUNCTIONS, MAP_FUNCTIONS, map_literal, map_of_arrays
from watersmeet.expressions.regexpatterns import checked, groups
from watersmeet.expressions.sqljsonpaths import matches
from watersmeet.values.types import BIGINT, BOOLEAN, DOUBLE, JSONB, VARCHAR, SqlType, map_of

_TEXTS: Final = SqlType("array", element=VARCHAR)
#: Maps of texts, which functions of texts return.
_STRINGS: Final = map_of(VARCHAR, VARCHAR)
_LISTS: Final = SqlType("array", element=_TEXTS)


def _path(c: FunctionCall) -> exp.Expression:
    """The path in the arguments after the document, in DuckDB's form."""
    path = "$"
    for value, node in zip(c.arguments[1:], c.nodes[1:], strict=True):
        if value.type.is_integer and not value.unknown:
            place = constant_of(value, BIGINT, node, c.ctx, example=1)
            if not place:
                raise c.not_supported(f"{c.name} with an index that is not a constant from 1, or below 0")
            path += f"[{place - 1}]" if place > 0 else f"[#{place}]"
        else:
            key = c.over([value], [node]).text(0, example="a", what="a key")
            path += '."' + key.replace('"', '\\"') + '"'
    return string(path)


def _document(c: FunctionCall) -> exp.Expression:
    """The document as JSON; NULL for a text that is not JSON."""
    return fill("CASE WHEN json_valid(a0) THEN a0 END", c.cast(0, VARCHAR).expression)


def _extract(template: str, kind: SqlType) -> Builder:
    """A template over the document a0 and the path a1."""

    def build(c: FunctionCall) -> Value:
        return Value(duckdb_cast(fill(template, _document(c), _path(c)), kind), kind)

    return at_least(build, 1)


_NUMBER: Final = "TRY_CAST(json_extract_string(a0, a1) AS DOUBLE)"
_WHOLE_TEXT: Final = "regexp_full_match(json_extract_string(a0, a1), '[+-]?[0-9]+')"
_INTEGER: Final = (
    f"CASE WHEN {_WHOLE_TEXT} THEN coalesce(TRY_CAST(json_extract_string(a0, a1) AS BIGINT), 0) "
    f"WHEN json_type(a0, a1) = 'DOUBLE' THEN TRY_CAST(trunc({_NUMBER}) AS BIGINT) ELSE 0 END"
)
_TRUE: Final = "coalesce(TRY_CAST(json_extract_string(a0, a1) AS BOOLEAN), false)"
_RAW: Final = "coalesce(CAST(json_extract(a0, a1) AS VARCHAR), '')"
#: The elements of an array as JSON; whole numbers lose their decimals.
_ELEMENTS: Final = (
    "coalesce(list_transform(CAST(json_extract(json_extract(a0, a1), '$[*]') AS VARCHAR[]), "
    "lambda _e: regexp_replace(_e, '^(-?[0-9]+)[.]0+$', '\\1')), CAST([] AS VARCHAR[]))"
)
_LENGTH: Final = (
    "CASE json_type(a0, a1) WHEN 'ARRAY' THEN json_array_length(a0, a1) "
    "WHEN 'OBJECT' THEN len(json_keys(a0, a1)) ELSE 0 END"
)


def _elements(c: FunctionCall) -> Value:
    """The elements of the array at a path in DuckDB's form."""
    return Value(duckdb_cast(fill(_ELEMENTS, _document(c), c.arguments[1].expression), _TEXTS), _TEXTS)


def _value(c: FunctionCall) -> Value:
    """json_value(document, '$.a.b'): the text of a value that is no object and no array; '' without one."""
    found = fill("list_extract(a0, 1)", matches(c.cast(0, VARCHAR).expression, _constant_path(c), c))
    kept = "CASE WHEN json_type(a0) NOT IN ('OBJECT', 'ARRAY') THEN json_extract_string(a0, '$') END"
    return Value(fill(f"coalesce({kept}, '')", found), VARCHAR)


def _query(c: FunctionCall) -> Value:
    """json_query(document, '$.a[*].b'): all parts at a path as the text of a JSON array; '' without one."""
    found = matches(c.cast(0, VARCHAR).expression, _constant_path(c), c)
    template = "CASE WHEN coalesce(len(a0), 0) = 0 THEN '' ELSE '[' || array_to_string(a0, ', ') || ']' END"
    return Value(fill(template, found), VARCHAR)


def _constant_path(c: FunctionCall) -> str:
    return c.text(1, example="$", what="a path")


def _merged(c: FunctionCall) -> Value:
    documents = [c.cast(i, VARCHAR).expression for i in range(len(c.arguments))]
    return Value(duckdb_cast(call("json_merge_patch", *documents), VARCHAR), VARCHAR)


def _encoded(kind: SqlType) -> Builder:
    """An object with names, which are constants, and values in turn."""

    def build(c: FunctionCall) -> Value:
        parts = []
        for i, (value, node) in enumerate(zip(c.arguments, c.nodes, strict=True)):
            known = cast(value, VARCHAR, c.ctx, node) if value.unknown else value
            parts.append(made_of(known, ordered=False).expression if i % 2 else known.expression)
        return Value(duckdb_cast(call("json_object", *parts), kind), kind, nullable=False)

    return at_least(build, 2)


def _regex(c: FunctionCall, index: int = 1) -> exp.Expression:
    """The pattern in an argument. INVALID_VALUE for a constant that RE2 rejects."""
    pattern = c.cast(index, VARCHAR).expression
    return checked(pattern.name, c.node, c.ctx) if pattern.is_string else pattern


def _group(c: FunctionCall) -> exp.Expression:
    """1 for a pattern with a group, else 0, which is the whole match."""
    return number(1 if groups(c.text(1, example="", what="a pattern")) else 0)


def _match(c: FunctionCall) -> Value:
    return Value(call("regexp_matches", c.cast(0, VARCHAR).expression, _regex(c), string("s")), BOOLEAN)


def _extract_one(c: FunctionCall) -> Value:
    text = c.cast(0, VARCHAR).expression
    return Value(call("regexp_extract", text, _regex(c), _group(c), string("s")), VARCHAR)


def _extract_all(c: FunctionCall) -> Value:
    text = c.cast(0, VARCHAR).expression
    return Value(call("regexp_extract_all", text, _regex(c), _group(c), string("s")), _TEXTS)


def _by_group(c: FunctionCall) -> list[exp.Expression]:
    """For each group of the pattern the texts of all matches."""
    count = groups(c.text(1, example="", what="a pattern"))
    if not count:
        raise c.error("INVALID_VALUE", f"the pattern of {c.name} has no group")
    text, regex = c.cast(0, VARCHAR).expression, _regex(c)
    return [call("regexp_extract_all", text, regex, number(i + 1), string("s")) for i in range(count)]


def _horizontal(c: FunctionCall) -> Value:
    return Value(exp.Array(expressions=_by_group(c)), _LISTS)


def _vertical(c: FunctionCall) -> Value:
    found = _by_group(c)
    places = ", ".join(f"list_extract(a{i}, _i)" for i in range(len(found)))
    return Value(fill(f"list_transform(range(1, len(a0) + 1), lambda _i: [{places}])", *found), _LISTS)


def _replace(options: str) -> Builder:
    def build(c: FunctionCall) -> Value:
        parts = (c.cast(0, VARCHAR).expression, _regex(c), c.cast(2, VARCHAR).expression)
        return Value(call("regexp_replace", *parts, string(options)), VARCHAR)

    return counted(build, 3)


def _any_pattern(c: FunctionCall) -> Value:
    """Whether a text matches one of the patterns of an array."""
    text, patterns = c.cast(0, VARCHAR).expression, c.cast(1, _TEXTS).expression
    return Value(fill("len(list_filter(a1, lambda _p: regexp_matches(a0, _p, 's'))) > 0", text, patterns), BOOLEAN)


def _many(template: str, kind: SqlType) -> Builder:
    """A template over a text and an array of texts."""

    def build(c: FunctionCall) -> Value:
        parts = (c.cast(0, VARCHAR).expression, c.cast(1, _TEXTS).finish().expression)
        return Value(duckdb_cast(fill(template, *parts), kind), kind)

    return counted(build, 2)


#: The patterns of Grok by name, for RE2.
_GROK: Final[Mapping[str, str]] = {
    "BASE10NUM": r"[+-]?(?:[0-9]+(?:\.[0-9]+)?|\.[0-9]+)", "BASE16NUM": r"[+-]?(?:0x)?[0-9A-Fa-f]+",
    "DATA": ".*?", "DATE": "%{DATE_US}|%{DATE_EU}", "DATE_EU": "%{MONTHDAY}[./-]%{MONTHNUM}[./-]%{YEAR}",
    "DATE_US": "%{MONTHNUM}[/-]%{MONTHDAY}[/-]%{YEAR}", "DATESTAMP": "%{DATE}[- ]%{TIME}",
    "DAY": "(?:Mon(?:day)?|Tue(?:sday)?|Wed(?:nesday)?|Thu(?:rsday)?|Fri(?:day)?|Sat(?:urday)?|Sun(?:day)?)",
    "EMAILADDRESS": r"[a-zA-Z0-9!#$%&'*+/=?^_`{|}~.-]+@%{HOSTNAME}", "GREEDYDATA": ".*",
    "HOSTNAME": r"\b[0-9A-Za-z][0-9A-Za-z-]{0,62}(?:\.[0-9A-Za-z][0-9A-Za-z-]{0,62})*\.?",
    "HOSTPORT": "%{IPORHOST}:%{POSINT}", "HOUR": "(?:2[0123]|[01]?[0-9])",
    "HTTPDATE": "%{MONTHDAY}/%{MONTH}/%{YEAR}:%{TIME} %{INT}", "INT": "[+-]?[0-9]+", "IP": "(?:%{IPV6}|%{IPV4})",
    "IPORHOST": "(?:%{IP}|%{HOSTNAME})",
    "IPV4": r"(?:(?:25[0-5]|2[0-4][0-9]|1?[0-9]{1,2})\.){3}(?:25[0-5]|2[0-4][0-9]|1?[0-9]{1,2})",
    "IPV6": "(?:[0-9A-Fa-f]{0,4}:){2,7}(?:%{IPV4}|[0-9A-Fa-f]{0,4})",
    "ISO8601_TIMEZONE": "(?:Z|[+-]%{HOUR}(?::?%{MINUTE}))",
    "LOGLEVEL": "(?i:trace|debug|notice|info(?:rmation)?|warn(?:ing)?|err(?:or)?|crit(?:ical)?|fatal|severe|"
    "alert|emerg(?:ency)?)",
    "MAC": "(?:[A-Fa-f0-9]{2}[:-]){5}[A-Fa-f0-9]{2}", "MINUTE": "[0-5][0-9]",
    "MONTH": r"\b(?:[Jj]an(?:uary)?|[Ff]eb(?:ruary)?|[Mm]ar(?:ch)?|[Aa]pr(?:il)?|[Mm]ay|[Jj]une?|[Jj]uly?|"
    r"[Aa]ug(?:ust)?|[Ss]ep(?:tember)?|[Oo]ct(?:ober)?|[Nn]ov(?:ember)?|[Dd]ec(?:ember)?)\b",
    "MONTHDAY": "(?:0[1-9]|[12][0-9]|3[01]|[1-9])", "MONTHNUM": "(?:0?[1-9]|1[0-2])", "NONNEGINT": r"\b[0-9]+\b",
    "NOTSPACE": r"\S+", "NUMBER": "%{BASE10NUM}", "PATH": r"(?:/[^\s?*]*)+", "POSINT": r"\b[1-9][0-9]*\b",
    "PROG": r"[\x21-\x5a\x5c\x5e-\x7e]+", "QUOTEDSTRING": r'(?:"(?:\\.|[^\\"])*"|\'(?:\\.|[^\\\'])*\')',
    "QS": "%{QUOTEDSTRING}", "SECOND": "(?:[0-5]?[0-9]|60)(?:[:.,][0-9]+)?", "SPACE": r"\s*",
    "SYSLOGHOST": "%{IPORHOST}", "SYSLOGTIMESTAMP": "%{MONTH} +%{MONTHDAY} %{TIME}",
    "TIME": "%{HOUR}:%{MINUTE}(?::%{SECOND})", "TIMESTAMP_ISO8601":
    "%{YEAR}-%{MONTHNUM}-%{MONTHDAY}[T ]%{HOUR}:?%{MINUTE}(?::?%{SECOND})?%{ISO8601_TIMEZONE}?",
    "URI": r"[A-Za-z][A-Za-z0-9+.-]*://(?:%{USER}(?::[^@]*)?@)?(?:%{URIHOST})?(?:%{URIPATHPARAM})?",
    "URIHOST": "%{IPORHOST}(?::%{POSINT})?", "URIPARAM": r"\?[^\s]*", "URIPATH": r"(?:/[^\s?]*)+",
    "URIPATHPARAM": "%{URIPATH}(?:%{URIPARAM})?", "URIPROTO": "[A-Za-z][A-Za-z0-9+.-]*", "USER": "%{USERNAME}",
    "USERNAME": "[a-zA-Z0-9._-]+", "UUID": "[A-Fa-f0-9]{8}-(?:[A-Fa-f0-9]{4}-){3}[A-Fa-f0-9]{12}",
    "WORD": r"\b\w+\b", "YEAR": "[0-9]{2}(?:[0-9]{2})?",
    "COMMONAPACHELOG": r'%{IPORHOST:clientip} %{USER:ident} %{USER:auth} \[%{HTTPDATE:timestamp}\] '
    r'"(?:%{WORD:verb} %{NOTSPACE:request}(?: HTTP/%{NUMBER:httpversion})?|%{DATA:rawrequest})" '
    r"%{NUMBER:response} (?:%{NUMBER:bytes}|-)",
    "COMBINEDAPACHELOG": "%{COMMONAPACHELOG} %{QS:referrer} %{QS:agent}",
}  # fmt: skip

#: A reference to a pattern, with the name of its part.
_REFERENCE: Final = re.compile(r"%\{(\w+)(?::(\w+))?(?::\w+)?\}")


def _expanded(pattern: str, c: FunctionCall) -> str:
    """The regular expression of a pattern of Grok. UNDEFINED_OBJECT for an unknown name."""

    def written(found: re.Match[str]) -> str:
        if found[1] not in _GROK:
            hint = did_you_mean(found[1], _GROK)
            raise c.error("UNDEFINED_OBJECT", f'the pattern "{found[1]}" of Grok does not exist', hint=hint)
        inner = _expanded(_GROK[found[1]], c)
        return f"(?P<{found[2]}>{inner})" if found[2] else f"(?:{inner})"

    return _REFERENCE.sub(written, pattern)


_PLACE: Final = re.compile(r"\(\?P<(\w+)>|\((?!\?)")


def _grok(c: FunctionCall) -> Value:
    """The named parts of a text that matches a pattern of Grok; an empty map for other texts."""
    regex = _expanded(c.text(1, example="%{DATA:x}", what="a pattern"), c)
    places = [m[1] for m in _PLACE.finditer(re.sub(r"\\.", "__", regex))]
    names = [(i + 1, name) for i, name in enumerate(places) if name]
    if not names:
        raise c.error("INVALID_VALUE", "the pattern of grok names no part", hint="Name one: %{DATA:name}.")
    text, pattern = c.cast(0, VARCHAR).expression, checked(regex, c.node, c.ctx)
    parts = [
        fill("struct_pack(key := a0, value := a1)", string(name), call("regexp_extract", text, pattern, number(i)))
        for i, name in names
    ]
    whole = fill("CASE WHEN regexp_matches(a0, a1) THEN a2 ELSE [] END", text, pattern, exp.Array(expressions=parts))
    return Value(duckdb_cast(whole, _STRINGS), _STRINGS)


def _pairs(c: FunctionCall) -> Value:
    """The pairs `key:value` of a text; between pairs are spaces, `,` or `;`. Values may be in double quotes."""
    defaults = (":", " ,;", '"')
    found = [c.text(i, example=d, what="a delimiter") for i, d in enumerate(defaults, 1) if i < len(c.arguments)]
    between, around, quote = (*found, *defaults[len(found) :])
    inside = "[^" + "".join(map(re.escape, between + around + quote)) + "]+"
    mark, colon = re.escape(quote), re.escape(between)
    pattern = f"({inside}){colon}(?:{mark}([^{mark}]*){mark}|({inside}))"
    text, regex = c.cast(0, VARCHAR).expression, checked(pattern, c.node, c.ctx)
    keys, quoted, plain = (call("regexp_extract_all", text, regex, number(i)) for i in (1, 2, 3))
    texts = fill("list_transform(list_zip(a0, a1), lambda _p: concat(_p[1], _p[2]))", quoted, plain)
    first = "list_transform(a0, lambda _k, _i: CASE WHEN list_position(a0, _k) = _i THEN _i END)"
    once = fill(f"list_filter({first}, lambda _i: _i IS NOT NULL)", keys)
    entries = "list_transform(a2, lambda _i: struct_pack(key := a0[_i], value := a1[_i]))"
    return Value(duckdb_cast(fill(entries, keys, texts, once), _STRINGS), _STRINGS)


def _map(c: FunctionCall) -> Value:
    """A map of keys and values in turn, or of an array of each."""
    if len(c.arguments) == 2 and all(a.type.name == "array" for a in c.arguments):
        return map_of_arrays(c)
    if len(c.arguments) % 2:
        raise c.mismatch("It takes keys and values in turn.")
    pairs = list(zip(c.nodes[::2], c.nodes[1::2], strict=True))
    known = {id(n): a for n, a in zip(c.nodes, c.arguments, strict=True)}
    return map_literal(pairs, c.node, c.ctx, lambda node, _: known[id(node)], plain=True)


def _of_map(name: str) -> Builder:
    """A function of a map, or of a JSON object."""

    def build(c: FunctionCall) -> Value:
        is_json = c.arguments and c.arguments[0].type == JSONB and not c.arguments[0].unknown
        return (_OF_JSON if is_json else MAP_FUNCTIONS)[name](c)

    return build


_OF_JSON: Final[dict[str, Builder]] = builders(
    {
        "map_contains": [signature("jsonb text", "bool", "list_contains(json_keys(a0), a1)")],
        "map_keys": [signature("jsonb", "text[]", "json_keys(a0)")],
        "map_values": [signature("jsonb", "text[]", "json_extract_string(a0, '$.*')")],
    }
)

_BY_SIGNATURE: Final[dict[str, Builder]] = builders({
    "is_valid_json": [signature("text", "bool", "json_valid(a0)")],
    "count_substrings": [signature("text text", "bigint", "(length(a0) - length(replace(a0, a1, ''))) // length(a1)")],
    "position_case_insensitive": [signature("text text", "bigint", "strpos(lower(a0), lower(a1))")],
    "replace_one": [signature("text text text", "text", "CASE WHEN a1 = '' OR strpos(a0, a1) = 0 THEN a0 ELSE "
                              "left(a0, strpos(a0, a1) - 1) || a2 || substring(a0, strpos(a0, a1) + length(a1)) END")],
    "split_by_string": [signature("text text", "text[]", "string_split(a1, a0)")],
    "split_by_regexp": [signature("text text", "text[]", "string_split_regex(a1, a0)")],
    "split_by_whitespace": [signature("text", "text[]", "regexp_extract_all(a0, '[^\\s]+')")],
    "alpha_tokens": [signature("text", "text[]", "regexp_extract_all(a0, '[A-Za-z]+')")],
})  # fmt: skip

_VALUE: Final = "coalesce(TRY_CAST(json_extract(a0, a1) AS {kind}), a2)"
_PAIRS: Final = (
    'coalesce(list_transform(json_keys(a0, a1), lambda _k: struct_pack("1" := _k, "2" := '
    "TRY_CAST(json_extract(json_extract(a0, a1), '$.\"' || _k || '\"') AS {kind}))), a2)"
)


def _extracted_map(c: FunctionCall, kind: SqlType) -> Value:
    """The keys and values of a JSON object as a map; an empty one for other parts. Other values are NULL."""
    key, value = kind.entry
    if key != VARCHAR:
        raise c.not_supported(f"{c.name} of a map with keys of type {key.sql}", hint="Its keys are strings.")
    inner = c.over(c.arguments[:-1], c.nodes[:-1])
    one = "json_extract_string(a0, concat(a1, '.\"', _k, '\"'))" if value == VARCHAR else (
        f"TRY_CAST(json_extract(a0, concat(a1, '.\"', _k, '\"')) AS {value.duckdb})")  # fmt: skip
    entries = f"list_transform(json_keys(a0, a1), lambda _k: struct_pack(key := _k, value := {one}))"
    found = fill(f"coalesce({entries}, [])", _document(inner), _path(inner))
    return Value(duckdb_cast(found, kind), kind, nullable=False)


def _typed(template: str, kind_of: str) -> Builder:
    """A value of the document of the type of the last argument, or the default of that type."""

    def build(c: FunctionCall) -> Value:
        kind = c.arguments[-1].type
        if kind.name == "map" and kind_of == "value":
            return _extracted_map(c, kind)
        inner = c.over(c.arguments[:-1], c.nodes[:-1])
        entry = SqlType("struct", fields=(("1", VARCHAR), ("2", kind)))
        found = array_of(entry) if kind_of == "pairs" else kind
        filled = fill(template.replace("{kind}", kind.duckdb), _document(inner), _path(inner), default_of(found))
        return Value(duckdb_cast(filled, found), found)

    return at_least(build, 2)


_CONTAINED: Final = "len(list_filter(a1, lambda _n: contains(a0, _n))) > 0"
_MATCHED: Final = "list_transform(a1, lambda _p: regexp_matches(a0, _p, 's'))"
_PLACES: Final = "list_transform(a1, lambda _n: strpos(a0, _n))"

_EXTRACTING: Final[dict[str, Builder]] = {
    "json_extract_array": _extract(_ELEMENTS, _TEXTS), "json_extract_bool": _extract(_TRUE, BOOLEAN),
    "json_extract_float": _extract(f"coalesce({_NUMBER}, 0)", DOUBLE), "json_extract_int": _extract(_INTEGER, BIGINT),
    "json_extract_keys": _extract("coalesce(json_keys(a0, a1), CAST([] AS VARCHAR[]))", _TEXTS),
    "json_extract_raw": _extract(_RAW, VARCHAR), "json_extract_uint": _extract(_INTEGER, BIGINT),
    "json_extract_string": _extract("coalesce(json_extract_string(a0, a1), '')", VARCHAR),
    "json_has": _extract("coalesce(json_exists(a0, a1), false)", BOOLEAN), "json_length": _extract(_LENGTH, BIGINT),
    "json_array_length": _extract("json_array_length(a0, a1)", BIGINT),
}  # fmt: skip


def _of(kind: str, template: str) -> list[Signature]:
    return [signature("text", kind, template)]


def _pair(kind: str, template: str) -> list[Signature]:
    return [signature("text text", kind, template)]


def _padded(name: str) -> list[Signature]:
    length = limited("a1 * 4")
    return [
        signature("text int", "text", f"{name}(a0, {length}, ' ')"),
        signature("text int text", "text", f"{name}(a0, {length}, a2)"),
    ]


_TOKENS: Final = "'[^\\x00-\\x2f\\x3a-\\x40\\x5b-\\x60\\x7b-\\x7f]+'"

_XML: Final = (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ('"', "&quot;"), ("''", "&apos;"))


def _replaced(pairs: tuple[tuple[str, str], ...]) -> str:
    found = "a0"
    for before, after in pairs:
        found = f"replace({found}, '{before}', '{after}')"
    return found


#: The host of a URL, its labels, and how many of them are significant: `b.co.uk` has three, `b.com` two.
_HOST: Final = "regexp_extract(a0, '^(?:[A-Za-z][A-Za-z0-9+.-]*:)?(?://)?(?:[^/?#@]*@)?([^/?#:@]*)', 1)"

_SHORT: Final = "list_contains(['com', 'net', 'org', 'co'], list_extract(_l, -2))"

_SIGNIFICANT: Final = f"CASE WHEN len(_l) > 2 AND {_SHORT} THEN 3 ELSE 2 END"


def _labels(template: str) -> str:
    return f"list_extract(list_transform([string_split({_HOST}, '.')], lambda _l: {template}), 1)"


_CUT_HOST: Final = _labels(
    f"CASE WHEN len(_l) < 2 THEN '' ELSE array_to_string(list_slice(_l, -({_SIGNIFICANT}), -1), '.') END"
)

_FIRST_LABEL: Final = _labels(f"CASE WHEN len(_l) < 2 THEN '' ELSE list_extract(_l, -({_SIGNIFICANT})) END")

_PATH: Final = "regexp_extract(a0, '^(?:[A-Za-z][A-Za-z0-9+.-]*:)?(?://)?[^/?#]*(.*)$', 1)"

_START: Final = "left(a0, length(a0) - length(_p))"


def _hierarchy(start: str, first: str) -> str:
    """The parts of a URL up to each sign that ends one."""
    ends = (
        "list_filter(range(1, length(_p) + 1), lambda _i: substring(_p, _i, 1) IN ('/', '?', '#') OR _i = length(_p))"
    )
    steps = f"list_transform(list_filter({ends}, lambda _i: _i > {first}), lambda _i: {start}left(_p, _i))"
    return f"list_extract(list_transform([{_PATH}], lambda _p: {steps}), 1)"


_FROM_URL: Final = (
    "decode(from_base64(rpad(replace(replace(a0, '-', '+'), '_', '/'), "
    "CAST(ceil(length(a0) / 4) * 4 AS INTEGER), '=')))"
)


def _subsequence(options: str) -> str:
    """Whether the letters of the second text are in the first one, in their order."""
    letters = "array_to_string(list_transform(string_split(a1, ''), lambda _c: regexp_escape(_c)), '.*')"
    return f"regexp_matches(a0, {letters}, {options})"


_OF_TEXTS: Final[dict[str, Builder]] = builders({
    "byte_hamming_distance": _pair("bigint", "hamming(a0, a1)"),
    "edit_distance": _pair("bigint", "levenshtein(a0, a1)"),
    "damerau_levenshtein_distance": _pair("bigint", "damerau_levenshtein(a0, a1)"),
    "string_jaccard_index": _pair("double", "jaccard(a0, a1)"),
    "has_subsequence_case_insensitive": _pair("bool", _subsequence("'is'")),
    "is_valid_ascii": _of("bool", "regexp_full_match(a0, '[[:ascii:]]*')"),
    "normalize_utf8_nfc": _of("text", "nfc_normalize(a0)"),
    "try_base64_url_decode": _of("text", f"coalesce(TRY({_FROM_URL}), '')"),
    "count_matches": _pair("bigint", "len(list_filter(regexp_extract_all(a0, a1, 0, 's'), lambda _m: _m <> ''))"),
    "count_matches_case_insensitive": _pair(
        "bigint", "len(list_filter(regexp_extract_all(a0, a1, 0, 'is'), lambda _m: _m <> ''))"),
    "count_substrings_case_insensitive": _pair(
        "bigint", "(length(a0) - length(replace(lower(a0), lower(a1), ''))) // length(a1)"),
    "cut_to_first_significant_subdomain": _of("text", _CUT_HOST),
    "first_significant_subdomain": _of("text", _FIRST_LABEL),
    "cut_url_parameter": _pair("text", "regexp_replace(regexp_replace(a0, '([?&;])' || regexp_escape(a1) || "
                               "'=[^&#;]*[&;]', '\\1', 'g'), '[?&;]' || regexp_escape(a1) || '=[^&#;]*', '', 'g')"),
    "decode_url_form_component": _of("text", "url_decode(replace(a0, '+', ' '))"),
    "encode_url_form_component": _of("text", "replace(url_encode(a0), '%20', '+')"),
    "decode_xml_component": _of("text", _replaced(tuple((b, a) for a, b in reversed(_XML)))),
    "encode_xml_component": _of("text", _replaced(_XML)),
    "ends_with_utf8": _pair("bool", "ends_with(a0, a1)"), "starts_with_utf8": _pair("bool", "starts_with(a0, a1)"),
    "ends_with_case_insensitive": _pair("bool", "ends_with(lower(a0), lower(a1))"),
    "starts_with_case_insensitive": _pair("bool", "starts_with(lower(a0), lower(a1))"),
    "first_line": _of("text", "regexp_extract(a0, '^[^\\r\\n]*')"),
    "has_subsequence": _pair("bool", _subsequence("'s'")),
    "has_token": _pair("bool", f"list_contains(regexp_extract_all(a0, {_TOKENS}), a1)"),
    "has_token_case_insensitive": _pair("bool", f"list_contains(regexp_extract_all(lower(a0), {_TOKENS}), lower(a1))"),
    "is_valid_utf8": _of("bool", "CASE WHEN a0 IS NOT NULL THEN true END"), "to_valid_utf8": _of("text", "a0"),
    "left_pad": _padded("lpad"), "left_pad_utf8": _padded("lpad"),
    "right_pad": _padded("rpad"), "right_pad_utf8": _padded("rpad"),
    "left_utf8": [signature("text int", "text", "left(a0, a1)")],
    "right_utf8": [signature("text int", "text", "right(a0, a1)")],
    "ngrams": [signature("text int", "text[]", "list_transform(range(1, greatest(length(a0) - a1 + 2, 1)), "
                         "lambda _i: substring(a0, _i, a1))")],
    "regexp_quote_meta": _of("text", "regexp_replace(a0, '([\\\\|()^$.\\[\\]?*+{:-])', '\\\\\\1', 'g')"),
    "space": [signature("int", "text", f"repeat(' ', {limited('a0', 'a0')})")],
    "split_by_non_alpha": _of("text[]", "regexp_extract_all(a0, '[^\\s[:punct:]]+')"),
    "substring_index": [signature("text text int", "text", "CASE WHEN a2 >= 0 THEN array_to_string(list_slice("
                                  "string_split(a0, a1), 1, a2), a1) ELSE array_to_string(list_slice("
                                  "string_split(a0, a1), a2, -1), a1) END")],
    "tokens": _of("text[]", f"regexp_extract_all(a0, {_TOKENS})"),
    "url_hierarchy": _of("text[]", _hierarchy(f"{_START} || ", "0")),
    "url_path_hierarchy": _of("text[]", _hierarchy("", "1")),
    "base64_url_encode": _of("text", "rtrim(replace(replace(to_base64(encode(a0)), '+', '-'), '/', '_'), '=')"),
    "base64_url_decode": _of("text", _FROM_URL),
})  # fmt: skip


def _extract_groups(c: FunctionCall) -> Value:
    """The texts of all groups of the first match; an empty array without one."""
    count = groups(c.text(1, example="", what="a pattern"))
    if not count:
        raise c.error("INVALID_VALUE", f"the pattern of {c.name} has no group")
    text = c.cast(0, VARCHAR).expression
    regex = checked(c.cast(1, VARCHAR).expression.name, c.node, c.ctx)
    parts = [call("regexp_extract", text, regex, exp.Literal.number(i + 1), string("s")) for i in range(count)]
    template = "CASE WHEN regexp_matches(a0, a1, 's') THEN a2 WHEN a0 IS NOT NULL THEN [] END"
    return Value(duckdb_cast(fill(template, text, regex, exp.Array(expressions=parts)), _TEXTS), _TEXTS)


def _transform(c: FunctionCall) -> Value:
    """`transform(x, [from …], [to …], default)`: the value at the place of x; the default, or x itself, otherwise."""
    texts = c.arguments[1].type.element, c.arguments[2].type.element
    if None in texts:
        raise c.mismatch("It takes a value, an array of values, an array of results and a default.")
    found, wanted = texts
    assert found is not None
    assert wanted is not None
    value = coerce(c.arguments[0], found, c.ctx, c.nodes[0]).finish().expression
    other = c.arguments[3] if len(c.arguments) > 3 else c.arguments[0]
    results, kind = unify([Value(exp.null(), wanted), other], [c.nodes[2], c.nodes[-1]], c.ctx, c.name)
    after = duckdb_cast(c.arguments[2].finish().expression, array_of(kind))
    place = "list_position(a1, a0)"
    template = f"CASE WHEN {place} IS NULL THEN a3 ELSE list_extract(a2, {place}) END"
    return Value(fill(template, value, c.arguments[1].finish().expression, after, results[1].expression), kind)


def _to_json(c: FunctionCall) -> Value:
    value = c.arguments[0]
    known = cast(value, VARCHAR, c.ctx, c.node) if value.unknown else value
    return Value(duckdb_cast(made_of(known, ordered=False).expression, VARCHAR), VARCHAR, known.nullable)


#: Names are those of the reference; grammars insert them with the prefix `$`.
DOCUMENT_FUNCTIONS: Final[Mapping[str, Builder]] = {
    **_BY_SIGNATURE, **_EXTRACTING, **_OF_TEXTS,
    "crc32": in_python("import zlib\ndef f(text):\n    return zlib.crc32(text.encode())\n", "text", "bigint"),
    "extract_groups": counted(_extract_groups, 2), "transform": counted(_transform, 3, 4),
    "to_json_string": counted(_to_json, 1),
    "map_cast": at_least(_map, 0), "map_from_arrays": counted(map_of_arrays, 2),
    **{name: _of_map(name) for name in _OF_JSON},
    **ENTRY_FUNCTIONS,
    "json_extract_keys_and_values_raw": _extract(
        _PAIRS.replace("TRY_CAST(", "CAST(").replace("AS {kind})", "AS VARCHAR)").replace(", a2)", ", [])"),
        array_of(SqlType("struct", fields=(("1", VARCHAR), ("2", VARCHAR))))),
    "json_extract": _typed(_VALUE, "value"), "json_extract_keys_and_values": _typed(_PAIRS, "pairs"),
    "json_cast": _encoded(JSONB), "json_encode": _encoded(VARCHAR), "json_merge_patch": at_least(_merged, 2),
    "json_elements": counted(_elements, 2), "json_query": counted(_query, 2), "json_value": counted(_value, 2),
    "match": counted(_match, 2), "extract": counted(_extract_one, 2), "extract_all": counted(_extract_all, 2),
    "extract_all_groups": counted(_vertical, 2), "extract_all_groups_vertical": counted(_vertical, 2),
    "extract_all_groups_horizontal": counted(_horizontal, 2),
    "replace_regex": _replace("gs"), "replace_regexp_all": _replace("gs"), "replace_regexp_one": _replace("s"),
    "multi_match_any": counted(_any_pattern, 2), "multi_search_any": _many(_CONTAINED, BOOLEAN),
    "multi_search_any_case_insensitive": _many(_CONTAINED.replace("contains(a0, _n)",
                                                                  "contains(lower(a0), lower(_n))"), BOOLEAN),
    **{f"multi_search_{name}{ending}": _many(template.format(places), kind)
       for ending, places in (("", _PLACES), ("_case_insensitive", _PLACES.replace("(a0, _n", "(lower(a0), lower(_n)")))
       for name, template, kind in (
           ("first_index", "coalesce(list_position(list_transform({}, lambda _p: _p > 0), true), 0)", BIGINT),
           ("first_position", "coalesce(list_min(list_filter({}, lambda _p: _p > 0)), 0)", BIGINT),
           ("all_positions", "{}", array_of(BIGINT)))},
    "multi_match_any_index": _many(f"coalesce(list_position({_MATCHED}, true), 0)", BIGINT),
    "multi_match_all_indices": _many(f"list_filter(range(1, len(a1) + 1), lambda _i: list_extract({_MATCHED}, _i))",
                                     array_of(BIGINT)),
    "grok": counted(_grok, 2), "extract_key_value_pairs": counted(_pairs, 1, 2, 3, 4),
}  # fmt: skip

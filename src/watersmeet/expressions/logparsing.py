"""Binds functions that split texts into rows: the groups of a pattern, separated fields, lines of system logs.

SQLstream, "Log Parsing Functions", "REGEX_REPLACE". Their names begin with `$`, so no text can call them; a grammar
inserts them. Patterns are those of Java; RE2 matches them (`regexpatterns`), so they have no back-references and no
look-around.
"""

from __future__ import annotations

import re
from typing import Final

from sqlglot import exp

from watersmeet.dialects.tree.sqltypes import type_named
from watersmeet.expressions import regexpatterns
from watersmeet.expressions.calls import Builder, FunctionCall, counted
from watersmeet.expressions.context import Value, call, fill, string
from watersmeet.values.types import BOOLEAN, INTEGER, VARCHAR, SqlType

_TEXTS: Final = SqlType("array", element=VARCHAR)


def _pattern(c: FunctionCall, index: int) -> str:
    """A constant pattern for RE2. Raises INVALID_VALUE for a pattern that RE2 rejects."""
    pattern = regexpatterns.translated(c.text(index, example="", what="a pattern"), c.node, c.ctx)
    regexpatterns.checked(pattern, c.node, c.ctx)
    return pattern


def _replacement(text: str) -> str:
    """Converts a Java replacement to RE2's form. In Java's, `$1` is a group, and a backslash makes the next character
    plain.
    """
    return re.sub(
        r"\\(.)|\$(\d)|(\\)",
        lambda m: f"\\{m[2]}" if m[2] else (r"\\" if m[1] in ("\\", None) else m[1]),
        text,
        flags=re.DOTALL,
    )


def _replaced(c: FunctionCall) -> Value:
    """`REGEX_REPLACE(text, pattern, replacement [, start [, occurrence]])`: occurrence 0 replaces all matches.

    NULL for a start below 1 or a negative occurrence.
    """
    text, pattern = c.cast(0, VARCHAR).expression, string(_pattern(c, 1))
    new = string(_replacement(c.text(2, example="", what="a replacement")))
    start = c.cast(3, INTEGER).expression if len(c.arguments) > 3 else exp.Literal.number(1)
    which = c.cast(4, INTEGER).expression if len(c.arguments) > 4 else exp.Literal.number(0)
    rest = "substring(a0, CAST(a3 AS BIGINT))"
    parts = (
        f"list_zip(string_split_regex({rest}, a1), list_concat(regexp_extract_all({rest}, a1), ['']), "
        f"range(1, len(regexp_extract_all({rest}, a1)) + 2))"
    )
    one = (
        f"array_to_string(list_transform({parts}, lambda _m: _m[1] || "
        "CASE WHEN _m[3] = a4 THEN regexp_replace(_m[2], a1, a2) ELSE _m[2] END), '')"
    )
    sql = (
        "CASE WHEN a3 < 1 OR a4 < 0 THEN NULL WHEN a3 > length(a0) THEN a0 ELSE left(a0, a3 - 1) || "
        f"CASE WHEN a4 = 0 THEN regexp_replace({rest}, a1, a2, 'g') ELSE {one} END END"
    )
    return Value(fill(sql, text, pattern, new, start, which), VARCHAR)


def _groups(c: FunctionCall) -> Value:
    """The groups of a pattern that the whole text matches, as an array; NULL for another text."""
    text, pattern = c.cast(0, VARCHAR).expression, f"^(?:{_pattern(c, 1)})$"
    count = int(c.nodes[2].name)
    parts = ", ".join(f"regexp_extract(a0, a1, {i + 1})" for i in range(count))
    return Value(fill(f"CASE WHEN regexp_matches(a0, a1) THEN [{parts}] END", text, string(pattern)), _TEXTS)


def _separated(c: FunctionCall) -> Value:
    """`(text, delimiter [, escape [, quotes]])`: the fields of a text as an array.

    A delimiter after an escape character or between quotes belongs to the field, without these signs.
    """
    text = c.cast(0, VARCHAR).expression
    delimiter, escape, quotes = ([a.expression.name for a in c.arguments[1:]] + ["", ""])[:3]
    if not escape and not quotes:
        return Value(fill("string_split(a0, a1)", text, string(delimiter)), _TEXTS)
    alternatives, plain = [], "_f"
    if quotes:
        begin, end = re.escape(quotes[0]), re.escape(quotes[-1])
        alternatives.append(f"{begin}[^{end}]*{end}")
        plain = f"regexp_replace({plain}, {_quoted(f'{begin}([^{end}]*){end}')}, '\\1', 'g')"
    if escape:
        sign = re.escape(escape)
        alternatives.append(f"{sign}.")
        plain = f"regexp_replace({plain}, {_quoted(f'{sign}(.)')}, '\\1', 'gs')"
    pattern = f"((?:{'|'.join([*alternatives, '.'])})*?){re.escape(delimiter)}"
    sql = f"list_transform(regexp_extract_all(a0 || a1, a2, 1, 's'), lambda _f: {plain})"
    return Value(fill(sql, text, string(delimiter), string(pattern)), _TEXTS)


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _fields(c: FunctionCall) -> Value:
    """`(texts, name, type, …)`: a row of the texts as these types. A text that is no value of its type is NULL."""
    names = [n.name for n in c.nodes[1::2]]
    kinds = [type_named(n.name) for n in c.nodes[2::2]]
    parts = []
    for i, (name, kind) in enumerate(zip(names, kinds, strict=True), 1):
        text = f"_t[{i}]"
        value = text if kind == VARCHAR else f"TRY_CAST(trim({text}) AS {kind.duckdb})"
        parts.append(f"{_identifier(name)} := {value}")
    row = f"list_transform([a0], lambda _t: struct_pack({', '.join(parts)}))[1]"
    return Value(fill(row, c.arguments[0].expression), SqlType("struct", fields=tuple(zip(names, kinds, strict=True))))


def _fits(c: FunctionCall) -> Value:
    """`(texts, name, type, …)`: whether each text is a value of its type, or missing."""
    kinds = [type_named(n.name) for n in c.nodes[2::2]]
    tests = [
        f"(_t[{i}] IS NULL OR TRY_CAST(trim(_t[{i}]) AS {kind.duckdb}) IS NOT NULL)"
        for i, kind in enumerate(kinds, 1)
        if kind != VARCHAR
    ]
    test = f"list_transform([a0], lambda _t: {' AND '.join(tests) or 'true'})[1]"
    return Value(fill(test, c.arguments[0].expression), BOOLEAN)


def _identifier(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


_SYSLOG: Final = r"^(\w{3} +\d{1,2} \d{2}:\d{2}:\d{2}) +(.*)$"


def _syslog(c: FunctionCall) -> Value:
    """The time of a line of a system log, which has no year, in 1970, and the rest of the line, as an array."""
    sql = (
        "CASE WHEN regexp_matches(a0, a1, 's') THEN "
        "[CAST(try_strptime('1970 ' || regexp_replace(regexp_extract(a0, a1, 1, 's'), ' +', ' ', 'g'), "
        "'%Y %b %d %H:%M:%S') AS VARCHAR), regexp_extract(a0, a1, 2, 's')] END"
    )
    return Value(fill(sql, c.cast(0, VARCHAR).expression, string(_SYSLOG)), _TEXTS)


def _similar_part(c: FunctionCall) -> Value:
    """`SUBSTRING(text SIMILAR pattern ESCAPE sign)`: the part of a matching text between two `sign"`, or all of it.

    NULL for a text that does not match. SQL:2008, 6.30.
    """
    text, sign = c.cast(0, VARCHAR).expression, c.text(2, example="#", what="an escape character")
    parts = c.text(1, example="", what="a pattern").split(sign + '"')
    if len(parts) not in (1, 3):
        raise c.error("INVALID_VALUE", f'the pattern has {len(parts) - 1} signs {sign}", not two')
    made = [regexpatterns.similar(part, sign, c.node, c.ctx).name for part in parts]
    pattern = f"^({made[0]})$" if len(made) == 1 else f"^(?:{made[0]})({made[1]})(?:{made[2]})$"
    found = call("regexp_extract", text, string(pattern), exp.Literal.number(1), string("s"))
    return Value(
        fill("CASE WHEN a0 THEN a1 END", call("regexp_matches", text, string(pattern), string("s")), found), VARCHAR
    )


def _position_from(c: FunctionCall) -> Value:
    """`(part, text, start)`: the position in the text of the first occurrence from the start on; 0 without one."""
    texts = [c.cast(i, VARCHAR).expression for i in (0, 1)]
    found = "strpos(substring(a1, CAST(a2 AS BIGINT)), a0)"
    sql = (
        f"CASE WHEN {found} IS NULL THEN NULL WHEN a2 < 1 OR a2 > length(a1) OR {found} = 0 THEN 0 "
        f"ELSE CAST({found} + a2 - 1 AS INTEGER) END"
    )
    return Value(fill(sql, *texts, c.cast(2, INTEGER).expression), INTEGER)


LOG_FUNCTIONS: Final[dict[str, Builder]] = {
    "$fields": _fields,
    "$fits": _fits,
    "$groups": _groups,
    "$position_from": _position_from,
    "$regex_replace": counted(_replaced, 3, 4, 5, name="regex_replace"),
    "$separated": _separated,
    "$similar_part": _similar_part,
    "$syslog": _syslog,
}

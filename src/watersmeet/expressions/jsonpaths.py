"""Evaluates Lenses' JSON paths over columns of documents: `$.points[?(@.y >= 3)].id`."""

from __future__ import annotations

import re
from typing import Final

from sqlglot import exp

from watersmeet.errors import Error
from watersmeet.expressions.calls import FunctionCall
from watersmeet.expressions.context import fill

#: One step of a path: a filter, every child, a name, a position, a name in brackets.
_STEP: Final = re.compile(
    r"\[\?\((?P<filter>.*?)\)\]|(?P<deep>\.\.)|(?P<all>\.\*|\[\*\])|\.(?P<name>[A-Za-z_$][\w$-]*)"
    r"|\[(?P<place>-?\d+)\]|\[(?P<quote>['\"])(?P<quoted>.*?)(?P=quote)\]"
)

#: A comparison in a filter: `@.y >= 3`, `@['id'] == 'i4'`, `@ == false`, `@.y`.
_CONDITION: Final = re.compile(
    r"\s*@(?P<path>[^\s=<>!]*)\s*(?:(?P<sign>==|!=|<=|>=|<|>)\s*(?P<value>'[^']*'|\"[^\"]*\"|-?[\d.]+|true|false|null))?\s*"
)

_CHILDREN: Final = (
    "CASE json_type(_e) WHEN 'ARRAY' THEN json_extract(_e, '$[*]') WHEN 'OBJECT' THEN json_extract(_e, '$.*') END"
)


def matches(document: exp.Expression, path: str, c: FunctionCall) -> exp.Expression:
    """The JSON of all parts of a document at a path as an array of texts: empty without a match, NULL for a text that
    is not JSON. Raises INVALID_VALUE for an invalid path, FEATURE_NOT_SUPPORTED for `..` and other unsupported steps.
    """
    found = "[_d]"
    if not path.startswith("$"):
        raise c.error("INVALID_VALUE", f'the JSON path "{path}" must begin with $')
    position, plain = 1, ""
    while position < len(path):
        step = _STEP.match(path, position)
        if step is None or step["deep"]:
            raise c.not_supported(
                f'"{path[position:]}" in the JSON path "{path}"',
                hint="A path has names (.a, ['a']), positions ([0], [-1]), .*, [*] and filters: [?(@.y >= 3)].",
            )
        position = step.end()
        if step["filter"] is not None or step["all"]:
            found, plain = f"flatten(list_transform({_at(found, plain)}, lambda _e: {_CHILDREN}))", ""
            if step["filter"] is not None:
                found = f"list_filter({found}, lambda _e: {_condition(step['filter'], c)})"
        else:
            plain += _plain(step)
    whole = f"list_transform({_at(found, plain)}, lambda _e: CAST(_e AS VARCHAR))"
    read = "CASE WHEN json_valid(a0) THEN CAST(a0 AS JSON) END"
    template = f"CASE WHEN json_valid(a0) THEN flatten(list_transform([{read}], lambda _d: {whole})) END"
    return fill(template, document)


def _plain(step: re.Match[str]) -> str:
    """A step in DuckDB's form."""
    if step["place"] is not None:
        return f"[{step['place'].replace('-', '#-')}]"
    name = step["name"] if step["quoted"] is None else step["quoted"]
    return '."' + name.replace("'", "''").replace('"', '\\"') + '"'


def _at(found: str, plain: str) -> str:
    """The existing parts at a path without filters and wildcards."""
    if not plain:
        return found
    return f"list_filter(list_transform({found}, lambda _e: json_extract(_e, '${plain}')), lambda _e: _e IS NOT NULL)"


def _condition(text: str, c: FunctionCall) -> str:
    """The condition of a filter over the element `_e`."""
    parts = [_comparison(p, c) for p in re.split(r"(&&|\|\|)", text)]
    return f"coalesce({' '.join(parts)}, false)"


def _comparison(text: str, c: FunctionCall) -> str:
    if text in ("&&", "||"):
        return {"&&": "AND", "||": "OR"}[text]
    match = _CONDITION.fullmatch(text)
    if match is None:
        raise _lacking(text, c)
    path, position = "$", 0
    while position < len(match["path"]):
        step = _STEP.match(match["path"], position)
        if step is None or step["filter"] is not None or step["deep"] or step["all"]:
            raise _lacking(text, c)
        path, position = path + _plain(step), step.end()
    if match["sign"] is None:
        return f"json_exists(_e, '{path}')"
    value, sign = match["value"], {"==": "=", "!=": "<>"}.get(match["sign"], match["sign"])
    if value[0] in "'\"":
        literal = value[1:-1].replace("'", "''")
        return f"(json_type(_e, '{path}') = 'VARCHAR' AND json_extract_string(_e, '{path}') {sign} '{literal}')"
    if value in ("true", "false", "null"):
        return f"(CAST(json_extract(_e, '{path}') AS VARCHAR) {sign} '{value}')"
    return f"(TRY_CAST(json_extract(_e, '{path}') AS DOUBLE) {sign} {value})"


def _lacking(text: str, c: FunctionCall) -> Error:
    return c.not_supported(
        f'the filter "{text.strip()}" of a JSON path',
        hint="A filter compares a field with a constant: @.y >= 3, @['id'] == 'i4'; && and || join comparisons.",
    )

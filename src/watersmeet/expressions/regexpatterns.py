r"""Translates PostgreSQL's regular expressions for RE2, which DuckDB uses (PostgreSQL 17, 9.7).

`.` and negated classes match line ends unless flag `n` is given; `\m`, `\M` and `\y` are word boundaries. RE2 lacks
back-references and look-around.
"""

from __future__ import annotations

import re
from typing import Final

import duckdb
from sqlglot import exp

from watersmeet.expressions.context import Context, Value, call, string

_ESCAPES: Final = {"m": r"\b", "M": r"\b", "y": r"\b", "Y": r"\B", "Z": r"\z", "<": r"\b", ">": r"\b"}
_FLAGS: Final = {"i": "i", "c": "c", "n": "n", "m": "n", "p": "n", "s": "s", "g": "g", "t": "", "e": ""}


def options(flags: str, node: exp.Expression, ctx: Context, *, everywhere: bool = False) -> str:
    """RE2's options for PostgreSQL's flags. Raises INVALID_VALUE for an invalid flag. everywhere: whether `g` is
    allowed.
    """
    found = ""
    for flag in flags:
        if flag not in _FLAGS or (flag == "g" and not everywhere):
            raise ctx.error("INVALID_VALUE", f'invalid regular expression option: "{flag}"', node)
        found += _FLAGS[flag]
    return found if "n" in found else found.replace("s", "") + "s"


def regex(value: Value, node: exp.Expression, ctx: Context) -> exp.Expression:
    """The pattern for RE2. Raises INVALID_VALUE for a constant that RE2 rejects."""
    if not value.expression.is_string:
        found = value.expression
        for letter, sign in _ESCAPES.items():
            found = call("replace", found, string("\\" + letter), string(sign))
        return found
    return checked(translated(value.expression.name, node, ctx), node, ctx)


def checked(pattern: str, node: exp.Expression, ctx: Context) -> exp.Expression:
    """The constant pattern, after checking that RE2 accepts it."""
    try:
        ctx.constant(call("regexp_matches", string(""), string(pattern)))
    except duckdb.Error as err:
        raise ctx.error("INVALID_VALUE", f"invalid regular expression: {str(err).split(': ', 1)[-1]}", node) from None
    return string(pattern)


def translated(pattern: str, node: exp.Expression, ctx: Context) -> str:
    """A constant pattern translated for RE2. Raises FEATURE_NOT_SUPPORTED for back-references and look-around."""
    if re.search(r"\(\?(=|!|<=|<!)", pattern):
        hint = "RE2 matches patterns in linear time: it has no look-around and no back-references."
        raise ctx.not_supported("look-ahead and look-behind in a regular expression", node, hint=hint)
    pattern = re.sub(r"^\*\*\*[:=]?", "", pattern)
    result: list[str] = []
    index, in_class = 0, False
    while index < len(pattern):
        char = pattern[index]
        if char == "\\" and index + 1 < len(pattern):
            letter = pattern[index + 1]
            if letter.isdecimal() and letter != "0" and not in_class:
                raise ctx.not_supported("a back-reference in a regular expression", node)
            result.append(char + letter if in_class else _ESCAPES.get(letter, char + letter))
            index += 2
            continue
        if in_class and pattern.startswith(("[:", "[.", "[="), index):
            end = pattern.find(pattern[index + 1] + "]", index + 2)
            if end > 0:
                result.append(pattern[index : end + 2])
                index = end + 2
                continue
        if char == "[" and not in_class:
            in_class = True
            if pattern.startswith(("[:<:]", "[:>:]"), index + 1):
                result.append(r"\b")
                index, in_class = index + 7, False
                continue
            head = re.match(r"\[\^?\]?", pattern[index:])
            assert head is not None
            result.append(head[0].replace("]", r"\]"))
            index += len(head[0])
            continue
        if char == "]" and in_class:
            in_class = False
        result.append(char)
        index += 1
    return "".join(result)


def groups(pattern: str) -> int:
    """The number of capturing groups of a constant pattern."""
    bare = re.sub(r"\\.", "", pattern, flags=re.DOTALL)
    bare = re.sub(r"\[\^?\]?(?:\[[:.=].*?[:.=]\]|[^\]])*\]", "", bare)
    return len(re.findall(r"\((?!\?)", bare)) + len(re.findall(r"\(\?P<", bare))


def replacement(value: Value) -> exp.Expression:
    r"""The replacement of regexp_replace for RE2. In PostgreSQL's, `\&` is the whole match, `\1` a group, `\\` a
    backslash.
    """
    if not value.expression.is_string:
        return call("replace", value.expression, string("\\&"), string("\\0"))
    written = value.expression.name
    made = re.sub(
        r"\\(.?)",
        lambda m: {"&": r"\0", "\\": r"\\"}.get(m[1]) or (m[0] if m[1].isdecimal() else r"\\" + m[1]),
        written,
        flags=re.DOTALL,
    )
    return string(made)


def similar(pattern: str, escape: str, node: exp.Expression, ctx: Context) -> exp.Expression:
    """The RE2 pattern for SIMILAR TO (9.7.2), where `%` and `_` are wildcards and `.`, `^` and `$` are literal."""
    result: list[str] = []
    index, in_class = 0, False
    while index < len(pattern):
        char = pattern[index]
        if char == escape and escape and index + 1 < len(pattern):
            letter = pattern[index + 1]
            keep = escape == "\\" and letter.isalnum()
            result.append(_ESCAPES.get(letter, "\\" + letter) if keep else re.escape(letter))
            index += 2
            continue
        if char == "[" and not in_class:
            in_class = True
        elif char == "]" and in_class:
            in_class = False
        elif not in_class:
            char = {"%": ".*", "_": ".", ".": r"\.", "^": r"\^", "$": r"\$", "\\": r"\\"}.get(char, char)
        result.append(char)
        index += 1
    return checked("".join(result), node, ctx)

r"""Regular expressions: their functions, and PostgreSQL's patterns in the spelling of RE2, which DuckDB uses.

Regular expressions: PostgreSQL's spelling to that of RE2, which DuckDB uses.

PostgreSQL 17, 9.7.3: `.` and negated classes match line ends unless flag `n` is given, `\m`, `\M` and `\y` are word
boundaries. RE2 has no back-references and no look-around: they are refused.
"""

from __future__ import annotations

import re
from typing import Final

import duckdb
from sqlglot import exp

from watersmeet.dialects.tree.nodes import is_open
from watersmeet.expressions.calls import Arguments, Builder, constant_text, count_checked
from watersmeet.expressions.casts import cast
from watersmeet.expressions.context import Context, Value, call, duckdb_cast, fill, number, string
from watersmeet.values.types import BIGINT, BOOLEAN, INTEGER, VARCHAR, SqlType

_ESCAPES: Final = {"m": r"\b", "M": r"\b", "y": r"\b", "Y": r"\B", "Z": r"\z", "<": r"\b", ">": r"\b"}
_FLAGS: Final = {"i": "i", "c": "c", "n": "n", "m": "n", "p": "n", "s": "s", "g": "g", "t": "", "e": ""}


def options(flags: str, node: exp.Expression, ctx: Context, *, everywhere: bool = False) -> str:
    """RE2's options for PostgreSQL's flags; INVALID_VALUE for one that does not exist. everywhere: `g` is possible."""
    found = ""
    for flag in flags:
        if flag not in _FLAGS or (flag == "g" and not everywhere):
            raise ctx.error("INVALID_VALUE", f'invalid regular expression option: "{flag}"', node)
        found += _FLAGS[flag]
    return found if "n" in found else found.replace("s", "") + "s"


def regex(value: Value, node: exp.Expression, ctx: Context) -> exp.Expression:
    """The pattern as RE2 reads it; INVALID_VALUE for a constant that is none."""
    if not value.expression.is_string:
        found = value.expression
        for letter, sign in _ESCAPES.items():
            found = call("replace", found, string("\\" + letter), string(sign))
        return found
    return checked(translated(value.expression.name, node, ctx), node, ctx)


def checked(pattern: str, node: exp.Expression, ctx: Context) -> exp.Expression:
    """The constant pattern, once RE2 has accepted it."""
    try:
        ctx.constant(call("regexp_matches", string(""), string(pattern)))
    except duckdb.Error as err:
        raise ctx.error("INVALID_VALUE", f"invalid regular expression: {str(err).split(': ', 1)[-1]}", node) from None
    return string(pattern)


def translated(pattern: str, node: exp.Expression, ctx: Context) -> str:
    """A constant pattern for RE2; FEATURE_NOT_SUPPORTED for what it has not."""
    if re.search(r"\(\?(=|!|<=|<!)", pattern):
        raise ctx.not_supported("look-ahead and look-behind in a regular expression", node)
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
    r"""The replacement of regexp_replace: `\&` is the whole match, `\1` a group, `\\` a backslash."""
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
    """The RE2 pattern of SIMILAR TO (9.7.2): `%` and `_` are wildcards, `.`, `^` and `$` mean themselves."""
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


_TEXTS: Final = SqlType("array", element=VARCHAR)


class _Match:
    """The arguments of one call: the text from its start, the pattern and the options."""

    def __init__(
        self,
        name: str,
        arguments: Arguments,
        node: exp.Expression,
        ctx: Context,
        *,
        start: int | None = None,
        flags: int | None = None,
        everywhere: bool = False,
    ) -> None:
        self.name, self.node, self.ctx = name, node, ctx
        self.text = cast(arguments[0], VARCHAR, ctx, node).expression
        self.given = cast(arguments[1], VARCHAR, ctx, node)
        if start is not None and len(arguments) > start:
            place = cast(arguments[start], INTEGER, ctx, node).expression
            self.text = call("substring", self.text, place)
        written = ""
        if flags is not None and len(arguments) > flags:
            written = constant_text(arguments[flags], name, node, ctx, example="", what="flags")
        self.everywhere = "g" in written
        self.options = string(options(written, node, ctx, everywhere=everywhere).replace("g", ""))
        self.pattern = regex(self.given, node, ctx)

    @property
    def groups(self) -> int:
        """The number of groups of the pattern, which must be a constant."""
        if is_open(self.given.expression):
            return 0
        if not self.given.expression.is_string:
            raise self.ctx.not_supported(
                f"{self.name} with a pattern that is not a constant",
                self.node,
                hint="regexp_count, regexp_replace and ~ take one.",
            )
        return groups(self.given.expression.name)

    def call(self, name: str, *more: exp.Expression) -> exp.Expression:
        """DuckDB's function `name` of text, pattern, `more` and options."""
        return call(name, self.text, self.pattern, *more, self.options)

    def texts(self) -> exp.Expression:
        """The groups of the first match, or the match itself; NULL if there is none."""
        wanted = range(1, self.groups + 1) if self.groups else [0]
        parts = [self.call("regexp_extract", number(i)) for i in wanted]
        return fill("CASE WHEN a0 THEN a1 END", self.call("regexp_matches"), exp.Array(expressions=parts))


def _match(arguments: Arguments, _nodes: list[exp.Expression], node: exp.Expression, ctx: Context) -> Value:
    count_checked("regexp_match", arguments, (2, 3), node, ctx)
    return Value(_Match("regexp_match", arguments, node, ctx, flags=2).texts(), _TEXTS)


def matches(arguments: Arguments, node: exp.Expression, ctx: Context) -> Value:
    """The array of the rows of regexp_matches: with flag `g` one for each match."""
    count_checked("regexp_matches", arguments, (2, 3), node, ctx)
    found = _Match("regexp_matches", arguments, node, ctx, flags=2, everywhere=True)
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


def split(name: str, arguments: Arguments, node: exp.Expression, ctx: Context) -> Value:
    """The array of the pieces between matches."""
    count_checked(name, arguments, (2, 3), node, ctx)
    return Value(_Match(name, arguments, node, ctx, flags=2).call("string_split_regex"), _TEXTS)


def _split(arguments: Arguments, _nodes: list[exp.Expression], node: exp.Expression, ctx: Context) -> Value:
    return split("regexp_split_to_array", arguments, node, ctx)


def _count(arguments: Arguments, _nodes: list[exp.Expression], node: exp.Expression, ctx: Context) -> Value:
    count_checked("regexp_count", arguments, (2, 3, 4), node, ctx)
    found = _Match("regexp_count", arguments, node, ctx, start=2, flags=3)
    return Value(duckdb_cast(call("len", found.call("regexp_extract_all", number(0))), INTEGER), INTEGER)


def _like(arguments: Arguments, _nodes: list[exp.Expression], node: exp.Expression, ctx: Context) -> Value:
    count_checked("regexp_like", arguments, (2, 3), node, ctx)
    return Value(_Match("regexp_like", arguments, node, ctx, flags=2).call("regexp_matches"), BOOLEAN)


def _replace(arguments: Arguments, _nodes: list[exp.Expression], node: exp.Expression, ctx: Context) -> Value:
    count_checked("regexp_replace", arguments, (3, 4), node, ctx)
    found = _Match("regexp_replace", arguments, node, ctx, flags=3, everywhere=True)
    text = replacement(cast(arguments[2], VARCHAR, ctx, node))
    options = string(found.options.name + ("g" if found.everywhere else ""))
    return Value(call("regexp_replace", found.text, found.pattern, text, options), VARCHAR)


def _substr(arguments: Arguments, _nodes: list[exp.Expression], node: exp.Expression, ctx: Context) -> Value:
    count_checked("regexp_substr", arguments, (2, 3, 4, 5, 6), node, ctx)
    found = _Match("regexp_substr", arguments, node, ctx, start=2, flags=4)
    number_of = cast(arguments[3], BIGINT, ctx, node).expression if len(arguments) > 3 else number(1)
    group = cast(arguments[5], INTEGER, ctx, node).expression if len(arguments) > 5 else number(0)
    return Value(call("list_extract", found.call("regexp_extract_all", group), number_of), VARCHAR)


def _extract(arguments: Arguments, _nodes: list[exp.Expression], node: exp.Expression, ctx: Context) -> Value:
    """DuckDB's and Spark's: the match or a group of it, '' if there is none."""
    count_checked("regexp_extract", arguments, (2, 3), node, ctx)
    found = _Match("regexp_extract", arguments, node, ctx)
    group = cast(arguments[2], INTEGER, ctx, node).expression if len(arguments) > 2 else number(0)
    return Value(found.call("regexp_extract", group), VARCHAR)


def substring(text: Value, pattern: Value, node: exp.Expression, ctx: Context) -> Value:
    """`substring(text FROM pattern)`: the first group of the match, or the whole; NULL if there is none."""
    found = _Match("substring", [text, pattern], node, ctx)
    group = 1 if found.groups else 0
    return Value(
        fill("CASE WHEN a0 THEN a1 END", found.call("regexp_matches"), found.call("regexp_extract", number(group))),
        VARCHAR,
    )


def matched(text: Value, pattern: Value, flags: str, node: exp.Expression, ctx: Context) -> exp.Expression:
    """`text ~ pattern`; flags: `i` for `~*`."""
    return call(
        "regexp_matches",
        text.expression,
        regex(pattern, node, ctx),
        string(options(flags, node, ctx)),
    )


REGEX_FUNCTIONS: Final[dict[str, Builder]] = {
    "regexp_count": _count, "regexp_extract": _extract, "regexp_like": _like, "regexp_match": _match,
    "regexp_replace": _replace,
    "regexp_split_to_array": _split, "regexp_substr": _substr,
}  # fmt: skip

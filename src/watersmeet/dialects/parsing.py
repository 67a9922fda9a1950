"""Parses a text into statements (`parse`). A text may switch to another dialect by `SET dialect = 'x'` or by a line `--
dialect: x`. `without_secrets` hides passwords in displayed texts, as ClickHouse does.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from sqlglot.errors import TokenError
from sqlglot.tokens import Token

from watersmeet.dialects.registry import Language, language_named
from watersmeet.dialects.script import OwnQuery, cut, no_own_query, read_script, tokenize
from watersmeet.dialects.statements.preparing import marked, prepares
from watersmeet.dialects.tree.queries import check_characters, depth_checked
from watersmeet.dialects.tree.statements import Refused, SetVariable, Statement
from watersmeet.dialects.tree.tokens import Parameters, words_of
from watersmeet.errors import Error, Span, error
from watersmeet.errors.secretnames import is_secret
from watersmeet.values import DEFAULT_DIALECT

_LINE: Final = re.compile(r"^[ \t]*(--[ \t]*dialect[ \t]*:[ \t]*(\S+))[ \t]*\r?$", re.MULTILINE | re.IGNORECASE)
_SET: Final = re.compile(
    r"""\b(SET\s+(?:SESSION\s+|LOCAL\s+)?dialect\s*(?:=|\bTO\b)\s*['"]?(\w+)['"]?\s*(?:;|\Z))""", re.IGNORECASE
)

#: A command of a system's client; `!=` at the beginning of a line is none.
_COMMAND: Final = re.compile(r"^[ \t]*([!\\][A-Za-z?][^\r\n]*?)[ \t]*\r?$", re.MULTILINE)

_NOT_LINE_END: Final = re.compile(r"[^\n]")

#: This is appended to a text to find out whether it ends outside quotes and comments.
_PROBE: Final = "watersmeet_probe"


@dataclass(frozen=True)
class Part:
    """A part of a text in one dialect.

    line: the span of the line `-- dialect: x`, or of the client's command, before it, if any.
    """

    start: int
    end: int
    language: Language
    line: Span | None = None


def read_text(
    text: str, language: Language, parameters: Parameters = (), own_query: OwnQuery = no_own_query
) -> list[Statement]:
    """The statements of a text that begins in a dialect, as by `read_script`. Raises INVALID_PARAMETER for an unknown
    dialect.
    """
    found: list[Statement] = []
    for part in parts(text, language):
        if part.line is not None:
            base: dict[str, Any] = {"text": text, "sql": text[part.line.start : part.line.end], "span": part.line}
            sign = part.language.command_sign
            command = part.language.command if sign and base["sql"].startswith(sign) else None
            found.append(command(base) if command else SetVariable(**base, name="dialect", value=part.language.name))
        found += read_script(text, part.language, parameters, part.start, part.end, own_query)
    return found


def parts(text: str, language: Language) -> list[Part]:
    """The parts of a text, in order. Raises SYNTAX_ERROR for a `-- dialect: x` line inside a statement,
    INVALID_PARAMETER.
    """
    found: list[Part] = []
    begin, line = 0, None
    matches = (m for form in (_LINE, _SET, _COMMAND) for m in form.finditer(text))
    for match in sorted(matches, key=lambda m: m.start(1)):
        if match.start(1) < begin or (match.re is _COMMAND and match[1][0] != language.command_sign):
            continue
        before = _before(text, begin, match.start(1), language)
        if before is None or (before and match.re is not _LINE):
            continue  # it is in quotes, in a comment or in another statement
        span = Span(*match.span(1))
        if before:
            raise error(
                "SYNTAX_ERROR",
                "the dialect can't change inside a statement",
                sql=text,
                span=span,
                hint="End the statement before with a semicolon.",
            )
        found.append(Part(begin, match.end(1) if match.re is _SET else match.start(1), language, line))
        begin, line = match.end(1), None if match.re is _SET else span
        language = language if match.re is _COMMAND else _language(match[2], text, Span(*match.span(2)))
    found.append(Part(begin, len(text), language, line))
    return found


def _before(text: str, begin: int, end: int, language: Language) -> Sequence[Token] | None:
    """The tokens of the statement that is open at `end`; None inside a quote or comment."""
    piece = text[begin:end] + _PROBE
    try:
        last = cut(language.grammar.tokenize(piece))[-1]
    except TokenError:
        return None
    return last[:-1] if last and last[-1].text == _PROBE and last[-1].start == end - begin else None


def _language(name: str, text: str, span: Span) -> Language:
    try:
        return language_named(name.lower())
    except Error as err:
        err.sql, err.span = text, span
        raise


def split_statements(text: str, dialect: str = "risingwave") -> tuple[list[str], str]:
    """The complete statements of `text` (those that end in a semicolon) and the rest, for a shell.

    The rest includes an unfinished quote or comment, and a statement that continues after its semicolon (`WITH a AS
    (…);`).
    """
    try:
        found = parts(text, language_named(dialect))
    except Error:  # an invalid switch: running the text reports it
        found = [Part(0, len(text), language_named(dialect))]
    complete: list[str] = []
    for part in found:
        if part.line is not None and text[part.line.start] in "!\\":
            complete.append(text[part.line.start : part.line.end])
        try:
            pieces = cut(tokenize(text, part.language, part.start, part.end))
        except Error:
            return ([], text) if part.start == 0 else (complete, text[part.start :])
        begins: int | None = None
        for piece in pieces[:-1]:
            if piece and begins is None:
                begins = piece[0].start
            if piece and not part.language.goes_on(piece):
                complete.append(text[begins : piece[-1].end + 1])
                begins = None
        if begins is None and pieces[-1]:
            begins = pieces[-1][0].start
        if begins is not None and part is not found[-1]:
            return complete, text[begins:]
    return complete, "" if begins is None else text[begins:]


def parse(
    text: str, dialect: str = DEFAULT_DIALECT, parameters: Parameters = (), own_query: OwnQuery = no_own_query
) -> list[Statement]:
    """The statements of `text`, in order. The text begins in `dialect` and may switch to another one (`read_text`).

    parameters: values for `?` (in order), `$1` (by number) or named placeholders, which become literals of the tree,
    never text. With `UNBOUND` the placeholders stay for `preparing.with_values`. own_query: reads queries that the
    session does not run itself. All spans are in `text`. Raises SYNTAX_ERROR with a span, CHARACTER_NOT_IN_REPERTOIRE.
    """
    check_characters(text)
    read = marked(text)[0] if not parameters and prepares(text) else text
    with depth_checked(read):
        found = read_text(read, language_named(dialect), parameters, own_query)
    return found if read is text else [replace(s, text=text) for s in found]


def parse_each(text: str, dialect: str = DEFAULT_DIALECT) -> list[Statement]:
    """Like `parse`, but an unreadable statement becomes `Refused` with its error, and reading continues after it.

    If a quote or comment does not end, the rest of the text is one `Refused` statement.
    """
    refused: list[Refused] = []
    left = text
    while True:
        try:
            found = parse(left, dialect)
        except Error as err:
            span = _around(left, dialect, err.span)
            if not left[span.start : span.end].strip():
                span = _around(left, dialect, None)
            err.sql = text
            refused.append(Refused(text=text, sql=text[span.start : span.end], span=span, error=err))
            left = left[: span.start] + _NOT_LINE_END.sub(" ", left[span.start : span.end]) + left[span.end :]
            continue
        for statement in found:
            if isinstance(statement, Refused):
                statement.error.sql = text
        return sorted([*(replace(s, text=text) for s in found), *refused], key=lambda s: s.span.start)


def _around(text: str, dialect: str, span: Span | None) -> Span:
    """The statement of `text` that contains the error's span; the whole text if the error has none."""
    whole = Span(len(text) - len(text.lstrip()), len(text.rstrip()))
    if span is None:
        return whole
    try:
        found = parts(text, language_named(dialect))
    except Error:  # the line that switches to another dialect
        end = text.find("\n", span.start)
        return Span(text.rfind("\n", 0, span.start) + 1, len(text) if end < 0 else end)
    part = next(p for p in reversed(found) if p.start <= span.start or p is found[0])
    lines = [p.line for p in found if p.line is not None]
    if (line := next((line for line in lines if line.start <= span.start < line.end), None)) is not None:
        return line
    try:
        pieces = cut(tokenize(text, part.language, part.start, part.end))
    except Error as err:
        opened = span.start if err.span is None else err.span.start
        try:
            last = cut(tokenize(text, part.language, part.start, opened))[-1]
        except Error:  # it is not known where the quote begins
            return Span(part.start, part.end)
        return Span(last[0].start if last else opened, part.end)
    for piece in pieces:
        if piece and piece[-1].end + 1 >= span.start:
            return Span(piece[0].start, piece[-1].end + 1)
    return whole


HIDDEN: Final = "'[HIDDEN]'"

#: The words that precede options outside parentheses.
_OPTIONS: Final = ("SOURCE", "LAYOUT", "SETTINGS", "WITH", "PROPERTIES", "OPTIONS")

_CLAUSES: Final = ("SOURCE", "LAYOUT")  # only before a parenthesis, unlike CREATE SOURCE

#: An object that consists of options.
_COLLECTION: Final = ["NAMED", "COLLECTION"]

#: The number of tokens from the first to the last word in `HEADER(NAME 'n' VALUE 'v')`.
_BEFORE: Final = 4

_SIGNS: Final = ("(", ")", ",", ".", "=")


def without_secrets(text: str, dialect: str) -> str:
    """The text of a CREATE statement with `'[HIDDEN]'` instead of the values of its secret options (`PASSWORD 'x'`,
    `password = 'x'`), and of those of the condition after VALIDATE.
    """
    words = words_of(tokenize(text, language_named(dialect)))
    depth, i, inside = 0, 0, [w.text.upper() for w in words[1:3]] == _COLLECTION
    found: list[tuple[int, int]] = []
    while i < len(words):
        word, following = words[i].text, [w.text for w in words[i + 1 : i + 3]]
        depth += (word == "(") - (word == ")")
        inside = inside or (
            depth == 0 and word.upper() in _OPTIONS and (word.upper() not in _CLAUSES or following[:1] == ["("])
        )
        if depth == 0 and word.upper() == "VALIDATE" and following[:1] and following[0].upper() in ("AS", "SECRET"):
            found += _compared_texts(words[i:], all_texts=following[0].upper() == "AS")
            break
        value = i + 2 if following[:1] == ["="] else i + 1
        if (
            not inside
            or word in _SIGNS
            or value >= len(words)
            or words[value].text in _SIGNS
            or (value == i + 1 and (depth == 0 or following[1:] == ["="]))
        ):
            i += 1
            continue
        if words[value].text.upper() == "SECRET" and text[words[value].start] not in "'\"" and value + 1 < len(words):
            i = value + 2  # a reference
            continue
        last = min(value + (words[value].text == "-"), len(words) - 1)
        name, given = _dotted([w.text for w in words], i).lower(), words[value].text
        is_header = word.lower() == "value" and i > _BEFORE and words[i - _BEFORE].text.lower() == "header"
        if is_secret(name, given) or is_header:
            found.append((words[value].start, words[last].end + 1))
        i = last + 1
    for start, end in reversed(found):
        text = text[:start] + HIDDEN + text[end:]
    return text


def _compared_texts(words: Sequence[Token], *, all_texts: bool) -> Iterator[tuple[int, int]]:
    """The spans of texts that may be secrets in `VALIDATE [SECRET name] AS secure_compare(…, …)`: not the names of
    headers. all_texts: False if the condition names its secret; then only a text that it compares may be another one.
    """
    depth = 0
    for before, word, after in zip(words, words[1:], words[2:], strict=False):
        depth += (word.text == "(") - (word.text == ")")
        is_compared = depth == 1 and before.text in ("(", ",") and after.text in (",", ")")
        if word.token_type.name == "STRING" and before.text != "->>" and (all_texts or is_compared):
            yield word.start, word.end + 1


def _dotted(words: list[str], last: int) -> str:
    """The dotted name that ends at index `last`."""
    first = last
    while first >= 2 and words[first - 1] == ".":
        first -= 2
    return "".join(words[first : last + 1])

"""What of a statement is not shown to those who ask for its text: passwords, as ClickHouse hides them."""

from __future__ import annotations

from typing import Final

from watersmeet.dialects.registry import language_named
from watersmeet.dialects.script import tokenize
from watersmeet.dialects.tokens import words_of
from watersmeet.secretnames import is_secret

HIDDEN: Final = "'[HIDDEN]'"

#: The words, not in parentheses, behind which options stand and no columns.
_OPTIONS: Final = ("SOURCE", "LAYOUT", "SETTINGS", "WITH", "PROPERTIES", "OPTIONS")
_CLAUSES: Final = ("SOURCE", "LAYOUT")  # with a parenthesis: CREATE SOURCE is something else
#: What is made of options alone.
_COLLECTION: Final = ["NAMED", "COLLECTION"]
#: Of `HEADER(NAME 'n' VALUE 'v')`: how many words before the last one the first one is.
_BEFORE: Final = 4
_SIGNS: Final = ("(", ")", ",", ".", "=")


def without_secrets(text: str, dialect: str) -> str:
    """The text of a CREATE statement with `'[HIDDEN]'` in place of the values of its secret options (`PASSWORD 'x'`,
    `password = 'x'`).
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


def _dotted(words: list[str], last: int) -> str:
    """The name of parts with points between them that ends at place `last`."""
    first = last
    while first >= 2 and words[first - 1] == ".":
        first -= 2
    return "".join(words[first : last + 1])

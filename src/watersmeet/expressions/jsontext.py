"""JSON as it is written in SQL."""

from __future__ import annotations

import json
import re
from typing import Final

_TOKENS: Final = re.compile(r'"(?:[^"\\]|\\.)*"|[ \t\r\n]+|[{}\[\],]|[^"{}\[\], \t\r\n]+', re.DOTALL)


def canonical(text: str) -> str:
    r"""Valid JSON in the form in which jsonb is kept: no white space, plain characters, of equal keys the last.

    As `formats.jsonscan.canonical`, of one text. PostgreSQL 17, 8.14: jsonb keeps the last value of equal keys.

    >>> canonical('{"a": 1.50, "b": {"c": 1, "c": 2}, "\\u0061": [3]}')
    '{"b":{"c":2},"a":[3]}'
    """
    pieces: list[str] = []
    #: Of the brackets around: at which pieces the members of an object begin, and the number of each key; None in an
    #: array.
    around: list[tuple[list[int], dict[str, int]] | None] = []
    dropped: list[tuple[int, int]] = []
    key_follows = False
    for token in _TOKENS.findall(text):
        sign = token[0]
        if sign in " \t\r\n":
            continue
        pieces.append(_plain(token) if sign == '"' else token)
        if sign in "{[":
            around.append(([], {}) if sign == "{" else None)
            key_follows = sign == "{"
        elif sign in "}]":
            around.pop()
            key_follows = False
        elif sign == ",":
            key_follows = around[-1] is not None
        elif key_follows and around[-1] is not None:
            (starts, numbers), key = around[-1], pieces[-1]
            starts.append(len(pieces) - 1)
            if key in numbers:
                dropped.append((starts[numbers[key]], starts[numbers[key] + 1]))
            numbers[key] = len(starts) - 1
            key_follows = False
    for start, end in dropped:  # they may lie in each other
        pieces[start:end] = [""] * (end - start)
    return "".join(pieces)


def _plain(string: str) -> str:
    """A string of JSON without escapes that it does not need."""
    if "\\" not in string:
        return string
    plain = json.dumps(json.loads(string, strict=False), ensure_ascii=False)
    return string if re.search("[\ud800-\udfff]", plain) else plain

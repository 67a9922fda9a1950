"""Reads unquoted names of topics with dashes and dots: `SELECT * FROM cc_data-2.eu`.

A name with a dash or with several dots is one token, a quoted name. A name with one dot stays `schema.name`; without
such a schema it is the name of a topic (`schemas.find_relation`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from sqlglot.tokens import Token, TokenType

#: The words that precede the name of a topic.
_BEFORE: Final = frozenset(
    {"DESCRIBE", "FORMATTED", "FROM", "INTO", "JOIN", "PROCESSOR", "TOPIC", "UPDATE", "USE", "VIEW"}
)

#: The words that precede TABLE in statements about a topic. After SELECT, TABLE precedes expressions.
_BEFORE_TABLE: Final = frozenset({"ALTER", "CREATE", "DESCRIBE", "DROP", "EXISTS", "REPLACE", "TRUNCATE"})

#: Functions whose arguments contain FROM.
_WITH_FROM: Final = frozenset({"EXTRACT", "OVERLAY", "POSITION", "SUBSTRING", "TRIM"})

_WORD: Final = re.compile(r"\w[\w$]*")
_QUOTED: Final = (TokenType.IDENTIFIER, TokenType.STRING)


def joined(tokens: Sequence[Token], sql: str) -> list[Token]:
    """The tokens, with a single token for each name of a topic that has a dash or several dots."""
    made: list[Token] = []
    openers: list[str] = []  # the words before the open parentheses
    index = 0
    while index < len(tokens):
        token = tokens[index]
        if token.token_type == TokenType.L_PAREN:
            openers.append(made[-1].text.upper() if made else "")
        elif token.token_type == TokenType.R_PAREN and openers:
            openers.pop()
        elif (not openers or openers[-1] not in _WITH_FROM) and _awaits_name(made):
            end = _end(tokens, index)
            signs = [t.text for t in tokens[index:end] if t.text in ("-", ".")]
            if "-" in signs or len(signs) > 1:
                last = tokens[end - 1]
                text = sql[token.start : last.end + 1]
                token = Token(TokenType.IDENTIFIER, text, token.line, token.col, token.start, last.end, token.comments)
                index = end - 1
        made.append(token)
        index += 1
    return made


def _awaits_name(before: Sequence[Token]) -> bool:
    """Whether the name of a topic must follow the tokens."""
    words = [t.text.upper() for t in before[-4:] if t.token_type not in _QUOTED]
    if words[-3:] == ["IF", "NOT", "EXISTS"] or words[-2:] == ["IF", "EXISTS"]:
        return True
    if words[-1:] == ["TABLE"]:
        return len(words) > 1 and words[-2] in _BEFORE_TABLE
    return bool(words) and before[-1].token_type not in _QUOTED and words[-1] in _BEFORE


def _end(tokens: Sequence[Token], start: int) -> int:
    """The end of the words at `start` that dashes and dots join without spaces."""
    end = start
    while end < len(tokens):
        token = tokens[end]
        near = end == start or token.start == tokens[end - 1].end + 1
        part = token.text in ("-", ".") or re.fullmatch(r"[\w$.]+", token.text) is not None
        if not near or token.token_type in _QUOTED or not part:
            break
        end += 1
    while end > start and tokens[end - 1].text in ("-", "."):
        end -= 1
    return end if _WORD.match(tokens[start].text) else start

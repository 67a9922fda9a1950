"""Proton's EMIT clause at the end of a query: cut out of the tokens before the query is parsed.

What has a meaning here becomes `emit` of the query: a mode and a length. Others are refused by name.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from sqlglot.tokens import Token, TokenType

from watersmeet.dialects.options import not_supported
from watersmeet.dialects.timeplus.nodes import EmitClause
from watersmeet.dialects.tokens import span_of, syntax_error
from watersmeet.places import set_place
from watersmeet.units import ABBREVIATED, UNITS_US, unit_us

_AFTER: Final = ("SETTINGS", "FORMAT", "LIMIT", "OFFSET")
_LENGTH: Final = re.compile(r"(\d+)(ms|s|m|h|d|w)\Z")
_FIRST: Final = ("STREAM", "CHANGELOG", "CHANGES", "PERIODIC", "ON", "AFTER", "TIMEOUT", "LAST", "PER")


def cut_emit(tokens: Sequence[Token], text: str) -> tuple[list[Token], EmitClause | None]:
    """The tokens without the clause, and the clause.

    SYNTAX_ERROR, FEATURE_NOT_SUPPORTED.
    """
    depth = 0
    for i, token in enumerate(tokens):
        depth += (token.token_type == TokenType.L_PAREN) - (token.token_type == TokenType.R_PAREN)
        following = tokens[i + 1].text.upper() if i + 1 < len(tokens) else ""
        if (
            depth == 0
            and i
            and token.token_type == TokenType.VAR
            and token.text.upper() == "EMIT"
            and following in _FIRST
        ):
            end = next((j for j in range(i + 1, len(tokens)) if tokens[j].text.upper() in _AFTER), len(tokens))
            clause = tokens[i:end]
            return [*tokens[:i], *tokens[end:]], _Clause(clause, text).read()
    return list(tokens), None


class _Clause:
    """What is read of a clause."""

    def __init__(self, tokens: Sequence[Token], text: str) -> None:
        self.tokens = tokens
        self.text = text
        self.index = 1

    def read(self) -> EmitClause:
        mode, length_us = self._mode()
        if self.index < len(self.tokens):
            rest = self.tokens[self.index]
            if rest.text.upper() in ("AND", "TIMEOUT", "LAST", "REPEAT"):
                raise self._lacking()
            raise syntax_error(self.text, rest)
        made = EmitClause(mode=mode, length_us=length_us)
        set_place(made, span_of(self.tokens))
        return made

    def _mode(self) -> tuple[str, int]:
        if self._take("STREAM"):
            return "stream", 0
        if self._take("CHANGELOG") or self._take("CHANGES"):
            return "changelog", 0
        if self._take("PERIODIC"):
            length_us = self._length()
            return ("updates", length_us) if self._take("ON", "UPDATE") else ("periodic", length_us)
        if self._take("ON", "UPDATE"):
            return "updates", self._length() if self._take("WITH", "BATCH") else 0
        if (
            self._take("AFTER", "WATERMARK")
            or self._take("AFTER", "WINDOW", "CLOSE")
            or self._take("ON", "WINDOW", "CLOSE")
        ):
            return "window close", self._length() if self._take("WITH", "DELAY") or self._take("AND", "DELAY") else 0
        raise self._lacking()

    def _take(self, *words: str) -> bool:
        found = tuple(t.text.upper() for t in self.tokens[self.index : self.index + len(words)])
        if found != words:
            return False
        self.index += len(words)
        return True

    def _length(self) -> int:
        """`5s`, `INTERVAL 5 SECOND`, in microseconds."""
        named = self._take("INTERVAL")
        if self.index == len(self.tokens):
            raise syntax_error(self.text, None, end=self.tokens[-1].end + 1)
        token = self.tokens[self.index]
        self.index += 1
        found = _LENGTH.match(token.text)
        if found is not None and int(found[1]) > 0:
            return int(found[1]) * UNITS_US[ABBREVIATED[found[2]]]
        length_us = unit_us(self.tokens[self.index].text) if self.index < len(self.tokens) else None
        if named and token.text.isdecimal() and int(token.text) > 0 and length_us is not None:
            self.index += 1
            return int(token.text) * length_us
        raise syntax_error(self.text, token, detail="A length such as 5s was expected here.")

    def _lacking(self) -> Exception:
        words = " ".join(t.text.upper() for t in self.tokens)
        return not_supported(
            words,
            self.text,
            span_of(self.tokens),
            hint=(
                "EMIT STREAM, CHANGELOG, PERIODIC 5s, ON UPDATE, and AFTER WINDOW CLOSE or WATERMARK [WITH DELAY "
                "5s] are supported."
            ),
        )

"""Timeplus' additional nodes for the binder: streams in FROM, joins by ranges of time, and the EMIT clause.

EMIT is removed from the tokens before the query is parsed; its mode and length become `emit` of the query.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, ClassVar, Final

from sqlglot import exp
from sqlglot.tokens import Token, TokenType

from watersmeet.dialects.tree.nodes import MarkedTable
from watersmeet.dialects.tree.tokens import not_supported, span_of, syntax_error
from watersmeet.values.spans import set_span
from watersmeet.values.times import ABBREVIATED, UNITS_US, unit_us


class EmitClause(exp.Expression):  # type: ignore[misc]
    """The part `emit` of a whole query: the EMIT clause, which sets when the query outputs rows."""

    arg_types: ClassVar[dict[str, Any]] = {"mode": True, "length_us": True}

    @property
    def mode(self) -> str:
        """The mode: stream, changelog, updates, periodic or window close."""
        return str(self.args["mode"])

    @property
    def length_us(self) -> int:
        """The length of the interval in microseconds; 0 without an interval."""
        return int(self.args["length_us"])


class PlainUnion(exp.Union):  # type: ignore[misc]
    """A UNION without ALL or DISTINCT. Its own span is the span of the word UNION."""


class DictionaryJoin(exp.Join):  # type: ignore[misc]
    """A left join with a dictionary that replaces calls of `dict_get` and similar functions.

    computes: whether the compared values of the left side are expensive to compute.
    """

    arg_types: ClassVar[dict[str, Any]] = {**exp.Join.arg_types, "computes": False}
    own_parts: ClassVar[frozenset[str]] = frozenset({"computes"})


class RangeJoin(exp.Join):  # type: ignore[misc]
    """A join whose condition bounds the time between the rows of its two sides."""


class StreamTable(MarkedTable):
    """A relation in FROM: `stream`, `table(stream)`, `changelog(stream, key, …)`.

    static: whether it stands in `table()`. changelog: the names after the stream in `changelog()`. rewound: whether
    WHERE sets the time from which rows are read, which may be earlier than the start of the query.
    """

    arg_types: ClassVar[dict[str, Any]] = {**exp.Table.arg_types, "static": False, "changelog": False, "rewound": False}
    own_parts: ClassVar[frozenset[str]] = frozenset({"static", "changelog", "rewound"})
    stored_parts: ClassVar[frozenset[str]] = frozenset({"static", "rewound"})

    @property
    def is_stored(self) -> bool:
        """Whether it stands in `table()`."""
        return bool(self.args.get("static"))

    @property
    def is_rewound(self) -> bool:
        """Whether WHERE sets the time from which rows are read."""
        return bool(self.args.get("rewound"))

    @property
    def keys(self) -> list[exp.Expression] | None:
        """The names of the keys of `changelog()`; None without `changelog()`."""
        found: list[exp.Expression] | None = self.args.get("changelog")
        return found


_AFTER: Final = ("SETTINGS", "FORMAT", "LIMIT", "OFFSET")
_LENGTH: Final = re.compile(r"(\d+)(ms|s|m|h|d|w)\Z")
_FIRST: Final = ("STREAM", "CHANGELOG", "CHANGES", "PERIODIC", "ON", "AFTER", "TIMEOUT", "LAST", "PER")


def cut_emit(tokens: Sequence[Token], text: str) -> tuple[list[Token], EmitClause | None]:
    """The tokens without the EMIT clause, and the clause.

    Raises SYNTAX_ERROR, FEATURE_NOT_SUPPORTED.
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
    """The parts of an EMIT clause."""

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
        set_span(made, span_of(self.tokens))
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
        """Reads `5s` or `INTERVAL 5 SECOND`; the length in microseconds."""
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

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
    """The part `emit` of a query: the EMIT clause, which sets when the query outputs rows.

    mode: stream, changelog, updates, periodic, window close, key expire, or per event. length_us: the period; 0 without
    one. delay_us: that of WITH DELAY. timeout_us: that of TIMEOUT. last_us: that of LAST. span_us: that of MAXSPAN;
    only: whether ONLY precedes it; key: the column of IDENTIFIED BY. repeat: whether REPEAT follows the period. whole:
    whether the clause is that of the whole query, whose output it determines. All lengths are in microseconds.
    """

    arg_types: ClassVar[dict[str, Any]] = {
        "mode": True, "length_us": True, "delay_us": False, "timeout_us": False, "last_us": False, "span_us": False,
        "only": False, "key": False, "repeat": False, "whole": False,
    }  # fmt: skip

    @property
    def mode(self) -> str:
        """The mode."""
        return str(self.args["mode"])

    def length(self, name: str) -> int | None:
        """A length; None unless the clause has it."""
        found: int | None = self.args.get(name)
        return found


class PlainUnion(exp.Union):  # type: ignore[misc]
    """A UNION without ALL or DISTINCT. Its own span is the span of the word UNION."""


class DictionaryJoin(exp.Join):  # type: ignore[misc]
    """A left join with a dictionary that replaces calls of `dict_get` and similar functions.

    computes: whether the compared values of the left side are expensive to compute.
    """

    arg_types: ClassVar[dict[str, Any]] = {**exp.Join.arg_types, "computes": False}
    own_parts: ClassVar[frozenset[str]] = frozenset({"computes"})


class Divided(exp.Expression):  # type: ignore[misc]
    """`session` or `dedup` of an item of FROM, or `changelog` of a query: the name of the function, and its arguments
    after the stream.
    """

    arg_types: ClassVar[dict[str, Any]] = {"this": True, "expressions": True}


class StreamQuery(exp.Subquery):  # type: ignore[misc]
    """A query as the stream of `session`, `dedup` or `changelog`; divides: see `StreamTable`."""

    arg_types: ClassVar[dict[str, Any]] = {**exp.Subquery.arg_types, "divides": False}
    own_parts: ClassVar[frozenset[str]] = frozenset({"divides"})


class StreamSelect(exp.Select):  # type: ignore[misc]
    """A SELECT with PARTITION BY, SHUFFLE BY, LIMIT … BY, or with EMIT inside of another query.

    partition_by, shuffle_by: lists of expressions. limit_by: an `exp.Limit` with expressions.
    """

    arg_types: ClassVar[dict[str, Any]] = {
        **exp.Select.arg_types, "partition_by": False, "shuffle_by": False, "limit_by": False, "emit": False,
    }  # fmt: skip
    own_parts: ClassVar[frozenset[str]] = frozenset({"partition_by", "shuffle_by", "limit_by", "emit"})

    def listed(self, part: str) -> list[exp.Expression]:
        """The expressions of a clause; empty without it."""
        return list(self.args.get(part) or [])


class RangeJoin(exp.Join):  # type: ignore[misc]
    """A join whose condition bounds the time between the rows of its two sides."""


class StreamTable(MarkedTable):
    """A relation in FROM: `stream`, `table(stream)`, `changelog(stream, key, …)`.

    static: whether it stands in `table()`. changelog: the names in `changelog()`, of keys and a version. drops_late:
    the last argument of `changelog()`, whether it drops rows with an older version. rewound: whether WHERE sets the
    time from which rows are read, which may be earlier than the start of the query. divides: the function whose windows
    or first rows it has (`Divided`).
    """

    arg_types: ClassVar[dict[str, Any]] = {
        **exp.Table.arg_types, "static": False, "changelog": False, "drops_late": False, "rewound": False,
        "divides": False,
    }  # fmt: skip
    own_parts: ClassVar[frozenset[str]] = frozenset({"static", "changelog", "drops_late", "rewound", "divides"})
    stored_parts: ClassVar[frozenset[str]] = frozenset({"static", "rewound", "divides"})

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
        """The names in `changelog()`; None without `changelog()`."""
        found: list[exp.Expression] | None = self.args.get("changelog")
        return found


_AFTER: Final = ("SETTINGS", "FORMAT", "LIMIT", "OFFSET")
_LENGTH: Final = re.compile(r"(\d+)(ms|s|m|h|d|w)\Z")
_CLOSES: Final = (("AFTER", "WATERMARK"), ("AFTER", "WINDOW", "CLOSE"), ("ON", "WINDOW", "CLOSE"))
_FIRST: Final = ("STREAM", "CHANGELOG", "CHANGES", "PERIODIC", "ON", "AFTER", "TIMEOUT", "LAST", "PER", "WITH", "DELAY")


def cut_emit(tokens: Sequence[Token], text: str) -> tuple[list[Token], EmitClause | None, dict[int, EmitClause]]:
    """The tokens without EMIT clauses, the clause of the whole query, and the clauses of queries in parentheses by the
    place of the closing parenthesis.

    Raises SYNTAX_ERROR, FEATURE_NOT_SUPPORTED.
    """
    kept: list[Token] = []
    own: EmitClause | None = None
    inner: dict[int, EmitClause] = {}
    at = 0
    while at < len(tokens):
        following = tokens[at + 1].text.upper() if at + 1 < len(tokens) else ""
        is_word = at > 0 and tokens[at].token_type == TokenType.VAR and tokens[at].text.upper() == "EMIT"
        if not is_word or following not in _FIRST:
            kept.append(tokens[at])
            at += 1
            continue
        depth, end, close = 0, len(tokens), None
        for i in range(at + 1, len(tokens)):
            depth += (tokens[i].token_type == TokenType.L_PAREN) - (tokens[i].token_type == TokenType.R_PAREN)
            if depth == 0 and end == len(tokens) and tokens[i].text.upper() in _AFTER:
                end = i
            if depth < 0:
                end, close = min(end, i), tokens[i].start
                break
        clause = _Clause(tokens[at:end], text).read()
        if close is None:
            own = clause
        else:
            inner[close] = clause
        at = end
    return kept, own, inner


class _Clause:
    """The parts of an EMIT clause, which may be joined by AND."""

    def __init__(self, tokens: Sequence[Token], text: str) -> None:
        self.tokens = tokens
        self.text = text
        self.index = 1
        self.found: dict[str, Any] = {}

    def read(self) -> EmitClause:
        signed = self._take("CHANGELOG") or self._take("CHANGES")
        if not signed:
            self._take("STREAM")
        while self.index < len(self.tokens):
            at = self.index
            self._take("AND")
            if not self._part():
                self.index = at
                raise self._wrong()
        mode = self.found.pop("mode", None)
        if signed and (mode not in (None, "periodic", "updates") or "repeat" in self.found):
            raise self._lacking()
        mode = "changelog" if signed else mode or "stream"
        made = EmitClause(mode=mode, length_us=self.found.pop("length_us", 0), **self.found)
        set_span(made, span_of(self.tokens))
        return made

    def _part(self) -> bool:
        """Reads one part; False for another word."""
        if self._take("PERIODIC"):
            self._put("mode", "periodic")
            self._put("length_us", self._length())
            if self._take("REPEAT"):
                self._put("repeat", value=True)
            if self._take("ON", "UPDATE"):
                self.found["mode"] = "updates"
        elif self._take("ON", "UPDATE"):
            self._put("mode", "updates")
            if self._take("WITH", "BATCH"):
                self._put("length_us", self._length())
        elif any(
            self._take(*w) for w in (("AFTER", "WATERMARK"), ("AFTER", "WINDOW", "CLOSE"), ("ON", "WINDOW", "CLOSE"))
        ):
            self._put("mode", "window close")
        elif self._take("AFTER", "KEY", "EXPIRE"):
            self._key_expire()
        elif self._take("PER", "EVENT"):
            self._put("mode", "per event")
        elif self._take("WITH", "DELAY") or self._take("DELAY"):
            self._put("delay_us", self._length())
        elif self._take("TIMEOUT"):
            self._put("timeout_us", self._length())
        elif self._take("LAST"):
            self._put("last_us", self._length())
            self._take("ON", "PROCTIME")
        else:
            return False
        return True

    def _key_expire(self) -> None:
        self._put("mode", "key expire")
        if self._take("IDENTIFIED", "BY"):
            if self.index == len(self.tokens):
                raise self._wrong()
            token = self.tokens[self.index]
            self.index += 1
            self._put("key", exp.column(exp.to_identifier(token.text, quoted=True)))
            set_span(self.found["key"], span_of([token]))
        if not self._take("WITH"):
            raise self._wrong()
        if self._take("ONLY"):
            self._put("only", value=True)
        if not self._take("MAXSPAN"):
            raise self._wrong()
        self._put("span_us", self._length())

    def _put(self, name: str, value: Any) -> None:
        if name in self.found:
            raise self._wrong()
        self.found[name] = value

    def _take(self, *words: str) -> bool:
        found = tuple(t.text.upper() for t in self.tokens[self.index : self.index + len(words)])
        if found != words:
            return False
        self.index += len(words)
        return True

    def _length(self) -> int:
        """Reads `5s`, `INTERVAL 5 SECOND` or `INTERVAL '5 seconds'`; the length in microseconds."""
        named = self._take("INTERVAL")
        if self.index == len(self.tokens):
            raise self._wrong()
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

    def _wrong(self) -> Exception:
        if self.index < len(self.tokens):
            return syntax_error(self.text, self.tokens[self.index])
        return syntax_error(self.text, None, end=self.tokens[-1].end + 1)

    def _lacking(self) -> Exception:
        words = " ".join(t.text.upper() for t in self.tokens)
        return not_supported(
            words,
            self.text,
            span_of(self.tokens),
            hint=(
                "EMIT STREAM or CHANGELOG with PERIODIC 5s [REPEAT] or ON UPDATE [WITH BATCH 5s], and EMIT [STREAM] "
                "AFTER WINDOW CLOSE [WITH DELAY 5s] are supported."
            ),
        )

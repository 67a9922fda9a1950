"""Prepared statements in every dialect: PREPARE, EXECUTE, DEALLOCATE, and statements whose values are bound later.

A statement is parsed once, with a name for each parameter (`Unbound`). Each use copies its trees with literals instead.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Final, TypeVar

from sqlglot import exp
from sqlglot.tokens import Token, TokenType

from watersmeet.dialects.tree.queries import bind_parameters, is_holder
from watersmeet.dialects.tree.sqltypes import read_type
from watersmeet.dialects.tree.statements import MergeAction, NamedChange, OnConflict, Refused, Statement
from watersmeet.dialects.tree.tokens import Cursor, not_supported, span_of
from watersmeet.errors import Span
from watersmeet.values.types import SqlType

Kind = TypeVar("Kind", bound=Statement)

#: White space, parentheses and comments before the first word. The pattern is possessive, so the scan never backtracks.
_FRONT: Final = r"(?>[\s(]|--[^\n]*\n|/\*(?>[^*]|\*(?!/))*\*/)*+"
_PREPARES: Final = re.compile(_FRONT + r"PREPARE\b", re.IGNORECASE)

#: A parameter; or a quote or comment, in which no parameters occur. The pattern never backtracks, so megabytes of text
#: need no memory.
_PARAMETER: Final = re.compile(
    r"""\b[eE]'(?:[^'\\]++|\\.|'')*+' | '(?:[^']++|'')*+' | "(?:[^"]++|"")*+" | --[^\n]*+ | /\*.*?(?:\*/|\Z)
      | \$(?P<tag>[A-Za-z_]\w*+|)\$.*?(?:\$(?P=tag)\$|\Z)
      | (?<!\w)\$(?P<number>\d{1,6})\b""",
    re.VERBOSE | re.DOTALL,
)


@dataclass(frozen=True)
class Parameter:
    """A parameter of a prepared statement.

    kind: the type; None: a text whose type follows from its context. oid: PostgreSQL's number of the type; 0: the
    number of `kind`.
    """

    kind: SqlType | None = None
    oid: int = 0


@dataclass(frozen=True, kw_only=True)
class Prepare(Statement):
    """`PREPARE name [(type, …)] AS statement`. body: the span of the statement."""

    takes: ClassVar[str | None] = None

    name: str
    parameters: tuple[Parameter, ...]
    body: Span


@dataclass(frozen=True, kw_only=True)
class Execute(Statement):
    """`EXECUTE name [(value, …)]`. values: the query that returns the values; None without values. count: the number of
    values.
    """

    takes: ClassVar[str | None] = None

    name: str
    values: Statement | None
    count: int


@dataclass(frozen=True, kw_only=True)
class Deallocate(Statement):
    """`DEALLOCATE name`. The name is None for DEALLOCATE ALL."""

    takes: ClassVar[str | None] = None

    name: str | None


def with_values(statement: Kind, values: Sequence[exp.Expression]) -> Kind:
    """A copy of a statement that was parsed with `UNBOUND` parameters, with values for these."""
    if not values:
        return statement
    bound: Kind = _bound(statement, values, statement.text)
    return bound


def _bound(part: Any, values: Sequence[exp.Expression], text: str) -> Any:
    """A part of a statement with values instead of parameters; the same object if it has no parameters."""
    if isinstance(part, exp.Expression):
        if not any(map(is_holder, part.walk())):
            return part
        return bind_parameters(part.copy(), values, text, every=False)
    if isinstance(part, tuple):
        found = [_bound(p, values, text) for p in part]
        return tuple(found) if any(a is not b for a, b in zip(found, part, strict=True)) else part
    if isinstance(part, (Statement, OnConflict, MergeAction, NamedChange)):
        old = {f.name: getattr(part, f.name) for f in fields(part)}
        new = {n: made for n, p in old.items() if (made := _bound(p, values, text)) is not p}
        return replace(part, **new) if new else part
    return part


def prepares(text: str) -> bool:
    """Whether a text begins with PREPARE."""
    return _PREPARES.match(text) is not None


def marked(text: str) -> tuple[str, tuple[int, ...]]:
    """The text with a question mark instead of each parameter `$n`, and the numbers of the parameters in order.

    Positions are unchanged. Every dialect reads question marks, but in most of them `$` has another meaning.
    """
    found: list[int] = []

    def mark(match: re.Match[str]) -> str:
        number = match["number"]
        if number is None:
            return match[0]
        found.append(int(number))
        return "?".rjust(len(match[0]))

    return _PARAMETER.sub(mark, text) if "$" in text else text, tuple(found)


def read_prepare(cursor: Cursor, base: dict[str, Any]) -> Statement:
    """Reads PREPARE; the cursor stands after PREPARE."""
    if cursor.at("TRANSACTION"):
        return two_phase(cursor, base)
    name = cursor.name().name
    parameters = []
    if cursor.take("("):
        parameters.append(Parameter(read_type(cursor)))
        while cursor.take(","):
            parameters.append(Parameter(read_type(cursor)))
        cursor.expect(")")
    cursor.expect("AS")
    if cursor.done:
        raise cursor.error()
    return Prepare(**base, name=name, parameters=tuple(parameters), body=span_of(cursor.rest))


def two_phase(cursor: Cursor, base: dict[str, Any]) -> Refused:
    """Refuses a statement of two-phase commit; the cursor stands at its second word."""
    hint = "COMMIT makes all changes of a transaction durable in one step."
    words = " ".join(t.text.upper() for t in cursor.tokens[: cursor.index + 1])
    return Refused(**base, error=not_supported(f"{words}, two-phase commit,", cursor.text, base["span"], hint=hint))


def read_execute(cursor: Cursor, base: dict[str, Any]) -> Statement:
    """Reads EXECUTE; the cursor stands after EXECUTE."""
    name = cursor.name().name
    if not cursor.take("("):
        cursor.end()
        return Execute(**base, name=name, values=None, count=0)
    count, start = 0, cursor.index
    while not cursor.at(")"):
        cursor.until(",", ")")
        count += 1
        if not cursor.take(","):
            break
    listed = cursor.tokens[start : cursor.index]
    cursor.expect(")")
    cursor.end()
    if not listed:
        return Execute(**base, name=name, values=None, count=0)
    first = listed[0]
    select = Token(TokenType.SELECT, "SELECT", first.line, first.col, first.start, first.start, [])
    return Execute(**base, name=name, values=cursor.over([select, *cursor.originals(listed)]).statement(), count=count)


def read_deallocate(cursor: Cursor, base: dict[str, Any]) -> Statement:
    """Reads DEALLOCATE; the cursor stands after DEALLOCATE."""
    cursor.take("PREPARE")
    name = None if cursor.take("ALL") else cursor.name().name
    cursor.end()
    return Deallocate(**base, name=name)

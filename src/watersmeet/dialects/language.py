"""A dialect: its grammar, the readers of the statements that only it has, its row of defaults."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from sqlglot.dialects.dialect import Dialect
from sqlglot.tokens import Token

from watersmeet.dialects.semantics import Semantics
from watersmeet.dialects.statements import ddl
from watersmeet.dialects.tree.queries import Parameters
from watersmeet.dialects.tree.statements import Statement
from watersmeet.dialects.tree.tokens import Cursor
from watersmeet.dialects.variables import Variable
from watersmeet.values.types import Schema


def _no_insert(cursor: Cursor, dialect: Dialect, base: dict[str, Any], parameters: Parameters) -> Statement | None:  # noqa: ARG001 - the signature of all
    return None


def _never(tokens: Sequence[Token]) -> bool:  # noqa: ARG001 - the signature of all
    return False


@dataclass(frozen=True)
class Language:
    """A dialect.

    create, drop: read what follows CREATE and DROP. insert: reads an INSERT that makes something that runs; None for
    one that only writes rows. merge: reads MERGE. goes_on: tells a statement that belongs to those behind its
    semicolon: `WITH name AS (…);`. stop, start, alter, rename: read what follows these words. subscription: reads what
    follows SUBSCRIBE, RECOVER or UNSUBSCRIBE. codes: its numbers of errors, by condition. variables: its session
    variables. columns: reads `(name type, …)` of what is outside, and which numbers columns take whose types take more.
    """

    name: str
    syntax: type[Dialect]
    semantics: Semantics
    create: Callable[[Cursor, Dialect, dict[str, Any]], Statement] = ddl.read_create
    drop: Callable[[Cursor, dict[str, Any]], Statement] = ddl.read_drop
    insert: Callable[[Cursor, Dialect, dict[str, Any], Parameters], Statement | None] = _no_insert
    goes_on: Callable[[Sequence[Token]], bool] = _never
    stop: Callable[[Cursor, dict[str, Any]], Statement] | None = None
    start: Callable[[Cursor, dict[str, Any]], Statement] | None = None
    alter: Callable[[Cursor, dict[str, Any]], Statement] | None = None
    subscription: Callable[[str, Cursor, Dialect, dict[str, Any]], Statement] | None = None
    rename: Callable[[Cursor, dict[str, Any]], Statement] | None = None
    codes: Mapping[str, int] = field(default_factory=dict)
    variables: tuple[Variable, ...] = ()
    columns: Callable[[Cursor], tuple[Schema, Mapping[str, tuple[int, int]]]] | None = None
    merge: Callable[[Cursor, Dialect, dict[str, Any], Parameters], Statement] | None = None

    @cached_property
    def grammar(self) -> Dialect:
        """The grammar of its queries."""
        return self.syntax()

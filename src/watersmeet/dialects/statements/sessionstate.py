"""Statements about the session itself, in every dialect: savepoints, DISCARD, RESET ALL, modes of transactions, and
TRUNCATE.

PostgreSQL, "SAVEPOINT", "DISCARD", "SET TRANSACTION", "TRUNCATE".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Final, Literal

from watersmeet.dialects.tree.statements import Name, Rollback, SetVariable, Statement
from watersmeet.dialects.tree.tokens import Cursor, read_value
from watersmeet.errors import error


@dataclass(frozen=True, kw_only=True)
class Savepoint(Statement):
    """`SAVEPOINT name`."""

    takes: ClassVar[str | None] = None

    name: str


@dataclass(frozen=True, kw_only=True)
class ReleaseSavepoint(Statement):
    """`RELEASE [SAVEPOINT] name`."""

    takes: ClassVar[str | None] = None

    name: str


@dataclass(frozen=True, kw_only=True)
class RollbackTo(Statement):
    """`ROLLBACK TO [SAVEPOINT] name`."""

    takes: ClassVar[str | None] = None

    name: str


@dataclass(frozen=True, kw_only=True)
class Truncate(Statement):
    """`TRUNCATE [TABLE] names`: there are no sequences to restart, and no foreign keys to follow."""

    takes: ClassVar[str | None] = None

    names: tuple[Name, ...]


@dataclass(frozen=True, kw_only=True)
class Discard(Statement):
    """`DISCARD what`, and RESET ALL."""

    takes: ClassVar[str | None] = None

    what: Literal["all", "plans", "sequences", "temp", "temporary", "settings"]


@dataclass(frozen=True, kw_only=True)
class Accepted(Statement):
    """A statement of PostgreSQL that has nothing to change. command: its tag."""

    takes: ClassVar[str | None] = None

    command: str


_DISCARDED: Final = ("all", "plans", "sequences", "temp", "temporary")


def read_savepoint(cursor: Cursor, base: dict[str, Any]) -> Statement:
    """The cursor is behind SAVEPOINT."""
    return Savepoint(**base, name=_last_name(cursor))


def read_release(cursor: Cursor, base: dict[str, Any]) -> Statement:
    """The cursor is behind RELEASE."""
    cursor.take("SAVEPOINT")
    return ReleaseSavepoint(**base, name=_last_name(cursor))


def read_rollback(cursor: Cursor, base: dict[str, Any]) -> Statement:
    """ROLLBACK, ABORT, ROLLBACK TO: the cursor is behind the first word."""
    if not cursor.take("TRANSACTION"):
        cursor.take("WORK")
    if cursor.take("TO"):
        cursor.take("SAVEPOINT")
        return RollbackTo(**base, name=_last_name(cursor))
    cursor.end()
    return Rollback(**base)


def _last_name(cursor: Cursor) -> str:
    name = cursor.name().name
    cursor.end()
    return name


def read_truncate(cursor: Cursor, base: dict[str, Any]) -> Statement:
    """The cursor is behind TRUNCATE."""
    cursor.take("TABLE")
    names = []
    while True:
        cursor.take("ONLY")
        names.append(cursor.relation_name())
        if not cursor.take(","):
            break
    if not cursor.take("RESTART", "IDENTITY"):
        cursor.take("CONTINUE", "IDENTITY")
    if not cursor.take("CASCADE"):
        cursor.take("RESTRICT")
    cursor.end()
    return Truncate(**base, names=tuple(names))


def read_discard(cursor: Cursor, base: dict[str, Any]) -> Statement:
    """The cursor is behind DISCARD."""
    for what in _DISCARDED:
        if cursor.take(what.upper()):
            cursor.end()
            return Discard(**base, what=what)
    raise cursor.error()


def read_unlisten(cursor: Cursor, base: dict[str, Any]) -> Statement:
    """UNLISTEN: no session listens."""
    del cursor
    return Accepted(**base, command="UNLISTEN")


def read_set_mode(cursor: Cursor, base: dict[str, Any]) -> Statement | None:
    """SET TRANSACTION …, SET SESSION CHARACTERISTICS …, SET SESSION AUTHORIZATION DEFAULT, SET NAMES; None for other
    settings. The cursor is behind SET [SESSION | LOCAL].
    """
    if cursor.take("NAMES"):
        value = read_value(cursor)
        cursor.end()
        return SetVariable(**base, name="client_encoding", value=value)
    if cursor.take("AUTHORIZATION"):
        cursor.expect("DEFAULT")
        cursor.end()
        return Accepted(**base, command="SET")
    if not cursor.take("CHARACTERISTICS", "AS", "TRANSACTION") and not cursor.take("TRANSACTION"):
        return None
    while not cursor.done:
        if cursor.take("ISOLATION", "LEVEL"):
            if not cursor.take("READ", "COMMITTED") and not cursor.take("READ", "UNCOMMITTED"):
                raise error(
                    "FEATURE_NOT_SUPPORTED",
                    "this isolation level is not supported",
                    sql=cursor.text,
                    hint="There is one level: READ COMMITTED.",
                )
        elif cursor.take("READ", "ONLY"):
            raise error(
                "FEATURE_NOT_SUPPORTED",
                "SET TRANSACTION READ ONLY is not supported",
                sql=cursor.text,
                hint="Write BEGIN READ ONLY, or serve with --read-only.",
            )
        elif not cursor.take("READ", "WRITE") and not cursor.take(",") and not cursor.take("NOT", "DEFERRABLE"):
            raise cursor.error()
    return Accepted(**base, command="SET")


def read_reset_state(cursor: Cursor, base: dict[str, Any]) -> Statement | None:
    """RESET ALL, RESET SESSION AUTHORIZATION; None for others. The cursor is behind RESET."""
    if cursor.take("ALL"):
        cursor.end()
        return Discard(**base, what="settings")
    if cursor.take("SESSION", "AUTHORIZATION"):
        cursor.end()
        return Accepted(**base, command="RESET")
    return None

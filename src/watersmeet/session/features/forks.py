"""Forks of a database: CREATE FORK, SHOW FORKS, DROP FORK; REPLAY in a fork. A fork is the database at
PATH/forks/NAME.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Final

from watersmeet.catalog import (
    Catalog,
    Connection,
    EnumType,
    FormatSchema,
    Index,
    MaterializedView,
    NamedCollection,
    NamedSubscription,
    NumberSequence,
    Server,
    Sink,
    SinkQuery,
    Source,
    Stream,
    Table,
    View,
)
from watersmeet.catalog.roles import ADMIN
from watersmeet.database.replaying import replay
from watersmeet.database.sessions.context import Session, error_at, located
from watersmeet.database.sessions.result import Result, typed_result
from watersmeet.dialects.readers import reads
from watersmeet.dialects.tree.statements import Name, Statement
from watersmeet.dialects.tree.tokens import Cursor
from watersmeet.errors import error
from watersmeet.session.handlers import handles
from watersmeet.store.backup import drop_fork, forks_of, root_of
from watersmeet.values.types import BIGINT, TIMESTAMPTZ, VARCHAR, Field, Schema


@dataclass(frozen=True, kw_only=True)
class CreateFork(Statement):
    """`CREATE FORK name`."""

    takes: ClassVar[str | None] = ADMIN
    defines: ClassVar[bool] = True
    alone: ClassVar[bool] = True

    name: Name


@dataclass(frozen=True, kw_only=True)
class DropFork(Statement):
    """`DROP FORK name`."""

    takes: ClassVar[str | None] = ADMIN
    defines: ClassVar[bool] = True
    alone: ClassVar[bool] = True

    name: Name


@dataclass(frozen=True, kw_only=True)
class ShowForks(Statement):
    """`SHOW FORKS`."""

    takes: ClassVar[str | None] = None
    tells: ClassVar[bool] = True


@dataclass(frozen=True, kw_only=True)
class ReplayCommits(Statement):
    """`REPLAY [TO COMMIT number]`, in a fork. upto: None for the newest commit of the main database."""

    takes: ClassVar[str | None] = ADMIN
    defines: ClassVar[bool] = True
    alone: ClassVar[bool] = True

    upto: int | None


@reads("REPLAY")
def read_replay(cursor: Cursor, base: dict[str, Any]) -> Statement:
    """The cursor stands after REPLAY."""
    upto = cursor.integer() if cursor.take("TO", "COMMIT") else None
    cursor.end()
    return ReplayCommits(**base, upto=upto)


@reads("CREATE FORK")
def read_create_fork(cursor: Cursor, base: dict[str, Any]) -> Statement:
    """The cursor stands after CREATE FORK."""
    name = cursor.name()
    cursor.end()
    return CreateFork(**base, name=name)


@reads("DROP FORK")
def read_drop_fork(cursor: Cursor, base: dict[str, Any]) -> Statement:
    """The cursor stands after DROP FORK."""
    name = cursor.name()
    cursor.end()
    return DropFork(**base, name=name)


@reads("SHOW FORKS")
def read_show_forks(cursor: Cursor, base: dict[str, Any]) -> Statement:
    """The cursor stands after SHOW FORKS."""
    cursor.end()
    return ShowForks(**base)


_FORKS: Final[Schema] = (
    Field("fork", VARCHAR, nullable=False),
    Field("commit", BIGINT, nullable=False),
    Field("created", TIMESTAMPTZ, nullable=False),
    Field("replayed", BIGINT, nullable=False),
    Field("path", VARCHAR, nullable=False),
)


@handles(CreateFork)
def create(session: Session, statement: CreateFork) -> Result:
    """CREATE FORK: the fork has all input that the database has now."""
    session.require_definer("CREATE FORK")
    session.require_no_transaction("CREATE FORK")
    database = session.database
    with located(statement, statement.name.span):
        _check_forkable(database.catalog)
        database.flush()
        database.fork(statement.name.name)
    return Result("CREATE FORK")


@handles(DropFork)
def drop(session: Session, statement: DropFork) -> Result:
    """DROP FORK. Raises UNDEFINED_OBJECT, DATABASE_IN_USE."""
    session.require_definer("DROP FORK")
    session.require_no_transaction("DROP FORK")
    with located(statement, statement.name.span):
        drop_fork(session.database.layout, statement.name.name)
    return Result("DROP FORK")


@handles(ShowForks)
def show(session: Session, statement: ShowForks) -> Result:
    """SHOW FORKS: by name."""
    del statement
    layout = session.database.layout
    rows = [(f.name, f.commit, f.time_us, f.replayed, str(root_of(layout, f.name))) for f in forks_of(layout)]
    return typed_result("SHOW", _FORKS, rows)


#: The kinds of relations of a database that can be forked.
_FORKED: Final = (
    *(Table, Stream, Source, View, MaterializedView, Index, Sink, SinkQuery),
    *(Server, Connection, FormatSchema, NamedCollection, NamedSubscription, NumberSequence, EnumType),
)


def _check_forkable(catalog: Catalog) -> None:
    """Raises FEATURE_NOT_SUPPORTED for relations whose rows do not only follow from the commits of tables and the
    slices of sources.
    """
    for relation in catalog.relations.values():
        if relation.hidden and not isinstance(relation, SinkQuery):
            continue  # a running query, which a fork drops
        if type(relation) not in _FORKED or relation.feeds:
            raise error(
                "FEATURE_NOT_SUPPORTED",
                f"a database with {relation.title} can't be forked",
                detail="Forks have tables, sources, views and sinks.",
            )


@handles(ReplayCommits)
def replay_commits(session: Session, statement: ReplayCommits) -> Result:
    """REPLAY. Raises INVALID_PARAMETER, HISTORY_GONE."""
    session.require_definer("REPLAY")
    session.require_no_transaction("REPLAY")
    _require_fork(session, statement)
    with located(statement, statement.span):
        replay(session.database, statement.upto)
    return Result("REPLAY")


def _require_fork(session: Session, statement: Statement) -> None:
    if not session.database.layout.is_fork:
        raise error_at(
            statement,
            statement.span,
            "FEATURE_NOT_SUPPORTED",
            "the main database replays nothing",
            hint="Connect to a fork, whose path SHOW FORKS shows.",
        )

"""Forks of a database: CREATE FORK, SHOW FORKS, DROP FORK; REPLAY in a fork. A fork is the database at
PATH/forks/NAME. DIFF and SHOW DIFF compare the two, PROMOTE makes the database its fork.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.catalog.roles import ADMIN
from watersmeet.database.comparing import Comparison, Pair, compared
from watersmeet.database.filling import clear_away
from watersmeet.database.replaying import PastFork, Promotion, opened_fork, replay
from watersmeet.database.sessions.context import Session, error_at, located, undefined_relation
from watersmeet.database.sessions.result import Result, rows_result, typed_result
from watersmeet.database.sessions.variables import Variables
from watersmeet.dialects.readers import reads
from watersmeet.dialects.schemas import find_relation
from watersmeet.dialects.tree.statements import Name, Statement
from watersmeet.dialects.tree.tokens import Cursor, not_supported
from watersmeet.maintenance.maintaining import Maintenance
from watersmeet.session.handlers import handles
from watersmeet.sinkwriters.writers import SinkWriters
from watersmeet.store.backup import MAIN, drop_fork, forks_of, require_closed, root_of
from watersmeet.store.changes import Diff
from watersmeet.values.types import BIGINT, TIMESTAMPTZ, VARCHAR, Field, Schema, arrow_schema


@dataclass(frozen=True, kw_only=True)
class ChangingForks(Statement):
    """A statement that creates, feeds, promotes or drops a fork."""

    takes: ClassVar[str | None] = ADMIN
    defines: ClassVar[bool] = True
    alone: ClassVar[bool] = True


@dataclass(frozen=True, kw_only=True)
class CreateFork(ChangingForks):
    """`CREATE FORK name [AT COMMIT commit]`. commit: None for the newest one."""

    name: Name
    commit: int | None


@dataclass(frozen=True, kw_only=True)
class DropFork(ChangingForks):
    """`DROP FORK [IF EXISTS] name`."""

    name: Name
    if_exists: bool


@dataclass(frozen=True, kw_only=True)
class ShowForks(Statement):
    """`SHOW FORKS`."""

    takes: ClassVar[str | None] = None
    tells: ClassVar[bool] = True


@dataclass(frozen=True, kw_only=True)
class DiffView(Statement):
    """`DIFF [MATERIALIZED] VIEW view [BETWEEN fork AND main] [LIMIT limit]`, also of a TABLE. fork: as in
    `ShowDiff`.
    """

    takes: ClassVar[str | None] = ADMIN
    tells: ClassVar[bool] = True

    view: Name
    fork: Name | None
    limit: int | None


@dataclass(frozen=True, kw_only=True)
class ShowDiff(Statement):
    """`SHOW DIFF [BETWEEN fork AND main]`. fork: None for the fork that is open, or the only one."""

    takes: ClassVar[str | None] = ADMIN
    tells: ClassVar[bool] = True

    fork: Name | None


@reads("DIFF")
def read_diff(cursor: Cursor, base: dict[str, Any]) -> Statement:
    """The cursor stands after DIFF."""
    if not cursor.take("TABLE"):
        cursor.take("MATERIALIZED")
        cursor.expect("VIEW")
    view = cursor.relation_name()
    fork = _read_between(cursor)
    limit = cursor.integer() if cursor.take("LIMIT") else None
    cursor.end()
    return DiffView(**base, view=view, fork=fork, limit=limit)


@reads("SHOW DIFF")
def read_show_diff(cursor: Cursor, base: dict[str, Any]) -> Statement:
    """The cursor stands after SHOW DIFF."""
    fork = _read_between(cursor)
    cursor.end()
    return ShowDiff(**base, fork=fork)


def _read_between(cursor: Cursor) -> Name | None:
    """BETWEEN fork AND main, in either order."""
    if not cursor.take("BETWEEN"):
        return None
    first = cursor.name()
    cursor.expect("AND")
    second = cursor.name()
    names = [name for name in (first, second) if name.name != MAIN]
    if len(names) != 1:
        raise not_supported(
            "DIFF of two forks", cursor.text, second.span, hint="Write BETWEEN and the name of a fork, AND main."
        )
    return names[0]


@dataclass(frozen=True, kw_only=True)
class ReplayCommits(ChangingForks):
    """`REPLAY [TO COMMIT number]`, in a fork. upto: None for the newest commit of the main database."""

    upto: int | None


@reads("REPLAY")
def read_replay(cursor: Cursor, base: dict[str, Any]) -> Statement:
    """The cursor stands after REPLAY."""
    upto = cursor.integer() if cursor.take("TO", "COMMIT") else None
    cursor.end()
    return ReplayCommits(**base, upto=upto)


@dataclass(frozen=True, kw_only=True)
class Promote(ChangingForks):
    """`PROMOTE name`."""

    name: Name


@reads("PROMOTE")
def read_promote(cursor: Cursor, base: dict[str, Any]) -> Statement:
    """The cursor stands after PROMOTE."""
    cursor.take("FORK")
    return Promote(**base, name=_last_name(cursor))


def _last_name(cursor: Cursor) -> Name:
    name = cursor.name()
    cursor.end()
    return name


@reads("CREATE FORK")
def read_create_fork(cursor: Cursor, base: dict[str, Any]) -> Statement:
    """The cursor stands after CREATE FORK."""
    name = cursor.name()
    commit = cursor.integer() if cursor.take("AT", "COMMIT") else None
    cursor.end()
    return CreateFork(**base, name=name, commit=commit)


@reads("DROP FORK")
def read_drop_fork(cursor: Cursor, base: dict[str, Any]) -> Statement:
    """The cursor stands after DROP FORK."""
    if_exists = cursor.take("IF", "EXISTS")
    return DropFork(**base, name=_last_name(cursor), if_exists=if_exists)


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
    Field("views", VARCHAR, nullable=False),
    Field("path", VARCHAR, nullable=False),
)


@handles(CreateFork)
def create(session: Session, statement: CreateFork) -> Result:
    """CREATE FORK: the fork has all input that the database has now, or had as of a commit. Raises like
    `create_fork` and `PastFork`.
    """
    session.require_definer("CREATE FORK")
    session.require_no_transaction("CREATE FORK")
    database = session.database
    with located(statement, statement.name.span):
        if statement.commit is not None:
            PastFork(database, statement.name.name, statement.commit).run()
        else:
            database.flush()
            database.fork(statement.name.name)
    return Result("CREATE FORK")


@handles(DropFork)
def drop(session: Session, statement: DropFork) -> Result:
    """DROP FORK. Raises UNDEFINED_OBJECT, DATABASE_IN_USE."""
    session.require_definer("DROP FORK")
    session.require_no_transaction("DROP FORK")
    layout, name = session.database.layout, statement.name.name
    if statement.if_exists and all(fork.name != name for fork in forks_of(layout)):
        session.notice(f'fork "{name}" does not exist, skipping')
        return Result("DROP FORK")
    with located(statement, statement.name.span):
        drop_fork(layout, name)
    return Result("DROP FORK")


@handles(ShowForks)
def show(session: Session, statement: ShowForks) -> Result:
    """SHOW FORKS: by name."""
    del statement
    layout = session.database.layout
    rows = [
        (f.name, f.commit, f.time_us, f.replayed, "filled" if f.is_filled else "shared", str(root_of(layout, f.name)))
        for f in forks_of(layout)
    ]
    return typed_result("SHOW", _FORKS, rows)


_DIFF: Final[Schema] = (
    Field("relation", VARCHAR, nullable=False),
    Field("kind", VARCHAR, nullable=False),
    Field("definition", VARCHAR, nullable=False),
    Field("rows_only_in_fork", BIGINT),
    Field("rows_only_in_main", BIGINT),
)

#: The columns of DIFF VIEW after those of the view.
_ADDED: Final[Schema] = (Field("only_in", VARCHAR, nullable=False), Field("rows", BIGINT, nullable=False))


def _fork_of(session: Session, statement: DiffView | ShowDiff) -> str:
    """The name of the fork that is compared. Raises UNDEFINED_OBJECT, INVALID_PARAMETER."""
    layout = session.database.layout
    if statement.fork is not None:
        return statement.fork.name
    if layout.is_fork:
        return layout.root.name
    names = [fork.name for fork in forks_of(layout)]
    if len(names) != 1:
        raise error_at(
            statement,
            statement.span,
            "INVALID_PARAMETER",
            f"there are {len(names) or 'no'} forks",
            hint="Name one: BETWEEN fork AND main." if names else "CREATE FORK creates one.",
        )
    return names[0]


@handles(ShowDiff)
def show_diff(session: Session, statement: ShowDiff) -> Result:
    """SHOW DIFF: every view and table. Raises UNDEFINED_OBJECT."""
    rows: list[tuple[Any, ...]] = []
    with _compared(session, statement) as found:
        for pair in found.pairs():
            counts = found.counts(pair) if pair.has_rows_to_compare else (None, None)
            rows.append((pair.either.shown, pair.either.what, pair.definition, *counts))
    return typed_result("SHOW", _DIFF, rows)


@handles(DiffView)
def diff_view(session: Session, statement: DiffView) -> Result:
    """DIFF VIEW: the rows that only one of the databases has, how often, and which one. LIMIT returns any of them.
    Raises UNDEFINED_RELATION, DATATYPE_MISMATCH for other columns.
    """
    name, span = statement.view, statement.view.span
    with _compared(session, statement) as found:
        catalogs = [replace(side.catalog, path=session.catalog.path) for side in (found.fork, found.main)]
        pair = Pair(*(find_relation(c, name.name, name.schema, folded=name.folded) for c in catalogs))
        if pair == (None, None):
            raise undefined_relation(session.catalog, name, statement)
        if not pair.has_rows_to_compare:
            raise error_at(
                statement,
                span,
                "DATATYPE_MISMATCH",
                f"the rows of {pair.either.title} can't be compared",
                detail=_why(pair, found),
                hint="SHOW DIFF compares definitions.",
            )
        columns = pair.either.columns
        parts, left = [], statement.limit
        for table, diff in found.difference(pair):
            taken = table.num_rows if left is None else min(left, table.num_rows)
            left = None if left is None else left - taken
            parts.append(_with_side(table.slice(0, taken), diff[:taken], found.fork.name))
            if left == 0:
                break
    schema = arrow_schema((*columns, *_ADDED), positional=False)
    table = pa.concat_tables([p.cast(schema) for p in parts]) if parts else schema.empty_table()
    return rows_result("DIFF", (*columns, *_ADDED), table)


def _why(pair: Pair, found: Comparison) -> str:
    if pair.fork is None or pair.main is None:
        return f"Only {found.main.name if pair.fork is None else found.fork.name} has it."
    return "It has other columns." if pair.fork.is_stored else "It has no rows of its own."


def _with_side(table: pa.Table, diff: Diff, fork: str) -> pa.Table:
    sides = pc.if_else(pa.array(diff > 0), pa.scalar(fork), pa.scalar(MAIN))
    columns = [*table.columns, sides, pa.array(np.abs(diff))]
    return pa.Table.from_arrays(columns, names=[*table.schema.names, *(c.name for c in _ADDED)])


@contextmanager
def _compared(session: Session, statement: DiffView | ShowDiff) -> Iterator[Comparison]:
    """The two databases. A notice says if they have other inputs."""
    name = _fork_of(session, statement)
    span = statement.span if statement.fork is None else statement.fork.span
    with located(statement, span), compared(session.database, name) as found:
        at, newest = found.main.moment.head, found.main.log.head()
        if at < newest:
            session.notice(f"{MAIN} is compared as of commit {at}: {name} has not replayed those up to {newest}")
        yield found


@handles(ReplayCommits)
def replay_commits(session: Session, statement: ReplayCommits) -> Result:
    """REPLAY. Raises INVALID_PARAMETER, HISTORY_GONE."""
    session.require_definer("REPLAY")
    session.require_no_transaction("REPLAY")
    _require_fork(session, statement)
    with located(statement, statement.span):
        replay(session.database, statement.upto)
    return Result("REPLAY")


@handles(Promote)
def promote(session: Session, statement: Promote) -> Result:
    """PROMOTE: the database becomes its fork in one commit, after which the fork is dropped. Raises UNDEFINED_OBJECT,
    DATABASE_IN_USE, and the errors of `Promotion` and `replay`.
    """
    session.require_definer("PROMOTE")
    session.require_no_transaction("PROMOTE")
    database, name = session.database, statement.name.name
    if database.layout.is_fork:
        raise error_at(
            statement, statement.span, "FEATURE_NOT_SUPPORTED", "a fork has no forks", hint="Use the main database."
        )
    with located(statement, statement.name.span):
        require_closed(database.layout, name)
        try:
            with closing(opened_fork(database, name)) as fork:
                fork.add(Maintenance(Session(fork, Variables(session.dialect))))
                database.layout.serve_secrets()
                promotion, writers = Promotion(database, fork), database.service(SinkWriters)
                assert writers is not None
                dropped = promotion.run(writers.stop)
        finally:
            database.layout.serve_secrets()
            database.follow()
        for text in promotion.notices:
            session.notice(text)
        clear_away(session, dropped)
        drop_fork(database.layout, name)
    return Result("PROMOTE")


def _require_fork(session: Session, statement: Statement) -> None:
    if not session.database.layout.is_fork:
        raise error_at(
            statement,
            statement.span,
            "FEATURE_NOT_SUPPORTED",
            "the main database replays nothing",
            hint="Connect to a fork, whose path SHOW FORKS shows.",
        )

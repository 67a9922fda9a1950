"""Runs small statements of several clients together: INSERTs in one commit, and look-ups in one query.

While a group runs, the next one collects. A client waits in the event loop, so it needs no thread. See
`session.statements.small`.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, Generic, TypeVar

from watersmeet.catalog import Catalog
from watersmeet.database import grouping
from watersmeet.database.grouping import KeyChange, RowInsert
from watersmeet.database.opened import OpenDatabase
from watersmeet.database.sessions.context import Session
from watersmeet.database.sessions.result import Result
from watersmeet.errors import error
from watersmeet.server.messages import command_complete, row_description
from watersmeet.server.results import Portal, columns_of, complete_tag, row_messages
from watersmeet.session.statements import small
from watersmeet.values import DEFAULT_DIALECT

#: The largest number of statements in a group.
_MOST: Final = 1_000

#: A pattern: an INSERT up to a semicolon or the end, without comments and other forms of quoting.
_INSERT: Final = re.compile(
    r"""\s*+(insert\s(?:[^;'"$\\/-]++|[/-](?![*-])|"[^"]*+"|'(?:[^'\\]++|'')*+')*+)(;|\Z)""", re.IGNORECASE
)

Plan = small.Plan
LookupPlan = small.LookupPlan
W = TypeVar("W", bound="Waiting")


def runs_together(session: Session) -> bool:
    """Whether INSERTs of a text may be written together."""
    return session.dialect == DEFAULT_DIALECT and not session.variables.is_on("continue_after_errors")


def inserts_in(text: str) -> list[tuple[int, str]]:
    """The INSERT statements of a text, with their positions. Empty for a text with other statements or comments, and
    for a single statement.
    """
    found: list[tuple[int, str]] = []
    end = 0
    while match := _INSERT.match(text, end):
        found.append((match.start(1), match[1].rstrip()))
        end = match.end()
    return found if len(found) > 1 and not text[end:].strip() else []


@dataclass(eq=False)
class Waiting:
    """A statement in a group. failure: the reason why it failed. outdated: whether it must run the usual way.

    until_s: its deadline. timed_out: whether that had passed.
    """

    session: Session
    failure: Exception | None = None
    outdated: bool = False
    until_s: float | None = None
    timed_out: bool = False
    done: asyncio.Future[None] | None = None


@dataclass(eq=False)
class InsertWaiting(Waiting):
    """Rows to insert in one transaction."""

    command: ClassVar[str] = "INSERT"

    insert: RowInsert | None = None

    @property
    def count(self) -> int:
        """The number of rows."""
        return 0 if self.insert is None else len(self.insert.rows)

    def joins(self, other: InsertWaiting) -> bool:
        """Whether its rows can be inserted together with those of another one."""
        mine, theirs = self.insert, other.insert
        assert mine is not None
        assert theirs is not None
        return mine.relation is theirs.relation and mine.catalog is theirs.catalog

    def extend(self, others: Sequence[InsertWaiting]) -> None:
        """Adds the rows of later statements that it joins."""
        assert self.insert is not None
        self.insert.rows = [row for one in (self, *others) if one.insert is not None for row in one.insert.rows]


@dataclass(eq=False)
class ChangeWaiting(Waiting):
    """An UPDATE or DELETE of the row with a key."""

    change: KeyChange | None = None

    @property
    def command(self) -> str:
        """UPDATE or DELETE."""
        return "DELETE" if self.change is None or self.change.assigned is None else "UPDATE"

    @property
    def rows(self) -> int:
        """The number of changed rows."""
        return 0 if self.change is None else self.change.rows


@dataclass(eq=False)
class LookupWaiting(Waiting):
    """A look-up. formats: those of its columns; empty: all are text. description: RowDescription, with all columns as
    text. messages: the rows as DataRow messages.
    """

    command: ClassVar[str] = "SELECT"

    lookup: small.Lookup | None = None
    formats: tuple[int, ...] = ()
    description: bytes = b""
    messages: Sequence[bytes] = field(default=())


SmallWaiting = InsertWaiting | LookupWaiting | ChangeWaiting


def waiting(session: Session, plan: small.Plan, given: Any, formats: tuple[int, ...] = ()) -> SmallWaiting | None:
    """A small statement outside of a transaction, to run in a group; None if it must run the usual way. given: its
    rows, the value that it looks up, or its change.
    """
    if isinstance(plan, small.ChangePlan):
        return ChangeWaiting(session, change=plan.change(session, given))
    if isinstance(plan, small.InsertPlan):
        rows = plan.rows(session, given)
        insert = None if rows is None else RowInsert(session, plan.catalog, plan.relation, rows)
        return None if insert is None else InsertWaiting(session, insert=insert)
    if session.waits and session.writes.pending:
        return None
    return LookupWaiting(session, lookup=small.Lookup(session, plan, given), formats=formats)


def inserted(portal: Portal) -> bytes:
    """The last message of an INSERT whose rows were added to others."""
    assert portal.result is not None
    return command_complete(complete_tag(portal.result))


class Group(Generic[W]):
    """Statements that run together. run: runs a group in the group's thread, and sets the results."""

    def __init__(self, run: Callable[[Sequence[W]], None], name: str) -> None:
        self._run = run
        self._threads = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._collected: list[W] = []
        self._runs = False

    async def wait(self, one: W) -> W:
        """Runs a statement with others. Raises its error."""
        loop = asyncio.get_running_loop()
        one.done = loop.create_future()
        self._collected.append(one)
        if not self._runs:
            self._runs = True
            loop.call_soon(self._start, loop)
        await one.done
        if one.failure is not None:
            raise one.failure
        return one

    def close(self) -> None:
        """Stops the thread, after the last client has left."""
        self._threads.shutdown()

    def _start(self, loop: asyncio.AbstractEventLoop) -> None:
        group, self._collected = self._collected[:_MOST], self._collected[_MOST:]
        self._threads.submit(self._work, group, loop)

    def _work(self, group: Sequence[W], loop: asyncio.AbstractEventLoop) -> None:
        try:
            now_s = time.monotonic()
            for one in group:
                one.timed_out = one.until_s is not None and now_s >= one.until_s
                if one.timed_out or one.session.cancellation.canceled:
                    one.failure = error("QUERY_CANCELED", "the statement was canceled")
            ready = [one for one in group if one.failure is None]
            if ready:
                self._run(ready)
        except Exception as cause:
            for one in group:
                one.failure = one.failure or cause
        loop.call_soon_threadsafe(self._end, group, loop)

    def _end(self, group: Sequence[W], loop: asyncio.AbstractEventLoop) -> None:
        for one in group:
            if one.done is not None and not one.done.done():
                one.done.set_result(None)
        if self._collected:
            self._start(loop)
        else:
            self._runs = False


def inserts(database: OpenDatabase) -> Group[InsertWaiting]:
    """The group of INSERTs."""

    def run(group: Sequence[InsertWaiting]) -> None:
        listed = [one.insert for one in group if one.insert is not None]
        grouping.commit_rows(database, listed)
        for one in group:
            if one.insert is not None:
                one.failure, one.outdated = one.insert.failure, one.insert.outdated

    return Group(run, "watersmeet-inserts")


def changes(database: OpenDatabase) -> Group[ChangeWaiting]:
    """The group of UPDATEs and DELETEs by key."""

    def run(group: Sequence[ChangeWaiting]) -> None:
        grouping.commit_changes(database, [one.change for one in group if one.change is not None])
        for one in group:
            if one.change is not None:
                one.failure, one.outdated = one.change.failure, one.change.outdated

    return Group(run, "watersmeet-changes")


def lookups(database: OpenDatabase) -> Group[LookupWaiting]:
    """The group of look-ups."""

    def run(group: Sequence[LookupWaiting]) -> None:
        by_lookup = {id(one.lookup): one for one in group}
        for found in small.look_up(database, [one.lookup for one in group if one.lookup is not None]):
            _answer(database.catalog, found, [by_lookup[id(lookup)] for lookup in found.lookups])
        for one in group:
            one.outdated = one.lookup is None or one.lookup.outdated

    return Group(run, "watersmeet-lookups")


def _answer(catalog: Catalog, found: small.Found, waiting: Sequence[LookupWaiting]) -> None:
    """Encodes the rows of look-ups once for each combination of formats."""
    plan = found.lookups[0].plan
    columns = columns_of(Result("SELECT", found.columns, origins=plan.origins), catalog) or ()
    description = row_description(columns, (0,) * len(columns))
    encoded: dict[tuple[int, ...], list[bytes]] = {}
    for one, lookup in zip(waiting, found.lookups, strict=True):
        formats = one.formats or (0,) * len(columns)
        if formats not in encoded:
            encoded[formats] = row_messages(found.rows, found.columns, formats)
        rows = encoded[formats]
        one.description = description
        one.messages = [rows[place] for place in found.places.get(lookup.value, ())]

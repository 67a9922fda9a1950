"""Captures databases: for each one a thread reads the server's changes and commits them.

A commit contains whole transactions, possibly of several tables, and the offset in the server's log. Only after the
commit may the server delete these changes, so capture resumes exactly after a crash. Code specific to a system is in
`connectors.databases.captures`. `drop_captured` removes what capture has created on the server.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

from watersmeet.capture.tablechanges import (
    Captor,
    Letter,
    add_columns,
    changed,
    check_version,
    emptied_table,
    hint_of,
    names_added,
    read_columns,
    rows_there,
)
from watersmeet.catalog import CapturedDatabase, CapturedTable, Relation
from watersmeet.connectors import registry as connectors
from watersmeet.connectors.base.deadletters import DeadLetterWriter, forget_dead_letters
from watersmeet.connectors.databases.captures import (
    Batch,
    DatabaseOptions,
    DatabasePosition,
    LostOffsetError,
    System,
    TablePosition,
)
from watersmeet.database.opened import OpenDatabase, Service
from watersmeet.database.reading import rows_with_keys
from watersmeet.database.sessions.context import Session
from watersmeet.database.transaction import Change, consolidated, if_committed
from watersmeet.database.writing import replacement
from watersmeet.errors import Error, error
from watersmeet.runtime.status import CapturedTableStatus, CaptureStatus
from watersmeet.system.process import fault
from watersmeet.system.threads import Worker, Workers
from watersmeet.values.serialization import from_json, to_json

#: The longest wait for changes before the thread checks for other work.
_POLL_S: Final = 0.05

#: After a failure the server is tried again after a delay, at first of this length …
_FIRST_RETRY_S: Final = 0.1

#: … and at most of this length; see `Worker`.
_LAST_RETRY_S: Final = 5.0

#: The interval between checks that servers still write the changes of all tables. The first check is at the start.
_CHECK_S: Final = 60.0

#: The delay after which a table that the user has no right to read is tried again.
_RIGHT_S: Final = 1.0

#: Errors in the rows of a table, which stop only this table, not the other tables of its source.
_BROKEN: Final = (ArithmeticError, LookupError, TypeError, ValueError)

#: The longest wait of `close` for a thread that releases its server.
_CLOSE_S: Final = 10.0


@dataclass
class _Change:
    """The content of a commit: the changes of tables by id, the positions of the tables after it, and the rejected
    rows.
    """

    changes: dict[str, Change]
    position: DatabasePosition
    letters: dict[str, list[Letter]] = field(default_factory=dict)


def tables_of(database: OpenDatabase, captured_id: str) -> list[CapturedTable]:
    """The tables that capture a captured database."""
    known = [*database.catalog.relations.values()]
    return [t for t in known if isinstance(t, CapturedTable) and t.captured.database == captured_id and not t.staged]


def committed(database: OpenDatabase, captured: CapturedDatabase) -> DatabasePosition:
    """The position of a captured database as of the newest commit."""
    log = database.log
    found = log.read(log.head()).captured.get(captured.id)
    return DatabasePosition(captured.start) if found is None else from_json(DatabasePosition, found)


class Captures(Service):
    """The captured databases of an open database. It is thread-safe."""

    def __init__(self, session: Session) -> None:
        """session: a separate session without transactions."""
        self._session = session
        self._workers: Workers[_Capturing] = Workers()

    def start(self) -> None:
        """Starts capturing the databases of the catalog, until the database is closed."""
        self._session.database.at_close(self._workers.end)
        self.follow()

    def follow(self) -> None:
        """Starts and ends captures to match the catalog."""
        known = self._session.database.catalog.relations
        wanted = [
            i
            for i, r in known.items()
            if isinstance(r, CapturedDatabase) and not r.staged and not (r.of_table and known[r.of_table].staged)
        ]
        self._workers.reconcile({i: partial(_Capturing, self._session, i) for i in wanted})

    @contextlib.contextmanager
    def halted(self, database_id: str) -> Iterator[None]:
        """Stops capturing a database inside the block. Afterwards capture resumes from the newest commit."""
        self._workers.end([database_id])  # the thread commits nothing more, even if it ends later
        try:
            yield
        finally:
            self.follow()

    def catch_up(self) -> list[str]:
        """Waits until the tables contain all transactions that the servers had committed before the call. Returns a
        notice for each skipped database.
        """
        return [notice for worker in self._workers.all().values() for notice in worker.flush()]

    def status(self, database_id: str) -> CaptureStatus | None:
        """The status of a database for SHOW SOURCES; None if it is not captured."""
        capturing = self._workers.get(database_id)
        return None if capturing is None else capturing.status()

    def tables(self) -> dict[str, CapturedTableStatus]:
        """The status of all tables by id."""
        return {i: status for worker in self._workers.all().values() for i, status in worker.tables().items()}


class _Capturing(Worker):
    """Captures one database until it is stopped."""

    def __init__(self, session: Session, database_id: str) -> None:
        super().__init__("capture", session.database.clock, _FIRST_RETRY_S, _LAST_RETRY_S)
        self._session = session
        self._database = session.database
        self._id = database_id
        self.title = self._relation().shown
        self._flushing = 0
        self._began_s = self._checked_s = time.monotonic()
        self._system: System = connectors.system_of(self._relation().connector["connector"])
        self._position = committed(self._database, self._relation())
        self._reached = self._position.offset
        self._unread: dict[str, tuple[str, float]] = {}
        """For each table that can't be read at present, the reason and the time of the next attempt."""

    def flush(self) -> list[str]:
        """See `Captures.catch_up`."""
        name = self._relation().shown
        try:
            end = self._system.end(self._options())
        except Error as problem:
            return [f'source "{name}" was not waited for, as it is waiting: {problem.message}']
        with self.changed:
            self._flushing += 1
            try:
                self.changed.wait_for(lambda: self.stopping.is_set() or self._has(end) or not self._goes_on)
            finally:
                self._flushing -= 1
            if self._goes_on:
                stalled = {i: p.stalled for i, p in self._position.tables.items() if p.stalled}
                tables = {t.id: t.shown for t in self._tables()}
                unread = {i: why for i, (why, _) in self._unread.items()}
                return [
                    *(f'table "{tables[i]}" follows no more: {why}' for i, why in stalled.items() if i in tables),
                    *(f'table "{tables[i]}" was not waited for: {why}' for i, why in unread.items() if i in tables),
                ]
            return [f'source "{name}" was not waited for, as it is {self.state}: {self.problem}']

    def status(self) -> CaptureStatus:
        """The status, with the server's metrics of the slot if it answers."""
        shown = {t.id: t.shown for t in self._tables()}
        tables = {shown[i]: status for i, status in self.tables().items() if i in shown}
        found = CaptureStatus(self.state, self.problem, tables, self._position.offset)
        with contextlib.suppress(Error):
            retained_bytes, lag_bytes = self._system.lag(self._options(), self._reached)
            found = replace(found, lag_bytes=lag_bytes, retained_bytes=retained_bytes)
        states = {t.state for t in tables.values()} if self.state == "running" else ()
        for state in ("stalled", "waiting"):
            if state in states:
                reasons = [f'table "{n}": {t.reason}' for n, t in tables.items() if t.state == state]
                return replace(found, state=state, reason="; ".join(reasons))
        return replace(found, state="filling") if "snapshot" in states else found

    def tables(self) -> dict[str, CapturedTableStatus]:
        """See `Captures.tables`."""
        return {t.id: self._status_of(t) for t in self._tables()}

    def _status_of(self, table: CapturedTable) -> CapturedTableStatus:
        position, unread = self._position.of(table.id), self._unread.get(table.id)
        rows = position.rows if position else 0
        if position and position.stalled:
            return CapturedTableStatus("stalled", rows, position.stalled)
        if unread is not None:
            return CapturedTableStatus("waiting", rows, unread[0])
        return CapturedTableStatus("running" if position and position.done else "snapshot", rows)

    def work(self) -> None:
        try:
            self._capture()
        except LostOffsetError as cause:
            self._wait_after("stalled", str(cause))
        except Error as cause:
            if self._is_in_use(cause):
                self.stopping.wait(_POLL_S)
                return
            explained = self._database.log.explain(cause)
            problem = explained if isinstance(explained, Error) else cause
            self._wait_after("waiting", problem.message + (f" ({problem.detail})" if problem.detail else ""))
        except Exception as cause:
            if self.stopping.is_set() or self._database.is_closed:
                return
            self._wait_after("waiting", f"{type(cause).__name__}: {cause}")

    def _is_in_use(self, cause: Error) -> bool:
        """Whether the previous reader is still connected; a server detects the end of a connection late."""
        return (
            self._system.is_in_use(cause) and self.state == "starting" and time.monotonic() < self._began_s + _CLOSE_S
        )

    def _wait_after(self, state: str, reason: str) -> None:
        if self.stopping.is_set() or self._database.is_closed:
            return
        self.show(state, self.failed(reason))
        self.back_off()

    @property
    def _goes_on(self) -> bool:
        return self.state in ("starting", "running")

    def _has(self, offset: str) -> bool:
        """Whether the tables contain all transactions committed before an offset."""
        known = [self._position.of(t.id) for t in self._tables() if t.id not in self._unread]
        return self._system.has(self._reached, offset) and all(p and (p.done or p.stalled) for p in known)

    def _relation(self) -> CapturedDatabase:
        found = self._database.catalog.relations.get(self._id)
        if not isinstance(found, CapturedDatabase):
            self.stopping.set()
            raise error("UNDEFINED_RELATION", "a captured database was dropped")
        return found

    def _options(self) -> DatabaseOptions:
        return self._system.options(self._relation().connector)

    def _tables(self) -> list[CapturedTable]:
        return tables_of(self._database, self._id)

    # Reading.

    def _capture(self) -> None:
        """Reads changes until it is stopped or fails."""
        self._database.log.check()
        options = self._options()
        self._position = committed(self._database, self._relation())
        self._reached = self._position.offset
        with contextlib.closing(self._system.stream(options, self._position.offset, self._position.history)) as stream:
            captor = Captor(self._session, self._system, options, stream)
            self._forget_unfinished()
            self._check(captor)
            self.show("running")
            while not self.stopping.is_set():
                if time.monotonic() >= self._checked_s + _CHECK_S:
                    self._check(captor)
                self._step(captor)
                self.succeeded()

    def _check(self, captor: Captor) -> None:
        """Stops tables whose changes the server may not have written completely."""
        self._checked_s = time.monotonic()
        change = _Change({}, self._position)
        for table in self._tables():
            position = self._position.of(table.id) or TablePosition()
            if not position.stalled and (why := captor.stream.why_unpublished(table.captured)):
                self._put(change, table, replace(position, stalled=f"{why}. {hint_of(table)}"))
        if change.position != self._position:
            self._commit(change)

    def _step(self, captor: Captor) -> None:
        """Applies received changes, then reads the next existing rows of an incomplete table."""
        stream = captor.stream
        batch = stream.read(0 if self._to_be_read() is not None else _POLL_S, self._names)
        if batch is not None:
            self._take(captor, batch)
            stream.committed(self._position.offset)
        elif stream.is_far_from(self._position.offset):
            self._commit(_Change({}, self._moved(captor, stream.reached)))
            stream.committed(self._position.offset)
        elif self._flushing:
            stream.ask()
        filling = self._to_be_read()
        if filling is not None:
            self._fill(captor, filling)
        with self.changed:
            self._reached = stream.reached
            self.changed.notify_all()

    def _names(self) -> set[tuple[str, str]]:
        """The names of the captured tables on the server."""
        found = ((t.captured, self._position.of(t.id)) for t in self._tables())
        return {(c.schema, c.table) for c, p in found if p is None or not p.stalled}

    def _to_be_read(self) -> CapturedTable | None:
        """An incomplete table that can be read now, or None."""
        now_s = time.monotonic()
        found = [(t, self._position.of(t.id)) for t in self._tables()]
        due = (t for t, p in found if p is None or not (p.done or p.stalled))
        return next((t for t in due if t.id not in self._unread or self._unread[t.id][1] <= now_s), None)

    def _moved(self, captor: Captor, offset: str) -> DatabasePosition:
        """The position once the tables contain all changes before an offset."""
        known = {t.id for t in self._tables()}
        behind = captor.stream.behind
        tables = {i: behind(p, offset) for i, p in self._position.tables.items() if i in known}
        return DatabasePosition(offset, tables, captor.stream.history, self._position.letters)

    def _put(self, change: _Change, table: CapturedTable, position: TablePosition) -> None:
        change.position = replace(change.position, tables={**change.position.tables, table.id: position})

    def _commit(self, change: _Change) -> None:
        """Commits changes with their position. The caller holds the guard if there are changes."""
        fault("capture.commit")
        with self._database.guard:
            known = self._database.catalog.relations
            changes = {i: consolidated(c) if c.diff is not None else c for i, c in change.changes.items() if i in known}
            changes = {i: c for i, c in changes.items() if c.table.num_rows}
            if self._id not in known or self.stopping.is_set():
                return
            for table in self._tables():
                if letters := change.letters.get(table.id):
                    self._set_aside(table, letters)
                    change.position = replace(change.position, letters=self._database.log.head() + 1)
            self._database.commit(changes, captured={self._id: to_json(change.position)})
            self._position = change.position
        fault("capture.committed")

    def _set_aside(self, table: CapturedTable, letters: list[Letter]) -> None:
        """Writes the dead letters of the next commit. The caller holds the guard and commits afterwards."""
        captured = table.captured
        with DeadLetterWriter(self._database.layout.dead(table.id), self._database.log.head() + 1) as dead:
            for letter in letters:
                dead.add(f"{captured.schema}.{captured.table}", None, letter.reason, letter.text)

    def _forget_unfinished(self) -> None:
        """Deletes the dead letters of commits that were not completed."""
        for table in self._tables():
            forget_dead_letters(self._database.layout.dead(table.id), self._position.letters)

    # Existing rows.

    def _fill(self, captor: Captor, table: CapturedTable) -> None:
        """Reads the next existing rows of a table, or marks it complete."""
        captured, stream = table.captured, captor.stream
        position = self._position.of(table.id)
        change = _Change({}, self._moved(captor, stream.reached))
        if position is None and not captured.has_snapshot:
            self._put(change, table, TablePosition(done=True))
            self._commit(change)
            return
        try:
            there = stream.table(captured.schema, captured.table)
            check_version(table, there.lineage, there.types)
            now = stream.added_now(there, position) if captor.options.adds_columns else None
            if now is not None and (names := names_added(table, now.names)):
                add_columns(replace(self._session), stream, table, there, names, now.offset)
                return
            piece = stream.piece(captured, there, [c.name for c in read_columns(table)], position)
            if piece is None:
                return
            rows, keys = rows_there(captor, table, piece.texts, change.letters.setdefault(table.id, []))
        except Error as cause:
            if cause.condition == "RUNTIME_UNAVAILABLE":
                raise
            if cause.lacks_right:  # the right to read the table may be granted again
                self._unread[table.id] = _why(cause), time.monotonic() + _RIGHT_S
                return
            self._put(change, table, replace(position or TablePosition(), stalled=_why(cause)))
            self._commit(change)
            return
        except _BROKEN as cause:
            self._put(change, table, replace(position or TablePosition(), stalled=_broken(cause, table)))
            self._commit(change)
            return
        self._unread.pop(table.id, None)
        self._put(change, table, piece.position)
        with self._database.guard:
            if piece.replaces:
                change.changes[table.id] = replacement(rows_with_keys(self._session, table, keys), rows)
            else:
                change.changes[table.id] = Change(rows)
            self._commit(change)

    # Changes.

    def _take(self, captor: Captor, batch: Batch) -> None:
        """Commits the changes of complete transactions."""
        change = _Change({}, self._position)
        for table in self._tables():
            if not table.captured.has_snapshot and self._position.of(table.id) is None:
                self._put(change, table, TablePosition(done=True))  # the table may have become complete meanwhile
        if captor.options.adds_columns:
            self._add_columns(captor, batch, change)
        with self._database.guard:
            for table in self._tables():
                position = change.position.of(table.id)
                if position is None or position.stalled:
                    continue
                try:
                    letters: list[Letter] = []
                    made, position = changed(captor, table, position, batch, letters)
                    if letters:
                        change.letters[table.id] = letters
                    why = captor.stream.stopped(table.captured, batch)
                except Error as cause:
                    if cause.condition == "RUNTIME_UNAVAILABLE" or cause.lacks_right:
                        raise
                    self._put(change, table, replace(position, stalled=_why(cause)))
                    continue
                except _BROKEN as cause:
                    self._put(change, table, replace(position, stalled=_broken(cause, table)))
                    continue
                self._put(change, table, replace(position, stalled=f"{why}. {hint_of(table)}" if why else ""))
                if made is not None:
                    change.changes[table.id] = made
            offset = batch.offset if self._system.has(batch.offset, self._position.offset) else self._position.offset
            tables = {i: captor.stream.behind(p, offset) for i, p in change.position.tables.items()}
            change.position = DatabasePosition(offset, tables, captor.stream.history, self._position.letters)
            self._commit(change)

    def _add_columns(self, captor: Captor, batch: Batch, change: _Change) -> None:
        """Adds columns that were added on the server. A table that can't have such a column is stopped."""
        for table in self._tables():
            position = change.position.of(table.id)
            if position is None or position.stalled:
                continue
            added = captor.stream.added(table.captured, batch)
            if added is None:
                continue
            try:
                if names := names_added(table, added.names):
                    there = captor.stream.table(table.captured.schema, table.captured.table)
                    add_columns(replace(self._session), captor.stream, table, there, names, added.offset)
                if added.begins_again and not position.done:
                    with self._database.guard:
                        change.changes[table.id] = emptied_table(self._session, table)
                    self._put(change, table, TablePosition())
            except Error as cause:
                if cause.condition == "RUNTIME_UNAVAILABLE" or cause.lacks_right:
                    raise
                self._put(change, table, replace(position, stalled=_why(cause)))


def _broken(cause: Exception, table: CapturedTable) -> str:
    """Like `_why`, for an unexpected error."""
    return f"INTERNAL_ERROR, {type(cause).__name__}: {cause}. {hint_of(table)}"


def _why(cause: Error) -> str:
    """The reason why the replication of a table has stopped, with the hint of the error."""
    return f"{cause.message}. {cause.hint}" if cause.hint else cause.message


def drop_captured(session: Session, relations: Iterable[Relation]) -> None:
    """Removes the objects on servers that were created for dropped databases and tables, in a transaction when it
    commits. Notices name the objects that remain.
    """
    dropped = list(relations)
    ids = {r.id for r in dropped}
    actions: list[Callable[[], None]] = []
    for relation in dropped:
        if isinstance(relation, CapturedDatabase) and relation.made:
            actions.append(dropping(session, relation))
        elif isinstance(relation, CapturedTable) and relation.captured.database not in ids:
            database = session.catalog.relations.get(relation.captured.database)
            if isinstance(database, CapturedDatabase) and database.made:
                actions.append(partial(_unpublish, session, database, relation))
    transaction = session.transaction
    for action in actions:
        if transaction is None:
            action()
        else:
            transaction.ends.callback(if_committed, transaction, action)


def dropping(session: Session, database: CapturedDatabase) -> Callable[[], None]:
    """The action that removes the objects on the server that were created for a captured database."""

    def drop() -> None:
        system, others = _others(session, database, lambda other: other.id != database.id)
        if notice := system.drop(system.options(database.connector), database.made, others):
            session.notice(notice)

    return drop


def _unpublish(session: Session, database: CapturedDatabase, table: CapturedTable) -> None:
    same = [t.captured for t in session.catalog.relations.values() if isinstance(t, CapturedTable)]
    reading = {c.database for c in same if c.oid == table.captured.oid}
    system, others = _others(session, database, lambda other: other.id in reading)
    if notice := system.unpublish(system.options(database.connector), database.made, table.captured, others):
        session.notice(notice)


def _others(
    session: Session, database: CapturedDatabase, chosen: Callable[[CapturedDatabase], bool]
) -> tuple[System, list[DatabaseOptions]]:
    """The system of a database, and the options of other databases of this system that `chosen` selects."""
    name = database.connector["connector"]
    system: System = connectors.system_of(name)
    known = (r for r in session.catalog.relations.values() if isinstance(r, CapturedDatabase))
    return system, [system.options(r.connector) for r in known if r.connector["connector"] == name and chosen(r)]

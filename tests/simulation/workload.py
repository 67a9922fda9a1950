"""What is done in the simulated world: writers with sessions and a clean-up beside them, and readers."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import pyarrow as pa

import watersmeet
from tests.simulation.ledger import EVERYTHING, TABLES, VIEWS, Change, Fate, Ledger, Rows
from tests.simulation.world import Process, Violation, World
from watersmeet.database.sessions.context import Session
from watersmeet.database.sessions.variables import Variables
from watersmeet.errors import Error
from watersmeet.session.connections.connection import Connection
from watersmeet.store.content import Content

SETUP = [
    *(f"CREATE TABLE {name} ({columns})" for name, columns in TABLES.items()),
    *(f"CREATE MATERIALIZED VIEW {name} AS {query}" for name, query in VIEWS.items()),
]
#: What a statement may fail with: the fate of what it wanted. Anything else breaks a promise.
FATES: dict[str, Fate] = {
    "WRITER_FENCED": "refused",
    "DISK_FULL": "refused",
    "DATABASE_ACCESS": "unknown",
    "DATABASE_IN_USE": "refused",
    "FILE_SYSTEM_UNSUITABLE": "refused",  # a directory can't be flushed
}
_KEYS = 3


@dataclass
class Case:
    """One run. may_be_damaged: bits are flipped, so that statements may fail and say so. may_be_late: readers may come
    too late, and say so.
    """

    world: World
    path: str
    ledger: Ledger
    may_be_damaged: bool = False
    may_be_late: bool = False

    def open(self, *, read_only: bool = False, take_over: bool = False) -> Connection:
        connection = watersmeet.connect(self.path, runtime="inprocess", read_only=read_only, take_over=take_over)
        self.world.at_end.append(partial(_abandon, connection.opened.content))
        return connection

    def look(self, connection: Connection, where: str) -> set[int]:
        """Checks all relations at one moment; the numbers of the transactions that have happened by then."""
        opened = connection.opened
        catalog = opened.catalog.as_stored
        opened.content.refresh(catalog, [catalog.by_name(name).id for name in (*TABLES, *VIEWS)])
        return self.ledger.check_moment(_tuples(opened.content.query(EVERYTHING)), where)

    def content(self, connection: Connection, name: str) -> Rows:
        """The rows of a relation."""
        opened = connection.opened
        catalog = opened.catalog.as_stored
        opened.content.refresh(catalog, [catalog.by_name(name).id])
        return Counter(_tuples(opened.content.query(f'SELECT * FROM "{name}"')))

    def fate(self, failure: Error) -> Fate:
        """What a failure says of what was wanted. Violation for one that must not be."""
        found = FATES.get(failure.condition)
        if failure.condition == "WRITER_FENCED" and "was taken over by process 1" not in failure.message:
            raise Violation(f"nobody has taken over, or it is not said who: {failure.message}")
        if found is None and failure.condition.endswith("DAMAGED") and self.may_be_damaged:
            found = "unknown"
        if found is None:
            raise Violation(f"a statement failed: {failure!r}") from failure
        return found


def _tuples(table: pa.Table) -> list[tuple]:
    return list(zip(*(column.to_pylist() for column in table.columns), strict=True))


def _abandon(content: Content) -> None:
    """Gives back what the DuckDB of a process holds that ended without closing it."""
    if not content._closed:
        content._connection.close()


class Writer:
    """The process of a writer: it opens the database, its sessions work, it ends.

    plan: what each session does, instead of so many operations by chance. defining: it makes views mostly. failed:
    whether it was refused.
    """

    def __init__(
        self,
        case: Case,
        name: str,
        sessions: int,
        operations: int,
        cleanings: int,
        *,
        plan: Sequence[str] = (),
        defining: bool = False,
    ) -> None:
        self.case = case
        self.process = case.world.start(name)
        self.sessions, self.operations, self.cleanings = sessions, operations, cleanings
        self.plan = plan
        self.defining = defining
        self.failed = False
        self.lives = 0
        """How often it has written before: a server that was overtaken may write again."""
        self.done = 0
        """How many things sessions have done."""
        self.acknowledged: set[int] = set()
        self.flushed: set[int] = set()
        """Those that were acknowledged before a FLUSH: queries see them."""

    def start(self) -> None:
        self.case.world.run_in(self.process, "main", self._main)

    def _main(self) -> None:
        world = self.case.world
        try:
            connection = self._open()
        except Error as failure:
            self.case.fate(failure)
            self.failed = failure.condition == "WRITER_FENCED"
            return
        if connection is None:
            return
        actors = [
            world.run_in(self.process, f"session{n}", SessionWork(self, connection, n).run)
            for n in range(self.sessions)
        ]
        actors.append(world.run_in(self.process, "cleaner", lambda: self._clean(connection)))
        world.wait(lambda: all(a.is_over for a in actors))
        self._close(connection)

    def _open(self) -> Connection | None:
        """A connection that writes; None if it is not to work any more."""
        return self.case.open()

    def _close(self, connection: Connection) -> None:
        with contextlib.suppress(Error):
            connection.close()

    def _clean(self, connection: Connection) -> None:
        world = self.case.world
        for _ in range(self.cleanings):
            world.sleep(world.random("cleaner").random() * 0.4)
            if self.failed:
                return
            try:
                connection.opened._compactor.run()
            except Error as failure:
                self.case.fate(failure)
                self.failed |= failure.condition == "WRITER_FENCED"


class SessionWork:
    """What one session does."""

    def __init__(self, writer: Writer, first: Connection, number: int) -> None:
        self.writer, self.case = writer, writer.case
        self.name = f"{writer.process.name}/{number}"
        self.connection = first if not number else Connection(Session(first.opened, Variables("risingwave")))
        self.connection._finalizer.detach()
        if not number:
            first._finalizer = first.opened.close
        self.random = self.case.world.random(f"session {self.name}")
        self.rows: list[tuple[str, int]] = []
        self.next_id = (writer.process.pid * 10 + number) * 100 + writer.lives * 100_000_000

    def run(self) -> None:
        actions = ("transaction", "flush", "read", "define", "rescale")
        weights = (3, 3, 1, 12, 1) if self.writer.defining else (12, 6, 2, 2, 1)
        by_chance = self.random.choices(actions, weights, k=self.writer.operations)
        for action in self.writer.plan or by_chance:
            if self.writer.failed:
                return
            getattr(self, action)()
            self.writer.done += 1

    def transaction(self) -> None:
        made = self.case.ledger.begin(self.name, [self._change() for _ in range(1 + self.random.randrange(2))])
        self._attempt(lambda fate: setattr(made, "fate", fate), lambda: self._commit(made.changes, made.number))
        if made.fate == "acknowledged":
            self.writer.acknowledged.add(made.number)

    def flush(self) -> None:
        before = set(self.writer.acknowledged)

        def flush() -> None:
            self.connection.execute("FLUSH")
            self.writer.flushed |= before

        self._attempt(lambda fate: None, flush)

    def read(self) -> None:
        """All is of one moment, which is not before the newest FLUSH of this process."""
        before = set(self.writer.flushed)

        def look() -> None:
            found = self.case.ledger.check_moment(self.connection.execute(EVERYTHING).fetchall(), self.name)
            if lost := before - found:
                raise Violation(f"{self.name} does not see {sorted(lost)}")

        self._attempt(lambda fate: None, look)

    def clean(self) -> None:
        self._attempt(lambda fate: None, self.connection.opened._compactor.run)

    def define(self) -> None:
        ledger = self.case.ledger
        name = f"v{len(ledger.relations)}"
        ledger.relations[name] = "open"
        query = f"SELECT k, count(*) AS n FROM {self.random.choice('ab')} GROUP BY k"
        ledger.views[name] = query
        self._attempt(
            # Whoever takes over finishes a view that was being filled.
            lambda fate: ledger.relations.__setitem__(name, "unknown" if fate == "refused" else fate),
            lambda: self.connection.execute(f"CREATE MATERIALIZED VIEW {name} AS {query}"),
        )

    def rescale(self) -> None:
        buckets = self.random.randrange(1, 4)
        self._attempt(lambda fate: None, lambda: self.connection.execute(f"ALTER DATABASE SET parallelism = {buckets}"))

    def _change(self) -> Change:
        if self.rows and self.random.random() < 0.3:
            table, found = self.rows.pop(self.random.randrange(len(self.rows)))
            if table == "b" or self.random.random() < 0.5:
                return Change(table, (found,))
            self.rows.append((table, found))
            return Change(table, (found, self.random.randrange(_KEYS), self.random.randrange(9)))
        self.next_id += 1
        table = self.random.choice("ab")
        self.rows.append((table, self.next_id))
        return Change(table, (self.next_id, self.random.randrange(_KEYS), self.random.randrange(9)))

    def _commit(self, changes: list[Change], number: int) -> None:
        execute = self.connection.execute
        execute("BEGIN")
        try:
            for change in changes:
                execute(change.sql)
            execute(f"INSERT INTO done VALUES ({number})")
        except BaseException:
            with contextlib.suppress(Error):
                execute("ROLLBACK")
            raise
        execute("COMMIT")

    def _attempt(self, tell: Callable[[Fate], None], action: Callable[[], object]) -> None:
        try:
            action()
        except Error as failure:
            fate = self.case.fate(failure)
            tell(fate)
            # Who was overtaken ends.
            self.writer.failed |= failure.condition == "WRITER_FENCED"
        else:
            tell("acknowledged")


class Looker:
    """A process that reads while others write."""

    def __init__(self, case: Case, name: str, looks: int) -> None:
        self.case, self.looks = case, looks
        self.process = case.world.start(name)

    def start(self) -> Process:
        self.case.world.run_in(self.process, "main", self._main)
        return self.process

    def _main(self) -> None:
        seen: set[int] = set()
        try:
            with self.case.open(read_only=True) as connection:
                for number in range(self.looks):
                    self.case.world.sleep(0.05)
                    found = self.case.look(connection, f"{self.process.name}, look {number}")
                    if seen - found:
                        raise Violation(f"{self.process.name} saw {sorted(seen - found)}, and then no more")
                    seen = found
        except Error as failure:
            if not (self.case.may_be_late and failure.condition == "SNAPSHOT_TOO_OLD"):
                self.case.fate(failure)

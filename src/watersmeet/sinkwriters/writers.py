"""Sink writers: for each sink, a thread reads the changes of its relation commit by commit and writes them to the
target.

The database never waits for a target. The commit log keeps all unacknowledged changes, up to the limits
`DELIVERY_COMMITS` and `DELIVERY_BYTES` of `store.retention`.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, Literal

from watersmeet.catalog import Catalog, Relation, Sink, TopicWriter
from watersmeet.connectors import registry as connectors
from watersmeet.connectors.base.sources import Allowance
from watersmeet.connectors.base.targets import Delivery, SinkBatch, SinkOffset, Target, deliveries
from watersmeet.database.opened import OpenDatabase, Service
from watersmeet.errors import Error, error, error_from_json
from watersmeet.sinkwriters.batches import BATCH_ROWS, DeadLetterBatches, SinkBatches, shared_key
from watersmeet.store.changes import quoted
from watersmeet.store.checkpoints import checkpoint_upto
from watersmeet.store.positions import Delivered, StatusFile
from watersmeet.store.readers import Reader
from watersmeet.system.process import fault
from watersmeet.system.threads import Worker, Workers

#: The states of a sink writer. starting: it opens the target. filling: it writes the content. running: it writes
#: changes. paused: the rate limit is 0. retrying: the target can't be reached, and is tried again. stopped: after a
#: permanent error, until ALTER SINK … START. lost: undelivered changes are no longer kept. fenced: another writer
#: delivers.
State = Literal["starting", "filling", "running", "paused", "retrying", "stopped", "lost", "fenced"]

#: The state after a permanent error, for some conditions; for others it is "stopped".
_STATES: Final[dict[str, State]] = {"DELIVERY_LOST": "lost", "WRITER_FENCED": "fenced"}

#: The states that only ALTER SINK … START ends.
_ENDED: Final = ("stopped", "lost", "fenced")

#: If available, consecutive batches with up to this many rows are passed to the target together.
_GROUP_ROWS: Final = 4 * BATCH_ROWS
#: The interval at which a thread that waits for commits checks whether it should end.
_LOOK_S: Final = 0.1
#: After a failure, the target is tried again after times from this …
_FIRST_RETRY_S: Final = 0.1
#: … to this; see `Worker`.
_LAST_RETRY_S: Final = 30.0
#: The maximum time that FLUSH waits for the topic of a processor.
_FLUSH_S: Final = 10.0
#: While there is nothing to deliver, the position is saved after this many commits, so that they can be deleted.
_SAVED_COMMITS: Final = 256


@dataclass(frozen=True)
class Status:
    """The status of a sink writer. state: see `State`. problem: the reason if it is not running. offset: the newest
    acknowledged one.

    commits, rows, size_bytes: the size of the undelivered changes in the commit log. seconds: the age of the oldest of
    these. delivered_rows: the rows delivered since the process opened the database.
    """

    state: str
    problem: str | None = None
    offset: SinkOffset | None = None
    commits: int = 0
    rows: int = 0
    size_bytes: int = 0
    seconds: float = 0.0
    delivered_rows: int = 0


class SinkWriters(Service):
    """The sink writers of an open database. Safe for several threads."""

    def __init__(self, database: OpenDatabase) -> None:
        self._database = database
        self._workers: Workers[_SinkWriter] = Workers()
        self._telling = threading.Lock()
        self._status_file = StatusFile(database.layout, "SINKS.json")

    def start(self) -> None:
        """Deliver the sinks of the catalog, until the database is closed."""
        self._database.at_close(self._workers.end)
        self.follow()

    def follow(self) -> None:
        """Start and stop sink writers, so that each sink of the catalog has one, with its present options."""
        found = {d.id: d for d in deliveries(self._database.catalog)}
        self._workers.end([i for i, w in self._workers.all().items() if i in found and not w.delivers(found[i])])
        self._workers.reconcile({i: partial(_SinkWriter, self._database, d, self._tell) for i, d in found.items()})

    def reopen(self, delivery_ids: Iterable[str]) -> None:
        """Open the targets of deliveries again, for instance because a password has changed."""
        self._workers.end(delivery_ids)
        self.follow()

    def stop(self, delivery_ids: Iterable[str]) -> None:
        """Stop deliveries until `follow`. Their positions no longer change."""
        self._workers.end(delivery_ids)

    def delivered(self, *, wait: bool) -> dict[str, int]:
        """The number of records that each processor has written to its topic since the process opened the database.
        wait: first wait until all current records are written, except where the topic can't be written.
        """
        found: dict[str, int] = {}
        for relation in list(self._database.catalog.relations.values()):
            status = self.status(relation.id) if isinstance(relation, TopicWriter) else None
            if status is not None and status.problem is None and wait:
                self.wait(relation.id, _FLUSH_S)
                status = self.status(relation.id)
            if status is not None:
                found[relation.id] = status.delivered_rows
        return found

    def restart(self, delivery_id: str) -> None:
        """Let a stopped delivery resume at its offset, and let a waiting one retry at once."""
        delivering = self._workers.get(delivery_id)
        if delivering is not None:
            delivering.try_again()

    def status(self, delivery_id: str) -> Status | None:
        """The status of a delivery; None for an unknown id."""
        delivering = self._workers.get(delivery_id)
        return None if delivering is None else delivering.status()

    def wait(self, delivery_id: str, seconds: float) -> bool:
        """Wait until everything committed so far is acknowledged, or the delivery is stopped. False if neither happens
        within that time.
        """
        delivering = self._workers.get(delivery_id)
        return delivering is None or delivering.wait(self._database.log.head(), seconds)

    def _tell(self) -> None:
        """Report the states to other processes."""
        with self._telling:
            self._status_file.write(
                {i: {"state": d.state, "problem": d.problem} for i, d in self._workers.all().items()}
            )


def begin(database: OpenDatabase, delivery_id: str, generation: int, *, snapshot: bool) -> None:
    """Records that a new delivery begins with the current content, or (without `snapshot`) with the changes from now
    on.

    Call it before the delivery is in the catalog. Its relation must already have its content.
    """
    start = database.log.head()
    if not snapshot:
        database.sink_positions.begin(delivery_id, Delivered(generation, start))
        return
    reader = Reader(database.layout)
    try:
        while True:
            base = checkpoint_upto(database.layout, database.log, start).moment
            if reader.try_pin(base.transaction):
                break
            start = database.log.head()
        database.sink_positions.begin(delivery_id, Delivered(generation, base.transaction, start, base.head))
    finally:
        reader.close()


def check_keys(database: OpenDatabase, catalog: Catalog, sink: Sink) -> None:
    """Raises UNIQUE_VIOLATION if several rows share a key of the sink now."""
    conflicts = catalog.relations[sink.conflicts]
    with database.content.reader(catalog, [conflicts.id]) as (connection, _):
        rows = connection.execute(f"SELECT * FROM {quoted(conflicts.shown)}").to_arrow_table()
    if rows.num_rows:
        raise shared_key(sink.title, sink.primary_key, rows)


class _SinkWriter(Worker):
    """The sink writer of one delivery, which runs until it is stopped."""

    def __init__(self, database: OpenDatabase, delivery: Delivery, tell: Callable[[], None]) -> None:
        super().__init__("sink-writer", database.clock, _FIRST_RETRY_S, _LAST_RETRY_S)
        self.title = delivery.title
        self._database = database
        self._delivery = delivery
        self._tell = tell
        self._looking = threading.Lock()
        self._reached = -1
        self._delivered_rows = 0
        self._offset: SinkOffset | None = None
        self._handed: SinkOffset | None = None
        """The newest offset that was passed to the target, whether or not it is acknowledged."""
        self._limited: int | None = None
        self._allowance: Allowance | None = None
        """The allowance of the rate limit `_limited`."""
        self._position: Delivered | None = None
        self._behind: deque[tuple[int, int, int, int]] = deque()
        """(number, rows, bytes, time) of the commits with changes that `status` has read."""
        self._looked_upto = 0

    def delivers(self, delivery: Delivery) -> bool:
        """Whether the writer has the options of a delivery."""
        return self._delivery == delivery

    def try_again(self) -> None:
        """Retry at once, if it waits after a failure."""
        with self.changed:
            if self.state in _ENDED:
                self.state, self.problem = "starting", None
            self.wake()

    def wait(self, commit: int, seconds: float) -> bool:
        """See `SinkWriters.wait`."""
        with self.changed:
            return self.changed.wait_for(lambda: self._reached >= commit or self.state in _ENDED, seconds)

    def status(self) -> Status:
        """The current status of the sink."""
        log = self._database.log
        behind: list[tuple[int, int, int, int]] = []
        # The dead letters of a topic are only known once they are delivered.
        if self._position is not None and self.state != "lost" and not self._delivery.dead_letters:
            begun = max(self._reached, self._position.since, self._position.commit - (not self._position.last))
            with self._looking, contextlib.suppress(Error):  # commits were deleted: its thread will detect the loss
                for number in range(max(begun, self._looked_upto) + 1, log.head() + 1):
                    commit = log.read(number)
                    change = commit.relations.get(self._position.delivers(self._delivery.relation, number))
                    if change is not None:
                        changed_rows = change.inserted_rows + change.deleted_rows
                        self._behind.append((number, changed_rows, change.size_bytes, commit.time_us))
                    self._looked_upto = number
                while self._behind and self._behind[0][0] <= begun:
                    self._behind.popleft()
                behind = [*self._behind]
        seconds = max(0.0, time.time() - behind[0][3] / 1e6) if behind else 0.0
        rows, size_bytes = sum(b[1] for b in behind), sum(b[2] for b in behind)
        return Status(
            self.state, self.problem, self._offset, len(behind), rows, size_bytes, seconds, self._delivered_rows
        )

    def work(self) -> None:
        try:
            self._deliver()
        except OSError as cause:
            self._retry(str(cause))
        except Error as cause:
            if cause.condition == "RUNTIME_UNAVAILABLE":  # a secret whose value is outside of the database
                self._retry(f"{cause.message}. {cause.detail or ''}".rstrip())
                return
            lost = self._database.sink_positions.since(self._delivery.id) is None
            self._fail(self._lost() if lost else cause)
        except Exception as cause:
            self._fail(error("INTERNAL_ERROR", f"{type(cause).__name__}: {cause}"))

    def _retry(self, problem: str) -> None:
        """Wait until the next attempt, longer each time."""
        self._show("retrying", self.failed(problem))
        self.back_off()

    def _fail(self, cause: Error) -> None:
        """Wait until the sink writer is resumed."""
        if self.stopping.is_set() or self._database.is_closed:
            return
        explained = self._database.log.explain(cause)
        problem = explained if isinstance(explained, Error) else cause
        parts = filter(None, [problem.message, problem.detail, problem.hint])
        told = f"{problem.condition}: {'. '.join(part.rstrip('.') for part in parts)}"
        self._show(_STATES.get(problem.condition, "stopped"), told)
        self.rest()

    def _show(self, state: State, problem: str | None = None) -> None:
        if self.show(state, problem):
            self._tell()

    def _deliver(self) -> None:
        """Opens the target, and delivers until it is stopped or fails."""
        database, delivery = self._database, self._delivery
        position = self._resumed()
        self._position = position
        relation = self._relation()
        connector = connectors.connector_of(delivery)
        if self.state not in ("retrying", "running"):
            self._show("starting")
        target = connector.open(delivery, database.layout.id, self.stopping.is_set)
        try:
            # An overtaken writer must not fence the current one.
            database.log.check()
            fault("sink.open")
            found = target.open(delivery.generation)
            fault("sink.opened")
            offset = self._agreed(position, found) if connector.remembers else _offset(position)
            self._offset = offset
            batches: SinkBatches | DeadLetterBatches
            if delivery.dead_letters:
                batches = DeadLetterBatches(database, delivery, position)
            else:
                batches = SinkBatches(database, delivery, relation, position, self._most_rows)
            with contextlib.closing(_Flow(batches, offset, self._most_rows)) as flow:
                self._write(target, flow)
        finally:
            target.close()

    def _write(self, target: Target, flow: _Flow) -> None:
        for group in flow.groups():
            if group:
                self._wait_for_allowance()
            if self.stopping.is_set():
                return
            self._database.log.check()
            if group:
                if self._position is not None and self._position.bound:
                    self._save(replace(self._position, bound=0))  # first: the process may miss an acknowledgement
                self._handed = group[-1].offset
                fault("sink.deliver")
                target.deliver(group)
                fault("sink.delivered")
                self._acknowledge(group, flow.since)
                fault("sink.acknowledged")
            self.succeeded()
            self._show("filling" if flow.in_content else "running")  # first: waiting callers read it
            if flow.caught_up:
                self._reach(flow.since)
            if not group and flow.caught_up:
                self._check_relation()
                target.rest()
                self._database.log.wait_past(flow.since, _LOOK_S)

    def _limit(self) -> int | None:
        """The maximum number of rows written per second; None for no limit."""
        sink = self._database.catalog.relations.get(self._delivery.id)
        return sink.rate_limit if isinstance(sink, Sink) else None

    def _most_rows(self) -> int:
        """The number of rows that are passed to the target together, if that many are available; above 0."""
        limit = self._limit()
        return _GROUP_ROWS if limit is None else max(1, min(_GROUP_ROWS, limit))

    def _wait_for_allowance(self) -> None:
        """Waits until the rate limit, which may be altered meanwhile, allows a row, or until the sink writer is
        stopped.
        """
        while not self.stopping.is_set():
            limit = self._limit()
            if limit != self._limited:
                self._limited, self._allowance = limit, Allowance(limit) if limit else None
            if limit is None or (self._allowance is not None and self._allowance.at(time.monotonic_ns() // 1000)):
                return
            if limit == 0:
                self._show("paused")
            wait_s = _LOOK_S if self._allowance is None else min(_LOOK_S, self._allowance.wait_us / 1e6)
            self.stopping.wait(wait_s)

    def _acknowledge(self, group: list[SinkBatch], since: int) -> None:
        assert self._position is not None
        offset = self._offset = group[-1].offset
        rows = sum(p.rows.num_rows for p in group)
        self._delivered_rows += rows
        if self._allowance is not None:
            self._allowance.take(rows)
        self._save(replace(self._position, since=since, commit=offset.commit, rows=offset.rows, last=offset.last))

    def _save(self, position: Delivered) -> None:
        self._position = position
        self._database.sink_positions.save(self._delivery.id, position)

    def _reach(self, commit: int) -> None:
        """Records that everything up to `commit` is delivered."""
        assert self._position is not None
        if commit - self._position.since >= _SAVED_COMMITS:
            self._save(replace(self._position, since=commit))
        with self.changed:
            self._reached = commit
            self.changed.notify_all()

    def _resumed(self) -> Delivered:
        """The last saved position. Raises DELIVERY_LOST."""
        found = self._database.sink_positions.resume(self._delivery.id)
        if found is None:
            raise self._lost()
        return found

    def _lost(self) -> Error:
        return error(
            "DELIVERY_LOST",
            f"{self._delivery.title} can't go on: changes that were not delivered are no longer kept",
            hint=self._delivery.renewal,
        )

    def _relation(self) -> Relation:
        found = self._database.catalog.relations.get(self._delivery.relation)
        if found is None:
            self.stopping.set()
            raise error("UNDEFINED_RELATION", f"{self._delivery.title} delivers a relation that was dropped")
        return found

    def _check_relation(self) -> None:
        """Raises the error that stopped the view whose changes are delivered."""
        failed = self._database.log.progress().stopped.get(self._delivery.relation)
        if failed is not None:
            raise error_from_json(failed)

    def _agreed(self, position: Delivered, found: SinkOffset | None) -> SinkOffset | None:
        """The offset that the target reports, from which to resume. Raises DELIVERY_MISMATCH if that is impossible."""
        known, generation = _offset(position), self._delivery.generation
        if found is not None and found.generation < generation:
            found = None
        if self._handed is not None and found is not None and found > self._handed:
            raise error(
                "WRITER_FENCED",
                f"another process delivers {self._delivery.title}",
                detail="It has delivered what this one has not: it runs a copy of this database.",
                hint="Close one of both, and drop the sinks in the copy.",
            )
        if found is not None and found.commit >= (position.bound or self._database.log.head() + 1):
            since = position.bound - 1 if position.bound else self._database.log.head()
            raise self._mismatch(
                f"its target has commit {found.commit}, and the database had {since} commits when it was opened",
                "The database is an older copy of the one that delivered it.",
            )
        if known is not None and (found is None or found < known):
            there = "nothing of it" if found is None else f"commit {found.commit}, {found.rows} rows of it"
            raise self._mismatch(
                f"its target has {there}, and had acknowledged commit {known.commit}, {known.rows} rows of it",
                "Delivered rows, or their offset, were deleted in the target.",
            )
        return found

    def _mismatch(self, what: str, detail: str) -> Error:
        return error(
            "DELIVERY_MISMATCH",
            f"{self._delivery.title} can't go on: {what}",
            detail=detail,
            hint=self._delivery.renewal,
        )


def _offset(position: Delivered) -> SinkOffset | None:
    """The newest acknowledged offset."""
    if position.commit < 0:
        return None
    return SinkOffset(position.generation, position.commit, position.rows, position.last)


class _Flow:
    """The batches of a delivery in groups, each of which is passed to the target at once."""

    def __init__(
        self, batches: SinkBatches | DeadLetterBatches, offset: SinkOffset | None, most_rows: Callable[[], int]
    ) -> None:
        """most_rows: the size at which a group ends."""
        self._most_rows = most_rows
        self._changes: Generator[SinkBatch | None] | None = None
        self._batches = batches
        self._offset = offset
        self.in_content = True
        self.caught_up = False

    @property
    def since(self) -> int:
        """The commit above which all commits are needed after the last group."""
        return self._batches.since

    def groups(self) -> Iterator[list[SinkBatch]]:
        """The next existing batches; an empty list if there are none. Never ends."""
        group: list[SinkBatch] = []
        rows = 0
        for batch in self._batches.content(self._offset):
            group.append(batch)
            rows += batch.rows.num_rows
            if rows >= self._most_rows():
                yield group
                group, rows = [], 0
        if group:
            yield group
        self.in_content = False
        changes = self._changes = self._batches.changes(self._offset)
        while True:
            group, rows, self.caught_up = [], 0, False
            while rows < self._most_rows() and not self.caught_up:
                following = next(changes)
                if following is None:
                    self.caught_up = True
                else:
                    group.append(following)
                    rows += following.rows.num_rows
            yield group

    def close(self) -> None:
        """Releases the commits."""
        if self._changes is not None:
            self._changes.close()

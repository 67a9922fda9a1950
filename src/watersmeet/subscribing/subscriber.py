"""Subscribers: the result of `Connection.subscribe`."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
import weakref
from collections import deque
from collections.abc import AsyncIterator, Iterator, Sequence
from types import TracebackType
from typing import Final, Self

import duckdb
import numpy as np
import pyarrow as pa

from watersmeet.catalog import Catalog, Relation, View
from watersmeet.database.opened import OpenDatabase
from watersmeet.database.reading import check_running, conformed, failed_query
from watersmeet.database.sessions.context import Session, check_named
from watersmeet.dialects.schemas import near_relations, relation_written
from watersmeet.errors import Error, again, error
from watersmeet.store.changes import quoted
from watersmeet.store.checkpoints import Moment, check_there, expired, pin_past
from watersmeet.store.readers import KEPT, Reader, low_water_number
from watersmeet.subscribing.updates import (
    BATCH_ROWS,
    ChangeBatch,
    CommitReader,
    Followed,
    Step,
    Update,
    dropped,
    tailer_of,
)
from watersmeet.values.types import arrow_schema

#: The limit of the changes that wait for a subscriber, in addition to the oldest batch.
BUFFER_BYTES: Final = 16 << 20

#: A subscriber that is at most this many commits behind receives new ones from the tailer, and reads the others itself.
_NEAR_COMMITS: Final = 64

#: The interval of polling for rows that depend on time, or on an epoch in this thread.
_POLL_S: Final = 0.1


class Subscriber:
    """The changes of relations, commit by commit, as an iterator and an async iterator of `Update`.

    Each commit's changes are returned exactly once, in the order of commits; the changes of all relations in a commit
    belong to one moment. The content at the first commit plus the sum of the changes is always the content at the last
    commit: the result that a SELECT had when that commit was the newest. The first update is the content at one commit,
    unless `after` or `snapshot=False` is given; it may have several parts, of which only the last is complete.

    `token` is the newest commit that was returned completely: `connection.subscribe(…, after=token)`, in this process
    or another one, resumes exactly there, if its commits are still kept.

    A subscriber may be used from several threads; each update goes to one of them. It ends when it is closed, when it
    has reached `up_to`, or with an error: HISTORY_GONE if changes that it still needs are no longer kept,
    SLOW_SUBSCRIBER if more than `buffer_bytes` of changes were waiting, UNDEFINED_RELATION if a relation was dropped,
    the error of a stopped view, CONNECTION_CLOSED when the database is closed.
    """

    def __init__(
        self,
        database: OpenDatabase,
        relations: Sequence[Relation],
        *,
        after: int | None = None,
        up_to: int | None = None,
        snapshot: bool = True,
        progress: bool = False,
        buffer_bytes: int = BUFFER_BYTES,
    ) -> None:
        """relations: existing relations with stored rows. For the others, see `Connection.subscribe`."""
        self._database = database
        self._tailer = tailer_of(database)
        self.followed = tuple(Followed(r) for r in relations)
        self._up_to = up_to
        self._progress = progress
        self._buffer_bytes = buffer_bytes
        self._taking = threading.RLock()  # for updates that the subscriber reads itself
        self._changed = threading.Condition()  # for all attributes below
        self._queue: deque[Step] = deque()
        self._waiting_bytes = 0
        self._begun = 0
        self._reached = self._reached_us = 0
        self._given = -1
        self._complete = False
        self._problem: Error | None = None
        self._closed = False
        self._reads = True
        """Whether the subscriber still reads commits itself."""
        self._waiter: tuple[asyncio.AbstractEventLoop, asyncio.Future[None]] | None = None
        self._lease = Reader(database.layout)
        weakref.finalize(self, self._lease.close)
        try:
            self._source: Iterator[Update] | None = self._begin(after, snapshot=snapshot)
        except BaseException:
            self._lease.close()
            raise

    @property
    def token(self) -> int | None:
        """The newest commit that was returned completely; None while the first content is incomplete."""
        with self._changed:
            if not self._complete:
                return None
            return self._given if self._queue or self._reads else self._shown(self._reached)

    @property
    def ended(self) -> bool:
        """Whether no more updates follow: it was closed, or has returned everything up to `up_to`."""
        with self._changed:
            done = self._up_to is not None and self._complete and self._given >= self._up_to
            return self._closed or done

    @property
    def is_awaited(self) -> bool:
        """Whether an event loop waits for updates."""
        return self._waiter is not None

    def take(self) -> Update | None:
        """The next update; None if there is none now. Never waits for a commit. Raises the error that ended it."""
        with self._taking:
            if self._closed:
                return None
            if self._source is not None:
                found = next(self._source, None)
                if found is not None:
                    return self._handed(found)
                self._source = None
            return self._queued()

    def wait(self, seconds: float | None = None) -> bool:
        """Waits until there may be an update, or the subscriber has ended. False after that many seconds without an
        update.
        """
        database = self._database
        until_s = None if seconds is None else time.monotonic() + seconds
        while True:
            if self._drives and not self._has_more():
                database.flush()
            left_s = _POLL_S if until_s is None else min(_POLL_S, until_s - time.monotonic())
            with self._changed:
                if self._changed.wait_for(self._has_more, max(left_s, 0)):
                    return True
            if until_s is not None and time.monotonic() >= until_s:
                return False

    def next(self, timeout_seconds: float | None = None) -> Update | None:
        """The next update. Waits at most that long (None for no limit). Returns None at the end, or after that time."""
        until_s = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        while True:
            found = self.take()
            if found is not None or self.ended:
                return found
            left_s = None if until_s is None else until_s - time.monotonic()
            if not self.wait(left_s) and left_s is not None:
                return self.take()

    @property
    def reads(self) -> bool:
        """Whether `take` may take long, because it reads content or commits itself."""
        return self._source is not None

    def settle(self, most_s: float) -> None:
        """Waits until `take` can return everything that is committed now, for at most `most_s` seconds."""
        if self._drives:
            self._database.flush()
        head = self._shown(self._database.log.head())
        with self._changed:
            self._changed.wait_for(lambda: self._has_more() or self._reached >= head, most_s)

    async def arrive(self) -> None:
        """Returns when there may be an update, or the subscriber has ended."""
        loop = asyncio.get_running_loop()
        with self._changed:
            if self._has_more():
                return
            waiter = loop.create_future()
            self._waiter = loop, waiter
        try:
            await waiter
        finally:
            self._waiter = None

    def wake(self) -> None:
        """Wakes all waiting threads, as an update would."""
        with self._changed:
            self._wake()

    async def take_async(self) -> Update | None:
        """Like `take`; slow reads run in another thread."""
        return await asyncio.to_thread(self.take) if self.reads else self.take()

    def __iter__(self) -> Iterator[Update]:
        return self

    def __next__(self) -> Update:
        found = self.next()
        if found is None:
            raise StopIteration
        return found

    def __aiter__(self) -> AsyncIterator[Update]:
        return self

    async def __anext__(self) -> Update:
        while True:
            found = await self.take_async()
            if found is not None:
                return found
            if self.ended:
                raise StopAsyncIteration
            await self.arrive()

    def close(self) -> None:
        """Ends the subscriber. Threads that wait for an update receive None. May be called again, and from any
        thread.
        """
        self._tailer.leave(self)
        with self._changed:
            self._closed = True
            self._queue.clear()
            self._wake()
        with self._taking:
            source, self._source = self._source, None
            if source is not None:
                source.close()  # type: ignore[attr-defined]
            self._lease.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.close)

    # ---- called by the tailer

    def hand(self, steps: Sequence[Step], commit: int, time_us: int) -> None:
        """See `tailer.Listener`."""
        with self._changed:
            if commit <= self._begun or self._closed:
                return
            for step in steps:
                size_bytes = self._size(step)
                if size_bytes and step.commit > self._begun:
                    self._queue.append(step)
                    self._waiting_bytes += size_bytes
            self._reached, self._reached_us = commit, time_us
            slow = self._waiting_bytes > self._buffer_bytes and (
                self._waiting_bytes - self._size(self._queue[0]) > self._buffer_bytes
            )
            if not slow:
                self._wake()
        if slow:
            self._tailer.leave(self)
            self.fail(self._too_slow())

    def fail(self, problem: Error) -> None:
        """See `tailer.Listener`."""
        with self._changed:
            self._problem = self._problem or problem
            if problem.condition == "SLOW_SUBSCRIBER":
                self._queue.clear()
                self._reached = self._given
            self._wake()

    # ---- the beginning

    def _begin(self, after: int | None, *, snapshot: bool) -> Iterator[Update]:
        """Finds and pins the first commit, and reads up to the commits that the tailer hands over."""
        database = self._database
        log, relations = database.log, [f.relation for f in self.followed]
        if after is not None:
            moment = pin_past(database.layout, log, self._lease, after)
            check_there(log, relations, after)
        elif not snapshot:
            moment = self._now()
        else:
            self._check_up_to(log.head())
            return self._content()
        self._check_up_to(moment.head)
        self._begins(moment)
        return self._catch_up(moment)

    def _check_up_to(self, begin: int) -> None:
        if self._up_to is not None and self._up_to < begin:
            raise error(
                "INVALID_PARAMETER",
                f"a subscription up to commit {self._up_to} can't begin at commit {begin}",
                hint="Name an earlier commit to begin after.",
            )

    def _now(self) -> Moment:
        """The newest moment, pinned."""
        log = self._database.log
        while True:
            try:
                return pin_past(self._database.layout, log, self._lease, log.head())
            except Error as cause:
                if cause.condition != "HISTORY_GONE":  # otherwise there were many new commits meanwhile
                    raise

    def _begins(self, moment: Moment) -> None:
        """Records that everything up to `moment` was returned; later commits stay pinned, up to the limits for late
        readers.
        """
        self._lease.pin(moment.transaction, KEPT)
        with self._changed:
            self._complete = True
            self._begun = self._reached = moment.head
            if moment.head:
                self._reached_us = self._database.log.read(moment.head).time_us
            if not self._progress:
                self._given = moment.head

    def _content(self) -> Iterator[Update]:
        """The content at one moment, followed by the changes since then."""
        log = self._database.log
        with contextlib.ExitStack() as entered:
            connection, catalog, moment = self._read_content(entered)
            time_us = log.read(moment.head).time_us if moment.head else 0
            last: tuple[ChangeBatch, ...] = ()
            for one in self.followed:
                for batch in self._rows(connection, one, catalog.relations[one.relation.id]):
                    if last:
                        yield Update(moment.head, time_us, last, is_snapshot=True, is_complete=False)
                    last = (batch,)
        self._begins(moment)
        changes = self._catch_up(moment)
        first = next(changes, None)  # so that the tailer hands it later changes
        yield Update(moment.head, time_us, last, is_snapshot=True)
        if first is not None:
            yield first
            yield from changes

    def _read_content(self, entered: contextlib.ExitStack) -> tuple[duckdb.DuckDBPyConnection, Catalog, Moment]:
        """A connection that shows one pinned moment, and the catalog with the names that it uses."""
        database = self._database
        while True:
            self._lease.pin(database.log.head())  # until the moment is known
            catalog = database.catalog
            for one in self.followed:
                if one.relation.id not in catalog.relations:
                    raise dropped(one.relation)
            ids = [f.relation.id for f in self.followed]
            connection, moment = entered.enter_context(database.content.reader(catalog, ids))
            if self._lease.try_pin(moment.transaction):
                return connection, catalog, moment
            entered.close()

    def _rows(self, connection: duckdb.DuckDBPyConnection, one: Followed, now: Relation) -> Iterator[ChangeBatch]:
        """The rows of a relation. now: its current definition, which may have another name and further columns."""
        schema = arrow_schema(one.relation.columns, positional=False)
        columns = ", ".join(quoted(c.name) for c in now.columns[: len(schema)])
        try:
            result = connection.execute(f"SELECT {columns} FROM {quoted(now.shown)}").to_arrow_reader(BATCH_ROWS)
            for part in result:
                rows = conformed(pa.Table.from_batches([part]), schema)
                yield from one.batches(rows, np.ones(rows.num_rows, np.int64))
        except duckdb.Error as cause:
            raise failed_query(cause, "") from cause

    def _catch_up(self, moment: Moment) -> Iterator[Update]:
        """The changes after a moment, up to the commits that the tailer hands over."""
        database = self._database
        reader = CommitReader(database.log, database.segments, moment)
        try:
            while not self._is_past(reader) and database.log.head() - reader.moment.head > _NEAR_COMMITS:
                yield from self._read(reader, min(database.log.head(), reader.moment.head + _NEAR_COMMITS))
                self._lease.pin(reader.moment.transaction, KEPT)
            with self._changed:
                self._begun = reader.moment.head
            yield from self._read(reader, self._tailer.join(self))
        except Error as cause:
            if low_water_number(database.layout) > reader.moment.transaction:
                raise expired(database.layout, database.log, f"commit {reader.moment.head}") from cause
            raise
        finally:
            self._lease.release()
        time_us = database.log.read(reader.moment.head).time_us if reader.moment.head else 0
        with self._changed:
            self._reads = False
            if reader.moment.head > self._reached:
                self._reached, self._reached_us = reader.moment.head, time_us

    def _is_past(self, reader: CommitReader) -> bool:
        return self._up_to is not None and reader.moment.head >= self._up_to

    def _read(self, reader: CommitReader, upto: int) -> Iterator[Update]:
        while reader.moment.head < upto and not self._is_past(reader):
            step = reader.next(self.followed)
            if step.changes:
                yield self._update(step)

    # ---- returned updates

    def _queued(self) -> Update | None:
        with self._changed:
            if self._queue and not self._is_beyond(self._queue[0].commit):
                step = self._queue.popleft()
                self._waiting_bytes -= self._size(step)
                return self._handed(self._update(step))
            reached = self._shown(self._reached)
            if reached > self._given:
                self._given = reached
                if self._progress:
                    return Update(reached, self._reached_us)
            if self._problem is not None and not self.ended:
                raise again(self._problem)
            return None

    def _handed(self, update: Update) -> Update:
        with self._changed:
            if update.is_complete:
                self._given = update.commit
        return update

    def _update(self, step: Step) -> Update:
        batches = (b for f in self.followed for b in step.changes.get(f.key, ()))
        return Update(step.commit, step.time_us, tuple(batches))

    def _size(self, step: Step) -> int:
        return sum(step.size_bytes.get(f.key, 0) for f in self.followed)

    def _shown(self, commit: int) -> int:
        """The smaller one of the commit and `up_to`."""
        return commit if self._up_to is None else min(commit, self._up_to)

    def _is_beyond(self, commit: int) -> bool:
        return self._up_to is not None and commit > self._up_to

    def _has_more(self) -> bool:
        """Whether `take` may return an update, or raises an error."""
        return (
            self._reads
            or bool(self._queue)
            or self._closed
            or self._problem is not None
            or (self._shown(self._reached) > self._given and (self._progress or self._up_to is not None))
        )

    @property
    def _drives(self) -> bool:
        """Whether epochs run in the threads that wait for them."""
        database = self._database
        return database.runtime == "inprocess" and not database.read_only and not database.is_closed

    def _too_slow(self) -> Error:
        return error(
            "SLOW_SUBSCRIBER",
            f"more than {self._buffer_bytes} bytes of changes waited for a subscriber",
            detail=f"All up to commit {self._given} was handed out.",
            hint=f"Subscribe again after commit {self._given}.",
        )

    def _wake(self) -> None:
        self._changed.notify_all()
        if self._waiter is not None:
            loop, waiter = self._waiter
            with contextlib.suppress(RuntimeError):  # the loop was closed
                loop.call_soon_threadsafe(_arrived, waiter)


def _arrived(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


def subscribe(
    session: Session,
    named: Sequence[str | Relation],
    *,
    after: int | None = None,
    up_to: int | None = None,
    snapshot: bool = True,
    progress: bool = False,
    buffer_bytes: int | None = None,
) -> Subscriber:
    """A subscriber of relations, given by name or as entries of the session's catalog. See `Connection.subscribe`."""
    relations = [r if isinstance(r, Relation) else _named(session, r) for r in named]
    if not relations:
        raise error("INVALID_PARAMETER", "name at least one relation to subscribe to")
    if len({r.id for r in relations}) < len(relations):
        raise error("INVALID_PARAMETER", "a relation can be named once in a subscription")
    for relation in relations:
        # In the form that other sessions see: relations created by the open transaction are staged.
        if (refused := refusal(session.database.catalog.relations.get(relation.id, relation))) is not None:
            raise refused
    check_named(session, [r.id for r in relations])
    check_running(session, [r.id for r in relations])
    return Subscriber(
        session.database,
        relations,
        after=after,
        up_to=up_to,
        snapshot=snapshot,
        progress=progress,
        buffer_bytes=BUFFER_BYTES if buffer_bytes is None else buffer_bytes,
    )


def refusal(relation: Relation) -> Error | None:
    """The reason why a relation can't be subscribed to."""
    if relation.is_stored and relation.is_there:
        return None
    if relation.is_stored and not relation.ready:
        return error("FEATURE_NOT_SUPPORTED", f"{relation.title} is being filled", hint="SHOW JOBS shows its progress.")
    if relation.is_stored:
        return error(
            "FEATURE_NOT_SUPPORTED",
            f"{relation.title} can't be subscribed to in the transaction that made it",
            hint="COMMIT first.",
        )
    kind = "a view is a text" if isinstance(relation, View) else "it has no rows that are stored"
    return error(
        "FEATURE_NOT_SUPPORTED",
        f"{relation.title} can't be subscribed to",
        detail=f"Subscribers follow stored rows, and {kind}.",
        hint="CREATE MATERIALIZED VIEW … AS SELECT … FROM it, and subscribe to that.",
    )


def _named(session: Session, name: str) -> Relation:
    found = relation_written(session.catalog, name)
    if found is None:
        hint = near_relations(session.catalog, name, None)
        raise error("UNDEFINED_RELATION", f'relation "{name}" does not exist', hint=hint)
    return found

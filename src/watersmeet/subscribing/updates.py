"""The updates of subscribers, commit by commit, and the tailer: one thread that reads each commit once for all of them.

The tailer never waits for a subscriber. Each subscriber has a queue of batches, which all subscribers share. A
subscriber whose queue grows too long is ended.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import numpy as np
import pyarrow as pa

from watersmeet.catalog import Relation
from watersmeet.database.opened import OpenDatabase, Service
from watersmeet.database.sessions.context import Inbox
from watersmeet.database.transaction import Change, consolidated
from watersmeet.errors import Error, error, error_from_json
from watersmeet.store.changes import Diff, fitted
from watersmeet.store.checkpoints import EMPTY, Moment, past_moment
from watersmeet.store.commits import CommitLog
from watersmeet.store.manifests import Commit, RelationChange
from watersmeet.store.readers import ACTIVE, Reader
from watersmeet.store.segmentfiles import SegmentFiles
from watersmeet.system.threads import Worker
from watersmeet.values.types import arrow_schema

#: The maximum number of rows of a batch.
BATCH_ROWS: Final = 1 << 16

#: The approximate memory of a batch in addition to its columns.
_BATCH_BYTES: Final = 2048


@dataclass(frozen=True, eq=False)
class ChangeBatch:
    """Rows of one relation that a commit added or removed. Shared by subscribers: don't modify it.

    relation: the name that the relation had when the subscriber began, with its schema unless that is the default one.
    rows: an Arrow batch with the relation's columns, at most 65,536 rows. diffs: int64, for each row how often it was
    added (above 0) or removed (below 0), never 0.
    """

    relation: str
    rows: pa.RecordBatch
    diffs: Diff
    _made: dict[Any, Any] = field(default_factory=dict, repr=False)

    def made(self, key: Any, make: Callable[[ChangeBatch], Any]) -> Any:
        """The result of `make`, for example an encoded text, cached under `key`."""
        if key not in self._made:
            self._made[key] = make(self)
        return self._made[key]


@dataclass(frozen=True)
class Update:
    """The changes of a commit in the relations of a subscriber, in the order in which these were named.

    commit: its number. time_us: its time, in microseconds since 1970 (UTC). batches: for each relation, deletions
    before insertions; empty if nothing changed. is_snapshot: whether it is the content at that commit, or a part of it,
    not a change. is_complete: False if more of the same commit follows. A subscriber that begins after the commit of a
    complete update receives exactly the updates that follow it.
    """

    commit: int
    time_us: int
    batches: tuple[ChangeBatch, ...] = ()
    is_snapshot: bool = False
    is_complete: bool = True


@dataclass(frozen=True)
class Followed:
    """A relation of a subscriber: its id, its name, and its columns when the subscriber began."""

    relation: Relation

    @property
    def key(self) -> tuple[Any, ...]:
        """A key that is equal for two that need the same changes."""
        return self.relation.id, self.relation.shown, self.relation.columns

    def batches(self, rows: pa.Table, diffs: Diff) -> tuple[ChangeBatch, ...]:
        """The rows as batches with the columns' names."""
        found = []
        for start in range(0, rows.num_rows, BATCH_ROWS):
            part = rows.slice(start, BATCH_ROWS).combine_chunks()
            found.append(ChangeBatch(self.relation.shown, part.to_batches()[0], diffs[start : start + BATCH_ROWS]))
        return tuple(found)


@dataclass(frozen=True)
class Step:
    """A commit with changes of followed relations. changes: by `Followed.key`. size_bytes: the size of the changes, by
    key.
    """

    commit: int
    time_us: int
    changes: Mapping[tuple[Any, ...], tuple[ChangeBatch, ...]]
    size_bytes: Mapping[tuple[Any, ...], int]


class CommitReader:
    """Reads the changes of commits in sequence. The set of relations may change. For one thread.

    The commit of an epoch changes the views, and changes tables by all transactions that no earlier epoch reflects.
    After it, all have the content of one moment, which a SELECT would show. Without views, each transaction changes its
    tables separately.
    """

    def __init__(self, log: CommitLog, segments: SegmentFiles, moment: Moment) -> None:
        """moment: that of the commit before the first one to read."""
        self._log, self._segments = log, segments
        self._moment = moment

    @property
    def moment(self) -> Moment:
        """The moment of the last commit read. All commits after its transaction are needed."""
        return self._moment

    def next(self, followed: Iterable[Followed]) -> Step:
        """The changes of the next commit, which must exist."""
        number = self._moment.head + 1
        commit = self._log.read(number)
        before = self._moment.transaction
        shown = max(past_moment(self._log, number).transaction, before)
        changes, sizes = {}, {}
        for one in followed:
            found = self._changed(one.relation, commit, before, shown)
            if found and (batches := self._batches(one, found)):
                changes[one.key] = batches
                sizes[one.key] = sum(b.rows.nbytes + b.diffs.nbytes + _BATCH_BYTES for b in batches)
        self._moment = Moment(number, shown)
        return Step(number, commit.time_us, changes, sizes)

    def _changed(self, relation: Relation, commit: Commit, before: int, shown: int) -> list[RelationChange]:
        if relation.is_fed_by_circuit:
            commits: Sequence[Commit] = (commit,)
        else:
            commits = [self._log.read(n) for n in range(before + 1, shown + 1)]
        return [c.relations[relation.id] for c in commits if relation.id in c.relations]

    def _batches(self, one: Followed, changes: list[RelationChange]) -> tuple[ChangeBatch, ...]:
        stored = one.relation.as_stored
        schema = arrow_schema(stored.columns, positional=False)
        parts = [self._segments.read_change(blob) for c in changes for blob in c.blobs]
        if not parts:
            return ()
        rows = pa.concat_tables([fitted(t, schema, stored.fills).select(schema.names) for t, _ in parts])
        change = Change(rows, np.concatenate([d for _, d in parts]))
        if not one.relation.only_grows:
            change = consolidated(change)
            order = np.argsort(change.diffs > 0, kind="stable")
            change = Change(change.table.take(pa.array(order)), change.diffs[order])
        names = [c.name for c in one.relation.columns]
        return one.batches(change.table.rename_columns(names), change.diffs)


#: The interval at which the thread checks whether it should end.
_POLL_S: Final = 0.1

#: The maximum number of commits in one round.
_ROUND_COMMITS: Final = 64


class Listener(Protocol):
    """The interface of a subscriber to the tailer. Its methods must not block."""

    @property
    def followed(self) -> Sequence[Followed]:
        """The followed relations, which never change."""
        ...

    @property
    def is_awaited(self) -> bool:
        """Whether the subscriber waits in a thread where no epoch can run."""
        ...

    def hand(self, steps: Sequence[Step], commit: int, time_us: int) -> None:
        """Receives all changes of its relations since the last call, up to `commit`."""
        ...

    def fail(self, problem: Error) -> None:
        """Receives the error after which no updates follow."""
        ...


class Tailer(Service):
    """The tailer of an open database. Its thread runs while there are subscribers. Thread-safe."""

    def __init__(self, database: OpenDatabase) -> None:
        self._database = database
        self._lock = threading.Lock()
        self._listeners: weakref.WeakSet[Listener] = weakref.WeakSet()
        self._thread: _Tailing | None = None
        self._upto = 0
        """The last commit of the current or previous round."""
        self._ending = False

    def start(self) -> None:
        """Registers the tailer to end with the database."""
        self._database.at_close(self.close)

    def join(self, listener: Listener) -> int:
        """From now on, passes all commits after the returned one to `listener`. Raises CONNECTION_CLOSED."""
        log = self._database.log
        with self._lock:
            if self._ending or self._database.is_closed:
                raise error("CONNECTION_CLOSED", "the connection is closed")
            self._listeners.add(listener)
            if self._thread is None:
                self._upto = log.head()
                reader = CommitReader(
                    log, self._database.segments, past_moment(log, self._upto) if self._upto else EMPTY
                )
                self._thread = _Tailing(self, self._database, reader)
                self._thread.start()
            return self._upto

    def leave(self, listener: Listener) -> None:
        """Passes no further commits to the listener. May be called again."""
        with self._lock:
            self._listeners.discard(listener)

    def close(self) -> None:
        """Ends all subscribers, and the thread."""
        with self._lock:
            self._ending = True
            thread = self._thread
        if thread is not None:
            thread.join()
        self.fail(error("CONNECTION_CLOSED", "the connection is closed"))

    def goes_on(self) -> bool:
        """Whether there are subscribers. Without any, the thread ends; the next subscriber starts another one."""
        with self._lock:
            if self._listeners and not self._ending:
                return True
            self._thread = None
            return False

    def look(self, reader: CommitReader) -> None:
        """Waits briefly for commits, and passes them to the listeners."""
        database = self._database
        if database.runtime == "inprocess" and not database.read_only and self._is_awaited:
            database.flush()
        if not database.log.wait_past(reader.moment.head, _POLL_S):
            if not database.read_only and database.engine.failure is not None:
                raise database.engine.failure
            return
        with self._lock:  # a new subscriber gets the commits after this round
            upto = self._upto = min(database.log.head(), reader.moment.head + _ROUND_COMMITS)
            listeners = list(self._listeners)
        followed = {f.key: f for listener in listeners for f in listener.followed}
        steps = []
        while reader.moment.head < upto:
            step = reader.next(followed.values())
            if step.changes:
                steps.append(step)
        time_us = database.log.read(upto).time_us
        ended = self._ended({f.relation.id: f for f in followed.values()}, upto)
        for listener in listeners:
            listener.hand(steps, upto, time_us)
            problem = next((ended[f.relation.id] for f in listener.followed if f.relation.id in ended), None)
            if problem is not None:
                self.leave(listener)
                listener.fail(problem)

    @property
    def _is_awaited(self) -> bool:
        with self._lock:
            return any(listener.is_awaited for listener in self._listeners)

    def _ended(self, followed: Mapping[str, Followed], upto: int) -> dict[str, Error]:
        """The reasons why relations no longer change, by id: they were dropped, or their limits stopped them."""
        known = self._database.catalog.relations
        ended = {i: dropped(f.relation) for i, f in followed.items() if i not in known}
        epoch = self._database.log.last_epoch(upto)
        failed = {} if epoch is None else epoch.progress.stopped
        return ended | {i: error_from_json(failed[i]) for i in followed if i in failed}

    def fail(self, problem: Error) -> None:
        """Ends all subscribers with an error."""
        with self._lock:
            listeners = list(self._listeners)
            self._listeners.clear()
        for listener in listeners:
            listener.fail(problem)


class _Tailing(Worker):
    """The thread of a tailer, from its first subscriber to its last."""

    def __init__(self, tailer: Tailer, database: OpenDatabase, reader: CommitReader) -> None:
        super().__init__("tailer", database.clock)
        self._tailer = tailer
        self._reader = reader
        self._lease = Reader(database.layout)

    def run(self) -> None:
        with contextlib.closing(self._lease):
            super().run()

    def work(self) -> None:
        if not self._tailer.goes_on():
            self.stop()
            return
        try:
            self._lease.pin(self._reader.moment.transaction, ACTIVE)
            self._tailer.look(self._reader)
        except Error as cause:
            self._tailer.fail(cause)
        except Exception as cause:
            self._tailer.fail(error("INTERNAL_ERROR", f"{type(cause).__name__}: {cause}"))


#: The prefix of a channel that announces the changes of a relation.
CHANGES_OF: Final = "changes of "


class Channels(Service):
    """The channels of NOTIFY, and who listens to them. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inboxes: weakref.WeakSet[Inbox] = weakref.WeakSet()

    def listen(self, inbox: Inbox, channel: str, end: Callable[[], None] | None = None) -> None:
        """Lets an inbox listen to a channel. end: what ends a channel of changes."""
        with self._lock:
            self._inboxes.add(inbox)
            earlier, inbox.channels[channel] = inbox.channels.get(channel), end
        if earlier is not None:
            earlier()

    def unlisten(self, inbox: Inbox, channel: str | None) -> None:
        """Lets an inbox listen no more to a channel, or to any (None)."""
        with self._lock:
            channels = list(inbox.channels) if channel is None else [c for c in (channel,) if c in inbox.channels]
            ends = [inbox.channels.pop(c) for c in channels]
        for end in ends:
            if end is not None:
                end()

    def notify(self, sender: int, channel: str, payload: str) -> None:
        """Sends a notification to all that listen to its channel."""
        with self._lock:
            inboxes = [i for i in self._inboxes if channel in i.channels]
        for inbox in inboxes:
            inbox.put(sender, channel, payload)


class ChangesListener:
    """Announces the changes of a relation on a channel: the payload is the number of the commit. A payload that begins
    with `error` is the last one.
    """

    is_awaited = True

    def __init__(self, inbox: Inbox, channel: str, relation: Relation) -> None:
        self.followed = (Followed(relation),)
        self._inbox, self._channel = inbox, channel

    def hand(self, steps: Sequence[Step], commit: int, time_us: int) -> None:
        """See `Listener`."""
        del commit, time_us
        for step in steps:
            if self.followed[0].key in step.changes:
                self._inbox.put(self._inbox.process, self._channel, str(step.commit))

    def fail(self, problem: Error) -> None:
        """See `Listener`."""
        self._inbox.put(self._inbox.process, self._channel, f"error: {problem.message}")


def channels_of(database: OpenDatabase) -> Channels:
    """The channels of a database, created at the first call."""
    with database.guard:
        return database.service(Channels) or database.add(Channels())


def dropped(relation: Relation) -> Error:
    """The error for a subscriber whose relation was dropped."""
    return error("UNDEFINED_RELATION", f"{relation.title} was dropped")


def tailer_of(database: OpenDatabase) -> Tailer:
    """The tailer of a database, created at the first call."""
    with database.guard:
        return database.service(Tailer) or database.add(Tailer(database))

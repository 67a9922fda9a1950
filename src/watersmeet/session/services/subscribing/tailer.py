"""The tailer: one thread of a process that reads each new commit once and hands it to all subscribers.

It never waits for a subscriber. What a subscriber has not taken yet waits in a queue of its own; the batches are the
same objects in all of them. Whose queue gets too long is cut off.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Mapping, Sequence
from typing import Final, Protocol

from watersmeet.catalog import Relation
from watersmeet.database.opened import OpenDatabase
from watersmeet.errors import Error, error, error_from_json
from watersmeet.session.services.subscribing.updates import CommitReader, Followed, Step
from watersmeet.store.moments import EMPTY, past_moment
from watersmeet.store.readers import ACTIVE, Reader

#: So often the thread looks whether it should end.
_LOOK_S: Final = 0.1
#: So many commits are handed out at once.
_ROUND_COMMITS: Final = 64


class Listener(Protocol):
    """What the tailer needs from a subscriber. Its methods must not block."""

    @property
    def followed(self) -> Sequence[Followed]:
        """What it follows, always the same."""
        ...

    @property
    def is_awaited(self) -> bool:
        """Whether it waits where no epoch can run."""
        ...

    def hand(self, steps: Sequence[Step], commit: int, time_us: int) -> None:
        """All changes up to `commit` of what it follows, since the last call."""
        ...

    def fail(self, problem: Error) -> None:
        """Nothing comes any more."""
        ...


class Tailer:
    """The tailer of an open database. Its thread runs while there are subscribers. Thread-safe."""

    def __init__(self, database: OpenDatabase) -> None:
        self._database = database
        self._lock = threading.Lock()
        self._listeners: weakref.WeakSet[Listener] = weakref.WeakSet()
        self._thread: threading.Thread | None = None
        self._upto = 0
        """The commit up to which the round goes that is handed out, or was last."""
        self._ending = False

    def join(self, listener: Listener) -> int:
        """From now on `listener` is handed what follows the commit that is returned. CONNECTION_CLOSED."""
        log = self._database.log
        with self._lock:
            if self._ending or self._database.is_closed:
                raise error("CONNECTION_CLOSED", "the connection is closed")
            self._listeners.add(listener)
            if self._thread is None:
                self._upto = log.head()
                reader = CommitReader(log, self._database.packs, past_moment(log, self._upto) if self._upto else EMPTY)
                self._thread = threading.Thread(target=self._run, args=[reader], name="watersmeet-tailer", daemon=True)
                self._thread.start()
            return self._upto

    def leave(self, listener: Listener) -> None:
        """It is handed nothing more. May be called again."""
        with self._lock:
            self._listeners.discard(listener)

    def close(self) -> None:
        """Ends all subscribers, and the thread."""
        with self._lock:
            self._ending = True
            thread = self._thread
        if thread is not None:
            thread.join()
        self._fail(error("CONNECTION_CLOSED", "the connection is closed"))

    def _run(self, reader: CommitReader) -> None:
        hold = Reader(self._database.layout)
        try:
            while self._goes_on():
                try:
                    hold.keep(reader.moment.transaction, ACTIVE)
                    self._look(reader)
                except Error as cause:
                    self._fail(cause)
                except Exception as cause:
                    self._fail(error("INTERNAL_ERROR", f"{type(cause).__name__}: {cause}"))
        finally:
            hold.close()

    def _goes_on(self) -> bool:
        """Whether there are subscribers. Without, the thread ends; the next subscriber starts another one."""
        with self._lock:
            if self._listeners and not self._ending:
                return True
            self._thread = None
            return False

    def _look(self, reader: CommitReader) -> None:
        """Waits a little for commits and hands them out."""
        database = self._database
        if database.runtime == "inprocess" and not database.read_only and self._is_awaited:
            database.flush()
        if not database.log.wait_past(reader.moment.head, _LOOK_S):
            if not database.read_only and database.engine.failure is not None:
                raise database.engine.failure
            return
        with self._lock:  # who joins now gets what follows this round
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
        """By id, why relations change no more: they were dropped, or stopped by their limits."""
        known = self._database.catalog.relations
        ended = {i: dropped(f.relation) for i, f in followed.items() if i not in known}
        epoch = self._database.log.last_epoch(upto)
        failed = {} if epoch is None else epoch.progress.failed
        return ended | {i: error_from_json(failed[i]) for i in followed if i in failed}

    def _fail(self, problem: Error) -> None:
        with self._lock:
            listeners = list(self._listeners)
            self._listeners.clear()
        for listener in listeners:
            listener.fail(problem)


def dropped(relation: Relation) -> Error:
    """The error of a subscriber whose relation is gone."""
    return error("UNDEFINED_RELATION", f"{relation.title} was dropped")


def tailer_of(database: OpenDatabase) -> Tailer:
    """The tailer of a database, made for the first that asks."""
    with database.guard:
        found = database.tailer
        if found is None:
            found = database.tailer = Tailer(database)
            database.at_close(found.close)
        assert isinstance(found, Tailer)
        return found

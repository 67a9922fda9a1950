"""Services of an open database, and their threads: started, stopped, woken, and retried after failures in one way."""

from __future__ import annotations

import datetime as dt
import random
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Final, Generic, TypeVar

from watersmeet.runtime.database import Clock

#: Many that wait for one server do not try it at the same moments.
_LEAST_SHARE: Final = 0.5
#: How long closing waits for a thread to release what it uses outside of the database.
_CLOSE_S: Final = 10.0


class Service:
    """Work that goes on beside the statements of a database. Each method is called by any thread.

    `OpenDatabase` knows services by this class only, so that what they do stands above it.
    """

    def start(self) -> None:
        """Begin. Called once, when the service is registered."""

    def follow(self) -> None:
        """Adapt to the definitions of the catalog, which have changed."""

    def before_epochs(self) -> None:
        """Commit what the views are to show, before `OpenDatabase.flush` lets them."""

    def after_epochs(self) -> bool:
        """Commit what follows from the views; whether there was any, so that another round is needed."""
        return False

    def delivered(self, *, wait: bool) -> dict[str, int]:
        """The rows written to topics so far, by the id of the writer; wait: after all rows committed now."""
        del wait
        return {}

    def catch_up(self) -> list[str]:
        """Wait for what was committed in captured databases before. A notice for each that is not waited for."""
        return []


class Worker(threading.Thread):
    """One background thread: it calls `work` until it is stopped. Its fields may be read by any thread.

    state: a word for users. problem: why it is not running, if it is not.
    """

    state: str = "starting"

    def __init__(self, name: str, clock: Clock, first_s: float = 0.0, last_s: float = 0.0) -> None:
        """first_s: how long it waits after the first failure at most; each time twice that, up to last_s."""
        super().__init__(name=f"watersmeet-{name}", daemon=True)
        self.problem: str | None = None
        self.changed = threading.Condition()
        """Notified whenever `state`, or what a subclass protects by it, changes."""
        self.stopping = threading.Event()
        self._clock = clock
        self._first_s = self._pause_s = first_s
        self._last_s = last_s
        self._since_us: int | None = None
        self._woken = False

    def work(self) -> None:
        """One attempt, or one round. Exceptions are for the subclass: one that leaves it ends the thread."""
        raise NotImplementedError

    def run(self) -> None:
        """Call `work` until the worker is stopped."""
        while not self.stopping.is_set():
            self.work()

    def stop(self) -> None:
        """End soon."""
        self.stopping.set()
        with self.changed:
            self.changed.notify_all()

    def wake(self) -> None:
        """Try again at once, if it waits after a failure."""
        with self.changed:
            self._woken = True
            self.changed.notify_all()

    def show(self, state: str, problem: str | None = None) -> bool:
        """Set the state. Returns whether it is another one."""
        with self.changed:
            if (state, problem) == (self.state, self.problem):
                return False
            self.state, self.problem = state, problem
            self.changed.notify_all()
            return True

    def succeeded(self) -> None:
        """Note that what it needs is available: the next failure is a first one."""
        self._pause_s, self._since_us = self._first_s, None

    def failed(self, why: str) -> str:
        """Note a failure. Returns why, and since when."""
        if self._since_us is None:
            self._since_us = self._clock.now_us()
        since = dt.datetime.fromtimestamp(self._since_us // 1_000_000, dt.UTC)
        return f"{why} (since {since:%Y-%m-%d %H:%M:%S} UTC)"

    def back_off(self) -> None:
        """Wait until the next attempt is due, or the worker is woken or stopped."""
        with self.changed:
            self._clock.wait(self.changed, self._is_awake, random.uniform(_LEAST_SHARE, 1.0) * self._pause_s)  # noqa: S311
            self._woken = False
        self._pause_s = min(2 * self._pause_s, self._last_s)

    def rest(self) -> None:
        """Wait until the worker is woken or stopped."""
        with self.changed:
            self.changed.wait_for(self._is_awake)
            self._woken = False

    def _is_awake(self) -> bool:
        return self._woken or self.stopping.is_set()


W = TypeVar("W", bound=Worker)


class Workers(Generic[W]):
    """The workers of a service, by the id of the relation that each works for. Safe for several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._found: dict[str, W] = {}

    def reconcile(self, wanted: Mapping[str, Callable[[], W]]) -> None:
        """Stop the workers that are no longer wanted, and start those that are missing. wanted: how each is made."""
        with self._lock:
            gone = [self._found.pop(i) for i in self._found.keys() - wanted.keys()]
            for worker in gone:
                worker.stop()
            for relation_id in wanted.keys() - self._found.keys():
                self._found[relation_id] = wanted[relation_id]()
                self._found[relation_id].start()
        _join(gone)

    def get(self, relation_id: str) -> W | None:
        """The worker for a relation."""
        with self._lock:
            return self._found.get(relation_id)

    def all(self) -> dict[str, W]:
        """All workers."""
        with self._lock:
            return dict(self._found)

    def end(self, relation_ids: Iterable[str] | None = None) -> None:
        """Stop workers, all of them without `relation_ids`, and wait a while for their threads."""
        with self._lock:
            ids = list(self._found if relation_ids is None else relation_ids)
            gone = [self._found.pop(i) for i in ids if i in self._found]
        for worker in gone:
            worker.stop()
        _join(gone)


def _join(workers: Iterable[Worker]) -> None:
    for worker in workers:
        worker.join(_CLOSE_S)

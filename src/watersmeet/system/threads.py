"""Threads of a process: the order of locks, the clock of a database, and workers, the background threads
(docs/THREADS.md).
"""

from __future__ import annotations

import datetime as dt
import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Final, Generic, TypeVar

from watersmeet.errors import error

#: A thread that holds one of these locks may only take later ones, or one that it already holds.
ORDER: Final = ("connection", "ddl", "maintenance", "external", "guard")

_checked = False
_held = threading.local()


def lock(name: str) -> Any:
    """A reentrant lock, one of ORDER. If created within `checked`, it asserts the order."""
    return _Checked(name) if _checked else threading.RLock()


@contextmanager
def checked() -> Iterator[None]:
    """A context for tests, in which created locks assert their order."""
    global _checked
    before, _checked = _checked, True
    try:
        yield
    finally:
        _checked = before


class _Checked:
    def __init__(self, name: str) -> None:
        self._name, self._rank = name, ORDER.index(name)
        self._lock = threading.RLock()

    def __enter__(self) -> bool:
        held: list[_Checked] = _held.__dict__.setdefault("locks", [])
        if self not in held:
            wrong = [h._name for h in held if h._rank >= self._rank]
            assert not wrong, f"{self._name} is taken by a thread that holds {', '.join(wrong)}"
        self._lock.acquire()
        held.append(self)
        return True

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        held: list[_Checked] = _held.locks
        held.reverse()
        held.remove(self)
        held.reverse()
        self._lock.release()


TICK_US: Final = 1_000_000


class Clock:
    """The time of a database's epochs, which now() and PROCTIME() return, in microseconds since 1970 (UTC): that of the
    machine, until a test sets it. Safe for several threads.

    tick_us: the minimum time between epochs in which only time passes.
    """

    def __init__(self, tick_us: int = TICK_US) -> None:
        self.tick_us = tick_us
        self._set_us: int | None = None

    def now_us(self) -> int:
        """The time now."""
        return time.time_ns() // 1000 if self._set_us is None else self._set_us

    def wait(self, condition: threading.Condition, is_over: Callable[[], bool], seconds: float) -> None:
        """Wait until `is_over` is true after a notification, or for that long. The caller holds the condition."""
        condition.wait_for(is_over, seconds)

    def set(self, time_us: int) -> None:
        """Stop the clock at `time_us` until the next call. Raises INVALID_PARAMETER if that would set it back."""
        if self._set_us is not None and time_us < self._set_us:
            raise error("INVALID_PARAMETER", "a clock can't be set back")
        self._set_us = time_us


#: The shortest pause as a part of the longest, so that workers that wait for one server retry at different moments.
_LEAST_SHARE: Final = 0.5
#: The time that `Workers.end` waits for a thread to release external systems.
_CLOSE_S: Final = 10.0


class Worker(threading.Thread):
    """One background thread, which calls `work` until it is stopped. Any thread may read its fields.

    state: a word for users. problem: the reason if it isn't running. title: the object that it works for, for users.
    """

    state: str = "starting"
    title: str = ""

    def __init__(self, name: str, clock: Clock, first_s: float = 0.0, last_s: float = 0.0) -> None:
        """first_s: the longest pause after a first failure; each further pause is twice as long, up to last_s."""
        super().__init__(name=f"watersmeet-{name}", daemon=True)
        self.problem: str | None = None
        self.changed = threading.Condition()
        """A condition that is notified whenever `state`, or a field that a subclass protects by it, changes."""
        self.stopping = threading.Event()
        self._clock = clock
        self._first_s = self._pause_s = first_s
        self._last_s = last_s
        self._since_us: int | None = None
        self._woken = False

    def work(self) -> None:
        """One attempt, or one round. An exception that leaves it ends the thread."""
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
        """Retry at once, if the worker waits after a failure."""
        with self.changed:
            self._woken = True
            self.changed.notify_all()

    def show(self, state: str, problem: str | None = None) -> bool:
        """Set the state. Returns whether it has changed."""
        with self.changed:
            if (state, problem) == (self.state, self.problem):
                return False
            self.state, self.problem = state, problem
            self.changed.notify_all()
            return True

    def succeeded(self) -> None:
        """Record a success, so that the next failure is a first one."""
        self._pause_s, self._since_us = self._first_s, None

    def failed(self, why: str) -> str:
        """Record a failure. Returns the reason, and the time of the first failure in a row."""
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

    @property
    def next_pause_s(self) -> float | None:
        """The longest pause after the next failure; None after a success."""
        return None if self._since_us is None else self._pause_s

    def rest(self) -> None:
        """Wait until the worker is woken or stopped."""
        with self.changed:
            self.changed.wait_for(self._is_awake)
            self._woken = False

    def _is_awake(self) -> bool:
        return self._woken or self.stopping.is_set()


def running_workers() -> list[Worker]:
    """All workers of this process."""
    return [thread for thread in threading.enumerate() if isinstance(thread, Worker)]


class OneCall(Worker):
    """A worker that makes one call, and ends."""

    state = "running"

    def __init__(self, name: str, title: str, call: Callable[[], None]) -> None:
        super().__init__(name, Clock())
        self.title = title
        self._call = call

    def work(self) -> None:
        self.stopping.set()
        self._call()


W = TypeVar("W", bound=Worker)


class Workers(Generic[W]):
    """The workers of a service, by the id of the relation that each works for. Safe for several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._found: dict[str, W] = {}

    def reconcile(self, wanted: Mapping[str, Callable[[], W]]) -> None:
        """Stop workers that are no longer wanted, and start missing ones. wanted: by id, the function that creates each
        worker.
        """
        with self._lock:
            stopped = [self._found.pop(i) for i in self._found.keys() - wanted.keys()]
            for worker in stopped:
                worker.stop()
            for relation_id in wanted.keys() - self._found.keys():
                self._found[relation_id] = wanted[relation_id]()
                self._found[relation_id].start()
        _join(stopped)

    def get(self, relation_id: str) -> W | None:
        """The worker for a relation."""
        with self._lock:
            return self._found.get(relation_id)

    def all(self) -> dict[str, W]:
        """All workers of the service."""
        with self._lock:
            return dict(self._found)

    def end(self, relation_ids: Iterable[str] | None = None) -> None:
        """Stop these workers (by default all), and wait a while for their threads."""
        with self._lock:
            ids = list(self._found if relation_ids is None else relation_ids)
            stopped = [self._found.pop(i) for i in ids if i in self._found]
        for worker in stopped:
            worker.stop()
        _join(stopped)


def _join(workers: Iterable[Worker]) -> None:
    for worker in workers:
        worker.join(_CLOSE_S)

"""A clock that a test moves: what waits to try something again waits for the test."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable

import pytest

from watersmeet.system.threads import Clock


class MovedClock(Clock):
    """It stands still but for `pass_time`. waits: by name of threads, how often they waited. Safe for several threads.

    is_free: waits are over at once.
    """

    def __init__(self, tick_us: int = 1) -> None:
        super().__init__(tick_us)
        self.set(time.time_ns() // 1000)
        self.waits: Counter[str] = Counter()
        self.is_free = False
        self._due_us: dict[int, int] = {}
        self._lock = threading.Lock()

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Databases that are opened from now on have it."""
        monkeypatch.setattr("watersmeet.database.opened.Clock", lambda tick_us: self)

    def wait(self, condition: threading.Condition, is_over: Callable[[], bool], seconds: float) -> None:
        me, due_us = threading.get_ident(), self.now_us() + round(seconds * 1e6)
        with self._lock:
            self.waits[threading.current_thread().name] += 1
            self._due_us[me] = due_us
        while not (is_over() or self.is_free or self.now_us() >= due_us):
            condition.wait(0.001)
        with self._lock:
            del self._due_us[me]

    def pass_time(self, seconds: float, threads: int) -> None:
        """Lets time pass from wait to wait. threads: so many always come to wait again."""
        end_us = self.now_us() + round(seconds * 1e6)
        while self.now_us() < end_us:
            with self._lock:
                waiting = sorted(self._due_us.values())
            if len(waiting) == threads and waiting[0] > self.now_us():
                self.set(min(waiting[0], end_us))
            else:
                time.sleep(0.0005)

"""A stand-in for `os` in watersmeet.system.files: stops one thread at any step of its work, while others go on."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

STEPS = (
    "open",
    "writev",
    "fsync",
    "link",
    "unlink",
    "replace",
    "mkdir",
    "stat",
    "listdir",
)


class PausingOs:
    """Counts the steps of the thread that runs `work`, and stops it before step `at` until `go_on`.

    Between `start` and `go_on` only the caller runs, after it only the worker: the order of all steps is fixed.
    """

    def __init__(self, work: Callable[[], None], at: int | None = None, watch: Callable[[], None] | None = None):
        self.names: list[str] = []
        self.failure: BaseException | None = None
        self._at = at
        self._watch = watch
        self._paused, self._resumed = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, args=(work,))
        self._watching = False

    def start(self) -> bool:
        """Runs the worker up to the step; False if it ended before."""
        self._thread.start()
        self._paused.wait()
        return self._at is not None and len(self.names) >= self._at

    def go_on(self) -> None:
        """Lets the worker run to its end."""
        self._resumed.set()
        self._thread.join()

    def read(self, path, mode="r"):
        """In the place of `open`."""
        self._step("read")
        return open(path, mode)

    def __getattr__(self, name):
        real = getattr(os, name)
        if name not in STEPS:
            return real

        def call(*args, **kwargs):
            self._step(name)
            return real(*args, **kwargs)

        return call

    def _run(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as cause:
            self.failure = cause
        finally:
            self._paused.set()

    def _step(self, name: str) -> None:
        if threading.current_thread() is not self._thread or self._watching:
            return
        self.names.append(name)
        if len(self.names) == self._at:
            self._paused.set()
            self._resumed.wait()
        if self._watch is not None and self._resumed.is_set():
            self._watching = True
            try:
                self._watch()
            finally:
                self._watching = False

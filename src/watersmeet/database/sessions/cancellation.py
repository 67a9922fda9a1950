"""Cancels a statement from another thread in each of its phases.

While a statement is parsed, bound, rewritten and planned, it runs Python code without side effects (`computing`), and
an exception is raised in its thread. While DuckDB runs a query (`over`), DuckDB is interrupted. A query that DuckDB
can't interrupt runs in a separate process, which is ended (`within`).
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Final, TypeVar

import duckdb

from watersmeet.errors import Error, error
from watersmeet.kernel.evaluation.functioncalls import interrupt

T = TypeVar("T")

#: The time after which the exception is raised again, because a handler may swallow it, as Python does in `__del__`.
_AGAIN_S: Final = 0.3


class _StatementEndedError(BaseException):
    """Raised in a thread that computes. No handler of `Exception` stops it."""


class Cancellation:
    """Cancels the statement of a session.

    canceled: whether `cancel` was called since the last `reset`.
    """

    def __init__(self) -> None:
        self.canceled = False
        self._lock = threading.Lock()
        self._ends: Callable[[], object] | None = None
        """Ends the current work of the statement."""
        self._thread: int | None = None
        """The thread that computes."""
        self._sent_s: float | None = None
        """The time at which the exception was sent to the thread."""

    def reset(self) -> None:
        """Begins a new statement."""
        self.canceled = False

    def check(self) -> None:
        """Raises QUERY_CANCELED if the statement was canceled."""
        if self.canceled:
            raise _canceled()

    def cancel(self) -> None:
        """Ends the running query, if any, and all later ones of the statement. May be called again."""
        self.canceled = True
        with self._lock:
            if self._ends is not None:
                self._ends()
            now_s = time.monotonic()
            if self._thread is not None and (self._sent_s is None or now_s - self._sent_s >= _AGAIN_S):
                self._sent_s = now_s
                _raise_in(self._thread, _StatementEndedError)

    def over(self, connection: duckdb.DuckDBPyConnection) -> AbstractContextManager[None]:
        """Makes queries of the connection inside the block cancelable. Raises QUERY_CANCELED if the statement is
        already canceled.
        """
        return self.within(partial(interrupt, connection))

    @contextmanager
    def within(self, ends: Callable[[], object]) -> Iterator[None]:
        """Inside the block, `ends` ends the statement's work. Raises QUERY_CANCELED if the statement is already
        canceled.
        """
        self.check()
        with self._lock:
            before, self._ends = self._ends, ends
        try:
            yield
        finally:
            with self._lock:
                self._ends = before

    def computing(self, action: Callable[..., T], *arguments: object) -> T:
        """The result of an action that may be abandoned at any point, because it has no visible effect. Raises
        QUERY_CANCELED.

        The exception never reaches a thread outside of the action. A nested action is part of the outer one. While one
        thread computes, actions of other threads can't be canceled.
        """
        thread = threading.get_ident()
        if self._thread == thread:
            return action(*arguments)
        try:
            try:
                self._enter(thread)
                self.check()
                return action(*arguments)
            finally:
                self._leave(thread)
        except _StatementEndedError:  # maybe within `_enter` or `_leave`
            self._leave(thread)
            raise _canceled() from None

    def _enter(self, thread: int) -> None:
        """Records the thread that computes, unless another thread already does."""
        with self._lock:
            if self._thread is None:
                self._sent_s, self._thread = None, thread

    def _leave(self, thread: int) -> None:
        with self._lock:
            if self._thread == thread:
                if self._sent_s is not None:
                    _raise_in(thread, None)  # for an exception that was sent and has not arrived yet
                self._thread = None


def _raise_in(thread: int, kind: type[BaseException] | None) -> None:
    """Raises an exception in a thread; None cancels one that was not raised yet."""
    raised = None if kind is None else ctypes.py_object(kind)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), raised)


def _canceled() -> Error:
    return error("QUERY_CANCELED", "the statement was canceled")

"""Ending a statement from another thread, in each of its phases.

While a statement is parsed, bound, rewritten and planned, it runs Python without side effects (`computing`): an
exception is raised in its thread. While DuckDB runs a query (`over`), it is interrupted. A query that DuckDB can't
interrupt runs in a process of its own, which is ended (`within`).
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Final, TypeVar

import duckdb

from watersmeet.errors import Error, error

T = TypeVar("T")

#: A handler may swallow the exception, as Python does in `__del__`: it is raised again after this time.
_AGAIN_S: Final = 0.3


class _StatementEndedError(BaseException):
    """Raised in a thread that computes. No handler of `Exception` stops it."""


class Cancellation:
    """Ends the statement of a session.

    canceled: `cancel` was called since the last `reset`.
    """

    def __init__(self) -> None:
        self.canceled = False
        self._lock = threading.Lock()
        self._ends: Callable[[], object] | None = None
        """Ends what the statement runs now."""
        self._thread: int | None = None
        """The thread that computes."""
        self._sent_s: float | None = None
        """When the exception was sent to it."""

    def reset(self) -> None:
        """A new statement begins."""
        self.canceled = False

    def check(self) -> None:
        """QUERY_CANCELED if the statement was canceled."""
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
        """Queries of the connection inside the block can be ended. QUERY_CANCELED if the statement is already
        canceled.
        """
        return self.within(connection.interrupt)

    @contextmanager
    def within(self, ends: Callable[[], object]) -> Iterator[None]:
        """Inside the block, `ends` ends the statement's work. QUERY_CANCELED if the statement is already canceled."""
        self.check()
        with self._lock:
            before, self._ends = self._ends, ends
        try:
            yield
        finally:
            with self._lock:
                self._ends = before

    def computing(self, action: Callable[..., T], *arguments: object) -> T:
        """The result of an action that may be abandoned at any point: it has no effect that others see. QUERY_CANCELED.

        The exception never reaches a thread outside of the action. An action within another one is part of it. While
        one thread computes, actions of other threads can't be ended.
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
        """Notes the thread that computes, unless another thread already does."""
        with self._lock:
            if self._thread is None:
                self._sent_s, self._thread = None, thread

    def _leave(self, thread: int) -> None:
        with self._lock:
            if self._thread == thread:
                if self._sent_s is not None:
                    _raise_in(thread, None)  # an exception that was sent and has not arrived yet
                self._thread = None


def _raise_in(thread: int, kind: type[BaseException] | None) -> None:
    """Raises an exception in a thread; None cancels one that was not raised yet."""
    raised = None if kind is None else ctypes.py_object(kind)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), raised)


def _canceled() -> Error:
    return error("QUERY_CANCELED", "the statement was canceled")

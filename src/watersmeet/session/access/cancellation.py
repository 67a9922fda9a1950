"""Ending a statement from another thread."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import duckdb

from watersmeet.errors import error


class Cancellation:
    """Ends what a session's statement asks of DuckDB.

    canceled: `cancel` was called since the last `reset`.
    """

    def __init__(self) -> None:
        self.canceled = False
        self._lock = threading.Lock()
        self._connection: duckdb.DuckDBPyConnection | None = None

    def reset(self) -> None:
        """A new statement begins."""
        self.canceled = False

    def cancel(self) -> None:
        """Ends the query that runs, if any, and those that the statement would still begin. May be called again."""
        self.canceled = True
        with self._lock:
            if self._connection is not None:
                self._connection.interrupt()

    @contextmanager
    def over(self, connection: duckdb.DuckDBPyConnection) -> Iterator[None]:
        """Queries of the connection inside the block can be ended. QUERY_CANCELED if the statement is already."""
        if self.canceled:
            raise error("QUERY_CANCELED", "the statement was canceled")
        with self._lock:
            before, self._connection = self._connection, connection
        try:
            yield
        finally:
            with self._lock:
                self._connection = before

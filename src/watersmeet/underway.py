"""Files that are written beside what their writer does."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final

#: So many are written at a time, …
_AT_ONCE: Final = 4
#: … and at most so many bytes wait for that in memory, or one file.
_WAITING_BYTES: Final = 64 << 20


class UnderWay:
    """Writes that are under way, several at a time. For one thread.

    `finish` must be called before anybody is told what they did.
    """

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None
        self._waiting: deque[tuple[Future[None], int]] = deque()
        self._bytes = 0

    def begin(self, write: Callable[[], None], size_bytes: int) -> None:
        """Calls `write` soon, in another thread. size_bytes: what it holds in memory until it is done.

        Raises as an earlier one did.
        """
        while self._waiting and self._bytes + size_bytes > _WAITING_BYTES:
            self._await()
        if self._pool is None:
            self._pool = ThreadPoolExecutor(_AT_ONCE, "watersmeet-writes")
        self._waiting.append((self._pool.submit(write), size_bytes))
        self._bytes += size_bytes

    def finish(self) -> None:
        """Waits until all are done. Raises as the first one did that failed; others may be done all the same."""
        try:
            while self._waiting:
                self._await()
        finally:
            if self._pool is not None:
                self._pool.shutdown(wait=False, cancel_futures=True)
                self._pool = None

    def _await(self) -> None:
        done, size_bytes = self._waiting.popleft()
        self._bytes -= size_bytes
        done.result()

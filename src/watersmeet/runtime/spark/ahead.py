"""Making the next thing while the one before it is in use."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Ahead(Generic[K, V]):
    """Makes things of a key, each for one use, one of them ahead of its use, in a thread of its own.

    make: is called there, too. For one thread; `close` must be called.
    """

    def __init__(self, make: Callable[[K], V]) -> None:
        self._make = make
        self._thread = ThreadPoolExecutor(1, "watersmeet-ahead")
        self._next: tuple[K, Future[V]] | None = None

    def take(self, key: K) -> V:
        """One for `key`, and begins to make another one: whoever takes one mostly goes on with the same key.

        Raises what `make` raises; what failed ahead is tried again.
        """
        ready = self._next
        is_good = ready is not None and ready[0] == key and ready[1].exception() is None
        found = ready[1].result() if ready is not None and is_good else self._make(key)
        self._next = key, self._thread.submit(self._make, key)
        return found

    def close(self) -> None:
        """Makes no more, and waits for the one that is being made."""
        self._next = None
        self._thread.shutdown(cancel_futures=True)

"""A cache that is bounded by bytes."""

from __future__ import annotations

from collections import OrderedDict
from typing import Generic, TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")


class Recent(Generic[Key, Value]):
    """The values that were used last, of at most `max_bytes` together, but always the newest one. Not thread-safe.

    How many bytes a value takes is what `put` is told.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._values: OrderedDict[Key, tuple[Value, int]] = OrderedDict()
        self.size_bytes = 0
        """What all values take."""

    def __len__(self) -> int:
        return len(self._values)

    def get(self, key: Key) -> Value | None:
        """The value of `key`, which is the newest one now; None if it is not here."""
        found = self._values.get(key)
        if found is None:
            return None
        self._values.move_to_end(key)
        return found[0]

    def put(self, key: Key, value: Value, size_bytes: int) -> None:
        """Keeps a value, instead of one that has the same key, and lets old ones go."""
        self._drop(key)
        self._values[key] = (value, size_bytes)
        self.size_bytes += size_bytes
        while self.size_bytes > self._max_bytes and len(self._values) > 1:
            self.drop_oldest()

    @property
    def oldest(self) -> Value | None:
        """The value that was used the longest time ago; None if there is none."""
        return next(iter(self._values.values()))[0] if self._values else None

    def drop_oldest(self) -> None:
        """Lets `oldest` go."""
        self._drop(next(iter(self._values)))

    def clear(self) -> None:
        """Lets all go."""
        self._values.clear()
        self.size_bytes = 0

    def _drop(self, key: Key) -> None:
        found = self._values.pop(key, None)
        if found is not None:
            self.size_bytes -= found[1]

"""The locks of a session and of its open database, and the one order in which they are taken (docs/THREADS.md)."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Final

#: A thread that holds one of these takes only those behind it, or one that it holds already.
ORDER: Final = ("connection", "ddl", "upkeep", "outside", "guard")

_checked = False
_held = threading.local()


def lock(name: str) -> Any:
    """A reentrant lock, one of ORDER. Inside `checked` one that asserts the order; otherwise Python's own."""
    return _Checked(name) if _checked else threading.RLock()


@contextmanager
def checked() -> Iterator[None]:
    """Locks that are made inside assert their order, for tests."""
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

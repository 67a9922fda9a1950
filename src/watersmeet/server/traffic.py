"""What clients did so far: statements by kind and outcome, and the subscriptions that are open."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

#: The SQLSTATE of what succeeded.
SUCCESS: Final = "00000"
#: Kinds of statements, by the first words of their tags. What is none of them is `other`: there are few, whatever
#: clients send.
_KINDS: Final = {
    **{
        word.upper(): word
        for word in (
            "select", "insert", "update", "delete", "merge", "copy", "create", "alter", "drop", "show", "describe",
            "explain", "set", "flush", "fetch", "subscribe",
        )
    },
    **dict.fromkeys(("BEGIN", "COMMIT", "ROLLBACK", "SAVEPOINT", "RELEASE", "START"), "transaction"),
}  # fmt: skip


def kind_of(tag: str) -> str:
    """The kind of a statement, by its tag or its first word."""
    return _KINDS.get(tag.partition(" ")[0].upper(), "other")


class Traffic:
    """Counts. Safe for several threads.

    statements: finished ones, by kind and SQLSTATE. subscriptions: queries and subscriptions whose rows clients are
    getting now.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._statements: Counter[tuple[str, str]] = Counter()
        self._subscriptions = 0

    @contextmanager
    def subscribed(self) -> Iterator[None]:
        """A client gets rows as they come inside the block."""
        with self._lock:
            self._subscriptions += 1
        try:
            yield
        finally:
            with self._lock:
                self._subscriptions -= 1

    def ended(self, kind: str, sqlstate: str = SUCCESS) -> None:
        """A statement has ended."""
        with self._lock:
            self._statements[kind, sqlstate] += 1

    @property
    def statements(self) -> dict[tuple[str, str], int]:
        """By kind and SQLSTATE."""
        with self._lock:
            return dict(self._statements)

    @property
    def subscriptions(self) -> int:
        """How many there are now."""
        with self._lock:
            return self._subscriptions

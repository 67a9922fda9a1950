"""News: sources that learn by themselves that there is something to read say so to who asks them."""

from __future__ import annotations

import threading


class News:
    """Whether sources have something that they were not asked for yet. Thread-safe.

    woken: is set by `tell`, for a thread that waits for other things, too.
    """

    def __init__(self, woken: threading.Event) -> None:
        self._woken = woken
        self.is_there = False

    def tell(self) -> None:
        """There is something to read."""
        self.is_there = True
        self._woken.set()

    def take(self) -> None:
        """The sources are asked now. Call it before: what comes meanwhile is told again."""
        self.is_there = False

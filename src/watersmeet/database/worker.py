"""How what is outside and away is tried again: ever less often, for as long as it takes."""

from __future__ import annotations

import datetime as dt
import random
import threading
from collections.abc import Callable
from typing import Final

from watersmeet.runtime.clock import Clock

#: Many that wait for one server do not try it at the same moments.
_LEAST_SHARE: Final = 0.5


class Attempts:
    """Of one thing outside. One thread uses it."""

    def __init__(self, clock: Clock, first_s: float, last_s: float) -> None:
        """first_s: how long is waited after the first failure at most; after each more, twice that, up to last_s."""
        self._clock = clock
        self._first_s = self._pause_s = first_s
        self._last_s = last_s
        self._since_us: int | None = None

    def succeeded(self) -> None:
        """It is there."""
        self._pause_s, self._since_us = self._first_s, None

    def failed(self, why: str) -> str:
        """It is away: why, with since when."""
        if self._since_us is None:
            self._since_us = self._clock.now_us()
        since = dt.datetime.fromtimestamp(self._since_us // 1_000_000, dt.UTC)
        return f"{why} (since {since:%Y-%m-%d %H:%M:%S} UTC)"

    def wait(self, condition: threading.Condition, is_over: Callable[[], bool]) -> None:
        """Waits until it is to be tried again, or it is over. The caller holds the condition."""
        self._clock.wait(condition, is_over, random.uniform(_LEAST_SHARE, 1.0) * self._pause_s)  # noqa: S311
        self._pause_s = min(2 * self._pause_s, self._last_s)

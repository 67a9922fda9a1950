"""The clock of a database: the time of its epochs, which is what now() and PROCTIME() give."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

from watersmeet.errors import error

TICK_US: Final = 1_000_000


class Clock:
    """The time in microseconds since 1970 (UTC): that of the machine, until a test sets it. Safe for several threads.

    tick_us: epochs that have nothing to do but to let time pass are planned at most so often.
    """

    def __init__(self, tick_us: int = TICK_US) -> None:
        self.tick_us = tick_us
        self._set_us: int | None = None

    def now_us(self) -> int:
        """The time now."""
        return time.time_ns() // 1000 if self._set_us is None else self._set_us

    def wait(self, condition: threading.Condition, is_over: Callable[[], bool], seconds: float) -> None:
        """Waits until it is over, as a notification tells, or the time has passed. The caller holds the condition."""
        condition.wait_for(is_over, seconds)

    def set(self, time_us: int) -> None:
        """From now on it is `time_us`, until the next call. INVALID_PARAMETER if that would set it back."""
        if self._set_us is not None and time_us < self._set_us:
            raise error("INVALID_PARAMETER", "a clock can't be set back")
        self._set_us = time_us

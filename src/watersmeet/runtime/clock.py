"""The clock of a database: the time of its epochs, which is what now() and PROCTIME() give."""

from __future__ import annotations

import time

from watersmeet.errors import error


class Clock:
    """The time in microseconds since 1970 (UTC): that of the machine, until a test sets it. Safe for several threads."""

    def __init__(self) -> None:
        self._set_us: int | None = None

    def now_us(self) -> int:
        """The time now."""
        return time.time_ns() // 1000 if self._set_us is None else self._set_us

    def set(self, time_us: int) -> None:
        """From now on it is `time_us`, until the next call. INVALID_PARAMETER if that would set it back."""
        if self._set_us is not None and time_us < self._set_us:
            raise error("INVALID_PARAMETER", "a clock can't be set back")
        self._set_us = time_us

"""Ctrl-C: what runs ends at a moment that it chooses, and at once when it is pressed again."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any, Self


class Interrupts:
    """SIGINT and SIGTERM inside a block.

    They interrupt statements (KeyboardInterrupt); once `armed`, the first only sets `event`, so that what runs can end
    well. Outside the main thread there are no signals. A signal that was ignored before stays ignored, as a shell wants
    it of what runs in the background.
    """

    def __init__(self) -> None:
        self.event = threading.Event()
        self.armed = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is not threading.main_thread():
            return self
        for number in (signal.SIGINT, signal.SIGTERM):
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._signalled)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _signalled(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        if self.armed and not self.event.is_set():
            self.event.set()
        else:
            raise KeyboardInterrupt

"""Ctrl-C: what runs ends at a moment that it chooses, and at once when it is pressed again; but not too late."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, Final, Self

#: An orchestrator kills what has not ended 30 s after SIGTERM.
_END_S: Final = 25.0
_INTERRUPTED: Final = 130


class Interrupts:
    """SIGINT and SIGTERM inside a block.

    They interrupt statements (KeyboardInterrupt); once `armed`, the first only sets `event`, so that what runs can end
    well. Outside the main thread there are no signals. A signal that was ignored before stays ignored, as a shell wants
    it of what runs in the background.

    ending: called at each signal, with the exit code of a command that it ends: 0, or 130 for one that is interrupted.
    """

    def __init__(self, ending: Callable[[int], None] = lambda _: None) -> None:
        self.event = threading.Event()
        self.armed = False
        self._ending = ending
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
            self._ending(0)
        else:
            # A statement waits for epochs, and what closes the database for the one that runs.
            self._ending(_INTERRUPTED)
            raise KeyboardInterrupt


class Deadline:
    """Ends the process if it is still inside the block 25 s after the first `begin`.

    An epoch that takes longer is dropped: what was not committed is nowhere, and the next process runs it again.
    """

    def __init__(self) -> None:
        self._timer: threading.Timer | None = None

    def begin(self, code: int) -> None:
        """From now on the time runs. code: the exit code at its end."""
        if self._timer is not None:
            return
        self._timer = threading.Timer(_END_S, _drop, [code])
        self._timer.daemon = True
        self._timer.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()


def _drop(code: int) -> None:
    sys.stderr.write("the epoch that runs takes too long: it is dropped\n")
    sys.stderr.flush()
    os._exit(code)

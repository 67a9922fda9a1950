"""A bell: one process of a machine wakes another one, which waits without asking again and again.

Loaded into the process of the streaming source, so it imports as little as possible.
"""

from __future__ import annotations

import contextlib
import os
import select

from watersmeet.scratch import make_folder, remove_folder


class Bell:
    """The end that rings: a named pipe in a folder of its own, until `remove`."""

    def __init__(self) -> None:
        self._folder = make_folder("bell")
        self.path = os.path.join(self._folder, "bell")
        os.mkfifo(self.path, 0o600)

    def ring(self) -> None:
        """Wakes who waits, or who waits next; nobody may have come yet."""
        with contextlib.suppress(OSError):  # nobody is there, or it rang so often that the pipe is full
            pipe = os.open(self.path, os.O_WRONLY | os.O_NONBLOCK)
            try:
                os.write(pipe, b"!")
            finally:
                os.close(pipe)

    def remove(self) -> None:
        """Deletes it. Who still waits is not woken any more."""
        remove_folder(self._folder)


class Listener:
    """The end that waits."""

    def __init__(self, path: str) -> None:
        # For writing, too: a pipe whose last writer has gone would be at its end for ever.
        self._pipe = os.open(path, os.O_RDWR | os.O_NONBLOCK)

    def wait(self, seconds: float) -> None:
        """Until it rings, or has rung since the last call; at most so long."""
        if select.select([self._pipe], [], [], max(0.0, seconds))[0]:
            os.read(self._pipe, 1 << 16)

    def close(self) -> None:
        os.close(self._pipe)

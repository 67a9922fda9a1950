"""A stand-in for `os` in watersmeet.system.files: stops the process, as far as the store can tell, at any step."""

from __future__ import annotations

import errno
import os

CHANGING = ("open", "writev", "fsync", "link", "unlink", "replace", "rename")


class Killed(BaseException):
    """The process is dead: nothing it does after this has an effect, clean-ups included."""


class FaultyOs:
    """Counts the calls that change something. At call `at` it fails: "kill" before it, or "full" (no space).

    A kill is for good: all later calls fail, too. torn: a write that is killed has written its first half.
    """

    def __init__(self, at=None, how="kill", torn=False):
        self.calls = 0
        self.names = []
        self._at = at
        self._how = how
        self._torn = torn
        self._dead = False

    def __getattr__(self, name):
        real = getattr(os, name)
        if name not in CHANGING:
            return real

        def call(*args, **kwargs):
            if self._dead:
                raise Killed
            self.calls += 1
            self.names.append(name)
            if self.calls == self._at:
                if self._how == "full" and name in ("writev", "open", "link", "fsync"):
                    raise OSError(errno.ENOSPC, "No space left on device")
                if self._how == "kill":
                    self._dead = True
                    if self._torn and name == "writev":
                        data = b"".join(args[1])
                        os.write(args[0], data[: len(data) // 2])
                    raise Killed
            return real(*args, **kwargs)

        return call

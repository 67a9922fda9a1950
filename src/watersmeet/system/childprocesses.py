"""Processes that answer requests through their standard input and output, so that they can be ended, or end, without
the process that started them.

A request and an answer begin with a head, a JSON object after its length in four bytes. Arrow streams may follow it.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import struct
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, Final, cast

_LENGTH: Final = struct.Struct(">I")
_OOM_SCORE: Final = "1000"
_LOWEST: Final = 19


class ChildProcess:
    """A process that runs a module. requests, answers: its standard input and output.

    yields: it has the lowest priority for processors and, where `ionice` is installed, for disks.
    """

    def __init__(self, module: str, *, yields: bool = False) -> None:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
        before = [path, "-c", "3"] if yields and (path := shutil.which("ionice")) is not None else []
        self._process = subprocess.Popen(
            [*before, sys.executable, "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            start_new_session=True,
        )
        if yields:
            with suppress(OSError):  # it has ended, which its first answer shows
                os.setpriority(os.PRIO_PROCESS, self._process.pid, _LOWEST)
        self.requests = cast("BinaryIO", self._process.stdin)
        self.answers = cast("BinaryIO", self._process.stdout)

    @property
    def is_alive(self) -> bool:
        """Whether the process runs; the system may have ended it."""
        return self._process.poll() is None

    def kill(self) -> None:
        """Ends the process. Any thread may call this, several times."""
        self._process.kill()

    def end(self) -> None:
        """Ends the process, waits for its end and closes its pipes."""
        self._process.kill()
        self._process.wait()
        for pipe in (self.requests, self.answers):
            with suppress(OSError):
                pipe.close()


def begin_answering() -> BinaryIO:
    """Prepares this process to answer. Returns the stream for answers, which printed text does not reach.

    If the machine lacks memory, the system ends this process first.
    """
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(_OOM_SCORE)
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return answers


def limit_memory(memory_bytes: int) -> None:
    """Allows this process that much more memory than it has now. Mapped files don't count."""
    with suppress(OSError, ValueError):
        used = int(Path("/proc/self/statm").read_text().split()[5]) * os.sysconf("SC_PAGE_SIZE")
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        resource.setrlimit(resource.RLIMIT_DATA, (used + memory_bytes, hard))


def write_head(stream: BinaryIO, head: dict[str, Any]) -> None:
    """Writes a head at once. Raises OSError if the other process has ended."""
    text = json.dumps(head).encode()
    stream.write(_LENGTH.pack(len(text)) + text)
    stream.flush()


def read_head(stream: BinaryIO) -> dict[str, Any] | None:
    """Reads the next head; returns None at the end of the stream."""
    length = stream.read(_LENGTH.size)
    if len(length) < _LENGTH.size:
        return None
    head: dict[str, Any] = json.loads(stream.read(_LENGTH.unpack(length)[0]))
    return head

"""A server's process, which ends with its owner."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO

GUARD = Path(__file__).with_name("guard.py")
#: Below the ports that the system gives to clients: so nobody gets a server's port while it restarts.
PORTS = range(20_000, 32_000)


class ServerFailedError(Exception):
    """A server did not start, or ended by itself; with the end of its log."""


class Process:
    """A server that runs, under its guard.

    owner: what its owner holds the other end of, a pipe or FIFO opened for reading; None: the owner is this process.
    folder: is removed when the owner is gone. user: whom it runs as, if it is not whoever runs this.
    """

    def __init__(
        self,
        command: list[str],
        log: Path,
        owner: IO[bytes] | None = None,
        folder: Path | None = None,
        user: str | None = None,
    ) -> None:
        self._log = log
        with log.open("ab") as output:
            self._guard = subprocess.Popen(
                [sys.executable, "-IS", str(GUARD), str(folder or ""), user or "", *command],
                stdin=subprocess.PIPE if owner is None else owner,
                stdout=subprocess.PIPE,
                stderr=output,
                cwd=log.parent,
                start_new_session=True,  # Ctrl-C is for the owner
            )
        assert self._guard.stdout is not None
        self.pid = int(self._guard.stdout.readline())

    @property
    def is_running(self) -> bool:
        return self._guard.poll() is None

    def wait_until(self, answers: Callable[[], bool], what: str, seconds: float = 120) -> None:
        """Waits until the server answers. Raises ServerFailedError if it ends before, or does not within `seconds`."""
        end = time.monotonic() + seconds
        while not answers():
            if not self.is_running:
                raise ServerFailedError(f"{what} ended while it started:\n{self._end_of_log()}")
            if time.monotonic() > end:
                self.kill()
                raise ServerFailedError(f"{what} did not answer within {seconds:g} s:\n{self._end_of_log()}")
            time.sleep(0.05)

    def kill(self) -> None:
        """Ends it at once (kill -9), as a crash does."""
        self._signal(signal.SIGKILL)
        self._end()

    def stop(self, by: signal.Signals = signal.SIGTERM) -> None:
        """Asks it to end, and waits until it has."""
        self._signal(by)
        self._end()

    def pause(self) -> None:
        """Stops it without ending it: its connections stay open, and nothing answers."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Lets it go on after `pause`."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        if self.is_running:
            os.kill(self.pid, number)

    def _end(self) -> None:
        self._guard.wait(60)
        for stream in (self._guard.stdin, self._guard.stdout):
            if stream is not None:
                stream.close()

    def _end_of_log(self) -> str:
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-20:])


def free_ports(count: int) -> list[int]:
    """Ports of loopback that nothing listens at."""
    found: list[int] = []
    while len(found) < count:
        port = random.choice(PORTS)
        if port not in found and _is_free(port):
            found.append(port)
    return found


def _is_free(port: int) -> bool:
    with socket.socket() as tried:
        try:
            tried.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True

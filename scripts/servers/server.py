"""What all servers have in common."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Final, Self

from scripts.servers.process import Process, ServerFailedError, free_ports

#: What servers say of a port that somebody else took meanwhile.
_TAKEN: Final = "already in use"
_TRIES: Final = 3


class Server:
    """A server that this process runs; or one of another process, which can be used, but not stopped or started."""

    def __init__(self, process: Process | None = None) -> None:
        self._process = process

    @property
    def pid(self) -> int:
        return self._running().pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.is_running

    def kill(self) -> None:
        """Ends it as a crash does (kill -9)."""
        self._running().kill()
        self._process = None

    def stop(self, by: signal.Signals = signal.SIGTERM) -> None:
        """Ends it in order."""
        self._running().stop(by)
        self._process = None

    def pause(self) -> None:
        """Lets it hang: connections stay open, and nothing answers until `resume`."""
        self._running().pause()

    def resume(self) -> None:
        """Lets it go on after `pause`."""
        self._running().resume()

    def _running(self) -> Process:
        if self._process is None:
            raise RuntimeError("this server does not run, or belongs to another process")
        return self._process


class FolderServer(Server):
    """A server with its data and log in a folder, at one port."""

    def __init__(self, folder: Path, port: int, process: Process | None = None) -> None:
        super().__init__(process)
        self.folder = folder
        self.port = port

    def choose_port(self) -> None:
        """Somebody else has the one that it was to have."""
        (self.port,) = free_ports(1)

    def to_json(self) -> str:
        """What another process needs to use this server, for `from_json`."""
        return json.dumps({"folder": str(self.folder), "port": self.port})

    @classmethod
    def from_json(cls, text: str) -> Self:
        """A server of another process: it can be used, but neither stopped nor started."""
        stored = json.loads(text)
        return cls(Path(stored["folder"]), stored["port"])


def try_ports(start: Callable[[], None], choose: Callable[[], None]) -> None:
    """Starts a server; if somebody else took its ports meanwhile, with others, which `choose` chooses."""
    for attempt in range(_TRIES):
        try:
            start()
        except ServerFailedError as error:
            if attempt == _TRIES - 1 or _TAKEN not in str(error):
                raise
            choose()
        else:
            return

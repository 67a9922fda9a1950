"""ClickHouse on loopback: its engine, which comes in a wheel, behind an HTTP interface of ours.

The engine is the real one (chDB), and so is what it answers: types, formats, errors of statements, tables that keep
tokens of INSERTs. Ours are the interface (`clickhouse_http`), and who may log in.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import IO
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from scripts.servers.packages import fetch_packages
from scripts.servers.process import Process, free_ports
from scripts.servers.server import Server, try_ports

VERSION = "26.9.0"
_HASH = "707e2ec3fe0f7953bac97942eaeb7a1ed1d66b1e56ecef3f0aa2130f61f6e735"
_INTERFACE = Path(__file__).with_name("clickhouse_http.py")
USER, PASSWORD = "watersmeet", "clickhouse-secret"


class ClickHouse(Server):
    """A server that answers. It runs until `stop`, or until its owner is gone."""

    def __init__(self, port: int, folder: Path, process: Process | None = None) -> None:
        super().__init__(process)
        self.port = port
        self._folder = folder

    @classmethod
    def started(
        cls,
        folder: Path,
        *,
        owner: IO[bytes] | None = None,
        remove_folder: bool = False,
        say: Callable[[str], None] = lambda _: None,
    ) -> ClickHouse:
        """A new server, whose data and log are in a new folder.

        owner, remove_folder: see `Process`. Raises ServerUnavailableError if the wheel can't be fetched,
        ServerFailedError if it does not start.
        """
        _fetched(say)
        say("starting ClickHouse")
        folder.mkdir(parents=True)
        server = cls(*free_ports(1), folder)

        def choose() -> None:
            (server.port,) = free_ports(1)

        try_ports(lambda: server.start(owner=owner, remove_folder=remove_folder), choose)
        return server

    def start(self, *, owner: IO[bytes] | None = None, remove_folder: bool = False) -> None:
        """Starts it over its data, after `kill` or `stop`."""
        packages = str(_fetched(lambda _: None))
        command = [
            sys.executable,
            str(_INTERFACE),
            packages,
            str(self._folder / "data"),
            str(self.port),
            USER,
            PASSWORD,
        ]
        removed = self._folder if remove_folder else None
        self._process = Process(command, self._folder / "clickhouse.log", owner, removed)
        self._process.wait_until(self.answers, "ClickHouse")

    @property
    def url(self) -> str:
        """Of its HTTP interface."""
        return f"http://127.0.0.1:{self.port}"

    def answers(self) -> bool:
        try:
            with urlopen(f"{self.url}/ping", timeout=2) as answer:
                return answer.status == 200
        except (URLError, OSError):
            return False

    def run(self, statement: str, database: str = "default") -> str:
        """What a statement of the user gives."""
        headers = {"X-ClickHouse-User": USER, "X-ClickHouse-Key": PASSWORD}
        request = Request(f"{self.url}/?database={database}", statement.encode(), headers)
        try:
            with urlopen(request, timeout=60) as answer:
                return answer.read().decode()
        except HTTPError as error:
            raise RuntimeError(error.read().decode()) from None

    def to_json(self) -> str:
        """What another process needs to use it, for `from_json`."""
        return f"{self.port} {self._folder}"

    @classmethod
    def from_json(cls, text: str) -> ClickHouse:
        """A server of another process: it can be used, but not stopped."""
        port, _, folder = text.partition(" ")
        return cls(int(port), Path(folder))


def _fetched(say: Callable[[str], None]) -> Path:
    """The folder with the engine, which pip fetches into the user's cache if it is not there yet."""
    pins = f"chdb-core=={VERSION} --hash=sha256:{_HASH}\n"
    return fetch_packages(f"chdb-{VERSION}", pins, 180, say)

"""Redis, NATS and Mosquitto on loopback, from packages of Debian: small servers that start in a moment."""

from __future__ import annotations

import os
import shutil
import socket
from abc import abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import IO, ClassVar, Self

from scripts.servers.debian import debian_program
from scripts.servers.process import Process, free_ports
from scripts.servers.server import FolderServer, try_ports


class SmallServer(FolderServer):
    """A server whose data and log are in a folder. It runs between `start` and `stop` or `kill`.

    title: its name. package, program: where it comes from, see `debian_program`.
    """

    title: ClassVar[str]
    package: ClassVar[str]
    program: ClassVar[str]

    @classmethod
    def started(
        cls,
        folder: Path,
        *,
        owner: IO[bytes] | None = None,
        remove_folder: bool = False,
        say: Callable[[str], None] = lambda _: None,
    ) -> Self:
        """A new server in a new folder, which answers.

        owner, remove_folder: see `Process`. Raises ServerUnavailableError if its program can't be had,
        ServerFailedError if it does not start.
        """
        debian_program(cls.package, cls.program, say)
        say(f"starting {cls.title}")
        folder.mkdir(parents=True)
        server = cls(folder, free_ports(1)[0])
        try_ports(lambda: server.start(owner=owner, remove_folder=remove_folder), server.choose_port)
        return server

    def start(self, *, owner: IO[bytes] | None = None, remove_folder: bool = False) -> None:
        """Starts it over the data that it has, at the same port, and waits until it answers."""
        program, environment = debian_program(self.package, self.program)
        command = ["env", *(f"{name}={value}" for name, value in environment.items()), program, *self.arguments()]
        removed = self.folder if remove_folder else None
        self._process = Process(command, self.folder / "server.log", owner, removed)
        self._process.wait_until(self.answers, self.title)

    @abstractmethod
    def arguments(self) -> list[str]:
        """The arguments of the program."""

    def answers(self) -> bool:
        """Whether it takes connections."""
        try:
            socket.create_connection(("127.0.0.1", self.port), 2).close()
        except OSError:
            return False
        return True

    def remove(self) -> None:
        """Ends it and removes its data."""
        if self.is_running:
            self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)


class Redis(SmallServer):
    """A Redis server. Acknowledged writes survive its own end, not that of the machine."""

    title, package, program = "Redis", "redis-server", "redis-server"

    def arguments(self) -> list[str]:
        return [
            *("--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.folder), "--databases", "1000"),
            *("--appendonly", "yes", "--appendfsync", "no", "--save", ""),
        ]

    def url(self, database: int = 0) -> str:
        """The URL of one of its databases."""
        return f"redis://127.0.0.1:{self.port}/{database}"


class Nats(SmallServer):
    """A NATS server with JetStream."""

    title, package, program = "NATS", "nats-server", "nats-server"

    def arguments(self) -> list[str]:
        return ["-a", "127.0.0.1", "-p", str(self.port), "-js", "-sd", str(self.folder / "data")]

    @property
    def url(self) -> str:
        """Its URL."""
        return f"nats://127.0.0.1:{self.port}"


class Mosquitto(SmallServer):
    """An MQTT broker, which keeps the sessions of its clients over restarts."""

    title, package, program = "Mosquitto", "mosquitto", "mosquitto"

    def arguments(self) -> list[str]:
        settings = self.folder / "mosquitto.conf"
        lines = [
            *(f"listener {self.port} 127.0.0.1", "allow_anonymous true", "persistence true"),
            *(f"persistence_location {self.folder}/", "autosave_interval 1"),
            *("max_queued_messages 0", "max_inflight_messages 1000"),
            *([f"user {os.environ.get('USER', 'root')}"] if os.getuid() == 0 else []),
        ]
        settings.write_text("\n".join(lines) + "\n")
        return ["-c", str(settings)]

    @property
    def url(self) -> str:
        """Its URL."""
        return f"tcp://127.0.0.1:{self.port}"

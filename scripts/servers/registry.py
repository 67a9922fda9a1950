"""A schema registry on loopback: Apicurio, which has the interface of Confluent's at /apis/ccompat/v7.

It keeps Avro, JSON and Protobuf schemas in memory.
"""

from __future__ import annotations

import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import IO
from urllib.error import URLError
from urllib.request import urlopen

from scripts.servers.archives import Artifact, Bundle, fetch, java
from scripts.servers.process import Process, free_ports
from scripts.servers.server import Server, try_ports

APICURIO = Bundle(
    "apicurio-registry-2.6.13",
    (
        Artifact(
            *("io.apicurio", "apicurio-registry-app", "2.6.13.Final"),
            type="tar.gz",
            classifier="all",
            with_dependencies=False,  # the archive has all
        ),
    ),
    size_mb=142,
)


class Registry(Server):
    """A registry that answers. It runs until `stop`, or until its owner is gone; its schemas are gone with it.

    folder: where it was unpacked; None for one of another process.
    """

    def __init__(self, port: int, folder: Path | None = None, process: Process | None = None) -> None:
        super().__init__(process)
        self.port = port
        self.folder = folder

    @classmethod
    def started(
        cls,
        folder: Path,
        *,
        owner: IO[bytes] | None = None,
        remove_folder: bool = False,
        say: Callable[[str], None] = lambda _: None,
    ) -> Registry:
        """A new registry, whose log is in a new folder.

        owner, remove_folder: see `Process`. Raises ServerUnavailableError if its archive can't be had,
        ServerFailedError if it does not start.
        """
        (archive,) = fetch(APICURIO, say).iterdir()
        say("starting the schema registry")
        folder.mkdir(parents=True)
        with tarfile.open(archive) as files:
            files.extractall(folder, filter="data")
        registry = cls(*free_ports(1), folder)

        def choose() -> None:
            (registry.port,) = free_ports(1)

        try_ports(lambda: registry.start(owner=owner, remove_folder=remove_folder), choose)
        return registry

    def start(self, *, owner: IO[bytes] | None = None, remove_folder: bool = False) -> None:
        """Starts it, without any schema, at the same port, and waits until it answers."""
        if self.folder is None:
            raise RuntimeError("this registry belongs to another process")
        (runner,) = self.folder.glob("*-runner.jar")
        command = [java(), "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        command += ["-Dquarkus.http.host=127.0.0.1", f"-Dquarkus.http.port={self.port}", "-jar", str(runner)]
        self._process = Process(command, self.folder / "registry.log", owner, self.folder if remove_folder else None)
        self._process.wait_until(self.answers, "the schema registry")

    @property
    def url(self) -> str:
        """Where clients of Confluent's registry find it."""
        return f"http://127.0.0.1:{self.port}/apis/ccompat/v7"

    def answers(self) -> bool:
        try:
            with urlopen(f"{self.url}/subjects", timeout=2) as answer:
                return answer.status == 200
        except (URLError, OSError):
            return False

    def to_json(self) -> str:
        """What another process needs to use it, for `from_json`."""
        return str(self.port)

    @classmethod
    def from_json(cls, text: str) -> Registry:
        """A registry of another process: it can be used, but not stopped."""
        return cls(int(text))

"""A server of Azure's blobs on loopback: Azurite, which keeps everything in memory. It runs on Node.js."""

from __future__ import annotations

import base64
import hashlib
import hmac
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import IO
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from scripts.servers.archives import FETCH_SECONDS, ServerUnavailableError, cache_folder, locked
from scripts.servers.process import Process, free_ports
from scripts.servers.server import Server, try_ports

VERSION = "3.35.0"
ACCOUNT = "devstoreaccount1"
#: The key of that account, which Microsoft has made public for development.
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
_API = "2021-08-06"


class Azurite(Server):
    """A server that answers. It runs until `stop`, or until its owner is gone; its blobs are gone with it."""

    def __init__(self, port: int, process: Process | None = None) -> None:
        super().__init__(process)
        self.port = port

    @classmethod
    def started(
        cls,
        folder: Path,
        *,
        owner: IO[bytes] | None = None,
        remove_folder: bool = False,
        say: Callable[[str], None] = lambda _: None,
    ) -> Azurite:
        """A new server, whose log is in a new folder.

        owner, remove_folder: see `Process`. Raises ServerUnavailableError without Node.js, or if npm can't fetch it;
        ServerFailedError if it does not start.
        """
        program = _fetched(say)
        say("starting the server of Azure's blobs")
        folder.mkdir(parents=True)
        server = cls(*free_ports(1))

        def choose() -> None:
            (server.port,) = free_ports(1)

        def start() -> None:
            command = [str(program), "--blobHost", "127.0.0.1", "--blobPort", str(server.port)]
            command += ["--inMemoryPersistence", "--silent", "--skipApiVersionCheck", "--disableTelemetry"]
            server._process = Process(command, folder / "azurite.log", owner, folder if remove_folder else None)
            server._process.wait_until(server.answers, "the server of Azure's blobs")

        try_ports(start, choose)
        return server

    @property
    def url(self) -> str:
        """The endpoint of its account."""
        return f"http://127.0.0.1:{self.port}/{ACCOUNT}"

    def answers(self) -> bool:
        try:
            urlopen(self.url, timeout=2).close()
        except HTTPError:
            return True
        except (URLError, OSError):
            return False
        return True

    def create_container(self, name: str) -> None:
        """Makes a container that everybody may read."""
        now = datetime.now(UTC).strftime("%a, %d %b %Y %H:%M:%S GMT")
        headers = {"x-ms-blob-public-access": "container", "x-ms-date": now, "x-ms-version": _API}
        listed = "".join(f"{header}:{value}\n" for header, value in headers.items())
        signed = "PUT" + "\n" * 12 + f"{listed}/{ACCOUNT}/{ACCOUNT}/{name}\nrestype:container"
        signature = base64.b64encode(hmac.new(base64.b64decode(KEY), signed.encode(), hashlib.sha256).digest()).decode()
        headers["Authorization"] = f"SharedKey {ACCOUNT}:{signature}"
        urlopen(Request(f"{self.url}/{name}?restype=container", method="PUT", headers=headers)).close()

    def to_json(self) -> str:
        """What another process needs to use it, for `from_json`."""
        return str(self.port)

    @classmethod
    def from_json(cls, text: str) -> Azurite:
        """A server of another process: it can be used, but not stopped."""
        return cls(int(text))


def _fetched(say: Callable[[str], None]) -> Path:
    """The program, which is fetched into the user's cache if it is not there yet."""
    npm = shutil.which("npm")
    if npm is None or shutil.which("node") is None:
        raise ServerUnavailableError("no Node.js on this machine")
    folder = cache_folder() / f"azurite-{VERSION}"
    program = folder / "node_modules" / ".bin" / "azurite-blob"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with locked(folder.with_name(f"{folder.name}.lock")):
        if not program.exists():
            say(f"fetching {folder.name} (some 190 MB, once)")
            with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f"{folder.name}-") as work:
                command = [npm, "install", "--no-audit", "--no-fund", "--silent", f"azurite@{VERSION}"]
                try:
                    done = subprocess.run(
                        command, cwd=work, capture_output=True, text=True, check=False, timeout=FETCH_SECONDS
                    )
                except subprocess.TimeoutExpired as timeout:
                    reason = f"npm did not fetch {folder.name} within {FETCH_SECONDS} s"
                    raise ServerUnavailableError(reason) from timeout
                if done.returncode != 0:
                    raise ServerUnavailableError(f"npm could not fetch {folder.name}:\n{done.stderr[-2000:].strip()}")
                shutil.rmtree(folder, ignore_errors=True)
                Path(work).rename(folder)
                Path(work).mkdir()  # which the context removes
    return program

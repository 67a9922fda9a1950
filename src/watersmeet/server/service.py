"""The server of a database: listens, lets clients in, ends cleanly."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import hmac
import ipaddress
import logging
import secrets
import shlex
import ssl
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

from watersmeet.database.opened import OpenDatabase
from watersmeet.database.sessions.variables import LIMITS, RESULT_SIZE, amount
from watersmeet.errors import Error, error
from watersmeet.server.backend import Backend
from watersmeet.server.catalog.answers import CatalogTables
from watersmeet.server.clients import Activity, Client, Limits, Traffic
from watersmeet.server.connection import Connection, Service
from watersmeet.server.settings import Settings
from watersmeet.server.users import Login, Users
from watersmeet.system.libraries import lazy_import, library
from watersmeet.values.dialectnames import DEFAULT_DIALECT

if TYPE_CHECKING:
    from watersmeet.server.web import service as web
else:
    web = lazy_import("watersmeet.server.web.service")

#: Errors after which the event loop listens again, a second later.
_LACKING: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)

#: The least time between two messages.
_PAUSE_S: Final = 60.0


class AcceptErrors:
    """The exception handler of an event loop that listens. Other errors go to the handler before it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._before = loop.get_exception_handler()
        self._logged_s: float | None = None
        loop.set_exception_handler(self)

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Logs an error of the loop."""
        cause = context.get("exception")
        if not isinstance(cause, OSError) or cause.errno not in _LACKING or "socket" not in context:
            if self._before is None:
                loop.default_exception_handler(context)
            else:
                self._before(loop, context)
            return
        now_s = time.monotonic()
        if self._logged_s is None or now_s - self._logged_s >= _PAUSE_S:
            self._logged_s = now_s
            log.warning("a connection can't be accepted: %s. Retrying every second.", cause.strerror)


T = TypeVar("T")

#: So many members of `admin` can connect beyond the limit.
_RESERVED: Final = 3

_SECRET_BYTES: Final = 4

#: How often it is checked whether the users of clients may stay.
_LOGINS_S: Final = 0.5

log: Final = logging.getLogger(__name__)
DEFAULT_PORT: Final = 5433

#: Names of an encoding, a zone and other things that a client's library sends on its own: what can't be is left.
_LENIENT: Final = ("timezone",)

_NO_SETTINGS: Final = ("user", "database", "options", "replication")


@dataclass(frozen=True)
class Endpoint:
    """Where and how the server listens.

    port, http_port: 0: any that is free; no http_port: nothing listens for HTTP. certificate, key: of TLS, PEM.
    dialect: of a client that chooses none. allow_files: whether clients' statements may read files of this machine.
    While the database has no users, everybody on this machine is let in.
    """

    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    certificate: Path | None = None
    key: Path | None = None
    dialect: str = DEFAULT_DIALECT
    allow_files: bool = False
    limits: Limits = field(default_factory=Limits)
    http_port: int | None = None

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine reaches it."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    def check(self) -> None:
        """INVALID_PARAMETER for an address beyond this machine without encryption, and for limits that are none.

        LIBRARY_MISSING for HTTP.
        """
        amount(RESULT_SIZE, self.limits.result_size)
        self.limits.check()
        if self.http_port is not None:
            library("aiohttp", "servers of HTTP")
        if self.certificate is not None:
            return
        if self.limits.requires_tls and self.is_loopback:
            raise error("INVALID_PARAMETER", "required encryption needs a TLS certificate", hint="Give --certificate.")
        if not self.is_loopback:
            raise error(
                "INVALID_PARAMETER",
                f"listening on {self.host} needs a TLS certificate",
                detail="Anybody between could read and change what is said.",
                hint="--certificate and --key give it.",
            )

    def check_users(self, users: Users) -> None:
        """INVALID_PARAMETER for an address beyond this machine while nobody has a password."""
        if not self.is_loopback and not users.exist:
            raise error(
                "INVALID_PARAMETER",
                f"listening on {self.host} needs users",
                detail="Anybody who reaches this address could read and write the database.",
                hint="Run a script with CREATE USER name PASSWORD '…' SUPERUSER.",
            )

    def hardened(self, *, require_tls: bool) -> Endpoint:
        """The same, where connections without encryption are refused if that is wanted, or others can listen in."""
        return replace(self, limits=replace(self.limits, requires_tls=require_tls or not self.is_loopback))

    def tls(self) -> ssl.SSLContext | None:
        """INVALID_PARAMETER if the certificate can't be read."""
        if self.certificate is None:
            return None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            context.load_cert_chain(self.certificate, self.key)
        except (OSError, ssl.SSLError) as cause:
            raise error(
                "INVALID_PARAMETER", f"the certificate {self.certificate} can't be read", detail=f"{cause}."
            ) from cause
        return context


@dataclass(frozen=True)
class _Entered:
    """A client that has proved who it is. secret: by which it cancels what it runs."""

    secret: bytes
    client: Client
    login: Login | None


class Server(Service):
    """Serves one open database from `start` to `stop`, both in one event loop. The database stays open."""

    def __init__(self, database: OpenDatabase, endpoint: Endpoint) -> None:
        endpoint.check()
        self._database = database
        self._endpoint = endpoint
        self.limits = endpoint.limits
        self.tls = endpoint.tls()
        self.users = Users(database, trusts=endpoint.is_loopback)
        self._threads = ThreadPoolExecutor(self.limits.connections + 8, thread_name_prefix="watersmeet-client")
        self._connections: set[Connection] = set()
        self._starting: dict[Connection, None] = {}
        self._entered: dict[int, _Entered] = {}
        self._watching: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._listener: asyncio.Server | None = None
        self._numbers = 0
        self._tables = CatalogTables()
        self.traffic = Traffic()
        self._web: web.WebServer | None = None
        if endpoint.http_port is not None:
            self._web = web.WebServer(database, self, endpoint.host, endpoint.http_port, endpoint.dialect)

    @property
    def port(self) -> int:
        """The port, once it listens."""
        assert self._listener is not None
        port: int = self._listener.sockets[0].getsockname()[1]
        return port

    @property
    def http_port(self) -> int | None:
        """The port of HTTP, once it listens; None if nothing does."""
        return None if self._web is None else self._web.port

    @property
    def clients(self) -> int:
        return sum(isinstance(e.client, Connection) for e in self._entered.values())

    async def start(self) -> None:
        """Listens. INVALID_PARAMETER if the address is taken, or is not this machine's, or users are lacking."""
        self._endpoint.check_users(self.users)
        self._loop = asyncio.get_running_loop()
        AcceptErrors(self._loop)
        host, port = self._endpoint.host, self._endpoint.port
        try:
            self._listener = await asyncio.start_server(self._accept, host, port, backlog=256)
        except OSError as cause:
            raise error(
                "INVALID_PARAMETER", f"listening on {host}:{port} is not possible", detail=f"{cause}."
            ) from cause
        self._watching = self._loop.create_task(self._watch_logins())
        if self._web is not None:
            try:
                await self._web.start()
            except Error:
                self._listener.close()
                raise

    async def stop(self) -> None:
        """Sends all clients away, and returns when nothing of theirs runs."""
        if self._listener is not None:
            self._listener.close()
        if self._watching is not None:
            self._watching.cancel()
        if self._web is not None:
            await self._web.stop()
        for connection in list(self._connections):
            connection.end(error("ADMIN_SHUTDOWN", "terminating connection due to administrator command"))
        if self._tasks:
            await asyncio.wait(self._tasks)
        self._threads.shutdown()
        self._tables.close()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = Connection(self, reader, writer)
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._connections.add(connection)
        self._starting[connection] = None
        while len(self._starting) > self.limits.starting:  # who floods the server has the oldest ones
            oldest = next(iter(self._starting))
            del self._starting[oldest]
            oldest.end(error("TOO_MANY_CONNECTIONS", "sorry, too many clients are connecting"))
        try:
            await connection.serve()
        finally:
            self._connections.discard(connection)
            self._starting.pop(connection, None)
            self._tasks.discard(task)
            for process in [p for p, e in self._entered.items() if e.client is connection]:
                self.leave(process)

    async def _watch_logins(self) -> None:
        """Ends clients that do nothing, or a single long statement, when their users may not stay."""
        while True:
            for entered in list(self._entered.values()):
                try:
                    entered.client.check_login()
                except Exception:
                    log.exception("the login of a client can't be checked")
            await asyncio.sleep(_LOGINS_S)

    def open(self, options: dict[str, str], login: Login | None) -> Backend:
        """The state of a client with the options of its first message. UNDEFINED_OBJECT for one that is not known."""
        if options.get("replication", "false").lower() not in ("false", "off", "0", "no"):
            raise error("FEATURE_NOT_SUPPORTED", "replication connections are not supported")
        session = self.users.session(login, self._endpoint.dialect, files=self._endpoint.allow_files)
        own = {} if login is None else self.users.role(login).settings
        limits = {} if self.users.is_admin(login) else {n: v for n, v in own.items() if n in LIMITS}
        name = options["user"]
        settings = Settings(session, name, {RESULT_SIZE: self.limits.result_size}, limits)
        backend = Backend(session, name, options.get("database") or name, self._tables, self, settings, self.limits)
        given = {n: v for n, v in options.items() if n not in _NO_SETTINGS and not n.startswith("_pq_.")}
        wanted = {**own, **_command_line(options.get("options", "")), **given}
        for setting, value in wanted.items():
            try:
                backend.begin_with(setting, value.strip("'"))  # asyncpg writes them as in SQL
            except Error:
                if setting.lower() not in _LENIENT:
                    raise
        backend.begin()
        return backend

    def enter(self, client: Client, login: Login | None) -> tuple[int, bytes]:
        most = self.limits.connections
        if login is not None:
            own = self.users.role(login).connections
            same = sum(e.login is not None and e.login.actor == login.actor for e in self._entered.values())
            if own is not None and same >= own:
                raise error("TOO_MANY_CONNECTIONS", f'too many connections for role "{login.name}"')
            most += _RESERVED if self.users.is_admin(login) else 0
        if len(self._entered) >= most:
            raise error("TOO_MANY_CONNECTIONS", "sorry, too many clients already")
        if isinstance(client, Connection):
            self._starting.pop(client, None)
        self._numbers = self._numbers % 0x7FFF_FFFF + 1
        secret = secrets.token_bytes(_SECRET_BYTES)
        self._entered[self._numbers] = _Entered(secret, client, login)
        return self._numbers, secret

    def leave(self, process: int) -> None:
        self._entered.pop(process, None)

    def cancel(self, process: int, secret: bytes) -> None:
        known = self._entered.get(process)
        if known is not None and hmac.compare_digest(known.secret, secret):
            known.client.cancel()

    def activity(self) -> list[Activity]:
        return [found for e in list(self._entered.values()) if (found := e.client.activity()) is not None]

    def signal(self, process: int, *, ends: bool) -> bool:
        known = self._entered.get(process)
        if known is None or self._loop is None:
            return False
        if ends:
            failure = error("ADMIN_SHUTDOWN", "terminating connection due to administrator command")
            self._loop.call_soon_threadsafe(known.client.end, failure)
        else:
            known.client.cancel()
        return True

    async def work(self, action: Callable[..., T], *arguments: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, action, *arguments)


def _command_line(options: str) -> dict[str, str]:
    """`-c name=value` and `--name=value`, as libpq sends them. PROTOCOL_VIOLATION."""
    words = shlex.split(options.replace("\\ ", '" "'))
    found: dict[str, str] = {}
    while words:
        word = words.pop(0)
        if word == "-c" and words:
            word = words.pop(0)
        elif word.startswith("-c"):
            word = word[2:]
        elif word.startswith("--"):
            word = word[2:].replace("-", "_")
        else:
            raise error("PROTOCOL_VIOLATION", f'invalid command-line argument "{word}"', hint="Write -c name=value.")
        name, _, value = word.partition("=")
        found[name] = value
    return found


class BackgroundServer:
    """A server in a thread of its own, for programs that do other things: `with BackgroundServer(…) as served`."""

    def __init__(self, database: OpenDatabase, endpoint: Endpoint) -> None:
        self._server = Server(database, endpoint)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="watersmeet-server", daemon=True)
        self.port = 0
        self.http_port: int | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._server.start(), self._loop).result()
        self.port, self.http_port = self._server.port, self._server.http_port
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._server.stop(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        with contextlib.suppress(RuntimeError):
            self._loop.close()

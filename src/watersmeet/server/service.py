"""The server of a database, from its start to its end, and the other server of a standby."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import ipaddress
import logging
import socket
import ssl
import threading
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

from watersmeet.connectors.databases.servers import host_and_port
from watersmeet.database.opened import OpenDatabase
from watersmeet.database.sessions.variables import RESULT_SIZE, amount
from watersmeet.errors import Error, error
from watersmeet.server.backend import Host
from watersmeet.server.clients import Limits
from watersmeet.server.connection import Connection
from watersmeet.server.messages import WRITER, role_request
from watersmeet.server.users import Users
from watersmeet.server.workers import Worker
from watersmeet.system.process import lazy_import, library
from watersmeet.values import DEFAULT_DIALECT

if TYPE_CHECKING:
    from watersmeet.server.web import service as web
else:
    web = lazy_import("watersmeet.server.web.service")

log: Final = logging.getLogger(__name__)

#: Errors of missing resources, after which the event loop listens again after a second.
_LACKING: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)

#: The minimum time between two logged messages.
_PAUSE_S: Final = 60.0


class AcceptErrors:
    """The exception handler of a listening event loop. Other errors go to the previous handler."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._before = loop.get_exception_handler()
        self._logged_s: float | None = None
        loop.set_exception_handler(self)

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
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


DEFAULT_PORT: Final = 5433


@dataclass(frozen=True)
class Endpoint:
    """The address and options of the server.

    port, http_port: 0 for any free port; http_port: None for no HTTP. worker: the place among the workers that share
    the port, if any. certificate, key: those of TLS, in PEM. dialect: the default of clients. allow_files: whether
    clients' statements may read local files. While the database has no users, all clients on this machine are admitted.
    """

    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    certificate: Path | None = None
    key: Path | None = None
    dialect: str = DEFAULT_DIALECT
    allow_files: bool = False
    limits: Limits = field(default_factory=Limits)
    http_port: int | None = None
    worker: Worker | None = None

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can connect."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    def check(self) -> None:
        """Raises INVALID_PARAMETER for an external address without encryption, and for invalid limits.

        Raises LIBRARY_MISSING for HTTP.
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
                detail="Anybody on the network path could read and change the messages.",
                hint="Encrypt them by --certificate and --key.",
            )

    def check_users(self, users: Users) -> None:
        """Raises INVALID_PARAMETER for an external address without users."""
        if not self.is_loopback and not users.exist:
            raise error(
                "INVALID_PARAMETER",
                f"listening on {self.host} needs users",
                detail="Anybody who reaches this address could read and write the database.",
                hint="Run a script with CREATE USER name PASSWORD '…' SUPERUSER.",
            )

    def hardened(self, *, require_tls: bool) -> Endpoint:
        """The endpoint, with encryption required if this is requested or the address is external."""
        return replace(self, limits=replace(self.limits, requires_tls=require_tls or not self.is_loopback))

    def tls(self) -> ssl.SSLContext | None:
        """The context of TLS; None without a certificate. Raises INVALID_PARAMETER if the certificate can't be read."""
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


class Server:
    """Serves one open database from `start` to `stop`, both in one event loop. The database stays open."""

    def __init__(self, database: OpenDatabase, endpoint: Endpoint) -> None:
        endpoint.check()
        self._endpoint = endpoint
        self._tls = endpoint.tls()
        self.users = Users(database, trusts=endpoint.is_loopback)
        self.host = Host(database, endpoint.limits, self.users, endpoint.dialect, files=endpoint.allow_files)
        self._connections: dict[Connection, asyncio.Task[None]] = {}
        self._watching: asyncio.Task[None] | None = None
        self._listener: asyncio.Server | None = None
        self._canceling: asyncio.Server | None = None
        self.host.worker = endpoint.worker
        self._web: web.WebServer | None = None
        if endpoint.http_port is not None:
            self._web = web.WebServer(self.host, self._tls, endpoint.host, endpoint.http_port)

    @property
    def port(self) -> int:
        """The port, once the server listens."""
        assert self._listener is not None
        port: int = self._listener.sockets[0].getsockname()[1]
        return port

    @property
    def http_port(self) -> int | None:
        """The port of HTTP, once it listens; None without HTTP."""
        return None if self._web is None else self._web.port

    async def start(self) -> None:
        """Starts to listen. Raises INVALID_PARAMETER if the address is in use or not local, or users are missing."""
        self._endpoint.check_users(self.users)
        loop = asyncio.get_running_loop()
        AcceptErrors(loop)
        host, port = self._endpoint.host, self._endpoint.port
        try:
            shared = True if self._endpoint.worker is not None else None
            self._listener = await asyncio.start_server(self._accept, host, port, backlog=256, reuse_port=shared)
            if self._endpoint.worker is not None:
                own = self._endpoint.worker.socket_of(self._endpoint.worker.number)
                self._canceling = await asyncio.start_unix_server(self._accept, own)
        except OSError as cause:
            raise error(
                "INVALID_PARAMETER", f"listening on {host}:{port} is not possible", detail=f"{cause}."
            ) from cause
        self._watching = loop.create_task(self.host.watch_logins())
        if self._web is not None:
            try:
                await self._web.start()
            except Error:
                self._listener.close()
                raise

    async def stop(self) -> None:
        """Disconnects all clients, and returns when their statements have ended."""
        for listener in (self._listener, self._canceling):
            if listener is not None:
                listener.close()
        if self._watching is not None:
            self._watching.cancel()
        if self._web is not None:
            await self._web.stop()
        for connection in list(self._connections):
            connection.end(error("ADMIN_SHUTDOWN", "terminating connection due to administrator command"))
        if self._connections:
            await asyncio.wait(self._connections.values())
        self.host.close()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = Connection(self.host, self._tls, reader, writer)
        task = asyncio.current_task()
        assert task is not None
        self._connections[connection] = task
        self.host.begin(connection)
        try:
            await connection.serve()
        finally:
            del self._connections[connection]
            self.host.leave(connection)


class BackgroundServer:
    """A server in its own thread, for other programs: `with BackgroundServer(…) as served`."""

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


@dataclass(frozen=True)
class OtherServer:
    """Another server of the same database, of which one writes and the other one is a standby."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"

    def is_writer(self, timeout_s: float) -> bool | None:
        """Whether it writes the database; None if it does not answer in time."""
        try:
            with socket.create_connection((self.host, self.port), timeout_s) as connection:
                connection.settimeout(timeout_s)
                connection.sendall(role_request())
                role = connection.recv(1)
        except OSError:
            return None
        return role == WRITER if role else None


def other_server(address: str) -> OtherServer:
    """The server at HOST:PORT. Raises INVALID_PARAMETER."""
    found = host_and_port(address)
    if found is None:
        raise error("INVALID_PARAMETER", f'"{address}" is no address of a server', hint="It has the form HOST:PORT.")
    return OtherServer(*found)

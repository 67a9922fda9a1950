"""Database servers: addresses, reused connections, and errors."""

from __future__ import annotations

import contextlib
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Final
from urllib.parse import parse_qsl, unquote, urlsplit

from watersmeet.errors import Error, did_you_mean, error
from watersmeet.system.secretvalues import revealed

#: The levels of TLS under libpq's names.
SSL_MODES: Final = ("disable", "allow", "prefer", "require", "verify-ca", "verify-full")
#: libpq's name for each name of a TLS level that JDBC drivers use.
_JDBC_MODES: Final = {
    "disabled": "disable",
    "preferred": "prefer",
    "required": "require",
    "trust": "require",
    "verify-identity": "verify-full",
}
#: For a system's name in a JDBC URL, the name of the connector and the default port.
_SYSTEMS: Final = {"postgresql": ("postgres", 5432), "mysql": ("mysql", 3306), "mariadb": ("mysql", 3306)}


#: The greatest number of a port.
MOST_PORT: Final = 65_535


def host_and_port(address: str) -> tuple[str, int] | None:
    """The parts of HOST:PORT, the host without the brackets of IPv6; None for another text."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) <= MOST_PORT:
        return None
    return host.strip("[]"), int(port)


@dataclass(frozen=True)
class Server:
    """The address and login of a database on a server. password: may refer to a secret. ssl_mode: one of SSL_MODES."""

    host: str
    port: int
    user: str
    password: str
    database: str
    ssl_mode: str = "prefer"

    def __repr__(self) -> str:
        return self.shown

    @property
    def shown(self) -> str:
        """The database, for messages."""
        return f'database "{self.database}" on {self.host}:{self.port}'


class KeptConnections:
    """One connection to each server, which the threads of this process share by turns.

    connect: opens a connection. ping: raises an error of the library if a kept connection is broken. Both may block for
    long. library: its errors are subclasses of its `Error`. failure: converts these errors.
    """

    def __init__(
        self,
        connect: Callable[[Server], Any],
        ping: Callable[[Any], object],
        library: Callable[[], ModuleType],
        failure: Callable[[Any, Server], Error],
    ) -> None:
        self._connect, self._ping, self._library, self._failure = connect, ping, library, failure
        self._kept: dict[Server, Any] = {}
        self._keeping = threading.Lock()

    @contextmanager
    def use(self, server: Server) -> Iterator[Any]:
        """A connection for the exclusive use of one thread. It is closed after an error, and replaced if it broke since
        its last use.

        Errors of the library become those of `failure`.
        """
        with self._keeping:
            connection = self._kept.pop(server, None)
        if connection is not None and not self._is_alive(connection):
            with contextlib.suppress(Exception):
                connection.close()
            connection = None
        if connection is None:
            connection = self._connect(server)
        try:
            yield connection
        except BaseException as cause:
            with contextlib.suppress(Exception):
                connection.close()
            if isinstance(cause, self._library().Error):
                raise self._failure(cause, server) from cause
            raise
        with self._keeping:
            other = self._kept.pop(server, None)
            self._kept[server] = connection
        if other is not None:
            other.close()

    def _is_alive(self, connection: Any) -> bool:
        try:
            self._ping(connection)
        except self._library().Error:
            return False
        return True


def not_allowed(server: Server, text: str, table: str, rights: str) -> Error:
    """The error for a missing right. text: the server's message. rights: the rights that the user needs on the
    table.
    """
    grant = f"GRANT {rights} ON {table} TO {server.user}" if table else f"a GRANT to {server.user}"
    found = error(
        "CONNECTOR_OPTION",
        f'user "{server.user}" may not do that in {server.shown}',
        detail=text,
        hint=f"The owner has to give the right: {grant}.",
    )
    found.lacks_right = True
    return found


def may_not_read(server: Server, table: str) -> Error:
    """The error for a missing right to read a table."""
    found = error(
        "CONNECTOR_OPTION",
        f'user "{server.user}" may not read table "{table}"',
        hint=f'The owner has to give the right: GRANT SELECT ON {table} TO "{server.user}".',
    )
    found.lacks_right = True
    return found


def no_database(server: Server) -> Error:
    """The error for an unknown database."""
    return error("CONNECTOR_OPTION", f"there is no {server.shown}", hint="Correct the option for the database.")


def not_let_in(system: str, server: Server, text: str) -> Error:
    """The error for a wrong user or password. `text` is the server's message."""
    return error(
        "CONNECTOR_OPTION",
        f'the {system} server at {server.host}:{server.port} does not let user "{server.user}" in',
        detail=text,
        hint="Check user and password.",
    )


def no_tls(system: str, server: Server, text: str) -> Error:
    """The error for a connection that can't be encrypted as required."""
    return error(
        "CONNECTOR_OPTION",
        f"no TLS connection to the {system} server at {server.host}:{server.port}",
        detail=text,
        hint="Check the option for TLS.",
    )


def unreachable(system: str, server: Server, text: str | None) -> Error:
    """The error RUNTIME_UNAVAILABLE for temporary problems."""
    return error(
        "RUNTIME_UNAVAILABLE",
        f"the {system} server at {server.host}:{server.port} can't be reached",
        detail=text,
        hint="Check that it runs, and its address.",
    )


def ssl_mode(text: str) -> str:
    """One of SSL_MODES. Raises CONNECTOR_OPTION for other words."""
    word = text.lower().replace("_", "-")
    found = _JDBC_MODES.get(word, word)
    if found not in SSL_MODES:
        raise error(
            "CONNECTOR_OPTION",
            f'ssl_mode can\'t be "{text}"',
            hint=did_you_mean(found, SSL_MODES) or "For example require.",
        )
    return found


def tls_context(mode: str) -> ssl.SSLContext | None:
    """The TLS context for libraries that accept Python's; None without TLS."""
    if mode not in ("require", "verify-ca", "verify-full"):
        return None
    if mode == "require":
        return unchecked_tls()
    context = ssl.create_default_context()
    context.check_hostname = mode == "verify-full"
    return context


def unchecked_tls() -> ssl.SSLContext:
    """A TLS context that doesn't verify the peer. It does not load the system's certificates, which would take 20
    ms.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


@dataclass(frozen=True)
class JdbcUrl:
    """The parts of a JDBC URL. system: `postgres` or `mysql`."""

    system: str
    server: Server
    properties: dict[str, str]


def jdbc_url(url: str, user: str | None, password: str | None) -> JdbcUrl:
    """Parses a JDBC URL, which may also contain user and password.

    Raises CONNECTOR_OPTION, and FEATURE_NOT_SUPPORTED for another system.
    """
    url = revealed(url)
    name = url.removeprefix("jdbc:").partition(":")[0]
    if name not in _SYSTEMS:
        *others, last = (f"jdbc:{known}://…" for known in _SYSTEMS)
        raise error(
            "FEATURE_NOT_SUPPORTED",
            f"connections to {name or 'a database'} by JDBC",
            hint=f"{', '.join(others)} and {last} are.",
        )
    system, default_port = _SYSTEMS[name]
    parts = urlsplit(url.removeprefix("jdbc:"))
    properties = dict(parse_qsl(parts.query))
    user, password = user or properties.get("user"), password or properties.get("password")
    try:
        port = parts.port or default_port
    except ValueError:
        port = 0
    if not parts.hostname or not parts.path.strip("/") or not port or not user:
        raise error(
            "CONNECTOR_OPTION",
            "the URL of the database does not say the host, the database and the user",
            hint=f"Write jdbc:{name}://host:{default_port}/database, and the user as an option.",
        )
    server = Server(parts.hostname, port, user, password or "", unquote(parts.path.strip("/")), _mode_of(properties))
    return JdbcUrl(system, server, properties)


def _mode_of(properties: dict[str, str]) -> str:
    """The TLS level from sslmode of PostgreSQL's driver, or from sslMode and useSSL of the others."""
    by_name = {name.lower(): value for name, value in properties.items()}
    wanted = by_name.get("usessl", "").lower()
    return ssl_mode(by_name.get("sslmode", {"true": "require", "false": "disable"}.get(wanted, "prefer")))

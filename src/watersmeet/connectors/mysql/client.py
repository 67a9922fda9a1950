"""Clients of MySQL and MariaDB: the library, which is an extra, connections, and what their errors mean."""

from __future__ import annotations

import ssl
from contextlib import AbstractContextManager
from functools import cache
from types import ModuleType
from typing import Any, Final

from watersmeet.connectors.databases.servers import (
    KeptConnections,
    Server,
    no_database,
    no_tls,
    not_allowed,
    not_let_in,
    tls_context,
    unchecked_tls,
    unreachable,
)
from watersmeet.errors import Error, error
from watersmeet.system import process
from watersmeet.system.secretvalues import revealed

_SYSTEM: Final = "MySQL"
_CONNECT_S: Final = 10

#: Numbers of errors. MySQL, "Server Error Message Reference"; MariaDB, "MariaDB Error Code Reference".
_LOGIN: Final = (1045, 1251, 1698, 1862, 2059, 2061)
_RIGHT: Final = (1044, 1142, 1143, 1227, 1370)
_NO_DATABASE: Final = 1049
_UNDEFINED: Final = (1051, 1054, 1146)
_TLS: Final = (2026, 3159)
#: What passes: connections, resources, locks, the operator, a server that only reads for now.
_PASSING: Final = (
    *(0, 1021, 1037, 1040, 1041, 1053, 1077, 1114, 1152, 1158, 1159, 1160, 1161, 1180, 1203, 1205, 1213, 1226, 1290),
    *(1317, 1614, 1836, 1927, 1969, 2000, 2002, 2003, 2006, 2012, 2013, 2014, 2055, 3024, 4031),
)


def library() -> ModuleType:
    """The module pymysql. LIBRARY_MISSING if it is not installed."""
    return process.library("pymysql", "connections to MySQL")


@cache
def _connections() -> Any:
    """The library's class of connections, but those that take TLS only where it is offered read no certificates."""
    base: Any = library().connections.Connection

    class Connection(base):  # type: ignore[misc]
        def _create_ssl_ctx(self, wanted: Any) -> ssl.SSLContext:
            context: ssl.SSLContext = wanted or unchecked_tls()
            return context

    return Connection


def connect(server: Server) -> Any:
    """A new connection, which commits each statement. Times are in UTC. RUNTIME_UNAVAILABLE, CONNECTOR_OPTION."""
    pymysql = library()
    try:
        return _connections()(
            host=server.host,
            port=server.port,
            user=server.user,
            password=revealed(server.password),
            database=server.database,
            charset="utf8mb4",
            autocommit=True,
            connect_timeout=_CONNECT_S,
            init_command="SET time_zone = '+00:00'",
            program_name="watersmeet",
            ssl=tls_context(server.ssl_mode),
            ssl_disabled=server.ssl_mode == "disable",
        )
    except pymysql.Error as cause:
        raise failure(cause, server) from cause


def quoted(*names: str) -> str:
    """A name with all its parts, as statements with parameters have it."""
    return ".".join("`" + name.replace("`", "``").replace("%", "%%") + "`" for name in names)


def number_and_text(cause: Any) -> tuple[int, str]:
    """The number of an error of the library (0: the connection is closed), and what the server says."""
    number, text = (*cause.args, "")[:2] if len(cause.args) > 1 else (0, str(cause))
    return (number if isinstance(number, int) else 0), str(text).strip()


def failure(cause: Any, server: Server, table: str = "", rights: str = "SELECT") -> Error:
    """What an error of the library means to who wrote the statement. It never has a secret.

    rights: those that the user needs on the table.

    UNDEFINED_OBJECT without the table; CONNECTOR_OPTION if somebody has to do something; RUNTIME_UNAVAILABLE for what
    may pass.
    """
    number, text = number_and_text(cause)
    if number in _RIGHT:
        return not_allowed(server, text, table, rights)
    if number in _UNDEFINED:
        return error("UNDEFINED_OBJECT", text, detail=f"In {server.shown}.")
    if number == _NO_DATABASE:
        return no_database(server)
    if number in _LOGIN:
        return not_let_in(_SYSTEM, server, text)
    if number in _TLS or isinstance(cause.__cause__, ssl.SSLError):
        return no_tls(_SYSTEM, server, text)
    if number in _PASSING:
        return unreachable(_SYSTEM, server, text or None)
    return error("CONNECTOR_OPTION", f"{server.shown} refuses: {text}", detail=f"Error {number}.")


_KEPT: Final = KeptConnections(connect, lambda connection: connection.ping(reconnect=False), library, failure)


def connected(server: Server) -> AbstractContextManager[Any]:
    """A connection that this process keeps, to be used by one thread. Errors of the library become those of `failure`.

    One that broke since it was used is made anew.
    """
    return _KEPT.use(server)

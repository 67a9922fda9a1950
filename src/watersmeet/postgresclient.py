"""Clients of PostgreSQL: the library, which is an extra, connections, and what their errors mean."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Final

from watersmeet import extras
from watersmeet.errors import Error, error
from watersmeet.secretvalues import revealed

#: How values are written as text, whatever the settings of the server, the database and the user.
_SETTINGS: Final = (
    "-c DateStyle=ISO -c IntervalStyle=postgres -c bytea_output=hex -c extra_float_digits=1 -c TimeZone=UTC "
    "-c default_transaction_read_only=off"
)
_CONNECT_S: Final = 10
#: Words of the server that say what is wrong with a connection, for which the library has no code.
_LOGIN: Final = ("password authentication failed", "no password supplied", "no pg_hba.conf entry", "role ")
_SSL: Final = ("SSL", "certificate")

_INSUFFICIENT, _NO_TABLE, _NO_COLUMN, _NO_SCHEMA = "42501", "42P01", "42703", "3F000"
#: Classes of SQLSTATE that pass: connections, resources, the operator, transactions that were rolled back.
_PASSING: Final = ("08", "53", "57", "40")


@dataclass(frozen=True)
class Server:
    """How a database of a server is reached. password: or a reference to a secret. ssl_mode: as libpq's sslmode."""

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


def library() -> ModuleType:
    """The module psycopg. LIBRARY_MISSING if it is not installed."""
    extras.library("psycopg.sql", "connections to PostgreSQL")
    return extras.library("psycopg", "connections to PostgreSQL")


def connect(server: Server, *, replication: bool = False) -> Any:
    """A new connection, which commits each statement. RUNTIME_UNAVAILABLE, CONNECTOR_OPTION.

    replication: it takes the commands of replication.
    """
    psycopg = library()
    more = {"replication": "database"} if replication else {}
    try:
        return psycopg.connect(
            host=server.host,
            port=server.port,
            user=server.user,
            password=revealed(server.password),
            dbname=server.database,
            sslmode=server.ssl_mode,
            connect_timeout=_CONNECT_S,
            application_name="watersmeet",
            client_encoding="UTF8",
            options=_SETTINGS,
            autocommit=True,
            **more,
        )
    except psycopg.Error as cause:
        raise failure(cause, server) from cause


_KEPT: Final[dict[Server, Any]] = {}
_KEEPING: Final = threading.Lock()


@contextmanager
def connected(server: Server) -> Iterator[Any]:
    """A connection that this process keeps, to be used by one thread. Errors of the library become those of `failure`.

    One that broke since it was used is made anew.
    """
    psycopg = library()
    with _KEEPING:
        connection = _KEPT.pop(server, None)
    if connection is not None and not _is_alive(psycopg, connection):
        connection = None
    if connection is None:
        connection = connect(server)
    try:
        yield connection
    except psycopg.Error as cause:
        connection.close()
        raise failure(cause, server) from cause
    except BaseException:
        connection.close()
        raise
    with _KEEPING:
        other = _KEPT.pop(server, None)
        _KEPT[server] = connection
    if other is not None:
        other.close()


def _is_alive(psycopg: ModuleType, connection: Any) -> bool:
    try:
        connection.execute("")
    except psycopg.Error:
        connection.close()
        return False
    return True


def failure(cause: Any, server: Server, table: str = "", rights: str = "SELECT") -> Error:
    """What an error of the library means to who wrote the statement. It never has a secret.

    rights: those that the user needs on the table.

    UNDEFINED_OBJECT without the table; CONNECTOR_OPTION if somebody has to do something; RUNTIME_UNAVAILABLE for what
    may pass.
    """
    text = str(cause).strip()
    state = getattr(cause, "sqlstate", None) or ""
    if state == _INSUFFICIENT:
        grant = f"GRANT {rights} ON {table} TO {server.user}" if table else f"a GRANT to {server.user}"
        return error(
            "CONNECTOR_OPTION",
            f'user "{server.user}" may not do that in {server.shown}',
            detail=text,
            hint=f"The owner has to give the right: {grant}.",
        )
    if state in (_NO_TABLE, _NO_COLUMN, _NO_SCHEMA):
        return error(
            "UNDEFINED_OBJECT", text.splitlines()[0].removeprefix("ERROR:").strip(), detail=f"In {server.shown}."
        )
    if not state and ("database " in text and "does not exist" in text):
        return error("CONNECTOR_OPTION", f"there is no {server.shown}", hint="Correct the option for the database.")
    if not state and any(word in text for word in _LOGIN):
        return error(
            "CONNECTOR_OPTION",
            f'the PostgreSQL server at {server.host}:{server.port} does not let user "{server.user}" in',
            detail=text.splitlines()[-1].strip(),
            hint="Check user and password.",
        )
    if not state and any(word in text for word in _SSL):
        return error(
            "CONNECTOR_OPTION",
            f"no TLS connection to the PostgreSQL server at {server.host}:{server.port}",
            detail=text.splitlines()[-1].strip(),
            hint="Check the option for TLS.",
        )
    if not state or state.startswith(_PASSING):
        return error(
            "RUNTIME_UNAVAILABLE",
            f"the PostgreSQL server at {server.host}:{server.port} can't be reached",
            detail=text.splitlines()[-1].strip() if text else None,
            hint="Check that it runs, and its address.",
        )
    return error("CONNECTOR_OPTION", f"{server.shown} refuses: {text.splitlines()[0]}", detail=f"SQLSTATE {state}.")

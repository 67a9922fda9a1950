"""Clients of PostgreSQL: the library, which is an extra, connections, and what their errors mean."""

from __future__ import annotations

from contextlib import AbstractContextManager
from types import ModuleType
from typing import Any, Final

from watersmeet.connectors.databases.servers import (
    KeptConnections,
    Server,
    no_database,
    no_tls,
    not_allowed,
    not_let_in,
    unreachable,
)
from watersmeet.errors import Error, error
from watersmeet.system import process
from watersmeet.system.secretvalues import revealed

_SYSTEM: Final = "PostgreSQL"
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


def library() -> ModuleType:
    """The module psycopg. LIBRARY_MISSING if it is not installed."""
    process.library("psycopg.sql", "connections to PostgreSQL")
    return process.library("psycopg", "connections to PostgreSQL")


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


def failure(cause: Any, server: Server, table: str = "", rights: str = "SELECT") -> Error:
    """What an error of the library means to who wrote the statement. It never has a secret.

    rights: those that the user needs on the table.

    UNDEFINED_OBJECT without the table; CONNECTOR_OPTION if somebody has to do something; RUNTIME_UNAVAILABLE for what
    may pass.
    """
    text = str(cause).strip()
    state = getattr(cause, "sqlstate", None) or ""
    if state == _INSUFFICIENT:
        return not_allowed(server, text, table, rights)
    if state in (_NO_TABLE, _NO_COLUMN, _NO_SCHEMA):
        return error(
            "UNDEFINED_OBJECT", text.splitlines()[0].removeprefix("ERROR:").strip(), detail=f"In {server.shown}."
        )
    if not state and ("database " in text and "does not exist" in text):
        return no_database(server)
    if not state and any(word in text for word in _LOGIN):
        return not_let_in(_SYSTEM, server, text.splitlines()[-1].strip())
    if not state and any(word in text for word in _SSL):
        return no_tls(_SYSTEM, server, text.splitlines()[-1].strip())
    if not state or state.startswith(_PASSING):
        return unreachable(_SYSTEM, server, text.splitlines()[-1].strip() if text else None)
    return error("CONNECTOR_OPTION", f"{server.shown} refuses: {text.splitlines()[0]}", detail=f"SQLSTATE {state}.")


_KEPT: Final = KeptConnections(connect, lambda connection: connection.execute(""), library, failure)


def connected(server: Server) -> AbstractContextManager[Any]:
    """A connection that this process keeps, to be used by one thread. Errors of the library become those of `failure`.

    One that broke since it was used is made anew.
    """
    return _KEPT.use(server)

"""A client of ClickHouse, by its interface over HTTP: what is asked, and what its errors mean.

ClickHouse, "HTTP Interface".
"""

from __future__ import annotations

import base64
import http.client
import re
import ssl
from collections.abc import Mapping
from typing import Final
from urllib.parse import urlencode

from watersmeet.clients.databaseservers import (
    Server,
    no_database,
    no_tls,
    not_allowed,
    not_let_in,
    tls_context,
    unreachable,
)
from watersmeet.errors import Error, error
from watersmeet.secretvalues import revealed

_SYSTEM: Final = "ClickHouse"
#: How long the server may take to begin an answer, or to go on with it.
_TIMEOUT_S: Final = 300
#: The ports of another protocol than HTTP, and those of HTTP on the same servers.
_NATIVE: Final = {9000: 8123, 9440: 8443}
#: Numbers of errors. ClickHouse, "ErrorCodes.cpp".
_LOGIN: Final = (192, 193, 194, 516)
_RIGHT: Final = (164, 291, 497)
_NO_DATABASE: Final = 81
_UNDEFINED: Final = (16, 47, 60)
#: What passes: memory, disks, queries at once, parts that wait for merges, replicas, whoever coordinates them.
_PASSING: Final = (
    *(23, 74, 75, 76, 159, 160, 198, 202, 209, 210, 225, 236, 241, 242, 243, 252, 279, 285, 286, 289, 319, 394),
    *(439, 473, 999),
)
#: `Code: 60. DB::Exception: text. (NAME) (version 26.9.2.1)`; older servers say it otherwise.
_SAID: Final = re.compile(
    r"Code: (\d+)[.,](?: e\.displayText\(\) =)? DB::Exception: "
    r"(.*?)(?:\. \([A-Z_]+\))?(?:,? \(?(?:version|e\.what).*)?$",
    re.DOTALL,
)
_GRANT: Final = re.compile(r"necessary to have the grant (.+?) ON (\S+?)\.?$")


def check_server(server: Server) -> None:
    """CONNECTOR_OPTION for a port that is known to be that of another protocol, and a user that HTTP can't name."""
    if ":" in server.user:
        raise error("CONNECTOR_OPTION", f'user "{server.user}" can\'t be given to ClickHouse over HTTP: it has a colon')
    if server.port in _NATIVE:
        raise error(
            "CONNECTOR_OPTION",
            f"port {server.port} is that of ClickHouse's native protocol",
            hint=f"Write the port of its HTTP interface, {_NATIVE[server.port]} unless it was changed.",
        )


def asked(
    server: Server, sql: str, data: memoryview | bytes | None = None, table: str = "", rights: str = "SELECT"
) -> bytes:
    """The answer to a statement, as a whole. data: what stands behind it. table, rights: what it needs, for messages.

    Errors of `failure`; RUNTIME_UNAVAILABLE if the server can't be reached.
    """
    # An error that comes late is then none behind half of an answer.
    parameters = {"database": server.database, "wait_end_of_query": "1"}
    if data is not None:
        parameters["query"] = sql
    token = base64.b64encode(f"{server.user}:{revealed(server.password)}".encode()).decode()
    headers = {"Authorization": f"Basic {token}", "Content-Type": "application/octet-stream"}
    connection = _connection(server)
    try:
        connection.request("POST", f"/?{urlencode(parameters)}", sql.encode() if data is None else data, headers)
        answer = connection.getresponse()
        body = answer.read()
    except ssl.SSLError as cause:
        raise no_tls(_SYSTEM, server, str(cause)) from None
    except (OSError, http.client.HTTPException) as cause:
        raise unreachable(_SYSTEM, server, str(cause) or type(cause).__name__) from None
    finally:
        connection.close()
    if answer.status != http.HTTPStatus.OK:
        raise failure(server, answer.status, dict(answer.headers), body.decode(errors="replace"), table, rights)
    return body


def _connection(server: Server) -> http.client.HTTPConnection:
    context = tls_context(server.ssl_mode)
    if context is None:
        return http.client.HTTPConnection(server.host, server.port, timeout=_TIMEOUT_S)
    return http.client.HTTPSConnection(server.host, server.port, timeout=_TIMEOUT_S, context=context)


def failure(
    server: Server, status: int, headers: Mapping[str, str], text: str, table: str = "", rights: str = "SELECT"
) -> Error:
    """What an answer other than 200 means to who wrote the statement.

    UNDEFINED_OBJECT without the table; CONNECTOR_OPTION if somebody has to do something; RUNTIME_UNAVAILABLE for what
    may pass.
    """
    found = _SAID.match(text.strip())
    known = headers.get("X-ClickHouse-Exception-Code", "")
    number = int(found[1]) if found else int(known) if known.isdecimal() else 0
    said = (found[2] if found else text).strip()[:2000]
    if number in _LOGIN:
        return not_let_in(_SYSTEM, server, said)
    if number in _RIGHT:
        needed = _GRANT.search(said)
        return not_allowed(server, said, *((needed[2], needed[1]) if needed else (table, rights)))
    if number == _NO_DATABASE:
        return no_database(server)
    if number in _UNDEFINED:
        return error("UNDEFINED_OBJECT", said, detail=f"In {server.shown}.")
    if number in _PASSING or (not number and status >= http.HTTPStatus.INTERNAL_SERVER_ERROR):
        return unreachable(_SYSTEM, server, said or f"It answers {status}.")
    if not number:
        return error(
            "CONNECTOR_OPTION",
            f"{server.host}:{server.port} does not answer as the HTTP interface of ClickHouse",
            detail=said[:200] or f"It answers {status}.",
            hint="Check host and port.",
        )
    return error("CONNECTOR_OPTION", f"{server.shown} refuses: {said}", detail=f"Error {number}.")


def quoted(*names: str) -> str:
    """A name with all its parts."""
    return ".".join("`" + name.replace("\\", "\\\\").replace("`", "\\`") + "`" for name in names)


def literal(text: str) -> str:
    """A text as a constant."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'").replace("\0", "\\0")
    return f"'{escaped}'"

"""What comes before a client has said who it is: encryption, requests to cancel, the options of its first message.

PostgreSQL, "Start-up", "SSL Session Encryption", "Canceling Requests in Progress".
"""

from __future__ import annotations

import ssl
import struct
from collections.abc import Callable
from typing import Final

from watersmeet.errors import error
from watersmeet.server import messages
from watersmeet.server.messages import Body
from watersmeet.server.wire import Wire

_MAJOR: Final = 3


async def start(
    wire: Wire, tls: ssl.SSLContext | None, cancel: Callable[[int, bytes], None], *, requires_tls: bool
) -> dict[str, str] | None:
    """The options of the client's first message; None after a request to cancel, or at the end.

    cancel: cancels what the client of a number runs, if the secret is its own. requires_tls: where there is TLS.
    PROTOCOL_VIOLATION; FEATURE_NOT_SUPPORTED; INVALID_AUTHORIZATION; Hangup.
    """
    while True:
        body = await wire.first()
        if body is None:
            return None
        (code,) = struct.unpack(">I", body[:4])
        if code == messages.SSL_REQUEST and not wire.is_encrypted:
            wire.tell(b"N" if tls is None else b"S")
            await wire.flush()
            if tls is not None:
                await wire.encrypt(tls)
        elif code == messages.GSS_REQUEST:
            wire.tell(b"N")
            await wire.flush()
        elif code == messages.CANCEL_REQUEST:
            if len(body) == 12:
                cancel(struct.unpack(">i", body[4:8])[0], body[8:])
            return None
        else:
            options = _options(wire, code, Body(body[4:]))
            if tls is not None and requires_tls and not wire.is_encrypted:
                raise error(
                    "INVALID_AUTHORIZATION", "connections without encryption are refused", hint="Use sslmode=require."
                )
            return options


def _options(wire: Wire, code: int, body: Body) -> dict[str, str]:
    major, minor = code >> 16, code & 0xFFFF
    if major != _MAJOR:
        raise error("FEATURE_NOT_SUPPORTED", f"unsupported frontend protocol {major}.{minor}: the server speaks 3.0")
    options: dict[str, str] = {}
    while name := body.text():
        options[name] = body.text()
    body.end()
    unknown = [n for n in options if n.startswith("_pq_.")]
    if minor or unknown:
        wire.tell(messages.negotiate_version(0, unknown))
    if not options.get("user"):
        raise error("INVALID_AUTHORIZATION", "no user name is given in the startup message")
    return options

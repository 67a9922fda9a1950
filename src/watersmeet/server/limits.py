"""What a client may take of the server."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """Limits of the server.

    connections: how many clients at once; members of `admin` may be some more. starting: how many that have not said
    who they are; the oldest goes when there are more. authentication_s: how long a client may take to say who it is.
    slow_client_s: how long it may leave rows untaken. message_bytes: of a message, once it has said who it is.
    requires_tls: connections without encryption are refused. result_size: of one result, as a setting has it, from
    which clients begin.
    """

    connections: int = 100
    starting: int = 100
    authentication_s: float = 30
    slow_client_s: float = 60
    message_bytes: int = 1 << 28
    requires_tls: bool = False
    result_size: str = "1GB"

"""Connections of the HTTP port: how many there may be, and how long a client may take to send a request."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Callable, Iterator
from typing import Final, cast

from watersmeet.server.clients import Limits

#: How long a connection may wait for its next request.
_NEXT_REQUEST_S: Final = 75.0
_BACKLOG: Final = 256


class Accepting:
    """A listener whose connections are bounded in number and in the time that they take.

    A client has `authentication_s` for TLS and the head of its first request, then `_NEXT_REQUEST_S` from each answer to the
    head of the next request, and `slow_client_s` to read what the server has written. When too many connections are
    open, the one that has waited longest for a request ends; without such a one, the new connection ends.
    """

    def __init__(self, make: Callable[[], asyncio.Protocol], tls: ssl.SSLContext | None, limits: Limits) -> None:
        """make: returns the protocol that reads the requests of one connection."""
        self.make = make
        self.tls = tls
        self.limits = limits
        self._waiting: dict[_Client, None] = {}
        """Connections without a request, the one that has waited longest first."""
        self._answering: set[_Client] = set()
        self._of: dict[asyncio.Protocol, _Client] = {}
        self._listener: asyncio.Server | None = None

    @property
    def port(self) -> int:
        """The port, once it listens."""
        assert self._listener is not None
        port: int = self._listener.sockets[0].getsockname()[1]
        return port

    async def listen(self, host: str, port: int) -> None:
        """Starts to listen. OSError."""
        loop = asyncio.get_running_loop()
        self._listener = await loop.create_server(lambda: _Client(self), host, port, backlog=_BACKLOG)

    def close(self) -> None:
        """Stops listening. Open connections stay."""
        if self._listener is not None:
            self._listener.close()

    @contextlib.contextmanager
    def answering(self, protocol: asyncio.Protocol | None) -> Iterator[None]:
        """Inside the block, the connection of a protocol has a request and is not ended to make room."""
        client = None if protocol is None else self._of.get(protocol)
        if client is None:
            yield
            return
        self._waiting.pop(client, None)
        self._answering.add(client)
        client.wait(None)
        try:
            yield
        finally:
            if client in self._answering:
                self._answering.discard(client)
                self._waiting[client] = None
                client.wait(_NEXT_REQUEST_S)

    def enter(self, client: _Client) -> None:
        """Registers a new connection. One connection ends if there are too many."""
        self._waiting[client] = None
        self._of[client.requests] = client
        most = self.limits.connections + self.limits.starting
        if len(self._waiting) + len(self._answering) > most:
            next(iter(self._waiting)).abort()

    def leave(self, client: _Client) -> None:
        """Forgets a connection that has ended."""
        self._waiting.pop(client, None)
        self._answering.discard(client)
        self._of.pop(client.requests, None)


class _Client(asyncio.Protocol):
    """One connection. Its bytes go to the protocol of requests, after TLS if the server has a certificate."""

    def __init__(self, owner: Accepting) -> None:
        self._owner = owner
        self._loop = asyncio.get_running_loop()
        self.requests = owner.make()
        self._transport: asyncio.Transport | None = None
        self._begun = False
        self._early = b""
        self._deadline: asyncio.TimerHandle | None = None
        self._untaken: asyncio.TimerHandle | None = None
        self._encrypting: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._owner.enter(self)
        if self._transport.is_closing():
            return
        self.wait(self._owner.limits.authentication_s)
        if self._owner.tls is None:
            self._begin(self._transport)
        else:
            self._transport.pause_reading()
            self._encrypting = self._loop.create_task(self._encrypt(self._transport, self._owner.tls))

    async def _encrypt(self, transport: asyncio.Transport, tls: ssl.SSLContext) -> None:
        try:
            encrypted = await self._loop.start_tls(
                transport, self, tls, server_side=True, ssl_handshake_timeout=self._owner.limits.authentication_s
            )
        except (OSError, asyncio.CancelledError):  # an error of TLS is one of them
            encrypted = None
        if encrypted is None:  # also if the connection ended meanwhile
            transport.abort()
            self.connection_lost(None)
            return
        self._transport = encrypted
        self._begin(encrypted)

    def _begin(self, transport: asyncio.Transport) -> None:
        self._begun = True
        self.requests.connection_made(transport)
        if self._early:
            self.requests.data_received(self._early)
            self._early = b""

    def wait(self, seconds: float | None) -> None:
        """Ends the connection if nothing happens for a time. None: it may take as long as it likes."""
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = None if seconds is None else self._loop.call_later(seconds, self.abort)

    def abort(self) -> None:
        """Ends the connection at once."""
        self._owner.leave(self)
        if self._transport is not None:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        if self._begun:
            self.requests.data_received(data)
        else:
            self._early += data  # the first request, in one piece with the end of the handshake

    def eof_received(self) -> bool | None:
        return self.requests.eof_received() if self._begun else None

    def pause_writing(self) -> None:
        self._untaken = self._loop.call_later(self._owner.limits.slow_client_s, self.abort)
        self.requests.pause_writing()

    def resume_writing(self) -> None:
        if self._untaken is not None:
            self._untaken.cancel()
        self.requests.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self.wait(None)
        if self._untaken is not None:
            self._untaken.cancel()
        self._owner.leave(self)
        if self._begun:
            self._begun = False
            self.requests.connection_lost(exc)

"""Connections and requests of HTTP: limits, authentication, JSON bodies and answers.

Users authenticate by HTTP basic authentication with their password. `POST /api/login` returns a token, in a cookie that
scripts can't read. Programs send user and password with each request, or the token (`Authorization: Bearer`).

Requests of other origins are rejected, as pages of other sites must not use the cookie. Without users, a page of
another site could resolve that site's name to this machine (DNS rebinding), so only names of this machine are accepted.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import hashlib
import hmac
import ipaddress
import json
import secrets
import ssl
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, cast
from urllib.parse import urlsplit

from aiohttp import web

from watersmeet.errors import Error, error
from watersmeet.server.clients import Limits
from watersmeet.server.users import Login, Users

COOKIE: Final = "watersmeet"

#: The time after which unused tokens expire.
_IDLE_S: Final = 12 * 3600.0
#: The maximum number of tokens of a user; a new one ends the oldest.
_MOST_TOKENS: Final = 16
#: The number of cached checks of passwords, because a check takes some milliseconds.
_MOST_CHECKED: Final = 1000
_CHECKED_S: Final = 300.0
#: The maximum number of concurrent checks of passwords.
_CHECKS: Final = 2


@dataclass
class _Token:
    login: Login
    used_s: float


class Access:
    """Authenticates requests. For one event loop. host: the address of the server."""

    def __init__(self, users: Users, host: str, *, encrypted: bool) -> None:
        self._users = users
        self._host = host
        self._encrypted = encrypted
        self._tokens: OrderedDict[bytes, _Token] = OrderedDict()
        self._checked: OrderedDict[tuple[Login, bytes], float] = OrderedDict()
        self._key = secrets.token_bytes(32)
        self._checking = asyncio.Semaphore(_CHECKS)

    @property
    def needs_users(self) -> bool:
        """Whether clients must authenticate."""
        return self._users.need_passwords

    def check_place(self, request: web.Request) -> None:
        """Raises INVALID_AUTHORIZATION for a request from a page of another site, or to another host name."""
        if not self.needs_users and not self._is_own(_host_of(request.host)):
            raise error(
                "INVALID_AUTHORIZATION",
                f'the server does not answer for "{request.host}"',
                hint=f"Use {self._host}, or create a user with a password.",
            )
        origin = request.headers.get("Origin")
        if origin is not None and urlsplit(origin).netloc.lower() != request.host.lower():
            raise error("INVALID_AUTHORIZATION", f'requests of pages of "{origin}" are refused')
        if request.headers.get("Sec-Fetch-Site", "same-origin") not in ("same-origin", "none"):
            raise error("INVALID_AUTHORIZATION", "requests from pages of other sites are rejected")

    async def user(self, request: web.Request) -> Login | None:
        """The user of a request; None for a trusted one. Raises AUTHENTICATION_FAILED."""
        if not self.needs_users:
            return None
        kind, _, value = request.headers.get("Authorization", "").partition(" ")
        if kind.lower() == "basic":
            return await self._proved(value, request.remote or "")
        token = value if kind.lower() == "bearer" else request.cookies.get(COOKIE, "")
        known = self._tokens.get(_digest(token))
        if known is None or not self._is_valid(known):
            raise error("AUTHENTICATION_FAILED", "log in first")
        known.used_s = time.monotonic()
        self._tokens.move_to_end(_digest(token))
        return known.login

    def give_token(self, login: Login) -> str:
        """A new token of a user."""
        for digest in [d for d, known in self._tokens.items() if not self._is_valid(known)]:
            del self._tokens[digest]
        own = [digest for digest, known in self._tokens.items() if known.login.actor == login.actor]
        for digest in own[: len(own) - _MOST_TOKENS + 1]:
            del self._tokens[digest]
        token = secrets.token_urlsafe(32)
        self._tokens[_digest(token)] = _Token(login, time.monotonic())
        return token

    def _is_valid(self, token: _Token) -> bool:
        return time.monotonic() - token.used_s <= _IDLE_S and self._users.admits(token.login)

    def set_cookie(self, response: web.Response, token: str) -> None:
        """Sets the cookie of a token; an empty one deletes it."""
        response.set_cookie(
            COOKIE,
            token,
            max_age=None if token else 0,
            httponly=True,
            samesite="Strict",
            secure=self._encrypted,
        )

    def forget(self, request: web.Request) -> None:
        """Revokes the token of a request."""
        self._tokens.pop(_digest(request.cookies.get(COOKIE, "")), None)

    async def _proved(self, value: str, address: str) -> Login:
        """The user of `user:password` in base64, at an address. Raises AUTHENTICATION_FAILED."""
        try:
            user, _, password = base64.b64decode(value, validate=True).decode().partition(":")
        except (binascii.Error, UnicodeDecodeError):
            raise error("AUTHENTICATION_FAILED", "user and password can't be read") from None
        given = hmac.digest(self._key, password.encode(), "sha256")
        login = self._users.find(user)[0]
        if login is not None and time.monotonic() - self._checked.get((login, given), -_CHECKED_S) < _CHECKED_S:
            return login
        guesses = self._users.guesses
        while True:
            async with self._checking:
                if not (left_s := guesses.wait_s(address, user)):
                    guesses.begin(address, user)
                    login = await asyncio.to_thread(self._users.check, user, password)
                    break
            await asyncio.sleep(left_s)
        guesses.succeed(address, user)
        self._checked[login, given] = time.monotonic()
        while len(self._checked) > _MOST_CHECKED:
            self._checked.popitem(last=False)
        return login

    def _is_own(self, host: str) -> bool:
        """Whether a host name always refers to this machine."""
        if host in ("localhost", self._host.lower()):
            return True
        try:
            return ipaddress.ip_address(host).is_loopback
        except ValueError:
            return False


def _host_of(text: str) -> str:
    """The host of `host:port`."""
    try:
        return (urlsplit(f"//{text}").hostname or "").lower()
    except ValueError:
        return ""


def _digest(token: str) -> bytes:
    """The stored hash of a token, so that neither the memory nor the time of a look-up reveals the token."""
    return hashlib.sha256(token.encode()).digest()


#: The HTTP status of an answer by error condition; 400 for others.
_STATUS: Final = {
    "AUTHENTICATION_FAILED": 401,
    "HISTORY_GONE": 410,
    "IDLE_TIMEOUT": 408,
    "INVALID_AUTHORIZATION": 403,
    "PERMISSION_DENIED": 403,
    "UNDEFINED_OBJECT": 404,
    "UNDEFINED_RELATION": 404,
    "TOO_MANY_CONNECTIONS": 503,
    "ADMIN_SHUTDOWN": 503,
    "INTERNAL_ERROR": 500,
}

_BAD_REQUEST: Final = 400

#: Answers are never cached.
_NOT_KEPT: Final = {"Cache-Control": "no-store"}


def compact(value: object) -> str:
    """JSON without spaces. A lone surrogate, which UTF-8 does not have, becomes a question mark."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str)
    return text.encode("utf-8", "replace").decode()


def answer(value: object, status: int = 200) -> web.Response:
    """A JSON answer."""
    return web.Response(text=compact(value), content_type="application/json", headers=_NOT_KEPT, status=status)


def failed(err: Error, status: int | None = None) -> web.Response:
    """The answer for an error. status: None for that of its condition."""
    return answer({"error": err.to_json()}, status or _STATUS.get(err.condition, _BAD_REQUEST))


def refused(request: web.Request, err: web.HTTPException) -> web.Response:
    """The answer for an unknown path, a wrong method or a large body."""
    problem = error("UNDEFINED_OBJECT", f"{request.path} is not served: {err.reason}")
    if isinstance(err, web.HTTPMethodNotAllowed):
        allowed = ", ".join(sorted(err.allowed_methods))
        problem = error(
            "INVALID_PARAMETER", f"{request.path} is not served by {request.method}", hint=f"Use {allowed}."
        )
    elif isinstance(err, web.HTTPRequestEntityTooLarge):
        problem = error("INVALID_PARAMETER", "the body of the request is too large", detail=f"{err.text}.")
    response = failed(problem)
    response.set_status(err.status)
    return response


async def read_body(request: web.BaseRequest, most_s: float) -> bytes:
    """The body of a request. Raises IDLE_TIMEOUT after `most_s` seconds, INVALID_PARAMETER for an encoding that is not
    that of the body.
    """
    try:
        async with asyncio.timeout(most_s):
            return await request.read()
    except TimeoutError:
        raise error("IDLE_TIMEOUT", "the body of the request timed out") from None
    except web.RequestPayloadError:
        raise error("INVALID_PARAMETER", "the body of the request does not have the encoding of its header") from None


async def read_json(request: web.Request, most_s: float) -> dict[str, object]:
    """The JSON object in the body of a request. Raises INVALID_PARAMETER; IDLE_TIMEOUT after `most_s` seconds."""
    if request.content_type != "application/json":
        raise error("INVALID_PARAMETER", "a request has JSON as its body", hint="Content-Type: application/json")
    body = await read_body(request, most_s)
    try:
        found = json.loads(body.decode())
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise error("INVALID_PARAMETER", "the body of a request is not a JSON object")
    return found


def text_field(body: dict[str, object], name: str) -> str:
    """A text field of a request. Raises INVALID_PARAMETER if it is missing."""
    value = optional_text(body, name)
    if value is None:
        raise error("INVALID_PARAMETER", f'a request needs a text "{name}"')
    return value


def optional_text(body: dict[str, object], name: str) -> str | None:
    """A text field of a request; None if it is missing. Raises INVALID_PARAMETER for another type."""
    value = body.get(name)
    if value is not None and not isinstance(value, str):
        raise error("INVALID_PARAMETER", f'"{name}" of a request must be a text')
    return value


#: The maximum wait for the next request of a connection.
_NEXT_REQUEST_S: Final = 75.0

_BACKLOG: Final = 256


class Accepting:
    """A listener that limits the number of connections and their idle times.

    A client has `authentication_s` for TLS and the head of its first request, then `_NEXT_REQUEST_S` from each answer
    to the head of the next request, and `slow_client_s` to read written bytes. With too many connections, the one that
    has waited longest for a request ends; if none waits, the new connection ends.
    """

    def __init__(self, make: Callable[[], asyncio.Protocol], tls: ssl.SSLContext | None, limits: Limits) -> None:
        """make: creates the protocol that reads the requests of one connection."""
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
        """Starts to listen. Raises OSError."""
        loop = asyncio.get_running_loop()
        self._listener = await loop.create_server(lambda: _Client(self), host, port, backlog=_BACKLOG)

    def close(self) -> None:
        """Stops listening. Open connections stay."""
        if self._listener is not None:
            self._listener.close()

    @contextlib.contextmanager
    def answering(self, protocol: asyncio.Protocol | None) -> Iterator[None]:
        """A context in which the connection of a protocol answers a request and is not ended for a new connection."""
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
        except (OSError, asyncio.CancelledError):  # errors of TLS are OSErrors
            encrypted = None
        if encrypted is None:  # even if the connection ended meanwhile
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
        """Ends the connection after a time without a request; None for never."""
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

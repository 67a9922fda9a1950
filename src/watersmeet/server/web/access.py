"""Who asks, and from where: users, tokens, and pages of others in the same browser.

A user proves who it is by HTTP basic authentication, with the password of the other protocol. `POST /api/login` gives a
token for it, in a cookie that scripts can't read. Programs may send user and password with each request, or the token
(`Authorization: Bearer`).

Pages of others must not be able to use what a browser knows: their requests have another origin. Without users, a page
could also let the name of its own server mean this machine, so only names of this machine are answered.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
import ipaddress
import secrets
import time
from collections import OrderedDict
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from aiohttp import web

from watersmeet.errors import error
from watersmeet.server.users import Users

COOKIE: Final = "watersmeet"
#: A token that nobody uses is forgotten after so long.
_IDLE_S: Final = 12 * 3600.0
_MOST_TOKENS: Final = 1000
#: A password that was checked is not checked again for so long: that takes some milliseconds of a processor.
_CHECKED_S: Final = 300.0
#: So many passwords are checked at the same time at most.
_CHECKS: Final = 2


@dataclass
class _Token:
    user: str
    used_s: float


class Access:
    """Lets users in. For one event loop. host: on which the server listens."""

    def __init__(self, users: Users, host: str, *, encrypted: bool) -> None:
        self._users = users
        self._host = host
        self._encrypted = encrypted
        self._tokens: OrderedDict[bytes, _Token] = OrderedDict()
        self._checked: OrderedDict[tuple[str, bytes], float] = OrderedDict()
        self._key = secrets.token_bytes(32)
        self._checking = asyncio.Semaphore(_CHECKS)

    @property
    def needs_users(self) -> bool:
        """Whether clients have to say who they are."""
        return self._users.need_passwords

    def check_place(self, request: web.Request) -> None:
        """INVALID_AUTHORIZATION for a request of another site's page, or for another site."""
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
            raise error("INVALID_AUTHORIZATION", "requests of pages of other sites are refused")

    async def user(self, request: web.Request) -> str | None:
        """Who asks; None for one who is trusted. AUTHENTICATION_FAILED."""
        if not self.needs_users:
            return None
        kind, _, value = request.headers.get("Authorization", "").partition(" ")
        if kind.lower() == "basic":
            return await self._proved(value)
        token = value if kind.lower() == "bearer" else request.cookies.get(COOKIE, "")
        known = self._tokens.get(_digest(token))
        if known is None or time.monotonic() - known.used_s > _IDLE_S:
            raise error("AUTHENTICATION_FAILED", "log in first")
        self._users.role(known.user)
        known.used_s = time.monotonic()
        self._tokens.move_to_end(_digest(token))
        return known.user

    def give_token(self, user: str) -> str:
        """A new token of a user."""
        token = secrets.token_urlsafe(32)
        self._tokens[_digest(token)] = _Token(user, time.monotonic())
        while len(self._tokens) > _MOST_TOKENS:
            self._tokens.popitem(last=False)
        return token

    def set_cookie(self, response: web.Response, token: str) -> None:
        """Lets the browser keep a token; an empty one takes it away."""
        response.set_cookie(
            COOKIE,
            token,
            max_age=None if token else 0,
            httponly=True,
            samesite="Strict",
            secure=self._encrypted,
        )

    def forget(self, request: web.Request) -> None:
        """The token of a request is worth nothing any more."""
        self._tokens.pop(_digest(request.cookies.get(COOKIE, "")), None)

    async def _proved(self, value: str) -> str:
        """The user of `user:password` in base64. AUTHENTICATION_FAILED."""
        try:
            user, _, password = base64.b64decode(value, validate=True).decode().partition(":")
        except (binascii.Error, UnicodeDecodeError):
            raise error("AUTHENTICATION_FAILED", "user and password can't be read") from None
        # With the mark, as what was checked counts no more once the password has changed.
        known = (user, hmac.digest(self._key, f"{self._users.mark(user)}\0{password}".encode(), "sha256"))
        if time.monotonic() - self._checked.get(known, -_CHECKED_S) < _CHECKED_S:
            return self._users.role(user).name
        async with self._checking:
            await asyncio.to_thread(self._users.check, user, password)
        self._checked[known] = time.monotonic()
        while len(self._checked) > _MOST_TOKENS:
            self._checked.popitem(last=False)
        return user

    def _is_own(self, host: str) -> bool:
        """Whether a name means this machine and nothing else."""
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
    """What is kept of a token: who reads the memory can't use it, and a look-up tells nothing by its time."""
    return hashlib.sha256(token.encode()).digest()

"""The streams of one client: TLS, the startup message, SCRAM-SHA-256 (RFC 5802, RFC 7677), messages to send.

PostgreSQL, "Start-up", "SSL Session Encryption", "Canceling Requests in Progress".
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import secrets
import ssl
import struct
from collections.abc import Awaitable, Callable
from typing import Final

from watersmeet.errors import error
from watersmeet.server import messages
from watersmeet.server.messages import Body, Message, authentication, violation
from watersmeet.server.users import Login, Users, refused
from watersmeet.system.passwords import DIGEST, MECHANISM, Verifier, decoded, encoded


class Hangup(Exception):  # noqa: N818 - no error
    """The client is gone, or has said that it goes."""


class Wire:
    """One client's streams. slow_client_s: it is cut off if it takes nothing for so long."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, slow_client_s: float) -> None:
        self._reader = reader
        self._writer = writer
        self._slow_client_s = slow_client_s
        self._out = bytearray()

    @property
    def address(self) -> str:
        """Where the client is; empty if that is not known."""
        peer = self._writer.get_extra_info("peername")
        return str(peer[0]) if peer else ""

    @property
    def is_encrypted(self) -> bool:
        """Whether TLS is on."""
        return self._writer.get_extra_info("ssl_object") is not None

    @property
    def is_at_end(self) -> bool:
        """Whether the client has gone, and all that it sent was read."""
        return self._reader.at_eof()

    @property
    def is_cut(self) -> bool:
        """Whether the client has gone. What it sent before may wait to be read."""
        return self._reader._eof or self._writer.is_closing()  # type: ignore[attr-defined]

    async def encrypt(self, context: ssl.SSLContext) -> None:
        """Goes on with TLS. PROTOCOL_VIOLATION; Hangup."""
        # What the client sent before this is not encrypted, and would be taken for what it says after.
        if self._reader._buffer:  # type: ignore[attr-defined]
            raise violation("there is data behind the request for encryption")
        try:
            await self._writer.start_tls(context)
        except (ssl.SSLError, OSError) as cause:
            raise Hangup from cause

    async def first(self) -> bytes | None:
        """The body of a first message; None at the end."""
        return await messages.read_startup(self._reader)

    async def next(self, most_bytes: int, most_text_bytes: int = messages.MOST_BODY_BYTES) -> Message | None:
        """The next message; None at the end. As `messages.read_message`."""
        return await messages.read_message(self._reader, most_bytes, most_text_bytes)

    async def ask(self, answer: bytes) -> bytes:
        """Sends a message of authentication; what the client says to it. Hangup; PROTOCOL_VIOLATION."""
        self.tell(answer)
        await self.flush()
        message = await self.next(messages.MOST_STARTUP_BYTES)
        if message is None:
            raise Hangup
        if message.kind != b"p":
            raise violation("an answer to the request for a password is expected")
        return message.body

    def tell(self, answer: bytes | memoryview) -> None:
        """Adds to what is to be sent."""
        self._out += answer

    async def send(self, batch: memoryview) -> None:
        """Sends many messages, behind what is to be sent."""
        self._write()
        self._writer.write(batch)
        await self.flush()

    async def flush(self, most_s: float | None = None) -> None:
        """Sends what is to be sent. Hangup if the client does not take it for too long."""
        self._write()
        try:
            async with asyncio.timeout(most_s or self._slow_client_s):
                await self._writer.drain()
        except TimeoutError:
            self._writer.transport.abort()
            raise Hangup from None

    def _write(self) -> None:
        if self._out:
            self._writer.write(bytes(self._out))
            self._out.clear()

    async def close(self) -> None:
        """Hangs up."""
        self._writer.close()
        with contextlib.suppress(OSError, ssl.SSLError, asyncio.TimeoutError):
            await asyncio.wait_for(self._writer.wait_closed(), 1)


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


Ask = Callable[[bytes], Awaitable[bytes]]
Tell = Callable[[bytes], None]
_NONCE_BYTES: Final = 18


async def authenticate(users: Users, name: str, address: str, ask: Ask, tell: Tell) -> Login | None:
    """The user who has proved to be that one; None where nobody needs to. After failures of its address, it waits.

    AUTHENTICATION_FAILED for a wrong password, and in the same way for a user that there is not.
    """
    if not users.need_passwords:
        return None
    body = Body(await ask(authentication(10, MECHANISM.encode() + b"\0\0")))
    if body.text() != MECHANISM:
        raise violation("the client chose a mechanism of authentication that was not offered")
    first = _text(body.value() or b"")
    login, verifier = users.find(name)
    exchange = Exchange(verifier, first)
    final = _text(await ask(authentication(11, exchange.server_first.encode())))
    await users.guesses.turn(address, name)
    proved = exchange.check(final)
    if login is None or not proved:
        raise refused(name)
    users.guesses.succeed(address, name)
    tell(authentication(12, exchange.server_final.encode()))
    return login


class Exchange:
    """The four messages of SCRAM, without channel binding. Raises PROTOCOL_VIOLATION for what is none of them."""

    def __init__(self, verifier: Verifier, client_first: str) -> None:
        flag, _, rest = client_first.partition(",")
        if flag not in ("n", "y"):
            raise violation("channel binding is not supported", detail="The client asks for it.")
        name, _, self._bare = rest.partition(",")
        if name and not name.startswith("a="):
            raise violation("a message of SCRAM can't be read")
        attributes = _attributes(self._bare)
        if "r" not in attributes:
            raise violation("a message of SCRAM has no nonce")
        self._verifier = verifier
        self._header = f"{flag},{name},"
        self._nonce = attributes["r"] + encoded(secrets.token_bytes(_NONCE_BYTES))
        self.server_first = f"r={self._nonce},s={encoded(verifier.salt)},i={verifier.iterations}"
        self.server_final = ""

    def check(self, client_final: str) -> bool:
        """Whether the client knows the password."""
        attributes = _attributes(client_final)
        if attributes.get("c") != encoded(self._header.encode()) or attributes.get("r") != self._nonce:
            raise violation("a message of SCRAM does not belong to those before it")
        without = client_final[: client_final.rfind(",p=")]
        said = f"{self._bare},{self.server_first},{without}".encode()
        try:
            proof = decoded(attributes.get("p", ""))
        except ValueError:
            raise violation("the proof of a message of SCRAM can't be read") from None
        signature = hmac.digest(self._verifier.stored_key, said, DIGEST)
        if len(proof) != len(signature):
            return False
        client_key = bytes(a ^ b for a, b in zip(proof, signature, strict=True))
        self.server_final = f"v={encoded(hmac.digest(self._verifier.server_key, said, DIGEST))}"
        return hmac.compare_digest(hashlib.sha256(client_key).digest(), self._verifier.stored_key)


def _attributes(text: str) -> dict[str, str]:
    return {part[:1]: part[2:] for part in text.split(",") if part[1:2] == "="}


def _text(said: bytes) -> str:
    try:
        return said.decode("utf-8")
    except UnicodeDecodeError:
        raise violation("a message of SCRAM is no text") from None

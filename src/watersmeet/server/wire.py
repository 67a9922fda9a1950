"""What goes to a client and comes from it: messages that wait to be sent, and the encryption of all of them."""

from __future__ import annotations

import asyncio
import contextlib
import ssl

from watersmeet.server import messages
from watersmeet.server.messages import Message, violation


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

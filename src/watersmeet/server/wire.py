"""The streams of one client of PostgreSQL's protocol: whole messages in both directions."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from typing import Final

from watersmeet.server import messages
from watersmeet.server.messages import Message, violation

#: Messages up to this size are read without waiting if they have arrived. It is below the size at which reading pauses.
_SHORT_BYTES: Final = 1 << 14
#: The bytes that wait for a client that reads nothing, after which it is disconnected.
_MOST_PUSHED_BYTES: Final = 1 << 24


class Hangup(Exception):  # noqa: N818 - no error
    """The client has disconnected or terminates."""


class Wire:
    """One client's streams. slow_client_s: the maximum time in which a client reads nothing."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, slow_client_s: float) -> None:
        self._reader = reader
        self._writer = writer
        self._slow_client_s = slow_client_s
        self._out = bytearray()

    @property
    def address(self) -> str:
        """The address of the client; empty if unknown."""
        peer = self._writer.get_extra_info("peername")
        return str(peer[0]) if peer else ""

    @property
    def is_encrypted(self) -> bool:
        """Whether the connection uses TLS."""
        return self._writer.get_extra_info("ssl_object") is not None

    @property
    def is_at_end(self) -> bool:
        """Whether the client has disconnected and all its messages are read."""
        return self._reader.at_eof()

    @property
    def is_cut(self) -> bool:
        """Whether the client has disconnected. Some of its messages may be unread."""
        return self._reader._eof or self._writer.is_closing()  # type: ignore[attr-defined]

    async def encrypt(self, context: ssl.SSLContext) -> None:
        """Switches to TLS. Raises PROTOCOL_VIOLATION and Hangup."""
        # Unencrypted bytes that arrived earlier would be read as encrypted messages.
        if self._reader._buffer:  # type: ignore[attr-defined]
            raise violation("unexpected data after the request for encryption")
        try:
            await self._writer.start_tls(context)
        except (ssl.SSLError, OSError) as cause:
            raise Hangup from cause

    async def first(self) -> bytes | None:
        """The body of a startup message; None at the end."""
        return await messages.read_startup(self._reader)

    async def next(self, most_bytes: int, most_text_bytes: int = messages.MOST_BODY_BYTES) -> Message | None:
        """See `messages.read_message`."""
        return await messages.read_message(self._reader, most_bytes, most_text_bytes)

    def taken(self) -> Message | None:
        """The next message if it is short and has arrived. The reader of a fuller buffer may be paused, so it only
        takes from a small one.
        """
        buffer: bytearray = self._reader._buffer  # type: ignore[attr-defined]
        return messages.take_message(buffer, _SHORT_BYTES) if len(buffer) <= _SHORT_BYTES else None

    @property
    def continues(self) -> bool:
        """Whether the next message is not Sync, or has not arrived."""
        buffer: bytearray = self._reader._buffer  # type: ignore[attr-defined]
        return bytes(buffer[:1]) != b"S"

    async def ask(self, answer: bytes) -> bytes:
        """Sends a message of authentication. Returns the client's answer. Raises Hangup and PROTOCOL_VIOLATION."""
        self.tell(answer)
        await self.flush()
        message = await self.next(messages.MOST_STARTUP_BYTES)
        if message is None:
            raise Hangup
        if message.kind != b"p":
            raise violation("an answer to the request for a password is expected")
        return message.body

    def tell(self, answer: bytes | memoryview) -> None:
        """Appends to the buffer of `flush`."""
        self._out += answer

    def push(self, answer: bytes) -> None:
        """Sends a message without waiting. Disconnects a client that reads nothing."""
        self._out += answer
        self._write()
        if self._writer.transport.get_write_buffer_size() > _MOST_PUSHED_BYTES:
            self._writer.transport.abort()

    async def send(self, batch: memoryview) -> None:
        """Sends the buffer, then a batch of messages."""
        self._write()
        self._writer.write(batch)
        await self.flush()

    async def flush(self, most_s: float | None = None) -> None:
        """Sends the buffer. Raises Hangup for a slow client."""
        self._write()
        transport = self._writer.transport
        if not transport.get_write_buffer_size() and not transport.is_closing():
            return
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
        """Closes the connection."""
        self._writer.close()
        with contextlib.suppress(OSError, ssl.SSLError, asyncio.TimeoutError):
            await asyncio.wait_for(self._writer.wait_closed(), 1)

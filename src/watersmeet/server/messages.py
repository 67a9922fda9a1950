"""PostgreSQL's messages: reads those of clients and encodes those of the server.

PostgreSQL, "Message Formats". Lengths and numbers are big-endian; a frame is a letter, its length in bytes (with the
four of the length itself) and a body.
"""

from __future__ import annotations

import asyncio
import struct
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from watersmeet.errors import Error, error
from watersmeet.errors.secretnames import concealed

#: The codes of other requests, at the position of a protocol version.
CANCEL_REQUEST: Final = 80877102
SSL_REQUEST: Final = 80877103
GSS_REQUEST: Final = 80877104
#: Not PostgreSQL's: asks for the role of a server, which answers with one of the bytes below.
ROLE_REQUEST: Final = 80877190
WRITER: Final = b"W"
READER: Final = b"R"

#: Routines of PostgreSQL that drivers recognize: pgjdbc and asyncpg then prepare a statement again by themselves.
_ROUTINES: Final = {"PREPARED_RESULT_CHANGED": "RevalidateCachedQuery"}

#: The largest body of a message before authentication.
MOST_STARTUP_BYTES: Final = 10_000
#: The largest body of any other message.
MOST_BODY_BYTES: Final = (1 << 30) - 1

#: The types of messages with the text of statements.
_TEXTS: Final = (b"Q", b"P")
#: The number of bytes of a too long message that are read at once.
_SKIPPED_BYTES: Final = 1 << 16

_ENCODING: Final = "utf-8"
_LENGTH: Final = struct.Struct(">i")
_NUMBERS: Final = {2: ">h", 4: ">i"}


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a client: its type and its body.

    skipped_bytes: the size of a discarded body, which was too long.
    """

    kind: bytes
    body: bytes
    skipped_bytes: int = 0


async def read_message(
    reader: asyncio.StreamReader, most_bytes: int = MOST_BODY_BYTES, most_text_bytes: int = MOST_BODY_BYTES
) -> Message | None:
    """The next message; None at the end of the stream. Raises PROTOCOL_VIOLATION if it is longer than `most_bytes`.

    most_text_bytes: the limit for a message with the text of statements. The body of a longer one is read and
    discarded.
    """
    try:
        head = await reader.readexactly(5)
        length = _body_bytes(head[1:], most_bytes)
        if head[:1] not in _TEXTS or length <= most_text_bytes:
            return Message(head[:1], await reader.readexactly(length))
        left = length
        while left:
            left -= len(await reader.readexactly(min(left, _SKIPPED_BYTES)))
        return Message(head[:1], b"", length)
    except (asyncio.IncompleteReadError, ConnectionError):
        return None


def take_message(buffer: bytearray, most_bytes: int) -> Message | None:
    """The next message, taken from a buffer that contains it as a whole; else None. Raises PROTOCOL_VIOLATION."""
    if len(buffer) < 5:
        return None
    length = _body_bytes(bytes(buffer[1:5]), MOST_BODY_BYTES)
    if length > most_bytes or len(buffer) < 5 + length:
        return None
    found = Message(bytes(buffer[:1]), bytes(buffer[5 : 5 + length]))
    del buffer[: 5 + length]
    return found


def cancel_request(process: int, secret: bytes) -> bytes:
    """CancelRequest, which has no type."""
    return struct.pack(">iii", 12 + len(secret), CANCEL_REQUEST, process) + secret


def role_request() -> bytes:
    """The request for the role of a server, which has no type."""
    return struct.pack(">ii", 8, ROLE_REQUEST)


async def read_startup(reader: asyncio.StreamReader) -> bytes | None:
    """The body of a first message, which has no type; None at the end of the stream. Raises PROTOCOL_VIOLATION."""
    try:
        body = await reader.readexactly(_body_bytes(await reader.readexactly(4), MOST_STARTUP_BYTES))
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    if len(body) < 4:
        raise violation("the first message is too short")
    return body


def _body_bytes(head: bytes, most_bytes: int) -> int:
    length: int = _LENGTH.unpack(head)[0] - 4
    if not 0 <= length <= most_bytes:
        raise violation(f"a message can't have {length} bytes here", detail=f"At most {most_bytes} bytes are accepted.")
    return length


def violation(message: str, *, detail: str | None = None) -> Error:
    """The error PROTOCOL_VIOLATION for a message that violates the protocol."""
    return error("PROTOCOL_VIOLATION", message, detail=detail)


class Body:
    """Reads the fields of a message from left to right. Raises PROTOCOL_VIOLATION."""

    def __init__(self, body: bytes) -> None:
        self._body = body
        self._place = 0

    def take(self, length: int) -> bytes:
        """The next bytes."""
        end = self._place + length
        if length < 0 or end > len(self._body):
            raise violation("a message ends before its last field")
        found = self._body[self._place : end]
        self._place = end
        return found

    def number(self, width: int) -> int:
        """A signed number of 2 or 4 bytes."""
        found: int = struct.unpack(_NUMBERS[width], self.take(width))[0]
        return found

    def count(self) -> int:
        """The number of following fields: 2 bytes, unsigned."""
        return self.number(2) & 0xFFFF

    def text(self) -> str:
        """A text that ends with a zero byte. Raises CHARACTER_NOT_IN_REPERTOIRE."""
        end = self._body.find(b"\0", self._place)
        if end < 0:
            raise violation("a text of a message has no end")
        found = self._body[self._place : end]
        self._place = end + 1
        return decoded(found)

    def value(self) -> bytes | None:
        """A value after its length; None for NULL."""
        length = self.number(4)
        return None if length == -1 else self.take(length)

    def numbers(self, width: int) -> tuple[int, ...]:
        """Numbers after their count."""
        return tuple(self.number(width) for _ in range(self.count()))

    def rest(self) -> bytes:
        """The remaining bytes."""
        return self.take(len(self._body) - self._place)

    def end(self) -> None:
        """Checks that no bytes remain."""
        if self._place != len(self._body):
            raise violation("a message continues after its last field")


def decoded(text: bytes) -> str:
    """A text of a client. Raises CHARACTER_NOT_IN_REPERTOIRE if it is not UTF-8."""
    try:
        return text.decode(_ENCODING)
    except UnicodeDecodeError as cause:
        raise error(
            "CHARACTER_NOT_IN_REPERTOIRE", 'invalid byte sequence for encoding "UTF8"', detail=f"{cause.reason}."
        ) from None


def message(kind: bytes, body: bytes = b"") -> bytes:
    """A frame."""
    return kind + _LENGTH.pack(len(body) + 4) + body


def _text(value: str) -> bytes:
    return value.encode(_ENCODING, "replace").replace(b"\0", b"") + b"\0"


AUTHENTICATION_OK: Final = message(b"R", _LENGTH.pack(0))
PARSE_COMPLETE: Final = message(b"1")
BIND_COMPLETE: Final = message(b"2")
CLOSE_COMPLETE: Final = message(b"3")
NO_DATA: Final = message(b"n")
EMPTY_QUERY: Final = message(b"I")
PORTAL_SUSPENDED: Final = message(b"s")
COPY_DONE: Final = message(b"c")


def authentication(code: int, data: bytes = b"") -> bytes:
    """AuthenticationSASL (10), its continuation (11) and end (12), with the data of the mechanism."""
    return message(b"R", _LENGTH.pack(code) + data)


def parameter_status(name: str, value: str) -> bytes:
    """ParameterStatus: a setting that is reported to clients."""
    return message(b"S", _text(name) + _text(value))


def backend_key(process: int, secret: bytes) -> bytes:
    """BackendKeyData: process number and secret of cancel requests."""
    return message(b"K", struct.pack(">i", process) + secret)


def ready(state: bytes) -> bytes:
    """ReadyForQuery. state: I outside of a transaction, T in one, E in a failed one."""
    return message(b"Z", state)


def command_complete(tag: str) -> bytes:
    """CommandComplete."""
    return message(b"C", _text(tag))


def negotiate_version(minor: int, options: Sequence[str]) -> bytes:
    """NegotiateProtocolVersion: the newest supported minor version, and unknown options."""
    return message(b"v", struct.pack(">ii", minor, len(options)) + b"".join(map(_text, options)))


def parameter_description(oids: Sequence[int]) -> bytes:
    """ParameterDescription."""
    return message(b"t", struct.pack(f">H{len(oids)}I", len(oids), *oids))


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a result as in RowDescription.

    oid: that of its type. bytes: the size of a value, -1 if it varies. modifier: that of the type, -1 without one.
    table, number: the table's oid and the column's number in it, 0 if it is not a table column.
    """

    name: str
    oid: int
    bytes: int = -1
    modifier: int = -1
    table: int = 0
    number: int = 0


def row_description(columns: Iterable[Column], formats: Sequence[int]) -> bytes:
    """RowDescription. formats: 0 text, 1 binary, for each column."""
    fields = [
        _text(c.name) + struct.pack(">IhIhih", c.table, c.number, c.oid, c.bytes, c.modifier, f)
        for c, f in zip(columns, formats, strict=True)
    ]
    return message(b"T", struct.pack(">H", len(fields)) + b"".join(fields))


def copy_response(kind: bytes, formats: Sequence[int]) -> bytes:
    """CopyOutResponse (`H`) or CopyInResponse (`G`)."""
    overall = int(any(formats))
    return message(kind, struct.pack(f">bH{len(formats)}h", overall, len(formats), *formats))


def error_response(err: Error, *, severity: str = "ERROR") -> bytes:
    """ErrorResponse, without secrets. Field `R` (PostgreSQL's routine) has the name of the condition, except for
    routines that drivers recognize.

    The position counts characters of the statement from 1, as in PostgreSQL.
    """
    sql, text, detail, hint = concealed(err.sql or "", err.message, err.detail, err.hint)
    place = None if err.span is None or err.sql is None else str(min(err.span.start, len(sql or "")) + 1)
    schema, table, column = err.place or (None, None, None)
    return _notice(
        b"E",
        {
            "S": severity,
            "V": severity,
            "C": err.sqlstate,
            "M": text or err.condition,
            "D": detail,
            "H": hint,
            "P": place,
            "s": schema,
            "t": table,
            "c": column,
            "n": err.constraint,
            "R": _ROUTINES.get(err.condition, err.condition),
        },
    )


def notification_response(process: int, channel: str, payload: str) -> bytes:
    """NotificationResponse."""
    return message(b"A", struct.pack(">i", process) + _text(channel) + _text(payload))


def notifications(waiting: deque[tuple[int, str, str]]) -> bytes:
    """The messages of the notifications that wait, which it removes."""
    found = bytearray()
    while waiting:
        found += notification_response(*waiting.popleft())
    return bytes(found)


def notices(texts: Iterable[str]) -> bytes:
    """A NoticeResponse for each text."""
    return b"".join(_notice(b"N", {"S": "NOTICE", "V": "NOTICE", "C": "00000", "M": text}) for text in texts)


def _notice(kind: bytes, fields: Mapping[str, str | None]) -> bytes:
    body = b"".join(name.encode() + _text(value) for name, value in fields.items() if value)
    return message(kind, body + b"\0")

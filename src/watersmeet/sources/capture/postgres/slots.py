"""The reader of a replication slot: whole transactions, in the order of their commits.

PostgreSQL, "Streaming Replication Protocol", "Logical Streaming Replication Parameters".
"""

from __future__ import annotations

import select
import struct
import time
from collections.abc import Sequence
from typing import Any, Final

from watersmeet.clients.databaseservers import Server
from watersmeet.clients.postgres import connect, failure, library
from watersmeet.errors import error
from watersmeet.sources.capture.postgres.pgoutput import (
    COMMIT,
    HEAD_BYTES,
    PostgresBatch,
    PostgresVersion,
    lsn_of,
    lsn_text,
    parsed,
)

_KEEPALIVE: Final = ord("k")
#: More than that is not waited for: a batch is handed on at the next end of a transaction.
_MOST_BYTES: Final = 32 << 20
#: So often the server is told how far the reader is, whatever comes. It gives up a reader after `wal_sender_timeout`.
_TELL_S: Final = 5.0
_EPOCH_US: Final = 946_684_800_000_000


class SlotReader:
    """Reads a slot from a place on. One thread uses it. What the connection says is RUNTIME_UNAVAILABLE and others, as
    `clients.postgres.failure` does.

    reached: everything before this place in the server's log was read. is_asked: the server wants to know that it is
    kept elsewhere. A server that is to end waits for that.
    """

    def __init__(self, server: Server, slot: str, publications: Sequence[str], lsn: int) -> None:
        """lsn: everything that was committed before it is not wanted again."""
        self._server = server
        self._library = library()
        self._connection = connect(server, replication=True)
        self._copy: Any = self._connection.pgconn
        self._known: dict[int, PostgresVersion] = {}
        self._messages: list[bytes] = []
        self._whole = 0
        self._size_bytes = 0
        self._in_transaction = False
        self.reached = self._confirmed = lsn
        self.is_asked = False
        self._told_s = 0.0
        listed = ",".join(f'"{p}"' for p in publications).replace("'", "''")
        try:
            with self._connection.cursor() as cursor:
                cursor.execute(
                    f'START_REPLICATION SLOT "{slot}" LOGICAL {lsn_text(lsn)} '
                    f"(proto_version '1', publication_names '{listed}')"
                )
        except self._library.Error as cause:
            self.close()
            raise failure(cause, server) from cause

    def read(self, wait_s: float) -> PostgresBatch | None:
        """The transactions that came, at least one if any comes within that time."""
        deadline = time.monotonic() + wait_s
        while not self._whole:
            if not self._take():
                left_s = deadline - time.monotonic()
                if left_s <= 0:
                    self._tell_in_time()
                    return None
                self._wait(min(left_s, _TELL_S))
        # One look has what one buffer holds. Who is behind takes all that is there: each commit has a cost of its own.
        while not self._is_large and self._take():
            pass
        messages, self._messages = self._messages[: self._whole], self._messages[self._whole :]
        self._whole = 0
        self._size_bytes = sum(map(len, self._messages))
        batch = parsed(messages, self._known)
        self.reached = max(self.reached, lsn_of(batch.place))
        self._tell_in_time()
        return batch

    def confirm(self, lsn: int) -> None:
        """Everything before that place is kept elsewhere: the server may forget it."""
        if lsn > self._confirmed:
            self._confirmed = lsn
            self.is_asked = False
            self._tell(asks=False)

    def ask(self) -> None:
        """Lets the server say how far its log is, so that `reached` follows it while nothing comes."""
        self._tell(asks=True)

    def close(self) -> None:
        """Lets go of the slot."""
        self._connection.close()

    @property
    def _is_large(self) -> bool:
        return self._size_bytes >= _MOST_BYTES

    def _take(self) -> bool:
        """Takes what has come, until a large batch is whole. Returns whether there was any."""
        came = False
        get = self._copy.get_copy_data
        self._receive()
        while not (self._is_large and self._whole):
            size, data = self._got(get)
            if size == 0:
                break
            came = True
            if data[0] == _KEEPALIVE:
                self._heard(data)
                continue
            self._messages.append(data)
            self._size_bytes += size
            kind = data[HEAD_BYTES]
            self._in_transaction = kind != COMMIT
            if kind == COMMIT:
                self._whole = len(self._messages)
        return came

    def _got(self, get: Any) -> tuple[int, Any]:
        try:
            size, data = get(1)
        except self._library.Error as cause:
            raise failure(cause, self._server) from cause
        if size < 0:
            raise self._ended()
        return size, data

    def _ended(self) -> Exception:
        try:
            result = self._copy.get_result()
            text = result.error_message.decode(errors="replace") if result is not None else ""
        except self._library.Error as cause:
            text = str(cause)
        return error(
            "RUNTIME_UNAVAILABLE",
            f"the PostgreSQL server at {self._server.host}:{self._server.port} ended the replication",
            detail=text.strip() or None,
        )

    def _receive(self) -> None:
        try:
            self._copy.consume_input()
        except self._library.Error as cause:
            raise failure(cause, self._server) from cause

    def _wait(self, seconds: float) -> None:
        select.select([self._copy.socket], [], [], seconds)

    def _heard(self, data: bytes) -> None:
        end, _, wants_answer = struct.unpack(">QqB", bytes(data[1:18]))
        if not self._in_transaction and not self._messages:
            self.reached = max(self.reached, end)
        if wants_answer:
            self.is_asked = True
            self._tell(asks=False)

    def _tell_in_time(self) -> None:
        if time.monotonic() - self._told_s >= _TELL_S:
            self._tell(asks=False)

    def _tell(self, *, asks: bool) -> None:
        self._told_s = time.monotonic()
        now_us = time.time_ns() // 1000 - _EPOCH_US
        told = struct.pack(">cQQQqB", b"r", self._confirmed, self._confirmed, self._confirmed, now_us, asks)
        try:
            self._copy.put_copy_data(told)
            self._copy.flush()
        except self._library.Error as cause:
            raise failure(cause, self._server) from cause

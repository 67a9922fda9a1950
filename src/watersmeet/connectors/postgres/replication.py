"""The reader of a replication slot, which returns whole transactions in the order of their commits.

PostgreSQL, "Streaming Replication Protocol", "Logical Streaming Replication Parameters".
"""

from __future__ import annotations

import select
import struct
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.connectors.databases.captures import Batch, Mask, Numbers, Rows, TableVersion, Truncation, Values
from watersmeet.connectors.databases.servers import Server
from watersmeet.connectors.postgres.client import connect, failure, library
from watersmeet.errors import error
from watersmeet.formats.jsonscan import cut

_Bytes = npt.NDArray[np.uint8]

#: The number of bytes in `XLogData` before the message.
HEAD_BYTES: Final = 25

BEGIN, COMMIT, RELATION, INSERT, UPDATE, DELETE, TRUNCATE = b"BCRIUDT"
_KEY, _OLD, _NEW = b"KON"
_UNCHANGED, _TEXT = b"ut"
_NUMERIC_OID: Final = 1700


@dataclass(frozen=True)
class PostgresVersion(TableVersion):
    """A table as described in the following messages. identity: `d` the primary key, `f` whole rows, `i` an index, `n`
    nothing.
    """

    identity: str


@dataclass(frozen=True)
class PostgresBatch(Batch):
    """xids: the 32-bit id of each transaction. commit_lsns: the offset of its commit in the log."""

    xids: Numbers
    commit_lsns: Numbers


def lsn_text(lsn: int) -> str:
    """An offset in the log as PostgreSQL writes it."""
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"


def lsn_of(text: str) -> int:
    """The inverse of `lsn_text`."""
    high, low = text.split("/")
    return (int(high, 16) << 32) | int(low, 16)


def type_text(oid: int, modifier: int) -> str:
    """The type in the form of `TableThere.types`. `atttypmod` limits the values of numeric only."""
    return f"{oid}({modifier})" if oid == _NUMERIC_OID else str(oid)


def parsed(messages: Sequence[bytes], known: dict[int, PostgresVersion]) -> PostgresBatch:
    """The changes in messages (`XLogData`). known: the newest version of each table by oid from earlier messages of the
    connection; it is updated.
    """
    data = np.frombuffer(b"".join(messages), np.uint8)
    ends = np.cumsum(np.fromiter(map(len, messages), np.int64, len(messages)))
    starts = np.concatenate([[0], ends[:-1]]).astype(np.int64) + HEAD_BYTES
    kinds = data[starts]
    begins, commits = starts[kinds == BEGIN], starts[kinds == COMMIT]
    transactions = np.cumsum(kinds == BEGIN) - 1
    versions = _versions(data, starts, ends, kinds, known)
    return PostgresBatch(
        lsn_text(int(_number(data, commits[-1:] + 10, 8)[0])),
        _number(data, commits + 18, 8) + _EPOCH_US,
        tuple(_rows(data, starts, kinds, transactions, versions)),
        tuple(_truncations(data, starts, kinds, versions)),
        _number(data, begins + 17, 4),
        _number(data, begins + 1, 8),
    )


def _number(data: _Bytes, offsets: Numbers, size_bytes: int) -> Numbers:
    """Unsigned numbers in network byte order."""
    found = np.zeros(len(offsets), np.int64)
    for i in range(size_bytes):
        found = (found << 8) | data[offsets + i]
    return found


def _versions(
    data: _Bytes, starts: Numbers, ends: Numbers, kinds: _Bytes, known: dict[int, PostgresVersion]
) -> dict[int, list[tuple[int, PostgresVersion]]]:
    """The versions of a table, each with the first message for which it is valid, by oid."""
    found = {oid: [(-1, version)] for oid, version in known.items()}
    for i in np.flatnonzero(kinds == RELATION).tolist():
        version = described(data[starts[i] : ends[i]].tobytes())
        found.setdefault(version.oid, []).append((i, version))
        known[version.oid] = version
    return found


def described(message: bytes) -> PostgresVersion:
    """The table of a message of kind RELATION."""
    (oid,) = struct.unpack_from(">I", message, 1)
    schema, offset = _name(message, 5)
    name, offset = _name(message, offset)
    identity, count = struct.unpack_from(">cH", message, offset)
    offset += 3
    types = {}
    for _ in range(count):
        column, offset = _name(message, offset + 1)
        types[column] = type_text(*struct.unpack_from(">Ii", message, offset))
        offset += 8
    return PostgresVersion(oid, schema or "pg_catalog", name, types, identity.decode())


def _name(message: bytes, offset: int) -> tuple[str, int]:
    end = message.index(0, offset)
    return message[offset:end].decode(), end + 1


def _rows(
    data: _Bytes,
    starts: Numbers,
    kinds: _Bytes,
    transactions: Numbers,
    versions: dict[int, list[tuple[int, PostgresVersion]]],
) -> Iterator[Rows]:
    offsets = np.flatnonzero((kinds == INSERT) | (kinds == UPDATE) | (kinds == DELETE))
    oids = _number(data, starts[offsets] + 1, 4)
    for oid in np.unique(oids).tolist():
        own = offsets[oids == oid]
        known = versions[oid]
        which = np.searchsorted([i for i, _ in known], own) - 1
        for number in np.unique(which).tolist():
            mine = own[which == number]
            yield _rows_of(data, starts, kinds, mine, transactions[mine], known[number][1])


def _rows_of(
    data: _Bytes, starts: Numbers, kinds: _Bytes, offsets: Numbers, transactions: Numbers, table: TableVersion
) -> Rows:
    marks = starts[offsets] + 5
    gone = (data[marks] == _KEY) | (data[marks] == _OLD)
    written = kinds[offsets] != DELETE
    old, behind = _values(data, marks[gone] + 1, table)
    marks[gone] = behind
    new, _ = _values(data, marks[written] + 1, table)
    return Rows(table, offsets, transactions, written, gone, _with_old(new, old, written, gone), old)


def _with_old(new: Sequence[Values], old: Sequence[Values], written: Mask, gone: Mask) -> tuple[Values, ...]:
    """The new values, where values that a change kept are taken from its old row if it contains them.

    An old row contains the key, or with REPLICA IDENTITY FULL all columns. Values that are not sent are stored out of
    line and so never NULL: NULL in an old row means that the message lacks the column.
    """
    if not any(v.kept.any() for v in new):
        return tuple(new)
    replaced = (np.cumsum(gone) - 1)[written]
    has_old = gone[written]
    filled = []
    for value, before in zip(new, old, strict=True):
        wanted = value.kept & has_old
        if wanted.any():
            texts = before.texts.take(pa.array(replaced, mask=~wanted))
            found = wanted & texts.is_valid().to_numpy(zero_copy_only=False)
            value = Values(pc.if_else(pa.array(found), texts, value.texts), value.kept & ~found)  # noqa: PLW2901
        filled.append(value)
    return tuple(filled)


def _values(data: _Bytes, offsets: Numbers, table: TableVersion) -> tuple[tuple[Values, ...], Numbers]:
    """The columns of rows that begin at `offsets`, and the offset after each row."""
    offsets = offsets + 2
    found = []
    for _ in table.types:
        marks = data[offsets]
        is_text = marks == _TEXT
        begins, sizes = offsets + 1, np.zeros(len(offsets), np.int64)
        sizes[is_text] = _number(data, offsets[is_text] + 1, 4)
        begins[is_text] += 4
        found.append(Values(cut(data, begins, begins + sizes, ~is_text), marks == _UNCHANGED))
        offsets = begins + sizes
    return tuple(found), offsets


def _truncations(
    data: _Bytes, starts: Numbers, kinds: _Bytes, versions: dict[int, list[tuple[int, PostgresVersion]]]
) -> Iterator[Truncation]:
    for i in np.flatnonzero(kinds == TRUNCATE).tolist():
        count = int(_number(data, starts[i : i + 1] + 1, 4)[0])
        oids = _number(data, starts[i] + 6 + 4 * np.arange(count), 4).tolist()
        yield Truncation(i, tuple(versions[o][-1][1] for o in oids))


_KEEPALIVE: Final = ord("k")

#: The size after which a batch ends with the current transaction.
_MOST_BYTES: Final = 32 << 20

#: The interval at which the reader reports its offset to the server, which disconnects it after `wal_sender_timeout`.
_TELL_S: Final = 5.0

_EPOCH_US: Final = 946_684_800_000_000


class SlotReader:
    """Reads a slot from an offset on. Only one thread may use it. Errors of the connection become those of
    `postgres.client.failure`.

    reached: the offset before which the server's log was read. is_asked: whether the server requests a confirmation
    that the changes are stored, for which it waits when it shuts down.
    """

    def __init__(self, server: Server, slot: str, publications: Sequence[str], lsn: int) -> None:
        """lsn: the offset to read from; earlier commits are already stored."""
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
        """The transactions that have arrived, at least one if one arrives within the time."""
        deadline = time.monotonic() + wait_s
        while not self._whole:
            if not self._take():
                left_s = deadline - time.monotonic()
                if left_s <= 0:
                    self._tell_in_time()
                    return None
                self._wait(min(left_s, _TELL_S))
        # A poll returns one buffer. A late reader takes all available buffers, because each commit has a fixed cost.
        while not self._is_large and self._take():
            pass
        messages, self._messages = self._messages[: self._whole], self._messages[self._whole :]
        self._whole = 0
        self._size_bytes = sum(map(len, self._messages))
        batch = parsed(messages, self._known)
        self.reached = max(self.reached, lsn_of(batch.offset))
        self._tell_in_time()
        return batch

    def confirm(self, lsn: int) -> None:
        """Reports that all changes before an offset are stored, so that the server may delete them."""
        if lsn > self._confirmed:
            self._confirmed = lsn
            self.is_asked = False
            self._tell(asks=False)

    def ask(self) -> None:
        """Requests the end of the server's log, so that `reached` advances even without changes."""
        self._tell(asks=True)

    def close(self) -> None:
        """Releases the slot."""
        self._connection.close()

    @property
    def _is_large(self) -> bool:
        return self._size_bytes >= _MOST_BYTES

    def _take(self) -> bool:
        """Receives pending messages until a large batch is complete. Returns whether any arrived."""
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

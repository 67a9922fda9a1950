"""The reader of a server's binary log, which returns whole transactions in the order of their commits.

MariaDB, "Replication Protocol", "Binlog Event Header", "GTID_EVENT", "QUERY_EVENT"; MySQL, "Binlog Event".
"""

from __future__ import annotations

import contextlib
import struct
import time
import zlib
from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from watersmeet.connectors.databases.captures import AGAIN, Batch, LostOffsetError, Rows, Truncation, Values
from watersmeet.connectors.databases.servers import Server
from watersmeet.connectors.mysql.client import connect, failure, library
from watersmeet.connectors.mysql.logstatements import AddedColumn, effects, savepoint
from watersmeet.connectors.mysql.rowimages import PADDING, Charsets, MapVersion, images, is_known, packed, parsed, texts
from watersmeet.errors import Error, error

Name = tuple[str, str]

_DUMP: Final = 0x12
_ERROR, _END = 0xFF, 0xFE
_QUERY, _ROTATE, _DESCRIPTION, _XID, _TABLE_MAP = 2, 4, 15, 16, 19
_XA_PREPARE, _GTID, _QUERY_COMPRESSED = 38, 162, 165
_WRITE, _UPDATE, _DELETE = 1, 2, 3
#: The kinds of row events of versions 1 and 2 and of MariaDB's compressed form, with whether they are compressed.
_ROWS: Final = {
    23: (_WRITE, False),
    24: (_UPDATE, False),
    25: (_DELETE, False),
    166: (_WRITE, True),
    167: (_UPDATE, True),
    168: (_DELETE, True),
}
_HEAD_BYTES: Final = 19
_CHECKSUM_BYTES: Final = 4
_MAX_PACKET: Final = 0xFFFFFF
#: Flags of a GTID: the transaction has a single event; its changes wait for XA COMMIT.
_STANDALONE, _PREPARED = 1, 64
#: The status variable of a statement that contains the SQL mode, and the bit of the mode ANSI_QUOTES.
_MODE_STATUS, _ANSI_QUOTES = 1, 4
#: The status variable of flags, which precedes the SQL mode.
_FLAGS_STATUS: Final = 0
#: A batch of this size ends with the current transaction, without waiting for more.
_MOST_BYTES: Final = 32 << 20
_RECEIVED_BYTES: Final = 1 << 20
#: The server sends a heartbeat after this much silence …
_HEARTBEAT_NS: Final = 5_000_000_000
#: … and after this much more silence the connection counts as broken.
_SILENCE_S: Final = 60.0
#: The error number if the server can't read its log as requested; deleted files are only one of the reasons.
_NO_LOG: Final = 1236
_LOST: Final = ("GTID", "purged", "Could not find first log file")


@dataclass
class _Transaction:
    """A transaction. rows: the kind of each row event, its table in the log, and its body."""

    gtid: Gtid
    flags: int
    time_s: int
    rows: list[tuple[int, bytes, bytes, bool]] = field(default_factory=list)
    statements: list[tuple[str, str, bool]] = field(default_factory=list)
    savepoints: dict[str, int] = field(default_factory=dict)
    size_bytes: int = 0

    @property
    def is_of_its_own(self) -> bool:
        """Whether it ends a batch, because it may change tables."""
        return bool(self.statements)


@dataclass(frozen=True)
class LogBatch(Batch):
    """A batch of the log. stopped: the reasons why tables can no longer be captured. added: the columns that were added
    to tables. touched: the columns that change after the batch, in lower case, with the kind of change.
    """

    stopped: Mapping[Name, str]
    added: Mapping[Name, list[AddedColumn]]
    touched: Mapping[Name, dict[str, str]]

    def __bool__(self) -> bool:
        return bool(self.rows or self.truncations or self.stopped or self.added or self.touched)


class _Group(NamedTuple):
    """Row events of one kind (insert, update or delete) for one version of a table."""

    version: MapVersion
    transactions: list[int]
    offsets: list[int]
    bodies: list[bytes]


class LogReader:
    """Reads the log after an offset. Only one thread may use it. Raises LostOffsetError, and errors of the connection
    as those of `mysql.client.failure`.

    reached: the offset up to which the log was read. read_bytes: the number of read bytes. files: the number of read
    log files.
    """

    def __init__(self, server: Server, server_id: int, offset: Gtids, charsets: Charsets | None) -> None:
        """charsets: the charsets of the server, if rows are read."""
        self._server = server
        self._charsets = charsets
        self._library = library()
        self.reached, self.read_bytes, self.files = offset, 0, 0
        self._buffer = bytearray()
        self._parts = b""
        self._has_checksums = False
        self._now: _Transaction | None = None
        self._maps: dict[int, bytes] = {}
        self._versions: dict[bytes, MapVersion | str] = {}
        self._whole: deque[_Transaction] = deque()
        self._whole_bytes = 0
        self._heard_s = time.monotonic()
        self._connection = connect(server)
        try:
            with self._connection.cursor() as cursor:
                for setting in (
                    "@mariadb_slave_capability = 4",
                    f"@slave_connect_state = '{offset}'",
                    "@slave_gtid_strict_mode = 0",
                    "@slave_gtid_ignore_duplicates = 0",
                    "@master_binlog_checksum = @@global.binlog_checksum",
                    f"@master_heartbeat_period = {_HEARTBEAT_NS}",
                ):
                    cursor.execute(f"SET {setting}")
            self._connection._execute_command(_DUMP, struct.pack("<IHI", 4, 0, server_id))
            while not self._receive(1.0):  # the first event is an error or the name of a file
                self._check_silence()
        except self._library.Error as cause:
            self.close()
            raise failure(cause, server) from cause
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Ends the connection."""
        with contextlib.suppress(Exception):
            self._connection._force_close()

    def read(
        self, wait_s: float, tables: Callable[[], Collection[Name]], until: Gtids | None = None
    ) -> LogBatch | None:
        """The transactions that change the tables, or None.

        tables: called once transactions have arrived. until: the last offset to read.
        """
        deadline = time.monotonic() + wait_s
        while not self._whole:
            left_s = deadline - time.monotonic()
            if not self._receive(max(left_s, 0.0)) and left_s <= 0:
                self._check_silence()
                return None
        while self._whole_bytes < _MOST_BYTES and self._receive(0.0):
            pass
        taken: list[_Transaction] = []
        while self._whole and not (until is not None and self.reached.has(until)):
            if taken and self._whole[0].is_of_its_own:
                break
            taken.append(self._whole.popleft())
            self._whole_bytes -= taken[-1].size_bytes
            self.reached = self.reached.behind(taken[-1].gtid)
            if taken[-1].is_of_its_own:
                break
        return self._batch(taken, tables()) or None

    # Packets.

    def _receive(self, wait_s: float) -> bool:
        """Receives pending bytes, or those that arrive within that time. Returns whether any arrived."""
        connected = self._connection._sock
        if connected is None:
            raise self._ended("the connection is closed")
        connected.settimeout(max(wait_s, 1e-4))
        try:
            received = connected.recv(_RECEIVED_BYTES)
        except TimeoutError:
            return False
        except OSError as cause:
            raise self._ended(str(cause)) from cause
        if not received:
            raise self._ended("the connection was closed")
        self._heard_s = time.monotonic()
        self._buffer += received
        self.read_bytes += len(received)
        self._take_packets()
        return True

    def _check_silence(self) -> None:
        if time.monotonic() - self._heard_s > _SILENCE_S:
            raise self._ended("nothing came any more")

    def _ended(self, detail: str) -> Error:
        return error(
            "RUNTIME_UNAVAILABLE",
            f"the MySQL server at {self._server.host}:{self._server.port} ended the replication",
            detail=detail,
        )

    def _take_packets(self) -> None:
        buffer, offset, end = bytes(self._buffer), 0, len(self._buffer)
        while offset + 4 <= end:
            size = buffer[offset] | buffer[offset + 1] << 8 | buffer[offset + 2] << 16
            if offset + 4 + size > end:
                break
            packet = buffer[offset + 4 : offset + 4 + size]
            offset += 4 + size
            if size == _MAX_PACKET:
                self._parts += packet
                continue
            if self._parts:
                packet, self._parts = self._parts + packet, b""
            if packet[0] == _ERROR:
                raise self._refused(packet)
            if packet[0] == _END and len(packet) < 9:
                raise self._ended("it has no more")
            self._take_event(packet)
        del self._buffer[:offset]

    def _refused(self, packet: bytes) -> Exception:
        (number,) = struct.unpack_from("<H", packet, 1)
        text = packet[3:].decode(errors="replace")
        text = text[6:] if text.startswith("#") else text
        if number == _NO_LOG and any(word in text for word in _LOST):
            return LostOffsetError(
                f"the server has no changes behind {self.reached or 'the begin'} any more: {text}. {AGAIN}"
            )
        if number == _NO_LOG:
            return self._ended(text)
        return failure(self._library.OperationalError(number, text), self._server, "*.*", "REPLICATION SLAVE")

    # Events.

    def _take_event(self, packet: bytes) -> None:
        time_s, kind, server_id = struct.unpack_from("<IBI", packet, 1)
        if kind == _DESCRIPTION:
            self._has_checksums = packet[-5] == 1
            return
        if kind == _ROTATE:
            self.files += 1
            return
        body = packet[1 + _HEAD_BYTES : len(packet) - (_CHECKSUM_BYTES if self._has_checksums else 0)]
        if kind == _GTID:
            number, domain, flags = struct.unpack_from("<QIB", body)
            self._now = _Transaction(Gtid(domain, server_id, number), flags, time_s)
            return
        now = self._now
        if now is None:
            return
        now.size_bytes += len(body)
        if kind == _TABLE_MAP:
            self._maps[int.from_bytes(body[:6], "little")] = body
        elif kind in _ROWS:
            done, is_compressed = _ROWS[kind]
            now.rows.append((done, self._maps[int.from_bytes(body[:6], "little")], body, is_compressed))
        elif kind in (_QUERY, _QUERY_COMPRESSED):
            self._take_statement(now, body, is_compressed=kind == _QUERY_COMPRESSED)
        elif kind in (_XID, _XA_PREPARE):
            self._end()

    def _take_statement(self, now: _Transaction, body: bytes, *, is_compressed: bool) -> None:
        schema_size, _, status_size = struct.unpack_from("<BHH", body, 8)
        status, offset = body[13 : 13 + status_size], 13 + status_size
        schema = body[offset : offset + schema_size].decode(errors="replace")
        text = body[offset + schema_size + 1 :]
        statement = (_inflated(text) if is_compressed else text).decode(errors="replace").strip()
        first, *more = statement.split(None, 1) or [""]
        word, rest = first.upper().rstrip(";"), more[0] if more else ""
        if word == "BEGIN":
            return
        if word == "COMMIT" or (word == "XA" and rest.upper().startswith(("COMMIT", "ROLLBACK"))):
            self._end()
        elif word == "XA":
            return
        elif word == "ROLLBACK" and not rest:
            now.rows.clear()
            self._end()
        elif word == "SAVEPOINT":
            now.savepoints[savepoint(statement)] = len(now.rows)
        elif word == "ROLLBACK":
            del now.rows[now.savepoints.get(savepoint(statement), 0) :]
        else:
            now.statements.append((statement, schema, _has_ansi_quotes(status)))
            if now.flags & _STANDALONE:
                self._end()

    def _end(self) -> None:
        assert self._now is not None
        self._whole.append(self._now)
        self._whole_bytes += self._now.size_bytes
        self._now = None

    # Batches.

    def _batch(self, taken: list[_Transaction], tables: Collection[Name]) -> LogBatch:
        groups: dict[tuple[bytes, int], _Group] = {}
        stopped: dict[Name, str] = {}
        truncations: list[Truncation] = []
        added: dict[Name, list[AddedColumn]] = {}
        touched: dict[Name, dict[str, str]] = {}
        offset = 0
        for i, transaction in enumerate(taken):
            for done, described, body, is_compressed in transaction.rows:
                offset += 1
                name = _name_of(described)
                if name not in tables:
                    continue
                found = self._rows_of(described, done, body, transaction, is_compressed=is_compressed)
                if isinstance(found, str):
                    stopped.setdefault(name, f'table "{name[0]}.{name[1]}" {found}')
                    continue
                version, images_there = found
                group = groups.setdefault((described[6:], done), _Group(version, [], [], []))
                group.transactions.append(i)
                group.offsets.append(offset)
                group.bodies.append(images_there)
            for statement, schema, ansi_quotes in transaction.statements:
                offset += 1
                does = effects(statement, schema, ansi_quotes=ansi_quotes)
                for name in tables:
                    shown = f'table "{name[0]}.{name[1]}"'
                    why = does.stopped.get(name) or does.stopped.get((name[0], "*"))
                    if why:
                        stopped.setdefault(name, f"{shown} {why}")
                    if name[1] in does.mentioned and (name[0] == schema or name[0] in does.mentioned):
                        stopped.setdefault(name, f"{shown} was changed by a statement that is not in the log as rows")
                    if name in does.truncated:
                        truncations.append(Truncation(offset << 32, (_nothing(name),)))
                    if name in does.added:
                        added[name] = does.added[name]
                    if name in does.touched:
                        touched[name] = does.touched[name]
        rows = [r for (_, done), group in groups.items() for r in self._rows(done, group)]
        times = np.array([t.time_s for t in taken], np.int64) * 1_000_000
        return LogBatch(str(self.reached), times, tuple(rows), tuple(truncations), stopped, added, touched)

    def _rows_of(
        self, described: bytes, done: int, body: bytes, transaction: _Transaction, *, is_compressed: bool
    ) -> tuple[MapVersion, bytes] | str:
        """The version of the table and the rows of an event, or the reason why they can't be read."""
        if transaction.flags & _PREPARED:
            return "was changed by a transaction of XA, whose changes are not followed"
        # the description of a table begins with a number that changes with each start of the server
        if described[6:] not in self._versions:
            self._versions[described[6:]] = self._version(described)
        version = self._versions[described[6:]]
        if isinstance(version, str):
            return version
        count, offset = packed(body, 8)
        bits = (count + 7) // 8
        present = body[offset : offset + bits * (2 if done == _UPDATE else 1)]
        offset += len(present)
        whole = ((1 << count) - 1).to_bytes(bits, "little")
        if any((present[i] & whole[i % bits]) != whole[i % bits] for i in range(len(present))):
            return "was changed by a session that had not binlog_row_image = FULL"
        return version, _inflated(body[offset:]) if is_compressed else body[offset:]

    def _version(self, described: bytes) -> MapVersion | str:
        """A version of a table, or the reason why its rows can't be read."""
        try:
            version = parsed(described)
        except (ValueError, LookupError, struct.error) as cause:
            return f"has a description in the log that is not understood ({cause})"
        if version is None:
            return "was changed while the server had not binlog_row_metadata = FULL"
        for column in version.columns:
            if not is_known(column):
                return f'has a column "{column.name}" whose values are stored in a way of old servers'
            if column.has_charset and self._charsets is not None and not self._charsets.has(column.charset):
                return f'has a column "{column.name}" of collation {column.charset}, which the server does not list'
        return version

    def _rows(self, done: int, group: _Group) -> list[Rows]:
        version = group.version
        data = np.frombuffer(b"".join([*group.bodies, PADDING]), np.uint8)
        ends = np.cumsum(np.fromiter(map(len, group.bodies), np.int64, len(group.bodies)))
        starts = np.concatenate([[0], ends[:-1]])
        found = images(data, starts, ends, version.columns)
        step = 2 if done == _UPDATE else 1
        events = found.events[::step]
        # the order by the number of the event, then of the row in the event
        first = np.searchsorted(events, events)
        offsets = (np.array(group.offsets, np.int64)[events] << 32) + np.arange(len(events)) - first
        transactions = np.array(group.transactions, np.int64)[events]
        written, gone = done != _DELETE, done != _WRITE

        charsets = self._charsets
        assert charsets is not None

        def values(of: int) -> tuple[Values, ...]:
            begins, sizes = found.begins[:, of::step], found.sizes[:, of::step]
            none = np.zeros(len(events), np.bool_)
            return tuple(
                Values(texts(data, begins[i], sizes[i], c, charsets), none) for i, c in enumerate(version.columns)
            )

        nothing = tuple(Values(pa.array([], pa.string()), np.zeros(0, np.bool_)) for _ in version.columns)
        new = values(step - 1) if written else nothing
        old = values(0) if gone else nothing
        count = len(events)
        return [Rows(version, offsets, transactions, np.full(count, written), np.full(count, gone), new, old)]


def _name_of(described: bytes) -> Name:
    """The version of a table in its description."""
    end = 9 + described[8]
    return described[9:end].decode(), described[end + 2 : end + 2 + described[end + 1]].decode()


def _nothing(name: Name) -> MapVersion:
    return MapVersion(0, *name, {}, ())


def _inflated(body: bytes) -> bytes:
    """Decompresses MariaDB's form: a byte with the length of the size, the size, and zlib data."""
    return zlib.decompress(body[1 + (body[0] & 7) :])


def _has_ansi_quotes(status: bytes) -> bool:
    """Whether the status of a statement allows names in double quotes."""
    offset = 0
    if status[:1] == bytes([_FLAGS_STATUS]):
        offset = 5
    if status[offset : offset + 1] != bytes([_MODE_STATUS]):
        return False
    (mode,) = struct.unpack_from("<Q", status, offset + 1)
    return bool(mode & _ANSI_QUOTES)


class Gtid(NamedTuple):
    """The id of a transaction. Numbers in a domain only increase, also across servers."""

    domain: int
    server: int
    number: int


@dataclass(frozen=True)
class Gtids:
    """The last transactions by domain."""

    last: dict[int, Gtid]

    @classmethod
    def parsed(cls, text: str) -> Gtids:
        """Parses the server's form `0-1-17,3-2-5`."""
        found = (Gtid(*map(int, part.split("-"))) for part in text.replace("\n", "").split(",") if part.strip())
        return cls({g.domain: g for g in found})

    def __str__(self) -> str:
        return ",".join("-".join(map(str, g)) for _, g in sorted(self.last.items()))

    def behind(self, transaction: Gtid) -> Gtids:
        """The GTIDs with another transaction."""
        return Gtids({**self.last, transaction.domain: transaction})

    def has(self, other: Gtids) -> bool:
        """Whether these include every transaction of `other`."""
        return all(d in self.last and self.last[d].number >= g.number for d, g in other.last.items())

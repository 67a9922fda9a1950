"""Messages of PostgreSQL's logical replication (plugin `pgoutput`, protocol 1) as columns of texts.

PostgreSQL, "Logical Replication Message Formats". Nothing here is done row by row: what all messages of a table have in
common is read by one step for each column.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from watersmeet.formats.jsonscan import cut

Numbers = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
_Bytes = npt.NDArray[np.uint8]

#: The bytes of `XLogData` before the message itself.
HEAD_BYTES: Final = 25
BEGIN, COMMIT, RELATION, INSERT, UPDATE, DELETE, TRUNCATE = b"BCRIUDT"
_KEY, _OLD, _NEW = b"KON"
_UNCHANGED, _TEXT = b"ut"
#: Microseconds from 1970 to 2000, from which PostgreSQL counts.
_EPOCH_US: Final = 946_684_800_000_000


class Column(NamedTuple):
    """A column of a table there. is_key: it is a part of the replica identity. modifier: `atttypmod`."""

    name: str
    type_oid: int
    modifier: int
    is_key: bool


@dataclass(frozen=True)
class TableVersion:
    """A table as the messages behind say. identity: `d` the primary key, `f` whole rows, `i` an index, `n` nothing."""

    oid: int
    schema: str
    name: str
    identity: str
    columns: tuple[Column, ...]


class Values(NamedTuple):
    """Values of one column. kept: which of them are not sent, as a change left them as they were; NULL here."""

    texts: pa.StringArray
    kept: Mask


@dataclass(frozen=True)
class Rows:
    """Changes of one table, all by one version of it, in their order.

    places: of each change, the number of its message. transactions: of its transaction in the batch. new: by column,
    for all `written`; old: for all `gone`. written, gone: which of the changes give a row, and which take one away.
    """

    table: TableVersion
    places: Numbers
    transactions: Numbers
    written: Mask
    gone: Mask
    new: tuple[Values, ...]
    old: tuple[Values, ...]


class Truncation(NamedTuple):
    """place, transaction: as in `Rows`. tables: their oids."""

    place: int
    transaction: int
    tables: tuple[int, ...]


@dataclass(frozen=True)
class Batch:
    """Whole transactions in the order of their commits.

    xids: of each transaction its 32 bits. commit_lsns: where its commit is in the log; end_lsns: where that ends.
    times_us: of the commits, UTC microseconds since 1970. versions: tables that were described.
    """

    xids: Numbers
    commit_lsns: Numbers
    end_lsns: Numbers
    times_us: Numbers
    versions: tuple[TableVersion, ...]
    rows: tuple[Rows, ...]
    truncations: tuple[Truncation, ...]


def parsed(messages: Sequence[bytes], known: dict[int, TableVersion]) -> Batch:
    """What messages (`XLogData`, whole transactions) say. known: the newest version of each table by its oid, as the
    connection has said so far; it is brought up to date.
    """
    data = np.frombuffer(b"".join(messages), np.uint8)
    ends = np.cumsum(np.fromiter(map(len, messages), np.int64, len(messages)))
    starts = np.concatenate([[0], ends[:-1]]).astype(np.int64) + HEAD_BYTES
    kinds = data[starts]
    begins, commits = starts[kinds == BEGIN], starts[kinds == COMMIT]
    transactions = np.cumsum(kinds == BEGIN) - 1
    versions = _versions(data, starts, ends, kinds, known)
    return Batch(
        _number(data, begins + 17, 4),
        _number(data, begins + 1, 8),
        _number(data, commits + 10, 8),
        _number(data, commits + 18, 8) + _EPOCH_US,
        tuple(v for found in versions.values() for _, v in found if _ >= 0),
        tuple(_rows(data, starts, kinds, transactions, versions)),
        tuple(_truncations(data, starts, kinds, transactions)),
    )


def _number(data: _Bytes, places: Numbers, size_bytes: int) -> Numbers:
    """Numbers in network order, without sign."""
    found = np.zeros(len(places), np.int64)
    for i in range(size_bytes):
        found = (found << 8) | data[places + i]
    return found


def _versions(
    data: _Bytes, starts: Numbers, ends: Numbers, kinds: _Bytes, known: dict[int, TableVersion]
) -> dict[int, list[tuple[int, TableVersion]]]:
    """By oid, the versions of a table and from which message on they hold."""
    found = {oid: [(-1, version)] for oid, version in known.items()}
    for i in np.flatnonzero(kinds == RELATION).tolist():
        version = described(data[starts[i] : ends[i]].tobytes())
        found.setdefault(version.oid, []).append((i, version))
        known[version.oid] = version
    return found


def described(message: bytes) -> TableVersion:
    """What a message of kind RELATION says."""
    (oid,) = struct.unpack_from(">I", message, 1)
    schema, place = _name(message, 5)
    name, place = _name(message, place)
    identity, count = struct.unpack_from(">cH", message, place)
    place += 3
    columns = []
    for _ in range(count):
        flags = message[place]
        column, place = _name(message, place + 1)
        type_oid, modifier = struct.unpack_from(">Ii", message, place)
        place += 8
        columns.append(Column(column, type_oid, modifier, bool(flags & 1)))
    return TableVersion(oid, schema or "pg_catalog", name, identity.decode(), tuple(columns))


def _name(message: bytes, place: int) -> tuple[str, int]:
    end = message.index(0, place)
    return message[place:end].decode(), end + 1


def _rows(
    data: _Bytes,
    starts: Numbers,
    kinds: _Bytes,
    transactions: Numbers,
    versions: dict[int, list[tuple[int, TableVersion]]],
) -> Iterator[Rows]:
    places = np.flatnonzero((kinds == INSERT) | (kinds == UPDATE) | (kinds == DELETE))
    oids = _number(data, starts[places] + 1, 4)
    for oid in np.unique(oids).tolist():
        own = places[oids == oid]
        known = versions[oid]
        which = np.searchsorted([i for i, _ in known], own) - 1
        for number in np.unique(which).tolist():
            mine = own[which == number]
            yield _rows_of(data, starts, kinds, mine, transactions[mine], known[number][1])


def _rows_of(
    data: _Bytes, starts: Numbers, kinds: _Bytes, places: Numbers, transactions: Numbers, table: TableVersion
) -> Rows:
    marks = starts[places] + 5
    gone = (data[marks] == _KEY) | (data[marks] == _OLD)
    written = kinds[places] != DELETE
    old, behind = _values(data, marks[gone] + 1, table)
    marks[gone] = behind
    new, _ = _values(data, marks[written] + 1, table)
    return Rows(table, places, transactions, written, gone, new, old)


def _values(data: _Bytes, places: Numbers, table: TableVersion) -> tuple[tuple[Values, ...], Numbers]:
    """The columns of rows that begin at `places`, and what is behind each row."""
    places = places + 2
    found = []
    for _ in table.columns:
        marks = data[places]
        is_text = marks == _TEXT
        begins, sizes = places + 1, np.zeros(len(places), np.int64)
        sizes[is_text] = _number(data, places[is_text] + 1, 4)
        begins[is_text] += 4
        found.append(Values(cut(data, begins, begins + sizes, ~is_text), marks == _UNCHANGED))
        places = begins + sizes
    return tuple(found), places


def _truncations(data: _Bytes, starts: Numbers, kinds: _Bytes, transactions: Numbers) -> Iterator[Truncation]:
    for i in np.flatnonzero(kinds == TRUNCATE).tolist():
        count = int(_number(data, starts[i : i + 1] + 1, 4)[0])
        oids = _number(data, starts[i] + 6 + 4 * np.arange(count), 4)
        yield Truncation(i, int(transactions[i]), tuple(oids.tolist()))

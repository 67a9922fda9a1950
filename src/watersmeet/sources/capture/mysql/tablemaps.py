"""What the log says of a table before its rows: `Table_map_event` with all metadata.

MySQL, "Table_map_event"; MariaDB, "TABLE_MAP_EVENT". `binlog_row_metadata = FULL` gives names, signs, charsets, labels.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from watersmeet.sources.capture.contract import TableVersion

#: Types by their numbers.
TINY, SHORT, LONG, FLOAT, DOUBLE, LONGLONG, INT24 = 1, 2, 3, 4, 5, 8, 9
DATE, YEAR, NEWDATE, VARCHAR, BIT, TIMESTAMP, DATETIME, TIME = 10, 13, 14, 15, 16, 17, 18, 19
BLOB_COMPRESSED, VARCHAR_COMPRESSED = 140, 141
JSON, DECIMAL, ENUM, SET, BLOB, VAR_STRING, STRING, GEOMETRY = 245, 246, 247, 248, 252, 253, 254, 255

_WORDS: Final = {
    TINY: "tinyint", SHORT: "smallint", INT24: "mediumint", LONG: "int", LONGLONG: "bigint", FLOAT: "float",
    DOUBLE: "double", DATE: "date", NEWDATE: "date", YEAR: "year", BIT: "bit", TIMESTAMP: "timestamp",
    DATETIME: "datetime", TIME: "time", JSON: "json", DECIMAL: "decimal", ENUM: "enum", SET: "set",
    GEOMETRY: "geometry",
}  # fmt: skip
_TEXTS: Final = (VARCHAR, VAR_STRING, STRING, BLOB)
#: Types that the metadata of signs counts, and those of charsets.
_NUMERIC: Final = (TINY, SHORT, INT24, LONG, LONGLONG, FLOAT, DOUBLE, DECIMAL, YEAR)
_CHARACTER: Final = (*_TEXTS, VARCHAR_COMPRESSED, BLOB_COMPRESSED)
_LABELLED: Final = (ENUM, SET)
#: The charset of bytes.
BINARY: Final = 63
#: Kinds of metadata.
_SIGNS, _DEFAULT_CHARSET, _CHARSETS, _NAMES, _SET_LABELS, _ENUM_LABELS = range(1, 7)
_LABEL_DEFAULT_CHARSET, _LABEL_CHARSETS = 10, 11


@dataclass(frozen=True)
class MapColumn:
    """A column as the log has it. kind: the number of its type. size: of values, or the most of texts (bytes).
    digits: of fractions. charset: the number of a collation. labels: of that charset.
    """

    kind: int
    size: int = 0
    digits: int = 0
    is_unsigned: bool = False
    charset: int = BINARY
    labels: tuple[bytes, ...] = ()
    name: str = ""

    @property
    def has_charset(self) -> bool:
        """Whether its values are texts, or labels that are."""
        return self.kind in _LABELLED or (self.kind in _TEXTS and self.charset != BINARY)

    @property
    def words(self) -> str:
        """Its type, see `TableThere.types`."""
        if self.kind in _TEXTS:
            return "binary" if self.charset == BINARY else "text"
        word = _WORDS.get(self.kind, "compressed" if self.kind in _CHARACTER else f"type {self.kind}")
        if self.kind == DECIMAL:
            return f"{word}({self.size},{self.digits})"
        return f"{word} unsigned" if self.is_unsigned and self.kind not in (YEAR, FLOAT, DOUBLE) else word


@dataclass(frozen=True)
class MapVersion(TableVersion):
    """A table as rows behind have it."""

    columns: tuple[MapColumn, ...]


def parsed(body: bytes) -> MapVersion | None:
    """What the event says, without its head; None if it does not have the names."""
    place = 8
    schema, place = _short_text(body, place)
    name, place = _short_text(body, place + 1)
    count, place = packed(body, place + 1)
    kinds = body[place : place + count]
    size, place = packed(body, place + count)
    columns = _columns(kinds, body[place : place + size])
    place += size + (count + 7) // 8
    found: dict[int, bytes] = {}
    while place < len(body):
        tag = body[place]
        size, place = packed(body, place + 1)
        found[tag] = body[place : place + size]
        place += size
    if _NAMES not in found:
        return None
    names = _texts(found[_NAMES])
    columns = [replace(c, name=n) for c, n in zip(columns, names, strict=True)]
    _sign(columns, found.get(_SIGNS, b""))
    _give_charsets(columns, _CHARACTER, found.get(_DEFAULT_CHARSET), found.get(_CHARSETS))
    _give_charsets(columns, _LABELLED, found.get(_LABEL_DEFAULT_CHARSET), found.get(_LABEL_CHARSETS))
    for kind, tag in ((ENUM, _ENUM_LABELS), (SET, _SET_LABELS)):
        labels = _label_lists(found.get(tag, b""))
        for i, column in enumerate(columns):
            if column.kind == kind:
                columns[i] = replace(column, labels=next(labels))
    return MapVersion(0, schema, name, {c.name: c.words for c in columns}, tuple(columns))


def packed(body: bytes, place: int) -> tuple[int, int]:
    """(an integer of variable length, what is behind it)."""
    first = body[place]
    if first < 0xFB:
        return first, place + 1
    size = {0xFC: 2, 0xFD: 3, 0xFE: 8}[first]
    return int.from_bytes(body[place + 1 : place + 1 + size], "little"), place + 1 + size


def _short_text(body: bytes, place: int) -> tuple[str, int]:
    size = body[place]
    return body[place + 1 : place + 1 + size].decode(), place + 1 + size


def _texts(body: bytes) -> list[str]:
    place, found = 0, []
    while place < len(body):
        size, place = packed(body, place)
        found.append(body[place : place + size].decode())
        place += size
    return found


def _label_lists(body: bytes) -> Iterator[tuple[bytes, ...]]:
    place = 0
    while place < len(body):
        count, place = packed(body, place)
        labels = []
        for _ in range(count):
            size, place = packed(body, place)
            labels.append(body[place : place + size])
            place += size
        yield tuple(labels)


def _columns(kinds: bytes, metadata: bytes) -> list[MapColumn]:
    place, found = 0, []
    for kind in kinds:
        size, digits, of = 0, 0, kind
        if kind in (FLOAT, DOUBLE, BLOB, BLOB_COMPRESSED, JSON, GEOMETRY):
            size, place = metadata[place], place + 1
        elif kind in (TIMESTAMP, DATETIME, TIME):
            digits, place = metadata[place], place + 1
        elif kind in (VARCHAR, VARCHAR_COMPRESSED):
            (size,) = struct.unpack_from("<H", metadata, place)
            place += 2
        elif kind == BIT:
            bits, whole = metadata[place], metadata[place + 1]
            size, place = whole + (bits > 0), place + 2
        elif kind == DECIMAL:
            size, digits, place = metadata[place], metadata[place + 1], place + 2
        elif kind in (STRING, VAR_STRING, ENUM, SET):
            first, second, place = metadata[place], metadata[place + 1], place + 2
            # Of long texts two bits of the size are among those of the type.
            of, size = (
                (first | 0x30, second | ((first & 0x30 ^ 0x30) << 4)) if first & 0x30 != 0x30 else (first, second)
            )
        found.append(MapColumn(of, size, digits))
    return found


def _sign(columns: list[MapColumn], bits: bytes) -> None:
    numeric = [i for i, c in enumerate(columns) if c.kind in _NUMERIC]
    for n, i in enumerate(numeric):
        if n // 8 < len(bits) and bits[n // 8] & (0x80 >> n % 8):
            columns[i] = replace(columns[i], is_unsigned=True)


def _give_charsets(columns: list[MapColumn], kinds: Sequence[int], default: bytes | None, each: bytes | None) -> None:
    own = [i for i, c in enumerate(columns) if c.kind in kinds]
    if each is not None:
        charsets = _numbers(each)
    elif default is not None:
        usual, *others = _numbers(default)
        charsets = [usual] * len(own)
        for n, charset in zip(others[::2], others[1::2], strict=True):
            charsets[n] = charset
    else:
        return
    for i, charset in zip(own, charsets, strict=True):
        columns[i] = replace(columns[i], charset=charset)


def _numbers(body: bytes) -> list[int]:
    place, found = 0, []
    while place < len(body):
        number, place = packed(body, place)
        found.append(number)
    return found

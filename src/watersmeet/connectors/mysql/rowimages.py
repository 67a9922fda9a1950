"""Converts rows of the log to columns of texts in the form in which the server itself would write them.

MySQL, "Rows_event", "Date and Time Data Type Representation"; `decimal2bin`. The rows of an event follow each other
without any mark of their beginnings. So all events are read in parallel: for each column, one step finds the values in
the first rows of all events, then in the second rows, and so on.
"""

from __future__ import annotations

import codecs
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.connectors.databases.captures import Mask, Numbers, TableVersion
from watersmeet.connectors.mysql.client import ask
from watersmeet.formats.jsonscan import content, cut

#: The numbers of types.
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

#: The types that are counted in the metadata of signs, and in the metadata of charsets.
_NUMERIC: Final = (TINY, SHORT, INT24, LONG, LONGLONG, FLOAT, DOUBLE, DECIMAL, YEAR)

_CHARACTER: Final = (*_TEXTS, VARCHAR_COMPRESSED, BLOB_COMPRESSED)
_LABELLED: Final = (ENUM, SET)

#: The number of the charset of bytes.
BINARY: Final = 63

#: The kinds of metadata.
_SIGNS, _DEFAULT_CHARSET, _CHARSETS, _NAMES, _SET_LABELS, _ENUM_LABELS = range(1, 7)

_LABEL_DEFAULT_CHARSET, _LABEL_CHARSETS = 10, 11


@dataclass(frozen=True)
class MapColumn:
    """A column in the log. kind: the number of its type. size: the bytes of values, or the maximum bytes of texts.
    digits: the digits of fractions. charset: the number of a collation. labels: labels in this charset.
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
        """Whether its values are texts, or labels that are texts."""
        return self.kind in _LABELLED or (self.kind in _TEXTS and self.charset != BINARY)

    @property
    def words(self) -> str:
        """Its type in the form of `TableThere.types`."""
        if self.kind in _TEXTS:
            return "binary" if self.charset == BINARY else "text"
        word = _WORDS.get(self.kind, "compressed" if self.kind in _CHARACTER else f"type {self.kind}")
        if self.kind == DECIMAL:
            return f"{word}({self.size},{self.digits})"
        return f"{word} unsigned" if self.is_unsigned and self.kind not in (YEAR, FLOAT, DOUBLE) else word


@dataclass(frozen=True)
class MapVersion(TableVersion):
    """The definition of a table for the rows that follow in the log."""

    columns: tuple[MapColumn, ...]


def parsed(body: bytes) -> MapVersion | None:
    """The table in the body of an event; None if the event lacks the names of columns."""
    offset = 8
    schema, offset = _short_text(body, offset)
    name, offset = _short_text(body, offset + 1)
    count, offset = packed(body, offset + 1)
    kinds = body[offset : offset + count]
    size, offset = packed(body, offset + count)
    columns = _columns(kinds, body[offset : offset + size])
    offset += size + (count + 7) // 8
    found: dict[int, bytes] = {}
    while offset < len(body):
        tag = body[offset]
        size, offset = packed(body, offset + 1)
        found[tag] = body[offset : offset + size]
        offset += size
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


def packed(body: bytes, offset: int) -> tuple[int, int]:
    """An integer of variable length, and the offset after it."""
    first = body[offset]
    if first < 0xFB:
        return first, offset + 1
    size = {0xFC: 2, 0xFD: 3, 0xFE: 8}[first]
    return int.from_bytes(body[offset + 1 : offset + 1 + size], "little"), offset + 1 + size


def _short_text(body: bytes, offset: int) -> tuple[str, int]:
    size = body[offset]
    return body[offset + 1 : offset + 1 + size].decode(), offset + 1 + size


def _texts(body: bytes) -> list[str]:
    offset, found = 0, []
    while offset < len(body):
        size, offset = packed(body, offset)
        found.append(body[offset : offset + size].decode())
        offset += size
    return found


def _label_lists(body: bytes) -> Iterator[tuple[bytes, ...]]:
    offset = 0
    while offset < len(body):
        count, offset = packed(body, offset)
        labels = []
        for _ in range(count):
            size, offset = packed(body, offset)
            labels.append(body[offset : offset + size])
            offset += size
        yield tuple(labels)


def _columns(kinds: bytes, metadata: bytes) -> list[MapColumn]:
    offset, found = 0, []
    for kind in kinds:
        size, digits, of = 0, 0, kind
        if kind in (FLOAT, DOUBLE, BLOB, BLOB_COMPRESSED, JSON, GEOMETRY):
            size, offset = metadata[offset], offset + 1
        elif kind in (TIMESTAMP, DATETIME, TIME):
            digits, offset = metadata[offset], offset + 1
        elif kind in (VARCHAR, VARCHAR_COMPRESSED):
            (size,) = struct.unpack_from("<H", metadata, offset)
            offset += 2
        elif kind == BIT:
            bits, whole = metadata[offset], metadata[offset + 1]
            size, offset = whole + (bits > 0), offset + 2
        elif kind == DECIMAL:
            size, digits, offset = metadata[offset], metadata[offset + 1], offset + 2
        elif kind in (STRING, VAR_STRING, ENUM, SET):
            first, second, offset = metadata[offset], metadata[offset + 1], offset + 2
            # two bits of the size of long texts are among the bits of the type
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
    offset, found = 0, []
    while offset < len(body):
        number, offset = packed(body, offset)
        found.append(number)
    return found


_Bytes = npt.NDArray[np.uint8]

#: The padding after the rows, from which the bytes of NULL values are read.
PADDING: Final = bytes(16)

_SIZES: Final = {
    TINY: 1, SHORT: 2, INT24: 3, LONG: 4, LONGLONG: 8, FLOAT: 4, DOUBLE: 8, DATE: 3, NEWDATE: 3,
    YEAR: 1,
}  # fmt: skip

_INTEGERS: Final = (TINY, SHORT, INT24, LONG, LONGLONG)

#: The bytes of a decimal by its number of digits.
_DIGIT_BYTES: Final = (0, 1, 1, 2, 2, 3, 3, 4, 4, 4)

_HEX: Final = np.frombuffer(b"0123456789ABCDEF", np.uint8)
_ZERO, _MINUS, _POINT = b"0-."


class Images(NamedTuple):
    """Rows, ordered by event and by their order in the event. events: the event of each row. begins, sizes: the
    locations of values by column; size -1: NULL.
    """

    events: Numbers
    begins: npt.NDArray[np.int64]
    sizes: npt.NDArray[np.int64]


def images(data: _Bytes, starts: Numbers, ends: Numbers, columns: Sequence[MapColumn]) -> Images:
    """The rows of events, which lie between `starts` and `ends`. data: must end with PADDING."""
    at, active = starts.copy(), np.flatnonzero(starts < ends)
    events, begins, sizes = [], [], []
    while len(active):
        nulls = at[active]
        offset = nulls + (len(columns) + 7) // 8
        begin = np.empty((len(columns), len(active)), np.int64)
        size = np.empty_like(begin)
        for i, column in enumerate(columns):
            is_null = (data[nulls + i // 8] >> i % 8 & 1).astype(np.bool_)
            prefix, fixed = _layout(column)
            length = little(data, offset, prefix) if prefix else fixed
            begin[i] = offset + prefix
            size[i] = np.where(is_null, -1, length)
            offset = offset + np.where(is_null, 0, prefix + length)
        events.append(active)
        begins.append(begin)
        sizes.append(size)
        at[active] = offset
        active = active[offset < ends[active]]
    if not events:
        none = np.zeros((len(columns), 0), np.int64)
        return Images(np.zeros(0, np.int64), none, none)
    found = np.concatenate(events)
    order = np.argsort(found, kind="stable")
    return Images(found[order], np.concatenate(begins, 1)[:, order], np.concatenate(sizes, 1)[:, order])


def little(data: _Bytes, offsets: Numbers, size: int) -> Numbers:
    """Unsigned numbers of up to 8 bytes, least significant byte first."""
    found = np.zeros(len(offsets), np.int64)
    for i in range(size):
        found |= data[offsets + i].astype(np.int64) << (8 * i)
    return found


def big(data: _Bytes, offsets: Numbers, size: int) -> Numbers:
    """Unsigned numbers, most significant byte first."""
    found = np.zeros(len(offsets), np.int64)
    for i in range(size):
        found = found << 8 | data[offsets + i]
    return found


def _layout(column: MapColumn) -> tuple[int, int]:
    """The number of size bytes that precede a value; if there are none, the size."""
    kind = column.kind
    if kind in (VARCHAR, VARCHAR_COMPRESSED, STRING, VAR_STRING):
        return 1 if column.size < 256 else 2, 0
    if kind in (BLOB, BLOB_COMPRESSED, JSON, GEOMETRY):
        return column.size, 0
    if kind in (ENUM, SET, BIT):
        return 0, column.size
    if kind == DECIMAL:
        whole, part = column.size - column.digits, column.digits
        return 0, sum(4 * (n // 9) + _DIGIT_BYTES[n % 9] for n in (whole, part))
    fraction = (column.digits + 1) // 2
    if kind in (TIMESTAMP, DATETIME, TIME):
        return 0, {TIMESTAMP: 4, DATETIME: 5, TIME: 3}[kind] + fraction
    return 0, _SIZES[kind]


def is_known(column: MapColumn) -> bool:
    """Whether the ends of the column's values are known."""
    variable = (
        *(VARCHAR, VARCHAR_COMPRESSED, STRING, VAR_STRING, BLOB, BLOB_COMPRESSED, JSON, GEOMETRY),
        *(ENUM, SET, BIT, DECIMAL, TIMESTAMP, DATETIME, TIME),
    )
    return column.kind in variable or column.kind in _SIZES


def texts(data: _Bytes, begins: Numbers, sizes: Numbers, column: MapColumn, charsets: Charsets) -> pa.StringArray:
    """The values of a column; NULL for types that are not read. charsets: must have the charset of the column."""
    null = sizes < 0
    kind = column.kind
    if kind in (VARCHAR, VAR_STRING, STRING, BLOB):
        found = cut(data, begins, begins + np.maximum(sizes, 0), null)
        if column.charset == BINARY:
            digits = _hexadecimal(found)
            # trailing zeros of values with a fixed size are not stored
            return pc.ascii_rpad(digits, 2 + 2 * column.size, "0") if kind == STRING else digits
        return charsets.decoded(found, column.charset)
    begins = np.where(null, 0, begins)
    if kind in _INTEGERS:
        return _integers(data, begins, column, null)
    if kind in (FLOAT, DOUBLE):
        numbers = data[begins[:, None] + np.arange(_SIZES[kind])].view("<f4" if kind == FLOAT else "<f8")[:, 0]
        return pa.array(numbers.astype(np.float64), mask=null).cast(pa.string())
    if kind in (ENUM, SET):
        labels = charsets.labels(column.labels, column.charset)
        return _labelled(little(data, begins, column.size), column.kind, labels, null)
    if kind == BIT:
        return pa.array(big(data, begins, column.size).view(np.uint64), mask=null).cast(pa.string())
    write = _WRITERS.get(kind)
    return pa.nulls(len(begins), pa.string()) if write is None else write(data, begins, column, null)


def _integers(data: _Bytes, begins: Numbers, column: MapColumn, null: Mask) -> pa.StringArray:
    size = _SIZES[column.kind]
    numbers = little(data, begins, size)
    if column.is_unsigned:
        return pa.array(numbers.view(np.uint64), mask=null).cast(pa.string())
    shift = 64 - 8 * size
    return pa.array(numbers << shift >> shift, mask=null).cast(pa.string())


def _hexadecimal(values: pa.StringArray) -> pa.StringArray:
    """Bytes in the form of `bytea`."""
    read, offsets = content(values)
    offsets = np.asarray(offsets, np.int64)
    sizes = np.diff(offsets)
    doubled = 2 * offsets + 2 * np.arange(len(offsets))  # the offsets of the digits and prefixes
    result = np.empty(int(doubled[-1]), np.uint8)
    result[doubled[:-1]], result[doubled[:-1] + 1] = b"\\x"
    at = 2 * np.arange(len(read)) + 2 * (np.repeat(np.arange(len(sizes)), sizes) + 1)
    result[at], result[at + 1] = _HEX[read >> 4], _HEX[read & 15]
    return _strings(result, doubled, ~values.is_valid().to_numpy(zero_copy_only=False))


def _strings(data: _Bytes, offsets: Numbers, null: Mask) -> pa.StringArray:
    found = pa.StringArray.from_buffers(
        len(offsets) - 1, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(data.tobytes())
    )
    return pc.if_else(pa.array(~null), found, None) if null.any() else found


def _labelled(numbers: Numbers, kind: int, labels: Sequence[str], null: Mask) -> pa.StringArray:
    """Texts of labels. An enum has the number of its label from 1 (0: invalid value), a set has a bit for each of its
    labels.
    """
    if kind == ENUM:
        return pa.array(["", *labels]).take(pa.array(np.where(null, 0, numbers), mask=null))
    known, which = np.unique(np.where(null, 0, numbers), return_inverse=True)
    written = [",".join(x for i, x in enumerate(labels) if int(n) >> i & 1) for n in known]
    return pa.array(written, pa.string()).take(pa.array(which, mask=null))


# Texts of fixed width: a matrix of characters, of which some are omitted.
def _kept(characters: _Bytes, keep: Mask, null: Mask) -> pa.StringArray:
    keep = keep & ~null[:, None]
    offsets = np.concatenate([[0], np.cumsum(keep.sum(1))])
    return _strings(characters[keep], offsets, null)


def _digits(numbers: Numbers, count: int) -> _Bytes:
    """The last digits of numbers as characters."""
    powers = 10 ** np.arange(count - 1, -1, -1, dtype=np.int64)
    return (numbers[:, None] // powers % 10 + _ZERO).astype(np.uint8)


def _joined(parts: Sequence[_Bytes | int], count: int) -> _Bytes:
    """Joins columns of characters; an integer is a character for all rows."""
    return np.concatenate([np.full((count, 1), p, np.uint8) if isinstance(p, int) else p for p in parts], 1)


def _decimals(data: _Bytes, begins: Numbers, column: MapColumn, null: Mask) -> pa.StringArray:
    whole, part = column.size - column.digits, column.digits
    _, size = _layout(column)
    read = data[begins[:, None] + np.arange(size)]
    negative = read[:, 0] < 0x80
    read[:, 0] ^= 0x80
    read[negative] = ~read[negative]
    # Nine digits have four bytes; the incomplete group is the first one of the integer part and the last one of the
    # fraction.
    groups = [n for n in (whole % 9, *[9] * (whole // 9)) if n] + [n for n in (*[9] * (part // 9), part % 9) if n]
    offset, found = 0, []
    for n in groups:
        width = _DIGIT_BYTES[n]
        found.append(_digits(big(read.reshape(-1), offset + size * np.arange(len(read)), width), n))
        offset += width
    digits = np.concatenate(found, 1)
    characters = _joined([_MINUS, _ZERO, digits[:, :whole], _POINT, digits[:, whole:]], len(digits))
    keep = np.ones(characters.shape, np.bool_)
    keep[:, 0] = negative
    leading = np.maximum.accumulate(digits[:, :whole] != _ZERO, 1)
    keep[:, 2 : 2 + whole] = leading
    keep[:, 1] = ~leading[:, -1] if whole else True
    keep[:, 2 + whole] = part > 0
    return _kept(characters, keep, null)


def _fraction(parts: Numbers, column: MapColumn) -> list[_Bytes | int]:
    """The fraction of a second, which is stored with an even number of digits."""
    if not column.digits:
        return []
    stored = column.digits + column.digits % 2
    return [_POINT, _digits(parts // 10 ** (stored - column.digits), column.digits)]


def _moments(date: tuple[Numbers, Numbers, Numbers], clock: Sequence[Numbers], fraction: list[_Bytes | int]) -> _Bytes:
    year, month, day = date
    parts: list[_Bytes | int] = [_digits(year, 4), _MINUS, _digits(month, 2), _MINUS, _digits(day, 2)]
    for sign, number in zip(b" ::", clock, strict=False):
        parts += [sign, _digits(number, 2)]
    return _joined([*parts, *fraction], len(year))


def _all(characters: _Bytes, null: Mask) -> pa.StringArray:
    return _kept(characters, np.ones(characters.shape, np.bool_), null)


def _dates(data: _Bytes, begins: Numbers, _: MapColumn, null: Mask) -> pa.StringArray:
    days = little(data, begins, 3)
    return _all(_moments((days >> 9, days >> 5 & 15, days & 31), [], []), null)


def _datetimes(data: _Bytes, begins: Numbers, column: MapColumn, null: Mask) -> pa.StringArray:
    number = big(data, begins, 5) - (1 << 39)
    months, clock = number >> 22, number & 0x1FFFF
    fraction = _fraction(big(data, begins + 5, (column.digits + 1) // 2), column)
    date = (months // 13, months % 13, number >> 17 & 31)
    return _all(_moments(date, (clock >> 12, clock >> 6 & 63, clock & 63), fraction), null)


def _timestamps(data: _Bytes, begins: Numbers, column: MapColumn, null: Mask) -> pa.StringArray:
    seconds = big(data, begins, 4)
    fraction = _fraction(big(data, begins + 4, (column.digits + 1) // 2), column)
    days = (seconds // 86400).astype("datetime64[D]")
    months = days.astype("datetime64[M]")
    is_set = seconds > 0
    year = np.where(is_set, months.astype("datetime64[Y]").astype(np.int64) + 1970, 0)
    month = np.where(is_set, months.astype(np.int64) % 12 + 1, 0)
    day = np.where(is_set, (days - months.astype("datetime64[D]")).astype(np.int64) + 1, 0)
    left = seconds % 86400
    return _all(_moments((year, month, day), (left // 3600, left // 60 % 60, left % 60), fraction), null)


def _times(data: _Bytes, begins: Numbers, column: MapColumn, null: Mask) -> pa.StringArray:
    width = (column.digits + 1) // 2
    number = big(data, begins, 3 + width) - (0x800000 << 8 * width)
    size = np.abs(number)
    clock = size >> 8 * width
    hours = clock >> 12 & 0x3FF
    parts: list[_Bytes | int] = [_MINUS, _digits(hours, 3), b":"[0], _digits(clock >> 6 & 63, 2), b":"[0]]
    parts += [_digits(clock & 63, 2), *_fraction(size & ((1 << 8 * width) - 1), column)]
    characters = _joined(parts, len(number))
    keep = np.ones(characters.shape, np.bool_)
    keep[:, 0] = number < 0
    keep[:, 1] = hours > 99
    return _kept(characters, keep, null)


def _years(data: _Bytes, begins: Numbers, _: MapColumn, null: Mask) -> pa.StringArray:
    numbers = data[begins].astype(np.int64)
    return _all(_digits(np.where(numbers > 0, numbers + 1900, 0), 4), null)


_WRITERS: Final[dict[int, Callable[[_Bytes, Numbers, MapColumn, Mask], pa.StringArray]]] = {
    DECIMAL: _decimals,
    DATE: _dates,
    NEWDATE: _dates,
    DATETIME: _datetimes,
    TIMESTAMP: _timestamps,
    TIME: _times,
    YEAR: _years,
}


#: The charsets whose texts are already UTF-8.
_UTF8: Final = ("utf8mb4", "utf8mb3", "utf8")


#: The query of charsets of collations by their numbers in the log. Older servers number the collations of each charset
#: in one table, newer servers those that several charsets share in the other.
_COLLATIONS: Final = "SELECT ID, CHARACTER_SET_NAME FROM information_schema.{} WHERE ID IS NOT NULL"


_IS_NUMBERED: Final = """
SELECT 1 FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = 'information_schema'
AND TABLE_NAME = 'COLLATION_CHARACTER_SET_APPLICABILITY' AND COLUMN_NAME = 'ID'
"""


_CHARSET_SIZES: Final = "SELECT CHARACTER_SET_NAME, MAXLEN FROM information_schema.CHARACTER_SETS"


#: The maximum bytes, and values, that the server converts in one request.
_MOST_BYTES: Final = 1 << 20


_MOST_VALUES: Final = 1000


class Charsets:
    """The charsets of a server by the numbers of collations. Only one thread may use it. Raises errors of the
    library.
    """

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._names = dict(ask(connection, _COLLATIONS.format("COLLATIONS")))
        if ask(connection, _IS_NUMBERED):
            self._names |= dict(ask(connection, _COLLATIONS.format("COLLATION_CHARACTER_SET_APPLICABILITY")))
        self._sizes: dict[str, int] = dict(ask(connection, _CHARSET_SIZES))
        self._tables: dict[str, str] = {}
        self._labels: dict[tuple[int, tuple[bytes, ...]], tuple[str, ...]] = {}

    def has(self, collation: int) -> bool:
        """Whether the charset of a collation is known."""
        return collation in self._names

    def decoded(self, values: pa.StringArray, collation: int) -> pa.StringArray:
        """The texts of a column from the bytes in the log."""
        name = self._names[collation]
        if name in _UTF8:
            return values
        encoded = values.cast(pa.binary()).dictionary_encode()
        found = self._texts(encoded.dictionary.to_pylist(), name)
        return pa.array(found, pa.string()).take(encoded.indices)

    def labels(self, labels: tuple[bytes, ...], collation: int) -> tuple[str, ...]:
        """The decoded labels of a type."""
        key = collation, labels
        if key not in self._labels:
            name = self._names[collation]
            known = [x.decode() for x in labels] if name in _UTF8 else self._texts(labels, name)
            self._labels[key] = tuple(known)
        return self._labels[key]

    def _texts(self, values: Sequence[bytes], name: str) -> list[str]:
        if self._sizes.get(name) == 1:
            if name not in self._tables:
                self._tables[name] = "".join(self._converted([bytes([i]) for i in range(256)], name))
            return [codecs.charmap_decode(v, "strict", self._tables[name])[0] for v in values]
        found: list[str] = []
        begin = size_bytes = 0
        for i, value in enumerate(values):
            if i > begin and (size_bytes + len(value) > _MOST_BYTES or i - begin == _MOST_VALUES):
                found += self._converted(values[begin:i], name)
                begin, size_bytes = i, 0
            size_bytes += len(value)
        return found + self._converted(values[begin:], name)

    def _converted(self, values: Sequence[bytes], name: str) -> list[str]:
        if not values:
            return []
        listed = ", ".join(f"CONVERT(CONVERT(x'{v.hex()}' USING {name}) USING utf8mb4)" for v in values)
        (found,) = ask(self._connection, f"SELECT {listed}")
        return list(found)

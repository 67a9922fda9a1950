r"""Converts rows of COPY … FROM STDIN to columns, by Arrow's kernels and numpy: no row becomes an object of Python.

PostgreSQL, "COPY", "Text Format", "CSV Format", "Binary Format". In text, a backslash and the characters after it
stand for one character. A line `\.` ends the rows: psql sends it after rows that a script contains. In binary, the
lengths of values determine where a row ends. Each offset is read as if a row began there, all at once; then the offsets
that follow from the first row are kept.
"""

from __future__ import annotations

import csv as rows_of_csv
import io
import re
from collections.abc import Iterator, Sequence
from typing import IO, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from watersmeet.errors import Error, error
from watersmeet.server.valuebytes import EPOCH_DAYS, EPOCH_US, UUID_DIGITS
from watersmeet.values.types import Field, Schema, SqlType

#: Characters and their escapes in the text format; the backslash is first in both directions.
ESCAPES: Final = (
    ("\\", "\\\\"),
    ("\n", "\\n"),
    ("\r", "\\r"),
    ("\t", "\\t"),
    ("\b", "\\b"),
    ("\f", "\\f"),
    ("\v", "\\v"),
)

#: Replaces a backslash while other escapes are decoded: texts can't contain it.
_HELD: Final = b"\0"

_BLOCK_BYTES: Final = 1 << 24
_CODE: Final = re.compile(rb"\\(?:x([0-9a-fA-F]{1,2})|([0-7]{1,3}))")
_END: Final = re.compile(rb"(?:\A|(?<=\n))\\\.\r?(?:\n|\Z)")
_END_OF_CSV: Final = re.compile(rb"(?:\A|(?<=\n))\\\.\r?\n?\Z")


def read_text(
    file: IO[bytes], names: Sequence[str], delimiter: str, null: str, *, header: bool, matches: bool
) -> pa.Table:
    """The texts of rows in text format, by names of columns. header: whether the first line has names. matches: whether
    these must be those of the columns. Raises BAD_COPY_FORMAT, CHARACTER_NOT_IN_REPERTOIRE.
    """
    if header and (line := file.readline()) and matches:
        _check_names(line.decode(errors="replace").rstrip("\r\n").split(delimiter), names)
    parts, line_number = list[pa.Table](), 1 + int(header)
    for block in _blocks(file, delimiter.encode()):
        end = _END.search(block)
        data = block if end is None else block[: end.start()]
        if data:
            try:
                found = _read(io.BytesIO(data), names, pa.binary(), delimiter, null, block_bytes=len(data))
            except pa.ArrowInvalid as cause:
                raise _failure(data, names, delimiter, line_number) or _unreadable(cause) from cause
            parts.append(pa.table([_texts(_unescaped(c, data)) for c in found.columns], list(names)))
            line_number += found.num_rows
        if end is not None:
            break
    return pa.concat_tables(parts) if parts else _nothing(names)


def read_csv(
    file: IO[bytes], names: Sequence[str], delimiter: str, null: str, quote: str, *, header: bool, matches: bool
) -> pa.Table:
    """The texts of rows in CSV, by names of columns. header, matches: as in `read_text`. Raises BAD_COPY_FORMAT."""
    if header:
        line = file.readline()
        while line.count(quote.encode()) % 2 and (more := file.readline()):
            line += more
        if matches:
            text = io.StringIO(line.decode(errors="replace"))
            _check_names(next(rows_of_csv.reader(text, delimiter=delimiter, quotechar=quote), []), names)
    begin = file.tell()
    size = file.seek(0, io.SEEK_END)
    file.seek(max(begin, size - len(b"\n\\.\r\n")))
    tail = file.read()
    if (end := _END_OF_CSV.search(tail)) is not None and (end.start() or size - begin == len(tail)):
        size -= len(tail) - end.start()
        file.truncate(size)
    if size <= begin:
        return _nothing(names)
    file.seek(begin)
    try:
        return _read(file, names, pa.string(), delimiter, null, quote)
    except pa.ArrowInvalid as cause:
        raise _unreadable(cause) from cause


def _read(
    file: IO[bytes],
    names: Sequence[str],
    kind: pa.DataType,
    delimiter: str,
    null: str,
    quote: str | None = None,
    *,
    block_bytes: int = _BLOCK_BYTES,
) -> pa.Table:
    return csv.read_csv(
        file,
        csv.ReadOptions(column_names=names, block_size=block_bytes),
        csv.ParseOptions(
            delimiter=delimiter,
            quote_char=quote or False,
            double_quote=quote is not None,
            newlines_in_values=quote is not None,
            ignore_empty_lines=False,
        ),
        csv.ConvertOptions(
            column_types=dict.fromkeys(names, kind),
            null_values=[null],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        ),
    )


def _nothing(names: Sequence[str]) -> pa.Table:
    return pa.table({name: pa.array([], pa.string()) for name in names})


def _blocks(file: IO[bytes], delimiter: bytes) -> Iterator[bytes]:
    """Blocks of whole lines, in which delimiters and ends of lines are never escaped."""
    rest = b""
    while block := file.read(_BLOCK_BYTES):
        data = _plain(rest + block, delimiter)
        end = data.rfind(b"\n") + 1
        rest = data[end:]
        if end:
            yield data[:end]
    if rest:
        yield rest


def _plain(data: bytes, delimiter: bytes) -> bytes:
    """The bytes with codes for escaped characters that would end a value or a line."""
    if b"\0" in data:
        raise error("CHARACTER_NOT_IN_REPERTOIRE", 'invalid byte sequence for encoding "UTF8": 0x00')
    for character in (delimiter, b"\n", b"\r"):
        if b"\\" + character in data:
            pattern = rb"(?<!\\)((?:\\\\)*)\\" + re.escape(character)
            data = re.sub(pattern, rb"\1\\x%02x" % ord(character), data)
    return data


def _texts(values: pa.ChunkedArray) -> pa.ChunkedArray:
    try:
        return values.cast(pa.string())
    except pa.ArrowInvalid as cause:
        raise _unreadable(cause) from cause


def _unescaped(values: pa.ChunkedArray, data: bytes) -> pa.ChunkedArray:
    """Values with escapes decoded. data: the block that contains them."""
    if not pc.any(pc.match_substring(values, "\\")).as_py():
        return values
    values = pc.replace_substring(values, b"\\\\", _HELD)
    for character, shown in ESCAPES[1:]:
        values = pc.replace_substring(values, shown.encode(), character.encode())
    codes = {m[0]: int(m[1], 16) if m[1] else int(m[2], 8) & 0xFF for m in _CODE.finditer(data)}
    for code in sorted(codes, key=len, reverse=True):  # `\101` before `\1`
        byte = bytes([codes[code]])
        values = pc.replace_substring(values, code, _HELD if byte == b"\\" else byte)
    return pc.replace_substring(pc.replace_substring(values, b"\\", b""), _HELD, b"\\")


def _check_names(given: Sequence[str], names: Sequence[str]) -> None:
    if list(given) != list(names):
        raise error(
            "BAD_COPY_FORMAT",
            "the names in the header are not those of the columns",
            detail=f"The columns are {', '.join(names)}, the header has {', '.join(given)}.",
        )


def _failure(data: bytes, names: Sequence[str], delimiter: str, first: int) -> Error | None:
    """The error of the first line with too few or too many values. first: the number of the first line."""
    for number, line in enumerate(data.splitlines(), first):
        values = line.count(delimiter.encode()) + 1
        if values != len(names):
            lacking = f'missing data for column "{names[min(values, len(names) - 1)]}"'
            wrong = lacking if values < len(names) else "extra data after last expected column"
            shown = line[:100].decode(errors="replace")
            return error("BAD_COPY_FORMAT", wrong, detail=f"Line {number}: {shown}")
    return None


def _unreadable(cause: pa.ArrowInvalid) -> Error:
    if "utf8" in str(cause).lower():
        return error("CHARACTER_NOT_IN_REPERTOIRE", 'invalid byte sequence for encoding "UTF8"')
    return error("BAD_COPY_FORMAT", "the rows can't be read", detail=f"{cause}.".replace("CSV ", ""))


_SIGNATURE: Final = b"PGCOPY\n\xff\r\n\0"
_HEADER_BYTES: Final = len(_SIGNATURE) + 8
_CRITICAL: Final = 0xFFFF_0000
_BINARY_END: Final = b"\xff\xff"

_FIXED: Final = {
    "boolean": ">u1", "smallint": ">i2", "integer": ">i4", "bigint": ">i8", "real": ">f4", "double precision": ">f8",
    "date": ">i4", "time": ">i8", "timestamp": ">i8", "timestamptz": ">i8",
}  # fmt: skip

_WIDE: Final = ("interval", "uuid")
_VARIABLE: Final = ("varchar", "bytea", "jsonb", "json", "numeric")
_INTERVAL: Final = np.dtype([("microseconds", ">i8"), ("days", ">i4"), ("months", ">i4")])
_MONTH_DAY_NANO: Final = np.dtype([("months", "<i4"), ("days", "<i4"), ("nanoseconds", "<i8")])

#: The two digits of each byte.
_UUID_TEXTS: Final = np.array([[b"%x" % (n >> 4), b"%x" % (n & 15)] for n in range(256)], "S1")

#: The digits of each group of four, as text.
_DIGITS: Final = np.array([b"%04d" % n for n in range(10_000)], "S4")

_GROUP: Final = 10_000

#: The maximum number of groups before the decimal point: 38 digits.
_MOST_GROUPS: Final = 10

_TEXT: Final = pa.large_string()
_SIGNS: Final = {0x0000: "", 0x4000: "-"}


def read_binary(data: bytes, columns: Schema) -> pa.Table:
    """The values by names of columns, in the columns' types, but decimal numbers as texts.

    Raises BAD_COPY_FORMAT for another format, INVALID_BINARY_VALUE for a value that does not fit the type of its
    column, FEATURE_NOT_SUPPORTED for columns of arrays and structs.
    """
    for column in columns:
        if column.type.name not in (*_FIXED, *_WIDE, *_VARIABLE):
            raise error(
                "FEATURE_NOT_SUPPORTED",
                f'COPY FROM STDIN in binary of column "{column.name}" of type {column.type.sql} is not supported',
                hint="Use text or CSV.",
            )
    body, parts, rows = _body(data), list[pa.Table](), 0
    size = _BLOCK_BYTES
    while len(body) and bytes(body[: len(_BINARY_END) + 1]) != _BINARY_END:
        whole = len(body) <= size
        block = np.frombuffer(body[:size], np.uint8)
        starts, lengths, end = _places(block, len(columns))
        if not len(starts):
            if whole:
                raise _binary_failure(body, len(columns), rows + 1)
            size *= 2
            continue
        arrays = [_column(block, starts[:, i], lengths[:, i], column) for i, column in enumerate(columns)]
        parts.append(pa.Table.from_arrays(arrays, names=[c.name for c in columns]))
        rows += len(starts)
        body = body[end:]
    return pa.concat_tables(parts) if parts else pa.table({c.name: _empty(c) for c in columns})


def _empty(column: Field) -> pa.Array:
    nothing = np.zeros(0, np.int64)
    return _column(np.zeros(0, np.uint8), nothing, nothing, column)


def _body(data: bytes) -> memoryview:
    """The rows, without the header."""
    if data[: len(_SIGNATURE)] != _SIGNATURE or len(data) < _HEADER_BYTES:
        raise error("BAD_COPY_FORMAT", "COPY file signature not recognized")
    flags, extension = (int(n) for n in np.frombuffer(data, ">u4", 2, len(_SIGNATURE)))
    if flags & _CRITICAL:
        raise error("BAD_COPY_FORMAT", "unrecognized critical flags in COPY file header")
    if _HEADER_BYTES + extension > len(data):
        raise error("BAD_COPY_FORMAT", "the header of the COPY file has no end")
    return memoryview(data)[_HEADER_BYTES + extension :]


def _places(body: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray, int]:
    """The start and length (-1 for NULL) of each value of the whole rows, as two arrays of rows by columns; and the end
    of the last of these rows.
    """
    high, low = divmod(count, 256)
    candidates = np.flatnonzero((body[:-1] == high) & (body[1:] == low)).astype(np.int64)
    none = np.zeros((0, count), np.int64)
    if not len(candidates) or candidates[0] != 0 or len(body) < 2 + 4 * count:
        return none, none, 0
    starts, lengths = np.empty((len(candidates), count), np.int64), np.empty((len(candidates), count), np.int64)
    place, valid = candidates + 2, np.ones(len(candidates), bool)
    for i in range(count):
        valid &= place + 4 <= len(body)
        lengths[:, i] = _big_endian(body, np.where(valid, place, 0), 4).copy().view(">i4")[:, 0]
        starts[:, i] = place + 4
        place = starts[:, i] + np.maximum(lengths[:, i], 0)
        valid &= (lengths[:, i] >= -1) & (place <= len(body))
        place = np.where(valid, place, 0)
    following = np.searchsorted(candidates, place)
    known = np.append(candidates, -1)[np.minimum(following, len(candidates))] == place
    chosen = _reached(np.where(valid & known, following, len(candidates)))
    chosen = chosen[valid[chosen]]  # the last one may end outside of the block
    return starts[chosen], lengths[chosen], int(place[chosen[-1]]) if len(chosen) else 0


def _reached(following: np.ndarray) -> np.ndarray:
    """All indexes on the path from 0, in order. following: for each index the next one; the array's length ends the
    path.
    """
    end = len(following)
    jump = np.append(following, end)
    reached = np.zeros(end + 1, bool)
    reached[0] = True
    for _ in range(max(1, end.bit_length())):
        reached[jump[reached.nonzero()[0]]] = True
        jump = jump[jump]
    return np.flatnonzero(reached[:end])


def _binary_failure(body: memoryview, count: int, row: int) -> Error:
    """The error for an offset at which a row should begin."""
    found = int(np.frombuffer(body[:2], ">i2")[0]) if len(body) >= 2 else None
    if found == -1:
        return error("BAD_COPY_FORMAT", "received copy data after EOF marker")
    if found is not None and found != count:
        return error("BAD_COPY_FORMAT", f"row field count is {found}, expected {count}", detail=f"That is row {row}.")
    return error("BAD_COPY_FORMAT", "unexpected EOF in COPY data", detail=f"Row {row} has no end.")


def _big_endian(body: np.ndarray, starts: np.ndarray, width: int) -> np.ndarray:
    """`width` bytes from each offset. There must be offsets."""
    windows = np.lib.stride_tricks.sliding_window_view(body, width)
    found: np.ndarray = windows[np.minimum(starts, len(body) - width)]
    return found


def _column(body: np.ndarray, starts: np.ndarray, lengths: np.ndarray, column: Field) -> pa.Array:
    kind = column.type
    missing = lengths < 0
    if kind.name in _FIXED or kind.name in _WIDE:
        width = 16 if kind.name in _WIDE else np.dtype(_FIXED[kind.name]).itemsize
        if bool((~missing & (lengths != width)).any()):
            raise _wrong(column, lengths[~missing & (lengths != width)][0])
        if len(body) < width:  # all values are NULL
            return pa.nulls(len(starts), kind.arrow)
        data = np.ascontiguousarray(_big_endian(body, np.where(missing, 0, starts), width))
        return _fixed_column(data, missing, kind)
    data, offsets = _gathered(body, starts, np.maximum(lengths, 0))
    if kind.name == "numeric":
        return _numbers(data, offsets, missing, column)
    if kind.name == "jsonb":
        return _documents(data, offsets, missing, column)
    found = _variable(pa.large_binary(), data, offsets, missing)
    if kind.name == "bytea":
        return found.cast(pa.binary())
    return _text(found)


def _text(values: pa.Array) -> pa.Array:
    """The texts of values. Raises CHARACTER_NOT_IN_REPERTOIRE."""
    try:
        return values.cast(pa.string())
    except pa.ArrowInvalid:
        raise error("CHARACTER_NOT_IN_REPERTOIRE", 'invalid byte sequence for encoding "UTF8"') from None


def _wrong(column: Field, length: int) -> Error:
    return error(
        "INVALID_BINARY_VALUE",
        f'incorrect binary data format in column "{column.name}"',
        detail=f"A value of type {column.type.sql} can't have {length} bytes.",
    )


def _fixed_column(data: np.ndarray, missing: np.ndarray, kind: SqlType) -> pa.Array:
    if kind.name == "interval":
        parts = data.view(_INTERVAL)[:, 0]
        found = np.empty(len(parts), _MONTH_DAY_NANO)
        found["months"], found["days"] = parts["months"], parts["days"]
        found["nanoseconds"] = parts["microseconds"].astype(np.int64) * 1000
        valid = None if not missing.any() else pa.array(~missing).buffers()[1]
        return pa.Array.from_buffers(pa.month_day_nano_interval(), len(found), [valid, pa.py_buffer(found)])
    if kind.name == "uuid":
        digits = _UUID_TEXTS[data].reshape(len(data), 32)
        texts = np.full((len(data), 36), b"-", "S1")
        texts[:, UUID_DIGITS] = digits
        return pa.array(texts.view("S36")[:, 0].astype("U36"), pa.string(), mask=missing)
    values = data.view(_FIXED[kind.name])[:, 0]
    native = values.astype(values.dtype.newbyteorder("="))
    if kind.name == "boolean":
        return pa.array(native != 0, mask=missing)
    if kind.name == "date":
        return pa.array(_moved(native, EPOCH_DAYS), pa.int32(), mask=missing).view(pa.date32())
    if kind.name == "time":
        return pa.array(native, pa.int64(), mask=missing).view(pa.time64("us"))
    if kind.name in ("timestamp", "timestamptz"):
        return pa.array(_moved(native, EPOCH_US), pa.int64(), mask=missing).view(kind.arrow)
    return pa.array(native, kind.arrow, mask=missing)


def _moved(moments: np.ndarray, epoch: int) -> np.ndarray:
    """Moments as numbers since 1970; the least and the greatest number are the infinities."""
    limits = np.iinfo(moments.dtype)
    least, greatest = limits.min, limits.max
    with np.errstate(over="ignore"):
        moved = moments + np.array(epoch, moments.dtype)
    return np.where(moments == greatest, greatest, np.where(moments == least, -greatest, moved))


def _gathered(body: np.ndarray, starts: np.ndarray, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The concatenated bytes of values, and their offsets with the end."""
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    places = np.repeat(starts - offsets[:-1], lengths) + np.arange(offsets[-1])
    return body[places], offsets


def _variable(kind: pa.DataType, data: np.ndarray, offsets: np.ndarray, missing: np.ndarray) -> pa.Array:
    valid = pa.array(~missing).buffers()[1] if missing.any() else None
    return pa.Array.from_buffers(kind, len(missing), [valid, pa.py_buffer(offsets), pa.py_buffer(data)])


def _documents(data: np.ndarray, offsets: np.ndarray, missing: np.ndarray, column: Field) -> pa.Array:
    """The texts of jsonb values, without the version number, which is 1."""
    there = ~missing
    if bool((np.diff(offsets)[there] < 1).any()):
        raise _wrong(column, 0)
    first = offsets[:-1][there]
    if bool((data[first] != 1).any()):
        raise error("INVALID_BINARY_VALUE", f"unsupported jsonb version number {data[first][data[first] != 1][0]}")
    kept = np.ones(len(data), bool)
    kept[first] = False
    cut = np.concatenate([[0], np.cumsum(np.diff(offsets) - there)]).astype(np.int64)
    return _text(_variable(pa.large_binary(), data[kept], cut, missing))


def _numbers(data: np.ndarray, offsets: np.ndarray, missing: np.ndarray, column: Field) -> pa.Array:
    """The texts of numbers, from groups of four digits; the weight is the number of groups before the decimal point,
    minus one.
    """
    there = ~missing
    sizes = np.diff(offsets)
    if bool((sizes[there] < 8).any()) or not len(data):
        if not there.any():
            return pa.nulls(len(missing), pa.string())
        raise _wrong(column, int(sizes[there].min()))
    head = _big_endian(data, np.where(there, offsets[:-1], 0), 8).copy().view(">u2").astype(np.int64)
    counts, weights, signs = head[:, 0], head[:, 1], head[:, 2]
    counts = np.where(there, counts, 0)
    weights = weights - (weights >= 1 << 15) * (1 << 16)
    if bool((sizes[there] != 8 + 2 * counts[there]).any()):
        raise _wrong(column, int(sizes[there][sizes[there] != 8 + 2 * counts[there]][0]))
    if not set(np.unique(signs[there]).tolist()) <= set(_SIGNS):
        raise error(
            "INVALID_VALUE", f'column "{column.name}" accepts neither NaN nor infinity', detail="numeric is finite."
        )
    groups, group_offsets = _gathered(data, offsets[:-1] + 8, 2 * counts)
    values = groups.view(">u2").astype(np.int64)
    if bool((values >= _GROUP).any()):
        raise error("INVALID_BINARY_VALUE", f'invalid digit in external "numeric" value of column "{column.name}"')
    weights = np.where(counts > 0, weights, -1)
    if bool((weights >= _MOST_GROUPS).any()):
        raise error("INVALID_VALUE", f'numeric field overflow in column "{column.name}"')
    counts, weights = np.where(weights < -_MOST_GROUPS, 0, counts), np.maximum(weights, -_MOST_GROUPS)
    # Groups of the integer part and the fraction; zeros fill missing groups.
    whole = np.minimum(counts, weights + 1).clip(0)
    digits, begin = _DIGITS[values].view(np.uint8), group_offsets[:-1] * 2
    parts = [
        pa.array(np.where(signs == 0x4000, "-0", "0")).cast(_TEXT),
        _variable(_TEXT, *_gathered(digits, begin, 4 * whole), missing),
        pc.binary_repeat(pa.scalar("0000", _TEXT), pa.array((weights + 1 - counts).clip(0))),
        pa.scalar(".", _TEXT),
        pc.binary_repeat(pa.scalar("0000", _TEXT), pa.array((-1 - weights).clip(0))),
        _variable(_TEXT, *_gathered(digits, begin + 4 * whole, 4 * (counts - whole)), missing),
        pa.scalar("0", _TEXT),
    ]
    return pc.binary_join_element_wise(*parts, pa.scalar("", _TEXT)).cast(pa.string())

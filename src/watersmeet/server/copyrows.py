r"""Rows of COPY … FROM STDIN in text and CSV to columns of texts, by Arrow's kernels: no row is an object of Python.

PostgreSQL, "COPY", "Text Format", "CSV Format". In text, a backslash and what follows it stand for one character.
A line `\.` ends the rows: psql sends it behind rows that stand in a script.
"""

from __future__ import annotations

import csv as rows_of_csv
import io
import re
from collections.abc import Iterator, Sequence
from typing import BinaryIO, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from watersmeet.errors import Error, error

#: Characters and what stands for them in text format; the backslash itself is first there and back.
ESCAPES: Final = (
    ("\\", "\\\\"),
    ("\n", "\\n"),
    ("\r", "\\r"),
    ("\t", "\\t"),
    ("\b", "\\b"),
    ("\f", "\\f"),
    ("\v", "\\v"),
)
#: Stands for a backslash while other escapes are read: texts can't have it.
_HELD: Final = b"\0"
_BLOCK_BYTES: Final = 1 << 24
_CODE: Final = re.compile(rb"\\(?:x([0-9a-fA-F]{1,2})|([0-7]{1,3}))")
_END: Final = re.compile(rb"(?:\A|(?<=\n))\\\.\r?(?:\n|\Z)")
_END_OF_CSV: Final = re.compile(rb"(?:\A|(?<=\n))\\\.\r?\n?\Z")


def read_text(
    file: BinaryIO, names: Sequence[str], delimiter: str, null: str, *, header: bool, matches: bool
) -> pa.Table:
    """The texts of rows in text format, by names of columns. header: the first line has names. matches: those of the
    columns. BAD_COPY_FORMAT, CHARACTER_NOT_IN_REPERTOIRE.
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
    file: BinaryIO, names: Sequence[str], delimiter: str, null: str, quote: str, *, header: bool, matches: bool
) -> pa.Table:
    """The texts of rows in CSV, by names of columns. header, matches: as of `read_text`. BAD_COPY_FORMAT."""
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
    file: BinaryIO,
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


def _blocks(file: BinaryIO, delimiter: bytes) -> Iterator[bytes]:
    """Whole lines, many at a time. No delimiter and no end of a line stands behind a backslash in them."""
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
    """The bytes with codes in the place of characters behind a backslash that would end a value or a line."""
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
    """Values with the characters that escapes stand for. data: in which they stand."""
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
    """What is wrong with the first line that has too few values, or too many. first: the number of the first line."""
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

"""Reads slices of files, and parses CSV and JSON lines from memory."""

from __future__ import annotations

import errno
import gzip
import os
import time
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import BinaryIO, Final

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from watersmeet.connectors.base.deadletters import MAX_TEXT
from watersmeet.connectors.base.sources import DeadLetterSink, SourceRows, Unavailable
from watersmeet.connectors.files.cutting import SLICE_BYTES, header_names, text_rows
from watersmeet.connectors.files.listing import FileStat, Listing, check_read, key_of, open_file, open_listed
from watersmeet.connectors.files.options import WHOLE, FileOptions, FileSpec
from watersmeet.connectors.files.parquet import ParquetReader, RowGroups
from watersmeet.connectors.files.rows import (
    DamagedError,
    FilePlace,
    Problems,
    Rows,
    concat,
    gather,
    match_names,
    not_null_names,
    nothing,
    read_document,
)
from watersmeet.connectors.files.seen import identity_key, print_at
from watersmeet.errors import Error, error
from watersmeet.formats.convert import convert, json_objects
from watersmeet.formats.csvtext import RowIndex, csv_table
from watersmeet.formats.jsonpayloads import JsonPathReader, flat, message_rules
from watersmeet.formats.payloads import moved
from watersmeet.formats.valuetexts import Converted
from watersmeet.objectstores.base import ObjectReplacedError, StoreProblem
from watersmeet.values.slices import Aside, AsideSlice, FileSlice, RenamingSlice
from watersmeet.values.types import Field

_ARRAY: Final = "json: an array; a file of JSON has one object in each line, without an array around them"
_JSON_SPACE: Final = b" \t\r\n"
LETTER_BYTES: Final = 4 * MAX_TEXT

"""The maximum bytes of a record that are read for its dead letter."""


@dataclass(frozen=True)
class TextReader:
    """The conversion of the text of a source's files to rows.

    fields: all declared columns. All of them are converted, so that the rejected rows don't depend on `requested`.
    header: the file's own column names, or None. place: the location of the file.
    """

    options: FileOptions
    fields: Sequence[Field]
    key: Sequence[str]
    requested: Sequence[Field]
    header: Sequence[str] | None
    place: FilePlace
    dead_letters: DeadLetterSink

    def schema_problem(self) -> str | None:
        """The problem of the whole file, or None."""
        return self._places[1]

    def read(self, data: bytes, first_line: int, first_ordinal: int = 0, first_byte: int = 0) -> tuple[SourceRows, int]:
        """The valid rows of `data`, which consists of whole rows, and the number of all its rows.

        first_byte: the offset of `data` in the file.

        Any problem of a record, even an unexpected error, rejects only this record.
        """
        text = _Text(data, first_line, self.options, first_byte)
        problems = Problems()
        try:
            found = self._decode(text, problems, first_ordinal)
        except (OSError, Error, duckdb.InterruptException):
            raise  # an error of the machine, the options or the user, not of a record
        except Exception as cause:
            if len(text.index) > 1:
                return self._halves(text, first_ordinal), text.count
            problems = Problems({0: f"unexpected: {type(cause).__name__}: {str(cause)[:MAX_TEXT]}"})
            found = gather(self.requested, {}, None, np.zeros(0, np.int64), self._missing)
        if problems.reasons:
            problems.write(self.dead_letters, self.place.name, text.line, text.text)
        return found, text.count

    def _decode(self, text: _Text, problems: Problems, first_ordinal: int) -> SourceRows:
        rows, columns = self._csv(text, problems) if self.options.format == "csv" else self._json(text, problems)
        fields = self._present
        if self.options.null_for_bad:
            columns = [Converted(c.column) for c in columns]
        wrong = problems.add_columns(fields, columns, not_null_names(self.fields, self.key), rows)
        done = {f.name: c.column for f, c in zip(fields, columns, strict=True)}
        done |= self.place.columns(
            self.requested, lambda: text.line_numbers(rows), lambda: text.offsets(rows), len(rows)
        )
        keep = ~wrong if wrong.any() else None
        ordinals = rows
        if self.options.reader:  # a line may contain several rows
            ordinals = np.arange(len(rows), dtype=np.int64)
            text.count = max(text.count, len(rows))
        return gather(self.requested, done, keep, ordinals + first_ordinal, self._missing)

    def _halves(self, text: _Text, first_ordinal: int) -> SourceRows:
        """Reads the rows in two halves."""
        middle = len(text.index) // 2
        parts = [
            self.read(part.data, part.line(0), first_ordinal + first, part.first_byte)[0]
            for first, part in ((0, text.part(0, middle)), (middle, text.part(middle, len(text.index))))
        ]
        return concat(parts, self.requested)

    def set_aside_long(self, beginning: bytes, size: int, line: int) -> None:
        """Rejects a record that is too long to be read."""
        self.dead_letters.add(self.place.name, line, _too_long(size, self.options), _readable(beginning))

    @cached_property
    def _places(self) -> tuple[dict[str, int], str | None]:
        if self.options.format == "json" or self.header is None:
            return {f.name: i for i, f in enumerate(self.fields)}, None
        return match_names(self.fields, self.header, not_null_names(self.fields, self.key))

    @property
    def _missing(self) -> list[str]:
        return [f.name for f in self.fields if f not in self._present] if self.header is not None else []

    @cached_property
    def _present(self) -> list[Field]:
        """The declared columns that the file has."""
        return [f for f in self.fields if f.name in self._places[0]]

    def _csv(self, text: _Text, problems: Problems) -> tuple[Rows, list[Converted]]:
        """The numbers of the rows with the right number of values, and their columns."""
        places = self._places[0]
        width = len(self.header) if self.header is not None else len(self.fields)
        data, rows = text.well_formed(problems)
        table, wrong = csv_table(
            data,
            width,
            [places[f.name] for f in self._present],
            delimiter=self.options.delimiter,
            quote=self.options.quote,
            null=self.options.null,
            newlines=b"\n" in text.quoted,
        )
        if rows is None and (wrong or text.has_blank or text.quoted):
            rows = np.arange(len(text.index), dtype=np.int64)
        if rows is None:
            rows = np.arange(table.num_rows, dtype=np.int64)
            text.count = table.num_rows
        for number, actual in wrong:
            problems.add(rows[number], f"fields: {actual} instead of {width}")
        rows = np.delete(rows, [number for number, _ in wrong])
        assert len(rows) == table.num_rows, "the CSV parser and the scanner disagree about rows"
        if text.has_blank and width > 1:
            filled = ~text.blank[rows]
            table, rows = table.filter(pa.array(filled)), rows[filled]
        columns = [flat(c) for c in table.columns]
        return rows, convert(columns, [f.type for f in self._present])

    def _json(self, text: _Text, problems: Problems) -> tuple[Rows, list[Converted]]:
        lines = text.lines(problems)
        if self.options.reader:
            return self._by_paths(text, lines, problems)
        names, types = [f.name for f in self.fields], [f.type for f in self.fields]
        columns, wrong = json_objects(lines, names, types)
        for row in np.nonzero(wrong)[0].tolist():
            if text.bytes_of(row).strip(_JSON_SPACE):
                is_array = text.bytes_of(row).lstrip(_JSON_SPACE).startswith(b"[")
                problems.add(row, _ARRAY if is_array else "json: not a JSON object")
        return np.nonzero(~wrong)[0], columns

    def _by_paths(self, text: _Text, lines: pa.StringArray, problems: Problems) -> tuple[Rows, list[Converted]]:
        """Like `_json` for rows and columns at paths, so that a line may contain several rows."""
        there = np.flatnonzero([bool(text.bytes_of(row).strip(_JSON_SPACE)) for row in range(len(lines))])
        there = there[lines.is_valid().to_numpy(zero_copy_only=False)[there]]
        reader = JsonPathReader(self.fields, message_rules({}), dict(self.options.reader))
        found = moved(reader.read(lines.take(pa.array(there)).cast(pa.binary())), there)
        for row, reason in found.reasons.items():
            problems.add(row, reason)
        return found.places, list(found.columns)


class _Text:
    """A piece of a text file that consists of whole rows. Their bounds are computed on demand."""

    def __init__(self, data: bytes, first_line: int, options: FileOptions, first_byte: int) -> None:
        self.data = data
        self.first_byte = first_byte
        self._first_line = first_line
        self._options = options
        self._count: int | None = None
        quote = options.quote.encode() if options.format == "csv" else b""
        self.quoted = data if quote and quote in data else b""

    @cached_property
    def index(self) -> RowIndex:
        """The bounds of the rows."""
        return text_rows(self.data, self._options, final=True)

    @property
    def count(self) -> int:
        """The number of rows."""
        return len(self.index) if self._count is None else self._count

    @count.setter
    def count(self, value: int) -> None:
        self._count = value

    @cached_property
    def has_blank(self) -> bool:
        """True if there may be empty lines between rows."""
        return self.data.startswith((b"\n", b"\r")) or b"\n\n" in self.data or b"\n\r" in self.data

    @cached_property
    def blank(self) -> npt.NDArray[np.bool_]:
        """The rows that are empty lines."""
        sizes = self.index.ends - self.index.starts
        result = np.zeros(len(sizes), np.bool_)
        for row in np.nonzero(sizes <= 2)[0]:
            result[row] = not self.bytes_of(int(row)).strip(b"\r\n")
        return result

    @cached_property
    def _newlines(self) -> npt.NDArray[np.int64]:
        return np.nonzero(np.frombuffer(self.data, np.uint8) == 10)[0]

    def part(self, first: int, end: int) -> _Text:
        """The rows from `first` to before `end` as a separate text."""
        data = self.data[self.index.starts[first] : self.index.ends[end - 1]]
        return _Text(data, self.line(first), self._options, self.first_byte + int(self.index.starts[first]))

    def bytes_of(self, row: int) -> bytes:
        """The bytes of a row in the file."""
        return self.data[self.index.starts[row] : self.index.ends[row]]

    def text(self, row: int) -> str:
        """The printable text of a row."""
        begin, end = int(self.index.starts[row]), int(self.index.ends[row])
        return _readable(self.data[begin : min(end, begin + LETTER_BYTES)])

    def line(self, row: int) -> int:
        """The number of the row's first line in the file."""
        return int(self.line_numbers(np.array([row]))[0])

    def line_numbers(self, rows: Rows) -> Rows:
        """The result of `line` for several rows."""
        return self._first_line + np.searchsorted(self._newlines, self.index.starts[rows])

    def offsets(self, rows: Rows) -> Rows:
        """The offsets of rows in the file."""
        return self.first_byte + self.index.starts[rows]

    def well_formed(self, problems: Problems) -> tuple[bytes, Rows | None]:
        """The rows that are well-formed UTF-8 CSV, and their numbers, or None if all rows are."""
        is_text = _is_utf8(self.data)
        self._note_long(problems)
        odd = (
            bool(problems.reasons)
            or self.quoted
            or (b"\r" in self.data and self.data.count(b"\r") != self.data.count(b"\r\n"))
        )
        if is_text and not (odd and len(self.index.bad)):
            return self.data, None
        quote = self._options.quote.encode()
        for row in self.index.bad.tolist():
            problems.add(
                row,
                "quotes: not closed, or followed by other text"
                if quote and quote in self.bytes_of(row)
                else "line end: a carriage return inside a line",
            )
        if not is_text:
            self._note_encoding(problems)
        good = [row for row in range(len(self.index)) if row not in problems.reasons]
        return b"".join(self.bytes_of(row) for row in good), np.asarray(good, dtype=np.int64)

    def lines(self, problems: Problems) -> pa.Array:
        """The lines as strings (with their line ends); NULL for lines that are not valid text."""
        offsets = np.concatenate([np.zeros(1, np.int32), self.index.ends.astype(np.int32)])
        validity = None
        self._note_long(problems)
        if not _is_utf8(self.data):
            self._note_encoding(problems)
        if problems.reasons:
            valid = np.ones(len(self.index), np.bool_)
            valid[list(problems.reasons)] = False
            validity = pa.py_buffer(np.packbits(valid, bitorder="little").tobytes())
        array = pa.StringArray.from_buffers(len(self.index), pa.py_buffer(offsets), pa.py_buffer(self.data), validity)
        return array if validity is None else array.take(pa.array(np.arange(len(array))))

    def _note_long(self, problems: Problems) -> None:
        if len(self.data) > self._options.max_record_bytes:
            sizes = self.index.ends - self.index.starts
            for row in np.nonzero(sizes > self._options.max_record_bytes)[0]:
                problems.add(int(row), _too_long(int(sizes[row]), self._options))

    def _note_encoding(self, problems: Problems) -> None:
        for row in range(len(self.index)):
            try:
                self.bytes_of(row).decode()
            except UnicodeDecodeError:
                problems.add(row, "encoding: not UTF-8")


def _too_long(size: int, options: FileOptions) -> str:
    return f"length: {size} bytes, more than max_record_bytes = {options.max_record_bytes}"


def _readable(record: bytes) -> str:
    return record.decode("utf-8", errors="replace").rstrip("\r\n")


def _is_utf8(data: bytes) -> bool:
    whole = pa.StringArray.from_buffers(1, pa.py_buffer(np.array([0, len(data)], np.int32)), pa.py_buffer(data))
    try:
        whole.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


_ASIDE: Final[dict[Aside, str]] = {
    "vanished": "vanished: the file was gone before it was read",
    "damaged": "damaged: the file is not complete, or not of its format",
    "replaced": "replaced: another file has this name now",
}

_UNREADABLE: Final = (errno.EACCES, errno.EPERM, errno.ELOOP, errno.EINVAL, errno.EISDIR, errno.ENXIO)

"""Error numbers of an entry that is no longer a file or is inaccessible."""


def read_file_slice(
    piece: FileSlice | AsideSlice | RenamingSlice,
    spec: FileSpec,
    columns: Sequence[Field],
    dead_letters: DeadLetterSink,
) -> SourceRows:
    """The rows of a slice of a file (`registry.read_slice`)."""
    if isinstance(piece, RenamingSlice):
        return nothing(columns)
    if isinstance(piece, AsideSlice):
        dead_letters.add(piece.path, None, _ASIDE[piece.reason], f"{piece.lost_bytes} bytes", 1)
        return nothing(columns)
    try:
        if spec.options.store is not None:
            return _read_object(piece, spec, columns, dead_letters)
        with _open_planned(spec.options, piece) as file:
            return _read(file, piece, spec, columns, dead_letters)
    except DamagedError as problem:
        reason = f"{_ASIDE['damaged']}: {problem}"
    except _LostError as problem:
        reason = str(problem)
    dead_letters.add(piece.path, None, reason, f"from {piece.begin} to {piece.end}", max(1, piece.rows))
    return nothing(columns)


def _read_object(
    piece: FileSlice, spec: FileSpec, columns: Sequence[Field], dead_letters: DeadLetterSink
) -> SourceRows:
    """The rows of a slice of an object. Raises _LostError, DamagedError, and Unavailable if the store is temporarily
    unavailable.
    """
    size_bytes, etag = piece.head
    stat = FileStat(piece.version.mtime_ns, size_bytes, piece.version.inode, etag=etag)
    file = open_listed(spec.options, piece.path, stat)
    try:
        try:
            rows = _read(file, piece, spec, columns, dead_letters)
        finally:
            check_read(file)
    except FileNotFoundError:
        raise _LostError(_ASIDE["vanished"]) from None
    except ObjectReplacedError:
        raise _LostError(_ASIDE["replaced"]) from None
    except StoreProblem as problem:
        raise Unavailable(str(problem)) from problem
    return rows


class _LostError(Exception):
    """The file of a slice no longer exists. The message contains the reason."""


def _open_planned(options: FileOptions, piece: FileSlice) -> BinaryIO:
    """Opens the file of a slice, even if it was renamed in the meantime. Raises _LostError.

    Failures that don't prove that the file is lost, such as an unavailable network, are raised as OSError: the slice
    may be read later.
    """
    reason = _ASIDE["vanished"]
    for name in _names(options, piece):
        try:
            file = open_file(options.root, name)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as problem:
            if problem.errno not in _UNREADABLE:
                raise
            reason = f"unreadable: {problem.strerror}"
            continue
        if _is_as_planned(file, piece):
            return file
        file.close()
        if name == piece.path:
            reason = _ASIDE["replaced"]
    if not os.path.isdir(options.root):
        raise error(
            "RUNTIME_UNAVAILABLE",
            f'the directory "{options.root}" of a source can\'t be reached',
            hint="Every worker must see the directory under this path.",
        )
    raise _LostError(reason)


def _names(options: FileOptions, piece: FileSlice) -> Iterator[str]:
    """The name of the slice's file, then the names that it may have now."""
    yield piece.path
    size, mtime_ns, inode = piece.version
    meant = identity_key(options.path_identity, inode, size, mtime_ns)
    if meant is not None:
        for name, stat in _listed(options, int(time.monotonic())).items():
            if name != piece.path and key_of(options, stat) == meant:
                yield name


@lru_cache(maxsize=1)
def _listed(options: FileOptions, second: int) -> dict[str, FileStat]:  # noqa: ARG001
    """The existing files, cached for a second, because many files may be deleted at the same time."""
    listing = Listing(options)
    listing.look(0, set(), full=True)
    return listing.files


def _read(
    file: BinaryIO, piece: FileSlice, spec: FileSpec, columns: Sequence[Field], dead_letters: DeadLetterSink
) -> SourceRows:
    name = piece.path
    root = spec.options.root if spec.options.store is not None else ""
    place = FilePlace(spec.parts, name, piece.version.mtime_ns, root)
    if spec.options.format == "parquet":
        file.seek(0)
        groups = RowGroups(piece.version.size_bytes, piece.begin, piece.end, piece.rows, piece.line)
        return ParquetReader(spec.columns, spec.key, columns, name, dead_letters, place).read(file, groups)
    if spec.options.format in WHOLE:
        file.seek(0)
        return read_document(file, place, spec, columns, dead_letters)
    if name.endswith(".gz"):
        return _read_gzip(file, place, spec, columns, dead_letters)
    reader = TextReader(spec.options, spec.columns, spec.key, columns, piece.header, place, dead_letters)
    problem = reader.schema_problem()
    if problem is not None:
        dead_letters.add(name, None, problem, ",".join(piece.header or ()), max(1, piece.rows))
        return nothing(columns)
    length = piece.end - piece.begin
    file.seek(piece.begin)
    if piece.long:
        reader.set_aside_long(file.read(min(LETTER_BYTES, length)), length, piece.line)
        return nothing(columns)
    return reader.read(file.read(length), piece.line, first_byte=piece.begin)[0]


def _read_gzip(
    file: BinaryIO, place: FilePlace, spec: FileSpec, columns: Sequence[Field], dead_letters: DeadLetterSink
) -> SourceRows:
    """The rows of a whole gzip file, read in pieces. A truncated file is rejected as a whole, so all of it is read
    first.
    """
    options = spec.options
    file.seek(0)
    try:
        with gzip.GzipFile(fileobj=file, mode="rb") as unpacked:
            while unpacked.read(SLICE_BYTES):
                pass
    except (gzip.BadGzipFile, EOFError, zlib.error) as failure:
        raise DamagedError(str(failure)) from failure
    file.seek(0)
    parts: list[SourceRows] = []
    line, ordinal, position, rest = 1, 0, 0, b""
    reader: TextReader | None = None
    with gzip.GzipFile(fileobj=file, mode="rb") as unpacked:
        if unpacked.peek(3).startswith(b"\xef\xbb\xbf"):
            position = len(unpacked.read(3))
        while True:
            block = unpacked.read(SLICE_BYTES)
            data = rest + block
            size = text_rows(data, options, final=not block).complete if data else 0
            too_long = not size and len(data) > options.max_record_bytes
            if not size and block and not too_long:
                rest = data
                continue
            whole, rest = data[:size], data[size:]
            if reader is None:
                header = None
                if options.format == "csv" and options.header and data:
                    first = len(data) if too_long else int(text_rows(whole, options, final=True).ends[0])
                    header = header_names(data[:first], options)
                    line += whole.count(b"\n", 0, first)
                    whole, position = whole[first:], position + first
                reader = TextReader(options, spec.columns, spec.key, columns, header, place, dead_letters)
                problem = reader.schema_problem()
                if problem is not None:
                    dead_letters.add(place.name, None, problem, ",".join(header or ()), 1)
                    return nothing(columns)
            if too_long:
                rest, length = _skip_line(unpacked, len(data))
                reader.set_aside_long(data[:LETTER_BYTES], length, line)
                line, ordinal, position = line + 1, ordinal + 1, position + length
            else:
                part, count = reader.read(whole, line, ordinal, position)
                parts.append(part)
                line, ordinal, position = line + whole.count(b"\n"), ordinal + count, position + len(whole)
            if not block:
                return concat(parts, columns)


def _skip_line(unpacked: gzip.GzipFile, length: int) -> tuple[bytes, int]:
    """The bytes after the end of a line, of which `length` bytes are known, and the length of the line."""
    while block := unpacked.read(SLICE_BYTES):
        end = block.find(b"\n") + 1
        if end:
            return block[end:], length + end
        length += len(block)
    return b"", length


def _is_as_planned(file: BinaryIO, piece: FileSlice) -> bool:
    """True if the file has the fingerprints of the slice."""
    size = os.fstat(file.fileno()).st_size
    whole = piece.total is not None
    end = piece.version.size_bytes if whole else piece.end
    if size < end or (whole and size != end):
        return False
    return print_at(file, end, tail=False) == piece.head and print_at(file, end, tail=True) == piece.tail

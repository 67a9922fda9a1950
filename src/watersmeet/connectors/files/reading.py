"""Reading slices of files."""

from __future__ import annotations

import errno
import gzip
import os
import time
import zlib
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import BinaryIO, Final

from watersmeet.connectors.base.rows import DamagedError, FilePlace, concat, nothing
from watersmeet.connectors.base.sources import DeadLetterSink, SourceRows, Unavailable
from watersmeet.connectors.files.cutting import SLICE_BYTES, check_read, header_names, open_file, open_listed, text_rows
from watersmeet.connectors.files.documents import read_document
from watersmeet.connectors.files.identity import key_of
from watersmeet.connectors.files.listing import FileStat, Listing
from watersmeet.connectors.files.options import WHOLE, FileOptions, FileSpec
from watersmeet.connectors.files.parquet import ParquetReader, RowGroups
from watersmeet.connectors.files.seen import identity_key, print_at
from watersmeet.connectors.files.texts import LETTER_BYTES, TextReader
from watersmeet.errors import error
from watersmeet.objectstores.base import ObjectReplacedError, StoreProblem
from watersmeet.values.slices import Aside, AsideSlice, FileSlice, RenamingSlice
from watersmeet.values.types import Field

_ASIDE: Final[dict[Aside, str]] = {
    "vanished": "vanished: the file was gone before it was read",
    "damaged": "damaged: the file is not complete, or not of its format",
    "replaced": "replaced: another file has this name now",
}


_UNREADABLE: Final = (errno.EACCES, errno.EPERM, errno.ELOOP, errno.EINVAL, errno.EISDIR, errno.ENXIO)
"""What is there now is no file, or not for us."""


def read_file_slice(
    piece: FileSlice | AsideSlice | RenamingSlice,
    spec: FileSpec,
    columns: Sequence[Field],
    dead_letters: DeadLetterSink,
) -> SourceRows:
    """The rows of a slice of a file (`reading.read_slice`)."""
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
    """The rows of a slice of an object. _LostError, DamagedError; Unavailable if the store does not give it for now."""
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
    """What a slice names is not there any more. The message says why."""


def _open_planned(options: FileOptions, piece: FileSlice) -> BinaryIO:
    """The file that was meant, also if it got a new name in the meantime. Raises _LostError.

    Other failures than those that say what is there now (a network that is away) are raised as OSError: the slice
    may well be read later.
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
    """The name of the slice's file, then those that it may have by now."""
    yield piece.path
    size, mtime_ns, inode = piece.version
    meant = identity_key(options.path_identity, inode, size, mtime_ns)
    if meant is not None:
        for name, stat in _listed(options, int(time.monotonic())).items():
            if name != piece.path and key_of(options, stat) == meant:
                yield name


@lru_cache(maxsize=1)
def _listed(options: FileOptions, second: int) -> dict[str, FileStat]:  # noqa: ARG001
    """The files that are there. Kept for a second: many files may have gone at once."""
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
    """A whole gzip file, in pieces. A file that breaks off is set aside as a whole: all of it is read first."""
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
    """(what was read behind the end of a line of which `length` bytes are known, how long it is)."""
    while block := unpacked.read(SLICE_BYTES):
        end = block.find(b"\n") + 1
        if end:
            return block[end:], length + end
        length += len(block)
    return b"", length


def _is_as_planned(file: BinaryIO, piece: FileSlice) -> bool:
    """True if the file's fingerprints are those of the slice."""
    size = os.fstat(file.fileno()).st_size
    whole = piece.total is not None
    end = piece.version.size_bytes if whole else piece.end
    if size < end or (whole and size != end):
        return False
    return print_at(file, end, tail=False) == piece.head and print_at(file, end, tail=True) == piece.tail

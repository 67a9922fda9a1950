"""Cutting one file into slices."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import BinaryIO, Final

import numpy as np

from watersmeet.connectors.files.listing import FileStat
from watersmeet.connectors.files.options import WHOLE, FileOptions
from watersmeet.connectors.files.parquet import read_footer
from watersmeet.connectors.files.rows import DamagedError, document_rows
from watersmeet.connectors.files.seen import FileState, print_at
from watersmeet.formats.csvtext import Dialect, RowIndex, scan_lines, scan_rows
from watersmeet.values.slices import Aside, AsideSlice, FileSlice, FileVersion, RenamingSlice

SLICE_BYTES: Final = 8 << 20
"""The maximum bytes of text in a slice, unless a row is longer, so that several workers can share a file."""
GROUP_BYTES: Final = 32 << 20
"""The maximum (uncompressed) bytes of row groups in a slice, unless a single row group is larger."""
GZIP_ROW_BYTES: Final = 8
"""The minimum bytes of a row in a gzip file, for estimates."""
_BACK_BYTES: Final = 1 << 20
_BOM: Final = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class Cut:
    """The next slice of a file (without its ordinal), or the reason why none is available.

    piece: None if the file has nothing complete to read. waits: whether incomplete content exists. needs_line_end:
    whether this is a line that is read without its line end only if the line end stays missing.
    """

    piece: FileSlice | AsideSlice | None
    waits: bool = False
    needs_line_end: bool = False


@dataclass(frozen=True, slots=True)
class ListedFile:
    """A file at the time of a listing. relation: the id of the source's relation."""

    relation: str
    name: str
    stat: FileStat

    @property
    def version(self) -> FileVersion:
        """The identity of the file in slices."""
        return FileVersion(self.stat.size, self.stat.mtime_ns, self.stat.inode)


def text_rows(data: bytes, options: FileOptions, *, final: bool) -> RowIndex:
    """The bounds of rows in a piece of a text file that begins with a row (`csvscan.scan_rows`)."""
    if options.format == "csv":
        return scan_rows(data, Dialect(options.delimiter, options.quote, options.max_record_bytes), final=final)
    return scan_lines(data, final=final)


def next_cut(
    file: BinaryIO,
    listed: ListedFile,
    state: FileState,
    options: FileOptions,
    *,
    budget_rows: int,
    budget_bytes: int,
    settled: bool,
    grows: bool = False,
    given_up: bool = True,
) -> Cut:
    """The slice that follows `state`. Raises OSError.

    settled: whether the file has not changed for a while, so that its content counts as complete. A slice exceeds the
    budget only if a single row, row group or gzip file does. grows, given_up: see `text_cut`.
    """
    if options.format in WHOLE:
        return _document_cut(file, listed, options, settled=settled)
    if listed.name.endswith(".gz") and options.format != "parquet":
        return _gzip_cut(file, listed, settled=settled)
    if options.format == "parquet":
        return _parquet_cut(file, listed, state, budget_rows, budget_bytes, settled=settled)
    return text_cut(
        file,
        listed,
        state,
        options,
        budget_rows,
        budget_bytes,
        end=listed.stat.size,
        settled=settled,
        grows=grows,
        given_up=given_up,
    )


def text_cut(
    file: BinaryIO,
    listed: ListedFile,
    state: FileState,
    options: FileOptions,
    budget_rows: int,
    budget_bytes: int,
    *,
    end: int,
    settled: bool,
    grows: bool = False,
    given_up: bool = True,
) -> Cut:
    """The next slice of a text file up to byte `end`.

    grows: whether rows were appended to the file after others had been read. given_up: whether to read a line without
    its line end regardless of its content.
    """
    begin, line, header = state.consumed, state.lines + 1, state.header
    if not state.is_read:
        try:
            found = _beginning(file, options, end, settled=settled)
        except DamagedError:
            return Cut(aside_piece(listed, "damaged", end))
        if found is None:
            return Cut(None, waits=True)
        begin, line, header = found
    elif state.unterminated:
        file.seek(begin)
        following = file.read(2)
        # The line end of a line that was read without it has been appended.
        begin += 2 if following == b"\r\n" else following.startswith(b"\n")
        if following and begin == state.consumed and not _was_complete(file, begin, options):
            # So has the rest of a rejected record.
            rest = _line_end(file, begin, end, settled=False)
            if rest is None:
                return Cut(None, waits=not given_up, needs_line_end=True)
            begin = rest[0]
        line += begin > state.consumed
    if begin >= end:
        return Cut(None)
    window = max(1, min(budget_bytes, SLICE_BYTES))
    while True:
        file.seek(begin)
        data = file.read(min(window, end - begin))
        at_end = begin + len(data) >= end
        index = text_rows(data, options, final=settled and at_end)
        if index.complete or at_end or window > options.max_record_bytes:
            break
        window = min(4 * window, max(SLICE_BYTES, options.max_record_bytes + 1))
    needs_line_end = False
    if settled and at_end and not given_up and len(index):
        last = data[int(index.ends[-2]) if len(index) > 1 else 0 : int(index.ends[-1])]
        needs_line_end = not last.endswith(b"\n") and not is_complete(last, options, header, grows=grows)
    if needs_line_end:
        index = text_rows(data, options, final=False)
        if not index.complete:
            return Cut(None, waits=True, needs_line_end=True)
    if index.complete:
        rows, size = _within(index, budget_rows, budget_bytes)
        lines, terminated = data.count(b"\n", 0, size), data[size - 1 : size] == b"\n"
    else:
        # The record is incomplete, or longer than allowed and not read.
        long = None if at_end else _line_end(file, begin + len(data), end, settled=settled)
        if long is None:
            return Cut(None, waits=True)
        rows, size, terminated = 1, long[0] - begin, long[1]
        lines = int(terminated)
    piece = FileSlice(
        relation=listed.relation,
        rows=rows,
        size_bytes=size,
        path=listed.name,
        version=listed.version,
        begin=begin,
        end=begin + size,
        line=line,
        lines=lines,
        head=print_at(file, begin + size, tail=False),
        tail=print_at(file, begin + size, tail=True),
        header=header,
        unterminated=not terminated,
        long=not index.complete,
    )
    return Cut(piece, waits=(not settled or needs_line_end) and at_end and index.complete < len(data))


def is_complete(line: bytes, options: FileOptions, header: tuple[str, ...] | None, *, grows: bool) -> bool:
    """Whether a line without line end may be a complete record: a JSON value, or in a CSV file that does not grow a row
    with a value for each name of the header.
    """
    if options.format != "csv":
        try:
            json.loads(line)
        except ValueError:
            return False
        return True
    if grows or header is None or not options.quote:
        return not grows
    text = line.decode("utf-8", errors="replace")
    return len(next(csv.reader([text], delimiter=options.delimiter, quotechar=options.quote), [])) >= len(header)


def _was_complete(file: BinaryIO, end: int, options: FileOptions) -> bool:
    """Whether the line that was read up to byte `end` without a line end was a complete record."""
    if options.format == "csv":
        return True
    begin, line = end, b""
    while begin and b"\n" not in line:
        size = min(begin, _BACK_BYTES)
        begin -= size
        file.seek(begin)
        line = file.read(size) + line
    return is_complete(line.rpartition(b"\n")[2].removeprefix(_BOM), options, None, grows=False)


def _line_end(file: BinaryIO, offset: int, end: int, *, settled: bool) -> tuple[int, bool] | None:
    """The end of the line at `offset`, and whether a newline ends it; None if this is not known yet."""
    file.seek(offset)
    while offset < end:
        data = file.read(min(SLICE_BYTES, end - offset))
        newline = data.find(b"\n")
        if newline >= 0:
            return offset + newline + 1, True
        if not data:
            break
        offset += len(data)
    return (end, False) if settled else None


def _within(index: RowIndex, budget_rows: int, budget_bytes: int) -> tuple[int, int]:
    """The numbers of rows and bytes of the first complete rows within the budget, at least one row."""
    rows = min(int(np.searchsorted(index.ends, budget_bytes, side="right")), budget_rows)
    rows = max(rows, 1)
    return rows, int(index.ends[rows - 1])


def _beginning(
    file: BinaryIO, options: FileOptions, end: int, *, settled: bool
) -> tuple[int, int, tuple[str, ...] | None] | None:
    """The offset and line number of the first row, and the header; None if the header is incomplete. Raises
    DamagedError.
    """
    file.seek(0)
    skip = len(_BOM) if file.read(len(_BOM)) == _BOM else 0
    if options.format != "csv" or not options.header:
        return skip, 1, None
    window = 1 << 16
    while True:
        file.seek(skip)
        data = file.read(min(window, end - skip))
        at_end = skip + len(data) >= end
        index = text_rows(data, options, final=settled and at_end)
        if len(index) or at_end:
            break
        if window > options.max_record_bytes:
            raise DamagedError("its header is too long")
        window = min(4 * window, options.max_record_bytes + 1)
    if not len(index):
        return None
    size = int(index.ends[0])
    return skip + size, 1 + data.count(b"\n", 0, size), header_names(data[:size], options)


def header_names(row: bytes, options: FileOptions) -> tuple[str, ...]:
    """The names in a header row. Raises DamagedError."""
    text = row.decode("utf-8", errors="replace").rstrip("\r\n")
    if len(row) > options.max_record_bytes:
        raise DamagedError("its header is too long")
    names = text.split(options.delimiter)
    if options.quote:
        try:
            names = next(csv.reader([text], delimiter=options.delimiter, quotechar=options.quote), [])
        except csv.Error as problem:
            raise DamagedError(f"its header can't be read: {problem}") from problem
    return tuple(name.strip() for name in names)


def _gzip_cut(file: BinaryIO, listed: ListedFile, *, settled: bool) -> Cut:
    """The slice of a gzip file, which is read as a whole. It counts as complete when it no longer changes."""
    if not settled:
        return Cut(None, waits=True)
    size = listed.stat.size
    return Cut(_whole_piece(file, listed, (0, 1), 1, rows=max(1, size // GZIP_ROW_BYTES), size_bytes=size))


def _document_cut(file: BinaryIO, listed: ListedFile, options: FileOptions, *, settled: bool) -> Cut:
    """The slice of a file that is read as a whole. It counts as complete when it no longer changes."""
    if not settled:
        return Cut(None, waits=True)
    rows = document_rows(file, options.format, is_gzip=listed.name.endswith(".gz"))
    return Cut(_whole_piece(file, listed, (0, 1), 1, rows=rows, size_bytes=listed.stat.size))


def _parquet_cut(
    file: BinaryIO, listed: ListedFile, state: FileState, budget_rows: int, budget_bytes: int, *, settled: bool
) -> Cut:
    """The next slice of row groups, with rows and bytes from the footer. `line` is the number of the slice's first
    row.
    """
    footer = read_footer(file, listed.stat.size)
    if footer is None:
        if not settled:
            return Cut(None, waits=True)
        return Cut(aside_piece(listed, "damaged", listed.stat.size))
    first, total = state.consumed, len(footer.rows)
    if total == 0:
        return Cut(_whole_piece(file, listed, (0, 0), 0))
    rows = size = 0
    group = first
    while group < total:
        more_rows, more_bytes = footer.rows[group], footer.sizes[group]
        if group > first and (rows + more_rows > budget_rows or size + more_bytes > min(budget_bytes, GROUP_BYTES)):
            break
        rows, size, group = rows + more_rows, size + more_bytes, group + 1
    return Cut(
        _whole_piece(file, listed, (first, group), total, rows=rows, size_bytes=size, line=state.lines + 1, lines=rows)
    )


def _whole_piece(
    file: BinaryIO,
    listed: ListedFile,
    part: tuple[int, int],
    total: int,
    *,
    rows: int = 0,
    size_bytes: int = 0,
    line: int = 1,
    lines: int = 0,
) -> FileSlice:
    """A slice of a file that does not grow: `part` of `total` parts. Its fingerprints cover the whole file."""
    return FileSlice(
        relation=listed.relation,
        rows=rows,
        size_bytes=size_bytes,
        path=listed.name,
        version=listed.version,
        begin=part[0],
        end=part[1],
        line=line,
        lines=lines,
        head=print_at(file, listed.stat.size, tail=False),
        tail=print_at(file, listed.stat.size, tail=True),
        total=total,
    )


def aside_piece(listed: ListedFile, reason: Aside, lost_bytes: int) -> AsideSlice:
    """A slice that rejects a whole file. Its reader writes the dead letter."""
    return AsideSlice(
        relation=listed.relation, path=listed.name, version=listed.version, reason=reason, lost_bytes=lost_bytes
    )


def renaming_piece(relation: str, names: Mapping[str, str]) -> RenamingSlice:
    """A slice that records renamed files. names: the new names by the old ones."""
    return RenamingSlice(relation=relation, names=tuple(sorted(names.items())))

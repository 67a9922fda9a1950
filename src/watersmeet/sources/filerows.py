"""Reading slices of files."""

from __future__ import annotations

import gzip
import os
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, BinaryIO, Final

from watersmeet.errors import error
from watersmeet.sources.base import DeadLetterSink, Slice, SourceRows
from watersmeet.sources.cutting import MAX_LINE_BYTES, SLICE_BYTES, header_names, open_file, text_rows
from watersmeet.sources.fileoptions import FileOptions
from watersmeet.sources.parquetrows import ParquetReader
from watersmeet.sources.rows import DamagedError, concat, nothing
from watersmeet.sources.seen import print_at
from watersmeet.sources.textrows import TextReader
from watersmeet.types import Field

_ASIDE: Final = {
    "vanished": "vanished: the file was gone before it was read",
    "damaged": "damaged: the file is not complete, or not of its format",
    "replaced": "replaced: another file has this name now",
}


def read_file_slice(piece: Slice, spec: Mapping[str, Any], columns: Sequence[Field],
                    dead_letters: DeadLetterSink) -> SourceRows:
    """The rows of a slice of a file (`reading.read_slice`)."""
    options = FileOptions(**spec["options"])
    name = piece["path"]
    lost = max(1, piece["rows"])
    if "aside" in piece:
        dead_letters.add(name, None, _ASIDE[piece["aside"]], f"{piece['lost_bytes']} bytes", 1)
        return nothing(columns)
    try:
        with open_file(options.root, name) as file:
            if not _is_as_planned(file, piece):
                dead_letters.add(name, None, _ASIDE["replaced"], _place(piece), lost)
                return nothing(columns)
            return _read(file, piece, spec, options, columns, dead_letters)
    except FileNotFoundError:
        if not os.path.isdir(options.root):
            raise error("RUNTIME_UNAVAILABLE", f'the directory "{options.root}" of a source can\'t be reached',
                        hint="Every worker must see the directory under this path.") from None
        dead_letters.add(name, None, _ASIDE["vanished"], _place(piece), lost)
    except DamagedError as problem:
        dead_letters.add(name, None, f"{_ASIDE['damaged']}: {problem}", _place(piece), lost)
    return nothing(columns)


def _read(file: BinaryIO, piece: Slice, spec: Mapping[str, Any], options: FileOptions, columns: Sequence[Field],
          dead_letters: DeadLetterSink) -> SourceRows:
    fields = [Field.from_json(f) for f in spec["columns"]]
    name = piece["path"]
    if options.format == "parquet":
        file.seek(0)
        return ParquetReader(fields, spec["key"], columns, name, dead_letters).read(file, piece)
    if name.endswith(".gz"):
        return _read_gzip(file, name, spec, fields, options, columns, dead_letters)
    reader = TextReader(options, fields, spec["key"], columns, piece.get("header"), name, dead_letters)
    problem = reader.schema_problem()
    if problem is not None:
        dead_letters.add(name, None, problem, ",".join(piece["header"]), max(1, piece["rows"]))
        return nothing(columns)
    begin, end = piece["range"]
    file.seek(begin)
    return reader.read(file.read(end - begin), piece["line"])[0]


def _read_gzip(file: BinaryIO, name: str, spec: Mapping[str, Any], fields: Sequence[Field], options: FileOptions,
               columns: Sequence[Field], dead_letters: DeadLetterSink) -> SourceRows:
    """A whole gzip file, in pieces. A file that breaks off is set aside as a whole: all of it is read first."""
    file.seek(0)
    try:
        with gzip.GzipFile(fileobj=file, mode="rb") as unpacked:
            while unpacked.read(SLICE_BYTES):
                pass
    except (gzip.BadGzipFile, EOFError, zlib.error) as failure:
        raise DamagedError(str(failure)) from failure
    file.seek(0)
    parts: list[SourceRows] = []
    line, ordinal, rest = 1, 0, b""
    header: tuple[str, ...] | None = None
    reader: TextReader | None = None
    with gzip.GzipFile(fileobj=file, mode="rb") as unpacked:
        if unpacked.peek(3).startswith(b"\xef\xbb\xbf"):
            unpacked.read(3)
        while True:
            block = unpacked.read(SLICE_BYTES)
            data = rest + block
            size = text_rows(data, options, final=not block).complete if data else 0
            if not size and block and len(data) < MAX_LINE_BYTES:
                rest = data
                continue
            whole, rest = data[:size], data[size:]
            if reader is None:
                if options.format == "csv" and options.header and whole:
                    first = int(text_rows(whole, options, final=True).ends[0])
                    header = header_names(whole[:first], options)
                    line += whole.count(b"\n", 0, first)
                    whole = whole[first:]
                reader = TextReader(options, fields, spec["key"], columns, header, name, dead_letters)
                problem = reader.schema_problem()
                if problem is not None:
                    dead_letters.add(name, None, problem, ",".join(header or ()), 1)
                    return nothing(columns)
            part, count = reader.read(whole, line, ordinal)
            parts.append(part)
            line, ordinal = line + whole.count(b"\n"), ordinal + count
            if not block:
                return concat(parts, columns)


def _is_as_planned(file: BinaryIO, piece: Slice) -> bool:
    """True if the file's fingerprints are those of the slice."""
    size = os.fstat(file.fileno()).st_size
    whole = "total" in piece
    end = piece["file"][0] if whole else piece["range"][1]
    if size < end or (whole and size != end):
        return False
    return (print_at(file, end, tail=False) == tuple(piece["head"])
            and print_at(file, end, tail=True) == tuple(piece["tail"]))


def _place(piece: Slice) -> str:
    begin, end = piece["range"]
    return f"from {begin} to {end}"

"""Writes rows as files: complete files (Parquet, JSON lines, CSV) and growing ones (also XML and Avro)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import BinaryIO, Final, Literal, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from watersmeet.catalog.parts import Encoding
from watersmeet.errors import error
from watersmeet.formats.avroschema import container_block, container_head
from watersmeet.formats.avrowriter import derived_schema, record_encoder
from watersmeet.formats.registry import schema_bytes
from watersmeet.formats.typemapping import as_map
from watersmeet.formats.valuetexts import EXACT_JSON
from watersmeet.formats.writers import (
    Writer,
    concatenated,
    csv_header,
    csv_writer,
    evaluate_text,
    json_writer,
    value_bytes,
)
from watersmeet.formats.xmltext import DATA_ELEMENTS, tags, xml_writer
from watersmeet.values.types import Schema, SqlType

FileFormat = Literal["parquet", "json", "csv"]
FILE_FORMATS: Final[tuple[FileFormat, ...]] = ("parquet", "json", "csv")


class RowFile(Protocol):
    """A file that is being written."""

    def write(self, rows: pa.Table) -> None:
        """Adds rows. Raises OSError."""

    def close(self) -> None:
        """Writes the rest; the underlying file stays open. Raises OSError."""


class FileWriter:
    """Writes files of rows with the same columns.

    options: `delimiter` and `without_header` (CSV), `null` (CSV: the text of NULL), `compression` (Parquet),
    `….handling.mode` (JSON). The files can be read back as the same values (see `EXACT_JSON`). An interval is text in
    Parquet, which has no fitting type. Raises CONNECTOR_OPTION for invalid options.
    """

    def __init__(self, columns: Schema, format: FileFormat, options: Mapping[str, str]) -> None:  # noqa: A002
        self.extension = format
        self._columns = columns
        self._lines: Writer | None = None
        self._header = b""
        self._compression = options.get("compression", "zstd")
        if format == "json":
            self._lines = json_writer(columns, EXACT_JSON.asked(options))
        elif format == "csv":
            delimiter = options.get("delimiter", ",")
            self._lines = csv_writer(columns, delimiter, options.get("null", ""))
            if options.get("without_header", "false") != "true":
                self._header = csv_header(columns, delimiter)
        else:
            check_parquet(columns)
        if self._compression not in ("zstd", "snappy", "gzip", "lz4", "none"):
            raise error("CONNECTOR_OPTION", f"compression can't be '{self._compression}'")

    def begin(self, file: BinaryIO) -> RowFile:
        """Writes the beginning of the empty file `file`. Raises OSError."""
        if self._lines is not None:
            return _Lines(file, self._lines, self._header)
        return _Parquet(file, self._columns, self._compression)


class _Lines:
    def __init__(self, file: BinaryIO, lines: Writer, header: bytes) -> None:
        self._lines = lines
        self._file = file
        self._file.write(header)

    def write(self, rows: pa.Table) -> None:
        for begin in range(0, len(rows), 1 << 17):
            self._file.write(value_bytes(concatenated([self._lines.write(rows.slice(begin, 1 << 17)), b"\n"])))

    def close(self) -> None:
        pass


class _Parquet:
    def __init__(self, file: BinaryIO, columns: Schema, compression: str) -> None:
        self._columns = columns
        schema = pa.schema([pa.field(c.name, _parquet_type(c.type)) for c in columns])
        self._writer = pq.ParquetWriter(file, schema, compression=compression)

    def write(self, rows: pa.Table) -> None:
        arrays = [_for_parquet(rows.column(c.name), c.type) for c in self._columns]
        self._writer.write_table(pa.Table.from_arrays(arrays, schema=self._writer.schema))

    def close(self) -> None:
        self._writer.close()


def _parquet_type(kind: SqlType) -> pa.DataType:
    if kind.name == "interval":
        return pa.string()
    if kind.name == "map":
        return pa.map_(*(_parquet_type(part) for part in kind.entry))
    if kind.element is not None:
        return pa.list_(_parquet_type(kind.element))
    if kind.name == "struct":
        return pa.struct([pa.field(n, _parquet_type(t)) for n, t in kind.fields])
    return kind.arrow


def check_parquet(columns: Schema) -> None:
    """Raises FEATURE_NOT_SUPPORTED for columns that can't be written as Parquet: intervals and maps in other values."""
    for column in columns:
        inner = column.type.entry if column.type.name == "map" else (column.type,) * column.type.is_nested
        if any(_parquet_type(kind) != kind.arrow for kind in inner):
            raise error(
                "FEATURE_NOT_SUPPORTED",
                f'column "{column.name}" of type {column.type.sql} in Parquet',
                hint="Cast its intervals to varchar, and its maps to jsonb.",
            )


def _for_parquet(column: pa.ChunkedArray, kind: SqlType) -> pa.ChunkedArray | pa.Array:
    target = _parquet_type(kind)
    if target == kind.arrow:
        return column
    if kind.name == "map":
        return pa.chunked_array([as_map(chunk, kind) for chunk in column.chunks], target)
    assert kind.name == "interval"
    return evaluate_text([column], "CAST(t0 AS VARCHAR)").cast(pa.string())


#: The number of rows written together, so that their text has less than 2 GB.
_SLICE_ROWS: Final = 1 << 17


@dataclass(frozen=True)
class GrowingFormat:
    """The format of a growing file. head: the beginning. tail: the end after the last rows. rows: writes the bytes of
    rows that follow the head or other rows.
    """

    head: bytes
    rows: Callable[[pa.Table], bytes]
    tail: bytes = b""


def growing_format(columns: Schema, encoding: Encoding, options: Mapping[str, str]) -> GrowingFormat:
    """The format of files with some columns. Raises CONNECTOR_OPTION, FEATURE_NOT_SUPPORTED."""
    if encoding == "json":
        return GrowingFormat(b"", _lines(json_writer(columns, EXACT_JSON.asked(options))))
    if encoding == "csv":
        delimiter = options.get("delimiter", ",")
        head = b"" if options.get("without_header", "true") == "true" else csv_header(columns, delimiter)
        return GrowingFormat(head, _lines(csv_writer(columns, delimiter)))
    if encoding == "xml":
        begin, end = tags(options.get(DATA_ELEMENTS, "data"))
        head = b'<?xml version="1.0" encoding="UTF-8"?>\n' + begin.encode() + b"\n"
        return GrowingFormat(head, _lines(xml_writer(columns, options)), end.encode() + b"\n")
    if encoding == "avro":
        return _avro(columns, options)
    raise error("FEATURE_NOT_SUPPORTED", f"files in {encoding.upper()} that grow")


def _avro(columns: Schema, options: Mapping[str, str]) -> GrowingFormat:
    given = schema_bytes(options)
    schema = json.loads(given) if given is not None else derived_schema(columns, "row")
    encode = record_encoder(columns, schema)
    sync = hashlib.md5(json.dumps(schema).encode(), usedforsecurity=False).digest()
    return GrowingFormat(
        container_head(schema, sync), lambda rows: container_block(len(rows), value_bytes(encode(rows)), sync)
    )


def _lines(writer: Writer) -> Callable[[pa.Table], bytes]:
    def written(rows: pa.Table) -> bytes:
        begins = range(0, len(rows), _SLICE_ROWS)
        return b"".join(value_bytes(concatenated([writer.write(rows.slice(b, _SLICE_ROWS)), b"\n"])) for b in begins)

    return written

"""Data files of snapshots: Parquet with the relation's column names and a last column `_diff`.

The schema's metadata say under which name a file was written, and in which database.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from watersmeet import files, storage
from watersmeet.errors import error
from watersmeet.store.changes import DIFF, Diff, fitted
from watersmeet.store.checkpoints import SnapshotFile
from watersmeet.store.intervals import convert, storable
from watersmeet.store.layout import Layout, check_id

#: No snapshot file has more rows, so that a backfill can take it as one bounded piece.
FILE_ROWS: Final = 1 << 20
FILE_BYTES: Final = 256 << 20
_GROUP_ROWS: Final = 1 << 17
_FILE: Final = re.compile(r"[a-z]+[0-9]+-([0-9]{12})-[0-9]+\.parquet\Z")
_NO_FILLS: Final[Mapping[str, str]] = MappingProxyType({})


class SnapshotWriter:
    """Writes the files of one level: `add` pieces, then `finish`. Nothing counts before a checkpoint names it.

    stem: start of the file names, never used before.
    """

    def __init__(self, layout: Layout, stem: str, schema: pa.Schema) -> None:
        self._layout = layout
        self._stem = stem
        fields = [pa.field(f.name, storable(f.type)) for f in schema]
        self._schema = pa.schema([*fields, pa.field(DIFF, pa.int64())])
        self._pending: list[pa.Table] = []
        self._pending_rows = 0
        self._pending_bytes = 0
        self._files: list[SnapshotFile] = []

    def add(self, table: pa.Table, diff: Diff) -> None:
        """Adds rows with their diffs."""
        start = 0
        while start < table.num_rows:
            room = FILE_ROWS - self._pending_rows
            part = table.slice(start, room)
            self._pending.append(self._stored(part, diff[start : start + room]))
            self._pending_rows += part.num_rows
            self._pending_bytes += part.nbytes
            start += part.num_rows
            if self._pending_rows >= FILE_ROWS or self._pending_bytes >= FILE_BYTES:
                self._write()

    def finish(self) -> tuple[SnapshotFile, ...]:
        """Writes what is left; the files of the level."""
        if self._pending_rows:
            self._write()
        return tuple(self._files)

    def _stored(self, table: pa.Table, diff: Diff) -> pa.Table:
        columns = [
            pa.chunked_array([convert(a, field.type) for a in column.chunks], field.type)
            for column, field in zip(table.columns, self._schema, strict=False)
        ]
        columns.append(pa.chunked_array([np.ascontiguousarray(diff)], pa.int64()))
        return pa.table(columns, schema=self._schema)

    def _write(self) -> None:
        name = f"{self._stem}-{len(self._files)}.parquet"
        table = pa.concat_tables(self._pending).replace_schema_metadata(_place(self._layout, name))
        self._pending, self._pending_rows, self._pending_bytes = [], 0, 0
        path = self._layout.snapshot(name)
        temporary = storage.temporary_path(path.parent)
        try:
            # Without checksums most flipped bits go unnoticed: Zstandard keeps what it can't compress as it is.
            pq.write_table(
                table,
                temporary,
                compression="zstd",
                compression_level=1,
                row_group_size=_GROUP_ROWS,
                write_page_checksum=True,
            )
            size_bytes = temporary.stat().st_size
            storage.publish_file(temporary, path, durable=self._layout.durable)
        except OSError as cause:
            files.discard(temporary)
            raise files.failure(cause, temporary) from cause
        self._files.append(SnapshotFile(name, table.num_rows, size_bytes))


def stem(relation_id: str, number: int) -> str:
    """The start of the names of the files that a compaction up to commit `number` writes for a relation."""
    return f"{check_id(relation_id)}-{number:012d}"


def stem_number(name: str) -> int | None:
    """The `number` of `stem` in the name of a data file; None if it is no name of such a file."""
    found = _FILE.match(name)
    return int(found[1]) if found else None


def read_snapshot(
    layout: Layout, file: SnapshotFile, schema: pa.Schema, fills: Mapping[str, str] = _NO_FILLS
) -> Iterator[tuple[pa.Table, Diff]]:
    """The rows and diffs of a snapshot file, in bounded pieces. schema: of the relation, by names.

    fills: see `changes.fitted`. DATABASE_DAMAGED, naming the file, if it is missing, short or damaged.
    """
    path = layout.snapshot(file.name)
    rows = 0
    try:
        with pq.ParquetFile(storage.readable(path), page_checksum_verification=True) as parquet:
            if _place(layout, file.name).items() - (parquet.metadata.metadata or {}).items():
                raise error("DATABASE_DAMAGED", f"{file.name} is damaged: its content is that of another file")
            for group in range(parquet.num_row_groups):
                table = parquet.read_row_group(group)
                rows += table.num_rows
                yield _restored(table, schema, fills)
    except FileNotFoundError as cause:
        raise error(
            "DATABASE_DAMAGED", f"{file.name} is missing from {path.parent}", detail="A checkpoint names this file."
        ) from cause
    except (pa.ArrowInvalid, pa.ArrowTypeError, IndexError, OSError) as cause:
        raise error("DATABASE_DAMAGED", f"{file.name} is damaged", detail=str(cause)) from cause
    if rows != file.rows:
        raise error("DATABASE_DAMAGED", f"{file.name} is damaged: {rows} rows in place of {file.rows}")


def _place(layout: Layout, name: str) -> dict[bytes, bytes]:
    return {b"watersmeet.file": name.encode(), b"watersmeet.database": layout.id.encode()}


def _restored(table: pa.Table, schema: pa.Schema, fills: Mapping[str, str]) -> tuple[pa.Table, Diff]:
    last = table.num_columns - 1
    diff = table.column(last).to_numpy()
    if last < len(schema):
        table = fitted(table.select(range(last)), schema, fills)
    columns = [
        pa.chunked_array([convert(a, field.type) for a in column.chunks], field.type)
        for column, field in zip(table.columns, schema, strict=False)
    ]
    return pa.table(columns, schema=schema), diff

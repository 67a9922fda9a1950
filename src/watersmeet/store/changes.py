"""Changes of relations as stored, in commits and in snapshots: their form in segments, and their sums.

A blob is an Arrow IPC stream of one batch with the relation's column names. The last column `_diff` (int64: the number
of times the row is added) is omitted if every diff is 1; a mark in the schema's metadata distinguishes it from a user's
column `_diff`. Large blobs have packed columns (`packing`), which may add a second stream, and are compressed.

Sums: equal rows become one, with the sum of their diffs; rows with sum 0 are dropped. NULL equals NULL, NaN equals NaN,
-0.0 equals 0.0; intervals are equal if their parts are. DuckDB computes them and spills to disk, so a relation need not
fit into memory.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Final, NamedTuple

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from watersmeet.store.segments import SegmentWriter
from watersmeet.system import duckdbs
from watersmeet.system.blobs import BlobRef
from watersmeet.system.process import scratch_folder
from watersmeet.values.packing import bounds_of, is_packed, pack_columns, text_columns, unpack_columns

DIFF: Final = "_diff"
_MARK: Final = b"watersmeet.diff"

#: The maximum rows of a blob, so that readers can read bounded pieces.
BLOB_ROWS: Final = 1 << 18

#: Smaller blobs are neither packed nor compressed.
_COMPRESSED_BYTES: Final = 16 << 10

#: The codec for writes in epochs: it costs no more than writing the bytes that it saves.
FAST: Final = pa.Codec("lz4")

#: The codec for compacted, lasting blobs: a third smaller for twice the time.
SMALL: Final = pa.Codec("zstd", compression_level=1)

Diff = npt.NDArray[np.int64]


class RelationChange(NamedTuple):
    """The change of one relation in one commit: blobs whose rows must be added up.

    inserted_rows, deleted_rows: sums of the positive and (negated) of the negative diffs.
    """

    blobs: tuple[BlobRef, ...]
    inserted_rows: int
    deleted_rows: int

    @property
    def size_bytes(self) -> int:
        """The bytes of all blobs."""
        return sum(b.length_bytes for b in self.blobs)

    def within(self, segment: str) -> RelationChange:
        """The change with references that are valid outside of its segment."""
        return self._replace(blobs=tuple(b.within(segment) for b in self.blobs))


class ChangeWriter:
    """Writes rows of a relation into a segment: `add` pieces, then `finish`. The blobs depend only on the rows.

    codec: that of the blobs. unread: as in `SegmentWriter.add`.
    """

    def __init__(self, writer: SegmentWriter, codec: pa.Codec = FAST, *, unread: bool) -> None:
        self._writer = writer
        self._unread = unread
        self._codec = codec
        self._pending: list[tuple[pa.Table, Diff | None]] = []
        self._pending_rows = 0
        self._blobs: list[BlobRef] = []
        self._inserted_rows = 0
        self._deleted_rows = 0

    def add(self, table: pa.Table, diff: Diff | None) -> None:
        """Adds rows. table: columns by the relation's names. diff: int64 for each row, None if all are 1."""
        start = 0
        while start < table.num_rows:
            room = BLOB_ROWS - self._pending_rows
            part = table.slice(start, room)
            self._pending.append((part, None if diff is None else diff[start : start + room]))
            self._pending_rows += part.num_rows
            start += part.num_rows
            if self._pending_rows == BLOB_ROWS:
                self._write()

    def finish(self) -> RelationChange:
        """Writes the remaining rows. References in the result are relative to the segment (`RelationChange.within`)."""
        if self._pending_rows:
            self._write()
        return RelationChange(tuple(self._blobs), self._inserted_rows, self._deleted_rows)

    def _write(self) -> None:
        table = pa.concat_tables([t for t, _ in self._pending])
        diff = None
        if any(d is not None for _, d in self._pending):
            diff = np.concatenate([np.ones(t.num_rows, np.int64) if d is None else d for t, d in self._pending])
        self._pending, self._pending_rows = [], 0
        inserted, deleted = count_change(diff, table.num_rows)
        self._inserted_rows += inserted
        self._deleted_rows += deleted
        blob = encode_change(table, diff, self._codec)
        self._blobs.append(self._writer.add([memoryview(blob).cast("B")], table.num_rows, unread=self._unread))


def encode_change(table: pa.Table, diff: Diff | None, codec: pa.Codec = FAST) -> pa.Buffer:
    """The blob of rows. table: columns by the relation's names. diff: int64 for each row, None if all are 1."""
    if diff is not None and bool((diff == 1).all()):
        diff = None
    schema = table.schema.with_metadata({_MARK: b"0" if diff is None else b"1"})
    arrays = [_single(c) for c in table.columns]
    if diff is not None:
        arrays.append(pa.array(diff, pa.int64()))
        schema = schema.append(pa.field(DIFF, pa.int64()))
    batches = [pa.RecordBatch.from_arrays(arrays, schema=schema)]
    options = pa.ipc.IpcWriteOptions()
    if batches[0].nbytes >= _COMPRESSED_BYTES:
        batches = pack_columns(batches[0])
        options = pa.ipc.IpcWriteOptions(compression=codec)
    sink = pa.BufferOutputStream()
    for batch in batches:
        with pa.ipc.new_stream(sink, batch.schema, options=options) as writer:
            writer.write_batch(batch)
    return sink.getvalue()


def decode_change(buffer: pa.Buffer, columns: Collection[str] | None = None) -> tuple[pa.Table, Diff]:
    """The inverse of `encode_change`, without copying uncompressed columns. The diff is read-only.

    columns: the names of the needed columns; None for all. Others are not decompressed, except for one if none exists.
    """
    stream = pa.BufferReader(buffer)
    schema = pa.ipc.open_stream(stream).schema
    marked = (schema.metadata or {}).get(_MARK) == b"1"
    last = len(schema) - 1
    chosen = [i for i, n in enumerate(schema.names) if columns is None or n in columns or (marked and i == last)] or [0]
    stream.seek(0)
    table = _batch(stream, chosen)
    if is_packed(schema):
        inside = [place for place, number in enumerate(text_columns(schema)) if number in chosen]
        table = unpack_columns(table, _batch(stream, inside) if inside else None, chosen)
    table = table.replace_schema_metadata(None)
    if not marked:
        return table, np.broadcast_to(np.int64(1), (table.num_rows,))
    last = table.num_columns - 1
    return table.remove_column(last), _single(table.column(last)).to_numpy(zero_copy_only=True)


def change_bounds(buffer: pa.Buffer) -> dict[str, tuple[int, int]]:
    """The bounds of columns of a blob, as in `packing.bounds_of`; empty if it is small. Reads its first bytes."""
    schema = pa.ipc.open_stream(pa.BufferReader(buffer)).schema
    return bounds_of(schema) if is_packed(schema) else {}


def _batch(stream: pa.NativeFile, columns: list[int]) -> pa.Table:
    """The batch that begins at the position of `stream`, with these columns, at least one."""
    return pa.ipc.open_stream(stream, options=pa.ipc.IpcReadOptions(included_fields=columns)).read_all()


def fitted(rows: pa.Table, schema: pa.Schema, fills: Mapping[str, str]) -> pa.Table:
    """The columns of `schema` for rows that may be older than some columns, which get their value in `fills` (as text),
    or NULL. Values that are older than the type of their column are cast to it.
    """
    if rows.schema.names == schema.names:
        return rows if rows.schema.types == schema.types else rows.cast(schema)
    have = set(rows.column_names)
    count = rows.num_rows
    return pa.table(
        [
            rows.column(f.name).cast(f.type)
            if f.name in have
            else pa.repeat(pa.scalar(fills[f.name]).cast(f.type), count)
            if f.name in fills
            else pa.nulls(count, f.type)
            for f in schema
        ],
        names=schema.names,
    )


def count_change(diff: Diff | None, num_rows: int) -> tuple[int, int]:
    """(inserted rows, deleted rows) of a change."""
    if diff is None:
        return num_rows, 0
    return int(diff[diff > 0].sum()), -int(diff[diff < 0].sum())


def _single(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


_BATCH_ROWS: Final = 1 << 17
_INTERVAL: Final = pa.month_day_nano_interval()


def quoted(name: str) -> str:
    """`name` as a DuckDB identifier."""
    return '"' + name.replace('"', '""') + '"'


def has_interval(kind: pa.DataType) -> bool:
    """True if values of this Arrow type are or contain intervals."""
    if pa.types.is_list(kind):
        return has_interval(kind.value_type)
    if pa.types.is_struct(kind):
        return any(has_interval(field.type) for field in kind)
    return bool(kind == _INTERVAL)


def as_type(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """`array` from DuckDB as `kind`; DuckDB names parts of lists and structs differently."""
    if array.type == kind:
        return array
    if pa.types.is_list(kind):
        values = as_type(array.values, kind.value_type)
        offsets = pa.array(array.offsets.to_numpy(zero_copy_only=False), pa.int32())
        return pa.ListArray.from_arrays(offsets, values, type=kind, mask=array.is_null())
    if pa.types.is_struct(kind):
        fields = [as_type(array.field(i), kind.field(i).type) for i in range(kind.num_fields)]
        return pa.StructArray.from_arrays(fields, fields=list(kind), mask=array.is_null())
    return array.cast(kind)


def key_sql(column: str, kind: pa.DataType, depth: int = 0) -> str:
    """An expression whose values are equal (in DuckDB's GROUP BY and hash) exactly if the column's values are."""
    if not has_interval(kind):
        return column
    if pa.types.is_list(kind):
        element = f"e{depth}"
        return f"list_transform({column}, lambda {element}: {key_sql(element, kind.value_type, depth + 1)})"
    if pa.types.is_struct(kind):
        parts = ", ".join(f"{key_sql(f'{column}.{quoted(f.name)}', f.type, depth)}" for f in kind)
        return f"CASE WHEN {column} IS NOT NULL THEN row({parts}) END"
    # DuckDB compares intervals by length (1 month = 30 days); their texts differ if their parts do.
    return f"CAST({column} AS VARCHAR)"


def sum_sql(schema: pa.Schema, source: str, diff: str) -> str:
    """A SELECT that adds up `source`, with columns c0.. of `schema` and `diff`: c0.., and the sum (BIGINT) as
    `diff`.
    """
    columns, keys = [], []
    for i, field in enumerate(schema):
        name = f"c{i}"
        key = key_sql(name, field.type)
        columns.append(name if key == name else f"any_value({name}) AS {name}")
        keys.append(key)
    return (
        f"SELECT {', '.join(columns)}, CAST(sum({diff}) AS BIGINT) AS {diff} FROM {source} "
        f"GROUP BY {', '.join(keys)} HAVING sum({diff}) <> 0"
    )


def merged(
    parts: Iterable[tuple[pa.Table, Diff]], schema: pa.Schema, *, memory_limit: str = "512MB"
) -> Iterator[tuple[pa.Table, Diff]]:
    """The sum of `parts` in bounded pieces, in any order of rows."""
    positional = pa.schema([*(pa.field(f"c{i}", f.type) for i, f in enumerate(schema)), pa.field("_diff", pa.int64())])
    source = _Source(parts, positional)
    with scratch_folder("merging") as directory:
        connection = duckdbs.connect(memory_limit=memory_limit, spill_directory=str(directory), keeps_order=False)
        try:
            connection.register("parts", pa.RecordBatchReader.from_batches(positional, source.batches()))
            try:
                result = connection.execute(sum_sql(schema, "parts", "_diff")).to_arrow_reader(_BATCH_ROWS)
            except duckdb.Error as cause:
                raise source.failure or cause from cause
            for batch in result:
                columns = [as_type(c, f.type) for c, f in zip(batch.columns, schema, strict=False)]
                yield pa.table(columns, schema=schema), batch.column(len(columns)).to_numpy(zero_copy_only=False)
        finally:
            connection.close()


class _Source:
    """Feeds parts to DuckDB and keeps the error that stopped them, which DuckDB would turn into its own."""

    def __init__(self, parts: Iterable[tuple[pa.Table, Diff]], schema: pa.Schema) -> None:
        self._parts = parts
        self._schema = schema
        self.failure: Exception | None = None

    def batches(self) -> Iterator[pa.RecordBatch]:
        try:
            for table, diff in self._parts:
                columns = [*table.columns, pa.chunked_array([np.ascontiguousarray(diff)], pa.int64())]
                yield from pa.table(columns, schema=self._schema).to_batches(_BATCH_ROWS)
        except Exception as cause:
            self.failure = cause
            raise

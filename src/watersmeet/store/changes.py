"""Changes of relations as stored, in commits and in snapshots: their form in segments, and their sums.

A blob is an Arrow IPC stream of one batch with the relation's column names. The last column `_diff` (int64: the number
of times the row is added) is omitted if every diff is 1; a mark in the schema's metadata distinguishes it from a user's
column `_diff`. Larger blobs consist of pieces, which can be read separately, and an index. A piece is such a stream,
with packed columns (`packing`), which may add a second stream, and compressed. The index follows the pieces: filters,
JSON (`_described`), and a trailer with the lengths of both. It has the position of each piece, the least and greatest
values of its integer and time columns, and bloom filters of a column whose values differ in nearly all rows and whose
bounds exclude few pieces, such as a random key. Compaction writes filters of all such columns, others of the first one.

Sums: equal rows become one, with the sum of their diffs; rows with sum 0 are dropped. NULL equals NULL, NaN equals NaN,
-0.0 equals 0.0; intervals are equal if their parts are. DuckDB computes them and spills to disk, so a relation need not
fit into memory.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import Any, Final, NamedTuple

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from watersmeet.kernel.arrays.columns import data_bytes, gather, words
from watersmeet.kernel.arrays.hashing import hash_columns
from watersmeet.kernel.runs.run import filter_bytes, filter_of, write_streams
from watersmeet.store.segments import SegmentWriter
from watersmeet.system import duckdbs
from watersmeet.system.blobs import BlobRef
from watersmeet.system.process import scratch_folder
from watersmeet.values.packing import bounds_of, pack_columns, packed_layout, unpack_columns

DIFF: Final = "_diff"
_MARK: Final = b"watersmeet.diff"

#: The maximum rows of a blob, so that readers can read bounded pieces.
BLOB_ROWS: Final = 1 << 18

#: Smaller blobs are neither packed nor compressed, and have no index.
_COMPRESSED_BYTES: Final = 16 << 10

#: So few rows are written without a writer of streams, which takes longer than they do. The bytes are the same.
_FEW_ROWS: Final = 256
_STREAM_END: Final = struct.pack("<iI", -1, 0)

#: The maximum rows of a piece. It has fewer, but not fewer than …, if these rows have more than so many bytes.
_PIECE_ROWS: Final = 1 << 16
_LEAST_PIECE_ROWS: Final = 1 << 10
_PIECE_BYTES: Final = 4 << 20

_INDEX_MAGIC: Final = b"WMPIECES"

#: The trailer of an index: bytes of the filters, bytes of the JSON.
_INDEX_END: Final = struct.Struct("<II8s")

INDEX_END_BYTES: Final = _INDEX_END.size

#: A column of integers has filters if its range in a piece is, on average, more than this many times the number of
#: rows, and more than this share of its range in the blob. Otherwise, its bounds exclude most pieces.
_SPARSE: Final = 16
_SPREAD: Final = 0.25

#: The number of rows in which nearly all values must differ.
_SAMPLED_ROWS: Final = 1 << 10
_DISTINCT: Final = 0.9

#: Columns whose values have more bytes than this on average have no filter.
_LONG_BYTES: Final = 256

#: The codec for writes in epochs: it costs no more than writing the bytes that it saves.
_FAST: Final = pa.Codec("lz4")

#: The codec for compacted, lasting blobs: a third smaller for twice the time.
_SMALL: Final = pa.Codec("zstd", compression_level=1)

Diff = npt.NDArray[np.int64]

_ONE: Final = np.int64(1)


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

    lasting: as in `encode_change`. unread: as in `SegmentWriter.add`.
    """

    def __init__(self, writer: SegmentWriter, *, unread: bool, lasting: bool = False) -> None:
        self._writer = writer
        self._unread = unread
        self._lasting = lasting
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
        table = pa.concat_tables([t for t, _ in self._pending]) if len(self._pending) > 1 else self._pending[0][0]
        diff = None
        if any(d is not None for _, d in self._pending):
            diff = np.concatenate([np.ones(t.num_rows, np.int64) if d is None else d for t, d in self._pending])
        self._pending, self._pending_rows = [], 0
        inserted, deleted = count_change(diff, table.num_rows)
        self._inserted_rows += inserted
        self._deleted_rows += deleted
        blob = encode_change(table, diff, lasting=self._lasting)
        self._blobs.append(self._writer.add([memoryview(blob).cast("B")], table.num_rows, unread=self._unread))


def encode_change(table: pa.Table, diff: Diff | None, *, lasting: bool = False) -> pa.Buffer:
    """The blob of rows. table: columns by the relation's names. diff: int64 for each row, None if all are 1. lasting:
    whether it is worth more time: it is smaller, and its index has filters.
    """
    if diff is not None and bool((diff == 1).all()):
        diff = None
    schema, head = _head(table.schema, diff is not None)
    if diff is not None:
        table = table.append_column(schema.field(len(schema) - 1), pa.array(diff, pa.int64()))
    if table.num_rows <= _FEW_ROWS and (body := _batched(table, schema).serialize()).size < _COMPRESSED_BYTES:
        return pa.py_buffer(b"".join((head, body, _STREAM_END)))
    sink = pa.BufferOutputStream()
    # Not table.nbytes, which depends on how the rows are cut into chunks.
    size = sum(data_bytes(chunk) for column in table.columns for chunk in column.chunks)
    if size < _COMPRESSED_BYTES:
        write_streams(sink, [_batched(table, schema)])
        return sink.getvalue()
    rows = table.num_rows * _PIECE_BYTES // size // _LEAST_PIECE_ROWS * _LEAST_PIECE_ROWS
    rows = max(_LEAST_PIECE_ROWS, min(rows, _PIECE_ROWS))
    # Each piece is copied by itself, if it has several chunks at all.
    pieces = [_batched(table.slice(first, rows), schema) for first in range(0, table.num_rows, rows)]
    options = pa.ipc.IpcWriteOptions(compression=_SMALL if lasting else _FAST)
    width = table.num_columns - (diff is not None)
    ends = []
    for piece in pieces:
        for part in pack_columns(piece):
            with pa.ipc.new_stream(sink, part.schema, options=options) as writer:
                writer.write_batch(part)
        ends.append(sink.tell())
    _write_index(sink, [p.select(range(width)) for p in pieces], ends, most=width if lasting else 1)
    return sink.getvalue()


def _batched(table: pa.Table, schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([_single(c) for c in table.columns], schema=schema)


@lru_cache(maxsize=4096)
def _head(schema: pa.Schema, has_diff: bool) -> tuple[pa.Schema, bytes]:
    """(the schema of a blob of rows with this schema, the beginning of an IPC stream with it)."""
    schema = schema.with_metadata({_MARK: b"1" if has_diff else b"0"})
    if has_diff:
        schema = schema.append(pa.field(DIFF, pa.int64()))
    return schema, schema.serialize().to_pybytes()


def decode_change(buffer: pa.Buffer, columns: Collection[str] | None = None) -> tuple[pa.Table, Diff]:
    """The inverse of `encode_change`, without copying uncompressed columns. The diff is read-only.

    columns: the names of the needed columns; None for all. Others are not decompressed, except for one if none exists.
    """
    index = read_index(buffer, buffer.size)
    if index is None:
        return decode_piece(buffer, columns)
    return concat_pieces(
        [decode_piece(buffer.slice(b, e - b), columns) for b, e in zip(index.begins, index.ends, strict=True)]
    )


def concat_pieces(pieces: Sequence[tuple[pa.Table, Diff]]) -> tuple[pa.Table, Diff]:
    """The rows and diffs of consecutive pieces, at least one, without copies of columns. The diff is read-only."""
    if len(pieces) == 1:
        return pieces[0]
    diffs = [diff for _, diff in pieces]
    ones = all(not diff.strides[0] for diff in diffs)
    diff = np.broadcast_to(_ONE, (sum(map(len, diffs)),)) if ones else np.concatenate(diffs)
    return pa.concat_tables([table for table, _ in pieces]), diff


def decode_piece(buffer: pa.Buffer, columns: Collection[str] | None = None) -> tuple[pa.Table, Diff]:
    """Like `decode_change`, for one piece, or a blob without an index. Each column has one chunk."""
    stream = pa.BufferReader(buffer)
    packed = pa.ipc.open_stream(stream).schema
    layout = packed_layout(packed)
    schema = packed if layout is None else layout.schema
    marked = (schema.metadata or {}).get(_MARK) == b"1"
    last = len(schema) - 1
    names = schema.names
    chosen = [i for i, n in enumerate(names) if columns is None or n in columns or (marked and i == last)] or [0]
    stream.seek(0)
    table = _batch(stream, chosen)
    if layout is not None:
        inside = [place for place, number in enumerate(layout.texts) if number in chosen]
        table = unpack_columns(layout, table, _batch(stream, inside) if inside else None, chosen)
    table = table.replace_schema_metadata(None)
    if not marked:
        return table, np.broadcast_to(_ONE, (table.num_rows,))
    last = table.num_columns - 1
    return table.remove_column(last), words(_single(table.column(last)))


@dataclass(frozen=True)
class ChangeIndex:
    """The pieces of a blob: their positions in it, their rows, and the bounds and filters of their values.

    kinds: the type of each column with bounds or filters, as text. bounds: (the least, the greatest value) as numbers,
    of each piece; the least is greater if all values are NULL. filters: (the position in the blob of the filters of all
    pieces, the bytes of each).
    """

    begins: npt.NDArray[np.int64]
    ends: npt.NDArray[np.int64]
    rows: npt.NDArray[np.int64]
    kinds: Mapping[str, str]
    bounds: Mapping[str, tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]]
    filters: Mapping[str, tuple[int, int]]

    @staticmethod
    def whole(ref: BlobRef) -> ChangeIndex:
        """The index of a blob without one: it is one piece."""
        return ChangeIndex(np.array([0]), np.array([ref.length_bytes]), np.array([ref.rows]), {}, {}, {})

    @property
    def size_bytes(self) -> int:
        """The memory of all arrays."""
        return len(self.ends) * 8 * (3 + 2 * len(self.bounds))

    def whole_bounds(self, name: str) -> tuple[int, int]:
        """(the least, the greatest value) of a column with bounds in all pieces; (1, 0) if all values are NULL."""
        low, high = self.bounds[name]
        some = low <= high
        return (int(low[some].min()), int(high[some].max())) if some.any() else (1, 0)

    def filter_span(self, name: str) -> tuple[int, int]:
        """The bytes [begin, end) of the blob with the filters of a column."""
        begin, width = self.filters[name]
        return begin, begin + width * len(self.ends)


def index_bytes(end: pa.Buffer) -> int:
    """The size of the index of a blob, without filters; 0 if it has no index. end: the last `INDEX_END_BYTES` of it."""
    if end.size < INDEX_END_BYTES:
        return 0
    _, text, magic = _INDEX_END.unpack(end.to_pybytes())
    return text + INDEX_END_BYTES if magic == _INDEX_MAGIC else 0


def read_index(end: pa.Buffer, size_bytes: int) -> ChangeIndex | None:
    """The index of a blob of that size, or None if it has none. end: its last bytes, with at least the index."""
    size = index_bytes(end.slice(max(0, end.size - INDEX_END_BYTES)))
    if not size:
        return None
    filters_bytes, text_bytes, _ = _INDEX_END.unpack(end.slice(end.size - INDEX_END_BYTES).to_pybytes())
    value = json.loads(end.slice(end.size - size, text_bytes).to_pybytes())
    ends = np.array(value["ends"], np.int64)
    at, filters = size_bytes - size - filters_bytes, {}
    for name, width in value["filters"].items():
        filters[name] = (at, width)
        at += width * len(ends)
    bounds = {n: (np.array(low, np.int64), np.array(high, np.int64)) for n, (low, high) in value["bounds"].items()}
    begins = np.concatenate([[0], ends[:-1]])
    return ChangeIndex(begins, ends, np.array(value["rows"], np.int64), value["kinds"], bounds, filters)


def _write_index(sink: pa.NativeFile, pieces: Sequence[pa.RecordBatch], ends: Sequence[int], *, most: int) -> None:
    """Writes the index of pieces that end at `ends`. most: the maximum number of columns with filters."""
    value = _described(pieces)
    filters = dict(islice(_filters(pieces, value["bounds"]), most))
    value |= {"ends": ends, "filters": {name: found.shape[1] for name, found in filters.items()}}
    text = json.dumps(value, separators=(",", ":")).encode()
    for found in filters.values():
        sink.write(found.tobytes())
    sink.write(text)
    sink.write(_INDEX_END.pack(sum(found.nbytes for found in filters.values()), len(text), _INDEX_MAGIC))


def _described(pieces: Sequence[pa.RecordBatch]) -> dict[str, Any]:
    """The rows, bounds and types of the pieces."""
    kinds, bounds = {}, {}
    for number, f in enumerate(pieces[0].schema):
        found = [bounds_of(piece.column(number)) for piece in pieces]
        if _is_filtered(f.type) or None not in found:
            kinds[f.name] = str(f.type)
        if None not in found:
            known = [(1, 0) if one is None or None in one else one for one in found]
            bounds[f.name] = [low for low, _ in known], [high for _, high in known]
    return {"rows": [p.num_rows for p in pieces], "kinds": kinds, "bounds": bounds}


def _is_filtered(kind: pa.DataType) -> bool:
    return kind in (pa.int32(), pa.int64(), pa.string())


def _filters(
    pieces: Sequence[pa.RecordBatch], bounds: Mapping[str, tuple[Sequence[int], Sequence[int]]]
) -> Iterator[tuple[str, npt.NDArray[np.uint8]]]:
    """Columns whose bounds exclude few pieces for a value, and the filters of each piece."""
    for number, f in enumerate(pieces[0].schema):
        if not _is_filtered(f.type) or (f.name in bounds and not _is_spread(*bounds[f.name], pieces[0].num_rows)):
            continue
        if _is_long(pieces, number) or not _has_distinct(pieces, number):
            continue
        width = filter_bytes(max(piece.num_rows for piece in pieces))
        yield f.name, np.stack([filter_of(hash_columns([piece.column(number)]), width) for piece in pieces])


def _is_long(pieces: Sequence[pa.RecordBatch], number: int) -> bool:
    """Whether the values of a column are too long for keys."""
    column_bytes = sum(data_bytes(piece.column(number)) for piece in pieces)
    return column_bytes > _LONG_BYTES * sum(int(piece.num_rows) for piece in pieces)


def _is_spread(lows: Sequence[int], highs: Sequence[int], rows: int) -> bool:
    """Whether most pieces of so many rows may contain a value, by their bounds, but few do."""
    ranges = [float(high) - low for low, high in zip(lows, highs, strict=True)]
    mean = sum(ranges) / len(ranges)
    return mean > _SPARSE * rows and mean > _SPREAD * (float(max(highs)) - min(lows))


def _has_distinct(pieces: Sequence[pa.RecordBatch], number: int) -> bool:
    """Whether nearly all of some rows of a column differ."""
    hashes = []
    for piece in pieces:
        rows = np.linspace(0, piece.num_rows - 1, -(-_SAMPLED_ROWS // len(pieces)), dtype=np.int64)
        hashes.append(hash_columns([gather(piece.column(number), np.unique(rows))]))
    some = np.concatenate(hashes)
    return len(np.unique(some)) >= _DISTINCT * len(some)


def _batch(stream: pa.NativeFile, columns: list[int]) -> pa.Table:
    """The batch that begins at the position of `stream`, with these columns, at least one."""
    # one thread for each piece, not for each column: threads of Arrow's pool add a quarter to the processor time
    options = pa.ipc.IpcReadOptions(included_fields=columns, use_threads=False)
    return pa.ipc.open_stream(stream, options=options).read_all()


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

"""The form of a relation's change in a commit: an Arrow IPC stream with the relation's column names.

The last column `_diff` (int64: how often the row is added) is left out if every diff is 1; a mark in the
schema's metadata tells it from a column that a user called `_diff`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

DIFF: Final = "_diff"
_MARK: Final = b"watersmeet.diff"

Diff = npt.NDArray[np.int64]


def encode_change(table: pa.Table, diff: Diff | None) -> pa.Buffer:
    """The blob of a change. table: columns by the relation's names. diff: int64 by row, None for all 1."""
    if diff is not None and bool((diff == 1).all()):
        diff = None
    schema = table.schema.with_metadata({_MARK: b"0" if diff is None else b"1"})
    arrays = [_single(c) for c in table.columns]
    if diff is not None:
        arrays.append(pa.array(diff, pa.int64()))
        schema = schema.append(pa.field(DIFF, pa.int64()))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        writer.write_batch(pa.RecordBatch.from_arrays(arrays, schema=schema))
    return sink.getvalue()


def decode_change(buffer: pa.Buffer) -> tuple[pa.Table, Diff]:
    """The inverse of `encode_change`, without copying columns. The diff is read-only."""
    table = pa.ipc.open_stream(buffer).read_all()
    marked = (table.schema.metadata or {}).get(_MARK) == b"1"
    table = table.replace_schema_metadata(None)
    if not marked:
        return table, np.broadcast_to(np.int64(1), (table.num_rows,))
    last = table.num_columns - 1
    return table.remove_column(last), _single(table.column(last)).to_numpy(zero_copy_only=True)


def fitted(rows: pa.Table, schema: pa.Schema, fills: Mapping[str, str]) -> pa.Table:
    """The columns of `schema` of rows that may be older than some of them: what `fills` says (as text), or NULL."""
    if rows.schema.names == schema.names:
        return rows
    have = set(rows.column_names)
    count = rows.num_rows
    return pa.table(
        [
            rows.column(f.name)
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

"""Adding changes up: rows that are equal become one, with the sum of their diffs; those with sum 0 go.

NULL equals NULL, NaN equals NaN, -0.0 equals 0.0; intervals are equal if their parts are. Works in DuckDB,
which spills to disk, so that a relation need not fit into memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import duckdb
import numpy as np
import pyarrow as pa

from watersmeet import duckdbs
from watersmeet.scratch import scratch_folder
from watersmeet.store.changes import Diff

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
    """`array`, which DuckDB gave, as `kind`: parts of lists and structs have other names there."""
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
    """The expression whose values are equal (in DuckDB's GROUP BY and hash) exactly if the column's values are."""
    if not has_interval(kind):
        return column
    if pa.types.is_list(kind):
        element = f"e{depth}"
        return f"list_transform({column}, lambda {element}: {key_sql(element, kind.value_type, depth + 1)})"
    if pa.types.is_struct(kind):
        parts = ", ".join(f"{key_sql(f'{column}.{quoted(f.name)}', f.type, depth)}" for f in kind)
        return f"CASE WHEN {column} IS NOT NULL THEN row({parts}) END"
    # DuckDB compares intervals by length (1 month = 30 days); as text their parts count.
    return f"CAST({column} AS VARCHAR)"


def sum_sql(schema: pa.Schema, source: str, diff: str) -> str:
    """SELECT that adds up `source`, with columns c0.. of `schema` and `diff`: c0.., and the sum (BIGINT) as `diff`."""
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
    """The sum of `parts` in bounded pieces; the order of rows is not defined."""
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
    """Feeds parts to DuckDB and keeps the error that stopped them: DuckDB would turn it into its own."""

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

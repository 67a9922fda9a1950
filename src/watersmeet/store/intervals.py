"""Intervals in Parquet: the format has none that keeps months, days and nanoseconds apart, so they become structs."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

_INTERVAL = pa.month_day_nano_interval()
_STRUCT = pa.struct([("months", pa.int32()), ("days", pa.int32()), ("nanos", pa.int64())])
_RECORD = np.dtype([("months", "<i4"), ("days", "<i4"), ("nanos", "<i8")])


def has_interval(kind: pa.DataType) -> bool:
    """True if values of this Arrow type are or contain intervals."""
    if pa.types.is_list(kind):
        return has_interval(kind.value_type)
    if pa.types.is_struct(kind):
        return any(has_interval(field.type) for field in kind)
    return bool(kind == _INTERVAL)


def storable(kind: pa.DataType) -> pa.DataType:
    """`kind` with structs in place of intervals."""
    if kind == _INTERVAL:
        return _STRUCT
    if pa.types.is_list(kind):
        return pa.list_(storable(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(f.name, storable(f.type)) for f in kind])
    return kind


def convert(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """`array` as `kind`, where one of both has structs in place of the other's intervals."""
    if array.type == kind:
        return array
    if array.type == _INTERVAL:
        return _to_struct(array)
    if kind == _INTERVAL:
        return _from_struct(array)
    if pa.types.is_list(kind):
        values = convert(array.values, kind.value_type)
        offsets = pa.array(array.offsets.to_numpy(zero_copy_only=False), pa.int32())
        return pa.ListArray.from_arrays(offsets, values, type=kind, mask=array.is_null())
    if pa.types.is_struct(kind):
        fields = [convert(array.field(i), kind.field(i).type) for i in range(kind.num_fields)]
        return pa.StructArray.from_arrays(fields, fields=list(kind), mask=array.is_null())
    return array.cast(kind)


def _to_struct(array: pa.Array) -> pa.Array:
    records = np.frombuffer(array.buffers()[1], _RECORD)[array.offset : array.offset + len(array)]
    parts = [pa.array(np.ascontiguousarray(records[name])) for name in ("months", "days", "nanos")]
    return pa.StructArray.from_arrays(parts, fields=list(_STRUCT), mask=array.is_null())


def _from_struct(array: pa.Array) -> pa.Array:
    records = np.zeros(len(array), _RECORD)
    for i, name in enumerate(("months", "days", "nanos")):
        records[name] = array.field(i).fill_null(0).to_numpy(zero_copy_only=False)
    valid = np.packbits(array.is_valid().to_numpy(zero_copy_only=False), bitorder="little")
    return pa.Array.from_buffers(
        _INTERVAL, len(array), [pa.py_buffer(valid.tobytes()), pa.py_buffer(records.tobytes())]
    )

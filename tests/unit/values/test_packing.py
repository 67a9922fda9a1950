"""Columns in fewer bytes are the same columns again, and the bytes of these depend on the rows alone."""

from __future__ import annotations

import datetime as dt

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.thorough import examples

from watersmeet.store.changes import BLOB_ROWS, decode_change, encode_change
from watersmeet.values.packing import pack_columns, packed_layout, unpack_columns

DAY = dt.date(2024, 2, 29)
TIMES = st.integers(-(2**62), 2**62)
#: Values of each type; those of numbers are near each other or as far as can be.
VALUES = {
    pa.int16(): st.integers(-(2**15), 2**15 - 1) | st.integers(300, 310),
    pa.int32(): st.integers(-(2**31), 2**31 - 1) | st.integers(-3, 300),
    pa.int64(): st.integers(-(2**63), 2**63 - 1) | st.integers(2**40, 2**40 + 70_000) | st.sampled_from([0, 1]),
    pa.date32(): st.dates(dt.date(1, 1, 1), dt.date(9999, 12, 31)) | st.just(DAY),
    pa.time64("us"): st.times(),
    pa.timestamp("us"): TIMES,
    pa.timestamp("us", "UTC"): TIMES | st.integers(0, 100),
    pa.duration("us"): TIMES,
    pa.string(): st.text(max_size=5) | st.just("x" * 300),
    pa.binary(): st.binary(max_size=5),
    pa.bool_(): st.booleans(),
    pa.float64(): st.floats(allow_nan=False),
    pa.decimal128(20, 2): st.decimals(-100, 100, places=2),
    pa.list_(pa.int64()): st.lists(st.integers(0, 9), max_size=3),
    pa.month_day_nano_interval(): st.just(pa.MonthDayNano([1, 2, 3])),
}


def unpacked(batches):
    layout = packed_layout(batches[0].schema)
    assert layout is not None
    head, *texts = (pa.Table.from_batches([b]) for b in batches)
    return unpack_columns(layout, head, *(texts or [None]))


@st.composite
def batches(draw):
    """A batch of every type, maybe cut out of a longer one, and the rows before and behind it."""
    rows = draw(st.integers(1, 20))
    arrays = [pa.array(draw(st.lists(st.none() | v, min_size=rows, max_size=rows)), t) for t, v in VALUES.items()]
    batch = pa.RecordBatch.from_arrays(arrays, names=[f"c{i}" for i in range(len(arrays))])
    start = draw(st.integers(0, rows - 1))
    return batch.replace_schema_metadata({b"mark": b"1"}).slice(start, draw(st.integers(1, rows - start)))


@examples(100)
@given(batches())
def test_packed_columns_are_restored(batch):
    again = unpacked(pack_columns(batch))
    assert again.schema.equals(batch.schema, check_metadata=True)
    assert again.equals(pa.Table.from_batches([batch]))


@examples(100)
@given(batches())
def test_bytes_of_packed_columns_depend_only_on_the_rows(batch):
    copied = pa.RecordBatch.from_arrays([pa.concat_arrays([c, c[:0]]) for c in batch.columns], schema=batch.schema)
    (head, *texts), (other, *other_texts) = pack_columns(batch), pack_columns(copied)
    assert head.schema.equals(other.schema, check_metadata=True)
    numbers = [i for i, field in enumerate(batch.schema) if head.schema.field(i).type != field.type]
    assert numbers
    assert _written(head.select(numbers)) == _written(other.select(numbers))
    assert [_written(b) for b in texts] == [_written(b) for b in other_texts]


def test_what_is_behind_a_null_is_not_written():
    """Arrays that libraries make may have anything there."""
    valid = pa.py_buffer(bytes([0b101]))
    made = {}
    for hidden in (7, 9):
        numbers = pa.Array.from_buffers(pa.int64(), 3, [valid, pa.py_buffer(np.array([5, hidden << 40, 6]))], 1)
        ends = np.array([0, 1, 2, 3], np.int32)
        texts = pa.Array.from_buffers(pa.string(), 3, [valid, pa.py_buffer(ends), pa.py_buffer(b"a%db" % hidden)], 1)
        batch = pa.RecordBatch.from_arrays([numbers, texts], names=["n", "t"])
        assert unpacked(pack_columns(batch)).to_pylist() == batch.to_pylist()
        made[hidden] = [_written(b) for b in pack_columns(batch)]
    assert made[7] == made[9]


@pytest.mark.parametrize("lasting", [False, True])
def test_rows_of_a_whole_blob(lasting):
    random = np.random.default_rng(1)
    table = pa.table(
        {
            "k": pa.array(random.integers(0, 900_000, BLOB_ROWS)),
            "ts": pa.array((1 << 50) + random.integers(0, 1 << 32, BLOB_ROWS), pa.timestamp("us")),
            "note": pa.array([f"note-{i}" for i in random.integers(0, 1000, BLOB_ROWS)]),
        }
    )
    diff = random.choice([1, -1], BLOB_ROWS)
    blob = encode_change(table, diff, lasting=lasting)
    found, found_diff = decode_change(blob)
    assert found.equals(table)
    assert (found_diff == diff).all()
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(
        sink, table.schema, options=pa.ipc.IpcWriteOptions(compression="zstd" if lasting else "lz4")
    ) as writer:
        writer.write_table(table)
    assert blob.size < sink.getvalue().size, "the diffs are in it, too"


def _written(batch):
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue().to_pybytes()

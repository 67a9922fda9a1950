"""Columns from Spark as the kernel has them."""

from __future__ import annotations

import subprocess
import sys

import pyarrow as pa
import pytest
from pyspark.sql import types as spark

from watersmeet.frames.shapes import incomparable, widest, with_offsets

#: Rows as Spark's JVM sends them: the lists within have no elements and no offsets. `nbytes` of PyArrow reads these.
WITHOUT_OFFSETS = """
import pyarrow as pa
from watersmeet.frames.shapes import with_offsets
from watersmeet.frames.tasks import gathered

innermost = pa.list_(pa.int32())
inner = pa.Array.from_buffers(innermost, 0, [None, None], children=[pa.array([], pa.int32())])
offsets = pa.array([0, 0, 0], pa.int32()).buffers()[1]
outer = pa.Array.from_buffers(pa.list_(innermost), 2, [None, offsets], children=[inner])
(table,) = gathered([pa.RecordBatch.from_arrays([outer], ["lists"])])
print(with_offsets(table.column(0).chunk(0)).nbytes, table.column(0).to_pylist())
"""


def test_nested_lists_without_elements_and_offsets():
    done = subprocess.run([sys.executable, "-c", WITHOUT_OFFSETS], check=False, capture_output=True, text=True)
    assert (done.returncode, done.stdout.strip()) == (0, "8 [[], []]")


@pytest.mark.parametrize("start", range(4))
def test_values_stay_as_they_are(start):
    kind = pa.map_(
        pa.string(),
        pa.struct([("x", pa.list_(pa.list_(pa.int32()))), ("y", pa.map_(pa.int32(), pa.string()))]),
    )
    values = [
        None,
        [("a", {"x": [], "y": None}), ("b", None)],
        [],
        [("c", {"x": [[1], None, []], "y": [(1, "s"), (2, None)]})],
    ]
    array = pa.array(values, kind).slice(start)
    found = with_offsets(array)
    found.validate(full=True)
    assert found.equals(array)


def test_types_that_are_not_compared():
    text = spark.StringType()
    folded = spark.StringType("UTF8_LCASE")
    for kind, condition in (
        (folded, "FEATURE_NOT_SUPPORTED"),
        (spark.ArrayType(folded), "FEATURE_NOT_SUPPORTED"),
        (spark.MapType(text, text), "DATATYPE_MISMATCH"),
        (spark.StructType([spark.StructField("m", spark.MapType(text, text))]), "DATATYPE_MISMATCH"),
    ):
        found = incomparable(kind, "name")
        assert found is not None
        assert found.condition == condition
        assert '"name"' in str(found)
    for kind in (text, spark.ArrayType(text), spark.StructType([]), spark.BinaryType()):
        assert incomparable(kind, "name") is None


def test_the_widest_of_whole_numbers():
    byte, short, long = spark.ByteType(), spark.ShortType(), spark.LongType()
    assert [widest(kinds) for kinds in ([byte, short], [byte], [short, long, byte])] == [short, byte, long]
    assert widest([byte, spark.DoubleType()]) is None

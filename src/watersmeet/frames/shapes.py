"""The shapes of joins and queries of DataFrames: plain values that are equal on the driver, in tasks and in the state;
and Spark types.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from functools import cached_property
from typing import ClassVar, Final, Literal

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import types as spark
from pyspark.sql.pandas.types import from_arrow_type, to_arrow_schema

from watersmeet.circuit.circuit import Circuit
from watersmeet.circuit.operators import BACKWARD, FORWARD, AsofComparison, InputColumn, JoinKind
from watersmeet.errors import Error, error
from watersmeet.kernel.arrays import columns as col
from watersmeet.values import types as sql
from watersmeet.values.types import Schema, SqlType
from watersmeet.values.watermarks import NOW

Emit = Literal["changes", "final", "arrival"]

#: The names of the two sides, as sources of watermarks and in messages.
SIDES: Final = ("left", "right")


@dataclass(frozen=True)
class Side:
    """One input. schema: the columns that are sent: the user's, then the start of the window if the join has windows.

    keys: the positions of the columns that must be equal. time: the position of its event time, or None. delay_us: the
    delay of its watermark after the greatest event time, or None. signed: whether rows may be retracted, so that each
    has a diff.
    """

    schema: Schema
    keys: tuple[int, ...]
    time: int | None = None
    delay_us: int | None = None
    signed: bool = False


@dataclass(frozen=True)
class Tolerance:
    """The greatest allowed distance of two values. us: the distance of times in microseconds. number: the distance of
    numbers as text.

    If neither is set, the distance is unbounded.
    """

    us: int | None = None
    number: str | None = None


@dataclass(frozen=True)
class Nearest:
    """The nearest right row for which `left value comparison right value` is true, if it is within `tolerance`."""

    comparison: AsofComparison
    left: int
    right: int
    tolerance: Tolerance = Tolerance()

    @property
    def looks_back(self) -> bool:
        """Whether smaller right values can match."""
        return self.comparison in BACKWARD

    @property
    def looks_ahead(self) -> bool:
        """Whether greater right values can match."""
        return self.comparison in FORWARD


@dataclass(frozen=True)
class Newest:
    """The last right row of the key, among rows that arrived together the one with the greatest column `order`."""

    order: int | None = None


@dataclass(frozen=True)
class Within:
    """The bounds `lower_us <= right time - left time <= upper_us`; None: unbounded."""

    lower_us: int | None
    upper_us: int | None


@dataclass(frozen=True)
class ResultColumn:
    """A column of the result: the first non-NULL value of some columns of both sides.

    window: whether it is a struct of start and end, made from the start of a window.
    """

    name: str
    columns: tuple[InputColumn, ...]
    window: bool = False


@dataclass(frozen=True)
class JoinShape:
    """A join. buckets: the number of partitions of the keys, each with its own state, fixed for a checkpoint."""

    what: ClassVar[str] = "join"
    call: ClassVar[str] = "join"
    parts: ClassVar[str] = "keys"
    left: Side
    right: Side
    how: JoinKind
    emit: Emit
    buckets: int
    outputs: tuple[ResultColumn, ...]
    match: Nearest | Newest | None = None
    within: Within | None = None
    window_us: int | None = None
    static: Literal["left", "right"] | None = None

    @property
    def sides(self) -> tuple[Side, Side]:
        """Left and right."""
        return self.left, self.right

    @cached_property
    def columns(self) -> tuple[InputColumn, ...]:
        """The joined columns of the result, without duplicates."""
        return tuple(dict.fromkeys(c for o in self.outputs for c in o.columns))

    @cached_property
    def fingerprint(self) -> str:
        """Identifies everything that the state depends on."""
        values = asdict(self)
        for name, side in (("left", self.left), ("right", self.right)):
            values[name]["schema"] = [f.to_json() for f in side.schema]
        return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class QueryInput:
    """A streaming DataFrame of a query. relation_id: its id in the circuit. time, delay_us: see `Side`."""

    relation_id: str
    schema: Schema
    time: int | None = None
    delay_us: int | None = None
    signed: bool = False


@dataclass(frozen=True)
class QueryShape:
    """A query over streaming DataFrames."""

    what: ClassVar[str] = "query"
    call: ClassVar[str] = "sql"
    parts: ClassVar[str] = "text"
    circuit: Circuit
    inputs: tuple[QueryInput, ...]

    @property
    def buckets(self) -> int:
        """The number of buckets of each stage."""
        return self.circuit.buckets

    @property
    def steps(self) -> int:
        """The number of stateful steps; 0 for a query without state."""
        return self.circuit.last_stage

    @property
    def appends(self) -> bool:
        """Whether no row of the result can be retracted."""
        return self.circuit.sinks[0].append_only

    @cached_property
    def moves_time(self) -> bool:
        """Whether buckets must know the watermarks or the time of the micro-batch."""
        return self.circuit.is_timed or any(i.delay_us is not None for i in self.inputs)

    @cached_property
    def fingerprint(self) -> str:
        """Identifies everything that the state depends on."""
        return self.digest(self.circuit.fingerprint)

    def digest(self, what: str) -> str:
        """Identifies `what` over these inputs."""
        inputs = [{**asdict(i), "schema": [f.to_json() for f in i.schema]} for i in self.inputs]
        return hashlib.sha256(json.dumps([what, inputs], sort_keys=True).encode()).hexdigest()[:16]

    def clock(self, index: int) -> str:
        """The name of the number of clock `index`: that of an input, or after these the time of the micro-batch."""
        return self.inputs[index].relation_id if index < len(self.inputs) else NOW


def microseconds(delta: timedelta) -> int:
    """A length of time in microseconds."""
    return delta // timedelta(microseconds=1)


_SIMPLE: Final[dict[type[spark.DataType], SqlType]] = {
    spark.BooleanType: sql.BOOLEAN,
    spark.ByteType: sql.SMALLINT,  # the kernel has no one-byte type; the result is converted back
    spark.ShortType: sql.SMALLINT,
    spark.IntegerType: sql.INTEGER,
    spark.LongType: sql.BIGINT,
    spark.FloatType: sql.REAL,
    spark.DoubleType: sql.DOUBLE,
    spark.StringType: sql.VARCHAR,
    spark.BinaryType: sql.BYTEA,
    spark.DateType: sql.DATE,
    spark.TimestampType: sql.TIMESTAMPTZ,
    spark.TimestampNTZType: sql.TIMESTAMP,
}

#: The types of whole numbers, narrowest first.
_WHOLE: Final = (spark.ByteType, spark.ShortType, spark.IntegerType, spark.LongType)


def sql_type(kind: spark.DataType, column: str) -> SqlType:
    """The type for values of a Spark type. Raises FEATURE_NOT_SUPPORTED, naming `column`, if there is none."""
    if isinstance(kind, spark.DecimalType):
        return SqlType("numeric", kind.precision, kind.scale)
    if isinstance(kind, spark.ArrayType):
        return SqlType("array", element=sql_type(kind.elementType, column))
    if isinstance(kind, spark.MapType):  # a map is an array of its entries
        entry = (("key", sql_type(kind.keyType, column)), ("value", sql_type(kind.valueType, column)))
        return SqlType("array", element=SqlType("struct", fields=entry))
    if isinstance(kind, spark.StructType) and kind.fields:
        return SqlType("struct", fields=tuple((f.name, sql_type(f.dataType, column)) for f in kind.fields))
    found = next((t for cls, t in _SIMPLE.items() if type(kind) is cls), None)
    if found is None:
        raise error(
            "FEATURE_NOT_SUPPORTED",
            f'column "{column}" has type {kind.simpleString()}, which a join can\'t carry',
            hint="Cast or drop the column.",
        )
    return found


def spark_type(column: str, kind: pa.DataType) -> spark.DataType:
    """The type in Spark for an Arrow type. Raises FEATURE_NOT_SUPPORTED, naming `column`, if there is none."""
    try:
        return from_arrow_type(kind, prefer_timestamp_ntz=True)
    except PySparkException as cause:
        raise error(
            "FEATURE_NOT_SUPPORTED",
            f'column "{column}" has type {kind}, which Spark has no type for',
            hint="Cast it, for example to varchar.",
        ) from cause


def incomparable(kind: spark.DataType, column: str) -> Error | None:
    """The error, naming `column`, for a comparison of values of a Spark type; None if they are compared as in Spark."""
    if isinstance(kind, spark.MapType):
        return error(
            "DATATYPE_MISMATCH",
            f'column "{column}" is compared, and has type {kind.simpleString()}',
            detail="Maps have no equality and no order, in Spark's joins too.",
            hint=f'Compare a value of it: withColumn("key", f.col("{column}")["…"]).',
        )
    if isinstance(kind, spark.StringType) and not kind.isUTF8BinaryCollation():
        return error(
            "FEATURE_NOT_SUPPORTED",
            f'column "{column}" is compared, and has collation {kind.collation}',
            detail="A join compares strings by their bytes.",
            hint=f'Compare a column without one, such as f.lower(f.collate("{column}", "UTF8_BINARY")).',
        )
    if isinstance(kind, spark.ArrayType):
        return incomparable(kind.elementType, column)
    parts = kind.fields if isinstance(kind, spark.StructType) else []
    return next(filter(None, (incomparable(part.dataType, column) for part in parts)), None)


def widest(kinds: Sequence[spark.DataType]) -> spark.DataType | None:
    """The widest of these types of whole numbers; None if one is another type."""
    found = [type(kind) for kind in kinds]
    return _WHOLE[max(map(_WHOLE.index, found))]() if all(kind in _WHOLE for kind in found) else None


def arrow_columns(table: pa.Table, schema: Schema) -> list[pa.Array]:
    """The first columns of rows from Spark, converted to the kernel's types."""
    return [converted(with_offsets(col.flat(table.column(i))), f.type.arrow) for i, f in enumerate(schema)]


def with_offsets(array: pa.Array) -> pa.Array:
    """The same values with an offsets buffer, which empty nested arrays may lack.

    Spark's JVM omits the single offset of an empty array. PyArrow's `nbytes` reads it anyway, beyond the buffer, and
    would find an arbitrary number.
    """
    kind = array.type
    if not pa.types.is_nested(kind):
        return array if len(array) else pa.array([], kind)
    if not len(array):
        return pa.array([], kind)
    if pa.types.is_struct(kind):
        parts = [with_offsets(array.field(i)) for i in range(kind.num_fields)]
        return pa.StructArray.from_arrays(parts, fields=list(kind), mask=array.is_null() if array.null_count else None)
    return _with_items(array, with_offsets(array.values), kind)


def converted(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """The same values in the type `kind`. The entries of a map become a map."""
    if array.type == kind:
        return array
    if pa.types.is_map(kind) and pa.types.is_list(array.type):
        return _map_of(array, kind)
    if pa.types.is_list(kind) and _has_map(kind) and pa.types.is_list(array.type):
        return _with_items(array, converted(array.values, kind.value_type), kind)
    if pa.types.is_struct(kind) and _has_map(kind):
        parts = [converted(array.field(i), kind.field(i).type) for i in range(kind.num_fields)]
        return pa.StructArray.from_arrays(parts, fields=list(kind), mask=array.is_null())
    return array.cast(kind)


def _map_of(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """A map of lists of entries, which PyArrow can't cast."""
    entries = array.values
    parts = [converted(entries.field(0), kind.key_type), converted(entries.field(1), kind.item_type)]
    return _with_items(array, pa.StructArray.from_arrays(parts, fields=[kind.key_field, kind.item_field]), kind)


def _with_items(array: pa.Array, items: pa.Array, kind: pa.DataType) -> pa.Array:
    """The lists of `array` with other items."""
    buffers = array.buffers()[:2]
    return pa.Array.from_buffers(kind, len(array), buffers, null_count=-1, offset=array.offset, children=[items])


def _has_map(kind: pa.DataType) -> bool:
    if pa.types.is_map(kind):
        return True
    if pa.types.is_list(kind):
        return _has_map(kind.value_type)
    return pa.types.is_struct(kind) and any(_has_map(field.type) for field in kind)


def result_schema(schema: spark.StructType) -> pa.Schema:
    """The Arrow schema that Spark expects for `schema`."""
    return to_arrow_schema(schema)


def batch_of(arrays: list[pa.Array], schema: pa.Schema) -> pa.RecordBatch:
    """A batch for Spark: values in the types of `schema`."""
    return pa.RecordBatch.from_arrays(
        [converted(col.flat(a), f.type) for a, f in zip(arrays, schema, strict=True)], schema=schema
    )

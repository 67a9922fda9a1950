"""Types between Spark and the kernel."""

from __future__ import annotations

from typing import Final

import pyarrow as pa
from pyspark.sql import types as spark
from pyspark.sql.pandas.types import to_arrow_schema

from watersmeet import types as sql
from watersmeet.errors import error
from watersmeet.kernel.arrays import columns as col
from watersmeet.types import Schema, SqlType

_SIMPLE: Final[dict[type[spark.DataType], SqlType]] = {
    spark.BooleanType: sql.BOOLEAN,
    spark.ByteType: sql.SMALLINT,  # the kernel has no type of one byte; it comes out as it came in
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


def sql_type(kind: spark.DataType, column: str) -> SqlType:
    """The type that carries values of a Spark type; FEATURE_NOT_SUPPORTED, naming `column`, if there is none."""
    if isinstance(kind, spark.DecimalType):
        return SqlType("numeric", kind.precision, kind.scale)
    if isinstance(kind, spark.ArrayType):
        return SqlType("array", element=sql_type(kind.elementType, column))
    if isinstance(kind, spark.StructType) and kind.fields:
        return SqlType("struct", fields=tuple((f.name, sql_type(f.dataType, column)) for f in kind.fields))
    found = next((t for cls, t in _SIMPLE.items() if type(kind) is cls), None)
    if found is None:
        hint = f"Use map_entries({column}), an array of structs." if isinstance(kind, spark.MapType) else "Cast or drop the column."
        raise error("FEATURE_NOT_SUPPORTED", f'column "{column}" has type {kind.simpleString()}, which a join can\'t carry',
                    hint=hint)
    return found


def arrow_columns(table: pa.Table, schema: Schema) -> list[pa.Array]:
    """The first columns of rows from Spark, as the kernel has them."""
    return [converted(col.flat(table.column(i)), f.type.arrow) for i, f in enumerate(schema)]


def converted(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """The same values in the type `kind`; nothing is done if they have it."""
    return array if array.type == kind else array.cast(kind)


def result_schema(schema: spark.StructType) -> pa.Schema:
    """The Arrow schema that Spark expects for `schema`."""
    return to_arrow_schema(schema)


def batch_of(arrays: list[pa.Array], schema: pa.Schema) -> pa.RecordBatch:
    """A batch for Spark: values in the types of `schema`."""
    return pa.RecordBatch.from_arrays([converted(col.flat(a), f.type) for a, f in zip(arrays, schema, strict=True)], schema=schema)

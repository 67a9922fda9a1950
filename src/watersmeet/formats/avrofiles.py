"""Reading Avro's container files.

Avro 1.12, "Object Container Files".
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import BinaryIO

import numpy as np
import pyarrow as pa

from watersmeet.extras import library
from watersmeet.formats.avropayloads import columns_in, read_block
from watersmeet.formats.avroschema import read_schema
from watersmeet.formats.payloads import Read
from watersmeet.formats.registry import RegisteredSchema
from watersmeet.types import Field


def count_records(file: BinaryIO) -> int:
    """How many records a file has, by the heads of its blocks. Raises what fastavro raises for a file that is none."""
    return sum(block.num_records for block in library("fastavro", "files of Avro").block_reader(file))


def read_records(file: BinaryIO, fields: Sequence[Field]) -> Read:
    """The records of a file, each of them a row. Raises what fastavro raises for a file that is none.

    DATATYPE_MISMATCH if its schema has a field that is no column of the declared type.
    """
    fastavro = library("fastavro", "files of Avro")
    blocks = fastavro.block_reader(file)
    text = blocks.metadata["avro.schema"]
    schema = read_schema(RegisteredSchema(0, "AVRO", text))
    count, data = 0, io.BytesIO()
    for block in blocks:
        count += block.num_records
        data.write(block.bytes_.read())
    records = read_block(schema, count, data.getbuffer()) if schema.is_plain and schema.kind == "record" else None
    if records is None:
        parsed = fastavro.parse_schema(schema.plain)
        data.seek(0)
        records = pa.array(
            [schema.shaped(fastavro.schemaless_reader(data, parsed)) for _ in range(count)], schema.arrow
        )
    return Read(columns_in(schema, records, fields, "the schema of the file", {}), np.arange(count, dtype=np.int64))

"""Files of rows that grow: JSON (an object a line), CSV, XML and Avro."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from watersmeet.catalog.parts import Encoding
from watersmeet.errors import error
from watersmeet.formats.avrocontainers import container_block, container_head
from watersmeet.formats.avrowriter import derived_schema, record_encoder
from watersmeet.formats.schemafiles import schema_bytes
from watersmeet.formats.valuetexts import EXACT_JSON
from watersmeet.formats.writers import Writer, concatenated, csv_header, csv_writer, json_writer, value_bytes
from watersmeet.formats.xmlwriter import DATA_ELEMENTS, tags, xml_writer
from watersmeet.types import Schema

#: Rows that are written at once: their text has less than 2 GB.
_SLICE_ROWS: Final = 1 << 17


@dataclass(frozen=True)
class GrowingFormat:
    """head: with what a file begins. tail: with what it ends, once no more rows come. rows: the bytes of rows, which
    can follow the head or other rows.
    """

    head: bytes
    rows: Callable[[pa.Table], bytes]
    tail: bytes = b""


def growing_format(columns: Schema, encoding: Encoding, options: Mapping[str, str]) -> GrowingFormat:
    """The format of files of rows of these columns. CONNECTOR_OPTION, FEATURE_NOT_SUPPORTED."""
    if encoding == "json":
        return GrowingFormat(b"", _lines(json_writer(columns, EXACT_JSON.asked(options))))
    if encoding == "csv":
        delimiter = options.get("delimiter", ",")
        head = b"" if options.get("without_header", "true") == "true" else csv_header(columns, delimiter)
        return GrowingFormat(head, _lines(csv_writer(columns, delimiter)))
    if encoding == "xml":
        begin, end = tags(options.get(DATA_ELEMENTS, "data"))
        head = b'<?xml version="1.0" encoding="UTF-8"?>\n' + begin.encode() + b"\n"
        return GrowingFormat(head, _lines(xml_writer(columns, options)), end.encode() + b"\n")
    if encoding == "avro":
        return _avro(columns, options)
    raise error("FEATURE_NOT_SUPPORTED", f"files in {encoding.upper()} that grow")


def _avro(columns: Schema, options: Mapping[str, str]) -> GrowingFormat:
    given = schema_bytes(options)
    schema = json.loads(given) if given is not None else derived_schema(columns, "row")
    encode = record_encoder(columns, schema)
    sync = hashlib.md5(json.dumps(schema).encode(), usedforsecurity=False).digest()
    return GrowingFormat(
        container_head(schema, sync), lambda rows: container_block(len(rows), value_bytes(encode(rows)), sync)
    )


def _lines(writer: Writer) -> Callable[[pa.Table], bytes]:
    def written(rows: pa.Table) -> bytes:
        begins = range(0, len(rows), _SLICE_ROWS)
        return b"".join(value_bytes(concatenated([writer.write(rows.slice(b, _SLICE_ROWS)), b"\n"])) for b in begins)

    return written

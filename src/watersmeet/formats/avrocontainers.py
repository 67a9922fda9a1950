"""The bytes of Avro's container files: a head with the schema, and blocks of records.

Avro 1.12, "Object Container Files".
"""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa


def container_head(schema: Any, sync: bytes) -> bytes:
    """The beginning of a file without compression. schema: as JSON has it. sync: 16 bytes, which end each block."""
    text = json.dumps(schema).encode()
    return b"".join((b"Obj\x01", _varint(1), _varint(11), b"avro.schema", _varint(len(text)), text, _varint(0), sync))


def container_block(count: int, records: bytes | memoryview | pa.Buffer, sync: bytes) -> bytes:
    """A block of so many records."""
    return b"".join((_varint(count), _varint(memoryview(records).nbytes), records, sync))


def _varint(number: int) -> bytes:
    """A number that is not negative as Avro writes it."""
    rest = number << 1
    out = bytearray()
    while rest > 0x7F:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)
    return bytes(out)

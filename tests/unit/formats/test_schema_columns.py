"""Columns that are taken from schemas."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from tests.unit.formats.fake_registry import FakeRegistry, fake_registry

from watersmeet.catalog import MessageFormat
from watersmeet.errors import Error
from watersmeet.formats.decoders import registered_schema, schema_columns

ROW = {
    "type": "record",
    "name": "row",
    "fields": [
        {"name": "id", "type": "int"},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "at", "type": ["null", {"type": "long", "logicalType": "timestamp-millis"}]},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
        {"name": "counts", "type": {"type": "map", "values": "long"}},
        {"name": "any", "type": ["null", "long", "string"]},
    ],
}
ENVELOPE = {
    "type": "record",
    "name": "Envelope",
    "fields": [
        {"name": "before", "type": ["null", ROW]},
        {"name": "after", "type": ["null", "row"]},
        {"name": "op", "type": "string"},
    ],
}
COLUMNS = [
    ("id", "integer"),
    ("price", "numeric(9,2)"),
    ("at", "timestamp with time zone"),
    ("tags", "character varying[]"),
    ("counts", "struct<key character varying, value bigint>[]"),
    ("any", "jsonb"),
]
PROTO = """
syntax = "proto3";
message A { int32 id = 1; repeated uint64 big = 2; B b = 3; enum E { X = 0; } E e = 4; }
message B { bool ok = 1; }
"""
JSON = {
    "type": "object",
    "definitions": {"money": {"type": "number"}},
    "properties": {
        "id": {"type": "integer"},
        "at": {"type": ["null", "string"], "format": "date-time"},
        "price": {"$ref": "#/definitions/money"},
        "lines": {"type": "array", "items": {"type": "object", "properties": {"n": {"type": "boolean"}}}},
        "rest": {},
    },
}


@pytest.fixture
def registry() -> Iterator[FakeRegistry]:
    with fake_registry() as fake:
        yield fake


def shown(registry: FakeRegistry, encoding: Any, topic: str = "t", rows: Any = "plain", **options: str) -> Any:
    form = MessageFormat(
        rows=rows, encoding=encoding, options={"schema.registry": registry.address, **options}, key_encoding=encoding
    )
    return [(c.name, c.type.sql) for c in schema_columns(form, registered_schema(form, topic))]


def test_avro(registry: FakeRegistry) -> None:
    registry.add({"type": "record", "name": "old", "fields": []}, subject="t-value")
    registry.add(ROW, subject="t-value")
    assert shown(registry, "avro") == COLUMNS
    as_json = shown(registry, "avro", **{"map.handling.mode": "jsonb"})
    assert as_json[4] == ("counts", "jsonb")


def test_debezium_gives_the_columns_of_rows(registry: FakeRegistry) -> None:
    registry.add(ENVELOPE, subject="t-value")
    assert shown(registry, "avro", rows="debezium") == COLUMNS


def test_protobuf(registry: FakeRegistry) -> None:
    registry.add(PROTO, "PROTOBUF", subject="t-value")
    expected = [("id", "integer"), ("big", "numeric(20,0)[]"), ("b", "struct<ok boolean>"), ("e", "character varying")]
    assert shown(registry, "protobuf", message="A") == expected
    with pytest.raises(Error, match="several messages"):
        shown(registry, "protobuf")
    with pytest.raises(Error, match='no message "C"'):
        shown(registry, "protobuf", message="C")


def test_json(registry: FakeRegistry) -> None:
    registry.add(JSON, "JSON", subject="t-value")
    assert shown(registry, "json") == [
        ("id", "bigint"),
        ("at", "timestamp with time zone"),
        ("price", "double precision"),
        ("lines", "struct<n boolean>[]"),
        ("rest", "jsonb"),
    ]


def test_names_of_subjects(registry: FakeRegistry) -> None:
    strategy = "schema.registry.name.strategy"
    registry.add(ROW, subject="a.row")
    registry.add(ROW, subject="t-a.row")
    for name in ("record_name_strategy", "topic_record_name_strategy"):
        assert shown(registry, "avro", message="a.row", **{strategy: name}) == COLUMNS
        with pytest.raises(Error, match="wants the name of the message"):
            shown(registry, "avro", **{strategy: name})
    assert registry.asked == ["/subjects/a.row/versions/latest", "/subjects/t-a.row/versions/latest"]
    with pytest.raises(Error, match="no strategy"):
        shown(registry, "avro", **{strategy: "x"})


def test_no_schema(registry: FakeRegistry) -> None:
    with pytest.raises(Error, match='no subject "t-value"'):
        shown(registry, "avro")
    registry.add(ROW, subject="t-value")
    with pytest.raises(Error, match="is one of AVRO, the messages are in JSON"):
        shown(registry, "json")
    with pytest.raises(Error, match="can't be taken from messages in CSV"):
        schema_columns(MessageFormat(encoding="csv"), None)
    registry.status = 500
    with pytest.raises(OSError, match="500"):
        shown(registry, "avro")


def test_a_schema_in_an_object_store(bucket: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in bucket.environment.items():
        monkeypatch.setenv(name, value)
    bucket.put("schemas/row.avsc", json.dumps(ROW))
    form = MessageFormat("plain", "avro", options={"schema.location": f"s3://{bucket.name}/schemas/row.avsc"})
    assert [(c.name, c.type.sql) for c in schema_columns(form, None)] == COLUMNS
    other = MessageFormat("plain", "avro", options={"schema.location": f"s3://{bucket.name}/schemas/none"})
    with pytest.raises(Error, match="there is no object s3://"):
        schema_columns(other, None)

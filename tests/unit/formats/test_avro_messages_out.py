"""Avro as it is written, read by fastavro."""

import datetime as dt
import decimal
import io
import json

import fastavro
import numpy as np
import pyarrow as pa
import pytest

from watersmeet.catalog import MessageFormat
from watersmeet.errors import Error
from watersmeet.formats import avrowriter
from watersmeet.formats.avrowriter import derived_schema, record_encoder
from watersmeet.formats.encoders import Destination, open_encoder
from watersmeet.formats.registry import RegisteredSchema
from watersmeet.values.types import (
    BIGINT,
    BOOLEAN,
    BYTEA,
    DATE,
    DOUBLE,
    INTEGER,
    JSONB,
    REAL,
    SMALLINT,
    TIME,
    TIMESTAMP,
    TIMESTAMPTZ,
    VARCHAR,
    Field,
    SqlType,
)

POINT = SqlType("struct", fields=(("x", INTEGER), ("y", VARCHAR)))
UTC = dt.datetime(2024, 1, 2, 3, 4, 5, 6, dt.UTC)


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (BOOLEAN, [True, None, False]),
        (SMALLINT, [-(2**15), None, 2**15 - 1]),
        (BIGINT, [0, -1, 63, 64, -64, -65, 8191, 8192, 2**63 - 1, -(2**63), None]),
        (REAL, [0.5, None]),
        (DOUBLE, [1e300, None, -0.0]),
        (VARCHAR, ["", "é" * 100, None]),
        (BYTEA, [b"", b"\x00\xff", None]),
        (JSONB, ['{"a":1}', None]),
        (DATE, [dt.date(1, 1, 1), None, dt.date(2024, 2, 29)]),
        (TIME, [dt.time(1, 2, 3, 4), None]),
        (TIMESTAMP, [dt.datetime(2024, 1, 2, 3, 4, 5, 6), None]),
        (TIMESTAMPTZ, [UTC, None]),
        (SqlType("numeric", 20, 2), [decimal.Decimal(n) / 100 for n in (0, 1, -1, 127, 128, -128, -129, 10**19)]),
        (SqlType("array", element=BIGINT), [[1, None], [], None, [300]]),
        (POINT, [{"x": 1, "y": None}, None, {"x": None, "y": "b"}]),
        (SqlType("array", element=POINT), [[{"x": 1, "y": "a"}, None], None, []]),
    ],
)
@pytest.mark.parametrize("cut", [0, 1])
def test_fastavro_reads_what_was_written(kind, values, cut):
    columns = (Field("c", kind),)
    schema = derived_schema(columns, "r")
    rows = pa.table({"c": pa.array(values, kind.arrow)}).slice(cut)
    found = record_encoder(columns, schema)(rows).to_pylist()
    parsed = fastavro.parse_schema(schema)
    streams = [io.BytesIO(v) for v in found]
    assert [fastavro.schemaless_reader(s, parsed) for s in streams] == rows.to_pylist()
    assert all(not s.read() for s in streams)


class Registry:
    def __init__(self, newest=None):
        self.schemas = {} if newest is None else {"t-value": RegisteredSchema(7, "AVRO", json.dumps(newest))}

    def newest(self, subject):
        return self.schemas.get(subject)

    def register(self, subject, kind, text):
        self.schemas[subject] = RegisteredSchema(len(self.schemas) + 1, kind, text)
        return self.schemas[subject].id


def encoder(monkeypatch, registry):
    monkeypatch.setattr(avrowriter, "open_registry", lambda options: registry)
    columns = (Field("id", INTEGER), Field("v", VARCHAR))
    return open_encoder(columns, ("id",), MessageFormat("upsert", "avro"), Destination("t"))


ROWS = pa.table({"id": pa.array([1], pa.int32()), "v": ["a"]})


def test_schemas_of_new_subjects_are_registered(monkeypatch):
    registry = Registry()
    got = encoder(monkeypatch, registry).encode(ROWS, np.array([1]), 0)
    assert sorted(registry.schemas) == ["t-key", "t-value"]
    assert got.keys.to_pylist() == [b"\0\0\0\0\1\2\2"]
    assert got.values.to_pylist() == [b"\0\0\0\0\2\2\2\2\2a"]


def test_the_newest_schema_is_used_and_has_to_take_the_columns(monkeypatch):
    fields = [{"name": "v", "type": ["string", "null"]}, {"name": "id", "type": "long"}]
    extra = {"name": "x", "type": ["null", "int"]}
    registry = Registry({"type": "record", "name": "r", "fields": [*fields, extra]})
    got = encoder(monkeypatch, registry).encode(ROWS, np.array([1]), 0)
    assert got.values.to_pylist() == [b"\0\0\0\0\7\0\2a\2\0"]
    for wrong in (fields[:1], [*fields, {"name": "x", "type": "int"}], [fields[0], {"name": "id", "type": "string"}]):
        with pytest.raises(Error, match="Avro schema does not take"):
            encoder(monkeypatch, Registry({"type": "record", "name": "r", "fields": wrong})).encode(
                ROWS, np.array([1]), 0
            )


def changes_in_avro(monkeypatch, registry, columns, rows, diff, **options):
    monkeypatch.setattr(avrowriter, "open_registry", lambda options: registry)
    form = MessageFormat("debezium", "avro", options=options)
    to = Destination("shop.1orders", "shop", "orders")
    return open_encoder(columns, ("id",), form, to).encode(rows, np.array(diff), 5_000_001)


def test_envelopes_of_debezium(monkeypatch):
    registry = Registry()
    columns = (Field("id", INTEGER), Field("v", VARCHAR), Field("p", POINT))
    rows = pa.table(
        {
            "id": pa.array([1, 1, 2, 3], pa.int32()),
            "v": ["a", "b", None, "c"],
            "p": pa.array([{"x": 1, "y": None}, None, None, {"x": None, "y": "y"}], POINT.arrow),
        }
    )
    got = changes_in_avro(monkeypatch, registry, columns, rows, [-1, 1, 1, -1])
    schema = json.loads(registry.schemas["shop.1orders-value"].text)
    assert (schema["name"], schema["namespace"]) == ("Envelope", "shop._1orders")
    assert schema["fields"][1]["type"] == ["null", "Value"]
    parsed = fastavro.parse_schema(schema)
    header = b"\0" + registry.schemas["shop.1orders-value"].id.to_bytes(4, "big")
    values = got.values.to_pylist()
    assert all(v is None or v.startswith(header) for v in values)
    first, second, third, fourth = rows.to_pylist()
    told = {"source": {"db": "shop", "table": "orders", "ts_ms": 5000}, "ts_ms": 5000}
    assert [v and fastavro.schemaless_reader(io.BytesIO(v[5:]), parsed) for v in values] == [
        {"before": first, "after": second, "op": "u", **told},
        {"before": None, "after": third, "op": "c", **told},
        {"before": fourth, "after": None, "op": "d", **told},
        None,
    ]
    keys = got.keys.to_pylist()
    assert len(set(keys[:3])) == 3
    assert keys[3] == keys[2]


def test_envelopes_take_the_name_of_message(monkeypatch):
    registry = Registry()
    changes_in_avro(monkeypatch, registry, (Field("id", INTEGER), Field("v", VARCHAR)), ROWS, [1], message="a.b.Change")
    schema = json.loads(registry.schemas["shop.1orders-value"].text)
    assert (schema["name"], schema["namespace"]) == ("Change", "a.b")


def test_columns_of_envelopes_have_names_that_avro_takes(monkeypatch):
    columns = (Field("id", INTEGER), Field("a b", VARCHAR))
    with pytest.raises(Error, match='Avro can\'t have a field "a b"'):
        changes_in_avro(monkeypatch, Registry(), columns, None, [1])

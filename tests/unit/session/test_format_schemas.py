"""Format schemas of Timeplus, and streams that name them."""

from __future__ import annotations

import json

import pytest
from tests.kafkatopics import messages

import watersmeet

PROTO = 'syntax = "proto3"; message Order { int32 id = 1; string item = 2; message Line { int32 n = 1; } }'
AVRO = json.dumps(
    {"type": "record", "name": "r", "fields": [{"name": "id", "type": "int"}, {"name": "item", "type": "string"}]}
)


@pytest.fixture
def session(tmp_path):
    with watersmeet.connect(tmp_path / "db", dialect="timeplus", runtime="inprocess") as connection:
        yield connection


def rows(connection, query):
    return connection.execute(query).fetchall()


def stream(broker, topic, form, schema, columns="id int, item string"):
    return (
        f"CREATE EXTERNAL STREAM s ({columns}) SETTINGS type='kafka', brokers='{broker.bootstrap}', topic='{topic}', "
        f"data_format='{form}', format_schema='{schema}'"
    )


def test_messages_are_written_and_read_by_a_schema_in_the_database(broker, topic, tmp_path):
    name = topic()
    with watersmeet.connect(tmp_path / "db", dialect="timeplus", runtime="inprocess") as session:
        session.execute(f"CREATE FORMAT SCHEMA orders AS '{PROTO}' TYPE Protobuf")
        session.execute(stream(broker, name, "ProtobufSingle", "orders:Order"))
        session.execute("INSERT INTO s (id, item) VALUES (1, 'pen'), (0, '')")
        assert [m.value() for m in messages(broker, name)] == [b"\x08\x01\x12\x03pen", b""]
    with watersmeet.connect(tmp_path / "db", dialect="timeplus", runtime="inprocess") as session:
        assert rows(session, "SELECT id, item FROM table(s)") == [(1, "pen"), (0, "")]


def test_avro_is_read_by_a_schema_in_the_database(broker, topic, session):
    name = topic()
    producer = broker.producer()
    producer.produce(name, b"\x02\x06pen")
    producer.flush()
    session.execute(f"CREATE FORMAT SCHEMA orders AS '{AVRO}' TYPE Avro")
    session.execute(stream(broker, name, "Avro", "orders"))
    assert rows(session, "SELECT id, item FROM table(s)") == [(1, "pen")]


def test_schemas_are_listed_and_dropped(broker, topic, session):
    session.execute(f"CREATE FORMAT SCHEMA orders AS '{PROTO}' TYPE Protobuf")
    session.execute(f"CREATE FORMAT SCHEMA IF NOT EXISTS orders AS '{PROTO}' TYPE Protobuf")
    assert rows(session, "SHOW FORMAT SCHEMAS") == [("orders",)]
    assert PROTO in str(rows(session, "SHOW CREATE FORMAT SCHEMA orders"))
    session.execute(stream(broker, topic(), "ProtobufSingle", "orders:Order"))
    with pytest.raises(watersmeet.Error, match="DEPENDENT_OBJECTS"):
        session.execute("DROP FORMAT SCHEMA orders")
    session.execute("DROP STREAM s")
    session.execute("DROP FORMAT SCHEMA orders")
    session.execute("DROP FORMAT SCHEMA IF EXISTS orders")
    assert rows(session, "SHOW FORMAT SCHEMAS") == []


@pytest.mark.parametrize(
    ("statement", "condition", "words"),
    [
        ("CREATE FORMAT SCHEMA o AS 'message {' TYPE Protobuf", "CONNECTOR_OPTION", "is no schema of Protobuf"),
        ("CREATE FORMAT SCHEMA o AS '{' TYPE Avro", "CONNECTOR_OPTION", "Avro"),
        ("CREATE FORMAT SCHEMA o AS 'x' TYPE Json", "INVALID_PARAMETER", "can't be of type Json"),
        ("SELECT * FROM known", "CATALOG_TYPE_MISMATCH", 'format schema "known" can\'t be read by a query'),
    ],
)
def test_what_is_refused(session, statement, condition, words):
    session.execute(f"CREATE FORMAT SCHEMA known AS '{PROTO}' TYPE Protobuf")
    with pytest.raises(watersmeet.Error) as caught:
        session.execute(statement)
    assert caught.value.condition == condition
    assert words in caught.value.message
    assert caught.value.span is not None


@pytest.mark.parametrize(
    ("form", "schema", "condition", "words"),
    [
        ("ProtobufSingle", "ordes:Order", "UNDEFINED_OBJECT", 'format schema "ordes" does not exist'),
        ("ProtobufSingle", "orders:Ordr", "CONNECTOR_OPTION", 'no message "Ordr"'),
        ("Avro", "orders", "CONNECTOR_OPTION", "is one of protobuf, and the messages are in avro"),
    ],
)
def test_streams_that_name_a_wrong_schema(broker, topic, session, form, schema, condition, words):
    session.execute(f"CREATE FORMAT SCHEMA orders AS '{PROTO}' TYPE Protobuf")
    with pytest.raises(watersmeet.Error) as caught:
        session.execute(stream(broker, topic(), form, schema))
    assert caught.value.condition == condition
    assert words in caught.value.message
    assert caught.value.span is not None

"""From topic to view to topic, in the formats that stand beside JSON and Avro."""

from __future__ import annotations

import json

import pytest
from confluent_kafka import TopicPartition

import watersmeet
from watersmeet.sinkwriters.writers import SinkWriters


@pytest.fixture
def connection(tmp_path):
    with watersmeet.connect(tmp_path / "db", runtime="inprocess", parallelism=1) as made:
        yield made


def options(broker, name, **more):
    listed = {"connector": "kafka", "topic": name, "properties.bootstrap.server": broker.bootstrap, **more}
    return "WITH (" + ", ".join(f"{n} = '{v}'" for n, v in listed.items()) + ")"


def delivered(connection, broker, name, count):
    """The (key, value) of the messages that the sink has sent."""
    notices = connection.flush()
    assert notices == ()
    sink = connection._session.catalog.by_name("out")
    assert connection._session.database.service(SinkWriters).wait(sink.id, 60)
    consumer = broker.consumer(**{"isolation.level": "read_committed"})
    consumer.assign([TopicPartition(name, 0, 0)])
    found = consumer.consume(count, 30)
    consumer.close()
    return [(m.key(), m.value()) for m in found]


def send(broker, name, *values):
    producer = broker.producer()
    for value in values:
        producer.produce(name, value)
    producer.flush()


def dead(connection):
    query = "SELECT value, reason FROM watersmeet.dead_letters"
    return connection.execute(query).fetchall()


def test_csv_comes_in_and_json_goes_out(connection, broker, topic):
    name, out = topic(), topic()
    connection.execute(
        f"""CREATE SOURCE s (id int, text varchar, price numeric) {options(broker, name)}
            FORMAT PLAIN ENCODE CSV (delimiter = ';', without_header = 'true')"""
    )
    connection.execute(
        "CREATE MATERIALIZED VIEW v AS SELECT text, count(*) AS n, sum(price) AS total FROM s GROUP BY text"
    )
    more = {"primary_key": "text", "progress.topic": f"p_{out}"}
    connection.execute(f"CREATE SINK out FROM v {options(broker, out, **more)} FORMAT UPSERT ENCODE JSON")
    send(broker, name, b'1;"a;b";1.10', b'2;"a;b";2.2', b"3;c", b"4;c;0.1")
    found = {json.loads(k)["text"]: json.loads(v) for k, v in delivered(connection, broker, out, 2)}
    assert {text: (row["n"], float(row["total"])) for text, row in found.items()} == {"a;b": (2, 3.3), "c": (1, 0.1)}
    assert [value for value, _ in dead(connection)] == [b"3;c"]


def test_bytes_come_in_and_go_out(connection, broker, topic):
    name, out = topic(), topic()
    connection.execute(f"CREATE SOURCE s (data bytea) {options(broker, name)} FORMAT PLAIN ENCODE BYTES")
    connection.execute("CREATE MATERIALIZED VIEW v AS SELECT data FROM s")
    more = {"type": "append-only", "progress.topic": f"p_{out}"}
    connection.execute(f"CREATE SINK out FROM v {options(broker, out, **more)} FORMAT PLAIN ENCODE BYTES")
    sent = [b"\x00\xff", b"", b"text"]
    send(broker, name, *sent)
    assert sorted(v for _, v in delivered(connection, broker, out, 3)) == sorted(sent)


def test_protobuf_comes_in_and_json_goes_out(connection, broker, topic, tmp_path):
    name, out = topic(), topic()
    schema = tmp_path / "order.proto"
    schema.write_text('syntax = "proto3";\nmessage Order { int64 id = 1; string text = 2; }\n')
    connection.execute(
        f"""CREATE SOURCE s (id bigint, text varchar) {options(broker, name)}
            FORMAT PLAIN ENCODE PROTOBUF (schema.location = 'file://{schema}', message = 'Order')"""
    )
    connection.execute("CREATE MATERIALIZED VIEW v AS SELECT id, text FROM s")
    more = {"type": "append-only", "progress.topic": f"p_{out}"}
    connection.execute(f"CREATE SINK out FROM v {options(broker, out, **more)} FORMAT PLAIN ENCODE JSON")
    # Field 1 as a varint, field 2 as bytes; the second message ends in the middle of a field.
    send(broker, name, b"\x08\x07\x12\x02hi", b"\x08\x07\x12\x7fhi", b"\x08\x08")
    found = [json.loads(v) for _, v in delivered(connection, broker, out, 2)]
    assert sorted((row["id"], row["text"]) for row in found) == [(7, "hi"), (8, "")]
    assert [value for value, _ in dead(connection)] == [b"\x08\x07\x12\x7fhi"]

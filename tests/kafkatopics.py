"""What topics of Kafka have, by a consumer of its own and by a connection in the dialect of Lenses."""

from __future__ import annotations

import io
import json
from urllib.request import Request, urlopen

import fastavro
from confluent_kafka import TopicPartition
from confluent_kafka.admin import ConfigResource, ResourceType

from watersmeet.sinkwriters.writers import SinkWriters


def send(broker, topic, *records):
    """Writes records: (key, value)."""
    producer = broker.producer()
    for key, value in records:
        producer.produce(topic, value, key=key)
    producer.flush()


def there(broker, topic):
    """What a consumer of committed records reads: (partition, key, value, time) by offset."""
    return [(m.partition(), m.key(), m.value(), m.timestamp()[1]) for m in messages(broker, topic)]


def messages(broker, topic):
    """What a consumer of committed records reads, by offset."""
    partitions = broker.admin().list_topics(topic, timeout=30).topics[topic].partitions
    consumer = broker.consumer(**{"isolation.level": "read_committed", "enable.partition.eof": True})
    consumer.assign([TopicPartition(topic, p, 0) for p in partitions])
    found, ended = [], set()
    while len(ended) < len(partitions):
        message = consumer.poll(30)
        if message.error() is not None:
            ended.add(message.partition())
        else:
            found.append(message)
    consumer.close()
    return found


def rows(connection, sql):
    connection.execute("FLUSH")
    return sorted(connection.execute(sql).fetchall(), key=str)


def table(connection, topic, fields="_key, *"):
    """The topic as a table."""
    connection.execute("FLUSH")
    query = connection.start(f"SELECT TABLE {fields} FROM {topic}")
    found, diff = query.take()
    query.close()
    assert (diff == 1).all()
    return sorted(tuple(r.values()) for r in found.to_pylist())


def settings_of(broker, topic):
    resource = ConfigResource(ResourceType.TOPIC, topic)
    admin = broker.admin()
    return {n: e.value for n, e in admin.describe_configs([resource])[resource].result(30).items()}


def partitions(broker, topic):
    topics = broker.admin().list_topics(timeout=30).topics
    return len(topics[topic].partitions) if topic in topics else None


def delivered(connection):
    """Waits until the topics of all processors have what was committed."""
    connection.execute("FLUSH")
    session = connection._session
    for relation in session.catalog.relations.values():
        assert session.database.service(SinkWriters).wait(relation.id, 60)
        status = session.database.service(SinkWriters).status(relation.id)
        assert status is None or status.state == "running", status


def asked(registry, path, body=None):
    """What a schema registry answers."""
    data = None if body is None else json.dumps(body).encode()
    with urlopen(Request(registry.url + path, data, {"Content-Type": "application/vnd.schemaregistry.v1+json"})) as got:
        return json.load(got)


def avro_values(registry, subject, schema, *values):
    """Messages without a key and with these values in Confluent's wire format; the schema is registered."""
    number = asked(registry, f"/subjects/{subject}/versions", {"schema": json.dumps(schema)})["id"]
    found = []
    for value in values:
        out = io.BytesIO()
        out.write(b"\0" + number.to_bytes(4, "big"))
        fastavro.schemaless_writer(out, fastavro.parse_schema(schema), value)
        found.append((None, out.getvalue()))
    return found


def read_avro(registry, payload):
    """A key or a value in Confluent's wire format, by the schema whose id it has; None for none."""
    if payload is None:
        return None
    assert payload[0] == 0
    schema = json.loads(asked(registry, f"/schemas/ids/{int.from_bytes(payload[1:5], 'big')}")["schema"])
    return fastavro.schemaless_reader(io.BytesIO(payload[5:]), fastavro.parse_schema(schema), None)

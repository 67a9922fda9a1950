"""Topics of Lenses in Avro, with a real broker and a real schema registry."""

import json
from decimal import Decimal

import pytest
from tests.kafkatopics import asked, avro_values, delivered, read_avro, rows, table, there


@pytest.fixture
def connection(broker, registry, opened):
    return opened(kafka={"bootstrap.servers": broker.bootstrap, "schema.registry.url": registry.url})


def records(broker, registry, topic):
    return [(read_avro(registry, key), read_avro(registry, value)) for _, key, value, _ in there(broker, topic)]


def write(broker, registry, topic, schema, value):
    ((_, encoded),) = avro_values(registry, f"{topic}-value", schema, value)
    producer = broker.producer()
    producer.produce(topic, encoded, key=b"k")
    producer.flush()


def test_store_as_avro_registers_schemas_of_keys_and_values(broker, registry, connection, named):
    source, target, counted = named("source"), named("target"), named("counted")
    connection.execute(
        f"""
        SET defaults.topic.autocreate=true;
        CREATE TABLE {source} (_key int, id int, name string NULL, price decimal(10,2)) FORMAT (INT, JSON);
        INSERT INTO {target} STORE KEY AS AVRO VALUE AS AVRO SELECT STREAM * FROM {source};
        INSERT INTO {counted} STORE VALUE AS AVRO SELECT TABLE name, id, COUNT(*) AS n FROM {source} GROUP BY name, id;
        """
    )
    connection.execute(f"INSERT INTO {source} VALUES (1, 10, 'John', 1.25), (2, 20, NULL, 7)")
    delivered(connection)
    assert sorted(records(broker, registry, target), key=str) == [
        (1, {"id": 10, "name": "John", "price": Decimal("1.25")}),
        (2, {"id": 20, "name": None, "price": 7}),
    ]
    keys, values = (asked(registry, f"/subjects/{target}-{part}/versions/latest") for part in ("key", "value"))
    assert [f["name"] for f in json.loads(values["schema"])["fields"]] == ["id", "name", "price"]
    for _, key, value, _ in there(broker, target):
        assert (key[:5], value[:5]) == tuple(b"\0" + s["id"].to_bytes(4, "big") for s in (keys, values))
    # A key of several fields is a record.
    connection.execute(f"INSERT INTO {source} (_key, _value) VALUES (2, NULL)")
    delivered(connection)
    assert ({"name": "John", "id": 10}, {"name": "John", "id": 10, "n": 1}) in records(broker, registry, counted)
    assert ({"name": None, "id": 20}, None) in records(broker, registry, counted)


def test_a_declared_topic_in_avro_comes_back_as_it_was_written(broker, registry, connection, named):
    name = named()
    connection.execute(
        f"CREATE TABLE {name} (_key struct<plate string, n int>, id int, address.city string) FORMAT (AVRO, AVRO)"
    )
    connection.execute(f"INSERT INTO {name} VALUES (row('M', 5), 7, row('Oslo')), (row('B', 1), 8, row('Bonn'))")
    connection.execute(f"INSERT INTO {name} (_key, _value) VALUES (row('B', 1), NULL)")
    assert rows(connection, f"SELECT id, address.city FROM {name}") == [(7, "Oslo"), (8, "Bonn"), (None, None)]
    assert table(connection, name, "id, address.city") == [(7, "Oslo")]
    assert records(broker, registry, name)[2] == ({"plate": "B", "n": 1}, None)


def test_schemas_evolve(broker, registry, connection, named):
    """Each message is read by the schema that it was written with."""
    name = named()
    connection.execute(f"CREATE TABLE {name} (id bigint, name string NULL, size double NULL) FORMAT (STRING, AVRO)")
    first = {"type": "record", "name": "v", "fields": [{"name": "id", "type": "int"}]}
    second = {**first, "fields": [*first["fields"], {"name": "name", "type": ["null", "string"], "default": None}]}
    third = {
        **second,
        "fields": [
            {"name": "id", "type": "long"},
            *second["fields"][1:],
            {"name": "size", "type": "double", "default": 0.5},
            {"name": "other", "type": ["null", "string"], "default": None},
        ],
    }
    for n, schema in enumerate((first, second, third), 1):
        value = {"id": n, "name": "x", "size": 2.5, "other": "y"}
        fields = {f["name"] for f in schema["fields"]}
        write(broker, registry, name, schema, {k: v for k, v in value.items() if k in fields})
    assert rows(connection, f"SELECT id, name, size FROM {name}") == [(1, None, None), (2, "x", None), (3, "x", 2.5)]
    connection.execute(f"INSERT INTO {name} VALUES ('k', 4, NULL, 0.5)")
    assert table(connection, name) == [("k", 4, None, 0.5)]


def test_what_the_registry_does_not_know_is_a_dead_letter(broker, registry, connection, named):
    name = named()
    connection.execute(f"CREATE TABLE {name} (id int) FORMAT (STRING, AVRO)")
    producer = broker.producer()
    producer.produce(name, b"\0\0\7\7\7\2", key=b"k")
    producer.produce(name, b'{"id": 1}', key=b"k")
    producer.flush()
    connection.execute(f"INSERT INTO {name} VALUES ('k', 3)")
    assert rows(connection, f"SELECT id FROM {name}") == [(3,)]
    found = connection.execute(f"SELECT reason FROM watersmeet.dead_letters WHERE topic = '{name}' ORDER BY `offset`")
    assert [r for (r,) in found.fetchall()] == [
        "avro: the schema registry has no schema with the id 460551",
        "avro: no zero byte and id of a schema before the value",
    ]


def test_keys_in_avro_are_plain_values_and_records_may_have_none(broker, registry, connection, named):
    name, keyless = named(), named()
    connection.execute(f"CREATE TABLE {name} (_key bigint NULL, n int) FORMAT (AVRO, AVRO)")
    connection.execute(f"INSERT INTO {name} VALUES (5, 1)")
    ((_, value),) = avro_values(
        registry,
        f"{name}-value",
        json.loads(asked(registry, f"/subjects/{name}-value/versions/latest")["schema"]),
        {"n": 2},
    )
    producer = broker.producer()
    producer.produce(name, value)
    producer.flush()
    assert asked(registry, f"/subjects/{name}-key/versions/latest")["schema"] == '"long"'
    assert records(broker, registry, name) == [(5, {"n": 1}), (None, {"n": 2})]
    assert rows(connection, f"SELECT _key, n FROM {name}") == [(5, 1), (None, 2)]
    connection.execute("SET defaults.topic.autocreate=true")
    connection.execute(f"INSERT INTO {keyless} SELECT STREAM * FROM {name}")
    delivered(connection)
    assert records(broker, registry, keyless) == records(broker, registry, name)

"""Topics of Lenses that are topics of Kafka, with a real broker."""

import json
import secrets

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import ConfigResource, ResourceType

import watersmeet
from watersmeet.errors import Error


@pytest.fixture
def named(broker):
    """Names of topics that are deleted at the end."""
    made = []

    def name(text="t"):
        made.append(f"{text}_{secrets.token_hex(4)}")
        return made[-1]

    yield name
    admin = broker.admin()
    for future in admin.delete_topics(made).values() if made else ():
        future.exception(30)


@pytest.fixture
def opened(broker, tmp_path):
    """Opens one database, again and again."""
    connections = []

    def connect(**options):
        for before in connections:
            before.close()
        where = options.pop("kafka", {"bootstrap.servers": broker.bootstrap})
        connections.append(
            watersmeet.connect(tmp_path / "db", dialect="lenses", runtime="inprocess", kafka=where, **options)
        )
        return connections[-1]

    yield connect
    for connection in connections:
        connection.close()


def there(broker, topic):
    """What a consumer of committed records reads: (partition, key, value, time) by offset."""
    partitions = broker.admin().list_topics(topic, timeout=30).topics[topic].partitions
    consumer = broker.consumer(**{"isolation.level": "read_committed", "enable.partition.eof": True})
    consumer.assign([TopicPartition(topic, p, 0) for p in partitions])
    found, ended = [], set()
    while len(ended) < len(partitions):
        message = consumer.poll(30)
        if message.error() is not None:
            ended.add(message.partition())
        else:
            found.append((message.partition(), message.key(), message.value(), message.timestamp()[1]))
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


def test_create_table_creates_the_topic_and_drop_table_deletes_it(broker, opened, named):
    connection, name = opened(), named()
    connection.execute(
        f"CREATE TABLE {name} (_key int, id int, name string NULL) FORMAT (INT, JSON) "
        "PROPERTIES (partitions=3, replication=1, compacted=true)"
    )
    assert partitions(broker, name) == 3
    assert settings_of(broker, name)["cleanup.policy"] == "compact"
    assert (name, "INT", "JSON", 3, "Kafka") in connection.execute("SHOW TOPICS").fetchall()
    connection.execute(f"DROP TABLE {name}")
    assert partitions(broker, name) is None


def test_settings_say_how_topics_are_created(broker, opened, named):
    connection, one, other, bad = opened(), named("One"), named(), named()
    connection.execute("SET defaults.topic.partitions=2")
    connection.execute("SET defaults.topic.retention.ms='3600000'")
    connection.execute(f"SET topic.{one}.partitions=4")
    connection.execute(f"SET topic.{one}.cleanup.policy='compact'")
    for name in (one, other):
        connection.execute(f"CREATE TABLE {name} (id int) FORMAT (INT, JSON)")
    assert (partitions(broker, one), partitions(broker, other)) == (4, 2)
    assert [settings_of(broker, n)["cleanup.policy"] for n in (one, other)] == ["compact", "delete"]
    assert settings_of(broker, other)["retention.ms"] == "3600000"
    connection.execute(f"SET topic.{bad}.cleanup.policy='nonsense'")
    with pytest.raises(Error, match=f'refuse topic "{bad}"') as caught:
        connection.execute(f"CREATE TABLE {bad} (id int) FORMAT (INT, JSON)")
    assert caught.value.condition == "CONNECTOR_OPTION"
    assert caught.value.span is not None


def test_insert_writes_to_kafka_and_reads_back(broker, opened, named):
    connection, name = opened(), named()
    connection.execute("SET defaults.topic.retention.ms='-1'")  # or records of 2021 expire at once
    connection.execute(f"CREATE TABLE {name} (_key int, id int, name string NULL) FORMAT (INT, JSON)")
    inserted = connection.execute(
        f"INSERT INTO {name} (_key, id, name, `@time`) VALUES (1, 10, 'John', TIMESTAMP '2021-01-01 00:00:05'), "
        "(2, 20, NULL, TIMESTAMP '2021-01-01')"
    )
    assert inserted.rowcount == 2
    connection.execute(f"INSERT INTO {name} (_key, _value) VALUES (1, NULL)")
    connection.cursor().executemany(f"INSERT INTO {name} VALUES (?, ?, ?)", [(n, n, "x") for n in (3, 4)])
    found = there(broker, name)
    assert [(int.from_bytes(k, "big"), v and json.loads(v)) for _, k, v, _ in found] == [
        (1, {"id": 10, "name": "John"}),
        (2, {"id": 20, "name": None}),
        (1, None),
        (3, {"id": 3, "name": "x"}),
        (4, {"id": 4, "name": "x"}),
    ]
    assert found[0][3] == 1609459205000
    assert table(connection, name) == [(2, 20, None), (3, 3, "x"), (4, 4, "x")]
    assert rows(connection, f"SELECT _key, id, _meta.timestamp < TIMESTAMP '2022-01-01' AS old FROM {name}") == [
        (1, 10, True),
        (1, None, False),
        (2, 20, True),
        (3, 3, False),
        (4, 4, False),
    ]
    connection.execute(f"DELETE FROM {name} WHERE id < 4")
    assert table(connection, name) == [(2, 20, None), (4, 4, "x")]
    with pytest.raises(Error, match="violates not-null constraint"):
        connection.execute(f"INSERT INTO {name} VALUES (5, NULL, 'no id')")
    connection.execute("BEGIN")
    with pytest.raises(Error, match="INSERT into a topic of Kafka is not possible inside a transaction"):
        connection.execute(f"INSERT INTO {name} VALUES (5, 5, 'x')")
    connection.execute("ROLLBACK")


def test_a_topic_has_many_writers(broker, opened, named, tmp_path):
    """Another program, another database and INSERT; keys go to the same partitions everywhere."""
    connection, name = opened(), named()
    connection.execute(f"CREATE TABLE {name} (_key string, n int) FORMAT (STRING, JSON) PROPERTIES (partitions=4)")
    producer = broker.producer(partitioner="murmur2_random")
    with watersmeet.connect(
        tmp_path / "other", dialect="lenses", runtime="inprocess", kafka={"bootstrap.servers": broker.bootstrap}
    ) as other:
        told = other.execute(f"CREATE TABLE {name} (_key string, n int) FORMAT (STRING, JSON)").notices
        assert told == (f'topic "{name}" exists in Kafka, with 4 partitions: it is used as it is',)
        for n in range(12):
            values = f"INSERT INTO {name} VALUES ('k{n % 5}', {n})"
            if n % 3 == 0:
                connection.execute(values)
            elif n % 3 == 1:
                other.execute(values)
            else:
                producer.produce(name, json.dumps({"n": n}).encode(), key=f"k{n % 5}".encode())
                producer.flush()
        newest = sorted((f"k{k}", max(n for n in range(12) if n % 5 == k)) for k in range(5))
        assert table(connection, name) == table(other, name) == newest
    places = {}
    for partition, key, *_ in there(broker, name):
        places.setdefault(key, set()).add(partition)
    assert all(len(found) == 1 for found in places.values())


def test_a_topic_that_exists_has_to_have_the_partitions_that_are_asked_for(broker, opened, named, topic):
    connection, name = opened(), topic(partitions=2)
    with pytest.raises(Error) as caught:
        connection.execute(f"CREATE TABLE {name} (id int) FORMAT (INT, JSON) PROPERTIES (partitions=3)")
    assert caught.value.condition == "INVALID_PARAMETER"
    assert caught.value.message == f'topic "{name}" exists in Kafka with 2 partitions, not 3'
    assert connection.execute("SHOW TOPICS").fetchall() == []
    assert partitions(broker, name) == 2
    connection.execute(f"CREATE TABLE {name} (id int) FORMAT (INT, JSON) PROPERTIES (partitions=2)")


def test_latest_reads_what_comes_from_now_on(broker, opened, topic):
    connection, name = opened(), topic()
    producer = broker.producer()
    producer.produce(name, b'{"n": 1}', key=b"a")
    producer.flush()
    connection.execute("SET auto.offset.reset='latest'")
    connection.execute(f"CREATE TABLE {name} (n int) FORMAT (STRING, JSON)")
    producer.produce(name, b'{"n": 2}', key=b"a")
    producer.flush()
    assert rows(connection, f"SELECT n FROM {name}") == [(2,)]


def test_what_brokers_know_of_a_record(broker, opened, topic):
    connection, name = opened(), topic(partitions=2)
    connection.execute(f"CREATE TABLE {name} (_key string NULL, n int) FORMAT (STRING, JSON)")
    producer = broker.producer()
    producer.produce(name, b'{"n": 1}', key=b"a", partition=1, headers=[("source", b"one"), ("source", b"two")])
    producer.produce(name, b'{"n": 2}', partition=1)
    producer.produce(name, b"{}", key=b"b", partition=0, headers=[("other", b"x")])
    producer.flush()
    what = "_key, n, _meta.partition, _meta.offset, HEADERASSTRING('source') AS source"
    expected = [("a", 1, 1, 0, "two"), ("b", None, 0, 0, None), (None, 2, 1, 1, None)]
    assert rows(connection, f"SELECT {what} FROM {name}") == expected
    query = connection.start(f"SELECT STREAM {what} FROM {name}")
    found, _ = query.take()
    query.close()
    assert sorted((tuple(r.values()) for r in found.to_pylist()), key=str) == expected
    assert table(connection, name) == [("a", 1), ("b", None)]
    described = [r[0] for r in connection.execute(f"DESCRIBE TABLE {name}").fetchall()]
    assert described[:6] == ["_key", "n", "_meta.timestamp", "_meta.partition", "_meta.offset", "_meta.headers"]


def test_a_script_that_fails_leaves_no_topic_in_kafka(broker, opened, named):
    connection, name = opened(), named()
    with pytest.raises(Error, match="does not exist"):
        connection.execute(
            f"CREATE TABLE {name} (id int) FORMAT (INT, JSON); SET defaults.topic.autocreate=true; "
            f"INSERT INTO x SELECT STREAM nothing FROM {name};"
        )
    assert partitions(broker, name) is None
    assert connection.execute("SHOW TOPICS").fetchall() == []


def test_a_topic_goes_on_after_a_restart_without_settings(broker, opened, named):
    connection, name = opened(), named()
    connection.execute(f"CREATE TABLE {name} (id int) FORMAT (LONG, JSON)")
    connection.execute(f"INSERT INTO {name} VALUES (1, 1)")
    assert table(connection, name) == [(1, 1)]
    connection = opened(kafka={})
    connection.execute(f"INSERT INTO {name} VALUES (2, 2)")
    assert table(connection, name) == [(1, 1), (2, 2)]


def test_refusals(broker, opened, named):
    connection, name = opened(), named()
    for sql, condition, said in (
        (f"CREATE TABLE {name} (id int) FORMAT (INT, AVRO)", "INVALID_PARAMETER", "needs a schema registry"),
        (f"CREATE TABLE {name} (a int, b int) FORMAT (INT, LONG)", "CONNECTOR_OPTION", "is one value"),
        (f"CREATE OR REPLACE TABLE {name} (id int) FORMAT (INT, JSON)", "FEATURE_NOT_SUPPORTED", "CREATE OR REPLACE"),
        ("SET error.policy='ignore'", "INVALID_PARAMETER", "error.policy"),
        ("SET topic.cleanup.policy='compact'", "UNDEFINED_OBJECT", "topic.cleanup.policy"),
    ):
        with pytest.raises(Error, match=said) as caught:
            connection.execute(sql)
        assert caught.value.condition == condition
    assert partitions(broker, name) is None
    connection.execute("SET kafka.bootstrap.servers='127.0.0.1:1'")
    with pytest.raises(Error, match="can't be reached") as caught:
        connection.execute(f"CREATE TABLE {name} (id int) FORMAT (INT, JSON)")
    assert caught.value.condition == "RUNTIME_UNAVAILABLE"
    assert caught.value.span is not None


def test_passwords_are_not_shown(opened):
    connection = opened()
    connection.execute("SET kafka.sasl.password='secret'")
    shown = dict(row[:2] for row in connection.execute("SHOW ALL").fetchall())
    assert shown["kafka.sasl.password"] == "***"
    assert shown["kafka.schema.registry.password"] == ""

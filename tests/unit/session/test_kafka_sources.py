"""RisingWave's CREATE SOURCE and CREATE TABLE over topics, with a real broker."""

import datetime as dt
import io
import json
import time

import fastavro
import pytest
from confluent_kafka import KafkaError, KafkaException
from tests.kafkatopics import avro_values

import watersmeet
from watersmeet.connectors.base import messages as decoding
from watersmeet.connectors.kafka import cluster, reading
from watersmeet.connectors.kafka.source import KafkaSource
from watersmeet.errors import Error


@pytest.fixture
def cursor(tmp_path):
    with watersmeet.connect(tmp_path / "db", runtime="inprocess") as connection:
        yield connection.cursor()


def with_options(broker, topic, **more):
    options = {"connector": "kafka", "topic": topic, "properties.bootstrap.server": broker.bootstrap, **more}
    return "WITH (" + ", ".join(f"{name} = '{value}'" for name, value in options.items()) + ")"


def rows(cursor, query):
    cursor.execute("FLUSH")
    cursor.execute(query)
    return cursor.fetchall()


def send(broker, topic, *messages):
    """messages: (key, value), values as JSON unless they are bytes or None."""
    producer = broker.producer()
    for key, value in messages:
        text = value if value is None or isinstance(value, bytes) else json.dumps(value).encode()
        producer.produce(topic, text, key=key, timestamp=1_700_000_000_000)
    producer.flush()


def test_include_shows_the_parts_of_a_message(cursor, broker, topic):
    name = topic(retention_ms=-1)
    cursor.execute(
        f"""CREATE SOURCE s (id int) INCLUDE key AS k INCLUDE partition INCLUDE offset AS o INCLUDE timestamp AS t
            INCLUDE payload AS p INCLUDE header 'h' AS h INCLUDE header 'h' VARCHAR AS text
            {with_options(broker, name)} FORMAT PLAIN ENCODE JSON"""
    )
    cursor.execute("CREATE MATERIALIZED VIEW v AS SELECT * FROM s")
    producer = broker.producer()
    producer.produce(name, b'{"id": 7}', key=b"K", headers=[("h", b"H")], timestamp=1_700_000_000_000)
    producer.flush()
    moment = dt.datetime.fromtimestamp(1_700_000_000, dt.UTC)
    assert rows(cursor, "SELECT id, k, _rw_kafka_partition, o, t, p ->> 'id', h, text FROM v") == [
        (7, b"K", "0", "0", moment, "7", b"H", "H")
    ]


def test_an_upsert_table_keeps_the_newest_row_of_each_key(cursor, broker, topic):
    planes, flights = topic(partitions=2, retention_ms=-1), topic(retention_ms=-1)
    cursor.execute(
        f"""CREATE TABLE planes (plane varchar, seats int, PRIMARY KEY (k)) INCLUDE key AS k
            {with_options(broker, planes)} FORMAT UPSERT ENCODE JSON"""
    )
    cursor.execute(
        f"CREATE SOURCE flights (no int, plane varchar) {with_options(broker, flights)} FORMAT PLAIN ENCODE JSON"
    )
    cursor.execute(
        "CREATE MATERIALIZED VIEW v AS SELECT no, seats FROM flights LEFT JOIN planes ON planes.plane = flights.plane"
    )
    send(broker, planes, (b"a", {"plane": "a", "seats": 10}), (b"b", {"plane": "b", "seats": 20}))
    send(broker, flights, (None, {"no": 1, "plane": "a"}), (None, {"no": 2, "plane": "b"}))
    assert rows(cursor, "SELECT * FROM v ORDER BY no") == [(1, 10), (2, 20)]
    send(broker, planes, (b"a", {"plane": "a", "seats": 11}), (b"b", None), (None, {"plane": "x"}))
    assert rows(cursor, "SELECT * FROM v ORDER BY no") == [(1, 11), (2, None)]
    assert rows(cursor, "SELECT plane, seats FROM planes") == [("a", 11)]
    cursor.execute("SHOW ERRORS")
    assert len(cursor.fetchall()) == 1


def test_debezium_changes_rows(cursor, broker, topic):
    name = topic(retention_ms=-1)
    cursor.execute(
        f"""CREATE TABLE t (id int PRIMARY KEY, name varchar) {with_options(broker, name)}
            FORMAT DEBEZIUM ENCODE JSON"""
    )
    cursor.execute("CREATE MATERIALIZED VIEW v AS SELECT count(*) AS n, max(name) AS name FROM t")
    key = json.dumps({"id": 1}).encode()
    send(broker, name, (key, {"before": None, "after": {"id": 1, "name": "a"}, "op": "c"}))
    assert rows(cursor, "SELECT * FROM v") == [(1, "a")]
    send(broker, name, (key, {"before": {"id": 1, "name": "a"}, "after": {"id": 1, "name": "b"}, "op": "u"}))
    assert rows(cursor, "SELECT * FROM v") == [(1, "b")]
    send(broker, name, (key, {"before": {"id": 1, "name": "b"}, "after": None, "op": "d"}), (key, None))
    assert rows(cursor, "SELECT * FROM v") == [(0, None)]


def test_watermarks_are_on_what_include_shows(cursor, broker, topic):
    name = topic(retention_ms=-1)
    cursor.execute(
        f"""CREATE SOURCE s (id int, WATERMARK FOR t AS t - INTERVAL '5 seconds') INCLUDE timestamp AS t
            {with_options(broker, name)} FORMAT PLAIN ENCODE JSON"""
    )
    cursor.execute(
        """CREATE MATERIALIZED VIEW v AS SELECT window_start, count(*) AS n
           FROM TUMBLE(s, t, INTERVAL '1 minute') GROUP BY window_start EMIT ON WINDOW CLOSE"""
    )
    producer = broker.producer()
    for second in (0, 10, 70, 200):
        producer.produce(name, b'{"id": 1}', timestamp=1_700_000_040_000 + second * 1000)
    producer.flush()
    assert [n for _, n in rows(cursor, "SELECT * FROM v ORDER BY window_start")] == [2, 1]


def test_a_database_goes_on_where_it_was(broker, topic, tmp_path):
    name = topic(retention_ms=-1)
    with watersmeet.connect(tmp_path / "db", runtime="inprocess") as connection:
        cursor = connection.cursor()
        cursor.execute(f"CREATE SOURCE s (data bytea) {with_options(broker, name)} FORMAT PLAIN ENCODE BYTES")
        cursor.execute("CREATE MATERIALIZED VIEW v AS SELECT data FROM s")
        send(broker, name, (None, b"one"), (None, b"two"))
        assert rows(cursor, "SELECT count(*) FROM v") == [(2,)]
    send(broker, name, (None, b"three"))
    with watersmeet.connect(tmp_path / "db", runtime="inprocess") as connection:
        assert rows(connection.cursor(), "SELECT data FROM v ORDER BY 1") == [(b"one",), (b"three",), (b"two",)]


def test_a_source_goes_on_after_messages_expired_when_told_to(cursor, broker, topic):
    name = topic()
    cursor.execute(f"CREATE SOURCE s (id int) {with_options(broker, name)} FORMAT PLAIN ENCODE JSON")
    cursor.execute("CREATE MATERIALIZED VIEW v AS SELECT id FROM s")
    producer = broker.producer()
    for i in range(3):
        producer.produce(name, b'{"id": %d}' % i)
    producer.flush()
    broker.delete_records(name, 0, 2)
    assert rows(cursor, "SELECT * FROM v") == []
    cursor.execute("SHOW ERRORS")
    assert "expired before they were read" in cursor.fetchall()[0][-1]
    cursor.execute("ALTER SOURCE s CONNECTOR WITH (on_data_loss = 'skip')")
    assert rows(cursor, "SELECT * FROM v") == [(2,)]
    with pytest.raises(Error, match="can't be altered"):
        cursor.execute("ALTER SOURCE s CONNECTOR WITH (topic = 'other')")


def record(*fields):
    return {"type": "record", "name": "Plane", "fields": [dict(zip(("name", "type", "default"), f)) for f in fields]}


def test_columns_come_from_the_registry_and_are_refreshed(cursor, broker, topic, registry):
    name = topic(retention_ms=-1)
    old = record(("plane", "string"), ("seats", "int"))
    send(broker, name, *avro_values(registry, f"{name}-value", old, {"plane": "a", "seats": 1}))
    cursor.execute(
        f"""CREATE SOURCE s (*) INCLUDE offset AS o {with_options(broker, name)}
            FORMAT PLAIN ENCODE AVRO (schema.registry = '{registry.url}')"""
    )
    cursor.execute("CREATE MATERIALIZED VIEW v AS SELECT * FROM s")
    assert rows(cursor, "SELECT plane, seats, o FROM v") == [("a", 1, "0")]
    new = record(("plane", "string"), ("seats", "int"), ("engines", ["null", "int"], None))
    send(broker, name, *avro_values(registry, f"{name}-value", new, {"plane": "b", "seats": 2, "engines": 4}))
    assert rows(cursor, "SELECT plane, seats FROM v ORDER BY plane") == [("a", 1), ("b", 2)]
    cursor.execute("ALTER SOURCE s REFRESH SCHEMA")
    cursor.execute("CREATE MATERIALIZED VIEW w AS SELECT plane, engines FROM s")
    assert rows(cursor, "SELECT * FROM w ORDER BY plane") == [("a", None), ("b", 4)]
    assert rows(cursor, "SELECT plane, seats FROM v ORDER BY plane") == [("a", 1), ("b", 2)]


def test_a_schema_in_a_file_counts_as_it_was_until_it_is_refreshed(cursor, broker, topic, tmp_path):
    name, file = topic(retention_ms=-1), tmp_path / "plane.avsc"

    def written(schema, value):
        out = io.BytesIO()
        fastavro.schemaless_writer(out, fastavro.parse_schema(schema), value)
        send(broker, name, (None, out.getvalue()))
        decoding._opened.cache_clear()  # as in a process that has not read messages yet

    old, new = record(("plane", "string")), record(("plane", "string"), ("seats", "int"))
    file.write_text(json.dumps(old))
    cursor.execute(
        f"""CREATE SOURCE s (*) {with_options(broker, name)}
            FORMAT PLAIN ENCODE AVRO (schema.location = 'file://{file}')"""
    )
    cursor.execute("CREATE MATERIALIZED VIEW v AS SELECT plane FROM s")
    written(old, {"plane": "a"})
    assert rows(cursor, "SELECT * FROM v") == [("a",)]
    file.unlink()
    written(old, {"plane": "b"})
    assert rows(cursor, "SELECT * FROM v ORDER BY 1") == [("a",), ("b",)]
    with pytest.raises(Error, match=r"schema.location.*can't be read"):
        cursor.execute("ALTER SOURCE s REFRESH SCHEMA")
    file.write_text(json.dumps(new))
    written(old, {"plane": "c"})
    assert rows(cursor, "SELECT count(*) FROM v") == [(3,)]
    cursor.execute("ALTER SOURCE s REFRESH SCHEMA")
    assert cursor.notices == ("1 new column",)
    written(new, {"plane": "d", "seats": 4})
    assert rows(cursor, "SELECT * FROM v ORDER BY 1") == [("a",), ("b",), ("c",), ("d",)]
    cursor.execute("ALTER SOURCE s REFRESH SCHEMA")
    assert cursor.notices == ("0 new columns",)


REFUSED = [
    ("CREATE TABLE t (k bytea PRIMARY KEY, v int) {} FORMAT UPSERT ENCODE JSON", "INCLUDE KEY clause not set"),
    ("CREATE SOURCE t (v int) INCLUDE key AS k {} FORMAT UPSERT ENCODE JSON", "FORMAT UPSERT needs a table"),
    ("CREATE TABLE t (v int PRIMARY KEY) INCLUDE key AS k {} FORMAT UPSERT ENCODE JSON", "FORMAT UPSERT needs a table"),
    ("CREATE TABLE t (v int) {} FORMAT DEBEZIUM ENCODE JSON", "FORMAT DEBEZIUM needs a table with a primary key"),
    ("CREATE SOURCE t (v int) {} FORMAT PLAIN ENCODE BYTES", "ENCODE BYTES needs exactly one column of type bytea"),
    ("CREATE SOURCE t (v int) {} FORMAT MAXWELL ENCODE JSON", "FORMAT MAXWELL ENCODE JSON is not supported"),
    ("CREATE SOURCE t (v int) {} FORMAT UPSERT ENCODE CSV", "FORMAT UPSERT ENCODE CSV is not supported"),
    ("CREATE SOURCE t (v int) {} FORMAT PLAIN ENCODE CSV (delimeter = ';')", 'has no option "delimeter"'),
    (
        "CREATE SOURCE t (v int) WITH (properties.sasl.password = SECRET p AS FILE) FORMAT PLAIN ENCODE JSON",
        "SECRET … AS FILE of option properties.sasl.password is not supported",
    ),
    ("CREATE SOURCE t (v int) INCLUDE keys {} FORMAT PLAIN ENCODE JSON", "INCLUDE keys is no part of a message"),
    ("CREATE SOURCE t (v int) INCLUDE key AS v {} FORMAT PLAIN ENCODE JSON", 'column "v" specified more than once'),
    (
        "CREATE SOURCE t (v int) INCLUDE offset WITH (connector = 'datagen')",
        "INCLUDE with connector datagen is not supported",
    ),
    (
        "CREATE SOURCE t (v int) INCLUDE key WITH (connector = 'file', path = '/x') FORMAT PLAIN ENCODE JSON",
        "INCLUDE key is no part of a file",
    ),
]


@pytest.mark.parametrize(("text", "said"), REFUSED)
def test_what_makes_no_sense_is_refused(cursor, text, said):
    options = "WITH (connector = 'kafka', topic = 't', properties.bootstrap.server = '127.0.0.1:1')"
    with pytest.raises(Error) as caught:
        cursor.execute(text.format(options))
    assert said in caught.value.message


def test_flush_names_the_sources_that_it_did_not_wait_for(cursor, broker, topic):
    stalled, paused, running = topic(), topic(), topic()
    for name, its in (("stalled", stalled), ("paused", paused), ("running", running)):
        cursor.execute(f"CREATE SOURCE {name} (id int) {with_options(broker, its)} FORMAT PLAIN ENCODE JSON")
        cursor.execute(f"CREATE MATERIALIZED VIEW {name}_rows AS SELECT id FROM {name}")
    cursor.execute("FLUSH")
    assert cursor.notices == ()
    cursor.execute("ALTER SOURCE paused SET SOURCE_RATE_LIMIT = 0")
    producer = broker.producer()
    for its in (stalled, stalled, paused, running):
        producer.produce(its, b'{"id": 1}')
    producer.flush()
    broker.delete_records(stalled, 0, 1)
    cursor.execute("FLUSH")
    first, second = sorted(cursor.notices)
    assert first == 'source "paused" was not waited for, as it is paused'
    assert first in cursor.connection.flush()
    assert second.startswith('source "stalled" was not waited for, as it is stalled: messages of topic')
    assert "on_data_loss = 'skip'" in second
    assert cursor.execute("SELECT count(*) FROM running_rows").fetchall() == [(1,)]
    cursor.execute("ALTER SOURCE stalled CONNECTOR WITH (on_data_loss = 'skip')")
    cursor.execute("ALTER SOURCE paused SET SOURCE_RATE_LIMIT = DEFAULT")
    cursor.execute("FLUSH")
    assert cursor.notices == ()
    assert cursor.execute("SELECT count(*) FROM stalled_rows").fetchall() == [(1,)]
    assert cursor.execute("SELECT count(*) FROM paused_rows").fetchall() == [(1,)]


def test_flush_sees_partitions_that_were_added_just_now(cursor, broker, topic):
    name = topic()
    cursor.execute(f"CREATE SOURCE s (id int) {with_options(broker, name)} FORMAT PLAIN ENCODE JSON")
    cursor.execute("CREATE MATERIALIZED VIEW v AS SELECT id FROM s")
    cursor.execute("FLUSH")
    for partitions in (2, 3, 4):
        broker.add_partitions(name, partitions)
        producer = broker.producer()
        producer.produce(name, b'{"id": 1}', partition=partitions - 1)
        producer.flush()
        assert rows(cursor, "SELECT count(*) FROM v") == [(partitions - 1,)]


@pytest.mark.parametrize("problem", ["the topic is made anew", "the client fails"])
def test_what_goes_wrong_between_plan_and_reading_stops_its_source_alone(cursor, broker, topic, monkeypatch, problem):
    names = {source: topic(retention_ms=-1) for source in ("broken", "beside")}
    for source, name in names.items():
        cursor.execute(f"CREATE SOURCE {source} (id int) {with_options(broker, name)} FORMAT PLAIN ENCODE JSON")
        cursor.execute(f"CREATE MATERIALIZED VIEW of_{source} AS SELECT id FROM {source}")
    cursor.execute("FLUSH")
    poll, fetch = KafkaSource.poll, reading.TopicReader._fetch

    def breaking(self, *arguments, **options):
        found = poll(self, *arguments, **options)
        if found.slices and self.options.topic == names["broken"]:
            monkeypatch.setattr(KafkaSource, "poll", poll)
            if problem == "the client fails":
                monkeypatch.setattr(reading.TopicReader, "_fetch", failing)
            else:
                broker.delete_topic(names["broken"])
                broker.create_topic(names["broken"])
        return found

    def failing(self, here, piece):
        if piece.topic == names["broken"]:
            raise KafkaException(KafkaError(KafkaError._TRANSPORT))
        fetch(self, here, piece)

    monkeypatch.setattr(KafkaSource, "poll", breaking)
    for name in names.values():
        send(broker, name, (None, {"id": 1}))
    cursor.execute("FLUSH")
    [notice] = cursor.notices
    assert notice.startswith('source "broken" was not waited for, as it is ')
    assert cursor.execute("SELECT id FROM of_beside").fetchall() == [(1,)]
    assert cursor.execute("SELECT id FROM of_broken").fetchall() == []
    if problem == "the client fails":
        monkeypatch.undo()
        assert rows(cursor, "SELECT id FROM of_broken") == [(1,)]


def test_flush_names_a_source_whose_brokers_do_not_answer(cursor, broker, topic, monkeypatch):
    cursor.execute(f"CREATE SOURCE s (id int) {with_options(broker, topic())} FORMAT PLAIN ENCODE JSON")
    cursor.execute("CREATE MATERIALIZED VIEW v AS SELECT id FROM s; FLUSH")
    assert cursor.notices == ()
    look = cluster.Cluster.look
    monkeypatch.setattr(cluster, "_TIMEOUT_S", 0.2)
    monkeypatch.setattr(cluster.Cluster, "look", lambda _: time.sleep(0.05))
    cursor.execute("FLUSH")
    said = f"the Kafka brokers at {broker.bootstrap} don't answer within 0.2 s"
    assert cursor.notices == (f'source "s" was not waited for, as it is waiting: {said}',)
    monkeypatch.setattr(cluster.Cluster, "look", look)
    monkeypatch.setattr(cluster, "_TIMEOUT_S", 60.0)
    cursor.execute("FLUSH")
    assert cursor.notices == ()


def test_what_has_expired_is_told_to_new_views_and_sources_and_rebuilds_nothing(broker, topic, tmp_path):
    name = topic()
    with watersmeet.connect(tmp_path / "db", runtime="inprocess") as connection:
        cursor = connection.cursor()
        source = f"CREATE SOURCE {{}} (id int) {with_options(broker, name)} FORMAT PLAIN ENCODE JSON"
        cursor.execute(source.format("s"))
        assert cursor.notices == ()
        cursor.execute("CREATE MATERIALIZED VIEW v AS SELECT count(*) AS n FROM s")
        producer = broker.producer()
        for number in range(5):
            producer.produce(name, b'{"id": %d}' % number)
        producer.flush()
        assert rows(cursor, "SELECT n FROM v") == [(5,)]
        broker.delete_records(name, 0, 3)
        cursor.execute("CREATE MATERIALIZED VIEW w AS SELECT id FROM s")
        expired = f'messages of topic "{name}" that have expired since they were read: offsets 0 to 2 of partition 0'
        assert cursor.notices == (f'materialized view "w" lacks {expired}',)
        assert rows(cursor, "SELECT n, id FROM v, w ORDER BY id") == [(5, 3), (5, 4)]
        cursor.execute("CREATE MATERIALIZED VIEW x AS SELECT n FROM v")
        assert cursor.notices == ()
        cursor.execute(source.format("late"))
        late = f'the first messages of topic "{name}" have expired: partition 0 begins at 3'
        assert cursor.notices == (late,)
    with pytest.raises(Error, match="the state can't be rebuilt without messages of topic"):
        watersmeet.connect(tmp_path / "db", runtime="inprocess", rebuild=True)
    with watersmeet.connect(tmp_path / "db", runtime="inprocess") as connection:
        assert connection.execute("SELECT n, id FROM v, w ORDER BY id").fetchall() == [(5, 3), (5, 4)]


def test_a_query_that_ends_reads_the_present_messages_of_a_topic(cursor, broker, topic):
    name = topic(retention_ms=-1)
    send(broker, name, (b"a", {"id": 1, "v": "x"}))
    made = f"{with_options(broker, name, **{'scan.startup.mode': 'latest'})} FORMAT PLAIN ENCODE JSON"
    cursor.execute(f"CREATE SOURCE s (id int, v varchar) INCLUDE key AS k {made}")
    assert rows(cursor, "SELECT id, v, k FROM s") == [(1, "x", b"a")]
    send(broker, name, (b"b", {"id": 2}), (b"c", {"id": 3, "v": "z"}))
    assert rows(cursor, "SELECT count(*), max(id) FROM s WHERE id > 1") == [(2, 3)]
    assert rows(cursor, "SELECT a.id FROM s a JOIN s b ON a.id = b.id + 1 ORDER BY 1") == [(2,), (3,)]
    cursor.execute(f"CREATE SOURCE g (id int, w int AS id + 1) {made}")
    with pytest.raises(Error) as found:
        cursor.execute("SELECT * FROM g")
    assert (found.value.condition, found.value.message) == (
        "FEATURE_NOT_SUPPORTED",
        'source "g" can\'t be read by a query',
    )

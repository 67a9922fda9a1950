"""Topics of Lenses that are topics of Kafka, with a real broker."""

import datetime as dt
import json
import struct
import time
from decimal import Decimal

import pytest
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType
from tests.kafkatopics import delivered, partitions, rows, settings_of, table, there
from tests.waiting import until

import watersmeet
from watersmeet.catalog import TopicWriter
from watersmeet.errors import Error
from watersmeet.sinkwriters.writers import SinkWriters


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
    until(lambda: partitions(broker, name) is None)  # the brokers have promised it


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
    newest = f"SELECT _meta.partition, _meta.offset FROM {name} WHERE _meta.offset >= LAST_OFFSET()"
    assert rows(connection, newest) == [(0, 0), (1, 1)]
    assert rows(connection, f"SELECT n FROM {name} ORDER BY _meta.offset DESC LIMIT 1") == [(2,)]
    assert table(connection, name) == [("a", 1), ("b", None)]
    described = [r[0] for r in connection.execute(f"DESCRIBE TABLE {name}").fetchall()]
    assert described[:6] == ["_key", "n", "_meta.timestamp", "_meta.partition", "_meta.offset", "_meta.headers"]


def test_headers_are_numbers(broker, opened, topic):
    connection, name = opened(), topic()
    connection.execute(f"CREATE TABLE {name} (_key string, n int NULL) FORMAT (STRING, JSON)")
    packed = [("i", ">i", -5), ("l", ">q", 1 << 40), ("f", ">f", 1.5), ("d", ">d", 3.141592653589793)]
    producer = broker.producer()
    producer.produce(name, b"{}", key=b"a", headers=[(key, struct.pack(form, value)) for key, form, value in packed])
    producer.produce(name, b"{}", key=b"b", headers=[("i", b"12345"), ("n", None)])
    producer.flush()
    what = "HEADERASINT('i'), HEADERASLONG('l'), HEADERASFLOAT('f'), HEADERASDOUBLE(\"d\"), SIZEOF(HEADERKEYS())"
    expected = [("a", *(value for _, _, value in packed), 4), ("b", None, None, None, None, 2)]
    assert rows(connection, f"SELECT _key, {what} FROM {name}") == expected


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


def test_refusals(broker, opened, named, monkeypatch):
    monkeypatch.setattr("watersmeet.connectors.kafka.cluster._TIMEOUT_S", 1.0)
    connection, name = opened(), named()
    for sql, condition, said in (
        (f"CREATE TABLE {name} (id int) FORMAT (INT, AVRO)", "INVALID_PARAMETER", "needs a schema registry"),
        (f"CREATE TABLE {name} (a int, b int) FORMAT (INT, LONG)", "CONNECTOR_OPTION", "is one value"),
        ("SET error.policy='ignore'", "INVALID_PARAMETER", "error.policy"),
        ("SET topik.cleanup.policy='compact'", "UNDEFINED_OBJECT", "topik.cleanup.policy"),
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


KINDS = {
    "bigint": ("5", 5),
    "string": ("'x'", "x"),
    "boolean": ("true", True),
    "double": ("1.5", 1.5),
    "decimal(20,2)": ("123456789012345678.25", Decimal("123456789012345678.25")),
    "timestamp": ("TIMESTAMP '2021-01-01 00:00:05.123'", dt.datetime(2021, 1, 1, 0, 0, 5, 123000)),
    "date": ("DATE '2021-02-03'", dt.date(2021, 2, 3)),
    "time": ("TIME '10:11:12.5'", dt.time(10, 11, 12, 500000)),
    "int[]": ("ARRAY[1, 2]", [1, 2]),
    "struct<x int, y string>": ("row(1, 'z')", {"x": 1, "y": "z"}),
}


def test_values_in_json_come_back_as_they_were(broker, opened, named):
    connection, name = opened(), named()
    fields = ", ".join(f"f{i} {kind}" for i, kind in enumerate(KINDS))
    connection.execute(f"CREATE TABLE {name} (_key int, {fields}) FORMAT (INT, JSON)")
    connection.execute(f"INSERT INTO {name} VALUES (1, {', '.join(text for text, _ in KINDS.values())})")
    assert rows(connection, f"SELECT * FROM {name}") == [tuple(value for _, value in KINDS.values())]


@pytest.mark.parametrize(
    ("key", "field", "formats", "values", "written", "read"),
    [
        ("int", "string", "INT, STRING", "1, 'x'", (b"\0\0\0\1", b"x"), (1, "x")),
        ("bigint", "int", "LONG, INT", "1, 7", (b"\0" * 7 + b"\1", b"\0\0\0\7"), (1, 7)),
        ("string", "bigint", "STRING, LONG", "'k', 7", (b"k", b"\0" * 7 + b"\7"), ("k", 7)),
        ("bytea", "bytea", "BYTES, BYTES", "'abc', 'de'", (b"abc", b"de"), (b"abc", b"de")),
        ("int", "int", "JSON, JSON", "4, 7", (b"4", b'{"v":7}'), (4, 7)),
        (
            "struct<plate string, n int>",
            "int",
            "JSON, JSON",
            "row('M', 5), 7",
            (b'{"plate":"M","n":5}', b'{"v":7}'),
            ({"plate": "M", "n": 5}, 7),
        ),
    ],
)
def test_formats(broker, opened, named, key, field, formats, values, written, read):
    connection, name = opened(), named()
    connection.execute(f"CREATE TABLE {name} (_key {key}, v {field}) FORMAT ({formats})")
    connection.execute(f"INSERT INTO {name} VALUES ({values})")
    assert [found[1:3] for found in there(broker, name)] == [written]
    assert rows(connection, f"SELECT _key, v FROM {name}") == [read]


def test_csv_is_only_read(broker, opened, topic):
    connection, name = opened(), topic()
    producer = broker.producer()
    producer.produce(name, b"1,two", key=b"k")
    producer.flush()
    connection.execute(f"CREATE TABLE {name} (a int, b string) FORMAT (STRING, CSV)")
    assert rows(connection, f"SELECT a, b FROM {name}") == [(1, "two")]
    with pytest.raises(Error, match="writing records in CSV is not supported"):
        connection.execute(f"INSERT INTO {name} VALUES ('k', 1, 'x')")


def test_xml_is_turned_into_json(broker, opened, named, topic):
    connection, name, target = opened(), topic(), named()
    producer = broker.producer()
    producer.produce(name, b"<who><id>7</id><address><city>Oslo</city></address></who>", key=b"k")
    producer.produce(name, b"<!DOCTYPE who [<!ENTITY id '8'>]><who><id>&id;</id></who>", key=b"k")
    producer.flush()
    connection.execute(f"CREATE TABLE {name} (id int, address.city string) FORMAT (STRING, XML)")
    connection.execute("SET defaults.topic.autocreate=true")
    connection.execute(f"INSERT INTO {target} STORE VALUE AS JSON SELECT STREAM id, address.city FROM {name}")
    assert rows(connection, f"SELECT id, city FROM {target}") == [(7, "Oslo")]
    (reason,) = connection.execute(f"SELECT reason FROM watersmeet.dead_letters WHERE topic = '{name}'").fetchall()[0]
    assert "document type" in reason


def test_records_that_are_not_where_their_keys_belong_are_repartitioned(broker, opened, named, topic):
    """A join of both topics is right all the same, and its topology shows the step."""
    connection, elsewhere, name = opened(), topic(partitions=2), named()
    producer = broker.producer()
    keys = [f"k{n}".encode() for n in range(8)]
    for n, key in enumerate(keys):  # by its own rule: none of these is the partition of murmur2 for all keys
        producer.produce(elsewhere, json.dumps({"n": n}).encode(), key=key, partition=n % 2)
    producer.flush()
    told = connection.execute(f"CREATE TABLE {elsewhere} (n int) FORMAT (STRING, JSON)").notices
    assert f'topic "{elsewhere}" is not partitioned by murmur2 of its keys: joins repartition its records' in told
    connection.execute(f"CREATE TABLE {name} (m int) FORMAT (STRING, JSON) PROPERTIES (partitions=2)")
    connection.execute(f"INSERT INTO {name} VALUES ('k1', 10), ('k5', 50)")
    query = connection.start(f"SELECT TABLE a.n, b.m FROM {elsewhere} AS a JOIN {name} AS b")
    connection.execute("FLUSH")
    found, _ = query.take()
    assert sorted(tuple(r.values()) for r in found.to_pylist()) == [(1, 10), (5, 50)]
    assert "Repartition" in connection.topology("dot")
    query.close()


def processor_of(connection, name):
    (found,) = [
        r.id for r in connection._session.catalog.relations.values() if isinstance(r, TopicWriter) and r.name == name
    ]
    return found


@pytest.mark.slow
def test_processors_write_their_topics(broker, opened, named):
    """The changes of a table with tombstones in a compacted topic, the records of a stream as they come."""
    connection = opened()
    customers, orders, joined, counted, copied = (named(n) for n in ("customers", "orders", "j", "c", "s"))
    connection.execute(
        f"""
        SET defaults.topic.autocreate=true;
        SET defaults.topic.partitions=3;
        CREATE TABLE {customers} (_key int, id int, name string) FORMAT (INT, JSON) PROPERTIES (partitions=2);
        CREATE TABLE {orders} (_key int, customer_id int, item string) FORMAT (INT, JSON) PROPERTIES (partitions=2);
        WITH c AS (SELECT TABLE * FROM {customers});
        WITH o AS (SELECT TABLE * FROM {orders});
        INSERT INTO {joined} SELECT TABLE c.name, o.item FROM c JOIN o ON c.id = o.customer_id;
        INSERT INTO {counted} SELECT TABLE name, COUNT(*) AS n FROM {customers} GROUP BY name;
        INSERT INTO {copied} STORE KEY AS LONG VALUE AS JSON SELECT STREAM * FROM {customers};
        """
    )
    assert [partitions(broker, n) for n in (joined, counted, copied)] == [3, 3, 3]
    assert [settings_of(broker, n)["cleanup.policy"] for n in (joined, counted, copied)] == ["compact"] * 2 + ["delete"]
    connection.execute(f"INSERT INTO {customers} VALUES (1, 10, 'John'), (2, 20, 'Ann')")
    connection.execute(f"INSERT INTO {orders} VALUES (1, 10, 'pen'), (2, 20, 'ink')")
    delivered(connection)
    connection.execute(f"INSERT INTO {customers} (_key, _value) VALUES (1, NULL)")
    delivered(connection)

    def messages(topic):
        return sorted((key, value) for _, key, value, _ in there(broker, topic) if value is not None), [
            key for _, key, value, _ in there(broker, topic) if value is None
        ]

    one, two = (f'{{"id":{i}0,"left":{i},"right":{i}}}'.encode() for i in (1, 2))
    assert messages(joined) == (
        [(one, b'{"name":"John","item":"pen"}'), (two, b'{"name":"Ann","item":"ink"}')],
        [one],
    )
    assert messages(counted) == ([(b"Ann", b'{"name":"Ann","n":1}'), (b"John", b'{"name":"John","n":1}')], [b"John"])
    assert messages(copied) == (
        [(n.to_bytes(8, "big"), b'{"id":%d,"name":"%b"}' % (n * 10, who)) for n, who in ((1, b"John"), (2, b"Ann"))],
        [],
    )
    times = {t for _, _, _, t in there(broker, copied)}
    assert times == {t for _, _, v, t in there(broker, customers) if v is not None}

    connection = opened(kafka={})  # goes on without the settings, and writes nothing twice
    connection.execute(f"INSERT INTO {customers} VALUES (3, 30, 'Zoe')")
    delivered(connection)
    assert messages(copied)[0][-1] == ((3).to_bytes(8, "big"), b'{"id":30,"name":"Zoe"}')
    assert len(messages(copied)[0]) == 3
    connection.execute(f"STOP PROCESSOR {copied}")
    connection.execute(f"INSERT INTO {customers} VALUES (4, 40, 'Max')")
    delivered(connection)
    assert len(messages(copied)[0]) == 3
    connection.execute(f"DROP TABLE {copied}")
    connection.execute(f"DROP TABLE {joined}")
    assert [partitions(broker, n) for n in (joined, counted, copied)] == [None, 3, None]


def test_a_processor_writes_a_declared_topic(broker, opened, named):
    connection, source, target = opened(), named(), named()
    connection.execute(f"CREATE TABLE {source} (_key int, n int) FORMAT (INT, JSON)")
    connection.execute(f"CREATE TABLE {target} (_key int, n int) FORMAT (INT, JSON) PROPERTIES (partitions=2)")
    connection.execute(f"INSERT INTO {target} SELECT STREAM n FROM {source} WHERE n > 1")
    connection.execute(f"INSERT INTO {source} VALUES (1, 1), (2, 2)")
    delivered(connection)
    assert [found[1:3] for found in there(broker, target)] == [(b"\0\0\0\2", b'{"n":2}')]
    assert rows(connection, f"SELECT _key, n FROM {target}") == [(2, 2)]


@pytest.mark.slow
def test_several_processors_and_inserts_write_one_topic(broker, opened, named):
    """Each is delivered by itself; queries read what is in Kafka, whoever wrote it."""
    connection = opened()
    one, two, target, last = named("one"), named("two"), named("Target"), named("last")
    connection.execute(
        f"""
        SET defaults.topic.autocreate=true;
        CREATE TABLE {one} (_key int, n int) FORMAT (INT, JSON);
        CREATE TABLE {two} (_key int, n int) FORMAT (INT, JSON);
        CREATE TABLE {target} (_key int, n int) FORMAT (INT, JSON) PROPERTIES (partitions=2);
        """
    )
    connection.execute(f"INSERT INTO {target} VALUES (0, 0)")
    connection.execute(f"INSERT INTO {last} SELECT TABLE n * 10 AS n FROM {target}")
    connection.execute(f"INSERT INTO {target} SELECT STREAM n FROM {one}")
    told = connection.execute(f"INSERT INTO {target} SELECT STREAM n + 100 AS n FROM {two}").notices
    assert told == (f'processor "{target}_2" writes topic "{target}", as others do',)
    connection.execute(f"INSERT INTO {one} VALUES (1, 1), (2, 2)")
    connection.execute(f"INSERT INTO {two} VALUES (3, 3)")
    connection.execute(f"INSERT INTO {target} VALUES (4, 4)")
    assert rows(connection, f"SELECT _key, n FROM {target}") == [(0, 0), (1, 1), (2, 2), (3, 103), (4, 4)]
    assert table(connection, last) == [(0, 0), (1, 10), (2, 20), (3, 1030), (4, 40)]
    assert len(there(broker, target)) == 5
    assert [r[:2] for r in connection.execute("SHOW PROCESSORS").fetchall()] == [
        (name, "running") for name in (last, target, f"{target}_2")
    ]
    drawn = connection.topology("dot")
    assert f"{target}_2" in drawn
    with pytest.raises(Error, match="which it writes, is not supported"):
        connection.execute(f"INSERT INTO {one} SELECT STREAM n FROM {target}")

    connection = opened(kafka={}, parallelism=3, rebuild=True)  # nothing is written twice
    connection.execute(f"INSERT INTO {two} VALUES (5, 5)")
    connection.execute(f"INSERT INTO {one} VALUES (6, 6)")
    told = connection.execute(f"STOP PROCESSOR {target}").notices
    assert told == ()
    connection.execute(f"INSERT INTO {one} VALUES (7, 7)")
    delivered(connection)
    assert len(there(broker, target)) == 7
    with pytest.raises(Error, match=f'no processor is called "{target}"') as caught:
        connection.execute(f"STOP PROCESSOR {target}")
    assert caught.value.hint == f'The topic is written by "{target}_2".'
    with pytest.raises(Error, match=f'Processor "{target}_2" depends on it'):
        connection.execute(f"DROP TABLE {two}")
    connection.execute(f"STOP PROCESSOR {last}")
    connection.execute(f"DROP TABLE {target}")
    assert [r[0] for r in connection.execute("SHOW PROCESSORS").fetchall()] == []
    assert partitions(broker, target) is None


def test_create_or_replace_keeps_the_records_in_kafka(broker, opened, named):
    connection, name, other = opened(), named(), named()
    connection.execute(f"CREATE OR REPLACE TABLE {name} (_key int, n int) FORMAT (INT, JSON) PROPERTIES (partitions=2)")
    connection.execute(f"INSERT INTO {name} VALUES (1, 10), (2, 20)")
    assert table(connection, name) == [(1, 10), (2, 20)]
    replaced = f"CREATE OR REPLACE TABLE {name} (_key int, n string, more int NULL) FORMAT (INT, JSON)"
    assert connection.execute(replaced).notices == (
        f'topic "{name}" stays in Kafka with its records: they are read anew',
        f'topic "{name}" exists in Kafka, with 2 partitions: it is used as it is',
    )
    connection.execute(f"INSERT INTO {name} VALUES (3, 'x', 5)")
    assert table(connection, name) == [(1, "10", None), (2, "20", None), (3, "x", 5)]
    assert len(there(broker, name)) == 3
    with pytest.raises(Error, match="exists in Kafka with 2 partitions, not 3"):
        connection.execute(f"{replaced} PROPERTIES (partitions=3)")
    assert table(connection, name) == [(1, "10", None), (2, "20", None), (3, "x", 5)]
    connection.execute(f"CREATE TABLE {other} (_key int, n string, more int NULL) FORMAT (INT, JSON)")
    connection.execute(f"INSERT INTO {name} SELECT STREAM n, more FROM {other}")
    with pytest.raises(Error, match=f'cannot replace topic "{name}"') as caught:
        connection.execute(replaced)
    assert caught.value.detail == f'Processor "{name}" depends on it.'
    connection.execute(f"STOP PROCESSOR {name}")
    connection.execute("SET kafka.bootstrap.servers=''")
    told = connection.execute(f"CREATE OR REPLACE TABLE {name} (_key int, n int) FORMAT (INT, JSON)").notices
    assert told == (f'topic "{name}" stays in Kafka with its records',)
    assert table(connection, name) == []
    assert len(there(broker, name)) == 3


def test_formats_that_records_can_not_be_turned_into_are_refused(broker, opened, named):
    connection, name, target = opened(), named(), named()
    connection.execute("SET defaults.topic.autocreate=true")
    connection.execute(f"CREATE TABLE {name} (_key bigint, n bigint) FORMAT (LONG, LONG)")
    for stored, said, hint in (
        ("KEY AS INT", "a key in LONG can't be stored AS INT", "LONG can become STRING or AVRO."),
        ("VALUE AS JSON", "LONG can't be stored AS JSON", "LONG can become STRING or AVRO."),
    ):
        with pytest.raises(Error) as caught:
            connection.execute(f"INSERT INTO {target} STORE {stored} SELECT STREAM * FROM {name}")
        assert (caught.value.condition, caught.value.message, caught.value.hint) == ("INVALID_PARAMETER", said, hint)
    assert partitions(broker, target) is None
    connection.execute(f"INSERT INTO {target} STORE KEY AS STRING VALUE AS STRING SELECT STREAM * FROM {name}")
    connection.execute(f"INSERT INTO {name} VALUES (1, 2)")
    delivered(connection)
    assert [found[1:3] for found in there(broker, target)] == [(b"1", b"2")]


@pytest.mark.slow
def test_a_processor_says_why_its_topic_does_not_get_its_records(broker, opened, named):
    connection, source, target = opened(), named(), named()
    connection.execute("SET defaults.topic.autocreate=true")
    connection.execute(f"CREATE TABLE {source} (_key int, n int) FORMAT (INT, JSON)")
    connection.execute(f"INSERT INTO {target} SELECT STREAM n FROM {source}")
    connection.execute(f"INSERT INTO {source} VALUES (1, 1)")
    delivered(connection)
    assert connection.execute("SHOW PROCESSORS").fetchall()[0][1] == "running"
    broker.delete_topic(target)
    connection.execute(f"INSERT INTO {source} VALUES (2, 2)")
    connection.execute("FLUSH")
    assert connection._session.database.service(SinkWriters).wait(processor_of(connection, target), 60)
    ((_, state, _),) = connection.execute("SHOW PROCESSORS").fetchall()
    why = f'UNDEFINED_OBJECT: there is no topic "{target}" on {broker.bootstrap}'
    assert state == f"stopped: {why}. Create it first, or correct the option topic; START PROCESSOR {target} goes on"
    assert ("not delivered", state) in {(r[1], r[4]) for r in connection.execute("SHOW ERRORS").fetchall()}


def test_a_processor_that_was_stopped_is_started_again(broker, opened, named, topic):
    connection, source, target = opened(), named(), topic(max_message_bytes=1000)
    connection.execute("SET defaults.topic.autocreate=true")
    connection.execute(f"CREATE TABLE {source} (_key int, text string) FORMAT (INT, JSON)")
    connection.execute(f"INSERT INTO {target} SELECT STREAM text FROM {source}")
    connection.execute(f"INSERT INTO {source} VALUES (1, 'short'), (2, '{'long ' * 1000}')")
    connection.execute("FLUSH")
    processor = processor_of(connection, target)
    deliveries = connection._session.database.service(SinkWriters)
    assert deliveries.wait(processor, 60)
    ((_, state, _),) = connection.execute("SHOW PROCESSORS").fetchall()
    assert state.startswith("stopped: DELIVERY_REFUSED")
    assert state.endswith(f"; START PROCESSOR {target} goes on")
    assert ("not delivered", state) in {(r[1], r[4]) for r in connection.execute("SHOW ERRORS").fetchall()}
    assert there(broker, target) == []
    connection.execute("BEGIN")
    told = connection.execute(f"STOP PROCESSOR {target}").notices
    connection.execute("ROLLBACK")
    assert told[-1].startswith(f'processor "{target}" was stopped before 2 records were in Kafka: DELIVERY_REFUSED')
    larger = ConfigEntry("max.message.bytes", "100000", incremental_operation=AlterConfigOpType.SET)
    changed = ConfigResource(ResourceType.TOPIC, target, incremental_configs=[larger])
    admin = broker.admin()
    admin.incremental_alter_configs([changed])[changed].result(30)
    connection.execute(f"START PROCESSOR {target}")
    end = time.monotonic() + 60
    while deliveries.status(processor).state != "running" and time.monotonic() < end:
        time.sleep(0.05)
    delivered(connection)
    assert [key for _, key, _, _ in there(broker, target)] == [b"\0\0\0\1", b"\0\0\0\2"]
    for sql, said in (
        (f"START PROCESSOR {source}", f'nothing writes records of "{source}" to Kafka'),
        ("START PROCESSOR nothing", 'processor "nothing" does not exist'),
    ):
        with pytest.raises(Error, match=said):
            connection.execute(sql)

"""Sinks to a real Kafka broker: who reads committed messages sees each change once, whatever goes wrong."""

from __future__ import annotations

import json
import secrets
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from confluent_kafka import TopicPartition
from tests.thorough import THOROUGH, mostly_slow
from tests.unit.sinks.processes import killed_twice, overtaken

import watersmeet
from watersmeet.catalog import MessageFormat
from watersmeet.connectors.base.sources import Unavailable
from watersmeet.connectors.base.targets import Delivery, SinkBatch, SinkOffset
from watersmeet.connectors.kafka import target as kafka
from watersmeet.sinkwriters import writers
from watersmeet.system import process
from watersmeet.values.types import INTEGER, VARCHAR, Field

ROOT = Path(__file__).parents[3]
POINTS = ("sink.open", "kafka.fenced", "kafka.read", "sink.opened", "sink.deliver", "kafka.begin", "kafka.produced",
          "kafka.commit", "kafka.committed", "sink.delivered", "sink.acknowledged")  # fmt: skip


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(writers, "_FIRST_RETRY_S", 0.01)
    monkeypatch.setattr(writers, "_LAST_RETRY_S", 0.05)
    yield
    process.set_hook(None)


def sink_sql(broker, topic, form="UPSERT", name="s", source="FROM t", more=""):
    return (
        f"CREATE SINK {name} {source} WITH (connector = 'kafka', topic = '{topic}', "
        f"properties.bootstrap.server = '{broker.bootstrap}', "
        f"progress.topic = 'p_{topic}'{more}) FORMAT {form} ENCODE JSON"
    )


def messages(broker, topic):
    """All committed messages, by partition in their order: (partition, key, value)."""
    admin = broker.admin()
    partitions = list(admin.list_topics(topic, timeout=10).topics[topic].partitions)
    consumer = broker.consumer(**{
        "group.id": secrets.token_hex(4), "isolation.level": "read_committed", "enable.partition.eof": True,
        "auto.offset.reset": "earliest"})  # fmt: skip
    consumer.assign([TopicPartition(topic, p, 0) for p in partitions])
    found, ended = [], set()
    end = time.monotonic() + 60
    while len(ended) < len(partitions):
        assert time.monotonic() < end
        for message in consumer.consume(1000, 0.2):
            if message.error() is None:
                found.append((message.partition(), message.key(), message.value()))
            elif message.error().name() == "_PARTITION_EOF":
                ended.add(message.partition())
    consumer.close()
    return found


def content(found):
    """The rows that an upsert topic has, and whether no key is in two partitions."""
    rows, offsets = {}, {}
    for partition, key, value in found:
        assert offsets.setdefault(key, partition) == partition
        if value is None:
            del rows[key]  # a deletion that comes twice has nothing to delete
        else:
            rows[key] = json.loads(value)
    return sorted(tuple(r.values()) for r in rows.values())


def rows(connection, name="t"):
    return sorted(connection.execute(f"SELECT * FROM {name}").fetchall())


def test_upserts_and_tombstones(connect, settle, broker, topic):
    name = topic(3)
    connection = connect()
    connection.execute("CREATE TABLE t (k int PRIMARY KEY, v varchar)")
    connection.execute("INSERT INTO t SELECT i, 'a' FROM generate_series(1, 50) AS g(i)")
    connection.execute(sink_sql(broker, name))
    settle(connection)
    connection.execute("UPDATE t SET v = 'b' WHERE k < 10")
    connection.execute("DELETE FROM t WHERE k > 40")
    settle(connection)
    found = messages(broker, name)
    assert len(found) == 50 + 9 + 10
    assert content(found) == rows(connection)
    connection = connect()
    connection.execute("INSERT INTO t VALUES (99, 'z')")
    settle(connection)
    assert len(messages(broker, name)) == 50 + 9 + 10 + 1


def test_append_only_and_debezium(connect, settle, broker, topic):
    plain, changes = topic(1), topic(1)
    connection = connect()
    connection.execute("CREATE TABLE t (k int PRIMARY KEY, v varchar)")
    connection.execute(sink_sql(broker, plain, "PLAIN", "p", more=", force_append_only = 'true'"))
    connection.execute(sink_sql(broker, changes, "DEBEZIUM", "d"))
    connection.execute("INSERT INTO t VALUES (1, 'a')")
    connection.execute("UPDATE t SET v = 'b'")
    connection.execute("DELETE FROM t")
    settle(connection)
    assert [json.loads(v) for _, _, v in messages(broker, plain)] == [{"k": 1, "v": "a"}, {"k": 1, "v": "b"}]
    payloads = [None if v is None else json.loads(v)["payload"] for _, _, v in messages(broker, changes)]
    assert [p and p["op"] for p in payloads] == ["c", "u", "d", None]
    assert payloads[1]["before"] == {"k": 1, "v": "a"}


@pytest.mark.parametrize("point", mostly_slow(sorted(POINTS, key=lambda point: point != "kafka.commit"), 2, 4))
def test_a_failure_at_any_point_repeats_nothing_and_loses_nothing(connect, settle, broker, topic, point):
    name = topic(2)
    connection = connect()
    connection.execute("CREATE TABLE t (k int PRIMARY KEY, v varchar)")
    connection.execute("INSERT INTO t SELECT i, 'a' FROM generate_series(1, 5) AS g(i)")
    connection.execute(sink_sql(broker, name))
    settle(connection)
    left = 2

    def fails(now):
        nonlocal left
        if now == point and left:
            left -= 1
            raise Unavailable("it is gone")

    def away(now):
        if now == "sink.deliver":
            process.set_hook(fails)
            fails(now)
            raise Unavailable("so that the target is opened again")

    process.set_hook(away)
    connection.execute("UPDATE t SET v = 'b'")
    settle(connection)
    connection.execute("DELETE FROM t WHERE k > 3")
    settle(connection)
    assert not left
    found = messages(broker, name)
    assert len(found) == 5 + 5 + 2
    assert content(found) == rows(connection)


@pytest.mark.parametrize("point", mostly_slow(sorted(POINTS, key=lambda point: point != "kafka.commit"), 1, 4))
def test_a_killed_process_goes_on_where_it_was(connect, settle, path, broker, topic, point):
    name = topic(2)
    connection = connect()
    connection.execute("CREATE TABLE t (k int PRIMARY KEY, v int)")
    connection.execute("INSERT INTO t VALUES (1, 0), (2, 0), (3, 0)")
    connection.execute(sink_sql(broker, name))
    settle(connection)
    connection.close()
    opens = point in ("sink.open", "kafka.fenced", "kafka.read", "sink.opened")
    killed = killed_twice(path, point)
    # of what happens once in a process that begins, the thread may be through before the hook is set
    assert killed or opens
    connection = connect()
    connection.execute("UPDATE t SET v = 9")
    settle(connection)
    found = messages(broker, name)
    by_key = {}
    for _, key, value in found:
        by_key.setdefault(key, []).append(json.loads(value)["v"])
    for values in by_key.values():
        assert values == sorted(set(values)), "in order, and each once"
        assert values[-1] == 9
    assert len(by_key) == 3
    assert len({tuple(v) for v in by_key.values()}) == 1, "all of a commit or nothing"


@pytest.mark.slow
@pytest.mark.parametrize("point", mostly_slow(sorted(POINTS[4:], key=lambda point: point != "kafka.commit"), 1, 2))
def test_a_process_that_was_paused_and_overtaken_delivers_nothing_more(connect, settle, path, broker, topic, point):
    name = topic(2)
    connection = connect()
    connection.execute("CREATE TABLE t (k int PRIMARY KEY, v int)")
    connection.execute("INSERT INTO t VALUES (1, 0), (2, 0), (3, 0)")
    connection.execute(sink_sql(broker, name))
    settle(connection)
    connection.close()

    def go_on(value):
        nonlocal connection
        if value == 2:
            connection = connect()
        connection.execute(f"UPDATE t SET v = {value}")
        settle(connection)

    overtaken(path, point, go_on)
    by_key = {}
    for _, key, value in messages(broker, name):
        by_key.setdefault(key, []).append(json.loads(value)["v"])
    assert list(by_key.values()) == [[0, 1, 2, 3]] * 3


def batch(commit, *keys):
    table = pa.table({"k": pa.array(keys, pa.int32()), "v": pa.array(["x"] * len(keys))})
    return SinkBatch(SinkOffset(1, commit), table, np.ones(len(keys), np.int64), 0)


@pytest.fixture
def target(broker):
    made = []

    def target(name, database="db", generation=1):
        given = Delivery(
            "s1", 'sink "s"', "t1", (Field("k", INTEGER), Field("v", VARCHAR)), ("k",),
            {"connector": "kafka", "topic": name, "properties.bootstrap.server": broker.bootstrap,
             "progress.topic": f"p_{name}"},
            MessageFormat("upsert", "json"), False, "s1", generation,
        )  # fmt: skip
        made.append(kafka.KafkaTarget(given, kafka.kafka_sink_options(given), database, lambda: False))
        return made[-1]

    yield target
    for each in made:
        each.close()


def test_a_writer_that_was_overtaken_writes_nothing_more(broker, topic, target):
    name = topic()
    first, second = target(name), target(name)
    assert first.open(1) is None
    first.deliver([batch(1, 1)])

    def pause(now):
        if now == "kafka.commit":
            process.set_hook(None)
            assert second.open(1) == SinkOffset(1, 1)
            second.deliver([batch(2, 2)])

    process.set_hook(pause)
    with pytest.raises(Unavailable):
        first.deliver([batch(2, 2)])
    with pytest.raises(Unavailable):
        first.deliver([batch(3, 3)])
    second.deliver([batch(3, 3)])
    assert [json.loads(v)["k"] for _, _, v in messages(broker, name)] == [1, 2, 3]


@pytest.mark.slow
def test_the_place_is_read_behind_what_other_sinks_write(broker, topic, target):
    name = topic()
    mine, other = target(name), target(name, "other")
    mine.open(1)
    other.open(1)

    def pause(now):
        if now == "kafka.commit":
            process.set_hook(None)
            mine.deliver([batch(7, 1)])

    process.set_hook(pause)
    other.deliver([batch(3, 2)])
    assert mine.open(1) == SinkOffset(1, 7)
    assert other.open(1) == SinkOffset(1, 3)


def test_a_newer_generation_shuts_out_an_older_one(topic, target):
    name = topic()
    newer = target(name, generation=2)
    newer.open(2)
    newer.deliver([SinkBatch(SinkOffset(2, 5), batch(5, 1).rows, np.ones(1, np.int64), 0)])
    with pytest.raises(watersmeet.Error) as found:
        target(name).open(1)
    assert found.value.condition == "WRITER_FENCED"


def test_a_row_that_is_too_large_stops_the_sink_and_says_why(connect, settle, shown, broker, topic):
    name = topic(1, **{"max.message.bytes": 2000})
    connection = connect()
    connection.execute("CREATE TABLE t (k int PRIMARY KEY, v varchar)")
    connection.execute(sink_sql(broker, name))
    connection.execute("INSERT INTO t VALUES (1, ?)", ("".join(secrets.token_hex(3000)),))
    settle(connection)
    row = shown(connection)["s"]
    assert row["state"] == "stopped"
    assert row["detail"].startswith(f'DELIVERY_REFUSED: topic "{name}" does not take a row of sink "s"')
    assert messages(broker, name) == []
    connection.execute("SELECT 1")


def test_a_topic_that_was_made_anew_is_refused(connect, settle, shown, broker, topic):
    name = topic()
    connection = connect()
    connection.execute("CREATE TABLE t (k int PRIMARY KEY, v varchar)")
    connection.execute("INSERT INTO t VALUES (1, 'a')")
    connection.execute(sink_sql(broker, name))
    settle(connection)
    connection.close()
    broker.delete_topic(name)
    broker.create_topic(name)
    connection = connect()
    settle(connection)
    row = shown(connection)["s"]
    assert row["state"] == "stopped"
    assert "was deleted and made anew" in row["detail"]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"topic": "nowhere"}, 'there is no topic "nowhere" on '),
        ({"topic": None}, 'connector kafka of sinks needs the option "topic"'),
        (
            {"properties.bootstrap.server": None},
            'connector kafka of sinks needs the option "properties.bootstrap.server"',
        ),
        ({"properties.transactional.id": "x"}, 'option "properties.transactional.id" can\'t be given'),
        ({"properties.no.such": "x"}, "connector kafka does not take an option"),
        ({"brokers": "x"}, 'connector kafka of sinks has no option "brokers"'),
    ],
)
def test_wrong_options_are_named(connect, broker, topic, more, message):
    options = {"connector": "kafka", "topic": topic(), "properties.bootstrap.server": broker.bootstrap, **more}
    listed = ", ".join(f"{n} = '{v}'" for n, v in options.items() if v is not None)
    connection = connect()
    connection.execute("CREATE TABLE t (k int PRIMARY KEY, v varchar)")
    with pytest.raises(watersmeet.Error) as found:
        connection.execute(f"CREATE SINK s FROM t WITH ({listed}) FORMAT UPSERT ENCODE JSON")
    assert found.value.condition == ("UNDEFINED_OBJECT" if more == {"topic": "nowhere"} else "CONNECTOR_OPTION")
    assert message in found.value.message
    assert found.value.span is not None


def test_wrong_credentials_are_named(connect, broker, topic):
    settings = broker.sasl(password="wrong")
    listed = ", ".join(f"properties.{n} = '{v}'" for n, v in settings.items() if n != "bootstrap.servers")
    servers = settings["bootstrap.servers"]
    connection = connect()
    connection.execute("CREATE TABLE t (k int PRIMARY KEY, v varchar)")
    with pytest.raises(watersmeet.Error) as found:
        connection.execute(
            f"CREATE SINK s FROM t WITH (connector = 'kafka', topic = '{topic()}', "
            f"properties.bootstrap.server = '{servers}', {listed}) FORMAT UPSERT ENCODE JSON"
        )
    assert "refuse the credentials" in found.value.message
    assert "properties.sasl.password" in found.value.hint


@pytest.mark.slow
def test_a_broker_that_is_killed_gets_each_change_once_when_it_is_back(connect, settle, shown, own_broker, monkeypatch):
    """It is killed between any two calls of the sink, and started again while there are further changes."""
    monkeypatch.setattr(kafka, "_ANSWER_S", 3.0)
    own_broker.create_topic("out", 2)
    connection = connect()
    connection.execute("CREATE TABLE t (k int PRIMARY KEY, v int)")
    connection.execute("INSERT INTO t VALUES (1, 0), (2, 0)")
    connection.execute(sink_sql(own_broker, "out"))
    settle(connection)
    points = ["kafka.read", "kafka.produced", "kafka.commit"]
    points += ["kafka.fenced", "kafka.begin", "kafka.committed"] if THOROUGH else []
    waiting: list[str] = []

    def kill(now):
        if waiting and now == waiting[0]:
            own_broker.kill()
            waiting.clear()

    for number, point in enumerate(points):
        waiting = [point]
        process.set_hook(kill)
        connection = connect()
        connection.execute(f"UPDATE t SET v = {2 * number + 1}")
        connection.flush()
        until = time.monotonic() + 60
        while waiting:
            assert time.monotonic() < until, point
            time.sleep(0.05)
        connection.execute(f"UPDATE t SET v = {2 * number + 2}")
        connection.flush()
        own_broker.start()
        settle(connection)
        row = shown(connection)["s"]
        assert (row["state"], row["detail"]) == ("running", None)
        by_key = {}
        for _, key, value in messages(own_broker, "out"):
            by_key.setdefault(key, []).append(json.loads(value)["v"])
        assert list(by_key.values()) == [list(range(2 * number + 3))] * 2, point

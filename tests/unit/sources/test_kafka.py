"""The Kafka source against a real broker: what is read once, what stops it, what it says."""

import importlib
import json
import random
import threading
import time
from concurrent.futures import Future
from types import SimpleNamespace

import numpy as np
import pytest
from confluent_kafka import KafkaError, KafkaException, Producer, TopicPartition

from watersmeet.catalog import Source
from watersmeet.connectors.base.deadletters import DeadLetterWriter
from watersmeet.connectors.base.sources import Notification
from watersmeet.connectors.kafka import cluster
from watersmeet.connectors.kafka import reading as ranges
from watersmeet.connectors.kafka.client import kafka_options
from watersmeet.connectors.kafka.reading import TopicReader
from watersmeet.connectors.registry import check_connector, expect, open_source, read_slice
from watersmeet.errors import Error
from watersmeet.values.slices import JumpSlice, MessageSlice
from watersmeet.values.types import BIGINT, VARCHAR, Field

MANY = 1 << 40
NOBODY = SimpleNamespace(bootstrap="127.0.0.1:1")


def relation(broker, name, **options):
    connector = {"connector": "kafka", "topic": name, "properties.bootstrap.server": broker.bootstrap}
    columns = (Field("n", BIGINT), Field("text", VARCHAR))
    return check_connector(Source("s1", "s", columns, connector={**connector, **options}))


def producer_of(broker, **config):
    return Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 0, **config})


def delete_records(broker, name, partition, before):
    admin = broker.admin()
    for deleted in admin.delete_records([TopicPartition(name, partition, before)]).values():
        deleted.result(30)


def produce(broker, topic, numbers, partition=0, text="x", **config):
    producer = producer_of(broker, **config)
    for n in numbers:
        producer.produce(topic, json.dumps({"n": n, "text": text}).encode(), partition=partition)
    producer.flush()


class Reading:
    """A source and where it is: polls, reads what a poll gave, accepts it."""

    def __init__(self, relation):
        self.source = open_source(relation)
        self.position = None
        self.slices = []
        self.dead = DeadLetterWriter(None)

    def poll(self, rows=MANY, fresh=True):
        return self.source.poll(self.position, rows, MANY, time.time_ns() // 1000, fresh=fresh)

    def accept(self, poll):
        self.source.accept(poll.slices)
        self.slices += poll.slices
        self.position = poll.position

    def rows(self, slices):
        spec = self.source.spec()
        expect(slices, {"s1": spec})
        found = [read_slice(piece, spec, spec.columns, self.dead).table.column("n").to_pylist() for piece in slices]
        return [n for part in found for n in part]

    def take(self, rows=MANY):
        poll = self.poll(rows)
        self.accept(poll)
        return self.rows(poll.slices)

    def until(self, rows):
        """Takes until so many rows are there, in order of arrival."""
        found, end = [], time.monotonic() + 20
        while len(found) < rows and time.monotonic() < end:
            found += self.take()
        return found

    def wait(self, done, seconds=20):
        """Polls until the source's status is as wanted."""
        until = time.monotonic() + seconds
        while not done(self.source.status()) and time.monotonic() < until:
            self.poll()
            time.sleep(0.05)
        return self.source.status()


def test_every_message_is_read_once_in_any_cuts(broker, topic):
    name = topic(partitions=3)
    for partition in range(3):
        produce(broker, name, range(partition * 1000, partition * 1000 + 700), partition)
    reading, rnd = Reading(relation(broker, name)), random.Random(1)
    found, deadline = [], time.monotonic() + 120
    while len(found) < 2100:
        assert time.monotonic() < deadline
        found += reading.take(rnd.choice([1, 5, 90, 400]))
    assert sorted(found) == sorted(n for p in range(3) for n in range(p * 1000, p * 1000 + 700))
    assert reading.take() == []
    again = [piece for piece in reading.slices if isinstance(piece, MessageSlice)]
    rnd.shuffle(again)
    assert sorted(reading.rows(again)) == sorted(found)


def test_offsets_have_holes_where_transactions_end(broker, topic):
    name = topic()
    producer = producer_of(broker, **{"transactional.id": name})
    producer.init_transactions()
    kept = []
    for i in range(12):
        producer.begin_transaction()
        for n in range(i * 10, i * 10 + 1 + i % 3):
            producer.produce(name, json.dumps({"n": n}).encode())
            if i % 4 != 1:
                kept.append(n)
        producer.flush()
        (producer.abort_transaction if i % 4 == 1 else producer.commit_transaction)()
    reading = Reading(relation(broker, name))
    found = []
    for _ in range(200):
        found += reading.take(2)
        if len(found) >= len(kept):
            break
    assert found == kept
    whole = Reading(relation(broker, name))
    assert whole.take() == kept
    assert whole.take() == []


def test_an_open_transaction_blocks_and_says_so(broker, topic):
    name = topic()
    produce(broker, name, [1])
    producer = producer_of(broker, **{"transactional.id": name})
    producer.init_transactions()
    producer.begin_transaction()
    producer.produce(name, b'{"n": 2}')
    producer.flush()
    produce(broker, name, [3])
    reading = Reading(relation(broker, name))
    assert reading.take() == [1]
    status = reading.wait(lambda s: s["state"] == "blocked")
    assert (status["state"], status["reason"]) == (
        "blocked",
        "an open transaction of a producer holds back partition 0",
    )
    producer.commit_transaction()
    assert reading.until(2) == [2, 3]  # brokers end a transaction after they have said so
    assert reading.wait(lambda s: s["state"] == "running")["state"] == "running"


def test_a_new_partition_is_read_from_its_first_message(broker, topic):
    name = topic()
    produce(broker, name, [1])
    reading = Reading(relation(broker, name, **{"scan.startup.mode": "latest"}))
    assert reading.take() == []
    broker.add_partitions(name, 2)
    produce(broker, name, [2], 0)
    produce(broker, name, [3], 1)
    reading.wait(lambda s: s["partitions"] == 2 and s["backlog_messages"] == 2)
    assert sorted(reading.take()) == [2, 3]


def test_a_topic_that_is_made_anew_stops_its_source(broker, topic):
    name = topic()
    produce(broker, name, [1, 2, 3])
    made = relation(broker, name)
    reading = Reading(made)
    assert reading.take() == [1, 2, 3]
    broker.delete_topic(name)
    assert reading.wait(lambda s: s["state"] == "stalled")["reason"].startswith(f'there is no topic "{name}"')
    broker.create_topic(name)
    produce(broker, name, [4, 5, 6, 7, 8])
    status = reading.wait(lambda s: "made anew" in (s["reason"] or ""))
    assert status["state"] == "stalled"
    assert "ALTER SOURCE s CONNECTOR WITH (on_data_loss = 'skip')" in status["reason"]
    assert reading.take() == []

    going_on = Reading(Source("s1", "s", made.columns, connector={**made.connector, "on_data_loss": "skip"}))
    going_on.source.accept(reading.slices)
    going_on.position = reading.position
    poll = going_on.poll()
    assert [type(piece) for piece in poll.slices] == [JumpSlice]
    going_on.accept(poll)
    assert going_on.rows(poll.slices) == []
    assert going_on.dead.records[0]["reason"] == "the topic was deleted and made anew"
    assert going_on.take() == [4, 5, 6, 7, 8]


def test_messages_that_expired_stop_a_source_or_are_counted(broker, topic):
    name = topic()
    produce(broker, name, range(10))
    made = relation(broker, name)
    reading = Reading(made)
    assert reading.take(4) == [0, 1, 2, 3]
    delete_records(broker, name, 0, 7)
    status = reading.wait(lambda s: s["state"] == "stalled")
    assert status["reason"].startswith(
        f'messages of topic "{name}" expired before they were read: in partition 0 offsets 4 to 6.'
    )
    assert reading.take() == []

    going_on = Reading(Source("s1", "s", made.columns, connector={**made.connector, "on_data_loss": "skip"}))
    going_on.source.accept(reading.slices)
    going_on.position = reading.position
    poll = going_on.poll()
    going_on.accept(poll)
    assert going_on.rows(poll.slices) == []
    assert [(r["offset"], r["rows"]) for r in going_on.dead.records] == [(4, 3)]
    assert going_on.take() == [7, 8, 9]
    assert going_on.source.status()["lost_messages"] == 3


def test_what_expires_after_it_was_planned_is_counted_by_the_reader(broker, topic):
    name = topic()
    produce(broker, name, range(10))
    reading = Reading(relation(broker, name))
    poll = reading.poll()
    delete_records(broker, name, 0, 7)
    assert reading.rows(poll.slices) == [7, 8, 9]
    assert [(r["offset"], r["rows"], r["reason"]) for r in reading.dead.records] == [
        (0, 7, "the message expired before it was read")
    ]


def test_a_history_lacks_what_was_withdrawn(broker, topic):
    name = topic(partitions=2)
    reading = Reading(relation(broker, name))
    for first in range(0, 30, 10):
        for partition in range(2):
            produce(broker, name, range(partition * 100 + first, partition * 100 + first + 10), partition)
        while reading.take(7):
            pass
    for kept in range(len(reading.slices), -1, -1):
        reading.source.withdraw(reading.slices[kept:])
        history = reading.source.history(None, MANY, MANY)
        assert sorted(reading.rows(history.slices)) == sorted(reading.rows(reading.slices[:kept]))
    reading.position = None
    assert sorted(reading.take()) == sorted([*range(30), *range(100, 130)])


def test_a_history_gives_what_was_accepted(broker, topic):
    name = topic(partitions=2)
    produce(broker, name, range(50), 0)
    produce(broker, name, range(100, 150), 1)
    reading = Reading(relation(broker, name))
    found = reading.take(30) + reading.take(31)
    pieces, cursor = [], None
    while True:
        history = reading.source.history(cursor, 7, MANY)
        pieces += history.slices
        cursor = history.cursor
        if cursor is None:
            break
    assert [p.ordinal for p in pieces] == list(range(len(pieces)))
    assert sorted(reading.rows(pieces)) == sorted(found)


def test_what_was_saved_goes_on(broker, topic, tmp_path):
    name = topic()
    produce(broker, name, range(10))
    made = relation(broker, name)
    reading = Reading(made)
    assert reading.take(4) == [0, 1, 2, 3]
    reading.source.save(tmp_path / "saved")
    later = Reading(made)
    later.source.load(tmp_path / "saved")
    later.position = reading.position
    assert later.take() == [4, 5, 6, 7, 8, 9]
    with pytest.raises(Error, match="its accepted slices end at 1"):
        reading.source.poll({"slices": 7}, 1, 1, 0)


def test_where_reading_begins_is_settled_by_create(broker, topic):
    name = topic()
    produce(broker, name, [1, 2])
    latest = relation(broker, name, **{"scan.startup.mode": "latest"})
    time.sleep(0.01)
    now_ms = time.time_ns() // 1_000_000
    time.sleep(0.01)
    produce(broker, name, [3, 4])
    assert Reading(latest).take() == [3, 4]
    assert Reading(relation(broker, name)).take() == [1, 2, 3, 4]
    millis = {"scan.startup.timestamp.millis": str(now_ms)}
    assert Reading(relation(broker, name, **millis)).take() == [3, 4]
    future = {"scan.startup.timestamp.millis": str(now_ms + 10_000_000)}
    assert Reading(relation(broker, name, **future)).take() == []


def test_messages_that_are_no_json_are_set_aside_with_their_bytes(broker, topic):
    name = topic()
    producer = producer_of(broker)
    producer.produce(name, b'{"n": 1}', key=b"k1")
    producer.produce(name, b"\xff\x00garbage", key=b"k2")
    producer.produce(name, b'{"n": 3}')
    producer.flush()
    reading = Reading(relation(broker, name))
    assert reading.take() == [1, 3]
    (record,) = reading.dead.records
    assert (record["topic"], record["partition"], record["offset"]) == (name, 0, 1)
    assert (record["key"], record["value"]) == ("azI=", "/wBnYXJiYWdl")


def test_headers_and_times_come_along(broker, topic):

    name = topic()
    producer = producer_of(broker)
    producer.produce(name, b"v", timestamp=1_700_000_000_123, headers=[("a", b"1"), ("b", None)])
    producer.produce(name, None, key=b"k")
    producer.flush()
    made = relation(broker, name)
    reader = TopicReader(kafka_options(made.connector), made.connector["topic.id"], headers=True, times=True)
    piece = MessageSlice(relation="s1", topic=name, topic_id=made.connector["topic.id"], partition=0, begin=0, end=2)
    ((batch,), lost) = reader.read(piece)
    reader.close()
    assert not lost
    assert batch.times_ms[0] == 1_700_000_000_123
    assert batch.values.to_pylist() == [b"v", None]
    assert batch.keys.to_pylist() == [None, b"k"]
    assert batch.headers.to_pylist() == [[{"key": "a", "value": b"1"}, {"key": "b", "value": None}], None]
    assert np.array_equal(batch.offsets, [0, 1])


def test_what_is_taken_bit_by_bit_is_given_together(broker, topic):
    name = topic(partitions=2)
    count = 5000
    for partition in (0, 1):
        produce(broker, name, range(count), partition)
    made = relation(broker, name)
    topic_id = made.connector["topic.id"]
    reader = TopicReader(kafka_options(made.connector), topic_id, headers=False, times=False)
    pieces = [
        MessageSlice(relation="s1", topic=name, topic_id=topic_id, partition=p, begin=3, end=count - 1) for p in (0, 1)
    ]
    reader.expect(pieces)
    for piece in pieces:
        ((batch,), _) = reader.read(piece)
        assert np.array_equal(batch.offsets, np.arange(3, count - 1))
        assert [json.loads(v)["n"] for v in batch.values.to_pylist()] == list(range(3, count - 1))
        assert batch.times_ms is None
        assert batch.headers is None
    reader.close()


def test_a_topic_that_grows_is_news(broker, topic):
    name = topic()
    source = open_source(relation(broker, name))
    woken = threading.Event()
    notification = Notification(woken)
    source.listen(notification)
    reading = source.poll(None, MANY, MANY, 0, fresh=True)
    assert not reading.slices
    notification.take()
    woken.clear()
    produce(broker, name, [1])
    assert woken.wait(30)
    assert notification.is_set
    assert [p.end for p in source.poll(None, MANY, MANY, 0).slices] == [1]


def refusal(broker, name, **options):
    with pytest.raises(Error) as caught:
        relation(broker, name, **options)
    return caught.value


def test_create_says_what_is_wrong_with_the_topic(broker):
    problem = refusal(broker, "not-there")
    assert problem.condition == "UNDEFINED_OBJECT"
    assert problem.message == f'there is no topic "not-there" on {broker.bootstrap}'


def test_create_says_which_property_is_none_of_the_client(broker, topic):
    problem = refusal(broker, topic(), **{"properties.no.such": "x"})
    assert problem.condition == "CONNECTOR_OPTION"
    assert 'no.such"' in problem.message


def test_create_says_what_is_wrong_with_the_credentials(broker, topic):
    sasl = {f"properties.{n}": str(v) for n, v in broker.sasl(password="wrong").items()}
    sasl["properties.bootstrap.server"] = sasl.pop("properties.bootstrap.servers")
    problem = refusal(broker, topic(), **sasl)
    assert "refuse the credentials" in problem.message
    assert "wrong" not in str(problem)
    good = {f"properties.{n}": str(v) for n, v in broker.sasl().items()}
    good["properties.bootstrap.server"] = good.pop("properties.bootstrap.servers")
    relation(broker, topic(), **good)


def test_create_says_what_is_wrong_with_tls(broker, topic):
    tls = {f"properties.{n}": str(v) for n, v in broker.tls().items()}
    tls["properties.bootstrap.server"] = tls.pop("properties.bootstrap.servers")
    relation(broker, topic(), **tls)
    del tls["properties.ssl.ca.location"]
    problem = refusal(broker, topic(), **tls)
    assert "no TLS connection" in problem.message
    assert "properties.ssl.ca.location" in problem.hint


def test_create_says_that_no_broker_is_there(monkeypatch):
    monkeypatch.setattr(cluster, "_TIMEOUT_S", 1.0)
    problem = refusal(NOBODY, "t")
    assert (problem.condition, problem.message) == (
        "RUNTIME_UNAVAILABLE",
        "the Kafka brokers at 127.0.0.1:1 can't be reached",
    )


def test_create_says_what_to_install(monkeypatch):
    def missing(name):
        raise ModuleNotFoundError(name)

    monkeypatch.setattr(importlib, "import_module", missing)
    problem = refusal(NOBODY, "t")
    assert problem.hint == "In a clone of Watersmeet: pip install '.[kafka]'"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"topic": ""}, 'connector kafka needs the option "topic"'),
        ({"properties.bootstrap.server": ""}, 'connector kafka needs the option "properties.bootstrap.server"'),
        ({"properties.group.id": "g"}, 'option "properties.group.id" can\'t be given'),
        ({"topics": "x"}, 'connector kafka has no option "topics"'),
        ({"scan.startup.mode": "first"}, 'option scan.startup.mode can\'t be "first"'),
        ({"shards": "a"}, 'option shards can\'t be "a"'),
    ],
)
def test_options_that_make_no_sense_are_refused(options, said):
    assert refusal(NOBODY, "t", **options).message == said


@pytest.mark.parametrize(
    "problem", [KafkaError.LEADER_NOT_AVAILABLE, KafkaError.UNKNOWN_LEADER_EPOCH, KafkaError._NOENT]
)
def test_a_new_topic_is_readable_once_its_partitions_have_leaders(broker, topic, problem):
    asked = cluster.Cluster({"bootstrap.servers": broker.bootstrap})
    offsets, elections = asked._brokers.offsets, [KafkaError(problem, "No leaders found")] * 2

    def electing(wanted, *, committed):
        if not elections:
            return offsets(wanted, committed=committed)
        pending = {partition: Future() for partition in wanted}
        for future in pending.values():
            future.set_exception(KafkaException(elections[-1]))
        elections.pop()
        return pending

    asked._brokers.offsets = electing
    assert asked.ask(topic()).ends == {0: 0}
    assert not elections


def test_messages_that_came_after_the_last_look_are_in_the_next_poll(broker, topic, monkeypatch):
    """A trickle of messages does not wait for another epoch."""
    monkeypatch.setattr(cluster, "_BUSY_S", 3600.0)
    monkeypatch.setattr(cluster, "_IDLE_S", 3600.0)  # no look by itself
    monkeypatch.setattr(cluster, "_PATIENCE_S", 60.0)
    name = topic()
    produce(broker, name, [1])
    asked = cluster.Cluster({"bootstrap.servers": broker.bootstrap})
    asked.watch(name)
    assert asked.state(name, fresh=True).ends == {0: 1}
    produce(broker, name, [2])
    deadline = time.monotonic() + 60
    while asked.recent(name).ends != {0: 2}:  # the first answer may be that of a look that had begun before
        assert time.monotonic() < deadline
    asked.leave(name)


def test_a_source_is_forgotten_by_whoever_finds_it(broker, topic):
    """The search for garbage runs in threads that hold any lock, also that of another cluster."""
    name = topic()
    asked = cluster.Cluster({"bootstrap.servers": broker.bootstrap})
    for _ in range(2):
        asked.watch(name)
    thread = asked._thread
    leaving = threading.Thread(target=lambda: [asked.leave(name) for _ in range(2)])
    with asked._changed:
        leaving.start()
        leaving.join(60)
        assert not leaving.is_alive()
    thread.join(60)
    assert not thread.is_alive()
    asked.watch(name)
    assert asked.state(name, fresh=True).ends == {0: 0}
    asked.leave(name)


def test_readers_that_nobody_asks_for_leave_the_brokers(monkeypatch):
    closed, clock = [], [1000.0]
    monkeypatch.setattr(ranges, "_READERS", {})
    monkeypatch.setattr(ranges.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(
        ranges,
        "TopicReader",
        lambda options, *_, **__: SimpleNamespace(close=lambda: closed.append(options.topic)),
    )

    def asked(name):
        options = SimpleNamespace(topic=name, properties={})
        return ranges.reader_of(options, "id", headers=False, times=False)

    first, kept = asked("a"), asked("b")
    clock[0] += ranges._IDLE_S - 1
    assert asked("b") is kept
    assert not closed
    clock[0] += 2
    assert asked("b") is kept
    assert closed == ["a"]
    assert asked("a") is not first
    for number in range(ranges._MOST_CONSUMERS):
        asked(f"c{number}")
    assert closed == ["a", "b", "a"], "the oldest make room"
    ranges.forget_readers()
    assert len(closed) == 3 + ranges._MOST_CONSUMERS

"""Kafka sources on Spark: brokers that die, workers that die, restarts of the database."""

import json
import random
import subprocess
import sys
import time
from typing import Final

import pytest
from confluent_kafka import Producer
from tests.kafkatopics import avro_values
from tests.rowchanges import COLUMNS, RowChanges
from tests.spark.test_kill import ROOT, environment, kill

import watersmeet
from watersmeet.connectors.kafka.source import KafkaSource
from watersmeet.runtime.spark import jobs

pytestmark = pytest.mark.spark

SOURCE = """CREATE SOURCE {name} (k bigint, v bigint)
    WITH (connector = 'kafka', topic = '{topic}', properties.bootstrap.server = '{servers}')"""


def produce(broker, topic, rows, partitions=1):
    producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 5})
    for k, v in rows:
        producer.produce(topic, json.dumps({"k": k, "v": v}).encode(), partition=k % partitions)
    producer.flush(30)


def eventually(cursor, query, wanted, seconds=60):
    until = time.monotonic() + seconds
    while True:
        cursor.execute(query)
        found = cursor.fetchall()
        if found == wanted or time.monotonic() > until:
            assert found == wanted
            return
        time.sleep(0.1)


def test_two_topics_are_joined_and_go_on_after_a_restart(broker, topic, tmp_path):
    left, right = topic(partitions=2), topic(partitions=3)
    query = "SELECT count(*), sum(l.v * r.v) FROM l JOIN r ON l.k = r.k"
    produce(broker, left, [(k, k + 1) for k in range(4000)], 2)
    produce(broker, right, [(k, k + 2) for k in range(0, 6000, 2)], 3)
    with watersmeet.connect(tmp_path / "db", parallelism=2) as connection:
        cursor = connection.cursor()
        for name, named in (("l", left), ("r", right)):
            cursor.execute(SOURCE.format(name=name, topic=named, servers=broker.bootstrap))
        cursor.execute("CREATE MATERIALIZED VIEW joined AS SELECT l.k, l.v AS lv, r.v AS rv FROM l JOIN r ON l.k = r.k")
        cursor.execute("FLUSH")
        cursor.execute("SELECT count(*), sum(lv * rv) FROM joined")
        assert cursor.fetchall() == [(2000, sum((k + 1) * (k + 2) for k in range(0, 4000, 2)))]
    produce(broker, left, [(k, k + 1) for k in range(4000, 6000)], 2)
    with watersmeet.connect(tmp_path / "db", parallelism=2) as connection:
        cursor = connection.cursor()
        cursor.execute("FLUSH")
        cursor.execute("SELECT count(*), sum(lv * rv) FROM joined")
        assert cursor.fetchall() == [(3000, sum((k + 1) * (k + 2) for k in range(0, 6000, 2)))]
        cursor.execute(f"CREATE MATERIALIZED VIEW again AS {query}")  # reads both topics from their beginning
        cursor.execute("FLUSH")
        cursor.execute("SELECT * FROM again")
        assert cursor.fetchall() == [(3000, sum((k + 1) * (k + 2) for k in range(0, 6000, 2)))]


@pytest.mark.slow
def test_a_schema_that_the_columns_do_not_fit_stops_its_source_alone(broker, topic, registry, tmp_path):
    name = topic()

    def send(kind, *values):
        schema = {"type": "record", "name": "r", "fields": [{"name": "v", "type": kind}]}
        producer = Producer({"bootstrap.servers": broker.bootstrap})
        for _, value in avro_values(registry, f"{name}-{kind}", schema, *({"v": v} for v in values)):
            producer.produce(name, value)
        producer.flush(30)

    with watersmeet.connect(tmp_path / "db", parallelism=1) as connection:
        cursor = connection.cursor()
        cursor.execute("CREATE TABLE beside (i int)")
        cursor.execute("CREATE MATERIALIZED VIEW b AS SELECT count(*) AS n FROM beside")
        cursor.execute(
            f"CREATE SOURCE s (v bigint) WITH (connector = 'kafka', topic = '{name}', properties.bootstrap.server = "
            f"'{broker.bootstrap}') FORMAT PLAIN ENCODE AVRO (schema.registry = '{registry.url}')"
        )
        cursor.execute("CREATE MATERIALIZED VIEW v AS SELECT sum(v) AS total FROM s")
        send("long", 1, 2)
        eventually(cursor, "SELECT total FROM v", [(3,)])
        send("boolean", True)
        until = time.monotonic() + 60
        state = reason = None
        while state != "waiting" and time.monotonic() < until:
            cursor.execute("SHOW SOURCES")
            ((_, state, reason, *_),) = cursor.fetchall()
        assert state == "waiting"
        assert '"v"' in reason
        cursor.execute("INSERT INTO beside VALUES (1), (2)")
        eventually(cursor, "SELECT n FROM b", [(2,)])
        cursor.execute("SELECT total FROM v")
        assert cursor.fetchall() == [(3,)]
        assert connection.status()["state"] == "running"


@pytest.mark.slow
def test_a_bad_record_stops_its_source_alone(broker, topic, tmp_path):
    """Two sources stop, a third one sets its own aside and goes on; nothing is set aside twice."""
    names = {source: topic() for source in ("strict", "too", "lenient")}

    def send(number):
        for name in names.values():
            produce(broker, name, [(number, number)])

    with watersmeet.connect(tmp_path / "db", parallelism=2) as connection:
        cursor = connection.cursor()
        for name, named in names.items():
            stop = "" if name == "lenient" else ", on_error = 'stop'"
            made = SOURCE.format(name=name, topic=named, servers=broker.bootstrap)
            cursor.execute(made.removesuffix(")") + stop + ")")
            cursor.execute(f"CREATE MATERIALIZED VIEW of_{name} AS SELECT count(*) AS n FROM {name}")
        send(1)
        cursor.execute("FLUSH")
        assert not cursor.notices
        producer = Producer({"bootstrap.servers": broker.bootstrap})
        for name in names.values():
            producer.produce(name, b"nonsense")
        producer.flush(30)
        send(2)
        for _ in range(2):
            cursor.execute("FLUSH")
            assert len(cursor.notices) == 2
            assert all("stalled" in n and "offset 1" in n for n in cursor.notices)
            cursor.execute("SELECT * FROM of_strict, of_too, of_lenient")
            assert cursor.fetchall() == [(1, 1, 2)]
            cursor.execute("SELECT source, rows FROM watersmeet.dead_letters")
            assert cursor.fetchall() == [("lenient", 1)]
        assert connection.status()["state"] == "running"
    with watersmeet.connect(tmp_path / "db", parallelism=2) as connection:
        cursor = connection.cursor()
        cursor.execute("FLUSH")
        for notice in cursor.notices:
            cursor.execute(notice.partition("continue: ")[2])
        cursor.execute("FLUSH")
        assert not cursor.notices
        cursor.execute("SELECT * FROM of_strict, of_too, of_lenient")
        assert cursor.fetchall() == [(2, 2, 2)]
        cursor.execute("SELECT source, rows FROM watersmeet.dead_letters ORDER BY source")
        assert cursor.fetchall() == [("lenient", 1), ("strict", 1), ("too", 1)]


@pytest.mark.slow
def test_a_broker_that_dies_stops_its_source_alone(own_broker, tmp_path, monkeypatch):
    """It dies between the plan of an epoch, which names its messages, and the task that reads them."""
    own_broker.create_topic("t")
    killed = []
    poll = KafkaSource.poll

    def killing(self, *arguments, **options):
        found = poll(self, *arguments, **options)
        if found.slices and not killed:
            killed.append(True)
            own_broker.kill()
        return found

    with watersmeet.connect(tmp_path / "db", parallelism=1) as connection:
        cursor = connection.cursor()
        cursor.execute("CREATE TABLE beside (i int)")
        cursor.execute("CREATE MATERIALIZED VIEW b AS SELECT count(*) AS n FROM beside")
        cursor.execute(SOURCE.format(name="s", topic="t", servers=own_broker.bootstrap))
        cursor.execute("CREATE MATERIALIZED VIEW v AS SELECT sum(v) AS total FROM s")
        cursor.execute("FLUSH")
        monkeypatch.setattr(KafkaSource, "poll", killing)
        produce(own_broker, "t", [(k, k) for k in range(100)])
        eventually(cursor, "SELECT count(*) FROM b", [(1,)])
        until = time.monotonic() + 60
        while not killed and time.monotonic() < until:
            time.sleep(0.05)
        cursor.execute("INSERT INTO beside VALUES (1), (2)")
        eventually(cursor, "SELECT n FROM b", [(2,)])
        assert connection.status()["state"] == "running"
        own_broker.start()
        eventually(cursor, "SELECT total FROM v", [(sum(range(100)),)])
        produce(own_broker, "t", [(k, k) for k in range(100, 200)])
        eventually(cursor, "SELECT total FROM v", [(sum(range(200)),)])


READS: Final = """
import sys
import watersmeet
from watersmeet.runtime.spark import jobs
jobs.SMALL_ROWS = -1  # every epoch goes through the shuffle
with watersmeet.connect(sys.argv[1], parallelism=2):
    print("ready", flush=True)
    sys.stdin.read()
"""


@pytest.mark.slow
def test_values_that_were_not_sent_and_truncate_survive_kills(broker, topic, tmp_path, monkeypatch):
    """Changes that depend on rows, through the shuffle, while kill -9 hits driver and workers."""
    monkeypatch.setattr(jobs, "SMALL_ROWS", -1)
    name, model, rng = topic(retention_ms=-1), RowChanges(7, keys=40), random.Random(7)
    path = tmp_path / "db"

    def send(count):
        producer = Producer({"bootstrap.servers": broker.bootstrap})
        for key, value in model.messages(count):
            producer.produce(name, value, key=key)
        producer.flush(30)

    with watersmeet.connect(path, parallelism=2) as connection:
        connection.execute(
            f"""CREATE TABLE t ({COLUMNS}) WITH (connector = 'kafka', topic = '{name}',
                properties.bootstrap.server = '{broker.bootstrap}') FORMAT DEBEZIUM ENCODE JSON"""
        )
        connection.execute("CREATE MATERIALIZED VIEW v AS SELECT * FROM t")
        send(200)
    for _ in range(2):
        process = subprocess.Popen(
            [sys.executable, "-c", READS, str(path)],
            cwd=ROOT,
            env=environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            assert process.stdout is not None
            assert process.stdout.readline().strip() == "ready"
            for _ in range(rng.randrange(4, 12)):
                send(50)
                time.sleep(rng.random() / 3)
        finally:
            kill(process)
    with watersmeet.connect(path, parallelism=2) as connection:
        cursor = connection.cursor()
        send(100)
        cursor.execute("FLUSH")
        for relation in ("t", "v"):
            cursor.execute(f"SELECT * FROM {relation} ORDER BY id")
            assert cursor.fetchall() == model.listed()
        cursor.execute('SELECT "offset" FROM watersmeet.dead_letters ORDER BY 1')
        assert [offset for (offset,) in cursor.fetchall()] == model.dead
        assert model.dead

"""`watersmeet.join` between Spark's own Kafka source and sink, as docs/DATAFRAMES.md writes it."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition
from scripts.servers.archives import ServerUnavailableError, fetch
from scripts.servers.spark import SPARK_KAFKA
from tests.servers import UNAVAILABLE

import watersmeet
from watersmeet.runtime.spark import session

pytestmark = pytest.mark.spark
PAGE = Path(__file__).parents[2] / "docs" / "DATAFRAMES.md"


@pytest.fixture(scope="module")
def spark():
    """A session as a user would have it, with the connector."""
    try:
        jars = fetch(SPARK_KAFKA)
    except ServerUnavailableError as error:
        pytest.skip(f"Spark's Kafka connector {UNAVAILABLE}{error}")
    kept = session.acquire(None, 2)
    kept.conf.set(
        "spark.sql.streaming.stateStore.providerClass",
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
    )
    kept.conf.set("spark.sql.streaming.stateStore.checkpointFormatVersion", "2")
    kept.conf.set("spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled", "true")
    for jar in jars.iterdir():
        kept.sql(f"ADD JAR '{jar}'")
    yield kept
    session.release(kept)


def produce(broker, topic, rows):
    producer = broker.producer()
    for row in rows:
        producer.produce(topic, json.dumps(row), key=str(row["id"]))
    assert producer.flush(30) == 0


def consumed(broker, topic):
    """The values of all messages, as JSON."""
    consumer = broker.consumer(**{"enable.partition.eof": True})
    consumer.assign([TopicPartition(topic, 0, 0)])
    found = []
    while (message := consumer.poll(30)) is not None and message.error() is None:
        found.append(json.loads(message.value()))
    consumer.close()
    return found


@pytest.mark.slow
def test_a_left_join_of_two_topics_follows_both_through_a_restart(spark, broker, topic, tmp_path):
    orders, payments, out = topic(partitions=2), topic(), topic()

    (block,) = re.findall(r"```python\n((?:(?!```).)*?format\(\"kafka\"\).*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    for written, name in (("orders", orders), ("payments", payments), ("paid_orders", out)):
        assert f'"{written}"' in block
        block = block.replace(f'"{written}"', f'"{name}"')

    def join():
        names = {"watersmeet": watersmeet, "spark": spark, "bootstrap": broker.bootstrap, "folder": tmp_path}
        exec(compile(block, str(PAGE), "exec"), names)
        names["query"].processAllAvailable()
        names["query"].stop()

    def content():
        rows = Counter()
        for row in consumed(broker, out):
            rows[row["id"], row["item"], row["amount"]] += row["diff"]
        return {row: count for row, count in rows.items() if count}

    produce(broker, orders, [{"id": number, "item": f"item {number}"} for number in range(20)])
    produce(broker, payments, [{"id": number, "amount": number * 10} for number in range(0, 10, 2)])
    join()
    expected = {
        (number, f"item {number}", number * 10 if number in range(0, 10, 2) else None): 1 for number in range(20)
    }
    assert content() == expected

    produce(broker, payments, [{"id": number, "amount": number * 10} for number in (11, 12, 30, 12)])
    produce(broker, orders, [{"id": 30, "item": "item 30"}])
    join()
    for number, times in ((11, 1), (12, 2), (30, 1)):
        expected.pop((number, f"item {number}", None), None)
        expected[number, f"item {number}", number * 10] = times
    assert content() == expected

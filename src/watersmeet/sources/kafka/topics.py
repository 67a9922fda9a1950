"""Topics of a Kafka cluster: created, looked at and deleted."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Final

from watersmeet.clients.kafka import Brokers, client_config, library
from watersmeet.errors import Error
from watersmeet.sources.kafka.cluster import cluster_of

_TIMEOUT_S: Final = 30.0
_PAUSE_S: Final = 0.02
#: How much of a topic is looked at to learn how its records are partitioned, and for how long.
_SAMPLED_PARTITIONS: Final = 64
_SAMPLED_RECORDS: Final = 100
_SAMPLING_S: Final = 5.0


def partitions_of(properties: Mapping[str, str], topic: str) -> int | None:
    """How many partitions a topic has; None if there is no such topic.

    properties: of the client, as `KafkaOptions` has them. RUNTIME_UNAVAILABLE without brokers, CONNECTOR_OPTION for
    wrong credentials.
    """
    try:
        return len(cluster_of(properties).ask(topic).ends)
    except Error as err:
        if err.condition == "UNDEFINED_OBJECT":
            return None
        raise


def is_hashed(properties: Mapping[str, str], topic: str) -> bool:
    """Whether the newest records of a topic are in the partitions in which murmur2 of their keys' bytes puts them, as
    Kafka's own producers do. Records without a key may be anywhere.
    """
    kafka = library()
    ends = cluster_of(properties).ask(topic).ends
    wanted = dict(list(ends.items())[:_SAMPLED_PARTITIONS])
    places = [kafka.TopicPartition(topic, p, max(0, end - _SAMPLED_RECORDS)) for p, end in wanted.items() if end]
    if not places or len(ends) == 1:
        return True
    consumer = kafka.Consumer(
        client_config(
            properties,
            group_id="watersmeet-sample",
            enable_auto_commit=False,
            isolation_level="read_committed",
            auto_offset_reset="earliest",
            enable_partition_eof=True,
        )
    )
    left = {place.partition for place in places}
    deadline_s = time.monotonic() + _SAMPLING_S
    try:
        consumer.assign(places)
        while left and time.monotonic() < deadline_s:
            for message in consumer.consume(_SAMPLED_RECORDS, 0.1):
                if message.error() is not None:
                    left.discard(message.partition())
                elif message.key() is not None and murmur2(message.key()) % len(ends) != message.partition():
                    return False
    finally:
        consumer.close()
    return True


def murmur2(key: bytes) -> int:
    """The hash of a key by which Kafka's producers choose a partition: the remainder by the number of partitions.

    Apache Kafka, `org.apache.kafka.common.utils.Utils.murmur2`, without the sign.
    """
    factor, mask = 0x5BD1E995, 0xFFFFFFFF
    found = 0x9747B28C ^ len(key)
    whole = len(key) & ~3
    for start in range(0, whole, 4):
        part = int.from_bytes(key[start : start + 4], "little") * factor & mask
        part = (part ^ part >> 24) * factor & mask
        found = found * factor & mask ^ part
    if whole < len(key):
        found = (found ^ int.from_bytes(key[whole:], "little")) * factor & mask
    found = (found ^ found >> 13) * factor & mask
    return (found ^ found >> 15) & 0x7FFFFFFF


def create_topic(
    properties: Mapping[str, str], topic: str, partitions: int, replication: int, configuration: Mapping[str, str]
) -> str | None:
    """Creates a topic and gives its id when it can be read. None if it exists already.

    configuration: by Kafka's names. CONNECTOR_OPTION for what the brokers refuse.
    """
    if not Brokers(properties, answer_s=_TIMEOUT_S).create(topic, partitions, replication, configuration):
        return None
    return _wait_until_readable(properties, topic)


def delete_topic(properties: Mapping[str, str], topic: str) -> None:
    """Deletes a topic with its records, if it is there."""
    Brokers(properties, answer_s=_TIMEOUT_S).delete(topic)


def _wait_until_readable(properties: Mapping[str, str], topic: str) -> str:
    """The id of a new topic. Until all of its partitions have a leader, brokers say that it is not there."""
    cluster = cluster_of(properties)
    deadline_s = time.monotonic() + _TIMEOUT_S
    while True:
        try:
            return cluster.ask(topic).id
        except Error:
            if time.monotonic() > deadline_s:
                raise
        time.sleep(_PAUSE_S)

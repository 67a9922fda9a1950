"""The target `kafka`, a topic. Each group of batches is one transaction, which also writes the progress of the sink.

RisingWave, "Sink data from RisingWave to Apache Kafka".

The compacted progress topic has one key for each sink. Offsets of a consumer group would also work, but transactions
with them take 100 ms longer, and the offsets expire.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from watersmeet.connectors.base.options import OptionSet, OptionSpec, refuse
from watersmeet.connectors.base.sources import Unavailable
from watersmeet.connectors.base.targets import Connector, Delivery, SinkBatch, SinkOffset, Target, reached
from watersmeet.connectors.kafka.client import (
    TOPIC_OPTIONS,
    Brokers,
    client_config,
    failure,
    is_lasting,
    library,
    properties_of,
)
from watersmeet.errors import Error, error
from watersmeet.formats.encoders import Destination, Encoded, Encoder, open_encoder
from watersmeet.system.process import fault

#: The default of `progress.topic`, the topic to which sinks write their progress.
PROGRESS_TOPIC: Final = "watersmeet-progress"
#: The configuration of the progress topic. Closed segments are compacted within minutes, so that a start has little to
#: read.
_PROGRESS_CONFIG: Final = {
    "cleanup.policy": "compact",
    "segment.ms": "600000",
    "segment.bytes": "16777216",
    "min.cleanable.dirty.ratio": "0.01",
    "max.compaction.lag.ms": "600000",
}
#: The settings that options can't change, because the law of targets depends on them.
_OWN: Final = ("transactional.id", "enable.idempotence", "acks", "partitioner", "transaction.timeout.ms", "group.id")
#: The errors for a message that the topic never accepts.
_REFUSED: Final = ("MSG_SIZE_TOO_LARGE", "INVALID_RECORD", "INVALID_MSG", "POLICY_VIOLATION", "INVALID_TIMESTAMP")
_SIZE: Final = "MSG_SIZE_TOO_LARGE"

#: The number of messages that are passed to the client in one call …
_CALL_MESSAGES: Final = 1 << 14
#: … unless more than this many messages are unsent.
_QUEUED_MESSAGES: Final = 1 << 18
#: The time limit of a call of the client, after which the sink checks whether it should stop.
_CALL_S: Final = 1.0
#: The time without an answer after which the target counts as unavailable.
_ANSWER_S: Final = 15.0
_TRANSACTION_MS: Final = 60_000
#: The maximum time for which an open transaction of another sink may block the progress topic.
_READ_S: Final = _TRANSACTION_MS / 1000 + _ANSWER_S
#: The time limit for aborting a transaction when the sink stops; afterwards the broker aborts it by its own timeout.
_ABORT_S: Final = 3.0


@dataclass(frozen=True)
class KafkaSinkOptions:
    """The options of a sink. topic: the topic of the messages. properties: the client's configuration under
    librdkafka's names. progress_topic: the topic for the progress of sinks.
    """

    topic: str
    properties: Mapping[str, str]
    progress_topic: str

    @property
    def servers(self) -> str:
        """The brokers, for messages."""
        return self.properties["bootstrap.servers"]


SINK_OPTIONS: Final = OptionSet(
    "kafka of sinks",
    (
        *TOPIC_OPTIONS,
        OptionSpec("progress.topic", "The topic that keeps how far sinks are.", default=PROGRESS_TOPIC),
    ),
)


def kafka_sink_options(delivery: Delivery) -> KafkaSinkOptions:
    """The options of a sink. Raises CONNECTOR_OPTION."""
    options = SINK_OPTIONS.read(delivery.connector)
    topic, servers = options.needed("topic"), options.needed("properties.bootstrap.server")
    properties = properties_of(delivery.connector)
    for name in _OWN:
        if name in properties:
            refuse(
                f'option "properties.{name}" can\'t be given',
                detail="Watersmeet sets it, so that each change is written once.",
            )
    return KafkaSinkOptions(topic, {**properties, "bootstrap.servers": servers}, options.text("progress.topic"))


@dataclass(frozen=True)
class _Progress:
    """A transaction in the progress topic. topic_id: the brokers' id of the topic with the messages."""

    offset: SinkOffset
    topic_id: str


class KafkaTarget(Target):
    """A target; see `base.targets.Target`. stopping: returns whether waiting calls should give up."""

    def __init__(
        self, delivery: Delivery, options: KafkaSinkOptions, database_id: str, stopping: Callable[[], bool]
    ) -> None:
        self._delivery, self._options, self._stopping = delivery, options, stopping
        self._name = f"watersmeet-{database_id}-{delivery.target_id}"
        self._kafka = library()
        self._encoder = _encoder(delivery, options)
        self._producer: Any = None
        self._topic_id = ""
        self._in_transaction = False
        self._told: Any = None
        """Why connections fail: the client retries for any reason."""
        self._undelivered: Any = None
        """The reason why the first failed message was not accepted."""

    def look(self) -> None:
        """Checks that the topic exists. Raises Unavailable, UNDEFINED_OBJECT, CONNECTOR_OPTION."""
        with self._explained():
            self._brokers().topic_id(self._options.topic)

    def open(self, generation: int) -> SinkOffset | None:
        self.close()
        self._told = self._undelivered = None
        with self._explained():
            brokers = self._brokers()
            self._topic_id = brokers.topic_id(self._options.topic)
            self._make_progress_topic(brokers)
            self._producer = self._kafka.Producer(
                {
                    **self._config(),
                    "transactional.id": self._name,
                    "transaction.timeout.ms": _TRANSACTION_MS,
                    "partitioner": "murmur2_random",
                    "linger.ms": 5,
                    "batch.num.messages": 1 << 16,
                    "queue.buffering.max.messages": 2 * _QUEUED_MESSAGES,
                    "delivery.report.only.error": True,
                    "on_delivery": self._note,
                    "error_cb": self._hear,
                }
            )
            # Earlier writers are fenced off first, so that nothing can be written after the progress that is read.
            self._repeated(self._producer.init_transactions)
            fault("kafka.fenced")
            found = self._read_progress(brokers)
            fault("kafka.read")
        if found is None:
            return None
        if found.offset.generation > generation:
            raise error(
                "WRITER_FENCED",
                f"{self._delivery.title} was replaced: generation {found.offset.generation} is delivered",
            )
        if found.offset.generation == generation and found.topic_id != self._topic_id:
            raise error(
                "DELIVERY_MISMATCH",
                f'{self._delivery.title} can\'t go on: topic "{self._options.topic}" was deleted and made anew',
                hint=self._delivery.renewal,
            )
        return found.offset

    def deliver(self, batches: Sequence[SinkBatch]) -> None:
        with self._explained():
            fault("kafka.begin")
            self._producer.begin_transaction()
            self._in_transaction = True
            for batch in batches:
                # one batch at a time, because the client sends a batch while the next one is encoded
                self._produce(self._encoder.encode(batch.rows, batch.diff, batch.time_us))
                fault("kafka.produced")
            self._produce_progress(_Progress(batches[-1].offset, self._topic_id))
            fault("kafka.commit")
            self._repeated(self._producer.commit_transaction)
            self._in_transaction = False
            fault("kafka.committed")

    def close(self) -> None:
        producer, self._producer = self._producer, None
        if producer is None:
            return
        if self._in_transaction:
            self._in_transaction = False
            with contextlib.suppress(self._kafka.KafkaException):
                producer.abort_transaction(_ABORT_S)
        producer.purge()
        # it repeats the error if the producer was fenced off or reaches no broker
        with contextlib.suppress(self._kafka.KafkaException, SystemError):
            producer.close()

    def _brokers(self) -> Brokers:
        return Brokers(self._options.properties, answer_s=_ANSWER_S, stopping=self._stopping)

    def _config(self) -> dict[str, Any]:
        return client_config(self._options.properties)

    def _hear(self, problem: Any) -> None:
        self._told = problem

    def _note(self, problem: Any, _message: Any) -> None:
        if (
            problem is not None
            and self._undelivered is None
            and problem.name() not in ("_PURGE_QUEUE", "_PURGE_INFLIGHT")
        ):
            self._undelivered = problem

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        """Converts errors of the client to those of the contract."""
        try:
            yield
        except self._kafka.KafkaException as cause:
            raise self._failure(cause.args[0]) from cause
        except TimeoutError as cause:
            raise self._unavailable(str(cause) or "no answer") from cause
        except Error as cause:
            if cause.condition != "RUNTIME_UNAVAILABLE":
                raise
            raise self._unavailable(cause.detail or cause.message) from cause

    def _failure(self, problem: Any) -> Exception:
        undelivered = self._undelivered
        if undelivered is not None and undelivered.name() in _REFUSED:
            return self._refused(undelivered)
        for known in (undelivered, problem, self._told):
            if known is not None and is_lasting(known):
                return failure(known, self._options.topic, self._options.servers)
        return self._unavailable(f"{problem.name()}: {problem.str()}")

    def _unavailable(self, text: str) -> Unavailable:
        told = "" if self._told is None else f" ({self._told.str()})"
        return Unavailable(
            f"the Kafka brokers at {self._options.servers} (properties.bootstrap.server) take nothing now: {text}{told}"
        )

    def _refused(self, problem: Any) -> Error:
        hint = None
        if problem.name() == _SIZE:
            hint = "Raise max.message.bytes of the topic, and the option properties.message.max.bytes of the sink."
        return error(
            "DELIVERY_REFUSED",
            f'topic "{self._options.topic}" does not take a row of {self._delivery.title}',
            detail=f"{problem.name()}: {problem.str()}.",
            hint=hint,
        )

    def _repeated(self, call: Callable[[float], Any]) -> None:
        """Repeats a call that may time out until it succeeds, or until the brokers accept no message for too long.
        Raises UNDEFINED_OBJECT if the topic was deleted, which the client does not report.
        """
        end, left = time.monotonic() + _ANSWER_S, len(self._producer)
        looked = False
        while True:
            if len(self._producer) < left:
                end, left = time.monotonic() + _ANSWER_S, len(self._producer)
            try:
                call(_CALL_S)
            except self._kafka.KafkaException as cause:
                if not cause.args[0].retriable() or self._undelivered is not None:
                    raise
                if self._told is not None and is_lasting(self._told):
                    raise self._kafka.KafkaException(self._told) from cause
                if time.monotonic() > end or self._stopping():
                    raise
                if not looked:
                    looked = True
                    self.look()
            else:
                return

    def _make_progress_topic(self, brokers: Brokers) -> None:
        topic = self._options.progress_topic
        if not _has(brokers, topic):
            brokers.create(topic, 1, -1, _PROGRESS_CONFIG)
            end = time.monotonic() + _ANSWER_S
            while not _has(brokers, topic):  # until the topic exists on all brokers
                if time.monotonic() > end or self._stopping():
                    raise TimeoutError(f'topic "{topic}" was created and can\'t be seen')
                time.sleep(0.05)

    def _read_progress(self, brokers: Brokers) -> _Progress | None:
        """The progress of the newest transaction of the sink.

        It may follow open transactions of other sinks, and can only be read when those have ended.
        """
        kafka = self._kafka
        progress = kafka.TopicPartition(self._options.progress_topic, 0, kafka.OFFSET_BEGINNING)
        ends = brokers.offsets({progress: kafka.admin.OffsetSpec.latest()}, committed=False)
        end_offset = brokers.answer(ends[progress], progress.topic).offset
        consumer = kafka.Consumer(
            {
                **self._config(),
                "group.id": self._name,
                "isolation.level": "read_committed",
                "enable.partition.eof": True,
                "enable.auto.commit": False,
                "fetch.wait.max.ms": 10,
                "error_cb": self._hear,
            }
        )
        found: _Progress | None = None
        until = time.monotonic() + _READ_S
        try:
            # without a known partition leader, the client's first request for an offset takes half a second
            consumer.list_topics(progress.topic, _ANSWER_S)
            consumer.assign([progress])
            while True:
                for message in consumer.consume(10_000, 0.01):
                    if message.error() is None:
                        if message.key() == self._name.encode():
                            found = _progress_of(message.value())
                    elif message.error().name() != "_PARTITION_EOF":
                        raise kafka.KafkaException(message.error())
                    elif message.offset() >= end_offset:
                        return found
                if self._stopping() or time.monotonic() > until:
                    raise TimeoutError(
                        f'topic "{progress.topic}" can\'t be read to its end: a transaction of another sink is open'
                    )
        finally:
            consumer.close()

    def _produce(self, messages: Encoded) -> None:
        producer, topic = self._producer, self._options.topic
        if any(p is not None for p in (messages.headers, messages.times_ms, messages.partition_numbers)):
            self._produce_each(messages)
            return
        for start in range(0, len(messages), _CALL_MESSAGES):
            keys, values = (_listed(c, start) for c in (messages.keys, messages.values))
            batch = [{"key": k, "value": v} for k, v in zip(keys, values, strict=True)]
            self._make_room()
            if producer.produce_batch(topic, batch) < len(batch):
                raise self._kafka.KafkaException(next(m["_error"] for m in batch if "_error" in m))

    def _produce_each(self, messages: Encoded) -> None:
        """Produces messages with headers, times or chosen partitions, which the client only accepts one by one."""
        size = len(messages)
        headers = pa.nulls(size) if messages.headers is None else messages.headers
        times_ms = pa.nulls(size) if messages.times_ms is None else messages.times_ms
        chosen = messages.partitions(1 if messages.partition_numbers is None else self._partition_count())
        for start in range(0, size, _CALL_MESSAGES):
            self._make_room()
            columns = (_listed(c, start) for c in (messages.keys, messages.values, headers, times_ms))
            for key, value, pairs, time_ms, partition in zip(*columns, chosen[start:], strict=False):
                given = {} if time_ms is None else {"timestamp": time_ms}
                own = [(h["key"], h["value"]) for h in pairs or ()]
                self._producer.produce(
                    self._options.topic, key=key, value=value, headers=own, partition=partition, **given
                )

    def _partition_count(self) -> int:
        """The current number of partitions of the topic."""
        topic = self._options.topic
        return len(self._producer.list_topics(topic, _ANSWER_S).topics[topic].partitions)

    def _make_room(self) -> None:
        """Waits until the client has sent most of its messages."""
        end = time.monotonic() + _TRANSACTION_MS / 1000
        while len(self._producer) > _QUEUED_MESSAGES:
            self._producer.poll(0.01)
            if self._undelivered is not None:
                raise self._kafka.KafkaException(self._undelivered)
            if self._stopping() or time.monotonic() > end:
                raise TimeoutError("messages are not sent")

    def _produce_progress(self, progress: _Progress) -> None:
        value = {**progress.offset._asdict(), "topic_id": progress.topic_id, "sink": self._delivery.title}
        self._producer.produce(
            self._options.progress_topic, key=self._name.encode(), value=json.dumps(value).encode(), partition=0
        )


def _has(brokers: Brokers, topic: str) -> bool:
    try:
        brokers.topic_id(topic)
    except Error as err:
        if err.condition == "UNDEFINED_OBJECT":
            return False
        raise
    return True


def _listed(column: pa.Array, start: int) -> list[Any]:
    found: list[Any] = column.slice(start, _CALL_MESSAGES).to_pylist()
    return found


def _progress_of(value: bytes) -> _Progress:
    """The progress in a message. Raises DELIVERY_MISMATCH for a message that no sink has written."""
    try:
        said = json.loads(value)
        offset = SinkOffset(int(said["generation"]), int(said["commit"]), int(said["rows"]), bool(said["last"]))
        return _Progress(offset, str(said["topic_id"]))
    except (KeyError, TypeError, ValueError) as cause:
        raise error("DELIVERY_MISMATCH", "the progress topic says something that no sink has written") from cause


def _encoder(delivery: Delivery, options: KafkaSinkOptions) -> Encoder:
    destination = Destination(options.topic, "", delivery.title)
    computed = delivery.computed_parts
    return open_encoder(
        (*delivery.columns, *(c.column for c in computed)),
        delivery.key,
        delivery.format,
        destination,
        force_append_only=delivery.force_append_only,
        parts=delivery.message_parts | {c.column.name: c.part for c in computed},
    )


def _check(delivery: Delivery) -> None:
    with reached("Check that they run, and the options properties.*."):
        _open(delivery, "", lambda: False).look()


def _open(delivery: Delivery, database_id: str, stopping: Callable[[], bool]) -> KafkaTarget:
    return KafkaTarget(delivery, kafka_sink_options(delivery), database_id, stopping)


CONNECTOR: Final = Connector(_check, _open, options=SINK_OPTIONS)

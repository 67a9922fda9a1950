"""Kafka clients: the library, which is an optional dependency, configuration, requests to brokers, errors, and the
options of the connector kafka under RisingWave's names.
"""

from __future__ import annotations

import contextlib
import json
import logging
import re
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from types import ModuleType
from typing import Any, ClassVar, Final, Literal

from watersmeet.connectors.base.messages import ON_ERROR, MessageSpec
from watersmeet.connectors.base.options import OptionSet, OptionSpec, refuse
from watersmeet.errors import Error, error
from watersmeet.system import process
from watersmeet.system.secretvalues import revealed
from watersmeet.values.times import ABBREVIATED, UNITS_US

#: The logger of librdkafka's own messages, instead of stderr.
LOGGER: Final = logging.getLogger("watersmeet.kafka")

LOGGER.addHandler(logging.NullHandler())  # no output on stderr unless the user configures it

#: The default configuration of every client.
_COMMON: Final = {
    "client.id": "watersmeet",
    "socket.keepalive.enable": True,
    "reconnect.backoff.ms": 50,
    "reconnect.backoff.max.ms": 2_000,
    "allow.auto.create.topics": False,
}

#: RisingWave's names of properties that have another name in librdkafka.
_RENAMED: Final = {"bootstrap.server": "bootstrap.servers", "sasl.mechanism": "sasl.mechanisms"}

#: librdkafka's error codes for wrong credentials and certificates.
_REFUSED: Final = ("_AUTHENTICATION", "SASL_AUTHENTICATION_FAILED", "UNSUPPORTED_SASL_MECHANISM", "ILLEGAL_SASL_STATE")

_FORBIDDEN: Final = (
    "TOPIC_AUTHORIZATION_FAILED",
    "GROUP_AUTHORIZATION_FAILED",
    "CLUSTER_AUTHORIZATION_FAILED",
    "TRANSACTIONAL_ID_AUTHORIZATION_FAILED",
)

#: The error codes for settings that brokers never accept for a new topic.
_BAD_TOPIC: Final = ("INVALID_CONFIG", "INVALID_REPLICATION_FACTOR", "INVALID_PARTITIONS", "POLICY_VIOLATION")

_UNKNOWN: Final = ("UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC", "_UNKNOWN_PARTITION", "UNKNOWN_TOPIC_ID")


def library() -> ModuleType:
    """The module confluent_kafka. Raises LIBRARY_MISSING if it is not installed."""
    process.library("confluent_kafka.admin", "topics of Kafka")
    return process.library("confluent_kafka", "topics of Kafka")


def client_config(properties: Mapping[str, str], **own: Any) -> dict[str, Any]:
    """The configuration of a client, including secrets. properties: under librdkafka's names. own: the settings that
    this client requires.
    """
    known = {name: revealed(value) for name, value in properties.items()}
    return {**_COMMON, **known, **{name.replace("_", "."): value for name, value in own.items()}, "logger": LOGGER}


def properties_of(options: Mapping[str, str]) -> dict[str, str]:
    """The configuration in the options `properties.…` of a statement, under librdkafka's names."""
    given = {n.removeprefix("properties."): v for n, v in options.items() if n.startswith("properties.")}
    return {_RENAMED.get(name, name): value for name, value in given.items()}


def is_lasting(problem: Any) -> bool:
    """True for a KafkaError that is permanent for all topics."""
    return problem.name() in (*_REFUSED, *_FORBIDDEN, "_SSL", "_INVALID_ARG")


def is_unknown_topic(problem: Any) -> bool:
    """True for the KafkaError of a missing topic or partition."""
    return problem.name() in _UNKNOWN


def failure(problem: Any, topic: str, servers: str) -> Error:
    """The error of a statement for a KafkaError. It never contains a secret.

    It is UNDEFINED_OBJECT if the topic is missing, CONNECTOR_OPTION if an administrator must act, RUNTIME_UNAVAILABLE
    for temporary problems.
    """
    name, text = problem.name(), problem.str()
    if name in _UNKNOWN:
        return error(
            "UNDEFINED_OBJECT",
            f'there is no topic "{topic}" on {servers}',
            hint="Create it first, or correct the option topic.",
        )
    if name in _REFUSED:
        return error(
            "CONNECTOR_OPTION",
            f"the Kafka brokers at {servers} refuse the credentials",
            detail=text,
            hint="Check properties.sasl.mechanism, properties.sasl.username and properties.sasl.password.",
        )
    if name in _FORBIDDEN:
        return error(
            "CONNECTOR_OPTION",
            f'the Kafka brokers at {servers} do not allow this user to use topic "{topic}"',
            detail=text,
            hint="Ask for the rights to describe and read the topic, or use another properties.sasl.username.",
        )
    if name == "_SSL":
        return error(
            "CONNECTOR_OPTION",
            f"no TLS connection to the Kafka brokers at {servers}",
            detail=text,
            hint="Check properties.security.protocol and properties.ssl.ca.location.",
        )
    if name == "_INVALID_ARG":
        return error("CONNECTOR_OPTION", f"connector kafka does not take an option: {text}")
    return error(
        "RUNTIME_UNAVAILABLE",
        f"the Kafka brokers at {servers} can't be reached",
        detail=f"{name}: {text}",
        hint="Check that they run, and the option properties.bootstrap.server.",
    )


class _Ear:
    """Receives events of a client's connections. It has no reference to the client, which would otherwise never be
    released.
    """

    def __init__(self) -> None:
        self.told: Any = None
        """The reason why connections fail; the client itself retries for any reason."""

    def hear(self, problem: Any) -> None:
        if is_lasting(problem):
            self.told = problem


#: Unused clients. A client that is released in its own callback thread would end the process, and garbage collection
#: may run in any thread, so unused clients are released when the next one is created.
_gone: Final[deque[Any]] = deque()


class Brokers:
    """Requests to the brokers of a cluster. Errors are those of `failure`.

    answer_s: the maximum time to wait for an answer. stopping: returns whether waiting calls should give up.
    """

    def __init__(
        self, properties: Mapping[str, str], *, answer_s: float, stopping: Callable[[], bool] = lambda: False
    ) -> None:
        self.servers = properties["bootstrap.servers"]
        self.answer_s = answer_s
        self._stopping = stopping
        self._kafka = library()
        self._ear = _Ear()
        with contextlib.suppress(IndexError):  # it is empty, or another thread has taken the last client
            while True:
                _gone.popleft()
        try:
            self._admin = self._kafka.admin.AdminClient({**client_config(properties), "error_cb": self._ear.hear})
        except self._kafka.KafkaException as cause:
            raise failure(cause.args[0], "", self.servers) from cause
        weakref.finalize(self, _gone.append, self._admin).atexit = False

    def answer(self, future: Any, topic: str) -> Any:
        """Waits for the brokers' answer to a request about a topic."""
        end_s = time.monotonic() + 2 * self.answer_s  # the client itself gives up after the time limit of requests
        while True:
            self._admin.poll(0)
            if self._ear.told is not None:
                problem, self._ear.told = self._ear.told, None
                raise failure(problem, topic, self.servers)
            try:
                return future.result(0.1)
            except TimeoutError as cause:
                if self._stopping() or time.monotonic() > end_s:
                    timed_out = self._kafka.KafkaError(self._kafka.KafkaError._TIMED_OUT)
                    raise failure(timed_out, topic, self.servers) from cause
            except self._kafka.KafkaException as cause:
                raise failure(cause.args[0], topic, self.servers) from cause

    def describe(self, topics: Iterable[str]) -> dict[str, Any]:
        """Requests descriptions of topics: the pending answers by topic, with `topic_id` and `partitions`."""
        named = self._kafka.TopicCollection(list(topics))
        asked: dict[str, Any] = self._admin.describe_topics(named, request_timeout=self.answer_s)
        return asked

    def topic_id(self, topic: str) -> str:
        """The brokers' id of a topic. A topic that was deleted and created again has a different id."""
        return str(self.answer(self.describe([topic])[topic], topic).topic_id)

    def offsets(self, wanted: Mapping[Any, Any], *, committed: bool) -> dict[Any, Any]:
        """Requests the offsets for `OffsetSpec`s: the pending answers by `TopicPartition`, each with an `offset`.

        committed: whether only committed messages count.
        """
        levels = self._kafka.IsolationLevel
        level = levels.READ_COMMITTED if committed else levels.READ_UNCOMMITTED
        asked: dict[Any, Any] = self._admin.list_offsets(
            dict(wanted), isolation_level=level, request_timeout=self.answer_s
        )
        return asked

    def create(self, topic: str, partitions: int, replication: int, configuration: Mapping[str, str]) -> bool:
        """Creates a topic, which is not readable yet; False if it exists. replication: -1 for the brokers' default.

        configuration: under Kafka's names. Raises CONNECTOR_OPTION for settings that the brokers reject.
        """
        new = self._kafka.admin.NewTopic(topic, partitions, replication, config=dict(configuration))
        try:
            self.answer(self._admin.create_topics([new], request_timeout=self.answer_s)[topic], topic)
        except Error as err:
            problem = err.__cause__.args[0] if isinstance(err.__cause__, self._kafka.KafkaException) else None
            if problem is not None and problem.name() == "TOPIC_ALREADY_EXISTS":
                return False
            if problem is not None and problem.name() in _BAD_TOPIC:
                raise error(
                    "CONNECTOR_OPTION",
                    f'the Kafka brokers at {self.servers} refuse topic "{topic}"',
                    detail=problem.str(),
                ) from err
            raise
        return True

    def delete(self, topic: str) -> None:
        """Deletes a topic with its records, if it exists."""
        try:
            self.answer(self._admin.delete_topics([topic], request_timeout=self.answer_s)[topic], topic)
        except Error as err:
            if err.condition != "UNDEFINED_OBJECT":
                raise


#: Internal options, which CREATE determines so that a later start begins at the same offsets as CREATE would have.
START: Final = "start.offsets"

TOPIC_ID: Final = "topic.id"

#: The form of a time relative to now.
_BACK: Final = re.compile(r"-(\d+)(ms|s|m|h|d)")

#: Properties that would break guarantees, because they affect the start offset, commits or visibility.
_OWN: Final = (
    "auto.offset.reset",
    "enable.auto.commit",
    "enable.auto.offset.store",
    "enable.partition.eof",
    "group.id",
    "isolation.level",
)


@dataclass(frozen=True)
class KafkaOptions:
    """The options with which a topic is read.

    properties: the client's configuration under librdkafka's names. mode: the position at which reading begins. millis:
    the time at which reading begins. starts: the offset of the first message of each partition, as determined by
    CREATE; None: not determined yet. offsets: the start offsets, one for all partitions that are read, or one for each.
    on_data_loss: the handling of messages that expired unread, and of a topic that was created again. on_error: the
    handling of undecodable messages.
    """

    topic: str
    properties: Mapping[str, str]
    mode: Literal["earliest", "latest"] = "earliest"
    millis: int | None = None
    starts: Mapping[int, int] | None = None
    topic_id: str = ""
    on_data_loss: Literal["stop", "skip"] = "stop"
    on_error: Literal["skip", "stop"] = "skip"
    group_prefix: str = "rw-consumer"
    shards: tuple[int, ...] = field(default=())
    offsets: tuple[int, ...] = field(default=())

    @property
    def servers(self) -> str:
        """The brokers, for messages."""
        return self.properties["bootstrap.servers"]


@dataclass(frozen=True)
class KafkaSpec(MessageSpec):
    """The specification of a Kafka topic as a source."""

    kind: ClassVar[str] = "kafka"
    options: KafkaOptions

    @property
    def stops_on_error(self) -> bool:
        """See `SourceSpec`."""
        return self.options.on_error == "stop"


#: The options of the topic and the brokers, for sources and sinks.
TOPIC_OPTIONS: Final = (
    OptionSpec("topic", "The topic.", aliases=("kafka.topic",), is_needed=True),
    OptionSpec(
        "properties.bootstrap.server",
        "The brokers, as `host:port`, separated by commas.",
        aliases=("properties.bootstrap.servers", "kafka.brokers"),
        is_needed=True,
    ),
    OptionSpec("properties.", "A property of the client, under its name in librdkafka.", "prefix"),
)

SOURCE_OPTIONS: Final = OptionSet(
    "kafka",
    (
        *TOPIC_OPTIONS,
        OptionSpec(
            "scan.startup.mode",
            "Where reading begins.",
            "choice",
            aliases=("kafka.scan.startup.mode",),
            among=("earliest", "latest"),
            default="earliest",
        ),
        OptionSpec(
            "scan.startup.timestamp.millis",
            "Reading begins at the first message of this time or a later one; overrides scan.startup.mode.",
            "integer",
            aliases=("kafka.time.offset",),
            minimum=0,
            unit="ms since 1970",
        ),
        OptionSpec("scan.startup.offsets", "Reading begins at these offsets: one, or one per partition."),
        OptionSpec("shards", "The partitions that are read, as `0,2`; all if missing."),
        OptionSpec(
            "on_data_loss",
            "The handling of messages that expired unread, and of a topic that was created again.",
            "choice",
            among=("stop", "skip"),
            default="stop",
        ),
        ON_ERROR,
        OptionSpec("group.id.prefix", "The beginning of the consumer group's name.", default="rw-consumer"),
        OptionSpec(START, "The offsets at which CREATE began.", is_internal=True),
        OptionSpec(TOPIC_ID, "The id of the topic at CREATE.", is_internal=True),
    ),
)


def kafka_options(given: Mapping[str, str]) -> KafkaOptions:
    """The options of a statement. Raises CONNECTOR_OPTION."""
    options = SOURCE_OPTIONS.read(given)
    topic, servers = options.needed("topic"), options.needed("properties.bootstrap.server")
    properties = properties_of(given)
    for name in _OWN:
        if name in properties:
            refuse(f'option "properties.{name}" can\'t be given', detail="Watersmeet keeps track of offsets itself.")
    starts = options.given(START)
    return KafkaOptions(
        topic,
        {**properties, "bootstrap.servers": servers},
        "latest" if options.choice("scan.startup.mode") == "latest" else "earliest",
        options.integer("scan.startup.timestamp.millis"),
        None if starts is None else {int(p): offset for p, offset in json.loads(starts).items()},
        options.text(TOPIC_ID),
        "skip" if options.choice("on_data_loss") == "skip" else "stop",
        "stop" if options.choice("on_error") == "stop" else "skip",
        options.text("group.id.prefix"),
        tuple(sorted(set(_numbers("shards", options.given("shards"))))),
        _numbers("scan.startup.offsets", options.given("scan.startup.offsets")),
    )


def starting_at(offset: str) -> dict[str, str]:
    """The options that start reading at `earliest`, `latest`, a time (ISO 8601, or relative to now such as `-2h`), or
    offsets such as `5,3,11`; empty: the position that the other options specify.

    Raises CONNECTOR_OPTION for an invalid time.
    """
    if not offset:
        return {}
    if offset in ("earliest", "latest"):
        return {"scan.startup.mode": offset}
    if back := _BACK.fullmatch(offset):
        millis = time.time_ns() // 1_000_000 - int(back[1]) * UNITS_US[ABBREVIATED[back[2]]] // 1000
        return {"scan.startup.timestamp.millis": str(max(0, millis))}
    if offset.replace(",", "").replace(" ", "").isdecimal():
        return {"scan.startup.offsets": offset}
    try:
        moment = datetime.fromisoformat(offset)
    except ValueError:
        refuse(f'"{offset}" is no time', hint="Write a time such as 2024-01-31T12:00:00Z.")
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return {"scan.startup.timestamp.millis": str(max(0, int(moment.timestamp() * 1000)))}


def _numbers(name: str, text: str | None) -> tuple[int, ...]:
    if not text:
        return ()
    if not all(part.strip().isdecimal() for part in text.split(",")):
        refuse(f'option {name} can\'t be "{text}"', hint="It is a list of whole numbers, such as 0,2.")
    return tuple(int(part) for part in text.split(","))

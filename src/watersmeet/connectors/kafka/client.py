"""Clients of Kafka: the library, which is an extra, their configuration, questions to brokers, what errors mean."""

from __future__ import annotations

import contextlib
import logging
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from types import ModuleType
from typing import Any, Final

from watersmeet.errors import Error, error
from watersmeet.system import process
from watersmeet.system.secretvalues import revealed

#: Where librdkafka's own messages go, in place of stderr.
LOGGER: Final = logging.getLogger("watersmeet.kafka")
LOGGER.addHandler(logging.NullHandler())  # nothing on stderr unless the user wants it

#: What every client has unless an option says otherwise.
_COMMON: Final = {
    "client.id": "watersmeet",
    "socket.keepalive.enable": True,
    "reconnect.backoff.ms": 50,
    "reconnect.backoff.max.ms": 2_000,
    "allow.auto.create.topics": False,
}
#: RisingWave's names of properties that librdkafka has under another name.
_RENAMED: Final = {"bootstrap.server": "bootstrap.servers", "sasl.mechanism": "sasl.mechanisms"}
#: Codes of librdkafka for credentials and certificates that are wrong.
_REFUSED: Final = ("_AUTHENTICATION", "SASL_AUTHENTICATION_FAILED", "UNSUPPORTED_SASL_MECHANISM", "ILLEGAL_SASL_STATE")
_FORBIDDEN: Final = (
    "TOPIC_AUTHORIZATION_FAILED",
    "GROUP_AUTHORIZATION_FAILED",
    "CLUSTER_AUTHORIZATION_FAILED",
    "TRANSACTIONAL_ID_AUTHORIZATION_FAILED",
)
#: Codes for what brokers never accept in a new topic.
_BAD_TOPIC: Final = ("INVALID_CONFIG", "INVALID_REPLICATION_FACTOR", "INVALID_PARTITIONS", "POLICY_VIOLATION")
_UNKNOWN: Final = ("UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC", "_UNKNOWN_PARTITION", "UNKNOWN_TOPIC_ID")


def library() -> ModuleType:
    """confluent_kafka. LIBRARY_MISSING if it is not installed."""
    process.library("confluent_kafka.admin", "topics of Kafka")
    return process.library("confluent_kafka", "topics of Kafka")


def client_config(properties: Mapping[str, str], **own: Any) -> dict[str, Any]:
    """The configuration of a client, secrets among it. properties: as librdkafka calls them; own: what this client must
    have.
    """
    known = {name: revealed(value) for name, value in properties.items()}
    return {**_COMMON, **known, **{name.replace("_", "."): value for name, value in own.items()}, "logger": LOGGER}


def properties_of(options: Mapping[str, str]) -> dict[str, str]:
    """The configuration that the options `properties.…` of a statement ask for, under librdkafka's names."""
    given = {n.removeprefix("properties."): v for n, v in options.items() if n.startswith("properties.")}
    return {_RENAMED.get(name, name): value for name, value in given.items()}


def is_lasting(problem: Any) -> bool:
    """True for a KafkaError that somebody has to do something about, whatever the topic."""
    return problem.name() in (*_REFUSED, *_FORBIDDEN, "_SSL", "_INVALID_ARG")


def is_unknown_topic(problem: Any) -> bool:
    """True for a KafkaError that says that the topic or partition is not there."""
    return problem.name() in _UNKNOWN


def failure(problem: Any, topic: str, servers: str) -> Error:
    """What a KafkaError means to who wrote the statement. It never has a secret.

    UNDEFINED_OBJECT without the topic; CONNECTOR_OPTION if somebody has to do something; RUNTIME_UNAVAILABLE for what
    may pass.
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
    """What a client hears of its connections. It does not know the client, which would go with it otherwise."""

    def __init__(self) -> None:
        self.told: Any = None
        """Why connections fail: the client keeps trying, whatever the reason is."""

    def hear(self, problem: Any) -> None:
        if is_lasting(problem):
            self.told = problem


#: Clients that nobody needs any more. One that went in the thread in which it calls back would end the process, and the
#: search for garbage runs in any thread: so they go when the next one is made.
_gone: Final[deque[Any]] = deque()


class Brokers:
    """Questions to the brokers of a cluster. What is wrong is raised as `failure` says it.

    answer_s: how long they may take to answer. stopping: whether who waits for an answer should give up.
    """

    def __init__(
        self, properties: Mapping[str, str], *, answer_s: float, stopping: Callable[[], bool] = lambda: False
    ) -> None:
        self.servers = properties["bootstrap.servers"]
        self.answer_s = answer_s
        self._stopping = stopping
        self._kafka = library()
        self._ear = _Ear()
        with contextlib.suppress(IndexError):  # there is none, or another thread has taken the last one
            while True:
                _gone.popleft()
        try:
            self._admin = self._kafka.admin.AdminClient({**client_config(properties), "error_cb": self._ear.hear})
        except self._kafka.KafkaException as cause:
            raise failure(cause.args[0], "", self.servers) from cause
        weakref.finalize(self, _gone.append, self._admin).atexit = False

    def answer(self, future: Any, topic: str) -> Any:
        """What the brokers answer to a request about a topic."""
        end_s = time.monotonic() + 2 * self.answer_s  # the client itself gives up after the time that a request has
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
        """By topic: the answer to come, with `topic_id` and `partitions`."""
        named = self._kafka.TopicCollection(list(topics))
        asked: dict[str, Any] = self._admin.describe_topics(named, request_timeout=self.answer_s)
        return asked

    def topic_id(self, topic: str) -> str:
        """The brokers' own id of a topic: one that is deleted and made anew has another."""
        return str(self.answer(self.describe([topic])[topic], topic).topic_id)

    def offsets(self, wanted: Mapping[Any, Any], *, committed: bool) -> dict[Any, Any]:
        """By `TopicPartition`: the answer to come, with the `offset` that an `OffsetSpec` means.

        committed: as a reader of committed messages sees it.
        """
        levels = self._kafka.IsolationLevel
        level = levels.READ_COMMITTED if committed else levels.READ_UNCOMMITTED
        asked: dict[Any, Any] = self._admin.list_offsets(
            dict(wanted), isolation_level=level, request_timeout=self.answer_s
        )
        return asked

    def create(self, topic: str, partitions: int, replication: int, configuration: Mapping[str, str]) -> bool:
        """Creates a topic; False if it exists. It can't be read yet. replication: -1 as the brokers do.

        configuration: by Kafka's names. CONNECTOR_OPTION for what the brokers refuse.
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
        """Deletes a topic with its records, if it is there."""
        try:
            self.answer(self._admin.delete_topics([topic], request_timeout=self.answer_s)[topic], topic)
        except Error as err:
            if err.condition != "UNDEFINED_OBJECT":
                raise

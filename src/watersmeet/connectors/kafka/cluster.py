"""The topics of a Kafka cluster on the driver. One thread polls the brokers for the state of all topics together."""

from __future__ import annotations

import threading
import time
import weakref
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from watersmeet.connectors.base.sources import Notification
from watersmeet.connectors.kafka.client import LOGGER, Brokers, client_config, library
from watersmeet.errors import Error, error
from watersmeet.system.secretvalues import revealed_options
from watersmeet.system.threads import Clock, Worker

#: The poll intervals for the ends of partitions, while messages arrive and while none arrive.
_BUSY_S: Final = 0.02

_IDLE_S: Final = 0.1

#: The maximum fraction of time for requests, so that a thousand partitions are polled less often.
_SHARE: Final = 8

_LONGEST_S: Final = 2.0
_QUIET_S: Final = 2.0

#: The poll interval for other facts: partitions, ids, first offsets, open transactions.
_WHOLE_S: Final = 1.0

_RETRY_S: Final = 0.5

#: Answers younger than this count as current; a caller who needs a current answer waits at most this time.
_RECENT_S: Final = 0.01

_PATIENCE_S: Final = 0.05
_TIMEOUT_S: Final = 5.0
_ELECTION_S: Final = 30.0

#: The brokers' errors, and the client's, for a partition that has no leader yet, or a leader that not all of them know.
_ELECTING: Final = (
    "NOT_LEADER_FOR_PARTITION",
    "LEADER_NOT_AVAILABLE",
    "UNKNOWN_LEADER_EPOCH",
    "FENCED_LEADER_EPOCH",
    "_NOENT",
)


@dataclass(frozen=True)
class TopicState:
    """The state of a topic.

    id: the brokers' id, which changes if the topic is created again. ends: by partition, the offset after the last
    committed message. firsts: by partition, the offset of the first existing message. written: by partition, the offset
    after the last message, committed or not. problem: the reason why it can't be read now. looks: the number of polls
    of the topic.
    """

    id: str = ""
    ends: Mapping[int, int] = field(default_factory=dict)
    firsts: Mapping[int, int] = field(default_factory=dict)
    written: Mapping[int, int] = field(default_factory=dict)
    problem: Error | None = None
    looks: int = 0


class Cluster:
    """The topics of a cluster that have readers. Thread-safe.

    Ends are returned only after the id of their topic was requested, so that they belong to the topic with this id.
    """

    def __init__(self, properties: Mapping[str, str]) -> None:
        self._brokers = Brokers(properties, answer_s=_TIMEOUT_S)
        self._kafka = library()
        self._changed = threading.Condition()
        self._topics: dict[str, TopicState] = {}
        self._wanted: dict[str, int] = {}
        self._left: deque[str] = deque()
        """Topics for which `leave` was called but which still count as watched."""
        self._now = False
        self._whole_at_s = 0.0
        self._news_at_s = time.monotonic()
        self._looked_at_s = 0.0
        self._thread: Worker | None = None
        self._listening: weakref.WeakSet[Notification] = weakref.WeakSet()

    @property
    def servers(self) -> str:
        """The brokers, for messages."""
        return self._brokers.servers

    def watch(self, topic: str) -> None:
        """Polls the topic from now on, until `leave` was called as often as `watch`."""
        with self._changed:
            self._forget_left()
            self._wanted[topic] = self._wanted.get(topic, 0) + 1
            self._topics.setdefault(topic, TopicState())
            self._whole_at_s, self._now = 0.0, True
            if self._thread is None:
                self._thread = _Looking(self)
                self._thread.start()
            self._changed.notify_all()

    def tell(self, notification: Notification) -> None:
        """Sets the notification when a topic has grown, as long as another reference to the notification exists."""
        with self._changed:
            self._listening.add(notification)

    def leave(self, topic: str) -> None:
        """The inverse of `watch`. It takes no lock, because garbage collection calls it in threads that may hold
        locks.
        """
        self._left.append(topic)

    def _forget_left(self) -> None:
        """Forgets the topics that are no longer watched. The caller holds the lock."""
        while self._left:
            topic = self._left.popleft()
            self._wanted[topic] -= 1
            if not self._wanted[topic]:
                del self._wanted[topic], self._topics[topic]

    def state(self, topic: str, *, fresh: bool = False) -> TopicState:
        """The state of a watched topic. fresh: whether to wait for a current answer of the brokers, or for a problem
        such as a missing answer.
        """
        with self._changed:
            if fresh:
                # The poll in progress may have begun before the call.
                until = self._topics[topic].looks + 2
                deadline_s = time.monotonic() + _TIMEOUT_S
                while self._topics[topic].looks < until:
                    if time.monotonic() > deadline_s:
                        return replace(self._topics[topic], problem=self._silent())
                    self._whole_at_s, self._now = 0.0, True  # a new partition may have new messages
                    self._changed.notify_all()
                    self._changed.wait(0.05)
            return self._topics[topic]

    def _silent(self) -> Error:
        return error(
            "RUNTIME_UNAVAILABLE", f"the Kafka brokers at {self._brokers.servers} don't answer within {_TIMEOUT_S:g} s"
        )

    def recent(self, topic: str) -> TopicState:
        """The state of a watched topic, which is current if the brokers answer immediately."""
        with self._changed:
            before_s = self._looked_at_s
            if time.monotonic() - before_s > _RECENT_S:
                self._now = True
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._looked_at_s > before_s, _PATIENCE_S)
            return self._topics[topic]

    def offsets(self, topic: str, partitions: Iterable[int], spec: Any) -> dict[int, int]:
        """The offsets for an `OffsetSpec`; -1 if it is a time after the last message. Raises the topic's problem."""
        wanted = {self._kafka.TopicPartition(topic, p): spec for p in partitions}
        asked = self._brokers.offsets(wanted, committed=True)
        return {p.partition: self._brokers.answer(f, topic).offset for p, f in asked.items()}

    def ask(self, topic: str) -> TopicState:
        """The current state of a topic; its `problem` is raised. Waits until the partitions of a new topic have
        leaders.
        """
        deadline_s = time.monotonic() + _ELECTION_S
        while True:
            state = self._describe({topic: TopicState()})[topic]
            if state.problem is None:
                state = self._ends({topic: state})[topic]
            if state.problem is None:
                return state
            if not (state.problem.detail or "").startswith(_ELECTING) or time.monotonic() > deadline_s:
                raise state.problem
            time.sleep(_BUSY_S)

    def _wait(self) -> bool:
        """Waits until the next poll is due; False if no topic is watched any more."""
        with self._changed:
            self._forget_left()
            if not self._wanted:
                self._thread = None
                return False
            if not self._now:
                self._changed.wait(self._pause_s)
            self._now = False
            return True

    _pause_s: float = _BUSY_S

    def look(self) -> None:
        """Polls the brokers once."""
        began_s = time.monotonic()
        with self._changed:
            before = {t: s for t, s in self._topics.items() if t in self._wanted}
        whole = began_s >= self._whole_at_s
        known = self._describe(before) if whole or any(not s.id for s in before.values()) else dict(before)
        known |= self._ends({t: s for t, s in known.items() if s.problem is None})
        grown = [t for t, s in known.items() if s.problem is None and s.ends != before[t].ends]
        if grown and not whole:
            known |= self._identified({t: known[t] for t in grown})
        if whole:
            known |= self._bounds({t: s for t, s in known.items() if s.problem is None})
            self._whole_at_s = began_s + _WHOLE_S
        if grown:
            self._news_at_s = began_s
        took_s = time.monotonic() - began_s
        base_s = _BUSY_S if began_s - self._news_at_s < _QUIET_S else _IDLE_S
        self._pause_s = max(base_s, min(_SHARE * took_s, _LONGEST_S))
        if any(s.problem is not None for s in known.values()):
            self._pause_s = max(base_s, _RETRY_S)
            self._whole_at_s = 0.0
        with self._changed:
            for topic, state in known.items():
                if topic in self._topics:
                    self._topics[topic] = replace(state, looks=self._topics[topic].looks + 1)
            self._looked_at_s = began_s
            self._changed.notify_all()
            listening = list(self._listening) if grown else []
        for notification in listening:
            notification.notify()

    def _describe(self, topics: Mapping[str, TopicState]) -> dict[str, TopicState]:
        """The states with current ids and partitions; a new partition has no end yet."""
        found: dict[str, TopicState] = {}
        for topic, future in self._brokers.describe(topics).items():
            try:
                described = self._brokers.answer(future, topic)
            except Error as problem:
                found[topic] = replace(topics[topic], problem=problem)
                continue
            ends = {p.id: topics[topic].ends.get(p.id, 0) for p in described.partitions}
            found[topic] = replace(topics[topic], id=str(described.topic_id), ends=ends, problem=None)
        return found

    def _identified(self, topics: Mapping[str, TopicState]) -> dict[str, TopicState]:
        """The states with the current ids of the topics."""
        now = self._describe(topics)
        return {t: replace(s, id=now[t].id, problem=now[t].problem) for t, s in topics.items()}

    def _ends(self, topics: Mapping[str, TopicState]) -> dict[str, TopicState]:
        found, problems = self._offsets(topics, self._kafka.admin.OffsetSpec.latest())
        return {t: _known(s, problems.get(t), ends=found[t]) for t, s in topics.items()}

    def _bounds(self, topics: Mapping[str, TopicState]) -> dict[str, TopicState]:
        specs = self._kafka.admin.OffsetSpec
        firsts, problems = self._offsets(topics, specs.earliest())
        written, more = self._offsets(topics, specs.latest(), committed=False)
        problems |= more
        return {t: _known(s, problems.get(t), firsts=firsts[t], written=written[t]) for t, s in topics.items()}

    def _offsets(
        self, topics: Mapping[str, TopicState], spec: Any, *, committed: bool = True
    ) -> tuple[dict[str, dict[int, int]], dict[str, Error]]:
        """The offsets of partitions and the problems, both by topic."""
        found: dict[str, dict[int, int]] = {t: {} for t in topics}
        problems: dict[str, Error] = {}
        wanted = {self._kafka.TopicPartition(t, p): spec for t, s in topics.items() for p in s.ends}
        if wanted:
            for partition, future in self._brokers.offsets(wanted, committed=committed).items():
                try:
                    found[partition.topic][partition.partition] = self._brokers.answer(future, partition.topic).offset
                except Error as problem:
                    problems[partition.topic] = problem
        if problems and len(topics) > 1:
            # One deleted topic can fail the request for all.
            for topic in problems.copy():
                alone, still = self._offsets({topic: topics[topic]}, spec, committed=committed)
                found[topic] = alone[topic]
                if topic not in still:
                    del problems[topic]
        return found, problems


def _known(state: TopicState, problem: Error | None, **offsets: Mapping[int, int]) -> TopicState:
    """The state with new offsets, unless it has a problem."""
    return replace(state, problem=problem) if problem is not None else replace(state, **offsets)  # type: ignore[arg-type]


class _Looking(Worker):
    """The thread that polls as long as a topic is watched. It refers to the cluster only during a poll."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__("kafka", Clock())
        self.title = cluster.servers
        self._cluster = weakref.ref(cluster)

    def work(self) -> None:
        cluster = self._cluster()
        if cluster is None or not cluster._wait():
            self.stop()
            return
        try:
            cluster.look()
            self.show("running")
        except Exception as cause:  # the next poll may succeed; until then nothing new is known
            LOGGER.exception("the brokers at %s could not be asked", self.title)
            self.show("retrying", str(cause))
            time.sleep(_RETRY_S)


_CLUSTERS: weakref.WeakValueDictionary[tuple[tuple[str, str], ...], Cluster] = weakref.WeakValueDictionary()
_OPENING: Final = threading.Lock()


def cluster_of(properties: Mapping[str, str]) -> Cluster:
    """The cluster for a configuration; callers with the same configuration share it."""
    key = tuple(sorted(revealed_options(properties).items()))  # each source refers to its own secret
    with _OPENING:
        found = _CLUSTERS.get(key)
        if found is None:
            found = _CLUSTERS[key] = Cluster(properties)
        return found


_CHANGE_TIMEOUT_S: Final = 30.0
_PAUSE_S: Final = 0.02

#: The number of records, and the time, used to determine how a topic's records are partitioned.
_SAMPLED_PARTITIONS: Final = 64

_SAMPLED_RECORDS: Final = 100
_SAMPLING_S: Final = 5.0


def partitions_of(properties: Mapping[str, str], topic: str) -> int | None:
    """The number of partitions of a topic; None if the topic is missing.

    properties: see `KafkaOptions`. Raises RUNTIME_UNAVAILABLE without brokers, CONNECTOR_OPTION for wrong credentials.
    """
    try:
        return len(cluster_of(properties).ask(topic).ends)
    except Error as err:
        if err.condition == "UNDEFINED_OBJECT":
            return None
        raise


def is_hashed(properties: Mapping[str, str], topic: str) -> bool:
    """Whether the newest records of a topic are in the partitions that murmur2 of their keys' bytes determines, as for
    Kafka's own producers. Records without a key may be in any partition.
    """
    kafka = library()
    ends = cluster_of(properties).ask(topic).ends
    wanted = dict(list(ends.items())[:_SAMPLED_PARTITIONS])
    samples = [kafka.TopicPartition(topic, p, max(0, end - _SAMPLED_RECORDS)) for p, end in wanted.items() if end]
    if not samples or len(ends) == 1:
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
    left = {sample.partition for sample in samples}
    deadline_s = time.monotonic() + _SAMPLING_S
    try:
        consumer.assign(samples)
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
    """The hash of a key whose remainder by the number of partitions is the partition that Kafka's producers choose.

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
    """Creates a topic and returns its id once it is readable; None if it already exists.

    configuration: by Kafka's names. CONNECTOR_OPTION for settings that the brokers reject.
    """
    if not Brokers(properties, answer_s=_CHANGE_TIMEOUT_S).create(topic, partitions, replication, configuration):
        return None
    return _wait_until_readable(properties, topic)


def delete_topic(properties: Mapping[str, str], topic: str) -> None:
    """Deletes a topic with its records, if it exists."""
    Brokers(properties, answer_s=_CHANGE_TIMEOUT_S).delete(topic)


def _wait_until_readable(properties: Mapping[str, str], topic: str) -> str:
    """The id of a new topic. Until all of its partitions have a leader, brokers report it as missing."""
    cluster = cluster_of(properties)
    deadline_s = time.monotonic() + _CHANGE_TIMEOUT_S
    while True:
        try:
            return cluster.ask(topic).id
        except Error:
            if time.monotonic() > deadline_s:
                raise
        time.sleep(_PAUSE_S)

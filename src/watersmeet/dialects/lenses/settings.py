"""Reads Lenses' SET with dotted names, and lists the settings that have an effect and those that only Lenses needs.

Lenses, "SQL Processors", "Settings"; "SQL Studio", "Managing queries"; "Snapshot", "Tuning".
"""

from __future__ import annotations

from typing import Any, Final

from watersmeet.dialects.tree.statements import SetVariable, Statement
from watersmeet.dialects.tree.tokens import Cursor
from watersmeet.dialects.variables import TOPIC_CONFIGURATION, Variable, VariableKind, flag

#: The prefix of variables of one topic: `topic.<name>.partitions`, and that of variables of all topics.
_TOPIC: Final = "topic."
_DEFAULTS: Final = "defaults.topic."

#: The aliases of settings, including those of Lenses 3.
_ALIASES: Final = {
    "autocreate": f"{_DEFAULTS}autocreate",
    "consumer.auto.offset.reset": "auto.offset.reset",
    "consumer.isolation.level": "isolation.level",
    "error.policy.read": "error.policy",
    "partitions": f"{_DEFAULTS}partitions",
    "replication": f"{_DEFAULTS}replication",
    **{f"{_TOPIC}{name}": f"{_DEFAULTS}{name}" for name in TOPIC_CONFIGURATION},
}

_STREAMS: Final = "Kafka Streams"
_CLIENT: Final = "Kafka's clients"
_STUDIO: Final = "Lenses' SQL Studio"


def _without_effect(system: str, settings: dict[str, str], kind: VariableKind = "text") -> list[Variable]:
    return [Variable(name, kind, "", description, system=system) for name, description in settings.items()]


#: Settings that would only change the way in which Lenses computes the same records, with their purpose. `.*` means a
#: family.
_NO_EFFECT: Final = (
    *_without_effect(
        _STUDIO,
        {
            "format.decimal": "Digits after the point of shown decimals.",
            "format.timestamp": "Whether times are shown as text.",
            "kafka.offset.timeout": "Milliseconds to wait for the offsets of a topic.",
            "live.aggs": "Whether aggregates over topics are allowed.",
            "max.bytes": "Bytes of a topic that a query reads at most; queries read whole topics.",
            "max.group.records": "Groups of a query at most.",
            "max.idle.time": "Time to wait for further records at the end of a topic; queries read what is committed.",
            "max.query.time": "Time that a query runs at most.",
            "max.size": "Bytes of a topic that a query reads at most; queries read whole topics.",
            "max.time": "Time that a query runs at most.",
            "optimize.kafka.partition": "Whether a condition on _key selects the partition to read.",
            "query.buffer": "Records that a query buffers.",
            "query.parallel": "Consumers of a query.",
            "show.bad.records": "Whether undecodable records are shown; SHOW DEAD LETTERS shows them.",
            "skip.bad.records": "Whether undecodable records are omitted; error.policy decides that.",
        },
    ),
    *_without_effect(
        _STREAMS,
        {
            "application.id": "Name of the application, its consumer group and its internal topics.",
            "buffered.records.per.partition": "Records in memory for each partition.",
            "cache.max.bytes.buffering": "Memory of caches.",
            "commit.interval.ms": "Time between commits.",
            "max.task.idle.ms": "Time to wait for records of all partitions.",
            "num.standby.replicas": "Copies of state.",
            "num.stream.threads": "Threads.",
            "poll.ms": "Time to wait for records.",
            "rocksdb.*": "Memory, files and compression of state.",
            "state.cleanup.delay.ms": "Time until state of moved tasks is deleted.",
            "state.dir": "Directory of state.",
            "streams.*": "How a processor runs.",
            "topology.optimization": "Whether the topology is optimized.",
        },
    ),
    *_without_effect(
        _CLIENT,
        {
            "acks": "Brokers that acknowledge a record; all do.",
            "auto.commit.interval.ms": "Time between commits of offsets.",
            "batch.size": "Bytes of a batch.",
            "buffer.memory": "Memory for records to send.",
            "client.id": "Name of the client.",
            "compression.type": "Compression of written records.",
            "connections.max.idle.ms": "Time until idle connections are closed.",
            "consumer.*": "How records are fetched.",
            "delivery.timeout.ms": "Time to deliver a record; delivery is retried until it succeeds.",
            "enable.auto.commit": "Whether offsets are committed to Kafka; the database keeps them.",
            "enable.idempotence": "Whether retries write a record once; processors write each record once.",
            "fetch.max.bytes": "Bytes of an answer.",
            "fetch.max.wait.ms": "Time to wait for an answer.",
            "fetch.min.bytes": "Bytes of an answer.",
            "group.id": "Name of the consumer group; the database keeps offsets.",
            "heartbeat.interval.ms": "Time between heartbeats of a consumer group.",
            "linger.ms": "Time to wait for a batch.",
            "max.block.ms": "Time to wait for metadata.",
            "max.in.flight.requests.per.connection": "Requests without an answer.",
            "max.partition.fetch.bytes": "Bytes of an answer for each partition.",
            "max.poll.interval.ms": "Time between two polls.",
            "max.poll.records": "Records of a poll.",
            "max.request.size": "Bytes of a request.",
            "metadata.max.age.ms": "Time until metadata is read again.",
            "metrics.*": "Metrics of the client.",
            "partition.assignment.strategy": "Which consumer reads which partition.",
            "producer.*": "How records are sent.",
            "receive.buffer.bytes": "Memory of connections.",
            "reconnect.backoff.max.ms": "Time between connections.",
            "reconnect.backoff.ms": "Time between connections.",
            "request.timeout.ms": "Time to wait for an answer.",
            "retries": "Times that a record is sent again; delivery is retried until it succeeds.",
            "retry.backoff.ms": "Time between retries.",
            "send.buffer.bytes": "Memory of connections.",
            "session.timeout.ms": "Time until a consumer leaves its group.",
            "transaction.timeout.ms": "Time until a transaction is aborted.",
        },
    ),
    *(
        Variable(
            f"{_DEFAULTS}{part}.avro.{name}",
            "text",
            "",
            f"The {shown} of the Avro schema of {part}s that a processor writes; the schema is that of the subject.",
            system="the schema registry",
            of_one=_TOPIC,
        )
        for part in ("key", "value")
        for name, shown in (("record", "name"), ("namespace", "namespace"))
    ),
    Variable(
        "error.policy.write",
        "text",
        "fail",
        "What happens to records that can't be written; they stop the processor until START PROCESSOR.",
        choices=("continue", "fail", "dlq"),
        system="Lenses",
    ),
    Variable(
        "processing.guarantee",
        "text",
        "exactly_once",
        "What processors promise; they write each record once.",
        choices=("at_least_once", "exactly_once", "exactly_once_beta", "exactly_once_v2"),
        system="Lenses",
    ),
)


def _configuration(name: str) -> Variable:
    return Variable(
        f"{_DEFAULTS}{name}",
        "text",
        "",
        f"Kafka's {name} of topics that are made there; empty: the broker decides (Lenses).",
        effect=True,
        of_one=_TOPIC,
    )


def _connection(name: str, description: str, *, secret: bool = False) -> Variable:
    return Variable(f"kafka.{name}", "text", "", f"{description} (Lenses).", effect=True, secret=secret)


def _count(name: str, description: str) -> Variable:
    return Variable(f"{_DEFAULTS}{name}", "integer", "1", description, effect=True, least=1, of_one=_TOPIC)


VARIABLES: Final = (
    flag(f"{_DEFAULTS}autocreate", False, "A processor makes its target topic (Lenses).", effect=True, of_one=_TOPIC),
    _count("partitions", "Partitions of topics that are made for processors (Lenses)."),
    _count("replication", "Copies of topics that are made in Kafka for processors (Lenses)."),
    Variable(
        f"{_DEFAULTS}watermark_idle_timeout",
        "interval",
        "",
        "How long a new topic may be silent before joins stop waiting for it; empty: forever (Lenses).",
        effect=True,
    ),
    *(_configuration(name) for name in TOPIC_CONFIGURATION),
    _connection("bootstrap.servers", "Brokers of Kafka, where new topics are made; empty: topics are in the database"),
    _connection("schema.registry.url", "Schema registry of topics with AVRO"),
    _connection("schema.registry.username", "User of the schema registry"),
    _connection("schema.registry.password", "Password of the schema registry", secret=True),
    _connection("security.protocol", "How the brokers are reached: PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL"),
    _connection("sasl.mechanism", "How the user is authenticated: PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512"),
    _connection("sasl.username", "User of Kafka"),
    _connection("sasl.password", "Password of Kafka", secret=True),
    _connection("ssl.ca.location", "File with the certificates of those who sign the brokers' certificates"),
    _connection("ssl.certificate.location", "File with the certificate of this client"),
    _connection("ssl.key.location", "File with the key of this client's certificate"),
    Variable(
        "auto.offset.reset",
        "text",
        "earliest",
        "Where a topic of Kafka that exists already is read from (Lenses).",
        effect=True,
        choices=("earliest", "latest"),
    ),
    Variable(
        "error.policy",
        "text",
        "continue",
        "What happens to records that can't be decoded: they are set aside, or nothing is read any further, or they "
        "are set aside and written to the topic of dead.letter.queue (Lenses).",
        effect=True,
        choices=("continue", "fail", "dlq"),
    ),
    Variable(
        "dead.letter.queue",
        "text",
        "",
        "Topic of Kafka for records that can't be decoded, with error.policy 'dlq' (Lenses).",
        effect=True,
    ),
    Variable(
        "isolation.level",
        "text",
        "read_committed",
        "Which records of Kafka are read: those of committed transactions (Lenses).",
        effect=True,
        choices=("read_committed",),
    ),
    *_NO_EFFECT,
)


def read_set(cursor: Cursor, base: dict[str, Any]) -> Statement | None:
    """Reads SET with a dotted name or an alias of one; returns None for others. The cursor stands after SET.

    A topic's name may have dashes: `SET topic.my-topic.partitions = 3`. A value may be a number with a unit: `30s`.
    """
    start = cursor.index
    name = "".join(t.text for t in cursor.until("=", "TO")).lower()
    if cursor.done or ("." not in name and name not in _ALIASES):
        cursor.index = start
        return None
    cursor.index += 1
    if cursor.done:
        raise cursor.error(detail="A value was expected here.")
    value = None if cursor.take("DEFAULT") else "".join(t.text for t in cursor.until())
    cursor.end()
    return SetVariable(**base, name=_ALIASES.get(name, name), value=value)

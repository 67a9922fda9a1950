"""Session variables of Lenses: how topics are made that processors write, and where Kafka is."""

from __future__ import annotations

from typing import Final

from watersmeet.dialects.variables import TOPIC_CONFIGURATION, Variable, flag

#: The prefix of variables of one topic: `topic.<name>.partitions`.
_TOPIC: Final = "topic."


def _configuration(name: str) -> Variable:
    return Variable(
        f"defaults.topic.{name}",
        "text",
        "",
        f"Kafka's {name} of topics that are made there; empty: the broker decides (Lenses).",
        effect=True,
        of_one=_TOPIC,
    )


def _connection(name: str, description: str, *, secret: bool = False) -> Variable:
    return Variable(f"kafka.{name}", "text", "", f"{description} (Lenses).", effect=True, secret=secret)


LENSES: Final = (
    flag("defaults.topic.autocreate", False, "A processor makes its target topic (Lenses).", effect=True),
    Variable(
        "defaults.topic.partitions",
        "integer",
        "1",
        "Partitions of topics that are made for processors (Lenses).",
        effect=True,
        least=1,
        of_one=_TOPIC,
    ),
    Variable(
        "defaults.topic.replication",
        "integer",
        "1",
        "Copies of topics that are made in Kafka for processors (Lenses).",
        effect=True,
        least=1,
        of_one=_TOPIC,
    ),
    Variable(
        "defaults.topic.watermark_idle_timeout",
        "interval",
        "",
        "How long a new topic may be silent before it holds nobody back any more; empty: for ever (Lenses).",
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
        "processing.guarantee",
        "text",
        "exactly_once",
        "What processors promise (Lenses).",
        choices=("at_least_once", "exactly_once", "exactly_once_v2"),
        system="Lenses: processors deliver each record once",
    ),
    Variable("commit.interval.ms", "integer", "100", "Time between commits of a processor (Lenses).", system="Lenses"),
)

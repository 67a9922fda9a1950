"""The session variables of the dialects, which SET and SHOW accept."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, Literal

VariableKind = Literal["boolean", "integer", "text", "interval"]

#: The configuration of a topic with Kafka's names.
TOPIC_CONFIGURATION: Final = (
    "cleanup.policy",
    "compression.type",
    "delete.retention.ms",
    "max.compaction.lag.ms",
    "max.message.bytes",
    "message.timestamp.type",
    "min.compaction.lag.ms",
    "min.insync.replicas",
    "retention.bytes",
    "retention.ms",
    "segment.bytes",
    "segment.ms",
)

#: The settings of the Kafka client with librdkafka's names.
KAFKA_PROPERTIES: Final = (
    "bootstrap.servers",
    "security.protocol",
    "sasl.mechanism",
    "sasl.username",
    "sasl.password",
    "ssl.ca.location",
    "ssl.certificate.location",
    "ssl.key.location",
)


@dataclass(frozen=True, slots=True)
class Variable:
    """One variable. `choices`: the allowed values of a text in lower case; empty: any. `least`: the least integer.

    effect: False for a variable that has no effect, because it would only change how `system` computes the same
    results. Scripts set it, so SET accepts it with a notice. system: the system that has the variable. of_one: the
    prefix of the variables `of_one` + name + `.property` for single objects, if this variable is the default
    `a.b.property` of all. secret: whether SHOW ALL hides the value.
    """

    name: str
    kind: VariableKind
    default: str
    description: str
    effect: bool = False
    choices: tuple[str, ...] = ()
    least: int | None = None
    system: str = ""
    of_one: str = ""
    secret: bool = False

    def named(self, name: str) -> Variable | None:
        """The variable `name` of a single object, in lower case, if this variable is its default; else None."""
        behind = f".{self.name.removeprefix(f'defaults.{self.of_one}')}"
        is_one = self.of_one and name.startswith(self.of_one) and name.endswith(behind)
        if not is_one or len(name) <= len(self.of_one) + len(behind):
            return None
        return replace(self, name=name, default="", of_one="")


def flag(name: str, default: bool, description: str, effect: bool = False, system: str = "") -> Variable:
    """A variable that is true or false."""
    return Variable(name, "boolean", "true" if default else "false", description, effect, system=system)


_RISINGWAVE: Final = "RisingWave"

#: Session variables of RisingWave, with RisingWave's defaults.
RISINGWAVE: Final = (
    Variable(
        "backfill_rate_limit",
        "text",
        "default",
        "Rows per second while a new view reads its history.",
        system=_RISINGWAVE,
    ),
    flag("batch_enable_lookup_join", True, "Lookup joins in batch queries.", system=_RISINGWAVE),
    Variable(
        "client_min_messages", "text", "notice", "Smallest level of message that the client gets.", system=_RISINGWAVE
    ),
    flag("enable_index_selection", True, "Index choice for temporal and lookup joins.", system=_RISINGWAVE),
    flag("enable_join_ordering", True, "Reorder inner joins; false keeps the written order.", effect=True),
    flag("enable_locality_backfill", True, "Sort the history of a new view by join key.", system=_RISINGWAVE),
    flag("enable_share_plan", True, "Share equal subplans.", system=_RISINGWAVE),
    Variable("extra_float_digits", "integer", "1", "Digits of floating-point output.", system=_RISINGWAVE),
    flag("implicit_flush", False, "INSERT, UPDATE and DELETE wait until all views show their rows.", effect=True),
    Variable(
        "query_mode",
        "text",
        "auto",
        "How batch queries run.",
        choices=("auto", "local", "distributed"),
        system=_RISINGWAVE,
    ),
    Variable(
        "sink_rate_limit",
        "text",
        "default",
        "Rows per second that each new sink delivers; 0 pauses it.",
        effect=True,
    ),
    flag("sink_decouple", True, "Log in front of sinks.", system=_RISINGWAVE),
    Variable(
        "statement_timeout",
        "integer",
        "0",
        "Seconds after which a batch query is ended; 0 is never.",
        system=_RISINGWAVE,
    ),
    Variable(
        "source_rate_limit",
        "text",
        "default",
        "Rows per second of each new source; 0 pauses it.",
        effect=True,
    ),
    flag("streaming_asof_join_use_cache", True, "Cache of ASOF joins.", system=_RISINGWAVE),
    flag("streaming_enable_bushy_join", True, "Bushy instead of left-deep join trees.", effect=True),
    flag("streaming_enable_delta_join", False, "Delta joins over indexes.", system=_RISINGWAVE),
    flag(
        "streaming_enable_multiway_join",
        True,
        "Inner joins by one key are one operator without rows in between.",
        True,
    ),
    flag("streaming_enable_unaligned_join", False, "Let barriers overtake a join.", system=_RISINGWAVE),
    flag("streaming_force_filter_inside_join", False, "Keep residual conditions in the join.", system=_RISINGWAVE),
    Variable(
        "streaming_join_encoding",
        "text",
        "",
        "Row encoding of join state.",
        choices=("", "cpu_optimized", "memory_optimized"),
        system=_RISINGWAVE,
    ),
    Variable("streaming_parallelism", "text", "default", "Parallelism of new views.", system=_RISINGWAVE),
    flag("streaming_separate_consecutive_join", False, "An exchange between consecutive joins.", system=_RISINGWAVE),
    flag("streaming_share_arrangements", True, "Joins of new views read arrangements that other views keep.", True),
    flag("streaming_use_arrangement_backfill", True, "Arrangement backfill.", system=_RISINGWAVE),
    flag("streaming_use_snapshot_backfill", True, "Snapshot backfill.", system=_RISINGWAVE),
)

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
        "processing.guarantee",
        "text",
        "exactly_once",
        "What processors promise (Lenses).",
        choices=("at_least_once", "exactly_once", "exactly_once_v2"),
        system="Lenses: processors deliver each record once",
    ),
    Variable("commit.interval.ms", "integer", "100", "Time between commits of a processor (Lenses).", system="Lenses"),
)

SQLSTREAM: Final = (
    flag(
        "continue_after_errors",
        False,
        "A statement that fails is a notice, and the script continues (sqlline: !set force).",
        effect=True,
    ),
)

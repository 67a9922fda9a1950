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
    "file.delete.delay.ms",
    "flush.messages",
    "flush.ms",
    "follower.replication.throttled.replicas",
    "index.interval.bytes",
    "leader.replication.throttled.replicas",
    "local.retention.bytes",
    "local.retention.ms",
    "max.compaction.lag.ms",
    "max.message.bytes",
    "message.downconversion.enable",
    "message.format.version",
    "message.timestamp.difference.max.ms",
    "message.timestamp.type",
    "min.cleanable.dirty.ratio",
    "min.compaction.lag.ms",
    "min.insync.replicas",
    "preallocate",
    "remote.storage.enable",
    "retention.bytes",
    "retention.ms",
    "segment.bytes",
    "segment.index.bytes",
    "segment.jitter.ms",
    "segment.ms",
    "unclean.leader.election.enable",
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
    `a.b.property` of all. secret: whether SHOW ALL hides the value. A name that ends with `.*` is a family.
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
        """The variable `name`, in lower case, if it is in this family, or is that of a single object whose default this
        variable is; else None.
        """
        if self.name.endswith(".*"):
            return replace(self, name=name) if name.startswith(self.name[:-1]) and name != self.name else None
        behind = f".{self.name.removeprefix(f'defaults.{self.of_one}')}"
        is_one = self.of_one and name.startswith(self.of_one) and name.endswith(behind)
        if not is_one or len(name) <= len(self.of_one) + len(behind):
            return None
        return replace(self, name=name, default="", of_one="")


def flag(
    name: str, default: bool, description: str, effect: bool = False, system: str = "", of_one: str = ""
) -> Variable:
    """A variable that is true or false."""
    return Variable(name, "boolean", "true" if default else "false", description, effect, system=system, of_one=of_one)


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

SQLSTREAM: Final = (
    flag(
        "continue_after_errors",
        False,
        "A statement that fails is a notice, and the script continues (sqlline: !set force).",
        effect=True,
    ),
)

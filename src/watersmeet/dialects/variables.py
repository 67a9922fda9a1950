"""Session variables of dialects: what SET and SHOW know, and scripts of that system set."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, Literal

VariableKind = Literal["boolean", "integer", "text", "interval"]

#: What Kafka itself knows of a topic: its configuration, by Kafka's names.
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

#: Settings of the client, by the names of librdkafka.
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
    """One variable. `choices`: the values of a text variable, lower case; empty for any. `least`: of an integer.

    effect: False for one that is accepted, because scripts set it, and says so in a notice: the results are the same,
    only the way in which `system` gets them would differ. system: that of one without effect. of_one: of a default for
    objects `a.b.property`, the prefix of variables for one of them: `of_one` + name + `.property`. secret: SHOW ALL
    does not show it.
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
        """The variable of one object, in lower case, if `name` is one of those that this is the default for."""
        behind = f".{self.name.removeprefix(f'defaults.{self.of_one}')}"
        is_one = self.of_one and name.startswith(self.of_one) and name.endswith(behind)
        if not is_one or len(name) <= len(self.of_one) + len(behind):
            return None
        return replace(self, name=name, default="", of_one="")


def flag(name: str, default: bool, description: str, effect: bool = False, system: str = "") -> Variable:
    """A variable that is true or false."""
    return Variable(name, "boolean", "true" if default else "false", description, effect, system=system)


_RISINGWAVE: Final = "RisingWave"

#: RisingWave's, with its defaults.
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
        "Rows per second that each new source gives; 0 pauses it.",
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

"""The session variables of the dialects, which SET and SHOW accept."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, Literal

from watersmeet.values import POSTGRES_VERSION

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

#: Session variables of RisingWave that have no effect, with their defaults and descriptions.
WITHOUT_EFFECT: Final[dict[str, tuple[str, str]]] = {
    "allow_drop_cascade": ("false", "Whether DROP … CASCADE is allowed."),
    "batch_enable_distributed_dml": ("false", "Whether INSERT, UPDATE and DELETE run on several nodes."),
    "batch_enable_lookup_join": ("true", "Lookup joins in batch queries."),
    "batch_enable_sort_agg": ("true", "Aggregates over sorted rows in batch queries."),
    "batch_hnsw_ef_search": ("40", "Candidates of a search in a vector index."),
    "batch_parallelism": ("default", "Parallelism of batch queries."),
    "bypass_cluster_limits": ("false", "Whether limits of a cluster apply."),
    "cdc_source_wait_streaming_start_timeout": ("30", "Seconds to wait for the start of a captured database."),
    "client_min_messages": ("notice", "Smallest level of message that the client gets."),
    "create_compaction_group_for_mv": ("false", "Separate compaction of new views."),
    "dml_rate_limit": ("default", "Rows per second that INSERT, UPDATE and DELETE write to a new table."),
    "dml_wait_persistence": ("false", "Whether INSERT, UPDATE and DELETE wait until their rows are on disk."),
    "enable_datafusion_engine": ("true", "How batch queries over Iceberg tables run."),
    "enable_index_selection": ("true", "Index choice for temporal and lookup joins."),
    "enable_locality_backfill": ("true", "Sort the history of a new view by join key."),
    "enable_mv_selection": ("false", "Whether batch queries read views with the same query."),
    "enable_serverless_backfill": ("false", "Separate nodes that fill new views."),
    "enable_share_plan": ("true", "Share equal subplans."),
    "enable_two_phase_agg": ("true", "Aggregates in two phases."),
    "force_split_distinct_agg": ("false", "Separate operators for DISTINCT in aggregates."),
    "force_two_phase_agg": ("false", "Aggregates in two phases wherever that is possible."),
    "iceberg_engine_connection": ("", "Connection of the tables with ENGINE = iceberg."),
    "iceberg_query_storage_mode": ("iceberg", "Storage that batch queries of tables with ENGINE = iceberg read."),
    "max_split_range_gap": ("8", "Largest range of keys that becomes single look-ups."),
    "recovery_mode": ("default", "How a cluster recovers."),
    "sink_decouple": ("default", "Log in front of sinks."),
    "statement_timeout": ("0", "Time after which a batch query is ended; 0 is never."),
    "streaming_allow_jsonb_in_stream_key": ("false", "Whether jsonb may be part of the key of a view."),
    "streaming_asof_join_use_cache": ("true", "Cache of ASOF joins."),
    "streaming_enable_arrangement_backfill": ("true", "Arrangement backfill."),
    "streaming_enable_delta_join": ("false", "Delta joins over indexes."),
    "streaming_enable_materialized_expressions": ("true", "Whether results of impure functions are stored."),
    "streaming_enable_unaligned_join": ("false", "Let barriers overtake a join."),
    "streaming_force_filter_inside_join": ("false", "Keep residual conditions in the join."),
    "streaming_max_parallelism": ("256", "Largest parallelism of new views."),
    "streaming_over_window_cache_policy": ("full", "Cache of window functions."),
    "streaming_parallelism": ("default", "Parallelism of new views."),
    **{
        f"streaming_parallelism_for_{kind}": ("default", f"Parallelism of {what}.")
        for kind, what in (
            ("backfill", "filling new views"),
            ("index", "new indexes"),
            ("materialized_view", "new views"),
            ("sink", "new sinks"),
            ("source", "new sources"),
            ("table", "new tables"),
        )
    },
    "streaming_parallelism_strategy": ("default", "How the parallelism of new views adapts."),
    "streaming_separate_consecutive_join": ("false", "An exchange between consecutive joins."),
    "streaming_separate_sink": ("false", "An exchange in front of sinks."),
    "streaming_unsafe_allow_unmaterialized_impure_expr": ("false", "Whether impure functions are computed again."),
    "streaming_unsafe_allow_upsert_sink_pk_mismatch": ("false", "Whether the key of a sink may be any columns."),
    "streaming_use_arrangement_backfill": ("true", "Arrangement backfill."),
    "streaming_use_shared_source": ("true", "Whether views share the reader of a source."),
    "streaming_use_snapshot_backfill": ("true", "Snapshot backfill."),
    "synchronize_seqscans": ("false", "Nothing; it exists for compatibility."),
    "row_security": ("true", "Nothing; it exists for compatibility."),
    "lock_timeout": ("0", "Nothing; it exists for compatibility."),
    "visibility_mode": ("default", "Whether batch queries read changes that are not committed."),
}

#: Session variables of PostgreSQL that RisingWave has, each with the values that change nothing, the default first. A
#: server knows more of them (`server.settings`).
ONE_VALUE: Final[dict[str, tuple[str, ...]]] = {
    "batch_expr_strict_mode": ("true", "on"),
    "bytea_output": ("hex",),
    "client_encoding": ("utf8", "utf-8", "unicode"),
    "datestyle": ("iso, mdy", "iso", "iso, ymd", "iso, dmy", "dmy"),
    "intervalstyle": ("postgres",),
    "query_epoch": ("0",),
    "server_encoding": ("utf8",),
    "server_version": (POSTGRES_VERSION,),
    "server_version_num": ("160000",),
    "standard_conforming_strings": ("on", "true"),
    "transaction_isolation": ("read committed", "read uncommitted"),
}


def _without_effect(name: str, default: str, description: str, choices: tuple[str, ...] = ()) -> Variable:
    kind: VariableKind = "boolean" if default in ("true", "false") else "text"
    return Variable(name, kind, default, description, choices=choices, system=_RISINGWAVE)


#: Session variables of RisingWave, with RisingWave's defaults.
RISINGWAVE: Final = (
    *(_without_effect(name, *shown) for name, shown in WITHOUT_EFFECT.items()),
    *(
        Variable(name, "text", values[0], "The values that it takes mean the same.", effect=True, choices=values)
        for name, values in ONE_VALUE.items()
    ),
    Variable("extra_float_digits", "integer", "1", "Digits of floating-point output.", system=_RISINGWAVE),
    flag("enable_join_ordering", True, "Reorder inner joins; false keeps the written order.", effect=True),
    flag("implicit_flush", False, "INSERT, UPDATE and DELETE wait until all views show their rows.", effect=True),
    _without_effect("query_mode", "auto", "How batch queries run.", ("auto", "local", "distributed")),
    Variable(
        "primary_key_conflict",
        "text",
        "overwrite",
        "Effect of INSERT on an existing primary key of a new table: overwrite, or error as in PostgreSQL.",
        effect=True,
        choices=("overwrite", "error"),
    ),
    flag("background_ddl", False, "CREATE MATERIALIZED VIEW returns before the view is filled.", effect=True),
    Variable(
        "backfill_rate_limit",
        "text",
        "default",
        "Rows of history per second that each new materialized view reads; 0 pauses it.",
        effect=True,
    ),
    Variable(
        "sink_rate_limit",
        "text",
        "default",
        "Rows per second that each new sink delivers; 0 pauses it.",
        effect=True,
    ),
    Variable(
        "source_rate_limit",
        "text",
        "default",
        "Rows per second of each new source; 0 pauses it.",
        effect=True,
    ),
    flag("streaming_enable_bushy_join", True, "Bushy instead of left-deep join trees.", effect=True),
    flag(
        "streaming_enable_multiway_join",
        True,
        "Inner joins by one key are one operator without rows in between.",
        True,
    ),
    _without_effect(
        "streaming_join_encoding", "", "Row encoding of join state.", ("", "cpu_optimized", "memory_optimized")
    ),
    flag("streaming_share_arrangements", True, "Joins of new views read arrangements that other views keep.", True),
)

SQLSTREAM: Final = (
    flag(
        "continue_after_errors",
        False,
        "A statement that fails is a notice, and the script continues (sqlline: !set force).",
        effect=True,
    ),
)

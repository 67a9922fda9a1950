"""Clauses and settings of Timeplus' storage, which have no effect in Watersmeet: each is read, with a notice that says
what it would have done.

Timeplus, "Append Stream", "Mutable Stream", "Column Compression Codecs", "TTL", "Indexes".
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from watersmeet.dialects.tree.tokens import Cursor, not_supported, read_value
from watersmeet.errors import did_you_mean

KEPT: Final = "Watersmeet deletes no rows by age or size"
PLACED: Final = "rows are distributed over the buckets of the database"
_COMPRESSED: Final = "Watersmeet compresses its files itself"
_WRITTEN: Final = "each INSERT is one commit, which is on disk when it returns"
SORTED: Final = "Watersmeet sorts and partitions its files itself"
FOUND: Final = "queries read the columns and the blocks of rows that they need"
_TUNED: Final = "it only tunes Timeplus' storage"

#: Settings of streams that never change a result, each with the reason.
_SETTINGS: Final[dict[str, str]] = {
    **dict.fromkeys(("shards", "replication_factor", "sharding_expr", "placement_policies", "shared_disk"), PLACED),
    **dict.fromkeys(("storage_policy", "disk", "storage_type", "distributed_ingest_mode", "subtype"), PLACED),
    **dict.fromkeys(("logstore_retention_bytes", "logstore_retention_ms", "retention_bytes", "retention_ms"), KEPT),
    **dict.fromkeys(("ttl_seconds", "ttl_column", "merge_with_ttl_timeout", "ttl_only_drop_parts"), KEPT),
    **dict.fromkeys(("logstore_codec", "kvstore_codec", "auto_cf"), _COMPRESSED),
    **dict.fromkeys(("ingest_mode", "ack", "ingest_batch_max_bytes", "ingest_batch_timeout_ms"), _WRITTEN),
    **dict.fromkeys(("flush_messages", "flush_ms", "flush_rows", "flush_threshold_count"), _WRITTEN),
    **dict.fromkeys(("flush_threshold_ms", "flush_threshold_bytes", "fsync_after_insert"), _WRITTEN),
    **dict.fromkeys(("logstore_flush_messages", "logstore_flush_ms", "logstore_segment_bytes", "logstore"), _WRITTEN),
    **dict.fromkeys(("fetch_threads", "index_granularity", "index_granularity_bytes", "log_kvstore"), _TUNED),
    **dict.fromkeys(("kvstore_options", "enable_hash_index", "enable_statistics", "min_bytes_for_wide_part"), _TUNED),
    **dict.fromkeys(("allow_nullable_key", "merge_with_recompression_ttl_timeout", "parts_to_throw_insert"), _TUNED),
}

#: The settings of queries that never change a result.
TUNING: Final = frozenset({
    "FORMAT", "eps", "interval_time",
    "checkpoint_interval", "checkpoint_settings", "default_hash_join", "default_hash_table",
    "dlq_consecutive_failures_limit", "dlq_max_message_batch_size", "emit_aggregated_during_backfill",
    "emit_during_backfill", "enable_backfill_from_historical_store", "enable_optimize_predicate_expression",
    "force_backfill_in_order", "join_quiesce_threshold_ms", "max_block_size", "max_hot_key_count", "max_hot_keys",
    "max_insert_block_size", "max_insert_threads", "max_memory_usage", "max_threads", "memory_weight",
    "min_insert_block_size_rows", "min_insert_block_size_bytes", "optimize_move_to_prewhere", "pause_on_start",
    "preferred_exec_node", "priority", "query_id", "recovery_retry_for_same_error", "send_logs_level",
    "asterisk_include_tp_sn_column", "async_insert", "wait_for_async_insert",
    "fetch_buffer_size", "fetch_threads", "log_queries", "log_comment", "allow_independent_shard_processing",
    "substreams", "logstore_retention_bytes", "logstore_retention_ms", "enforce_append_only", "limit_hint",
    "use_approximate_count",
})  # fmt: skip
TUNING_REASON: Final = "it only tunes how Timeplus runs a query"

#: Clauses of streams and views that never change a result.
_CLAUSES: Final[dict[str, str]] = {
    "ORDER BY": SORTED,
    "PARTITION BY": SORTED,
    "SAMPLE BY": SORTED,
    "TTL": KEPT,
}

#: The first words of the clauses after the columns of a stream.
CLAUSE_WORDS: Final = (
    "PRIMARY",
    "SETTINGS",
    "STORAGE_SETTINGS",
    "ORDER",
    "PARTITION",
    "SAMPLE",
    "TTL",
    "COMMENT",
    "ENGINE",
)


def no_effect(what: str, reason: str) -> str:
    """The notice for something that has no effect."""
    return f"{what} has no effect: {reason}"


def take_clause(cursor: Cursor, stops: Sequence[str] = ()) -> list[str] | None:
    """Reads a clause of Timeplus' storage or a comment up to the next clause, or to one of `stops`. Returns its
    notices; None, with the cursor unmoved, for another clause.
    """
    for words, reason in _CLAUSES.items():
        if cursor.take(*words.split()):
            if not cursor.until(*CLAUSE_WORDS, *stops):
                raise cursor.error()
            return [no_effect(words, reason)]
    if cursor.take("COMMENT"):  # SHOW CREATE shows it
        cursor.string()
        return []
    if cursor.take("STORAGE_SETTINGS"):
        return settings_notices(cursor)
    return None


def settings_notices(cursor: Cursor) -> list[str]:
    """Reads `name = value, …`, all of which are settings of storage. Returns their notices."""
    found: list[str] = []
    while not found or cursor.take(","):
        name = cursor.name(reserved=True)
        cursor.expect("=")
        read_value(cursor)
        notice = setting_notice(name.name)
        if notice is None:
            hint = did_you_mean(name.name, _SETTINGS) or "Create the stream again with the setting."
            raise not_supported(f"setting {name.name} of a stream", cursor.text, name.span, hint=hint)
        found.append(notice)
    return found


def storage_settings() -> Iterable[str]:
    """The names of all settings of storage."""
    return _SETTINGS


def setting_notice(name: str) -> str | None:
    """The notice for a setting of Timeplus' storage; None for another setting."""
    reason = _SETTINGS.get(name.lower())
    return None if reason is None else no_effect(f"setting {name}", reason)


def take_column_clause(cursor: Cursor, column: str) -> list[str] | None:
    """Reads COMMENT, CODEC or TTL of a column. Returns its notices; None, with the cursor unmoved, for others."""
    if cursor.take("COMMENT"):
        cursor.string()
        return []
    if cursor.take("CODEC"):
        cursor.expect("(")
        cursor.until(")")
        cursor.expect(")")
        return [no_effect(f'CODEC of column "{column}"', _COMPRESSED)]
    if cursor.take("TTL"):
        cursor.until(",", ")")
        return [no_effect(f'TTL of column "{column}"', KEPT)]
    return None


def take_element(cursor: Cursor) -> list[str] | None:
    """Reads a part of a list of columns that only concerns storage: `INDEX name expression TYPE kind GRANULARITY n`,
    `FAMILY name (columns)`, `PROJECTION name (query)`. Returns its notices; None, with the cursor unmoved, for others.
    """
    begin = cursor.index
    if cursor.take("FAMILY") and not cursor.done:
        name = cursor.name(reserved=True)
        if cursor.at("("):
            cursor.until(",", ")")
            return [no_effect(f"FAMILY {name.name}", FOUND)]
    elif cursor.take("INDEX"):
        name = cursor.name(reserved=True)
        if any(word.text.upper() == "TYPE" for word in cursor.until(",", ")")):
            return [no_effect(f"INDEX {name.name}", FOUND)]
    elif cursor.take("PROJECTION"):
        name = cursor.name(reserved=True)
        if cursor.at("("):
            cursor.until(",", ")")
            return [no_effect(f"PROJECTION {name.name}", FOUND)]
    cursor.index = begin
    return None

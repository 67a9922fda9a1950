"""What the same words mean in each dialect: one frozen table of defaults a dialect.

The binder and the session ask it, and nothing else, so that `if dialect ==` stands nowhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from watersmeet.catalog import COMMON_SCHEMA

#: What becomes of a name without quotes.
Folding = Literal["lower", "upper", "none"]


@dataclass(frozen=True)
class Semantics:
    """The defaults of a dialect.

    folding: what becomes of names without quotes. schema: its name of the schema that is always there. schema_word:
    what it calls
    a schema; if `database`, CREATE DATABASE, USE and SHOW DATABASES are of schemas. unnamed: what a select item without
    alias is called in a view:
    `refused` unless it is a column or a call, `text` as it is written, `numbered` EXPR$0 and so on unless it is a
    column. repeated: a second column of one name under `*`: `kept`, or `qualified` by its relation
    (`right_stream.key`).
    continuous: which SELECT runs until it is stopped: none; one that names a `stream` (a bounded one says
    `table(stream)`); one that is `marked` (SELECT STREAM).
    history: which rows of an append-only relation a continuous query sees: all, only those that come after its start
    (`new`), or these of streams (`new of streams`: of what has a ROWTIME) and all of others.
    enrichment: an append-only left side looks up a right one that changes or stands still: later changes on the right
    give nothing (RisingWave says so by FOR SYSTEM_TIME AS OF PROCTIME()); so ASOF decides each left row when it comes,
    out of the
    `keep_versions` newest records of its key. refused_joins: kinds of joins that it does not have. settings: what a
    query may say behind SETTINGS. tuning: what it may say there as well, and changes no result here.
    join_max_buffered_bytes: how much a join of a view may keep; None: as much as there is.
    aggregates_of_nothing: what aggregate functions give for no values where these can't be NULL: NULL, or the default
    of the type (count always 0).
    asof_without_equality: the message for an ASOF join without one.
    records: relations are topics: SELECT STREAM or TABLE says what their records are, every query gives its records'
    key and time beside what it selects, and `*` leaves these out.
    rowtimes: what has a watermark is a stream, whose rows and queries have a ROWTIME that `*` leaves out; joins of
    streams are over windows, and by the streams' clocks.
    row_order: by what first_value, last_value, lag and their kin go where no ORDER BY says it: nothing of the rows but
    their values; the order of arrival; ROWTIME, and of equal ones arrival.
    """

    folding: Folding = "lower"
    schema: str = COMMON_SCHEMA
    schema_word: Literal["schema", "database"] = "schema"
    unnamed: Literal["refused", "text", "numbered"] = "refused"
    repeated: Literal["kept", "qualified"] = "kept"
    continuous: Literal["never", "streams", "marked"] = "never"
    history: Literal["all", "new", "new of streams"] = "all"
    enrichment: bool = False
    keep_versions: int = 3
    join_max_buffered_bytes: int | None = None
    aggregates_of_nothing: Literal["null", "default"] = "null"
    refused_joins: frozenset[str] = frozenset()
    settings: frozenset[str] = frozenset()
    tuning: frozenset[str] = frozenset()
    records: bool = False
    asof_without_equality: str = "AsOf join requires at least 1 equal condition"
    rowtimes: bool = False
    row_order: Literal["none", "arrival", "rowtime"] = "none"


RISINGWAVE: Final = Semantics()

#: Timeplus, "Multi-JOINs and ASOF JOINs"; rulings D-003-06, D-003-14 and D-003-17.
TIMEPLUS: Final = Semantics(
    folding="none",
    schema="default",
    schema_word="database",
    unnamed="text",
    repeated="qualified",
    continuous="streams",
    history="new",
    enrichment=True,
    join_max_buffered_bytes=524_288_000,
    aggregates_of_nothing="default",
    refused_joins=frozenset({"RIGHT", "CROSS"}),
    settings=frozenset(
        {
            "keep_versions",
            "join_algorithm",
            "join_max_buffered_bytes",
            "join_use_nulls",
            "join_restore_nulls",
            "join_date_diff",
            "max_join_range",
            "max_join_amplification_rows",
            "aggregate_functions_null_for_empty",
            "seek_to",
            "query_mode",
            "union_default_mode",
        }
    ),
    tuning=frozenset(
        {
            "default_hash_join",
            "default_hash_table",
            "emit_aggregated_during_backfill",
            "emit_during_backfill",
            "enable_backfill_from_historical_store",
            "enable_optimize_predicate_expression",
            "force_backfill_in_order",
            "join_quiesce_threshold_ms",
            "max_block_size",
            "max_memory_usage",
            "max_threads",
            "optimize_move_to_prewhere",
            "priority",
            "query_id",
        }
    ),
    asof_without_equality="ASOF join needs at least one equal-join column",
    row_order="arrival",
)

#: Lenses, "Joins", "Matching expression (ON)", "Streams and tables"; rulings D-004-04 and D-004-10.
LENSES: Final = Semantics(folding="none", unnamed="text", records=True)

#: SQLstream, "JOIN clause"; rulings D-001-16, D-001-21.
SQLSTREAM: Final = Semantics(
    folding="upper",
    unnamed="numbered",
    repeated="qualified",
    continuous="marked",
    history="new of streams",
    rowtimes=True,
    row_order="rowtime",
)

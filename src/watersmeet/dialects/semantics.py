"""The differences in meaning between dialects: one frozen table of defaults per dialect.

The binder and the session read only this table, so that there is no `if dialect ==`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from watersmeet.catalog import COMMON_SCHEMA, DropWord

#: The case to which a name without quotes is folded.
Folding = Literal["lower", "upper", "none"]


@dataclass(frozen=True)
class Semantics:
    """The defaults of a dialect.

    folding: the case of names without quotes. schema: the name of the default schema. schema_word: the word for a
    schema; if it is `database`, then CREATE DATABASE, USE and SHOW DATABASES concern schemas. unnamed: how a view names
    a select item without alias: by its `text`, `numbered` (EXPR$0 and so on, unless it is a column), or `refused`
    unless it is a column or a call. continuous: which SELECT runs until it is stopped: none, one that reads a `stream`
    (batch queries read `table(stream)`), or one that is `marked` (SELECT STREAM). join_max_buffered_bytes: the memory
    limit of a view's join; None: no limit. asof_without_equality: the message for an ASOF join without an equality.
    tables: which relations SHOW TABLES lists: all tables, `plain` ones (without those called streams), or all that
    queries `read`, which are topics. own_objects: objects of features that other dialects lack (`readers.reads`).
    own_words: words of DROP and ALTER that standard SQL lacks (`catalog.FAMILIES`). lacking_schemas: schemas of its
    system that Watersmeet lacks, each with the hint where to find the same elsewhere. changes_topics: how DML changes a
    topic: its `rows`, as in any table; or only by new `records`, so that DELETE writes tombstones, UPDATE is an error,
    and a running query returns the changes. processors_have_settings: whether SET with a dotted name sets a property of
    a processor. message_options: the default format of values in messages (`MessageFormat.options`). row_order: the
    order for first_value, last_value, lag and similar functions without ORDER BY: by the values, by arrival, or by
    ROWTIME and then arrival. uneven_hops: whether the size of HOP windows may be no multiple of their slide.
    views_change: CREATE OR REPLACE may change the columns of a view that nothing reads. session_zones: whether sessions
    may be in another time zone than UTC.
    """

    folding: Folding = "lower"
    schema: str = COMMON_SCHEMA
    schema_word: Literal["schema", "database"] = "schema"
    unnamed: Literal["refused", "text", "numbered"] = "refused"
    continuous: Literal["never", "streams", "marked"] = "never"
    join_max_buffered_bytes: int | None = None
    asof_without_equality: str = "AsOf join requires at least 1 equal condition"
    tables: Literal["tables", "plain", "read"] = "tables"
    own_objects: tuple[str, ...] = ()
    own_words: tuple[DropWord, ...] = ()
    lacking_schemas: Mapping[str, str] = field(default_factory=dict)
    changes_topics: Literal["rows", "records"] = "rows"
    processors_have_settings: bool = False
    row_order: Literal["none", "arrival", "rowtime"] = "none"
    uneven_hops: bool = False
    views_change: bool = False
    session_zones: bool = False
    message_options: Mapping[str, str] = field(default_factory=dict)


RISINGWAVE: Final = Semantics(
    own_objects=("secret", "connection", "function", "subscription", "comment", "sequence", "type", "domain"),
    own_words=("connection", "subscription", "sequence", "type", "domain"),
    session_zones=True,
)

#: Timeplus, "Multi-JOINs and ASOF JOINs".
TIMEPLUS: Final = Semantics(
    folding="none",
    schema="default",
    schema_word="database",
    unnamed="text",
    continuous="streams",
    join_max_buffered_bytes=524_288_000,
    asof_without_equality="ASOF join needs at least one equal-join column",
    own_objects=(
        "format schema",
        "named collection",
        "database",
        "dictionary",
        "external table",
        "function",
        "external stream",
        "random stream",
    ),
    own_words=("stream", "dictionary"),
    row_order="arrival",
    uneven_hops=True,
)

#: Options of a `MessageFormat` for JSON as Lenses writes it. Lenses, "Serialization formats".
LENSES_JSON: Final[Mapping[str, str]] = {
    "numeric.handling.mode": "string",
    "date.handling.mode": "days_from_epoch",
    "time.handling.mode": "string",
    "timestamp.handling.mode": "milli",
    "timestamptz.handling.mode": "milli",
    "jsonb.handling.mode": "dynamic",
}

#: Lenses, "Joins", "Matching expression (ON)", "Streams and tables".
LENSES: Final = Semantics(
    folding="none",
    unnamed="text",
    tables="read",
    changes_topics="records",
    processors_have_settings=True,
    message_options=LENSES_JSON,
    row_order="arrival",
)

#: SQLstream, "JOIN clause".
SQLSTREAM: Final = Semantics(
    folding="upper",
    unnamed="numbered",
    continuous="marked",
    tables="plain",
    own_objects=("server", "foreign stream", "foreign table", "function"),
    own_words=("stream", "pump", "server"),
    lacking_schemas={
        "SYS_BOOT.MGMT": "SHOW JOBS, SHOW ERRORS, SHOW MEMORY and SHOW DEAD LETTERS show the state of the database; "
        "watersmeet serve has metrics for Prometheus.",
        "SYS_BOOT.JDBC_METADATA": "SHOW STREAMS, TABLES, VIEWS and PUMPS list objects, DESCRIBE their columns.",
    },
    row_order="rowtime",
    views_change=True,
)

"""Reads CREATE, ALTER and DROP of Timeplus' streams and views, and its subscriptions; defines its error numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from sqlglot import exp

from watersmeet.catalog import ARRIVAL, TIME_COLUMN, DropWord, StreamMode
from watersmeet.dialects.statements import alter, ddl
from watersmeet.dialects.statements.functions import function_readers, read_remote
from watersmeet.dialects.timeplus.columns import (
    key_names,
    read_column,
    read_column_type,
    read_default,
    refuse_default,
)
from watersmeet.dialects.tree.definitions import (
    Alter,
    AlterQuery,
    CreateMaterializedView,
    CreateStream,
    StreamIndex,
)
from watersmeet.dialects.tree.queries import query_of
from watersmeet.dialects.tree.sqltypes import type_default
from watersmeet.dialects.tree.statements import Name, Recover, Refused, Statement, Subscribe, Unsubscribe
from watersmeet.dialects.tree.tokens import Cursor, not_supported, read_new_name, read_setting, read_value, span_of
from watersmeet.errors import Span
from watersmeet.values.types import TIMESTAMP, Field

#: The number of fractional digits of seconds in Watersmeet.
_DIGITS: Final = 6

_MODES: Final[dict[str, StreamMode]] = {
    "append": "append",
    "changelog": "changelog",
    "versioned_kv": "versioned_kv",
    "changelog_kv": "changelog_kv",
}

#: Settings of CREATE STREAM for Timeplus's storage, which have no effect in Watersmeet.
_STORAGE: Final = (
    "shards",
    "replication_factor",
    "logstore_retention_bytes",
    "logstore_retention_ms",
    "flush_messages",
    "flush_ms",
    "ttl_seconds",
    "coalesced",
    "index_granularity",
)


def _read_view(cursor: Cursor, base: dict[str, Any]) -> Statement:
    """Reads CREATE MATERIALIZED VIEW [IF NOT EXISTS] name [INTO stream] …"""
    texts = [t.text.upper() for t in cursor.tokens]
    head = texts[: texts.index("AS")] if "AS" in texts else texts
    if "INTO" not in head:
        return ddl.read_materialized_view(cursor, base)
    begin, first = cursor.index, head.index("INTO")
    cursor.index = first + 1
    into = cursor.relation_name()
    inner = cursor.over([*cursor.originals(cursor.tokens[:first]), *cursor.originals(cursor.rest)])
    inner.index = begin
    made = ddl.read_materialized_view(inner, base)
    return replace(made, into=into) if isinstance(made, CreateMaterializedView) else made


def read_alter(cursor: Cursor, base: dict[str, Any]) -> Statement:
    """Reads ALTER STREAM, ALTER VIEW and the like; the cursor stands after ALTER."""
    if cursor.at("NAMED", "COLLECTION"):
        span = span_of(cursor.tokens[: cursor.index + 2])
        hint = "Streams take its settings over when they are created: drop them, and create it and them again."
        return Refused(**base, error=not_supported("ALTER NAMED COLLECTION", cursor.text, span, hint=hint))
    changed = _read_settings(cursor, base)
    if changed is not None:
        return changed
    kinds = ("STREAM", "EXTERNAL", "DICTIONARY", "VIEW", "MATERIALIZED")
    found = alter.read_alter(cursor, base, _read_added, kinds, (*alter.COMMON_CLAUSES, "MODIFY QUERY SETTING"))
    if isinstance(found, Alter) and found.kind in ("view", "materialized view"):
        return replace(found, kind="any view")
    return found


def _read_settings(cursor: Cursor, base: dict[str, Any]) -> Statement | None:
    """Reads `VIEW name MODIFY QUERY SETTING name = value, …`. For other statements it returns None and leaves the
    cursor.

    Timeplus, "ALTER VIEW".
    """
    begin = cursor.index
    if cursor.take("VIEW") or cursor.take("MATERIALIZED", "VIEW"):
        if_exists = cursor.take("IF", "EXISTS")
        name = cursor.relation_name()
        if cursor.take("MODIFY", "QUERY", "SETTING"):
            settings: dict[str, str] = {}
            spans: dict[str, Span] = {}
            while not settings or cursor.take(","):
                first = cursor.index
                setting = read_setting(cursor, settings)
                spans[setting] = span_of(cursor.tokens[first : cursor.index])
            cursor.end()
            return AlterQuery(**base, kind="any view", name=name, if_exists=if_exists, settings=settings, spans=spans)
    cursor.index = begin
    return None


def _read_added(cursor: Cursor) -> tuple[Field, dict[str, Any]]:
    field, kind = read_column(cursor, ())
    refuse_default(cursor, "that is added")
    default = None if field.nullable else type_default(field.type)
    digits = kind.digits if kind.digits is not None and kind.digits < _DIGITS else None
    return field, {"default": default, "range": kind.range, "digits": digits}


class _Stream:
    """The parts of a CREATE STREAM."""

    def __init__(self, cursor: Cursor, base: dict[str, Any]) -> None:
        self.cursor = cursor
        self.base = base
        self.declared: dict[str, exp.Expression] = {}
        self.columns: list[Field] = []
        self.indexes: list[StreamIndex] = []
        self.ranges: dict[str, tuple[int, int]] = {}
        self.digits: dict[str, int] = {}
        self.key: tuple[Name, ...] = ()
        self.settings: dict[str, str] = {}
        self.mode_span = Span(0, 0)

    def read(self, *, mutable: bool) -> Statement:
        """Reads the statement; the cursor stands after STREAM."""
        cursor = self.cursor
        made = read_new_name(cursor, self.base)
        if not cursor.at("("):
            raise cursor.error(detail="The columns of the stream were expected here.")
        self._columns()
        self._clauses()
        cursor.end()
        mode = self._mode(mutable, made["name"], made["name_span"])
        self._check_names()
        keys = tuple(k.name for k in self.key)
        columns = [Field(c.name, c.type, c.nullable and c.name not in keys) for c in self.columns]
        defaults = {
            c.name: default for c in columns if not c.nullable and (default := type_default(c.type)) is not None
        }
        if TIME_COLUMN not in defaults:
            columns.append(Field(TIME_COLUMN, TIMESTAMP, nullable=False))
            self.digits[TIME_COLUMN] = 3
        defaults[TIME_COLUMN] = ARRIVAL
        return CreateStream(
            **made,
            columns=tuple(columns),
            primary_key=keys,
            mode=mode,
            defaults=defaults,
            declared=self.declared,
            ranges=self.ranges,
            digits=self.digits,
            indexes=tuple(self.indexes),
        )

    def _columns(self) -> None:
        cursor = self.cursor
        cursor.expect("(")
        while not cursor.at(")"):
            if cursor.take("INDEX"):
                self._index()
            elif cursor.take("PRIMARY", "KEY"):
                self.key = key_names(cursor)
            else:
                self._column()
            if not cursor.take(","):
                break
        cursor.expect(")")

    def _column(self) -> None:
        field, kind = read_column(self.cursor, [c.name for c in self.columns])
        self.columns.append(field)
        if kind.range is not None:
            self.ranges[field.name] = kind.range
        if kind.digits is not None and kind.digits < _DIGITS:
            self.digits[field.name] = kind.digits
        if self.cursor.take("DEFAULT"):
            self.declared[field.name] = read_default(self.cursor)

    def _index(self) -> None:
        """Reads `index idx2 (v1, v2) storing (v3)` (TP-53)."""
        cursor = self.cursor
        name = cursor.name()
        unique = cursor.take("UNIQUE")
        columns = key_names(cursor)
        storing = key_names(cursor) if cursor.take("STORING") else ()
        if unique:
            raise not_supported("a unique index", cursor.text, name.span)
        self.indexes.append(StreamIndex(name, columns, storing))

    def _clauses(self) -> None:
        cursor = self.cursor
        while not cursor.done:
            start = cursor.index
            if cursor.take("PRIMARY", "KEY"):
                self.key = key_names(cursor)
            elif cursor.take("SETTINGS"):
                self._settings()
            elif (
                cursor.take("ORDER", "BY")
                or cursor.take("PARTITION", "BY")
                or cursor.take("TTL")
                or cursor.take("COMMENT")
            ):
                cursor.until("PRIMARY", "SETTINGS", "ORDER", "PARTITION", "TTL", "COMMENT")
                span = span_of(cursor.tokens[start : cursor.index])
                raise not_supported(f"{cursor.tokens[start].text.upper()} of a stream", cursor.text, span)
            else:
                raise cursor.error()

    def _settings(self) -> None:
        cursor = self.cursor
        while True:
            name = cursor.name(reserved=True)
            cursor.expect("=")
            start = cursor.index
            self.settings[name.name] = read_value(cursor)
            if name.name == "mode":
                self.mode_span = span_of(cursor.tokens[start : cursor.index])
            elif name.name not in _STORAGE:
                raise not_supported(f"setting {name.name} of a stream", cursor.text, name.span)
            if not cursor.take(","):
                return

    def _mode(self, mutable: bool, name: str, span: Span) -> StreamMode:
        given = self.settings.get("mode", "append")
        if given not in _MODES:
            raise self.cursor.error_at(
                self.mode_span,
                "INVALID_PARAMETER",
                f'there is no stream mode "{given}"',
                hint="The modes are append, changelog, versioned_kv and changelog_kv; for a mutable stream write "
                "CREATE MUTABLE STREAM.",
            )
        mode: StreamMode = "mutable" if mutable else _MODES[given]
        keyless = mode in ("append", "changelog")
        if keyless and self.key:
            hints = {
                "append": "Add SETTINGS mode='versioned_kv', or write CREATE MUTABLE STREAM.",
                "changelog": "Write SETTINGS mode='changelog_kv'.",
            }
            raise self.cursor.error_at(
                self.key[0].span,
                "INVALID_PARAMETER",
                f'stream "{name}" of mode {mode} can\'t have a primary key',
                hint=hints[mode],
            )
        if not keyless and not self.key:
            raise self.cursor.error_at(
                span,
                "INVALID_PARAMETER",
                f'stream "{name}" needs a primary key',
                detail=f"Streams of mode {mode} keep rows by their key.",
                hint="Add PRIMARY KEY (column, …).",
            )
        return mode

    def _check_names(self) -> None:
        known = [c.name for c in self.columns]
        named = [*self.key, *[n for i in self.indexes for n in (*i.columns, *i.storing)]]
        for name in named:
            if name.name not in known:
                raise self.cursor.error_at(
                    name.span, "UNDEFINED_COLUMN", f'column "{name.name}" named in key does not exist'
                )
        if len({n.name for n in self.key}) < len(self.key):
            raise self.cursor.error_at(
                self.key[-1].span, "DUPLICATE_COLUMN", "a column appears twice in the primary key"
            )
        for column in self.columns:
            if column.name == TIME_COLUMN and column.type.name != "timestamp":
                raise self.cursor.error_at(
                    self.base["span"], "DATATYPE_MISMATCH", f"column {TIME_COLUMN} must be a datetime64"
                )


CODES: Final[dict[str, int]] = {
    "AMBIGUOUS_COLUMN": 207,  # AMBIGUOUS_IDENTIFIER
    "ASOF_KIND": 48,  # NOT_IMPLEMENTED
    "ASOF_WITHOUT_EQUALITY": 62,  # SYNTAX_ERROR
    "ASOF_WITHOUT_INEQUALITY": 62,
    "CATALOG_TYPE_MISMATCH": 80,  # INCORRECT_QUERY
    "COLUMN_NOT_GROUPED": 215,  # NOT_AN_AGGREGATE
    "CYCLIC_ALIASES": 174,
    "DATATYPE_MISMATCH": 53,  # TYPE_MISMATCH
    "DIRECT_KEY": 48,
    "DIRECT_RIGHT_SIDE": 48,
    "DISK_FULL": 243,  # NOT_ENOUGH_SPACE
    "DUPLICATE_COLUMN": 15,  # DUPLICATE_COLUMN
    "DUPLICATE_OBJECT": 57,  # STREAM_ALREADY_EXISTS
    "EMIT_NOT_POSSIBLE": 48,
    "EXPRESSION_WITHOUT_NAME": 206,  # ALIAS_REQUIRED
    "FEATURE_NOT_SUPPORTED": 48,
    "INTERNAL_ERROR": 49,  # LOGICAL_ERROR
    "INVALID_PARAMETER": 36,  # BAD_ARGUMENTS
    "INVALID_VALUE": 6,  # CANNOT_PARSE_TEXT
    "JOIN_KIND": 48,
    "JOIN_WITHOUT_EQUALITY": 403,  # INVALID_JOIN_ON_EXPRESSION
    "NOT_NULL_VIOLATION": 349,  # CANNOT_INSERT_NULL_IN_ORDINARY_COLUMN
    "OUT_OF_MEMORY": 241,  # MEMORY_LIMIT_EXCEEDED
    "QUERY_CANCELED": 394,  # QUERY_WAS_CANCELLED
    "READ_ONLY_RELATION": 242,  # STREAM_IS_READ_ONLY
    "READ_ONLY_SESSION": 164,  # READONLY
    "SCALAR_SUBQUERY_ROWS": 125,  # INCORRECT_RESULT_OF_SCALAR_SUBQUERY
    "SYNTAX_ERROR": 62,
    "TIME_FILTER": 48,
    "UNDEFINED_COLUMN": 47,  # UNKNOWN_IDENTIFIER
    "UNDEFINED_FUNCTION": 46,  # UNKNOWN_FUNCTION
    "UNDEFINED_OBJECT": 115,  # UNKNOWN_SETTING
    "UNDEFINED_RELATION": 60,  # UNKNOWN_STREAM
    "WINDOW_JOIN": 48,
}


def read_subscription(cursor: Cursor, base: dict[str, Any]) -> Statement | None:
    """Reads SUBSCRIBE TO SELECT …, RECOVER FROM 'id', UNSUBSCRIBE TO 'id'; returns None for SUBSCRIBE to relations. The
    cursor stands after the first word.
    """
    word = cursor.tokens[cursor.index - 1].text.upper()
    if word == "SUBSCRIBE":
        if not any(map(cursor.at, ("TO", "SELECT", "WITH", "VALUES", "("))):
            return None
        cursor.expect("TO")
        if not any(cursor.at(w) for w in ("SELECT", "WITH", "(")):
            raise cursor.error(hint="Write SUBSCRIBE TO SELECT ….")
        return Subscribe(**base, query=query_of(cursor))
    cursor.expect("FROM" if word == "RECOVER" else "TO")
    query_id = cursor.query_id()
    cursor.end()
    return (Recover if word == "RECOVER" else Unsubscribe)(**base, id=query_id)


LACKING: Final[ddl.Lacking] = {
    **ddl.LACKING,
    **dict.fromkeys(
        (
            "CREATE RANDOM STREAM",
            "CREATE TABLE",
            "CREATE INPUT",
            "CREATE TASK",
            "CREATE ALERT",
            "CREATE DISK",
            "CREATE TEMPORARY",
        )
    ),
}
CREATES: Final[Mapping[str, ddl.Reader]] = {
    **{words: reader for words, reader in ddl.CREATES.items() if words != "TABLE"},
    "STREAM": lambda cursor, base: _Stream(cursor, base).read(mutable=False),
    "MUTABLE STREAM": lambda cursor, base: _Stream(cursor, base).read(mutable=True),
    "DATABASE": ddl.read_create_schema,
    **function_readers(lambda cursor: read_column_type(cursor).type, "AGGREGATE FUNCTION", "lists"),
    "REMOTE FUNCTION": read_remote,
    "MATERIALIZED VIEW": _read_view,
}
DROPS: Final[Mapping[str, DropWord | ddl.Reader]] = {
    **ddl.DROPS,
    "DATABASE": ddl.read_drop_schema,
    "STREAM": "stream",
    "EXTERNAL STREAM": "stream",
    "EXTERNAL TABLE": "stream",
    "VIEW": "any view",
    "DICTIONARY": "dictionary",
    "FORMAT SCHEMA": "format schema",
    "NAMED COLLECTION": "named collection",
}

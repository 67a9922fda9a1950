"""CREATE, ALTER and DROP of Timeplus: streams and views; its subscriptions, and its numbers of errors."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from sqlglot import exp
from sqlglot.dialects.dialect import Dialect

from watersmeet.catalog import ARRIVAL, TIME_COLUMN, DropWord, StreamMode
from watersmeet.dialects.statements import alter, ddl
from watersmeet.dialects.timeplus.columns import key_names, read_column, read_default, refuse_default
from watersmeet.dialects.timeplus.external import (
    read_dictionary,
    read_external_stream,
    read_external_table,
)
from watersmeet.dialects.tree.definitions import (
    Alter,
    AlterQuery,
    CreateMaterializedView,
    CreateStream,
    Drop,
    StreamIndex,
)
from watersmeet.dialects.tree.queries import read_tree
from watersmeet.dialects.tree.sqltypes import type_default
from watersmeet.dialects.tree.statements import Name, Recover, Refused, Statement, Subscribe, Unsubscribe
from watersmeet.dialects.tree.tokens import Cursor, not_supported, read_setting, read_value, span_of
from watersmeet.errors import Span, error
from watersmeet.values.types import TIMESTAMP, Field

#: Of a second, that times have here.
_DIGITS: Final = 6

_MODES: Final[dict[str, StreamMode]] = {
    "append": "append",
    "changelog": "changelog",
    "versioned_kv": "versioned_kv",
    "changelog_kv": "changelog_kv",
}

_LACKING: Final = (
    ("RANDOM", "STREAM"),
    ("FUNCTION",),
    ("TABLE",),
    ("INPUT",),
    ("TASK",),
    ("ALERT",),
    ("DISK",),
    ("TEMPORARY",),
)

#: Settings of CREATE STREAM that say how the product stores a stream; nothing here depends on them.
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


def read_create(cursor: Cursor, dialect: Dialect, base: dict[str, Any]) -> Statement:
    """CREATE …: the cursor stands behind CREATE."""
    if cursor.take("STREAM"):
        return _Stream(cursor, dialect, base).read(mutable=False)
    if cursor.take("MUTABLE", "STREAM"):
        return _Stream(cursor, dialect, base).read(mutable=True)
    if cursor.take("DATABASE"):
        return ddl.read_create_schema(cursor, dialect, base)
    if cursor.take("DICTIONARY"):
        return read_dictionary(cursor, dialect, base)
    for words, read in (
        (("EXTERNAL", "TABLE"), read_external_table),
        (("EXTERNAL", "STREAM"), read_external_stream),
    ):
        if cursor.take(*words):
            return read(cursor, base)
    there = (
        "STREAM, MUTABLE STREAM, EXTERNAL STREAM, EXTERNAL TABLE, DICTIONARY, FORMAT SCHEMA, NAMED COLLECTION, VIEW "
        "and MATERIALIZED VIEW"
    )
    refused = ddl.refused_create(cursor, base, _LACKING, there)
    if refused is not None:
        return refused
    if cursor.at("MATERIALIZED", "VIEW"):
        texts = [t.text.upper() for t in cursor.tokens]
        head = texts[: texts.index("AS")] if "AS" in texts else texts
        if "INTO" in head:
            return _view_into(cursor, dialect, base, head.index("INTO"))
    return ddl.read_create(cursor, dialect, base)


def _view_into(cursor: Cursor, dialect: Dialect, base: dict[str, Any], place: int) -> Statement:
    """CREATE MATERIALIZED VIEW name INTO stream AS …: the rest is read as without INTO."""
    begin, cursor.index = cursor.index, place + 1
    into = cursor.relation_name()
    rest = cursor.originals([*cursor.tokens[:place]]) + cursor.originals([*cursor.rest])
    inner = Cursor(rest, cursor.text, folding=cursor.folding)
    inner.index = begin
    made = ddl.read_create(inner, dialect, base)
    return replace(made, into=into) if isinstance(made, CreateMaterializedView) else made


def read_alter(cursor: Cursor, base: dict[str, Any]) -> Statement:
    """ALTER STREAM, ALTER VIEW …: the cursor stands behind ALTER."""
    if cursor.at("NAMED", "COLLECTION"):
        span = span_of(cursor.tokens[: cursor.index + 2])
        hint = "Streams take its settings over when they are created: drop them, and create it and them again."
        return Refused(**base, error=not_supported("ALTER NAMED COLLECTION", cursor.text, span, hint=hint))
    changed = _read_settings(cursor, base)
    if changed is not None:
        return changed
    found = alter.read_alter(cursor, base, _read_added, ("STREAM", "EXTERNAL", "DICTIONARY", "VIEW", "MATERIALIZED"))
    if isinstance(found, Alter) and found.kind in ("view", "materialized view"):
        return replace(found, kind="any view")
    return found


def _read_settings(cursor: Cursor, base: dict[str, Any]) -> Statement | None:
    """`VIEW name MODIFY QUERY SETTING name = value, …`; None, with the cursor where it was, if something else is there.

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


def read_drop(cursor: Cursor, base: dict[str, Any]) -> Statement:
    """DROP STREAM (external ones and tables, too), DICTIONARY, FORMAT SCHEMA, NAMED COLLECTION, VIEW (of both
    kinds), DATABASE.

    The cursor stands behind DROP.
    """
    if cursor.take("DATABASE"):
        return ddl.read_drop_schema(cursor, base)
    words: dict[str, DropWord] = {
        "STREAM": "stream",
        "VIEW": "any view",
        "DICTIONARY": "dictionary",
        "FORMAT SCHEMA": "format schema",
        "NAMED COLLECTION": "named collection",
    }
    if cursor.at("EXTERNAL", "STREAM") or cursor.at("EXTERNAL", "TABLE"):
        cursor.index += 2
        kind: DropWord | None = "stream"
    else:
        kind = next((k for word, k in words.items() if cursor.take(*word.split())), None)
    if kind is None:
        return ddl.read_drop(cursor, base)
    if_exists = cursor.take("IF", "EXISTS")
    name = cursor.relation_name()
    cascade = cursor.take("CASCADE")
    cursor.end()
    return Drop(**base, kind=kind, names=(name,), if_exists=if_exists, cascade=cascade)


class _Stream:
    """What is read of a CREATE STREAM."""

    def __init__(self, cursor: Cursor, dialect: Dialect, base: dict[str, Any]) -> None:
        self.cursor = cursor
        self.dialect = dialect
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
        """The statement; the cursor stands behind STREAM."""
        cursor = self.cursor
        if_not_exists = cursor.take("IF", "NOT", "EXISTS")
        name = cursor.relation_name()
        if not cursor.at("("):
            raise cursor.error(detail="The columns of the stream were expected here.")
        self._columns()
        self._clauses()
        cursor.end()
        mode = self._mode(mutable, name)
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
            **self.base,
            name=name.name,
            name_span=name.span,
            schema=name.schema,
            columns=tuple(columns),
            primary_key=keys,
            if_not_exists=if_not_exists,
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
            self.declared[field.name] = read_default(self.cursor, self.dialect)

    def _index(self) -> None:
        """`index idx2 (v1, v2) storing (v3)` (TP-53)."""
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

    def _mode(self, mutable: bool, name: Name) -> StreamMode:
        given = self.settings.get("mode", "append")
        if given not in _MODES:
            raise error(
                "INVALID_PARAMETER",
                f'there is no stream mode "{given}"',
                sql=self.cursor.text,
                span=self.mode_span,
                hint=(
                    "The modes are append, changelog, versioned_kv and changelog_kv; for a mutable stream write CREATE "
                    "MUTABLE STREAM."
                ),
            )
        mode: StreamMode = "mutable" if mutable else _MODES[given]
        keyless = mode in ("append", "changelog")
        if keyless and self.key:
            hints = {
                "append": "Add SETTINGS mode='versioned_kv', or write CREATE MUTABLE STREAM.",
                "changelog": "Write SETTINGS mode='changelog_kv'.",
            }
            raise error(
                "INVALID_PARAMETER",
                f'stream "{name.name}" of mode {mode} can\'t have a primary key',
                sql=self.cursor.text,
                span=self.key[0].span,
                hint=hints[mode],
            )
        if not keyless and not self.key:
            raise error(
                "INVALID_PARAMETER",
                f'stream "{name.name}" needs a primary key',
                sql=self.cursor.text,
                span=name.span,
                detail=f"Streams of mode {mode} keep rows by their key.",
                hint="Add PRIMARY KEY (column, …).",
            )
        return mode

    def _check_names(self) -> None:
        known = [c.name for c in self.columns]
        named = [*self.key, *[n for i in self.indexes for n in (*i.columns, *i.storing)]]
        for name in named:
            if name.name not in known:
                raise error(
                    "UNDEFINED_COLUMN",
                    f'column "{name.name}" named in key does not exist',
                    sql=self.cursor.text,
                    span=name.span,
                )
        if len({n.name for n in self.key}) < len(self.key):
            raise error(
                "DUPLICATE_COLUMN",
                "a column appears twice in the primary key",
                sql=self.cursor.text,
                span=self.key[-1].span,
            )
        for column in self.columns:
            if column.name == TIME_COLUMN and column.type.name != "timestamp":
                raise error(
                    "DATATYPE_MISMATCH",
                    f"column {TIME_COLUMN} must be a datetime64",
                    sql=self.cursor.text,
                    span=self.base["span"],
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

#: The first words of the statements.
WORDS: Final = ("RECOVER", "SUBSCRIBE", "UNSUBSCRIBE")


def read_subscription(word: str, cursor: Cursor, grammar: Dialect, base: dict[str, Any]) -> Statement:
    """One of `WORDS`: the cursor stands behind it."""
    if word == "SUBSCRIBE":
        cursor.expect("TO")
        if not any(cursor.at(w) for w in ("SELECT", "WITH", "(")):
            raise cursor.error(hint="Write SUBSCRIBE TO SELECT ….")
        return Subscribe(**base, query=read_tree(cursor.originals(cursor.rest), cursor.text, grammar))
    cursor.expect("FROM" if word == "RECOVER" else "TO")
    query_id = cursor.query_id()
    cursor.end()
    return (Recover if word == "RECOVER" else Unsubscribe)(**base, id=query_id)

"""Reads CREATE, ALTER and DROP of Timeplus' streams and views, and its subscriptions; defines its error numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

from sqlglot import exp
from sqlglot.tokens import TokenType

from watersmeet.catalog import ARRIVAL, TIME_COLUMN, DropWord, StreamMode
from watersmeet.dialects.statements import ddl
from watersmeet.dialects.statements.functions import function_readers, read_remote
from watersmeet.dialects.timeplus import accepted
from watersmeet.dialects.timeplus.columns import DIGITS, first_choice, key_names, read_column, read_column_type
from watersmeet.dialects.timeplus.storage import (
    CLAUSE_WORDS,
    FOUND,
    PLACED,
    no_effect,
    setting_notice,
    settings_notices,
    storage_settings,
    take_clause,
    take_element,
)
from watersmeet.dialects.tree.definitions import (
    CreateMaterializedView,
    CreateStream,
    CreateView,
    StreamIndex,
)
from watersmeet.dialects.tree.queries import node_span, query_of, read_expression
from watersmeet.dialects.tree.sqltypes import type_default
from watersmeet.dialects.tree.statements import (
    Name,
    Recover,
    Statement,
    Subscribe,
    Unsubscribe,
)
from watersmeet.dialects.tree.tokens import Cursor, not_supported, read_new_name, read_value, span_of
from watersmeet.errors import Span, did_you_mean
from watersmeet.values.spans import set_span
from watersmeet.values.types import TIMESTAMP, Field

#: The settings of streams that have a meaning in Watersmeet.
_MEANT: Final = ("mode", "version_column", "late_insert_overrides", "coalesced", "event_time_column")

_MODES: Final[dict[str, StreamMode]] = {
    "append": "append",
    "changelog": "changelog",
    "versioned_kv": "versioned_kv",
    "changelog_kv": "changelog_kv",
}


def _read_view(cursor: Cursor, base: dict[str, Any], *, materialized: bool) -> Statement:
    """Reads CREATE [MATERIALIZED] VIEW [IF NOT EXISTS] name [INTO stream] [(columns)] [clauses] AS query [clauses];
    the clauses have no effect. Columns may have types, to which their values are cast.
    """
    begin = cursor.index
    read_new_name(cursor, base)
    head, into, notices = cursor.index, None, list[str]()
    if materialized and cursor.take("INTO"):
        into = cursor.relation_name()
    columns, types = _view_columns(cursor, notices) if cursor.at("(") else ([], [])
    while not (cursor.done or cursor.at("AS")):
        notices += _view_clause(cursor)
    last = _end_of_query(cursor, notices)
    kept = [(0, head), *columns, (cursor.index, last)]
    inner = cursor.over([t for first, end in kept for t in cursor.originals(cursor.tokens[first:end])])
    inner.index = begin
    made = ddl.CREATES["MATERIALIZED VIEW" if materialized else "VIEW"](inner, {**base, "notices": tuple(notices)})
    if isinstance(made, CreateView) and any(types):
        _cast_items(made.query, types, cursor)
    if isinstance(made, CreateMaterializedView):
        if into is not None and _without_clock(made.query):
            made = replace(made, notices=(*made.notices, _WRITTEN_AT))
        return replace(made, into=into, paused=_is_paused(made.query))
    return made


_WRITTEN_AT: Final = f"{TIME_COLUMN} is the time at which a row is written, as now64() says"


def _without_clock(query: exp.Expression) -> bool:
    """Removes `now64() AS _tp_time` from a query, because rows without a time have the time at which they are written.
    Returns whether the query contained it.
    """
    items = query.expressions if isinstance(query, exp.Select) else []
    clocks = [
        item
        for item in items
        if isinstance(item, exp.Alias)
        and item.alias == TIME_COLUMN
        and item.this.find(exp.Column) is None
        and any(str(call.this).lower() == "localtimestamp" for call in item.this.find_all(exp.Anonymous))
    ]
    if not clocks or len(clocks) == len(items):
        return False
    query.set("expressions", [item for item in items if item not in clocks])
    return True


def _is_paused(query: exp.Expression) -> bool:
    """Whether a query has the setting `pause_on_start`, which is removed."""
    settings = query.args.get("settings") or []
    given = [s for s in settings if isinstance(s, exp.EQ) and s.this.name == "pause_on_start"]
    query.set("settings", [s for s in settings if s not in given] or None)
    value = given[-1].expression if given else exp.false()
    return bool(value.this) if isinstance(value, exp.Boolean) else value.name.lower() in ("1", "true")


def _view_columns(cursor: Cursor, notices: list[str]) -> tuple[list[tuple[int, int]], list[str]]:
    """The tokens of the names in a view's list of columns, with their commas, and the type of each, or empty."""
    kept, types, seen = [(cursor.index, cursor.index + 1)], list[str](), list[str]()
    cursor.expect("(")
    while not cursor.at(")"):
        begin = cursor.index
        if (found := take_element(cursor)) is not None:
            notices += found
        elif _is_unlisted(cursor):  # SHOW CREATE of Timeplus lists it, though the query lacks it
            cursor.until(",", ")")
        else:
            comma = [(begin - 1, begin)] if types else []
            kept += [*comma, (begin, begin + 1)]
            seen.append(cursor.name(reserved=True).name)
            kind = cursor.tokens[begin + 1].text.lower()
            if not (cursor.at(",") or cursor.at(")")):
                cursor.index = begin
                notices += read_column(cursor, seen[:-1], has_delta=True).notices
            types.append(kind if kind in _CAST else "")
        if not cursor.take(","):
            break
    kept.append((cursor.index, cursor.index + 1))
    cursor.expect(")")
    return kept, types


def _is_unlisted(cursor: Cursor) -> bool:
    """Whether a column of a view's list is one that the stream adds: the number of a row, or a time with DEFAULT."""
    begin, name = cursor.index, cursor.tokens[cursor.index].text.strip("`")
    words = [t.text.upper() for t in cursor.until(",", ")")] if name == TIME_COLUMN else []
    cursor.index = begin
    return name == NUMBER_COLUMN or "DEFAULT" in words


#: The column with the number of a row in a shard, which Watersmeet lacks.
NUMBER_COLUMN: Final = "_tp_sn"

#: The types of columns to which a view casts its values; those of others are the types of the query.
_CAST: Final = frozenset({
    "bool", "boolean", "string", "float", "float32", "float64", "double", "int", "int8", "int16", "int32", "int64",
    "integer", "bigint", "smallint", "uint8", "uint16", "uint32", "uint64",
})  # fmt: skip


def _cast_items(query: exp.Expression, types: Sequence[str], cursor: Cursor) -> None:
    """Casts the items of the select list; items of other queries keep their types."""
    items = query.expressions if isinstance(query, exp.Select) else []
    if len(items) != len(types) or any(i.is_star for i in items) or cursor.grammar is None:
        return
    for item, kind in zip(list(items), types, strict=True):
        if kind:
            value = item.unalias()
            cast = read_expression(cursor.grammar.tokenize(f"x::{kind}"), f"x::{kind}", cursor.grammar)
            for node in cast.walk():
                set_span(node, node_span(value))
            made = exp.alias_(cast, item.alias_or_name, quoted=True, copy=False)
            set_span(made, node_span(item))
            item.replace(made)
            next(iter(cast.find_all(exp.Column))).replace(value)


def _view_clause(cursor: Cursor) -> list[str]:
    """The notices of a clause before AS of a view."""
    if cursor.take("SETTINGS"):
        return settings_notices(cursor)
    if (found := take_clause(cursor, ("AS",))) is None:
        raise cursor.error()
    return found


def _end_of_query(cursor: Cursor, notices: list[str]) -> int:
    """The index after the query of a view, before `COMMENT 'text'` and `STORAGE_SETTINGS …`, whose notices are added.

    The cursor stands at AS.
    """
    begin, ended = cursor.index, False
    cursor.until("STORAGE_SETTINGS", "COMMENT")
    last = cursor.index
    while not cursor.done:
        ended = ended or cursor.at("STORAGE_SETTINGS") or _at_comment(cursor)
        found = take_clause(cursor) if ended else None
        if found is None:  # a column of that name
            cursor.index += 1
            cursor.until("STORAGE_SETTINGS", "COMMENT")
            last = cursor.index
        else:
            notices += found
    cursor.index = begin
    return last


def _at_comment(cursor: Cursor) -> bool:
    """Whether COMMENT and its text follow, which end the statement or precede another clause."""
    following = cursor.rest[1:3]
    if not cursor.at("COMMENT") or not following or following[0].token_type != TokenType.STRING:
        return False
    return len(following) == 1 or following[1].text.upper() in CLAUSE_WORDS


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
        self.spans: dict[str, Span] = {}
        self.notices: list[str] = []
        self.generated: dict[str, exp.Expression] = {}
        self.unlisted: list[str] = []
        self.yielding: list[str] = []
        self.choices: dict[str, tuple[str, ...]] = {}
        self.families: dict[str, tuple[Name, ...]] = {}

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
        self._check_settings(mode)
        keys = () if mode in ("append", "changelog") else tuple(k.name for k in self.key)
        for key in self.key:
            if any(c.name == key.name and c.type.has_map for c in self.columns):
                hint = "Use a column with a value of the map as the key."
                raise not_supported("a map in the primary key", cursor.text, key.span, hint=hint)
        columns = [Field(c.name, c.type, c.nullable and c.name not in keys) for c in self.columns]
        defaults = {
            c.name: default for c in columns if not c.nullable and (default := type_default(c.type)) is not None
        }
        defaults |= {name: first_choice(values) for name, values in self.choices.items() if name in defaults}
        if TIME_COLUMN not in defaults:
            columns.append(Field(TIME_COLUMN, TIMESTAMP, nullable=False))
            self.digits[TIME_COLUMN] = 3
        defaults[TIME_COLUMN] = ARRIVAL
        self._time_of_events()
        return CreateStream(
            **{**made, "notices": tuple(dict.fromkeys(self.notices))},
            columns=tuple(columns),
            primary_key=keys,
            mode=mode,
            defaults=defaults,
            declared=self.declared,
            ranges=self.ranges,
            digits=self.digits,
            indexes=tuple(self.indexes),
            generated=self.generated,
            yielding=tuple(self.yielding),
            unlisted=tuple(self.unlisted),
            choices=self.choices,
            version=self.settings.get("version_column", ""),
            keeps_first=self._is_off("late_insert_overrides"),
            coalesced=self._is_coalesced,
            families={name: tuple(c.name for c in columns) for name, columns in self.families.items()},
        )

    def _columns(self) -> None:
        cursor = self.cursor
        cursor.expect("(")
        while not cursor.at(")"):
            if cursor.at("FAMILY") and len(cursor.rest) > 2 and cursor.rest[2].text == "(":
                self._family()
            elif (notices := take_element(cursor)) is not None:
                self.notices += notices
            elif cursor.take("INDEX"):
                self._index()
            elif cursor.take("PRIMARY", "KEY"):
                self.key = key_names(cursor)
            else:
                self._column()
            if not cursor.take(","):
                break
        cursor.expect(")")

    def _column(self) -> None:
        column = read_column(self.cursor, [c.name for c in self.columns])
        field, kind = column.field, column.kind
        self.columns.append(field)
        self.notices += column.notices
        if kind.range is not None:
            self.ranges[field.name] = kind.range
        if kind.digits is not None and kind.digits < DIGITS:
            self.digits[field.name] = kind.digits
        if kind.choices:
            self.choices[field.name] = kind.choices
        if column.value is not None:
            self._value(field.name, *column.value)

    def _value(self, column: str, word: str, expression: exp.Expression) -> None:
        """Notes the expression of a column: a DEFAULT that reads no column, or the expression of a generated one."""
        if word == "DEFAULT" and expression.find(exp.Column) is None:
            self.declared[column] = expression
            return
        self.generated[column] = expression
        (self.yielding if word == "DEFAULT" else self.unlisted).append(column)

    def _time_of_events(self) -> None:
        """The setting `event_time_column`: the expression for `_tp_time` of rows that are written without it."""
        text = self.settings.get("event_time_column")
        if text is None:
            return
        grammar = self.cursor.grammar
        assert grammar is not None
        expression = read_expression(grammar.tokenize(text), text, grammar)
        for node in expression.walk():
            set_span(node, self.spans["event_time_column"])
        self.generated[TIME_COLUMN] = exp.cast(expression, exp.DType.TIMESTAMP)
        self.yielding.append(TIME_COLUMN)

    def _family(self) -> None:
        """Reads `FAMILY name (columns)`."""
        self.cursor.expect("FAMILY")
        name = self.cursor.name(reserved=True)
        self.families[name.name] = self.cursor.names()

    @property
    def _is_coalesced(self) -> bool:
        return self.settings.get("coalesced", "false").lower() not in ("false", "0")

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
            if cursor.take("PRIMARY", "KEY"):
                self.key = key_names(cursor)
            elif cursor.take("SETTINGS"):
                self._settings()
            elif (notices := take_clause(cursor)) is not None:
                self.notices += notices
            elif cursor.take("ENGINE", "=", "STREAM") or cursor.take("ENGINE", "=", "MUTABLESTREAM"):
                cursor.until(*CLAUSE_WORDS)  # as SHOW CREATE of Timeplus writes it, with shards and replicas
                self.notices.append(no_effect("ENGINE", PLACED))
            elif any(cursor.take("ENGINE", "=", engine) for engine in ("MEMORY", "MERGETREE")):
                cursor.until(*CLAUSE_WORDS)
                self.notices.append(no_effect("ENGINE", "Watersmeet keeps all rows of the stream in its own files"))
            elif cursor.at("ENGINE"):
                hint = "SETTINGS mode = 'versioned_kv' and the like set how a stream keeps rows."
                raise not_supported("ENGINE of a stream", cursor.text, span_of(cursor.rest), hint=hint)
            else:
                raise cursor.error()

    def _settings(self) -> None:
        cursor = self.cursor
        while True:
            name = cursor.name(reserved=True)
            cursor.expect("=")
            start = cursor.index
            setting = name.name.lower()
            self.settings[setting] = read_value(cursor)
            self.spans[setting] = span_of(cursor.tokens[start : cursor.index])
            if (notice := setting_notice(setting)) is not None:
                self.notices.append(notice)
            elif setting not in _MEANT:
                hint = did_you_mean(setting, [*_MEANT, *storage_settings()]) or f"Set {', '.join(_MEANT)}."
                raise not_supported(f"setting {name.name} of a stream", cursor.text, name.span, hint=hint)
            if not cursor.take(","):
                return

    def _is_off(self, setting: str) -> bool:
        return self.settings.get(setting, "true").lower() in ("false", "0")

    def _check_settings(self, mode: StreamMode) -> None:
        """Raises errors of settings that change results."""
        if self._is_coalesced and mode != "mutable":
            raise self.cursor.error_at(
                self.spans["coalesced"],
                "INVALID_PARAMETER",
                f"a stream of mode {mode} can't be coalesced",
                hint="Only mutable streams update columns of a row: write CREATE MUTABLE STREAM.",
            )
        if not self._is_coalesced:
            self.notices += [no_effect(f"FAMILY {name}", FOUND) for name in self.families]
            self.families = {}
        version = self.settings.get("version_column")
        if version is None:
            return
        span = self.spans["version_column"]
        if mode in ("append", "changelog"):
            raise self.cursor.error_at(
                span,
                "INVALID_PARAMETER",
                f"a stream of mode {mode} can't have a version_column",
                hint="Versions are those of a key: write mode = 'versioned_kv', or CREATE MUTABLE STREAM.",
            )
        column = next((c for c in self.columns if c.name == version), None)
        if column is None and version != TIME_COLUMN:
            near = did_you_mean(version, [c.name for c in self.columns])
            raise self.cursor.error_at(span, "UNDEFINED_COLUMN", f'column "{version}" does not exist', hint=near)
        if column is not None and (column.nullable or column.type.is_nested or column.type.name == "jsonb"):
            detail = "It must be a number, a time or a string that can't be NULL."
            raise self.cursor.error_at(
                span, "DATATYPE_MISMATCH", f'column "{version}" can\'t be a version_column', detail=detail
            )

    def _mode(self, mutable: bool, name: str, span: Span) -> StreamMode:
        given = self.settings.get("mode", "append")
        if given not in _MODES:
            raise self.cursor.error_at(
                self.spans["mode"],
                "INVALID_PARAMETER",
                f'there is no stream mode "{given}"',
                hint="The modes are append, changelog, versioned_kv and changelog_kv; for a mutable stream write "
                "CREATE MUTABLE STREAM.",
            )
        mode: StreamMode = "mutable" if mutable else _MODES[given]
        if mode == "append" and self.key:
            reason = "a stream of mode append keeps all rows; mode = 'versioned_kv' keeps the last one of each key"
            self.notices.append(no_effect("PRIMARY KEY", reason))
        if mode == "changelog" and self.key:
            reason = "a row with _tp_delta = -1 deletes an equal row; mode = 'changelog_kv' keeps one row of each key"
            self.notices.append(no_effect("PRIMARY KEY", reason))
        if mode not in ("append", "changelog") and not self.key:
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
        families = [c for f in self.families.values() for c in f if c.name != TIME_COLUMN]
        named = [*self.key, *families, *[n for i in self.indexes for n in (*i.columns, *i.storing)]]
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
    "DUPLICATE_TYPE": 57,
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


#: Objects of Timeplus that Watersmeet lacks, each with the way round.
_OBJECTS_LACKING: Final = {
    "ALERT": "Subscribe to a materialized view: its rows are delivered to the program that acts.",
    "DISK": "The database is in one directory or object store.",
    "INPUT": "Read a topic by CREATE EXTERNAL STREAM, or INSERT the rows over the server's protocol.",
    "STORAGE POLICY": "The database is in one directory or object store.",
    "TASK": "A materialized view is always up to date.",
}

LACKING: Final[ddl.Lacking] = {
    **ddl.LACKING,
    **accepted.LACKING,
    "CREATE TABLE": "CREATE STREAM makes a stream, CREATE MUTABLE STREAM a table with a primary key.",
    "CREATE TEMPORARY": "Create it without that word, and drop it when it is no longer needed.",
    **{f"{verb} {word}": hint for word, hint in _OBJECTS_LACKING.items() for verb in ("CREATE", "DROP")},
}
CREATES: Final[Mapping[str, ddl.Reader]] = {
    **{words: reader for words, reader in ddl.CREATES.items() if words != "TABLE"},
    "STREAM": lambda cursor, base: _Stream(cursor, base).read(mutable=False),
    "MUTABLE STREAM": lambda cursor, base: _Stream(cursor, base).read(mutable=True),
    "DATABASE": ddl.read_create_schema,
    **function_readers(lambda cursor: read_column_type(cursor).type, "AGGREGATE FUNCTION", "lists"),
    "REMOTE FUNCTION": read_remote,
    "VIEW": partial(_read_view, materialized=False),
    "MATERIALIZED VIEW": partial(_read_view, materialized=True),
}
DROPS: Final[Mapping[str, DropWord | ddl.Reader]] = {
    **ddl.DROPS,
    "DATABASE": ddl.read_drop_schema,
    "STREAM": "stream",
    "EXTERNAL STREAM": "stream",
    "EXTERNAL TABLE": "stream",
    "RANDOM STREAM": "stream",
    "VIEW": "any view",
    "DICTIONARY": "dictionary",
    "FORMAT SCHEMA": "format schema",
    "NAMED COLLECTION": "named collection",
}

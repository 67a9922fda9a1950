"""CREATE and DROP of topics in Lenses, and the processors that write them.

Lenses, "Joins", all listings; "Key decoder types", "Co-partitioning".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from sqlglot import exp
from sqlglot.tokens import Token, TokenType

from watersmeet.algebra.timewindows import timeout_us
from watersmeet.catalog import KEY_COLUMN, DropWord
from watersmeet.dialects.lenses.grammar import RecordSelect
from watersmeet.dialects.statements import alter, ddl
from watersmeet.dialects.tree.definitions import CreateProcessor, CreateTopic
from watersmeet.dialects.tree.queries import query_of
from watersmeet.dialects.tree.sqltypes import read_type
from watersmeet.dialects.tree.statements import Accepted, Name, Refused, Show, StartProcessor, Statement, StopProcessor
from watersmeet.dialects.tree.tokens import Cursor, not_supported, read_new_name, read_value, span_of
from watersmeet.errors import Span, did_you_mean
from watersmeet.formats.payloads import split_window, windowed_key
from watersmeet.values.types import BIGINT, INTEGER, SMALLINT, TIMESTAMP, VARCHAR, Field, SqlType

#: Storage formats of a key or a value. For topics in the database only their names matter: joined keys must have the
#: same (LS-31).
FORMATS: Final = ("AVRO", "JSON", "STRING", "INT", "LONG", "BYTES", "CSV", "XML", "PROTOBUF")

#: The formats in which a key may contain a window.
_IN_WINDOWS: Final = ("INT", "LONG", "STRING", "BYTES", "JSON", "AVRO")

#: The formats that determine the type of their keys.
_KEY_TYPES: Final = {"STRING": VARCHAR, "INT": INTEGER, "LONG": BIGINT}

#: The property for the idle time after which a topic no longer holds back other topics.
IDLE_TIMEOUT: Final = "watermark_idle_timeout"


@dataclass(frozen=True)
class _Properties:
    """The PROPERTIES of a topic; missing ones are None."""

    partitions: int | None = None
    replication: int | None = None
    compacted: bool | None = None
    idle_us: int | None = None


def _read_topic(cursor: Cursor, base: dict[str, Any]) -> Statement:
    """Reads CREATE TABLE; the cursor stands after TABLE."""
    made = read_new_name(cursor, base)
    columns, places = _columns(cursor)
    cursor.expect("FORMAT", "(")
    key_format = read_format(cursor, of_key=True)
    cursor.expect(",")
    value_format = read_format(cursor)
    cursor.expect(")")
    properties = _properties(cursor)
    cursor.end()
    for i, column in enumerate(columns):
        if column.name in [c.name for c in columns[:i]]:
            raise cursor.error_at(
                places[i].span, "DUPLICATE_COLUMN", f'column "{column.name}" specified more than once'
            )
        if column.name.startswith(("@", "_")) and column.name != KEY_COLUMN:
            raise cursor.error_at(
                places[i].span,
                "INVALID_NAME",
                f'a field can\'t be named "{column.name}"',
                hint="Such names are reserved for record metadata: _key, _value, _meta.",
            )
    if not any(c.name == KEY_COLUMN for c in columns):
        own_format = split_window(key_format)[1]
        if own_format not in _KEY_TYPES:
            raise cursor.error_at(
                made["name_span"],
                "SYNTAX_ERROR",
                f"the topic {made['name']} needs a key",
                detail=f"{key_format} does not determine its type.",
                hint="Declare it: _key int.",
            )
        columns = [Field(KEY_COLUMN, _KEY_TYPES[own_format], False), *columns]
    window = split_window(key_format)[0]
    if window is not None:
        columns = [replace(c, type=windowed_key(c.type, window)) if c.name == KEY_COLUMN else c for c in columns]
    return CreateTopic(
        **made,
        columns=tuple(columns),
        key_format=key_format,
        value_format=value_format,
        partitions=properties.partitions,
        replication=properties.replication,
        compacted=properties.compacted,
        idle_us=properties.idle_us,
    )


def read_format(cursor: Cursor, *, of_key: bool = False) -> str:
    """The name of a format. of_key: whether it is the format of a key, which may have windows. Raises
    UNDEFINED_OBJECT.
    """
    name = cursor.name(reserved=True)
    window, of_value = split_window(name.name.upper())
    if of_key and window is not None and of_value in _IN_WINDOWS:
        return name.name.upper()
    if name.name.upper() not in FORMATS:
        raise cursor.error_at(
            name.span,
            "UNDEFINED_OBJECT",
            f'format "{name.name}" does not exist',
            hint=did_you_mean(name.name.upper(), FORMATS) or "The formats are: " + ", ".join(FORMATS) + ".",
        )
    return name.name.upper()


def read_stop(cursor: Cursor, base: dict[str, Any]) -> Statement:
    """Reads STOP PROCESSOR or DROP PROCESSOR with the name of the topic. The cursor stands after the first word."""
    cursor.expect("PROCESSOR")
    return StopProcessor(**base, name=_last_name(cursor))


def read_start(cursor: Cursor, base: dict[str, Any]) -> Statement | None:
    """Reads START PROCESSOR; returns None for START TRANSACTION. The cursor stands after START."""
    return StartProcessor(**base, name=_last_name(cursor)) if cursor.take("PROCESSOR") else None


def _last_name(cursor: Cursor) -> Name:
    name = cursor.relation_name()
    cursor.end()
    return name


def _columns(cursor: Cursor) -> tuple[list[Field], list[Name]]:
    """`(_key int, id int, name string null, address.city string, …)`: every record with a value contains the fields
    that are not declared NULL. A field with fields of its own is an object; it is required if one of its fields is.
    """
    columns: list[Field] = []
    places: list[Name] = []
    objects: set[str] = set()
    cursor.expect("(")
    while True:
        name = cursor.name(reserved=True)
        path = []
        while cursor.take("."):
            path.append(cursor.name(reserved=True))
        kind = _type(cursor)
        nullable = cursor.take("NULL")
        if not nullable:
            cursor.take("NOT", "NULL")
        same = next((i for i, c in enumerate(columns) if c.name == name.name), None)
        if path and same is not None and name.name in objects:
            old = columns[same]
            columns[same] = Field(name.name, _with_field(old.type, path, kind, cursor), old.nullable and nullable)
        else:
            made = _with_field(SqlType("struct"), path, kind, cursor) if path else kind
            columns.append(Field(name.name, made, nullable))
            places.append(name)
        if path:
            objects.add(name.name)
        if not cursor.take(","):
            break
    cursor.expect(")")
    return columns, places


#: Types of Lenses that other dialects lack.
_TYPES: Final = {"LONG": BIGINT, "DATETIME": TIMESTAMP, "BYTE": SMALLINT, "SHORT": SMALLINT}


def _type(cursor: Cursor) -> SqlType:
    """Reads the type of a field, such as `long`, `datetime`, `int[]` or `array<string>`."""
    known = next((kind for word, kind in _TYPES.items() if cursor.take(word)), None)
    if known is None and cursor.at("ARRAY", "<"):
        cursor.expect("ARRAY", "<")
        element = _type(cursor)
        cursor.expect(">")
        known = SqlType("array", element=element)
    if known is None:
        return read_type(cursor)
    while cursor.take("[", "]"):
        known = SqlType("array", element=known)
    return known


def read_column(cursor: Cursor) -> tuple[Field, dict[str, Any]]:
    """Reads a field of ALTER TABLE ADD: `name type [null]`."""
    name = cursor.name(reserved=True)
    kind = _type(cursor)
    return Field(name.name, kind, cursor.take("NULL")), {}


def read_alter(cursor: Cursor, base: dict[str, Any]) -> Statement:
    """Reads ALTER TABLE; the cursor stands after ALTER."""
    if cursor.take("TABLE"):
        found = alter.altered(cursor, base, "topic", read_column)
        if found is not None:
            return found
    hint = "ALTER TABLE topic ADD field type is supported. INSERT INTO other SELECT STREAM … changes the other fields."
    span = span_of(cursor.tokens[: min(cursor.index + 2, len(cursor.tokens))])
    return Refused(**base, error=not_supported("ALTER of a topic", cursor.text, span, hint=hint))


def read_show(cursor: Cursor, base: dict[str, Any]) -> Statement | None:
    """Reads SHOW VIEW name, which shows its definition, SHOW ALL QUERIES, and SHOW VIRTUAL TABLES, which lists views;
    None for other SHOW. The cursor stands after SHOW.
    """
    if cursor.take("VIEW"):
        return Show(**base, what="create view", name=_last_name(cursor))
    what = "queries" if cursor.take("ALL", "QUERIES") else "views" if cursor.take("VIRTUAL", "TABLES") else None
    if what is None:
        return None
    cursor.end()
    return Show(**base, what=what)


def read_use(cursor: Cursor, base: dict[str, Any]) -> Statement:
    """Reads USE, which selects a connection in Lenses; the cursor stands after USE."""
    cursor.relation_name()
    cursor.end()
    return Accepted(**base, command="USE", notice="USE changes nothing: all topics are in one place")


def _with_field(kind: SqlType, path: Sequence[Name], leaf: SqlType, cursor: Cursor) -> SqlType:
    """The type of an object with one more field, at any depth. DUPLICATE_COLUMN for an existing field."""
    first, rest = path[0], path[1:]
    fields = dict(kind.fields)
    old = fields.get(first.name)
    if old is not None and (not rest or old.name != "struct"):
        raise cursor.error_at(first.span, "DUPLICATE_COLUMN", f'field "{first.name}" specified more than once')
    fields[first.name] = leaf if not rest else _with_field(old or SqlType("struct"), rest, leaf, cursor)
    return SqlType("struct", fields=tuple(fields.items()))


def _properties(cursor: Cursor) -> _Properties:
    """`PROPERTIES (partitions=4, …)`.

    FEATURE_NOT_SUPPORTED for properties other than those of the document, INVALID_PARAMETER for invalid values.
    """
    found = _Properties()
    said: set[str] = set()
    if not cursor.take("PROPERTIES"):
        return found
    cursor.expect("(")
    while True:
        start = cursor.index
        name = "".join(t.text for t in cursor.until("=", ",", ")")).lower()
        span = span_of(cursor.tokens[start : max(cursor.index, start + 1)])
        if name in said:
            raise cursor.error_at(span, "SYNTAX_ERROR", f"the property {name} is given twice")
        said.add(name)
        cursor.expect("=")
        start = cursor.index
        value = read_value(cursor)
        value_span = span_of(cursor.tokens[start : cursor.index])
        if name == "partitions":
            found = replace(found, partitions=_number(value, "partitions", cursor, value_span))
        elif name == IDLE_TIMEOUT:
            found = replace(found, idle_us=_timeout(value, cursor, value_span))
        elif name == "replication":
            found = replace(found, replication=_number(value, "copies", cursor, value_span))
        elif name == "compacted":
            if value.lower() not in ("true", "false"):
                raise cursor.error_at(value_span, "INVALID_PARAMETER", f'compacted is true or false, not "{value}"')
            found = replace(found, compacted=value.lower() == "true")
        else:
            raise not_supported(
                f"property {name} of a topic",
                cursor.text,
                span,
                hint=did_you_mean(name, ("partitions", "replication", "compacted", IDLE_TIMEOUT)),
            )
        if not cursor.take(","):
            break
    cursor.expect(")")
    return found


def _timeout(value: str, cursor: Cursor, span: Span) -> int:
    found = timeout_us(value)
    if found is None:
        raise cursor.error_at(
            span,
            "INVALID_PARAMETER",
            f'{IDLE_TIMEOUT} can\'t be "{value}"',
            hint="It must be an interval above zero of fixed length, such as '10s'.",
        )
    return found


def _number(value: str, what: str, cursor: Cursor, span: Span) -> int:
    if not value.isdecimal() or not int(value):
        raise cursor.error_at(
            span,
            "INVALID_PARAMETER",
            f'a topic can\'t have "{value}" {what}',
            hint="It must be a whole number above 0.",
        )
    return int(value)


def goes_on(tokens: Sequence[Token]) -> bool:
    """True for `WITH a AS (…)` without a query after it."""
    if not tokens or tokens[0].token_type != TokenType.WITH:
        return False
    depth = 0
    for token in tokens[1:]:
        depth += (token.token_type == TokenType.L_PAREN) - (token.token_type == TokenType.R_PAREN)
        if depth == 0 and token.token_type in (TokenType.SELECT, TokenType.INSERT):
            return False
    return True


def read_insert(cursor: Cursor, base: dict[str, Any]) -> Statement | None:
    """Reads an INSERT of SELECT STREAM or TABLE. For an INSERT of rows it returns None and leaves the cursor at INSERT.

    Raises INVALID_PARAMETER for parameters, because the text of a processor is stored, and FEATURE_NOT_SUPPORTED for a
    list of fields.
    """
    start = cursor.index
    cursor.expect("INSERT", "INTO")
    target = cursor.relation_name()
    if cursor.at("("):
        _check_listed(cursor)
        cursor.index = start
        return None
    stored = cursor.take("STORE")
    key = read_format(cursor, of_key=True) if stored and cursor.take("KEY", "AS") else None
    value = read_format(cursor) if stored and cursor.take("VALUE", "AS") else None
    if stored and key is None and value is None:
        raise cursor.error(detail="KEY AS or VALUE AS was expected here.")
    if cursor.at("WITH") or cursor.at("SELECT"):
        tree = query_of(cursor)
        query = tree.find(exp.Select) if not isinstance(tree, exp.Select) else tree
        if isinstance(query, RecordSelect):
            if cursor.parameters:
                raise cursor.error_at(
                    target.span, "INVALID_PARAMETER", "a processor takes no parameters", hint="Write the values out."
                )
            return CreateProcessor(
                **base,
                name=target.name,
                name_span=target.span,
                schema=target.schema,
                query=tree,
                key_format=key,
                value_format=value,
            )
    if stored:
        raise cursor.error(detail="SELECT STREAM or SELECT TABLE was expected here.")
    cursor.index = start
    return None


def _check_listed(cursor: Cursor) -> None:
    """FEATURE_NOT_SUPPORTED for SELECT STREAM or TABLE after the list of fields at which the cursor stands."""
    first = cursor.index
    while not cursor.done and not cursor.take(")"):
        cursor.index += 1
    if cursor.at("SELECT", "STREAM") or cursor.at("SELECT", "TABLE"):
        raise not_supported(
            "a list of fields before SELECT STREAM or TABLE",
            cursor.text,
            span_of(cursor.tokens[first : cursor.index]),
            hint="Name the fields with AS; they are matched by name.",
        )


def _no_other(cursor: Cursor, base: dict[str, Any]) -> Statement:
    word = cursor.current.text.upper() if cursor.current else ""
    span = span_of(cursor.tokens[: cursor.index + 1])
    hint = "CREATE TABLE makes a topic; INSERT INTO … SELECT STREAM a processor."
    if word == "SYNONYM":
        hint = "Write CREATE VIEW name AS SELECT * FROM topic, or use the name of the topic."
    return Refused(**base, error=not_supported(f"CREATE {word}".strip(), cursor.text, span, hint=hint))


LACKING: Final[ddl.Lacking] = {
    **ddl.LACKING,
    "DROP SYNONYM": "There are no synonyms: a view is dropped by DROP VIEW.",
    "DROP TOPIC": "DROP TABLE drops a topic.",
}
#: The empty tuple stands for all other objects.
CREATES: Final[Mapping[str, ddl.Reader]] = {"TABLE": _read_topic, "VIEW": ddl.CREATES["VIEW"], "": _no_other}
DROPS: Final[Mapping[str, DropWord | ddl.Reader]] = {
    **ddl.DROPS,
    "TABLE": "topic",
    "PROCESSOR": lambda cursor, base: StopProcessor(**base, name=_last_name(cursor)),
}

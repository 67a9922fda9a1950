"""ALTER of relations: ADD, DROP, ALTER and RENAME COLUMN, RENAME TO, SET SCHEMA, SWAP WITH.

RisingWave, "ALTER TABLE", "ALTER SOURCE", "ALTER VIEW", "ALTER MATERIALIZED VIEW"; Timeplus, "ALTER STREAM".
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final

from sqlglot.tokens import Token, TokenType

from watersmeet.catalog import DropWord
from watersmeet.dialects.statements.constraints import OF_COLUMNS, read_altered_constraint, read_column_constraint
from watersmeet.dialects.statements.sourceclauses import message_format, read_encoded
from watersmeet.dialects.statements.tables import read_identity, read_known_type, read_serial
from watersmeet.dialects.tree.definitions import (
    AddColumn,
    AlterColumn,
    AlterConnection,
    AlterConnector,
    AlterFormat,
    AlterSink,
    DropColumn,
    NamedType,
    RedefineView,
    RefreshSchema,
    RenameColumn,
    RenameRelation,
    SetSchema,
    StartSink,
    SwapNames,
)
from watersmeet.dialects.tree.queries import expression_of
from watersmeet.dialects.tree.sqltypes import read_declared
from watersmeet.dialects.tree.statements import Name, Refused, Statement, Unit
from watersmeet.dialects.tree.tokens import Cursor, not_supported, read_options, read_value, span_of
from watersmeet.errors import Span
from watersmeet.values.types import BIGINT, VARCHAR, Field

#: Reads an added column to the end of the statement: the column, and the fields of `AddColumn` that depend on its type.
ColumnReader = Callable[[Cursor], tuple[Field, dict[str, Any]]]

_KINDS: Final[dict[tuple[str, ...], DropWord]] = {
    ("TABLE",): "table",
    ("SOURCE",): "source",
    ("STREAM",): "stream",
    ("EXTERNAL", "STREAM"): "stream",
    ("EXTERNAL", "TABLE"): "stream",
    ("DICTIONARY",): "dictionary",
    ("VIEW",): "view",
    ("MATERIALIZED", "VIEW"): "materialized view",
    ("INDEX",): "index",
    ("SUBSCRIPTION",): "subscription",
    ("SINK",): "sink",
    ("CONNECTION",): "connection",
    ("SEQUENCE",): "sequence",
    ("TYPE",): "type",
    ("DOMAIN",): "domain",
}

#: The statement that changes options, for the kinds that no connector reads.
_OPTIONS_OF: Final[dict[DropWord, type[AlterConnector]]] = {"sink": AlterSink, "connection": AlterConnection}


#: Clauses of ALTER in every dialect with ALTER, and those of RisingWave.
COMMON_CLAUSES: Final = ("ADD COLUMN", "DROP COLUMN", "RENAME COLUMN", "RENAME TO", "SET SCHEMA", "SWAP WITH")
_CLAUSES: Final = (
    *COMMON_CLAUSES,
    "ALTER COLUMN",
    "ADD CONSTRAINT",
    "DROP CONSTRAINT",
    "RENAME CONSTRAINT",
    "CONNECTOR WITH",
    "FORMAT",
    "REFRESH SCHEMA",
    "SET SOURCE_RATE_LIMIT",
)


#: The first words of the clauses of which one ALTER may have several.
_FIRST_WORDS: Final = ("ADD", "ALTER", "DROP", "MODIFY", "RENAME")

_ALTERED: Final = (
    "ALTER COLUMN of a table has TYPE, SET DEFAULT, DROP DEFAULT, SET NOT NULL, DROP NOT NULL, ADD GENERATED and DROP "
    "IDENTITY."
)


@dataclass(frozen=True, kw_only=True)
class LimitSink(Statement):
    """`ALTER SINK name SET SINK_RATE_LIMIT = limit`."""

    defines: ClassVar[bool] = True
    once: ClassVar[bool] = True

    name: Name
    limit: str
    limit_span: Span
    if_exists: bool = False


@dataclass(frozen=True, kw_only=True)
class SetViewOption(Statement):
    """`ALTER MATERIALIZED VIEW name SET option = value`. Unlike other definitions it waits for no fill."""

    once: ClassVar[bool] = True

    name: Name
    option: str
    value: str
    value_span: Span
    if_exists: bool = False


#: The options of a materialized view that ALTER changes.
VIEW_OPTIONS: Final = ("backfill_rate_limit", "recompute")


def read_plain_column(cursor: Cursor) -> tuple[Field, dict[str, Any]]:
    """`name type [NULL | NOT NULL] [DEFAULT expression] [constraint …]`."""
    name = cursor.name()
    nullable, more = True, dict[str, Any]()
    serial = read_serial(cursor)
    found = read_known_type(cursor) if serial is None else (serial[0], None)
    if isinstance(found, NamedType):
        kind, more["named_type"] = VARCHAR, found
    else:
        kind = found[0]
        more |= {} if found[1] is None else {"declared_type": found[1]}
    more |= {} if serial is None else {"serial": serial[1]}
    while not cursor.done:
        if cursor.take("NOT", "NULL"):
            nullable = False
        elif cursor.take("DEFAULT"):
            first = cursor.index
            cursor.index += not cursor.at("(")  # NULL is allowed
            cursor.until("NOT", "NULL", "PRIMARY", "GENERATED", *OF_COLUMNS)
            more["declared"] = expression_of(cursor, cursor.tokens[first : cursor.index])
        elif cursor.at("GENERATED") and (identity := read_identity(cursor, kind)) is not None:
            more["serial"] = identity
        elif cursor.at("PRIMARY", "KEY") or any(map(cursor.at, OF_COLUMNS)):
            constraint = read_column_constraint(cursor, name)
            more["constraints"] = (*more.get("constraints", ()), *filter(None, [constraint]))
        elif not cursor.take("NULL"):
            word = cursor.tokens[cursor.index]
            raise not_supported(f"{word.text.upper()} on a column", cursor.text, span_of([word]))
    return Field(name.name, kind, nullable), more


#: The first words of the kinds of relations in RisingWave.
_OF_DIALECT: Final = (
    "TABLE", "SOURCE", "VIEW", "MATERIALIZED", "INDEX", "SUBSCRIPTION", "SINK", "CONNECTION", "SEQUENCE", "TYPE",
    "DOMAIN",
)  # fmt: skip


def read_alter(
    cursor: Cursor,
    base: dict[str, Any],
    read_column: ColumnReader = read_plain_column,
    kinds: Collection[str] = _OF_DIALECT,
    clauses: Sequence[str] = _CLAUSES,
) -> Statement:
    """Reads ALTER; the cursor stands after ALTER. kinds: the first words of the dialect's kinds of relations. clauses:
    those of the dialect, for hints.
    """
    if "SINK" in kinds and (found := _read_sink(cursor, base)) is not None:
        return found
    parts = parts_of(cursor)
    if len(parts) > 1:
        return _several(cursor, base, parts, lambda inner, own: read_alter(inner, own, read_column, kinds, clauses))
    of_dialect = {words: kind for words, kind in _KINDS.items() if words[0] in kinds}
    for words, kind in of_dialect.items():
        if cursor.take(*words):
            found = altered(cursor, base, kind, read_column)
            if found is None and cursor.at("ALTER"):
                return _refused(cursor, base, f"ALTER {' '.join(words)} …", _ALTERED)
            own = [f"SET {option.upper()}" for option in VIEW_OPTIONS] if kind == "materialized view" else []
            return found or _refused(cursor, base, f"ALTER {' '.join(words)} …", _supported("", [*clauses, *own]))
    return _refused(cursor, base, "ALTER", _supported("ALTER ", [" ".join(words) for words in of_dialect]))


def parts_of(cursor: Cursor) -> list[list[Token]]:
    """The tokens of one ALTER for each of its clauses `ADD COLUMN …, DROP COLUMN …`. The cursor stays where it is."""
    begin = cursor.index
    cursor.until(*_FIRST_WORDS)
    head = cursor.originals(cursor.tokens[: cursor.index])
    parts = []
    while not cursor.done:
        start = cursor.index
        cursor.until(",")
        while not (cursor.done or any(cursor.at(",", word) for word in _FIRST_WORDS)):
            cursor.index += 1
            cursor.until(",")
        parts.append(head + cursor.originals(cursor.tokens[start : cursor.index]))
        cursor.take(",")
    cursor.index = begin
    return parts or [cursor.originals(cursor.tokens)]


def _several(
    cursor: Cursor,
    base: dict[str, Any],
    parts: Sequence[Sequence[Token]],
    read: Callable[[Cursor, dict[str, Any]], Statement],
) -> Statement:
    """Reads each clause of an ALTER with several; they take effect together or not at all."""
    found = []
    for part in parts:
        inner = cursor.over(part)
        inner.index = cursor.index
        found.append(read(inner, {**base, "sql": " ".join(cursor.text[t.start : t.end + 1] for t in part)}))
    refused = next((f for f in found if isinstance(f, Refused)), None)
    return refused or Unit(**base, statements=tuple(found))


def _supported(verb: str, words: Sequence[str]) -> str:
    return f"{verb}{', '.join(words[:-1])} and {words[-1]} are supported."


def _read_sink(cursor: Cursor, base: dict[str, Any]) -> Statement | None:
    """`ALTER SINK name START`, `ALTER SINK name SET SINK_RATE_LIMIT = n`; None for others."""
    begin = cursor.index
    if not cursor.take("SINK"):
        return None
    if_exists = cursor.take("IF", "EXISTS")
    name = cursor.relation_name()
    limit = _read_limit(cursor, "SINK_RATE_LIMIT")
    if limit is not None:
        return LimitSink(**base, name=name, if_exists=if_exists, limit=limit[0], limit_span=limit[1])
    if not cursor.take("START"):
        cursor.index = begin
        return None
    cursor.end()
    return StartSink(**base, name=name, if_exists=if_exists)


def read_rename(cursor: Cursor, base: dict[str, Any]) -> Statement:
    """Reads `RENAME STREAM name TO new`; the cursor stands after RENAME."""
    cursor.expect("STREAM")
    name = cursor.relation_name()
    cursor.expect("TO")
    return _renamed(cursor, {**base, "kind": "stream", "name": name})


def altered(cursor: Cursor, base: dict[str, Any], kind: DropWord, read_column: ColumnReader) -> Statement | None:
    """The statement after the kind; None, with the cursor at it, for another clause."""
    if_exists = cursor.take("IF", "EXISTS")
    if kind == "table" and cursor.at("ONLY") and len(cursor.rest) > 2:
        cursor.take("ONLY")
    name = cursor.relation_name()
    base = {**base, "kind": kind, "name": name, "if_exists": if_exists}
    if kind == "table" and read_column is read_plain_column:
        constraint = read_altered_constraint(cursor, base)
        if constraint is not None:
            return constraint
    if cursor.take("RENAME", "TO"):
        return _renamed(cursor, base)
    if cursor.take("RENAME"):
        cursor.take("COLUMN")
        column = cursor.name()
        cursor.expect("TO")
        new = cursor.name()
        cursor.end()
        return RenameColumn(**base, column=column, new=new)
    if cursor.take("ADD"):
        cursor.take("COLUMN")
        if_not_exists = cursor.take("IF", "NOT", "EXISTS")
        rest = cursor.rest
        if not rest:
            raise cursor.error(detail="A column was expected here.")
        span = span_of(rest)
        field, more = read_column(cursor)
        cursor.end()
        return AddColumn(
            **base,
            column=field,
            column_span=span_of(rest[:1]),
            definition=cursor.text[span.start : span.end],
            if_not_exists=if_not_exists,
            **more,
        )
    if cursor.take("DROP"):
        cursor.take("COLUMN")
        if_column_exists = cursor.take("IF", "EXISTS")
        column = cursor.name()
        if not cursor.take("CASCADE"):
            cursor.take("RESTRICT")
        cursor.end()
        return DropColumn(**base, column=column, if_column_exists=if_column_exists)
    if cursor.at("ALTER") and kind == "table":
        return _read_altered_column(cursor, base)
    if kind in ("materialized view", "view") and cursor.take("AS"):
        return read_redefined(cursor, base)
    if cursor.take("SET", "SCHEMA"):
        schema = cursor.name(reserved=True)
        cursor.end()
        return SetSchema(**base, schema=schema)
    if cursor.take("SWAP", "WITH"):
        other = cursor.relation_name()
        cursor.end()
        return SwapNames(**base, other=other)
    if cursor.take("CONNECTOR", "WITH"):
        spans: dict[str, Span] = {}
        options = read_options(cursor, spans)
        cursor.end()
        return _OPTIONS_OF.get(kind, AlterConnector)(**base, options=options, spans=spans)
    if kind in ("source", "table") and cursor.take("FORMAT"):
        encoded = read_encoded(cursor)
        cursor.end()
        return AlterFormat(**base, format=message_format(encoded, cursor.text), format_span=encoded.span)
    for option in VIEW_OPTIONS if kind == "materialized view" else ():
        if (found := _read_limit(cursor, option.upper())) is not None:
            named = {n: v for n, v in base.items() if n != "kind"}
            return SetViewOption(**named, option=option, value=found[0], value_span=found[1])
    if (found := _read_limit(cursor, "SOURCE_RATE_LIMIT")) is not None:
        limit = {"source_rate_limit": found[0]}
        return AlterConnector(
            **base, options=limit, spans=dict.fromkeys(limit, found[1]), clause="SET SOURCE_RATE_LIMIT"
        )
    if cursor.take("REFRESH", "SCHEMA"):
        cursor.end()
        return RefreshSchema(**base)
    return None


def read_redefined(cursor: Cursor, base: dict[str, Any]) -> RedefineView:
    """Reads the new query of a view, up to the end."""
    words = cursor.rest
    if not words:
        raise cursor.error(detail="A query was expected here.")
    cursor.index = len(cursor.tokens)
    return RedefineView(**base, query=span_of(words))


def _read_altered_column(cursor: Cursor, base: dict[str, Any]) -> Statement | None:
    """Reads `ALTER [COLUMN] column …` of a table; None for other changes."""
    begin = cursor.index
    cursor.expect("ALTER")
    cursor.take("COLUMN")
    base = {**base, "column": cursor.name()}
    if cursor.take("TYPE") or cursor.take("SET", "DATA", "TYPE"):
        words = cursor.rest
        kind, declared_type = read_declared(cursor)
        text = _text_of(cursor, words)
        using, is_cast = "", True
        if cursor.at("USING"):
            using, is_cast = _read_using(cursor, base["column"], words[: len(words) - len(cursor.rest)])
        cursor.end()
        change = AlterColumn(**base, clause="TYPE", type=kind, declared_type=declared_type, type_text=text)
        return replace(change, using=using, is_cast=is_cast)
    if cursor.take("SET", "DEFAULT"):
        words = cursor.rest
        if not words:
            raise cursor.error(detail="An expression was expected here.")
        cursor.index = len(cursor.tokens)
        declared = expression_of(cursor, words)
        return AlterColumn(**base, clause="SET DEFAULT", declared=declared, default_text=_text_of(cursor, words))
    if cursor.take("DROP", "IDENTITY"):
        if_identity = cursor.take("IF", "EXISTS")
        cursor.end()
        return AlterColumn(**base, clause="DROP IDENTITY", if_identity=if_identity)
    if cursor.take("ADD"):
        words = cursor.rest
        serial = read_identity(cursor, BIGINT)
        if serial is not None:
            cursor.end()
            return AlterColumn(**base, clause="ADD GENERATED", serial=serial, serial_text=_text_of(cursor, words))
        cursor.index = begin
        return None
    for clause, nullable in (("DROP DEFAULT", None), ("SET NOT NULL", False), ("DROP NOT NULL", True)):
        if cursor.take(*clause.split()):
            cursor.end()
            return AlterColumn(**base, clause=clause, nullable=nullable)
    cursor.index = begin
    return None


def _read_using(cursor: Cursor, column: Name, kind: Sequence[Token]) -> tuple[str, bool]:
    """Reads `USING expression` to the end: its text, and whether it is `column::type`. kind: the tokens of the type."""
    cursor.expect("USING")
    words = written = cursor.rest
    if not words:
        raise cursor.error(detail="An expression was expected here.")
    cursor.index = len(cursor.tokens)
    expression_of(cursor, words)
    while len(written) > 1 and (written[0].text, written[-1].text) == ("(", ")"):
        written = written[1:-1]
    if [t.text.upper() for t in written[:2]] == ["CAST", "("] and written[-1].text == ")":
        written = [t if t.text.upper() != "AS" else Token(TokenType.DCOLON, "::") for t in written[2:-1]]
    is_column = bool(written) and written[0].text.lower() == column.name.lower()
    rest = [t.text.lower() for t in written[1:]]
    is_cast = is_column and (not rest or rest == ["::", *(t.text.lower() for t in kind)])
    return _text_of(cursor, words), is_cast


def _text_of(cursor: Cursor, words: Sequence[Token]) -> str:
    """The text of tokens up to the cursor."""
    span = span_of(words[: len(words) - len(cursor.rest)])
    return cursor.text[span.start : span.end]


def _read_limit(cursor: Cursor, name: str) -> tuple[str, Span] | None:
    """Reads `SET name {= | TO} value` to the end: the value and the span of the clause from the name on; None for other
    clauses.
    """
    if not cursor.take("SET", name):
        return None
    start = cursor.index - 1
    if not cursor.take("TO"):
        cursor.expect("=")
    value = read_value(cursor)
    span = span_of(cursor.tokens[start : cursor.index])
    cursor.end()
    return value, span


def _renamed(cursor: Cursor, base: dict[str, Any]) -> Statement:
    new = cursor.name()
    if cursor.at("."):
        raise not_supported("RENAME into another schema", cursor.text, span_of(cursor.rest))
    cursor.end()
    return RenameRelation(**base, new=new)


def _refused(cursor: Cursor, base: dict[str, Any], words: str, hint: str) -> Statement:
    if cursor.done:
        raise cursor.error(hint=hint)
    word = cursor.tokens[cursor.index]
    fields = {n: base[n] for n in ("text", "sql", "span")}
    span = span_of([*cursor.tokens[:1], word])
    return Refused(**fields, error=not_supported(f"{words} {word.text.upper()}", cursor.text, span, hint=hint))

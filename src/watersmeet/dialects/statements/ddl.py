"""Reads CREATE and DROP in every dialect by tables of supported and unsupported words."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, Literal, TypeVar

from sqlglot.tokens import Token, TokenType

from watersmeet.catalog import TEMPORARY, Conflict, DropWord
from watersmeet.dialects.statements.sourceclauses import (
    RECEIVING,
    WEBHOOK,
    CreateCapturedTable,
    CreateReceivedSource,
    CreateReceivedTable,
    CreateWebhookTable,
)
from watersmeet.dialects.statements.tables import Definition
from watersmeet.dialects.tree.definitions import (
    Create,
    CreateIndex,
    CreateMaterializedView,
    CreateRelation,
    CreateSchema,
    CreateSource,
    CreateTable,
    CreateView,
    Drop,
    DropSchema,
    Emit,
)
from watersmeet.dialects.tree.queries import query_of
from watersmeet.dialects.tree.statements import Name, Refused, Statement
from watersmeet.dialects.tree.tokens import (
    Cursor,
    not_supported,
    read_list,
    read_new_name,
    read_options,
    span_of,
    take_cascade,
)

#: Classes of operators of PostgreSQL's indexes, which change no result.
OPERATOR_CLASSES: Final = ("TEXT_PATTERN_OPS", "VARCHAR_PATTERN_OPS", "BPCHAR_PATTERN_OPS")

#: Reads a statement; the cursor stands after its words.
Reader = Callable[[Cursor, dict[str, Any]], Statement]
#: Unsupported statements of a dialect's system. Maps their words to the hint, or to a function that makes it from the
#: text.
Lacking = Mapping[str, str | Callable[[str], str] | None]

_EMITS: Final[dict[tuple[str, ...], Literal["changes", "window close", "arrival"]]] = {
    ("EMIT", "CHANGES"): "changes",
    ("EMIT", "ON", "WINDOW", "CLOSE"): "window close",
    ("EMIT", "ON", "ARRIVAL"): "arrival",
}

_INSTEAD_OF_TEMPORARY: Final = "Create it without that word, and drop it when it is no longer needed."


#: Unsupported objects of RisingWave and PostgreSQL.
LACKING: Final[Lacking] = {
    **dict.fromkeys(
        f"{verb} {word}" for verb in ("CREATE", "DROP") for word in ("SINK", "FUNCTION", "AGGREGATE", "DATABASE")
    ),
    **dict.fromkeys(
        f"CREATE {word}" for word in ("TYPE", "SEQUENCE", "UNIQUE", "EXTENSION", "TRIGGER", "RULE", "POLICY")
    ),
    **dict.fromkeys(("CREATE TEMPORARY", "CREATE TEMP"), _INSTEAD_OF_TEMPORARY),
}
_SUPPORTED: Final = "TABLE, SOURCE, VIEW, MATERIALIZED VIEW, INDEX and SCHEMA are supported."

T = TypeVar("T")


def taken(cursor: Cursor, table: Mapping[str, T]) -> T | None:
    """The entry whose words match at the cursor, the one with the most words; moves the cursor past them."""
    for words in sorted(table, key=lambda w: -len(w.split())):
        if cursor.take(*words.split()):
            return table[words]
    return None


def refused_words(cursor: Cursor, base: dict[str, Any], verb: str, lacking: Lacking, supported: str) -> Refused | None:
    """A statement that raises an error if `lacking` contains `verb` and the next words; else None.

    The cursor stands after `verb`. supported: the hint of statements without their own.
    """
    for words, hint in lacking.items():
        first, *rest = words.split()
        if first == verb and rest and cursor.at(*rest):
            span = span_of([cursor.tokens[0], cursor.tokens[cursor.index + len(rest) - 1]])
            instead = hint(cursor.text) if callable(hint) else hint
            return Refused(**base, error=not_supported(words, cursor.text, span, hint=instead or supported))
    return None


def read_create(
    cursor: Cursor, base: dict[str, Any], readers: Mapping[str, Reader], lacking: Lacking, supported: str
) -> Statement:
    """Reads CREATE; the cursor stands after CREATE. readers, lacking: the tables of the dialect, by words. supported:
    the hint for other words.
    """
    reader = taken(cursor, readers)
    if reader is not None:
        return reader(cursor, base)
    found = refused_words(cursor, base, "CREATE", lacking, supported)
    if found is not None:
        return found
    raise cursor.error(hint=supported)


def read_drop(
    cursor: Cursor, base: dict[str, Any], kinds: Mapping[str, DropWord | Reader], lacking: Lacking, supported: str
) -> Statement:
    """Reads DROP; the cursor stands after DROP. kinds, lacking: the tables of the dialect, by words. supported: the
    hint for other words.
    """
    kind = taken(cursor, kinds)
    if callable(kind):
        return kind(cursor, base)
    if kind is not None:
        if_exists = cursor.take("IF", "EXISTS")
        names = read_list(cursor, cursor.relation_name)
        return Drop(**base, kind=kind, names=names, if_exists=if_exists, cascade=take_cascade(cursor))
    found = refused_words(cursor, base, "DROP", lacking, supported)
    if found is not None:
        return found
    raise cursor.error(hint=supported)


def read_table(
    cursor: Cursor, base: dict[str, Any], defining: Callable[[Cursor], Definition] = Definition
) -> Statement:
    """Reads CREATE TABLE; the cursor stands after TABLE."""
    without_data = False
    made = read_new_name(cursor, base)
    definition = defining(cursor)
    definition.read_columns()
    skip_description(cursor)
    definition.read_clauses()
    on_commit = _read_on_commit(cursor, made)
    query = None
    if cursor.take("AS"):
        if definition.columns:
            raise cursor.error(detail="CREATE TABLE … AS takes column names without types.")
        without_data = _cut_data(cursor, {**base})
        query = query_of(cursor)
        if definition.options or definition.primary_key:
            definition.refuse("CREATE TABLE … AS with options or a primary key", made["name_span"])
    elif definition.bare_names:
        raise definition.no_type()
    elif not definition.columns and "connector" not in definition.options and definition.origin is None:
        raise cursor.error_at(made["name_span"], "SYNTAX_ERROR", "a table needs columns")
    if definition.refusal:
        return Refused(**base, error=definition.refusal)
    rule = definition.conflict if definition.primary_key and definition.conflict != Conflict() else None
    made |= {**definition.fields(), "append_only": definition.append_only, "conflict": rule}
    checked = [c for c in definition.constraints if c.kind != "primary key"]
    if checked and (definition.origin is not None or "connector" in definition.options):
        what = f"{checked[0].kind.upper()} in a table that a connector fills"
        return Refused(**base, error=not_supported(what, cursor.text, checked[0].span))
    if definition.origin is not None:
        return CreateCapturedTable(**made, origin=definition.origin)
    if query is None and definition.options.get("connector", "").lower() == WEBHOOK:
        return CreateWebhookTable(**made, condition=definition.condition)
    if query is None and definition.options.get("connector", "").lower() in RECEIVING:
        return CreateReceivedTable(**made)
    return CreateTable(
        **made,
        query=query,
        column_names=tuple(definition.bare_names),
        constraints=tuple(definition.constraints),
        rejects_duplicates=definition.rejects_duplicates,
        on_commit=on_commit,
        without_data=without_data,
    )


def _read_on_commit(cursor: Cursor, made: Mapping[str, Any]) -> Literal["preserve rows", "delete rows", "drop"]:
    """Reads ON COMMIT of a temporary table."""
    start = cursor.index
    if not cursor.take("ON", "COMMIT"):
        return "preserve rows"
    is_temporary = made.get("temporary") or made["schema"] == TEMPORARY
    found: Literal["preserve rows", "delete rows", "drop"] = "preserve rows"
    if cursor.take("DROP"):
        found = "drop"
    elif cursor.take("DELETE", "ROWS"):
        found = "delete rows"
    else:
        cursor.expect("PRESERVE", "ROWS")
    if not is_temporary:
        span, message = span_of(cursor.tokens[start : cursor.index]), "ON COMMIT can only be used on temporary tables"
        raise cursor.error_at(span, "INVALID_PARAMETER", message)
    return found


def read_temporary(cursor: Cursor, base: dict[str, Any]) -> Statement:
    """Reads CREATE TEMP TABLE and VIEW; the cursor stands after TEMP."""
    base = {**base, "temporary": True}
    if cursor.take("TABLE"):
        found = read_table(cursor, base)
    elif cursor.take("VIEW"):
        found = _read_view(cursor, base)
    else:
        raise cursor.error(hint="CREATE TEMP TABLE and CREATE TEMP VIEW are supported.")
    if isinstance(found, Create) and found.schema not in (None, TEMPORARY):
        message = "cannot create temporary relation in non-temporary schema"
        raise cursor.error_at(found.name_span, "INVALID_PARAMETER", message)
    if isinstance(found, CreateRelation) and (type(found) is not CreateTable or "connector" in found.options):
        what = "a temporary table with a connector"
        return Refused(**_plain(base), error=not_supported(what, cursor.text, found.name_span))
    return found


def _plain(base: dict[str, Any]) -> dict[str, Any]:
    return {n: base[n] for n in ("text", "sql", "span")}


def read_select_into(cursor: Cursor, base: dict[str, Any]) -> Statement | None:
    """Reads `SELECT … INTO [TEMP] name …` as CREATE TABLE … AS; None for other queries. The cursor stands at SELECT."""
    tokens, depth, place = cursor.rest, 0, None
    for index, token in enumerate(tokens):
        depth += (token.token_type == TokenType.L_PAREN) - (token.token_type == TokenType.R_PAREN)
        is_word = token.text.upper() == "INTO" and token.token_type not in (TokenType.IDENTIFIER, TokenType.STRING)
        if depth == 0 and is_word and tokens[index - 1].text.upper() not in ("AS", "."):
            place = index
            break
    if place is None:
        return None
    inner = cursor.over(cursor.originals(tokens[place + 1 :]))
    temporary = inner.take("TEMP") or inner.take("TEMPORARY")
    inner.take("TABLE")
    name = inner.relation_name()
    query = query_of(cursor)
    query.set("into", None)
    word = "TEMP TABLE" if temporary else "TABLE"
    written = cursor.text[name.span.start : name.span.end]
    head, end = cursor.text[tokens[0].start : tokens[place].start], base["span"].end
    sql = f"CREATE {word} {written} AS {head}{cursor.text[name.span.end : end].lstrip()}"
    made: dict[str, Any] = {**base, "sql": sql, "name": name.name, "name_span": name.span, "schema": name.schema}
    return CreateTable(**made, temporary=bool(temporary), columns=(), query=query)


def _read_source(cursor: Cursor, base: dict[str, Any]) -> Statement:
    made = read_new_name(cursor, base)
    definition = Definition(cursor)
    definition.read_columns()
    definition.read_clauses()
    cursor.end()
    if definition.bare_names:
        raise definition.no_type()
    for constraint in definition.constraints:
        if constraint.kind != "primary key":
            definition.refuse(f"{constraint.kind.upper()} in a source", constraint.span)
    if definition.refusal:
        return Refused(**base, error=definition.refusal)
    if definition.options.get("connector", "").lower() in RECEIVING:
        return CreateReceivedSource(**made, **definition.fields())
    return CreateSource(**made, **definition.fields())


def _read_view(cursor: Cursor, base: dict[str, Any]) -> Statement:
    fields, emit = _view(cursor, base)
    if emit is not None:
        return Refused(**base, error=not_supported("EMIT in a view that is not materialized", cursor.text, emit.span))
    return CreateView(**fields)


def read_materialized_view(cursor: Cursor, base: dict[str, Any]) -> Statement:
    """Reads CREATE MATERIALIZED VIEW; the cursor stands after VIEW."""
    without_data = _cut_data(cursor, base)
    fields, emit = _view(cursor, base)
    return CreateMaterializedView(**fields, emit=emit, without_data=without_data)


def _cut_data(cursor: Cursor, base: dict[str, Any]) -> bool:
    """Removes WITH [NO] DATA from the end of a statement and of its text. Returns whether it was NO DATA."""
    for words in (("WITH", "DATA"), ("WITH", "NO", "DATA")):
        if tuple(t.text.upper() for t in cursor.rest[-len(words) :]) == words:
            ends = cursor.tokens[-len(words)].start - base["span"].start
            base["sql"] = base["sql"][:ends].rstrip()
            cursor.tokens = cursor.tokens[: -len(words)]
            return "NO" in words
    return False


def cut_emit(tokens: Sequence[Token]) -> tuple[Sequence[Token], Emit | None]:
    """The tokens of a query without its EMIT clause, and that clause."""
    for words, mode in _EMITS.items():
        if tuple(t.text.upper() for t in tokens[-len(words) :]) == words:
            return tokens[: -len(words)], Emit(mode, span_of(tokens[-len(words) :]))
    return tokens, None


def _view(cursor: Cursor, base: dict[str, Any]) -> tuple[dict[str, Any], Emit | None]:
    """The fields of a view's statement, and its EMIT clause."""
    made = read_new_name(cursor, base)
    names: list[Name] = list(cursor.names()) if cursor.at("(") else []
    for i, column in enumerate(names):
        if column.name in [n.name for n in names[:i]]:
            raise cursor.error_at(column.span, "DUPLICATE_COLUMN", f'column "{column.name}" specified more than once')
    options = read_options(cursor) if cursor.take("WITH") else {}
    skip_description(cursor)
    cursor.expect("AS")
    tokens, emit = cut_emit(cursor.rest)
    if not tokens:
        raise cursor.error()
    made |= {"query": query_of(cursor, tokens), "column_names": tuple(n.name for n in names), "options": options}
    return made, emit


def skip_description(cursor: Cursor) -> None:
    """SQLstream's `DESCRIPTION 'text'` is a comment, which SHOW CREATE shows."""
    if cursor.take("DESCRIPTION"):
        cursor.string()


def read_unique_index(cursor: Cursor, base: dict[str, Any]) -> Statement:
    """Reads CREATE UNIQUE INDEX; the cursor stands after INDEX."""
    found = _read_index(cursor, base)
    return replace(found, is_unique=True) if isinstance(found, CreateIndex) else found


def _read_index(cursor: Cursor, base: dict[str, Any]) -> Statement:
    cursor.take("CONCURRENTLY")
    made = read_new_name(cursor, base)
    cursor.expect("ON")
    cursor.take("ONLY")
    table = cursor.relation_name()
    if not cursor.take("USING", "BTREE"):
        cursor.take("USING", "HASH")
    first = cursor.index
    cursor.take("(")
    listed = cursor.until(")")
    cursor.index = first
    if cursor.at("USING") or any(t.text == "(" for t in listed):
        hint = "Index columns: CREATE INDEX name ON relation (column, …)."
        span = span_of(cursor.rest[:1])
        return Refused(
            **base, error=not_supported("an index of expressions or with USING", cursor.text, span, hint=hint)
        )
    columns = cursor.names(OPERATOR_CLASSES)
    include = cursor.names() if cursor.take("INCLUDE") else ()
    distributed = cursor.names() if cursor.take("DISTRIBUTED", "BY") else ()
    if cursor.take("WITH"):
        read_options(cursor)
    if cursor.at("WHERE"):
        return Refused(**base, error=not_supported("a partial index", cursor.text, span_of(cursor.rest[:1])))
    cursor.end()
    return CreateIndex(
        **made,
        table=table,
        columns=tuple(c.name for c in columns),
        include=tuple(c.name for c in include),
        distributed_by=tuple(c.name for c in distributed),
    )


def read_create_schema(cursor: Cursor, base: dict[str, Any]) -> Statement:
    """Reads CREATE SCHEMA (Timeplus' CREATE DATABASE); the cursor stands after the second word."""
    if_not_exists = cursor.take("IF", "NOT", "EXISTS")
    name = cursor.name()
    skip_description(cursor)
    if cursor.take("AUTHORIZATION"):  # objects have no owners
        cursor.name()
    if cursor.take("COMMENT"):  # Timeplus' word for it
        cursor.string()
    if not cursor.done:
        raise not_supported(f"{cursor.rest[0].text.upper()} of a schema", cursor.text, span_of(cursor.rest))
    return CreateSchema(**base, name=name, if_not_exists=if_not_exists)


def read_drop_schema(cursor: Cursor, base: dict[str, Any]) -> Statement:
    """Reads DROP SCHEMA (Timeplus' DROP DATABASE); the cursor stands after the second word."""
    if_exists = cursor.take("IF", "EXISTS")
    names = read_list(cursor, lambda: cursor.name(reserved=True))
    return DropSchema(**base, names=names, if_exists=if_exists, cascade=take_cascade(cursor))


#: The readers of CREATE in every dialect but Lenses'.
CREATES: Final[Mapping[str, Reader]] = {
    "TABLE": read_table,
    "SOURCE": _read_source,
    "VIEW": _read_view,
    "MATERIALIZED VIEW": read_materialized_view,
    "INDEX": _read_index,
    "SCHEMA": read_create_schema,
}

#: The words after DROP, with kinds of relations or readers.
DROPS: Final[Mapping[str, DropWord | Reader]] = {
    "TABLE": "table",
    "SOURCE": "source",
    "VIEW": "view",
    "MATERIALIZED VIEW": "materialized view",
    "INDEX": "index",
    "SINK": "sink",
    "CONNECTION": "connection",
    "SUBSCRIPTION": "subscription",
    "SEQUENCE": "sequence",
    "TYPE": "type",
    "DOMAIN": "domain",
    "SCHEMA": read_drop_schema,
}

"""Names that change: what refers to a relation keeps those that it knows, and the relation's text gets the new ones."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from sqlglot.tokens import Token, TokenType

from watersmeet.catalog import Index, Known, Relation
from watersmeet.database.sessions.context import Session
from watersmeet.dialects.registry import language_named
from watersmeet.dialects.script import read_script, tokenize
from watersmeet.dialects.tree.definitions import Create, CreateTable

#: Items of a column list other than columns.
_NO_COLUMNS: Final = ("PRIMARY", "PRIMARY KEY", "WATERMARK", "INDEX", "CONSTRAINT")


def note_names(session: Session, relation: Relation) -> None:
    """Stores the present names of a relation for those whose text refers to it."""
    known = Known(relation.name, relation.schema, tuple(c.name for c in relation.columns))
    for other in list(session.catalog.relations.values()):
        names_it = relation.id in other.depends_on or relation.id == other.feeds
        if names_it and not isinstance(other, Index) and relation.id not in other.known:
            session.put(replace(other, known={**other.known, relation.id: known}))


def alter_indexes(session: Session, relation: Relation, altered: Callable[[Relation], Relation]) -> None:
    """Stores the indexes of a relation as `altered` makes them."""
    for index in list(session.catalog.relations.values()):
        if isinstance(index, Index) and relation.id in index.depends_on:
            session.put(altered(index))


def with_name(relation: Relation, name: str) -> str:
    """The CREATE statement with another name."""
    made = _created(relation)
    if made is None:
        return relation.sql
    shown = written(name, relation)
    if made.schema is not None:
        shown = f"{written(made.schema, relation)}.{shown}"
    return f"{relation.sql[: made.name_span.start]}{shown}{relation.sql[made.name_span.end :]}"


def with_column(relation: Relation, definition: str) -> str:
    """The CREATE statement with a further column. CREATE TABLE … AS gets its columns in place of the query."""
    made = _created(relation)
    if made is None:
        return relation.sql
    if isinstance(made, CreateTable) and made.query is not None:
        columns = [f"{written(c.name, relation)} {c.type.sql}" for c in relation.columns]
        return f"{relation.sql[: made.name_span.end]} ({', '.join([*columns, definition])})"
    _, closing, _ = _list(relation, made)
    return f"{relation.sql[: closing.start].rstrip()}, {definition}{relation.sql[closing.start :]}"


def with_column_called(relation: Relation, old: str, new: str) -> str:
    """The CREATE statement with a column renamed: in its declaration, in keys, indexes and watermarks."""
    made = _created(relation)
    if made is None or (isinstance(made, CreateTable) and made.query is not None):
        return relation.sql
    language = language_named(relation.dialect)
    items, _, behind = _list(relation, made)
    places = [t for item in items for t in (item if item[0].text.upper() in _NO_COLUMNS else item[:1])]
    options = next((i for i, t in enumerate(behind) if t.text.upper() in ("WITH", "SETTINGS", "FORMAT")), len(behind))
    fold = {"lower": str.lower, "upper": str.upper}.get(str(language.semantics.folding), str)
    text = relation.sql
    for token in reversed([*places, *behind[:options]]):
        is_quoted = token.token_type == TokenType.IDENTIFIER
        if token.token_type != TokenType.STRING and (token.text if is_quoted else fold(token.text)) == old:
            text = f"{text[: token.start]}{written(new, relation)}{text[token.end + 1 :]}"
    return text


def _list(relation: Relation, made: Create) -> tuple[list[list[Token]], Token, list[Token]]:
    """The items of the column list, its closing parenthesis, and what follows it."""
    tokens = [t for t in tokenize(relation.sql, language_named(relation.dialect)) if t.start >= made.name_span.end]
    depth, items = 0, [[]]  # type: ignore[var-annotated]
    for i, token in enumerate(tokens):
        depth -= token.token_type == TokenType.R_PAREN
        if depth == 0 and i:
            return [item for item in items if item], token, tokens[i + 1 :]
        if depth == 1 and token.token_type == TokenType.COMMA:
            items.append([])
        elif depth:
            items[-1].append(token)
        depth += token.token_type == TokenType.L_PAREN
    raise AssertionError(relation.sql)


def _created(relation: Relation) -> Create | None:
    """The statement that created it; None for an index that CREATE STREAM has created."""
    made = read_script(relation.sql, language_named(relation.dialect))[-1]
    return made if isinstance(made, Create) and made.name == relation.name else None


def written(name: str, relation: Relation) -> str:
    """A name as the relation's dialect writes it."""
    plain = re.fullmatch("[a-z_][a-z0-9_]*", name) and language_named(relation.dialect).semantics.folding != "upper"
    return name if plain else '"' + name.replace('"', '""') + '"'

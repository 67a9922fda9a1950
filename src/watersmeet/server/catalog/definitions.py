"""Texts of definitions, as PostgreSQL's catalog returns them: queries of views, values of columns, and constraints.

With an empty `search_path`, which pg_dump sets, names of relations, types and functions have their schemas.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Final

from sqlglot import exp
from sqlglot.tokens import TokenType

from watersmeet.binder.clauses.sources import view_statement
from watersmeet.catalog import COMMON_SCHEMA, Catalog, DomainType, EnumType, NumberSequence, Relation
from watersmeet.catalog.roles import language_of
from watersmeet.dialects.parsing import parse
from watersmeet.dialects.registry import language_named
from watersmeet.dialects.schemas import find_relation, relation_in_from
from watersmeet.dialects.script import read_script, tokenize
from watersmeet.dialects.tree.definitions import CreateRelation
from watersmeet.dialects.tree.queries import node_span
from watersmeet.dialects.tree.statements import Select
from watersmeet.errors import Error, Span
from watersmeet.server.catalog.queries import cte_of
from watersmeet.session.statements.show import create_text
from watersmeet.values import DEFAULT_DIALECT
from watersmeet.values.spans import own_span
from watersmeet.values.types import Field

#: The number of cached queries of views; each change of the catalog fills all tables again.
_MOST_VIEWS: Final = 10_000
_PLAIN: Final = re.compile(r"[a-z_][a-z0-9_]*")


def quoted(name: str) -> str:
    """A name as in SQL."""
    return name if _PLAIN.fullmatch(name) else '"' + name.replace('"', '""') + '"'


def in_parentheses(text: str) -> str:
    """An expression in exactly one pair of parentheses."""
    while _is_enclosed(text):
        text = text[1:-1].strip()
    return f"({text})"


def _is_enclosed(text: str) -> bool:
    """Whether the first parenthesis of a text is its first character, and is closed by its last one."""
    depth, quote = 0, ""
    for place, letter in enumerate(text):
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "'\"":
            quote = letter
        else:
            depth += (letter == "(") - (letter == ")")
        if depth == 0:
            return place > 0 and place == len(text) - 1
    return False


@lru_cache(_MOST_VIEWS)
def view_query(sql: str, dialect: str) -> str:
    """The query of a statement that creates a view, with a semicolon, as PostgreSQL shows it."""
    depth = 0
    for token in tokenize(sql, language_named(dialect)):
        depth += (token.token_type == TokenType.L_PAREN) - (token.token_type == TokenType.R_PAREN)
        if token.token_type == TokenType.ALIAS and not depth:
            return f"{sql[token.end + 1 :].strip().removesuffix(';')};"
    return sql


def default_text(relation: Relation, column: Field, catalog: Catalog, *, qualified: bool) -> str | None:
    """The text of a column's DEFAULT. qualified: whether names of sequences have their schemas in any case."""
    serial = relation.serials.get(column.name)
    if serial is not None:
        return None if serial.identity else _next_value(serial.sequence, catalog, qualified=qualified)
    found = relation.defaults.get(column.name)
    if found is None:
        return None
    return _NEXT_VALUE.sub(lambda m: _next_value(m[1], catalog, qualified=qualified), found)


#: The call of a sequence's function in the stored SQL of a DEFAULT.
_NEXT_VALUE: Final = re.compile(r"watersmeet_nextval\('(\w+)', RANDOM\(\)\)", re.IGNORECASE)


def _next_value(sequence_id: str, catalog: Catalog, *, qualified: bool) -> str:
    found = catalog.relations[sequence_id]
    parts = [found.name] if found.schema == COMMON_SCHEMA and not qualified else [found.schema, found.name]
    named = ".".join(map(quoted, parts))
    return f"nextval('{named.replace(chr(39), chr(39) * 2)}'::regclass)"


@lru_cache(_MOST_VIEWS)
def written_values(sql: str, dialect: str) -> Mapping[str, str]:
    """The DEFAULTs and generated values of a table's columns as written, by column."""
    made = read_script(sql, language_named(dialect))[-1]
    return made.value_texts if isinstance(made, CreateRelation) else {}


def qualified_default(relation: Relation, shown: str, catalog: Catalog) -> str:
    """The text of the DEFAULT, or of the generated value, that the catalog shows as `shown`."""
    for column in relation.columns:
        written = written_values(relation.sql, relation.dialect).get(column.name)
        if written is None or "nextval(" in shown:
            continue
        if column.name in relation.generated:
            written = in_parentheses(written)
        if shown in (default_text(relation, column, catalog, qualified=True), written):
            return qualified_expression(written, relation.dialect, catalog)
    return shown


def qualified_expression(text: str, dialect: str, catalog: Catalog) -> str:
    """An expression with the schemas of types and functions."""
    head = "SELECT "
    try:
        statement = parse(head + text, dialect)[0]
    except Error:
        return text
    if not isinstance(statement, Select):
        return text
    return _edited(head + text, _names(statement.query, catalog))[len(head) :]


def qualified_view(view: Relation, catalog: Catalog) -> str:
    """The query of a view with the schemas and present names of relations, types and functions."""
    statement, seen = view_statement(view), catalog.seen_by(view)
    edits = [*_names(statement.query, seen), *_relations(statement.query, seen, catalog)]
    text = view_query(_edited(view.view_text, edits), view.dialect)
    if not statement.column_names:
        return text
    names = ", ".join(quoted(c.name) for c in view.columns)
    return f"SELECT * FROM ({text.removesuffix(';')}) AS {quoted(view.name)} ({names});"


def _relations(query: exp.Expression, seen: Catalog, catalog: Catalog) -> Iterator[tuple[Span, str]]:
    """The names of relations in FROM, with their schemas; a renamed one has its earlier names as an alias."""
    for table in query.find_all(exp.Table):
        if not isinstance(table.this, exp.Identifier) or cte_of(table) is not None:
            continue
        known = relation_in_from(table, seen)
        span = own_span(table.this)
        if known is None or span is None:
            continue
        found = catalog.relations[known.id]
        schema = table.args.get("db")
        start = span.start if schema is None else (own_span(schema) or span).start
        text = f"{quoted(found.schema)}.{quoted(found.name)}"
        earlier, now = [c.name for c in known.columns], [c.name for c in found.columns]
        if earlier != now[: len(earlier)]:
            if not table.alias:
                text += f" AS {quoted(known.name)} ({', '.join(map(quoted, earlier))})"
        elif known.name != found.name and not table.alias:
            text += f" AS {quoted(known.name)}"
        yield Span(start, span.end), text


def _names(query: exp.Expression, catalog: Catalog) -> Iterator[tuple[Span, str]]:
    """The names of types and functions without a schema, with theirs."""
    for kind in query.find_all(exp.DataType):
        if kind.this != exp.DataType.Type.USERDEFINED:
            continue
        name = str(kind.args.get("kind") or "")
        if "." in name:
            continue
        found = find_relation(catalog, name.strip('"'), None, folded='"' not in name)
        span = node_span(kind)
        if isinstance(found, EnumType | DomainType) and span is not None:
            yield span, f"{quoted(found.schema)}.{quoted(found.name)}"
    for call in query.find_all(exp.Anonymous):
        function = catalog.function(str(call.this))
        span = own_span(call)
        if function is not None and span is not None and not isinstance(call.parent, exp.Dot):
            yield Span(span.start, span.start), f"{quoted(function.schema)}."


def _edited(text: str, edits: Iterable[tuple[Span, str]]) -> str:
    """The text with parts replaced."""
    for span, new in sorted(edits, key=lambda e: e[0].start, reverse=True):
        text = f"{text[: span.start]}{new}{text[span.end :]}"
    return text


def script_of(catalog: Catalog) -> str:
    """The statements that create all objects of a catalog, in order of creation, as SHOW CREATE shows them; then
    comments, roles and grants. Passwords and secrets are missing.
    """
    lines = ["-- All objects of the database. Values of passwords and secrets are missing."]
    lines += [f"CREATE SCHEMA {quoted(schema)};" for schema in catalog.schemas]
    dialect, path = DEFAULT_DIALECT, COMMON_SCHEMA

    def add(text: str, language: str, schema: str) -> None:
        nonlocal dialect, path
        if schema != path:
            lines.append(f"-- dialect: {DEFAULT_DIALECT}\nSET search_path = {quoted(schema)};")
            dialect, path = DEFAULT_DIALECT, schema
        if language != dialect:
            lines.append(f"-- dialect: {language}")
            dialect = language
        lines.append(f"{text.strip().removesuffix(';')};")

    # types, functions and sequences first: others refer to them
    relations = [r for r in catalog.relations.values() if r.is_named and r.sql and not r.owner]
    first: list[Relation] = [r for r in relations if isinstance(r, EnumType | DomainType)]
    first += [r for r in relations if isinstance(r, NumberSequence) and not r.owned]
    for relation in first:
        add(create_text(catalog, relation), relation.dialect, relation.schema)
    for function in catalog.functions.values():
        if not function.dropped:
            add(function.sql, function.dialect, function.schema)
    for relation in relations:
        if relation not in first and not isinstance(relation, NumberSequence):
            add(create_text(catalog, relation), relation.dialect, relation.schema)
    for text in (*_comments(relations), *_roles(catalog)):
        add(text, DEFAULT_DIALECT, COMMON_SCHEMA)
    return "\n".join(lines) + "\n"


def _comments(relations: Iterable[Relation]) -> Iterator[str]:
    for relation in relations:
        name = f"{quoted(relation.schema)}.{quoted(relation.name)}"
        if relation.comment:
            yield f"COMMENT ON {relation.family.upper()} {name} IS {_literal(relation.comment)}"
        for column, text in relation.comments.items():
            yield f"COMMENT ON COLUMN {name}.{quoted(column)} IS {_literal(text)}"


def _roles(catalog: Catalog) -> Iterator[str]:
    for role in catalog.roles.values():
        yield f"CREATE {'USER' if role.login else 'ROLE'} {quoted(role.name)}"
    for role in catalog.roles.values():
        if role.member_of:
            yield f"GRANT {', '.join(map(quoted, role.member_of))} TO {quoted(role.name)}"
        for relation_id, privileges in role.grants.items():
            if language_of(relation_id) is None and relation_id in catalog.relations:
                found = catalog.relations[relation_id]
                name = f"{quoted(found.schema)}.{quoted(found.name)}"
                yield f"GRANT {', '.join(privileges)} ON {name} TO {quoted(role.name)}"
        for name, value in role.settings.items():
            yield f"ALTER ROLE {quoted(role.name)} SET {name} TO {_literal(value)}"


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"

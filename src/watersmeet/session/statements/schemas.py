"""CREATE, DROP and ALTER of schemas.

Objects keep their ids when their schema is renamed, so views continue; texts of views and functions stay as written.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from watersmeet.catalog import COMMON_SCHEMA, Index, Relation, SqlFunction
from watersmeet.database.committing import own_transaction
from watersmeet.database.definitions import (
    USER_SCHEMA,
    make_schema,
    note_names,
    remove,
    schemas_of,
    undefined_schema,
    with_dependents,
)
from watersmeet.database.sessions.context import Session, error_at, sentence
from watersmeet.database.sessions.result import Result
from watersmeet.dialects.registry import COMMON_NAMES
from watersmeet.dialects.schemas import schema_meant
from watersmeet.dialects.tree.definitions import CreateSchema, DropSchema, RenameSchema
from watersmeet.dialects.tree.statements import Name
from watersmeet.dialects.tree.tokens import not_supported
from watersmeet.session.features.sqlfunctions import drop_functions
from watersmeet.session.statements.altering import move
from watersmeet.session.statements.topics import drop_topics


def create_schema(session: Session, statement: CreateSchema) -> Result:
    """CREATE SCHEMA. OR REPLACE first drops the schema's content (SQLstream, "CREATE SCHEMA"), unless relations of
    other schemas read it.
    """
    if not (statement.replaces and statement.name.name in session.catalog.schemas):
        return make_schema(session, statement)
    session.require_definer("CREATE")
    relations, functions = _content(session, [statement.name.name])
    remove(session, with_dependents(session, relations, statement, cascade=False, verb="replace"))
    drop_functions(session, functions, statement, cascade=False)
    return Result(f"CREATE {session.semantics.schema_word.upper()}")


def drop_schema(session: Session, statement: DropSchema) -> Result:
    """DROP SCHEMA: drops all or none. CASCADE also drops their content and its readers."""
    word = session.semantics.schema_word
    command = f"DROP {word.upper()}"
    session.require_definer(command)
    schemas = schemas_of(session, statement)
    relations, functions = _content(session, schemas)
    found: list[Relation | SqlFunction] = [*relations, *functions]
    if found and not statement.cascade:
        titles = [r.title for r in relations] + [f"function {f.shown}" for f in functions]
        raise error_at(
            statement,
            statement.span,
            "DEPENDENT_OBJECTS",
            f'cannot drop {word} "{found[0].schema}" because it is not empty',
            detail=sentence(f"{title} is in it" for title in titles),
            hint=f"Use DROP {word.upper()} … CASCADE to drop its content, too.",
        )
    with own_transaction(session):
        ids = with_dependents(session, relations, statement, cascade=True)
        if ids:
            dropped = [session.catalog.relations[i] for i in ids]
            remove(session, ids)
            drop_topics(session, dropped)
        drop_functions(session, functions, statement, cascade=True)
        session.put_schemas(tuple(s for s in session.catalog.schemas if s not in schemas))
    return Result(command)


def _content(session: Session, schemas: Sequence[str]) -> tuple[list[Relation], list[SqlFunction]]:
    """The relations and SQL functions in some schemas."""
    catalog = session.catalog
    functions = [f for f in catalog.functions.values() if f.schema in schemas and not f.dropped]
    return [r for r in catalog.relations.values() if r.schema in schemas], functions


def rename_schema(session: Session, statement: RenameSchema) -> Result:
    """ALTER SCHEMA … RENAME TO and SWAP WITH. Raises DEPENDENT_OBJECTS for the default schema, and if a schema has
    functions, whose ids depend on their schema.
    """
    session.require_definer("ALTER SCHEMA")
    old = _altered(session, statement, statement.name)
    if statement.swaps:
        other = _altered(session, statement, statement.new)
        schemas = {old: other, other: old}
    else:
        schemas = {old: _free(session, statement, old)}
    relations, functions = _content(session, list(schemas))
    if functions:
        raise error_at(
            statement,
            statement.name.span,
            "DEPENDENT_OBJECTS",
            f'schema "{functions[0].schema}" can\'t be renamed because it has functions',
            detail=sentence(f"function {f.shown} is in it" for f in functions),
            hint="DROP FUNCTION, and CREATE it again after the schema has its new name.",
        )
    named = next((r for r in relations if session.catalog.with_enum(r)), None)
    if named is not None:
        raise not_supported(
            f"another schema of {named.title}, which columns have,", statement.text, statement.name.span
        )
    with own_transaction(session):
        if not statement.swaps:
            session.put_schemas(tuple(schemas.get(s, s) for s in session.catalog.schemas))
        for relation in relations:
            note_names(session, relation)
        for relation in relations:
            if isinstance(relation, Index):
                session.put(replace(session.catalog.relations[relation.id], schema=schemas[relation.schema]))
            else:
                move(session, relation, relation.name, schemas[relation.schema])
    return Result("ALTER SCHEMA")


def _altered(session: Session, statement: RenameSchema, name: Name) -> str:
    schema = schema_meant(name.name, session.catalog)
    if schema is None:
        raise undefined_schema(session, name, statement)
    if schema == COMMON_SCHEMA:
        raise error_at(
            statement,
            name.span,
            "DEPENDENT_OBJECTS",
            f'schema "{name.name}" can\'t be renamed',
            detail="It is always there.",
        )
    return schema


def _free(session: Session, statement: RenameSchema, old: str) -> str:
    """The new name. Raises INVALID_NAME and DUPLICATE_OBJECT."""
    new = statement.new
    if "\0" in new.name or new.name == USER_SCHEMA:
        raise error_at(statement, new.span, "INVALID_NAME", "a schema can't have this name")
    others = (*COMMON_NAMES, *(s for s in session.catalog.schemas if s != old))
    same = next((s for s in others if s.lower() == new.name.lower()), None)
    if same is not None:
        raise error_at(statement, new.span, "DUPLICATE_OBJECT", f'schema "{same}" already exists')
    return new.name

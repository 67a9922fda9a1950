"""CREATE SCHEMA, DROP SCHEMA, SET SCHEMA: qualified names, and where unqualified names are looked up."""

from __future__ import annotations

from typing import Final

from watersmeet.catalog import COMMON_SCHEMA
from watersmeet.dialects.registry import COMMON_NAMES
from watersmeet.dialects.schemas import schema_meant, schema_shown
from watersmeet.dialects.tree.definitions import Create, CreateSchema, DropSchema
from watersmeet.dialects.tree.statements import Name, SetVariable, Statement
from watersmeet.dialects.tree.tokens import quoted
from watersmeet.errors import did_you_mean
from watersmeet.session.access.context import Session, error_at
from watersmeet.session.access.result import Result

#: The entry of `search_path` that stands for a schema with the user's name. There is none here.
USER_SCHEMA: Final = "$user"


def make_schema(session: Session, statement: CreateSchema) -> Result:
    """CREATE SCHEMA."""
    session.require_definer("CREATE")
    word, name = session.semantics.schema_word, statement.name.name
    command = f"CREATE {word.upper()}"
    if "\0" in name or name == USER_SCHEMA:
        raise error_at(statement, statement.name.span, "INVALID_NAME", f"a {word} can't have this name")
    with session.database.guard:
        known = (*COMMON_NAMES, *session.catalog.schemas)
        same = next((s for s in known if s.lower() == name.lower()), None)
        if same == name and statement.if_not_exists:
            session.notice(f'{word} "{name}" already exists, skipping')
            return Result(command)
        if same is not None:
            detail = (
                f'"{same}" is how a dialect calls the schema that is always there.' if same in COMMON_NAMES else None
            )
            raise error_at(
                statement, statement.name.span, "DUPLICATE_OBJECT", f'{word} "{same}" already exists', detail=detail
            )
        session.put_schemas((*session.catalog.schemas, name))
    return Result(command)


def schemas_of(session: Session, statement: DropSchema) -> list[str]:
    """The schemas that DROP SCHEMA names. UNDEFINED_OBJECT; DEPENDENT_OBJECTS for the default schema, which always
    exists.
    """
    found = []
    for name in statement.names:
        schema = schema_meant(name.name, session.catalog)
        if schema == COMMON_SCHEMA:
            raise error_at(
                statement,
                name.span,
                "DEPENDENT_OBJECTS",
                f'{session.semantics.schema_word} "{name.name}" can\'t be dropped',
                detail="It is always there.",
            )
        if schema is not None:
            found.append(schema)
        elif statement.if_exists:
            session.notice(f'{session.semantics.schema_word} "{name.name}" does not exist, skipping')
        else:
            raise undefined_schema(session, name, statement)
    return found


def set_schema(session: Session, statement: SetVariable, name: Name) -> Result:
    """SET SCHEMA, USE: unqualified names are looked up in that schema only."""
    schema = schema_meant(name.name, session.catalog)
    if schema is None:
        raise undefined_schema(session, name, statement)
    session.variables.set(statement.name, quoted(schema))
    return Result("SET")


def schema_for(session: Session, statement: Create) -> str:
    """The schema in which the statement creates its relation: the one it names, or the first of the path."""
    if statement.schema is None:
        path = session.catalog.path
        if not path:
            raise error_at(
                statement,
                statement.name_span,
                "UNDEFINED_OBJECT",
                "no schema has been selected to create in",
                hint="Write schema.name, or SET search_path to a schema that exists.",
            )
        return path[0]
    schema = schema_meant(statement.schema, session.catalog)
    if schema is None:
        raise undefined_schema(session, Name(statement.schema, statement.name_span), statement)
    return schema


def undefined_schema(session: Session, name: Name, statement: Statement) -> Exception:
    """UNDEFINED_OBJECT with similar names."""
    word = session.semantics.schema_word
    known = [schema_shown(s, session.semantics) for s in (COMMON_SCHEMA, *session.catalog.schemas)]
    return error_at(
        statement,
        name.span,
        "UNDEFINED_OBJECT",
        f'{word} "{name.name}" does not exist',
        hint=did_you_mean(name.name, known) or f"CREATE {word.upper()} {quoted(name.name)} makes it.",
    )

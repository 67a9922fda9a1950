"""CREATE SCHEMA and DROP SCHEMA, with their content."""

from __future__ import annotations

from collections.abc import Sequence

from watersmeet.catalog import Relation, SqlFunction
from watersmeet.database.definitions import make_schema, remove, schemas_of, with_dependents
from watersmeet.database.sessions.context import Session, error_at, sentence
from watersmeet.database.sessions.result import Result
from watersmeet.database.transactions import own_transaction
from watersmeet.dialects.tree.definitions import CreateSchema, DropSchema
from watersmeet.session.access.kafkatopics import drop_topics
from watersmeet.session.statements.sqlfunctions import drop_functions


def create_schema(session: Session, statement: CreateSchema) -> Result:
    """CREATE SCHEMA. OR REPLACE also drops its content (SQLstream, "CREATE SCHEMA"), unless others read that."""
    if not (statement.replaces and statement.name.name in session.catalog.schemas):
        return make_schema(session, statement)
    session.require_definer("CREATE")
    relations, functions = _content(session, [statement.name.name])
    remove(session, with_dependents(session, relations, statement, cascade=False, verb="replace"))
    drop_functions(session, functions, statement, cascade=False)
    return Result(f"CREATE {session.semantics.schema_word.upper()}")


def drop_schema(session: Session, statement: DropSchema) -> Result:
    """DROP SCHEMA: all or none. CASCADE also drops the content and what reads it."""
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
            gone = [session.catalog.relations[i] for i in ids]
            remove(session, ids)
            drop_topics(session, gone)
        drop_functions(session, functions, statement, cascade=True)
        session.put_schemas(tuple(s for s in session.catalog.schemas if s not in schemas))
    return Result(command)


def _content(session: Session, schemas: Sequence[str]) -> tuple[list[Relation], list[SqlFunction]]:
    """The relations and SQL functions in some schemas."""
    catalog = session.catalog
    functions = [f for f in catalog.functions.values() if f.schema in schemas and not f.dropped]
    return [r for r in catalog.relations.values() if r.schema in schemas], functions

"""ALTER … CONNECTOR WITH and REFRESH SCHEMA: what a source or table reads, while views go on reading it."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from watersmeet.catalog import Input, QuerySource, Relation, one
from watersmeet.connectors.registry import check_connector
from watersmeet.database.committing import own_transaction
from watersmeet.database.definitions import is_called, kind_word, named
from watersmeet.database.secrets import kept_options, with_secrets
from watersmeet.database.sessions.context import Session, error_at, located, sentence
from watersmeet.database.sessions.result import Result
from watersmeet.dialects.parsing import parse
from watersmeet.dialects.tree.definitions import Alter, AlterConnector, AlterQuery, CreateRelation, RefreshSchema
from watersmeet.formats.registry import KEPT_SCHEMA
from watersmeet.session.access.clauses import with_schema_columns
from watersmeet.values.types import Field, Schema

#: Options that say which messages there are: with others, what was read so far would mean something else.
_FIXED: Final = ("connector", "topic", "kafka.topic", "location", "database.name", "table.name", "snapshot")
#: The option that a setting of views stands for.
_RECOVERY: Final = {"strict": "stop", "best_effort": "skip"}
_FIXED_PREFIXES: Final = ("scan.startup.", "start.", "topic.")


def alter_connector(session: Session, statement: AlterConnector) -> Result:
    """ALTER … CONNECTOR WITH: other options from now on; views go on where they are. Of a source that each query reads
    by itself, they are altered for all queries.

    CONNECTOR_OPTION for an option that can't be altered, or a connector that does not work with them.
    """
    command = f"ALTER {kind_word(statement).upper()}"
    relation = _input(session, statement, statement.clause)
    if relation is None:
        return Result(command)
    statement = with_secrets(session, statement)
    for name in statement.options:
        if name in _FIXED or name.startswith(_FIXED_PREFIXES):
            raise error_at(
                statement,
                statement.spans[name],
                "CONNECTOR_OPTION",
                f'option "{name}" can\'t be altered',
                detail="What was read so far is of the topic or table, and from the place, that CREATE named.",
                hint=f"Create another {relation.what}.",
            )
    readers = [r for r in session.catalog.relations.values() if isinstance(r, QuerySource) and r.of == relation.id]
    with located(statement, statement.span, statement.spans):
        session.require_files(statement.options)
        options = kept_options(session, statement.options)
        altered = [check_connector(replace(r, connector={**r.connector, **options})) for r in (relation, *readers)]
    _put(session, *altered)
    return Result(command)


def alter_query(session: Session, statement: AlterQuery) -> Result:
    """ALTER VIEW … MODIFY QUERY SETTING recovery_policy: whether messages that can't be decoded hold up what the view
    reads of external streams. It goes on where it is.

    Timeplus, "ALTER VIEW". FEATURE_NOT_SUPPORTED for other settings, and for views that read no such stream.
    """
    session.require_definer("ALTER VIEW")
    view = named(session, statement.name, statement)
    if view is None:
        return Result("ALTER VIEW")
    for name, value in statement.settings.items():
        span = statement.spans[name]
        if name != "recovery_policy":
            hint = "Drop the view, and create it again with the setting."
            raise error_at(
                statement, span, "FEATURE_NOT_SUPPORTED", f"MODIFY QUERY SETTING {name} is not supported", hint=hint
            )
        if value not in _RECOVERY:
            hint = f"It is {' or '.join(_RECOVERY)}."
            raise error_at(statement, span, "INVALID_PARAMETER", f'setting {name} can\'t be "{value}"', hint=hint)
    on_error = _RECOVERY[statement.settings["recovery_policy"]]
    readers = [r for r in session.catalog.relations.values() if isinstance(r, QuerySource) and r.owner == view.id]
    if not readers:
        raise error_at(
            statement,
            statement.name.span,
            "FEATURE_NOT_SUPPORTED",
            f"recovery_policy of {view.title} is not supported",
            detail="It reads no external stream.",
        )
    _put(session, *(check_connector(replace(r, connector={**r.connector, "on_error": on_error})) for r in readers))
    return Result("ALTER VIEW")


def refresh_schema(session: Session, statement: RefreshSchema) -> Result:
    """REFRESH SCHEMA: takes the columns from the schema again. Columns that are new come behind those there are. Of a
    schema in a file, messages are read by what the file has now.

    DATATYPE_MISMATCH if a column is gone or has another type: views read it.
    """
    command = f"ALTER {kind_word(statement).upper()}"
    relation = _input(session, statement, "REFRESH SCHEMA")
    if relation is None:
        return Result(command)
    made = parse(relation.sql, relation.dialect)[-1]
    takes_columns = isinstance(made, CreateRelation) and made.takes_columns
    form, options = relation.format, {} if relation.format is None else dict(relation.format.options)
    with located(statement, statement.name.span):
        session.require_files(options)
    if form is not None and options.pop(KEPT_SCHEMA, None) is not None:
        relation = replace(relation, format=replace(form, options=options))
    elif not takes_columns:
        raise error_at(
            statement,
            statement.name.span,
            "CATALOG_TYPE_MISMATCH",
            f"the columns of {relation.title} are declared",
            hint="ALTER … ADD COLUMN adds one.",
        )
    elif relation.is_stored:
        raise error_at(
            statement,
            statement.name.span,
            "FEATURE_NOT_SUPPORTED",
            "REFRESH SCHEMA of a table is not supported",
            detail="Rows that are stored already lack the new columns.",
            hint="REFRESH SCHEMA of a source is supported.",
        )
    new: tuple[Field, ...] = ()
    if isinstance(made, CreateRelation) and takes_columns and not relation.is_stored:
        made = replace(made, format=relation.format, options={**made.options, **relation.connector})
        now_made = with_schema_columns(session, made)
        new = _new_columns(statement, relation, now_made.columns)
        relation = replace(relation, columns=(*relation.columns, *new), format=now_made.format)
    if new or relation.format != form:
        with located(statement, statement.name.span):
            _put(session, check_connector(relation))
    session.notice(f"{len(new)} new columns" if len(new) != 1 else "1 new column")
    return Result(command)


def _new_columns(statement: RefreshSchema, relation: Input, now: Schema) -> tuple[Field, ...]:
    """The columns of the schema that the relation does not have yet. DATATYPE_MISMATCH."""
    found = {c.name: c for c in now}
    for column in relation.columns:
        same = found.get(column.name)
        if same is None or same.type != column.type:
            has = "is gone" if same is None else f"has type {same.type.sql} now"
            raise error_at(
                statement,
                statement.name.span,
                "DATATYPE_MISMATCH",
                f'column "{column.name}" of {relation.title} is {column.type.sql}, and in the schema it {has}',
                hint=f"Create another {relation.what} with the new schema.",
            )
    there = {c.name for c in relation.columns}
    return tuple(replace(c, nullable=True) for n, c in found.items() if n not in there)


def _input(session: Session, statement: Alter, what: str) -> Input | None:
    """The source or table that is named; None if there is none and the statement has IF EXISTS."""
    session.require_definer(f"ALTER {kind_word(statement).upper()}")
    relation: Relation | None = named(session, statement.name, statement)
    if relation is None:
        return None
    if not is_called(statement.kind, relation) or not isinstance(relation, Input) or not relation.connector:
        raise error_at(
            statement,
            statement.name.span,
            "CATALOG_TYPE_MISMATCH",
            f"{relation.title} has no connector",
            detail=sentence([f"{what} is for {one(kind_word(statement))} with a connector"]),
        )
    return relation


def _put(session: Session, *relations: Input) -> None:
    with own_transaction(session):
        for relation in relations:
            session.put(relation)
    session.database.reinstall()  # their sources are opened again

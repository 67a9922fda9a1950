"""Content outside of the database that statements name: its location, its columns, and a relation filled with it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from watersmeet.catalog import (
    External,
    ExternalTable,
    MessageFormat,
    Relation,
)
from watersmeet.connectors import registry as connectors
from watersmeet.database.committing import own_transaction
from watersmeet.database.definitions import add, check_columns
from watersmeet.database.sessions.context import Session, error_at, located, undefined_column
from watersmeet.dialects.schemas import find_relation, near_relations
from watersmeet.dialects.tree.definitions import CreateRelation
from watersmeet.errors import Span, error
from watersmeet.maintenance.refreshing import refresh
from watersmeet.store.changes import quoted
from watersmeet.system.process import lazy_import
from watersmeet.values.types import Schema

if TYPE_CHECKING:
    from watersmeet.connectors import objects
    from watersmeet.connectors.files import options as fileoptions
    from watersmeet.connectors.files import tables as filetables
    from watersmeet.connectors.iceberg import tables as icebergtables
    from watersmeet.connectors.mysql import target as mysql
    from watersmeet.connectors.postgres import target
else:
    fileoptions = lazy_import("watersmeet.connectors.files.options")
    filetables = lazy_import("watersmeet.connectors.files.tables")
    icebergtables = lazy_import("watersmeet.connectors.iceberg.tables")
    mysql = lazy_import("watersmeet.connectors.mysql.target")
    objects = lazy_import("watersmeet.connectors.objects")
    target = lazy_import("watersmeet.connectors.postgres.target")


@dataclass(frozen=True, kw_only=True)
class Clause:
    """A call with options by name: `MYSQL(DB 'testdb' TABLE 'products')`. Its name and those of the options are in
    lower case.

    span: that of the call. own: a source of this call is a relation of this database.
    """

    name: str
    options: Mapping[str, str]
    span: Span
    own: bool = False


def content_query(below: Relation, columns: Schema) -> str:
    """A CREATE VIEW statement for these columns of a relation."""
    listed = ", ".join(quoted(c.name) for c in columns)
    return f"CREATE VIEW content AS SELECT {listed} FROM {quoted(below.schema)}.{quoted(below.name)}"


def external_of(session: Session, kind: str, options: dict[str, str], name: str, database: str) -> External:
    """The location of the content. database: the name of the option with the server's database."""
    if "query" in options and kind not in ("clickhouse", "mysql", "postgresql"):
        raise error("FEATURE_NOT_SUPPORTED", "the option QUERY of a source is not supported", hint="Name a table.")
    if kind == "file":
        options = filetables.file_connector(options)
        return External(
            "file",
            options.get("path", ""),
            {n: fileoptions.absolute_path(v) if n == "path" else v for n, v in options.items()},
        )
    if kind == "s3":
        if options.get(objects.ENVIRONMENT_SETTING, "false").lower() == "true" or objects.CONFIG_FILE in options:
            session.require_files({"path": ""})
        options = objects.with_config_file(options)
    if kind == "iceberg":
        options = icebergtables.iceberg_options(options, "default", name)
        return External(kind, f"{options['database.name']}.{options['table.name']}", options)
    if kind == "http":
        return External(kind, options.get("url", "").partition("?")[0], options)  # the rest may be a secret
    return External(kind, f"{options.get(database, 'default')}.{options.get('table', name)}", options)


def with_target(session: Session, external: External) -> tuple[External, MessageFormat | None]:
    """The external table with the options of the connector that writes it, and the format of written rows.

    Raises CONNECTOR_OPTION.
    """
    reader = session.database.external_readers.reader(external)
    found = replace(external, target=reader.written())
    if "on_conflict" in found.target:
        clauses = {"postgresql": target.conflict_clause, "mysql": mysql.conflict_clause}
        clauses[external.kind](found.target["on_conflict"])
    return found, reader.written_format()


def fill(session: Session, statement: CreateRelation, relation: ExternalTable, what: str, span: Span) -> None:
    """Adds a relation with its content, or without it if connectors are only checked. If the content can't be read, the
    relation is not added.

    span: the clause with the location of the content.
    """
    readers, external = session.database.external_readers, relation.external

    with located(statement, span):
        if external.kind in ("file", "iceberg"):
            session.require_files({"path": external.name} if external.kind == "file" else external.options)
        reader = readers.reader(external, what)
        if not relation.columns:
            session.require_outside(f"the columns of {what}", statement, span)
        columns = connectors.declared(reader, relation.columns)
    check_columns(columns, statement)
    made = replace(relation, columns=columns)
    with own_transaction(session):
        add(session, made)
        with located(statement, span):
            if session.connectors != "checked":
                refresh(session, made)


def stream_of(session: Session, statement: CreateRelation, clause: Clause) -> Relation:
    """The stream of this database that a clause names. Raises UNDEFINED_RELATION, CONNECTOR_OPTION."""
    options = clause.options
    unknown = [
        n
        for n in options
        if n not in ("db", "stream", "table", "user", "password", "port", "secure", "update_from_source")
    ]
    name = options.get("stream", options.get("table"))
    if unknown or name is None:
        raise error_at(
            statement,
            clause.span,
            "CONNECTOR_OPTION",
            f'{clause.name.upper()} has no option "{unknown[0]}"'
            if unknown
            else f"{clause.name.upper()} needs the option STREAM",
        )
    found = find_relation(session.catalog, name, options.get("db"), folded=False)
    if found is None:
        raise error_at(
            statement,
            clause.span,
            "UNDEFINED_RELATION",
            f'relation "{name}" does not exist',
            hint=near_relations(session.catalog, name, options.get("db")),
        )
    return found


def columns_of(below: Relation, columns: Schema, statement: CreateRelation, span: Span) -> Schema:
    """The columns of a relation with the names and types of `columns`.

    Raises UNDEFINED_COLUMN, DATATYPE_MISMATCH.
    """
    known = {c.name: c for c in below.columns}
    for column in columns:
        if column.name not in known:
            raise undefined_column(below, column.name, span, statement)
        if known[column.name].type != column.type:
            raise error_at(
                statement,
                span,
                "DATATYPE_MISMATCH",
                f'column "{column.name}" of relation "{below.shown}" is '
                f"{known[column.name].type.sql}, not {column.type.sql}",
            )
    return tuple(known[c.name] for c in columns)

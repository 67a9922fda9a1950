"""CREATE DATABASE over a catalog of Iceberg: the tables of its namespace are external tables of the database.

Timeplus, "Iceberg External Stream", "Create an Iceberg Database".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from watersmeet.catalog import ARRIVAL, External, ExternalTable, NamedCollection
from watersmeet.catalog.roles import ADMIN
from watersmeet.connectors.base.targets import statement_delivery
from watersmeet.database.committing import own_transaction
from watersmeet.database.definitions import add, check_columns, make_schema
from watersmeet.database.secrets import kept
from watersmeet.database.sessions.context import Session, located
from watersmeet.database.sessions.result import Result
from watersmeet.dialects.readers import reads
from watersmeet.dialects.tree.definitions import CreateSchema, CreateStream
from watersmeet.dialects.tree.tokens import Cursor, not_supported, read_setting
from watersmeet.errors import Error
from watersmeet.session.handlers import handles
from watersmeet.system.process import lazy_import
from watersmeet.system.secretvalues import revealed_options
from watersmeet.values.types import Schema

if TYPE_CHECKING:
    from watersmeet.connectors.iceberg import tables as icebergtables
    from watersmeet.connectors.iceberg import target as icebergtarget
else:
    icebergtables = lazy_import("watersmeet.connectors.iceberg.tables")
    icebergtarget = lazy_import("watersmeet.connectors.iceberg.target")


@dataclass(frozen=True, kw_only=True)
class CreateLakeDatabase(CreateSchema):
    """`CREATE DATABASE name SETTINGS type = 'iceberg', …`. settings: with names in lower case, including `type`."""

    takes: ClassVar[str | None] = ADMIN

    settings: Mapping[str, str]


@reads("CREATE DATABASE", own="database")
def read_database(cursor: Cursor, base: dict[str, Any]) -> CreateLakeDatabase | None:
    """The cursor stands after DATABASE. Without SETTINGS it returns None and leaves the cursor unmoved."""
    begin = cursor.index
    if_not_exists = cursor.take("IF", "NOT", "EXISTS")
    name = cursor.name()
    if not cursor.take("SETTINGS"):
        cursor.index = begin
        return None
    settings: dict[str, str] = {}
    read_setting(cursor, settings)
    while cursor.take(","):
        read_setting(cursor, settings)
    cursor.end()
    if "type" not in settings:
        raise cursor.error(detail="A database with SETTINGS needs the setting type.")
    return CreateLakeDatabase(**base, name=name, if_not_exists=if_not_exists, settings=settings)


@handles(CreateLakeDatabase)
def create_lake_database(session: Session, statement: CreateLakeDatabase) -> Result:
    """A schema whose relations are the tables of a namespace: of the setting `namespace`, by default the schema's
    name.
    """
    settings, name = dict(statement.settings), statement.name.name
    kind = settings.pop("type").lower()
    if kind != icebergtables.ICEBERG:
        raise not_supported(
            f"a database of type {kind}", statement.text, statement.name.span, hint="type = 'iceberg' is."
        )
    with located(statement, statement.name.span):
        session.require_files(icebergtables.iceberg_options(settings, name, "any"))
        icebergtables.iceberg_tables(settings, name)
    known = name in session.catalog.schemas
    with own_transaction(session):
        done = make_schema(session, statement)
        if not known:
            add(session, _collection(session, statement, settings))
            _take_over(session, name)
    return done


def _collection(session: Session, statement: CreateLakeDatabase, settings: dict[str, str]) -> NamedCollection:
    """The settings of the catalog, hidden in the schema."""
    made = NamedCollection(
        session.catalog.new_id(NamedCollection),
        statement.name.name,
        (),
        sql=statement.sql,
        dialect=session.dialect,
        schema=statement.name.name,
        hidden=True,
        settings=settings,
    )
    return kept(session, made)


def lake_of(session: Session, schema: str) -> NamedCollection | None:
    """The lake catalog of a schema; None for a schema of this database's own relations."""
    found = (r for r in session.catalog.relations.values() if isinstance(r, NamedCollection) and r.hidden)
    return next((r for r in found if r.schema == schema), None)


def take_over_tables(session: Session) -> bool:
    """Adds relations for tables created in lake catalogs since the last call.

    Returns whether there were any. Skips unreachable catalogs.
    """
    if session.database.read_only or session.transaction is not None:
        return False
    found = False
    for schema in session.catalog.schemas:
        if lake_of(session, schema) is not None:
            try:
                with own_transaction(session):
                    found |= _take_over(session, schema)
            except Error as problem:
                session.notice(f'the catalog of database "{schema}" can\'t be read: {problem.message}')
    return found


def _take_over(session: Session, schema: str) -> bool:
    lake = lake_of(session, schema)
    assert lake is not None
    settings = revealed_options(lake.settings)
    there = [r.name for r in session.catalog.relations.values() if r.schema == schema and r.is_named]
    found = False
    for name in icebergtables.iceberg_tables(settings, schema):
        if name in there:
            continue
        external = _external(settings, schema, name)
        try:
            columns = session.database.external_readers.reader(external).columns()
        except Error as problem:
            session.notice(f'table "{schema}.{name}" is left out: {problem.message}')
            continue
        add(session, _table(session, lake, name, columns or (), external))
        found = True
    return found


def create_lake_table(session: Session, statement: CreateStream, lake: NamedCollection) -> Result:
    """CREATE STREAM in a lake database creates a table of its catalog. The caller has called `may_create`."""
    for what, is_there in (
        ("an index", bool(statement.indexes)),
        ("a primary key", bool(statement.primary_key)),
        ("a mode", statement.mode != "append"),
        ("a DEFAULT", bool(statement.declared)),
    ):
        if is_there:
            raise not_supported(f"{what} of a table of Iceberg", statement.text, statement.name_span)
    columns = tuple(c for c in statement.columns if statement.defaults.get(c.name) != ARRIVAL)
    check_columns(columns, statement)
    settings = revealed_options(lake.settings)
    with located(statement, statement.name_span):
        made = _table(session, lake, statement.name, columns, _external(settings, lake.schema, statement.name))
        made = replace(made, ranges=dict(statement.ranges), sql=statement.sql)
        icebergtarget.create_table(statement_delivery(made, columns), columns)
    add(session, made)
    return Result("CREATE STREAM")


def _external(settings: dict[str, str], schema: str, name: str) -> External:
    options = icebergtables.iceberg_options(settings, schema, name)
    return External(icebergtables.ICEBERG, f"{options['database.name']}.{name}", options, target=options)


def _table(session: Session, lake: NamedCollection, name: str, columns: Schema, external: External) -> ExternalTable:
    made = ExternalTable(
        session.catalog.new_id(ExternalTable),
        name,
        columns,
        sql=lake.sql,
        dialect=lake.dialect,
        schema=lake.schema,
        path=session.catalog.path,
        depends_on=(lake.id,),
        external=external,
    )
    return kept(session, made)

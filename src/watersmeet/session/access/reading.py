"""Bounded queries: from a tree of the dialect to rows, read from the database at one moment."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final

import duckdb
import pyarrow as pa
from sqlglot import exp

from watersmeet.batch import map_duckdb_error, to_duckdb
from watersmeet.catalog import Catalog, Relation
from watersmeet.errors import Error, error
from watersmeet.kernel.evaluation.duck import rows_of
from watersmeet.session.access.context import Session
from watersmeet.session.access.failures import check_running
from watersmeet.store.merging import quoted
from watersmeet.types import Schema, arrow_schema

#: The name under which rows of our own are lent to DuckDB.
_LENT: Final = "_watersmeet_rows"


@dataclass(frozen=True)
class Bounded:
    """DuckDB SQL, the columns that it gives, the ids of the relations of `catalog` whose content it reads.

    text: what errors are shown in. exact: the types that the result has to have, None for those it has. named: the
    relations that the query itself names, views among them. functions: ids of the functions of SQL that it calls.
    """

    sql: str
    columns: Schema
    depends_on: tuple[str, ...]
    catalog: Catalog
    text: str = ""
    exact: Schema | None = None
    named: tuple[str, ...] = ()
    functions: tuple[str, ...] = ()


def bounded(session: Session, tree: exp.Expression, text: str) -> Bounded:
    """Bind a query to the relations that can be read now.

    Errors of the binder, with their places; of views that were stopped.
    """
    catalog = readable(session.catalog)
    query = to_duckdb(tree, catalog, text, session.dialect, files=session.database.files)
    check_running(session, query.depends_on)
    return Bounded(
        query.sql, query.columns, query.depends_on, catalog, text, named=query.named, functions=query.functions
    )


def table_tree(relation: Relation, alias: str | None) -> exp.Table:
    """The node that names a relation."""
    tree = exp.Table(
        this=exp.to_identifier(relation.name, quoted=True), db=exp.to_identifier(relation.schema, quoted=True)
    )
    if alias is not None:
        tree.set("alias", exp.TableAlias(this=exp.to_identifier(alias, quoted=True)))
    return tree


def readable(catalog: Catalog) -> Catalog:
    """The catalog without the views that are being filled."""
    filling = {i for i, r in catalog.relations.items() if not r.ready}
    return replace(catalog.without(filling), version=catalog.version) if filling else catalog


def fetch(session: Session, query: Bounded, *, newest: bool) -> pa.Table:
    """The rows of a query. newest: tables as of the newest transaction and the open one, else all of one moment.

    Errors of DuckDB as ours: INVALID_VALUE, DIVISION_BY_ZERO and the like.
    """
    with reading(session, query, newest=newest) as connection:
        try:
            table = rows_of(connection, query.sql)
        except duckdb.Error as cause:
            raise failed_query(cause, query.text) from cause
    if query.exact is not None:
        table = conformed(table, arrow_schema(query.exact, positional=False))
    return table


@contextmanager
def reading(session: Session, query: Bounded, *, newest: bool) -> Iterator[duckdb.DuckDBPyConnection]:
    """The DuckDB connection in which the query's relations are views of their names, for this thread alone."""
    content = session.database.content
    with content.session(newest=newest) as connection:
        stored = [i for i in query.depends_on if query.catalog.relations[i].is_stored]
        if stored:
            content.refresh(query.catalog, stored, newest=newest)
        yield connection


@contextmanager
def lent(
    connection: duckdb.DuckDBPyConnection, rows: pa.Table, relation: Relation, name: str = _LENT
) -> Iterator[None]:
    """Inside the block `rows` (columns of `relation`) are a temporary view `name`, of the relation's types."""
    columns = ", ".join(f"CAST({quoted(c.name)} AS {c.type.duckdb}) AS {quoted(c.name)}" for c in relation.columns)
    source = f"{_LENT}_source"
    connection.register(source, rows)
    try:
        connection.execute(f"CREATE OR REPLACE TEMP VIEW {quoted(name)} AS SELECT {columns} FROM {source}")
        yield
    finally:
        connection.execute(f"DROP VIEW IF EXISTS temp.{quoted(name)}")
        connection.unregister(source)


def computed(session: Session, rows: pa.Table, texts: Sequence[str], columns: Schema, sql: str = "") -> pa.Table:
    """One row of `columns` for each of `rows`: of DuckDB's expressions over them.

    sql: the statement that errors are about.
    """
    with session.database.content.session() as connection:
        connection.register(_LENT, rows)
        try:
            listed = ", ".join(f"{t} AS c{i}" for i, t in enumerate(texts))
            table = connection.execute(f"SELECT {listed} FROM {_LENT}").to_arrow_table()
        except duckdb.Error as cause:
            raise failed_query(cause, sql) from cause
        finally:
            connection.unregister(_LENT)
    return conformed(table, arrow_schema(columns, positional=False))


def conformed(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """The table with exactly the columns of `schema`: DuckDB names list items and time zones otherwise."""
    columns = [c if c.type.equals(f.type) else c.cast(f.type) for c, f in zip(table.columns, schema, strict=True)]
    return pa.Table.from_arrays(columns, schema=schema)


def failed_query(cause: duckdb.Error, text: str) -> Error:
    """The error that stands for one of DuckDB's."""
    found = map_duckdb_error(cause, text)
    return found if isinstance(found, Error) else error("INTERNAL_ERROR", str(cause), sql=text)

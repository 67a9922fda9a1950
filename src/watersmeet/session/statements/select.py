"""SELECT over the content of the database at one moment."""

from __future__ import annotations

from typing import TYPE_CHECKING

import duckdb
import pyarrow as pa

from watersmeet.dialects.statements import Select
from watersmeet.kernel.evaluation.duck import rows_of
from watersmeet.late import late
from watersmeet.session.access.bounds import runs_on
from watersmeet.session.access.context import Session
from watersmeet.session.access.reading import bounded, conformed, failed_query, reading
from watersmeet.session.access.result import Result, rows_result
from watersmeet.types import NUMERIC, Field, Schema, SqlType, arrow_schema

if TYPE_CHECKING:
    from watersmeet.session.services import refreshing, running
else:
    running = late("watersmeet.session.services.running")
    refreshing = late("watersmeet.session.services.refreshing")


def select(session: Session, statement: Select) -> Result:
    """Run a query; one that names streams goes on until its cursor is closed.

    Inside a transaction that may write, tables are shown with its own changes.
    """
    if runs_on(session, statement.query):
        return running.run_select(session, statement)
    query = bounded(session, statement.query, statement.text)
    if refreshing.refresh_read(session, query.depends_on):
        session.database.flush()  # a query shows the moment of the newest epoch
    transaction = session.transaction
    newest = transaction is not None and not transaction.read_only
    with reading(session, query, newest=newest) as connection:
        try:
            table = rows_of(connection, query.sql)
        except duckdb.Error as cause:
            raise failed_query(cause, statement.text) from cause
    return rows_result("SELECT", *described(table, query.columns))


def described(table: pa.Table, columns: Schema) -> tuple[Schema, pa.Table]:
    """A result of DuckDB under the names and with the types that were bound."""
    exact = tuple(_exact(c, table.column(i).type) for i, c in enumerate(columns))
    return exact, conformed(table, arrow_schema(exact, positional=False))


def _exact(column: Field, kind: pa.DataType) -> Field:
    """The column, with the digits that a number really has."""
    if column.type == NUMERIC and pa.types.is_decimal(kind) and (kind.precision, kind.scale) != (38, 10):
        return Field(column.name, SqlType("numeric", kind.precision, kind.scale), column.nullable)
    return column

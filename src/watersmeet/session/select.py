"""SELECT over the content of the database at one moment."""

from __future__ import annotations

import duckdb
import pyarrow as pa

from watersmeet.dialects.statements import Select
from watersmeet.session.context import Session
from watersmeet.session.queries import bounded, failed_query, reading
from watersmeet.session.result import Result, rows_result
from watersmeet.types import NUMERIC, Field, Schema, SqlType


def select(session: Session, statement: Select) -> Result:
    """Run a query. Inside a transaction that may write, tables are shown with its own changes."""
    query = bounded(session, statement.query, statement.text)
    transaction = session.transaction
    newest = transaction is not None and not transaction.read_only
    with reading(session, query, newest=newest) as connection:
        try:
            columns, table = described(connection.sql(query.sql), query.columns)
        except duckdb.Error as cause:
            raise failed_query(cause, statement.text) from cause
    return rows_result("SELECT", columns, table)


def described(relation: duckdb.DuckDBPyRelation, columns: Schema) -> tuple[Schema, pa.Table]:
    """The rows of a DuckDB relation, and their columns: names and types as bound, or as DuckDB has them."""
    table = relation.to_arrow_table()
    exact = tuple(_exact(c, table.column(i).type) for i, c in enumerate(columns))
    return exact, table.rename_columns([c.name for c in exact])


def _exact(column: Field, kind: pa.DataType) -> Field:
    """The column, with the digits that a number really has."""
    if column.type == NUMERIC and pa.types.is_decimal(kind) and (kind.precision, kind.scale) != (38, 10):
        return Field(column.name, SqlType("numeric", kind.precision, kind.scale), column.nullable)
    return column

"""RETURNING: select items over the rows that a statement changed."""

from __future__ import annotations

import duckdb
import pyarrow as pa
from sqlglot import exp

from watersmeet.catalog import Relation
from watersmeet.dialects.statements import Statement
from watersmeet.session.access.context import Session, error_at
from watersmeet.session.access.reading import bounded, failed_query, lent, table_tree
from watersmeet.session.statements.select import described
from watersmeet.types import Schema


def returning(
    session: Session,
    relation: Relation,
    alias: str | None,
    items: tuple[exp.Expression, ...],
    rows: pa.Table,
    statement: Statement,
) -> tuple[Schema, pa.Table]:
    """The columns and rows that `items` give over `rows` of `relation`."""
    query = bounded(session, exp.select(*items).from_(table_tree(relation, alias), copy=False), statement.text)
    if set(query.depends_on) - {relation.id} or sum(1 for i in items for _ in i.find_all(exp.Subquery)):
        raise error_at(statement, statement.span, "FEATURE_NOT_SUPPORTED", "a subquery in RETURNING is not supported")
    with session.database.content.session() as connection, lent(connection, rows, relation, relation.shown):
        try:
            return described(connection.execute(query.sql).to_arrow_table(), query.columns)
        except duckdb.Error as cause:
            raise failed_query(cause, statement.text) from cause

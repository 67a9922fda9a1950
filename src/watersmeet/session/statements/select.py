"""SELECT: reads the content as of one moment, or runs until it is stopped."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import duckdb

from watersmeet.database.reading import BatchQuery, batch_query, described, reading, rows_read, runs_on
from watersmeet.database.rowchecks import padded
from watersmeet.database.sessions.context import Session
from watersmeet.database.sessions.result import Result, rows_result
from watersmeet.dialects.tree.statements import Select
from watersmeet.system.process import lazy_import

if TYPE_CHECKING:
    from watersmeet.maintenance import refreshing
    from watersmeet.session.statements import running
else:
    refreshing = lazy_import("watersmeet.maintenance.refreshing")
    running = lazy_import("watersmeet.session.statements.running")


def select(session: Session, statement: Select) -> Result:
    """Runs a query. One that names streams runs until its cursor is closed.

    In a transaction that may write, tables include its own changes.
    """
    if runs_on(session, statement.query):
        shown = running.ShownQuery(running.start(session, statement, log=session.semantics.changes_topics == "records"))
        return Result("SELECT", shown.columns, running=shown)
    query = batch_query(session, statement.query, statement.text)
    table = rows_read(session, lambda: read_now(session, query), query.sql, statement.text, session.result_bytes)
    table = padded(table, query.columns)
    return rows_result("SELECT", *described(table, query.columns), query.origins)


@contextmanager
def read_now(session: Session, query: BatchQuery) -> Iterator[duckdb.DuckDBPyConnection]:
    """Like `reading`, after the query's external tables were refreshed."""
    external = refreshing.needed_rows(session, query.pushdowns)
    session.show_writes()
    if refreshing.refresh_read(session, [i for i in query.depends_on if i not in external]):
        session.database.flush()  # a query reads the time of the newest epoch
    transaction = session.transaction
    newest = transaction is not None and not transaction.read_only
    with reading(session, query, newest=newest, external=external) as connection:
        yield connection

"""What a statement would return: its columns, without running it."""

from __future__ import annotations

from dataclasses import replace

from watersmeet.database.reading import bounded, runs_on
from watersmeet.database.sessions.context import Session, check_statement, error_at
from watersmeet.database.sessions.result import Result, lines_result
from watersmeet.dialects.statements.cursors import Fetch
from watersmeet.dialects.statements.explaining import ROW_COLUMNS, ExplainRow
from watersmeet.dialects.statements.preparing import Execute
from watersmeet.dialects.tree.statements import (
    Delete,
    Explain,
    Insert,
    Select,
    Statement,
    Update,
)
from watersmeet.errors import error
from watersmeet.session.features.subscribe import SubscribeChanges, described
from watersmeet.session.handlers import handler_of
from watersmeet.session.statements.dml import described_change
from watersmeet.session.statements.explain import TITLE


def described_result(session: Session, statement: Statement) -> Result | None:
    """A result with the columns of a statement and without rows; None for one that returns none. Errors of binding.

    FEATURE_NOT_SUPPORTED for a query that runs until it is stopped.
    """
    if (own := session.handlers.get(type(statement))) is not None:
        return own.describe(statement)
    check_statement(session, statement)
    if isinstance(statement, Fetch):
        result = session.cursors.named(statement.name).result
        return None if statement.moves or result is None else replace(result, table=None, running=None)
    if isinstance(statement, Execute):
        if statement.name not in session.prepared:
            raise error("UNDEFINED_PREPARED_STATEMENT", f'prepared statement "{statement.name}" does not exist')
        prepared = session.prepared[statement.name]
        return prepared.result
    if isinstance(statement, Select):
        if runs_on(session, statement.query):
            raise error_at(
                statement,
                statement.span,
                "FEATURE_NOT_SUPPORTED",
                "a query that runs until it is stopped can't be prepared",
                hint="Send it as a simple query.",
            )
        query = bounded(session, statement.query, statement.text)
        return Result("SELECT", query.columns, origins=query.origins)
    if isinstance(statement, Explain) and statement.analyze:
        described_result(session, statement.statement)  # its errors, without running it
        return lines_result("EXPLAIN", TITLE, [])
    if isinstance(statement, (Insert, Update, Delete)):
        return described_change(session, statement)
    if isinstance(statement, SubscribeChanges):
        return Result("SUBSCRIBE", described(session, statement))
    if isinstance(statement, ExplainRow):
        return Result("EXPLAIN", ROW_COLUMNS)
    if statement.tells:
        handler = handler_of(type(statement))
        assert handler is not None
        return handler(session, statement)
    return None

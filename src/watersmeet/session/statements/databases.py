"""ALTER DATABASE."""

from __future__ import annotations

from watersmeet.database.sessions.context import Session, error_at, located
from watersmeet.database.sessions.result import Result
from watersmeet.dialects.statements.databases import AlterDatabase

_COMMAND = "ALTER DATABASE"


def alter_database(session: Session, statement: AlterDatabase) -> Result:
    """ALTER DATABASE SET parallelism: from the next epoch on. It returns when that is committed."""
    session.require_writer(_COMMAND)
    session.require_no_transaction(_COMMAND)
    value = statement.parallelism
    if not value.isdecimal():
        raise error_at(statement, statement.place, "INVALID_PARAMETER", f'parallelism is a whole number, not "{value}"')
    with located(statement, statement.place):
        session.database.rescale(int(value))
    return Result(_COMMAND)

"""SET and SHOW of session variables; BEGIN, COMMIT, ROLLBACK, FLUSH."""

from __future__ import annotations

from typing import Final

from watersmeet.database.definitions import USER_SCHEMA, set_schema
from watersmeet.database.sessions.context import Session, error_at
from watersmeet.database.sessions.result import Result, text_result
from watersmeet.database.sessions.variables import variables
from watersmeet.database.transactions import commit, flush, new_transaction, rollback
from watersmeet.dialects.schemas import listed, schema_meant
from watersmeet.dialects.tree.statements import Begin, Commit, Flush, Rollback, SetVariable, ShowVariable
from watersmeet.errors import Error, did_you_mean

#: What SHOW accepts beside variables, for hints.
SHOWN: Final = (
    "dead letters",
    "errors",
    "indexes",
    "jobs",
    "materialized views",
    "memory",
    "parameters",
    "relations",
    "sources",
    "processors",
    "tables",
    "topics",
    "views",
)


def set_variable(session: Session, statement: SetVariable) -> Result:
    """SET name = value, RESET name."""
    if statement.schema is not None:
        return set_schema(session, statement, statement.schema)
    try:
        variable = session.variables.set(statement.name, statement.value)
    except Error as err:
        raise _of_processor(session, statement, err) from None
    if not variable.effect:
        session.notice(
            f"{variable.name} has no effect: Watersmeet itself decides what it controls in {variable.system}"
        )
    if variable.name == "search_path" and statement.value is not None:
        _tell_missing(session)
    return Result("SET")


def _of_processor(session: Session, statement: SetVariable, failure: Error) -> Error:
    """The error with its place; FEATURE_NOT_SUPPORTED for a name that only looks like a processor setting of Lenses."""
    if (
        failure.condition == "UNDEFINED_OBJECT"
        and session.semantics.processors_have_settings
        and "." in statement.name
        and did_you_mean(statement.name, variables()) is None
    ):
        return error_at(
            statement,
            statement.span,
            "FEATURE_NOT_SUPPORTED",
            f"setting {statement.name} is not supported",
            hint="Some processor settings of defaults.topic are supported: SHOW ALL lists them.",
        )
    failure.sql, failure.span = statement.text, statement.span
    return failure


def _tell_missing(session: Session) -> None:
    """Notes the schemas of the path that do not exist. Names are looked up there once they do."""
    for name in listed(session.variables.get("search_path")):
        if name != USER_SCHEMA and schema_meant(name, session.catalog) is None:
            session.notice(f'schema "{name}" does not exist')


def show_variable(session: Session, statement: ShowVariable) -> Result:
    """SHOW name."""
    try:
        value = session.variables.shown(statement.name)
    except Error as err:
        err.sql, err.span = statement.text, statement.name_span
        err.hint = did_you_mean(statement.name, (*variables(), *SHOWN)) or err.hint
        raise
    return text_result("SHOW", (statement.name,), [(value,)])


def begin_statement(session: Session, statement: Begin) -> Result:
    """BEGIN."""
    if session.transaction is not None:
        session.notice("there is already a transaction in progress")
        return Result("BEGIN")
    session.transaction = new_transaction(session, read_only=statement.read_only)
    return Result("BEGIN")


def commit_statement(session: Session, statement: Commit) -> Result:
    """COMMIT."""
    del statement
    if session.transaction is None:
        session.notice("there is no transaction in progress")
    else:
        commit(session)
    return Result("COMMIT")


def rollback_statement(session: Session, statement: Rollback) -> Result:
    """ROLLBACK."""
    del statement
    if session.transaction is None:
        session.notice("there is no transaction in progress")
    else:
        rollback(session)
    return Result("ROLLBACK")


def flush_statement(session: Session, statement: Flush) -> Result:
    """FLUSH: waits until all views show what was committed before."""
    del statement
    flush(session)
    return Result("FLUSH")

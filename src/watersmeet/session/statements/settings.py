"""SET and SHOW of session variables, RESET ALL, DISCARD; BEGIN, COMMIT, ROLLBACK, savepoints, FLUSH."""

from __future__ import annotations

from typing import Final

from watersmeet.database.committing import (
    commit,
    flush,
    new_transaction,
    release_savepoint,
    rollback,
    rollback_to,
    savepoint,
)
from watersmeet.database.definitions import USER_SCHEMA, set_schema
from watersmeet.database.sessions.context import Session, error_at
from watersmeet.database.sessions.result import Result, text_result
from watersmeet.database.sessions.variables import variables
from watersmeet.dialects.schemas import listed, schema_meant
from watersmeet.dialects.statements.sessionstate import Accepted, Discard, ReleaseSavepoint, RollbackTo, Savepoint
from watersmeet.dialects.tree.statements import Begin, Commit, Flush, Rollback, SetVariable, ShowVariable
from watersmeet.dialects.variables import Variable
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
        variable = put_variable(session, statement.name, statement.value, local=statement.local)
    except Error as err:
        raise _of_processor(session, statement, err) from None
    if not variable.effect:
        session.notice(
            f"{variable.name} has no effect: Watersmeet itself decides what it controls in {variable.system}"
        )
    if variable.name == "search_path" and statement.value is not None:
        _tell_missing(session)
    return Result("SET")


def put_variable(session: Session, name: str, value: str | None, *, local: bool) -> Variable:
    """Set a variable; local: until the transaction ends. The errors of `Variables.set`."""
    known, before = session.variables.own(name)
    transaction = session.transaction
    variable = session.variables.set(name, value)
    if transaction is not None and local:
        transaction.local.setdefault(known, before)
    elif transaction is not None:
        transaction.local.pop(known, None)
    elif local:
        session.variables.put_back({known: before})
    return variable


def discard(session: Session, statement: Discard) -> Result:
    """DISCARD, RESET ALL. TRANSACTION_STATE for DISCARD ALL in a transaction."""
    if statement.what == "settings":
        session.variables.reset()
        return Result("RESET")
    if statement.what == "all":
        session.require_no_transaction("DISCARD ALL")
        session.cursors.drop(session.cursors)
        session.variables.reset()
    if statement.what in ("all", "plans"):
        session.prepared.clear()
    return Result(f"DISCARD {statement.what.upper()}")


def accept(session: Session, statement: Accepted) -> Result:
    """A statement that changes nothing."""
    del session
    return Result(statement.command)


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


def savepoint_statement(session: Session, statement: Savepoint) -> Result:
    """SAVEPOINT."""
    savepoint(session, statement.name)
    return Result("SAVEPOINT")


def release_statement(session: Session, statement: ReleaseSavepoint) -> Result:
    """RELEASE SAVEPOINT."""
    release_savepoint(session, statement.name)
    return Result("RELEASE")


def rollback_to_statement(session: Session, statement: RollbackTo) -> Result:
    """ROLLBACK TO SAVEPOINT."""
    rollback_to(session, statement.name)
    return Result("ROLLBACK")


def flush_statement(session: Session, statement: Flush) -> Result:
    """FLUSH: waits until all views show what was committed before."""
    del statement
    flush(session)
    return Result("FLUSH")

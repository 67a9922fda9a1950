"""Runs the statements of a text, one after the other."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import duckdb
import pyarrow as pa

from watersmeet.dialects import parse
from watersmeet.dialects import statements as st
from watersmeet.errors import Error, error
from watersmeet.kernel.evaluation.duck import is_interrupt
from watersmeet.late import late
from watersmeet.session import bounds, transactions
from watersmeet.session.context import Session, error_at
from watersmeet.session.queries import failed_query
from watersmeet.session.result import Result
from watersmeet.session.transaction import Transaction

if TYPE_CHECKING:
    from watersmeet.session import bulk
else:
    bulk = late("watersmeet.session.bulk")

Handler = Callable[[Session, Any], Result]

#: By module and function: what a session never runs is not imported.
_HANDLERS: Final[dict[type[st.Statement], str]] = {
    st.Begin: "transactions.begin_statement",
    st.Commit: "transactions.commit_statement",
    st.CreateDictionary: "external.create_dictionary",
    st.CreateExternalStream: "external.create_external_stream",
    st.CreateExternalTable: "external.create_external_table",
    st.CreateFunction: "sqlfunctions.create_function",
    st.CreateIndex: "ddl.create_index",
    st.CreateMaterializedView: "materialize.create_materialized_view",
    st.AddColumn: "altering.alter",
    st.AlterPump: "pumps.alter_pump",
    st.CreatePump: "pumps.create_pump",
    st.CreateProcessor: "topics.create_processor",
    st.CreateSchema: "schemaddl.create_schema",
    st.CreateSource: "ddl.create_source",
    st.CreateStream: "streams.create_stream",
    st.CreateTable: "ddl.create_table",
    st.CreateTopic: "topics.create_topic",
    st.CreateView: "ddl.create_view",
    st.Delete: "dml.delete",
    st.Describe: "show.describe",
    st.Drop: "ddl.drop",
    st.DropFunction: "sqlfunctions.drop_function",
    st.DropSchema: "schemaddl.drop_schema",
    st.Explain: "explain.explain_statement",
    st.Flush: "transactions.flush_statement",
    st.Insert: "dml.insert",
    st.KillQuery: "running.kill_query",
    st.RenameColumn: "altering.alter",
    st.RenameRelation: "altering.alter",
    st.Rollback: "transactions.rollback_statement",
    st.Select: "select.select",
    st.SetVariable: "settings.set_variable",
    st.Show: "show.show",
    st.ShowVariable: "settings.show_variable",
    st.StopProcessor: "topics.stop_processor",
    st.Update: "dml.update",
}

#: These wait for views, with other threads' statements going on; they exclude each other.
_DDL: Final = (
    st.Alter,
    st.AlterPump,
    st.CreateDictionary,
    st.CreateExternalStream,
    st.CreateExternalTable,
    st.CreateFunction,
    st.CreateIndex,
    st.CreateMaterializedView,
    st.CreateProcessor,
    st.CreateSchema,
    st.CreateSource,
    st.CreateStream,
    st.CreateTable,
    st.CreateTopic,
    st.CreateView,
    st.Drop,
    st.DropFunction,
    st.DropSchema,
    st.KillQuery,
    st.StopProcessor,
    st.Unit,
)


def execute(session: Session, text: str, parameters: Sequence[Any], lock: threading.RLock) -> Result:
    """Run the statements of `text`; the result of the last one, with the notices of all."""
    with session.numbered():
        statements = _parsed(session, text, parameters)
        session.notices.clear()
        result = Result("")
        for statement in statements:
            result = _run(session, statement, lock)
        return replace(result, notices=tuple(session.notices))


def execute_each(session: Session, text: str, lock: threading.RLock) -> Iterator[Result]:
    """Run the statements of `text` and give the result of each, with its notices. None runs if one can't be parsed."""
    with session.numbered():
        statements = _parsed(session, text, ())
    for statement in statements:
        yield _one_of(session, statement, lock)


def execute_whole(session: Session, text: str, lock: threading.RLock) -> Iterator[Result]:
    """As `execute_each`, in one transaction: after an error, or when no more results are asked for, nothing is left of
    what was done since the last FLUSH, which commits what stands before it. An error says so in its detail.

    A text that has BEGIN, COMMIT or ROLLBACK itself is run as it says, as is one within a transaction.
    """
    with session.numbered():
        statements = _parsed(session, text, ())
    if session.transaction is not None or any(isinstance(s, (st.Begin, st.Commit, st.Rollback)) for s in statements):
        yield from execute_each(session, text, lock)
        return
    flushed: st.Statement | None = None
    transaction: Transaction | None = None
    try:
        for statement in statements:
            if isinstance(statement, st.Flush):
                _commit_whole(session, lock)
                flushed, transaction = statement, None
            elif transaction is None:
                transaction = session.transaction = transactions.new_transaction(session)
            yield _one_of(session, statement, lock)
        _commit_whole(session, lock)
    except Error as err:
        if transaction is None or not transaction.committed:
            left = _left(flushed)
            err.detail = left if err.detail is None else f"{err.detail} {left}"
        raise
    finally:
        if session.transaction is not None:
            with lock:
                transactions.rollback(session)


def _left(flushed: st.Statement | None) -> str:
    """What is left of a script that failed. flushed: its last FLUSH before that."""
    if flushed is None:
        return "Nothing of the script was done."
    line = flushed.text.count("\n", 0, flushed.span.start) + 1
    return f"What stands before the FLUSH in line {line} was done, what stands behind it was not."


def _one_of(session: Session, statement: st.Statement, lock: threading.RLock) -> Result:
    """The result of one statement of several, with its notices."""
    session.notices.clear()
    with session.numbered():
        result = _run(session, statement, lock)
    return replace(result, notices=tuple(session.notices))


def _commit_whole(session: Session, lock: threading.RLock) -> None:
    if session.transaction is None:
        return
    with lock, session.numbered():
        transactions.commit(session)
    transactions.wait_if_wanted(session)


def execute_many(session: Session, text: str, rows: Sequence[Sequence[Any]], lock: threading.RLock) -> Result:
    """Run one statement for each of `rows`, as one transaction; `rowcount` is the sum."""
    session.notices.clear()
    if not rows:
        return Result("", rowcount=0)
    with lock:
        done = bulk.insert_many(session, text, rows)
        if done is None:
            with transactions.own_transaction(session):
                results = [execute(session, text, row, lock) for row in rows]
                done = Result(
                    results[-1].command,
                    rowcount=sum(max(r.rowcount, 0) for r in results),
                    notices=tuple(n for r in results for n in r.notices),
                )
    transactions.wait_if_wanted(session)
    return done


def _parsed(session: Session, text: str, parameters: Sequence[Any]) -> list[st.Statement]:
    if not isinstance(text, str):
        raise error("INVALID_PARAMETER", f"a statement is a text, not {type(text).__name__}")
    if isinstance(parameters, (str, bytes)):
        raise error("INVALID_PARAMETER", "parameters must be a sequence of values, one for each question mark")
    return parse(text, session.dialect, parameters or ())


def _run(session: Session, statement: st.Statement, lock: threading.RLock) -> Result:
    makes = isinstance(statement, _DDL) or (
        isinstance(statement, st.Select) and bounds.runs_on(session, statement.query)
    )
    locked: AbstractContextManager[Any] = session.database.ddl if makes else lock
    if isinstance(statement, st.Flush):
        locked = nullcontext()
    with locked:
        # A statement that makes something takes its time: what other threads begin meanwhile is not its transaction.
        own = replace(session) if makes and session.transaction is None else session
        try:
            with session.database.log.explaining():
                result = run_statement(own, statement)
        except Error:
            _fail(own)
            raise
        except duckdb.Error as cause:
            _fail(own)
            raise failed_query(cause, statement.text) from cause
        except pa.ArrowException as cause:
            _fail(own)
            raise error("INTERNAL_ERROR", str(cause), sql=statement.text) from cause
        except (KeyboardInterrupt, RuntimeError) as cause:
            if not is_interrupt(cause):
                raise
            _fail(own)
            raise KeyboardInterrupt from cause
    if isinstance(statement, (st.Insert, st.Update, st.Delete, st.Commit)):
        transactions.wait_if_wanted(session)
    return result


def _fail(session: Session) -> None:
    if session.transaction is not None:
        session.transaction.failed = True


def handler_of(kind: type[st.Statement]) -> Handler | None:
    """What runs statements of a type: imported when the first one comes. None if nothing does."""
    name = _HANDLERS.get(kind)
    if name is None:
        return None
    module, function = name.split(".")
    handler: Handler = getattr(importlib.import_module(f"watersmeet.session.{module}"), function)
    return handler


def run_statement(session: Session, statement: st.Statement) -> Result:
    """Run one statement, without taking any lock of the connection."""
    transaction = session.transaction
    if transaction is not None and transaction.failed and not isinstance(statement, (st.Rollback, st.Commit)):
        raise error("TRANSACTION_STATE", "the transaction has failed, statements are ignored until ROLLBACK")
    if isinstance(statement, st.Refused):
        raise statement.error
    if isinstance(statement, st.Unit):
        return _run_unit(session, statement)
    handler = handler_of(type(statement))
    if handler is None:
        raise error_at(
            statement, statement.span, "FEATURE_NOT_SUPPORTED", f"{type(statement).__name__} is not supported"
        )
    replaces = isinstance(statement, (st.Create, st.CreateSchema)) and statement.replaces
    try:
        with transactions.own_transaction(session) if replaces else nullcontext():
            return handler(session, statement)
    except Error as err:
        if err.span is not None and err.sql is None:  # of the planner, which has not the text
            err.sql = statement.text
        raise


def _run_unit(session: Session, unit: st.Unit) -> Result:
    """Run all statements of a unit; if one fails, nothing of those before it is left."""
    variables = session.variables.saved()
    result = Result("")
    try:
        with transactions.own_transaction(session):
            for statement in unit.statements:
                result = run_statement(session, statement)
    except BaseException:
        session.variables.restore(variables)
        raise
    return result

"""Runs the statements of a text, one after the other."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any, Final

import duckdb
import pyarrow as pa

from watersmeet.dialects import parse
from watersmeet.dialects import statements as st
from watersmeet.errors import Error, error
from watersmeet.kernel.evaluation.duck import is_interrupt
from watersmeet.session import (
    bounds,
    ddl,
    dml,
    explain,
    external,
    materialize,
    pumps,
    schemas,
    select,
    settings,
    show,
    streams,
    topics,
    transactions,
)
from watersmeet.session.bulk import insert_many
from watersmeet.session.context import Session, error_at
from watersmeet.session.queries import failed_query
from watersmeet.session.result import Result

Handler = Callable[[Session, Any], Result]

_HANDLERS: Final[dict[type[st.Statement], Handler]] = {
    st.Begin: transactions.begin_statement,
    st.Commit: transactions.commit_statement,
    st.CreateDictionary: external.create_dictionary,
    st.CreateExternalStream: external.create_external_stream,
    st.CreateExternalTable: external.create_external_table,
    st.CreateIndex: ddl.create_index,
    st.CreateMaterializedView: materialize.create_materialized_view,
    st.AlterPump: pumps.alter_pump,
    st.CreatePump: pumps.create_pump,
    st.CreateProcessor: topics.create_processor,
    st.CreateSchema: schemas.create_schema,
    st.CreateSource: ddl.create_source,
    st.CreateStream: streams.create_stream,
    st.CreateTable: ddl.create_table,
    st.CreateTopic: topics.create_topic,
    st.CreateView: ddl.create_view,
    st.Delete: dml.delete,
    st.Describe: show.describe,
    st.Drop: ddl.drop,
    st.DropSchema: ddl.drop_schema,
    st.Explain: explain.explain_statement,
    st.Flush: transactions.flush_statement,
    st.Insert: dml.insert,
    st.Rollback: transactions.rollback_statement,
    st.Select: select.select,
    st.SetVariable: settings.set_variable,
    st.Show: show.show,
    st.ShowVariable: settings.show_variable,
    st.StopProcessor: topics.stop_processor,
    st.Update: dml.update,
}

#: These wait for views, with other threads' statements going on; they exclude each other.
_DDL: Final = (st.AlterPump, st.CreateDictionary, st.CreateExternalStream, st.CreateExternalTable, st.CreateIndex, st.CreateMaterializedView,
               st.CreateProcessor, st.CreateSchema, st.CreateSource, st.CreateStream, st.CreateTable, st.CreateTopic, st.CreateView, st.Drop,
               st.DropSchema, st.StopProcessor, st.Unit)


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
        session.notices.clear()
        with session.numbered():
            result = _run(session, statement, lock)
        yield replace(result, notices=tuple(session.notices))


def execute_many(session: Session, text: str, rows: Sequence[Sequence[Any]], lock: threading.RLock) -> Result:
    """Run one statement for each of `rows`, as one transaction; `rowcount` is the sum."""
    session.notices.clear()
    if not rows:
        return Result("", rowcount=0)
    with lock:
        done = insert_many(session, text, rows)
        if done is None:
            with transactions.own_transaction(session):
                results = [execute(session, text, row, lock) for row in rows]
                done = Result(results[-1].command, rowcount=sum(max(r.rowcount, 0) for r in results),
                              notices=tuple(n for r in results for n in r.notices))
    transactions.wait_if_wanted(session)
    return done


def _parsed(session: Session, text: str, parameters: Sequence[Any]) -> list[st.Statement]:
    if not isinstance(text, str):
        raise error("INVALID_PARAMETER", f"a statement is a text, not {type(text).__name__}")
    if isinstance(parameters, (str, bytes)):
        raise error("INVALID_PARAMETER", "parameters must be a sequence of values, one for each question mark")
    return parse(text, session.dialect, parameters or ())


def _run(session: Session, statement: st.Statement, lock: threading.RLock) -> Result:
    makes = isinstance(statement, _DDL) or (isinstance(statement, st.Select) and bounds.runs_on(session, statement.query))
    locked: AbstractContextManager[Any] = session.database.ddl if makes else lock
    if isinstance(statement, st.Flush):
        locked = nullcontext()
    with locked:
        try:
            result = run_statement(session, statement)
        except Error:
            _fail(session)
            raise
        except duckdb.Error as cause:
            _fail(session)
            raise failed_query(cause, statement.text) from cause
        except pa.ArrowException as cause:
            _fail(session)
            raise error("INTERNAL_ERROR", str(cause), sql=statement.text) from cause
        except (KeyboardInterrupt, RuntimeError) as cause:
            if not is_interrupt(cause):
                raise
            _fail(session)
            raise KeyboardInterrupt from cause
    if isinstance(statement, (st.Insert, st.Update, st.Delete, st.Commit)):
        transactions.wait_if_wanted(session)
    return result


def _fail(session: Session) -> None:
    if session.transaction is not None:
        session.transaction.failed = True


def run_statement(session: Session, statement: st.Statement) -> Result:
    """Run one statement, without taking any lock of the connection."""
    transaction = session.transaction
    if transaction is not None and transaction.failed and not isinstance(statement, (st.Rollback, st.Commit)):
        raise error("TRANSACTION_STATE", "the transaction has failed, statements are ignored until ROLLBACK")
    if isinstance(statement, st.Refused):
        raise statement.error
    if isinstance(statement, st.Unit):
        return _run_unit(session, statement)
    handler = _HANDLERS.get(type(statement))
    if handler is None:
        raise error_at(statement, statement.span, "FEATURE_NOT_SUPPORTED",
                       f"{type(statement).__name__} is not supported")
    try:
        return handler(session, statement)
    except Error as err:
        if err.span is not None and err.sql is None:  # of the planner, which has not the text
            err.sql = statement.text
        raise


def _run_unit(session: Session, unit: st.Unit) -> Result:
    """Run all statements of a unit; if one fails, nothing of those before it is left."""
    known, variables = session.catalog.relations, session.variables.saved()
    result = Result("")
    try:
        for statement in unit.statements:
            result = run_statement(session, statement)
    except BaseException:
        session.variables.restore(variables)
        made = session.catalog.relations.keys() - known.keys()
        if made:
            ddl.remove(session, set(made))
        for replaced in known.keys() - session.catalog.relations.keys():  # a declared topic that a processor was to write: it has no records
            ddl.add(session, known[replaced])
        raise
    return result

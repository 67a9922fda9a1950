"""Runs the statements of a text sequentially."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import replace
from typing import Any, Final

import duckdb
import pyarrow as pa

from watersmeet.database import committing
from watersmeet.database.definitions import is_redefined, keeping_grants
from watersmeet.database.filling import BackgroundFills, fill_together, forget_joint
from watersmeet.database.reading import failed_query, runs_on
from watersmeet.database.sessions.context import FilledAloneError, JointFill, Nested, Session, check_statement
from watersmeet.database.sessions.result import Result, in_zone, rows_result
from watersmeet.database.sessions.snapshots import begin_statement
from watersmeet.database.transaction import Transaction
from watersmeet.database.writing import write_pending
from watersmeet.dialects.statements.dml import CopyFrom
from watersmeet.dialects.statements.functions import CreateFunction
from watersmeet.dialects.tree import definitions as df
from watersmeet.dialects.tree import statements as st
from watersmeet.dialects.tree.tokens import not_supported
from watersmeet.errors import Error, error
from watersmeet.kernel.evaluation.duck import is_interrupt
from watersmeet.session.connections.scripts import ScriptRun, check_replacing
from watersmeet.session.features.lakedatabases import take_over_tables
from watersmeet.session.features.settings import (
    RollbackTo,
    Savepoint,
    SetTransaction,
    after_commit,
    drop_leftovers,
    end_session,
)
from watersmeet.session.handlers import NESTING, handler_of, insert_many, nested_handler_of
from watersmeet.session.statements import small

#: Statements that begin and end transactions.
CONTROL: Final = (st.Begin, st.Commit, st.Rollback)


class LookupPlans(small.Plans):
    """The plans of the look-ups that a connection has run."""


def execute(
    session: Session, text: str, parameters: Sequence[Any], lock: threading.RLock, plans: LookupPlans | None = None
) -> Result:
    """Runs the statements of `text`. Returns the result of the last one, with the notices of all. plans: those of the
    look-ups that the connection has run; None to parse each text.
    """
    # in a read-only session each use of a plan would look for a newer commit, which is a request of an object store
    if session.database.read_only or not isinstance(parameters, (list, tuple)):
        plans = None
    with session.numbered():
        found = None if plans is None else _looked_up(session, text, parameters, lock, plans)
        if found is not None:
            return _shown(session, found)
        statements = _parsed(session, text, parameters)
        session.notices.clear()
        results = list(together(session, statements, lock, lambda s: [_run(session, s, lock)]))
        if plans is not None and len(statements) == 1 and isinstance(statements[0], st.Select):
            plans.note_text(session, text, statements[0], parameters)
        return _shown(session, results[-1] if results else Result(""))


def _looked_up(
    session: Session, text: str, parameters: Sequence[Any], lock: threading.RLock, plans: LookupPlans
) -> Result | None:
    """The result of a look-up that has a plan; None for a text that must be parsed."""
    if session.transaction is not None or session.result_bytes or not isinstance(text, str):
        return None
    found = plans.of_text(session, text, parameters)
    if found is None or not isinstance(plan := found[0], small.LookupPlan):
        return None
    value = plan.given(found[1])
    if value is None:
        return None
    session.notices.clear()
    session.show_writes()
    lookup = small.Lookup(session, plan, value)
    try:
        with lock, session.database.log.same_head(), session.database.log.explaining():
            results = small.look_up(session.database, [lookup])
    except duckdb.Error:
        return None  # the statement raises the error with its text
    if lookup.outdated or not results:
        return None
    return rows_result("SELECT", results[0].columns, results[0].rows, plan.origins)


def execute_each(
    session: Session, text: str, lock: threading.RLock, name: str | None = None, *, replaces: bool = False
) -> Iterator[Result]:
    """Runs the statements of `text` and yields the result of each, with its notices. If one of them can't be parsed,
    none is run.

    name, replaces: as in `Connection.execute_script`.
    """
    statements, script = _read(session, text, name, replaces=replaces)
    yield from _execute_all(session, statements, lock, script)


def _execute_all(
    session: Session, statements: Sequence[st.Statement], lock: threading.RLock, script: ScriptRun | None
) -> Iterator[Result]:
    if script is None:
        yield from together(session, statements, lock, lambda s: [execute_statement(session, s, lock)])
        return
    for statement in statements:  # each is committed with the record that it ran
        yield from _execute_new(session, statement, lock, script)
    yield from _summary(script)


#: Views that are filled together: their epoch runs all of them, and if one fails, each is filled again.
_MOST_TOGETHER: Final = 200


def together(
    session: Session,
    statements: Sequence[st.Statement],
    lock: threading.RLock,
    run: Callable[[st.Statement], Iterable[Result]],
) -> Iterator[Result]:
    """The results of `run` for each statement. Views that consecutive statements create are filled in one step; their
    results follow it. If that fails, each is created by itself, so that errors are those of its statement.
    """
    rest = list(statements)
    while rest:
        group = list(itertools.takewhile(_joins, rest[:_MOST_TOGETHER]))
        if len(group) < 2 or session.variables.is_on("continue_after_errors"):
            yield from run(rest.pop(0))
            continue
        _write_pending(session, group[0], lock)
        done: list[Sequence[Result]] = []
        failure: Error | None = None
        with session.database.ddl:
            joint = session.joint = JointFill()
            try:
                for statement in group:
                    results = list(run(statement))
                    done.append(results)
            except FilledAloneError:
                pass
            except Error as err:
                failure = err
            except BaseException:
                forget_joint(session, joint)
                raise
            finally:
                session.joint = None
            if failure is not None and session.transaction is not None:
                forget_joint(session, joint)  # its transaction is rolled back
                is_filled = True
            else:
                is_filled = not joint.relations or fill_together(session, joint)
        for made, statement in zip(done, group, strict=False):
            yield from made if is_filled else run(statement)
        if failure is not None:
            raise failure
        del rest[: len(done)]
        if len(done) < len(group):
            yield from run(rest.pop(0))


def _joins(statement: st.Statement) -> bool:
    """Whether a statement creates a view that can be filled together with others."""
    return (
        type(statement) is df.CreateMaterializedView
        and statement.into is None
        and not (statement.paused or statement.replaces)
    )


def execute_whole(
    session: Session, text: str, lock: threading.RLock, name: str | None = None, *, replaces: bool = False
) -> Iterator[Result]:
    """Like `execute_each`, in one transaction. An error, or a caller that stops iterating, undoes everything since the
    last FLUSH or other statement that can't be undone: the statements before it are committed. The error's detail
    reports this.

    A text with BEGIN, COMMIT or ROLLBACK of its own is run as written; so is a text within a transaction.
    """
    statements, script = _read(session, text, name, replaces=replaces)
    if session.transaction is not None or any(isinstance(s, CONTROL) for s in statements):
        yield from _execute_all(session, statements, lock, script)
        return
    committed: list[st.Statement] = []
    begun: list[Transaction] = []

    def run(statement: st.Statement) -> Iterator[Result]:
        if statement.alone:
            commit_whole(session, lock)
            committed.append(statement)
            begun.clear()
        elif not begun:
            session.transaction = committing.new_transaction(session)
            begun.append(session.transaction)
        yield from _execute_new(session, statement, lock, script)

    try:
        yield from together(session, statements, lock, run)
        commit_whole(session, lock)
        yield from _summary(script)
    except Error as err:
        if not begun or not begun[0].committed:
            left = _left(committed[-1] if committed else None)
            err.detail = left if err.detail is None else f"{err.detail} {left}"
        raise
    finally:
        _roll_back(session, lock)


def _roll_back(session: Session, lock: threading.RLock) -> None:
    if session.transaction is not None:
        with lock:
            committing.rollback(session)


def _read(
    session: Session, text: str, name: str | None, *, replaces: bool
) -> tuple[list[st.Statement], ScriptRun | None]:
    with session.numbered():
        statements = _parsed(session, text, ())
    return statements, None if name is None else ScriptRun(session, name, statements, replaces=replaces)


def _execute_new(
    session: Session, statement: st.Statement, lock: threading.RLock, script: ScriptRun | None
) -> Iterator[Result]:
    """The result of a statement; nothing if the script ran before and the statement must not run again."""
    if script is None:
        yield execute_statement(session, statement, lock)
        return
    steps = [script.step(s) for s in st.single([statement])]
    for step in steps:
        if step.action == "changed":
            notice = f"{step.title} is defined in another way than in {script.name}, and stays as it is"
            yield Result("", notices=(notice,))
    running = [s.statement for s in steps if s.runs]
    script.skipped += len(steps) - len(running)
    if not running:
        return
    before = [script.target(s) for s in running]
    if isinstance(statement, st.Unit):
        statement = replace(statement, statements=tuple(running))
    elif script.replaces and steps[0].action == "differs" and isinstance(statement, df.Create):
        check_replacing(session, steps[0])
        statement = replace(statement, replaces=True)
    recorded = any(s.once or isinstance(s, df.CreateProcessor) for s in running)
    own = session.transaction is None and recorded and not statement.alone
    if own:  # one commit: its effect, and the record that it ran
        session.transaction = committing.new_transaction(session)
    try:
        result = execute_statement(session, statement, lock)
        with committing.own_transaction(session) if script.notes(running) else nullcontext():
            for ran, target in zip(running, before, strict=True):
                script.note(ran, target)
        if own:
            commit_whole(session, lock)
        yield result
    finally:
        if own:
            _roll_back(session, lock)


def _summary(script: ScriptRun | None) -> Iterator[Result]:
    if script is not None and script.skipped:
        count = f"{script.skipped} statement{'s' if script.skipped > 1 else ''}"
        yield Result("", notices=(f"{script.name}: {count} skipped, because the database has their effect",))


def _left(committed: st.Statement | None) -> str:
    """A sentence on the part of a failed script that took effect. committed: its last statement that could not be
    undone.
    """
    if committed is None:
        return "Nothing of the script was done."
    line = committed.text.count("\n", 0, committed.span.start) + 1
    if isinstance(committed, st.Flush):
        return f"The statements before the FLUSH in line {line} took effect, those after it did not."
    return f"The statements up to line {line} took effect, those after it did not."


def execute_statement(session: Session, statement: st.Statement, lock: threading.RLock) -> Result:
    """The result of one statement, with its notices."""
    session.notices.clear()
    with session.numbered():
        result = _run(session, statement, lock)
    if session.temporaries.on_commit:
        with lock:
            after_commit(session)
    return _shown(session, result)


def _shown(session: Session, result: Result) -> Result:
    """The result with the notices, and with times in the zone of the session."""
    zone = session.variables.zone
    return replace(result, table=in_zone(result.table, zone), zone=zone, notices=tuple(session.notices))


def commit_whole(session: Session, lock: threading.RLock) -> None:
    """Commits the transaction around several statements, if any; then waits for views if the session is set to."""
    if session.transaction is None:
        return
    with lock, session.numbered():
        committing.commit(session)
        after_commit(session)
    committing.wait_if_wanted(session)


def write_added(session: Session, lock: threading.RLock) -> None:
    """Writes the rows that INSERTs have added to the open transaction. Raises the errors of their constraints."""
    with lock:
        write_pending(session)


def begin(session: Session) -> None:
    """Drops what the sessions of an earlier process have left, when a database is opened for writing."""
    session.database.add(BackgroundFills(replace(session)))
    drop_leftovers(session)


def end(session: Session) -> None:
    """Stops the running queries of a session, and drops its temporary relations."""
    session.stop_running()
    with suppress(Error):  # the next start drops what remains
        end_session(session)


def execute_many(session: Session, text: str, rows: Sequence[Sequence[Any]], lock: threading.RLock) -> Result:
    """Runs one statement for each of `rows`, in one transaction. `rowcount` is the sum."""
    session.notices.clear()
    if not rows:
        return Result("", rowcount=0)
    with lock:
        done = insert_many(session, text, rows)
        if done is None:
            with committing.own_transaction(session):
                results = [execute(session, text, row, lock) for row in rows]
                done = Result(
                    results[-1].command,
                    rowcount=sum(max(r.rowcount, 0) for r in results),
                    notices=tuple(n for r in results for n in r.notices),
                )
    committing.wait_if_wanted(session)
    return done


def _parsed(session: Session, text: str, parameters: Sequence[Any]) -> list[st.Statement]:
    if not isinstance(text, str):
        raise error("INVALID_PARAMETER", f"a statement must be a string, not {type(text).__name__}")
    if isinstance(parameters, (str, bytes)):
        raise error("INVALID_PARAMETER", "parameters must be a sequence of values, one for each question mark")
    return session.parse(text, parameters or ())


#: Statements that neither read nor write rows.
_USE_NOTHING: Final = (*CONTROL, st.SetVariable, st.ShowVariable, st.Accepted, SetTransaction, Savepoint)

#: Within a transaction, the changes of a failed statement are undone up to this savepoint.
_BEFORE: Final = "before a statement that may fail"


def _run(session: Session, statement: st.Statement, lock: threading.RLock) -> Result:
    if isinstance(statement, CONTROL) or not session.variables.is_on("continue_after_errors"):
        return _run_one(session, statement, lock)
    transaction = session.transaction
    if transaction is not None:
        committing.savepoint(session, _BEFORE)
    try:
        result = _run_one(session, statement, lock)
    except Error as err:
        if transaction is not None:
            try:
                committing.rollback_to(session, _BEFORE)
            except Error:
                raise err from None
        session.notice(f"failed, and the script continues: {err.message}")
        result = Result("")
    if transaction is not None and session.transaction is transaction:
        committing.release_savepoint(session, _BEFORE)
    return result


def _run_one(session: Session, statement: st.Statement, lock: threading.RLock) -> Result:
    kind = type(statement)
    if kind is not st.Rollback:
        _write_pending(session, statement, lock)
    if session.transaction is not None and kind not in _USE_NOTHING:
        with _failing(session, statement):
            begin_statement(session.database, session.transaction)
    if kind in NESTING or kind in session.handlers:
        nested = Nested(lambda inner: _run(session, inner, lock), lock)
        with _failing(session, statement):
            _check_open(session, statement)
            if (own := session.handlers.get(kind)) is not None:
                return own.run(statement, nested)
            check_statement(session, statement)
            return nested_handler_of(kind)(session, statement, nested)
    if not isinstance(statement, st.Select):
        return _run_locked(session, statement, lock, makes=statement.defines)
    with session.database.log.same_head():
        if not runs_on(session, statement.query):
            return _run_locked(session, statement, lock, makes=False)
    return _run_locked(session, statement, lock, makes=True)


def _write_pending(session: Session, statement: st.Statement, lock: threading.RLock) -> None:
    """Adds the rows of earlier INSERTs to the open transaction, if any."""
    if session.transaction is not None and session.transaction.pending:
        with lock, _failing(session, statement):
            write_pending(session)


#: Statements that change rows of tables.
WRITING: Final = (CopyFrom, st.Insert, st.Update, st.Delete, st.MergeInto, st.WithChanges)


def _run_locked(session: Session, statement: st.Statement, lock: threading.RLock, *, makes: bool) -> Result:
    """makes: the statement creates a relation; others that create one wait for it."""
    locked: AbstractContextManager[Any] = session.database.ddl if makes else lock
    if isinstance(statement, st.Flush):
        locked = nullcontext()
    with locked:
        # Creating a relation takes time; a transaction that another thread begins meanwhile is not this one.
        own = replace(session) if makes and session.transaction is None else session
        with _failing(own, statement), session.database.log.explaining():
            result = run_statement(own, statement)
    if isinstance(statement, (*WRITING, st.Commit)):
        committing.wait_if_wanted(session)
    return result


@contextmanager
def _failing(session: Session, statement: st.Statement) -> Iterator[None]:
    """While it is open, errors abort the transaction, and errors of libraries become errors of the statement."""
    try:
        yield
    except Error:
        _fail(session)
        raise
    except duckdb.Error as cause:
        _fail(session)
        raise failed_query(cause, statement.text) from cause
    except UnicodeDecodeError as cause:  # DuckDB cut a text of its message within a character
        _fail(session)
        raise error(
            "INVALID_VALUE",
            "a text is malformed",
            detail="A function or a cast does not accept it; DuckDB does not report which.",
            sql=statement.text,
        ) from cause
    except pa.ArrowException as cause:
        _fail(session)
        raise error("INTERNAL_ERROR", str(cause), sql=statement.text) from cause
    except (KeyboardInterrupt, RuntimeError) as cause:
        if not is_interrupt(cause):
            raise
        _fail(session)
        raise KeyboardInterrupt from cause


def _fail(session: Session) -> None:
    if session.transaction is not None:
        session.transaction.failed = True


def run_statement(session: Session, statement: st.Statement) -> Result:
    """Runs one statement without taking any lock of the connection."""
    _check_open(session, statement)
    if isinstance(statement, st.Refused):
        raise statement.error
    check_statement(session, statement)
    if isinstance(statement, st.Unit):
        return _run_unit(session, statement)
    handler = handler_of(type(statement))
    if handler is None:
        raise not_supported(type(statement).__name__, statement.text, statement.span)
    for notice in statement.notices:
        session.notice(notice)
    replaces = isinstance(statement, (df.Create, df.CreateSchema)) and statement.replaces
    if replaces and session.joint is not None:
        raise FilledAloneError
    try:
        alone = not replaces or isinstance(statement, CreateFunction) or is_redefined(session, statement)
        with nullcontext() if alone else committing.own_transaction(session):
            if replaces and isinstance(statement, df.Create):
                with keeping_grants(session, statement):
                    return handler(session, statement)
            try:
                return handler(session, statement)
            except Error as err:
                if err.condition == "UNDEFINED_RELATION" and take_over_tables(session):
                    return handler(session, statement)  # it is in the catalog now
                raise
    except Error as err:
        if err.span is not None and err.sql is None:  # errors of the planner lack the SQL text
            err.sql = statement.text
        raise


def _check_open(session: Session, statement: st.Statement) -> None:
    """Raises TRANSACTION_STATE for a statement in a failed transaction, unless it ends the transaction."""
    transaction = session.transaction
    if transaction is not None and transaction.failed and not isinstance(statement, (*CONTROL[1:], RollbackTo)):
        raise error("TRANSACTION_STATE", "the transaction has failed, statements are ignored until ROLLBACK")


def _run_unit(session: Session, unit: st.Unit) -> Result:
    """Runs all statements of a unit. If one fails, earlier ones are undone."""
    variables = session.variables.saved()
    result = Result("")
    try:
        with committing.own_transaction(session):
            for statement in unit.statements:
                result = run_statement(session, statement)
    except BaseException:
        session.variables.restore(variables)
        raise
    return result

"""The connection of PEP 249, and callables of Python as functions of its database.

A callable is stored pickled, with the functions and values of its module that it uses, so it outlives its process.
Objects that Spark's `udf` and `pandas_udf` return have their type and form.
"""

from __future__ import annotations

import base64
import datetime as dt
import decimal
import inspect
import os
import sys
import textwrap
import types
import typing
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from watersmeet import errors
from watersmeet.database import committing
from watersmeet.database.opened import OpenDatabase
from watersmeet.database.sessions.context import Session
from watersmeet.database.sessions.result import Result
from watersmeet.dialects.parsing import parse
from watersmeet.dialects.statements.functions import CreateFunction
from watersmeet.dialects.tree.statements import Recover, Select, Statement, Subscribe
from watersmeet.dialects.tree.tokens import quoted
from watersmeet.errors import error
from watersmeet.session.connections.cursor import Cursor
from watersmeet.session.connections.execute import (
    LookupPlans,
    end,
    execute,
    execute_each,
    execute_many,
    execute_statement,
    execute_whole,
)
from watersmeet.session.handlers import function_named
from watersmeet.system.process import lazy_import
from watersmeet.system.threads import lock
from watersmeet.values import DEFAULT_DIALECT
from watersmeet.values.calledfunctions import Form

if TYPE_CHECKING:
    from watersmeet.session import status
    from watersmeet.session.statements import running
    from watersmeet.session.status import TopologyFormat
    from watersmeet.subscribing import subscriber
else:
    subscriber = lazy_import("watersmeet.subscribing.subscriber")
    running = lazy_import("watersmeet.session.statements.running")
    status = lazy_import("watersmeet.session.status")

#: The function that starts a running query, for each type of statement.
_STARTING: Final[dict[type[Statement], str]] = {
    Recover: "running.recover",
    Select: "running.start",
    Subscribe: "running.start_subscription",
}


def _close(database: OpenDatabase, owner: int) -> None:
    """Close a database. owner: the process that opened it; its forks, which have a copy, leave it open."""
    if os.getpid() == owner:
        database.close()


class Connection:
    """A session. Several threads may use it; its statements run sequentially.

    Each statement commits by itself, except between BEGIN and COMMIT.
    """

    Warning = errors.Warning
    Error = errors.Error
    InterfaceError = errors.InterfaceError
    DatabaseError = errors.DatabaseError
    DataError = errors.DataError
    OperationalError = errors.OperationalError
    IntegrityError = errors.IntegrityError
    InternalError = errors.InternalError
    ProgrammingError = errors.ProgrammingError
    NotSupportedError = errors.NotSupportedError

    def __init__(self, session: Session) -> None:
        self._session = session
        self._lock = lock("connection")
        self._plans = LookupPlans()
        self._closed = False
        # A connection is closed even if it is garbage-collected, or open when Python exits.
        self._finalizer = weakref.finalize(self, _close, session.database, os.getpid())

    def show_own_writes(self) -> None:
        """Without Spark, queries wait until they include all commits of this connection."""
        self._session.waits = self.opened.runtime == "inprocess" and not self.opened.read_only

    @property
    def dialect(self) -> str:
        """The SQL dialect."""
        return self._session.variables.dialect

    @property
    def opened(self) -> OpenDatabase:
        """The open database, which other sessions of this process may share."""
        return self._session.database

    @property
    def autocommit(self) -> bool:
        """Whether each statement commits by itself: true except between BEGIN and COMMIT."""
        return self._session.transaction is None

    def cursor(self) -> Cursor:
        """Returns a new cursor."""
        self._check_open()
        return Cursor(self)

    def execute(self, operation: str, parameters: Sequence[Any] = ()) -> Cursor:
        """Runs statements on a new cursor."""
        return self.cursor().execute(operation, parameters)

    def execute_script(
        self, text: str, *, transaction: bool = False, name: str | None = None, replaces: bool = False
    ) -> Iterator[Cursor]:
        """Run the statements of a script, yielding a cursor with the result of each as soon as it is done.

        Nothing is run if the text can't be parsed. An error ends the script; earlier statements stay in effect.

        transaction: the script is one transaction, including its definitions: an error, or closing the iterator before
        its end, undoes all of it. FLUSH commits the statements before it. A script with BEGIN, COMMIT or ROLLBACK of
        its own is run as written.
        name: that of the script's file. With a name, the script may run again: a CREATE is skipped if its object exists
        with the same definition, and each other change is made once for each name and text (docs/OPERATIONS.md).
        replaces: also replace views whose definition differs; needs `name`.
        """
        run = execute_whole if transaction else execute_each
        for result in run(self._session, text, self._lock, name, replaces=replaces):
            cursor = self.cursor()
            cursor._accept(result)
            yield cursor

    @contextmanager
    def settings_kept(self) -> Iterator[None]:
        """Restores, at the end of the block, the settings that SET changes inside, including the dialect."""
        saved = self._session.variables.saved()
        try:
            yield
        finally:
            self._session.variables.restore(saved)

    def commit(self) -> None:
        """Commits the open transaction, if any."""
        self._check_open()
        with self._lock:
            if self._session.transaction is not None:
                committing.commit(self._session)

    def rollback(self) -> None:
        """Rolls the open transaction back, if any."""
        self._check_open()
        with self._lock:
            if self._session.transaction is not None:
                committing.rollback(self._session)

    def close(self) -> None:
        """Rolls an open transaction back, stops running queries and the engine, and releases the database.

        May be called again.
        """
        if self._closed:
            return
        self._closed = True
        try:
            end(self._session)
        finally:
            self._finalizer()

    def flush(self, *, ended: bool = False) -> tuple[str, ...]:
        """Returns when every view and running query has processed all earlier commits, like FLUSH.

        ended: whether no input follows. Views with EMIT PERIODIC then also write the period that has begun.

        Returns the notices of FLUSH: one for each source that can't be read now.
        """
        self._check_open()
        self._session.notices.clear()
        committing.flush(self._session, ended=ended)
        return tuple(self._session.notices)

    def start(self, query: str) -> running.RunningQuery:
        """Starts a SELECT that runs until it is closed, in any dialect. `take` returns its rows.

        Also starts SUBSCRIBE TO and RECOVER FROM.
        """
        self._check_open()
        statements = parse(query, self._session.dialect)
        function = _STARTING.get(type(statements[0])) if len(statements) == 1 else None
        if function is None:
            raise error("SYNTAX_ERROR", "one query can be started at a time", sql=query)
        with self._session.database.ddl, self._session.numbered():
            try:
                started: running.RunningQuery = function_named(function)(self._session, statements[0])
            except errors.Error as err:
                if err.span is not None and err.sql is None:  # errors of the planner lack the SQL text
                    err.sql = query
                raise
        return started

    def subscribe(
        self,
        *names: str,
        after: int | None = None,
        up_to: int | None = None,
        snapshot: bool = True,
        progress: bool = False,
        buffer_bytes: int | None = None,
    ) -> subscriber.Subscriber:
        """The content of materialized views and tables, and then their changes, commit by commit: an iterator and an
        async iterator of `Update`. Works in any process that has the database open, also read-only.

        names: one or more relations. after: a commit, usually the `token` of an earlier subscriber: only the changes
        after it are returned, not the content. up_to: the commit after which the iterator ends. snapshot: if False,
        only changes from now on are returned, not the content. progress: also report commits without changes, as
        updates without batches; if several are found at once, only the last. buffer_bytes: the limit of buffered
        changes (default: 16 MiB).

        Raises UNDEFINED_RELATION; FEATURE_NOT_SUPPORTED for a relation without stored rows; INVALID_PARAMETER for a
        commit that does not exist yet; HISTORY_GONE if changes after `after` are no longer kept, or a relation did not
        exist yet.
        """
        self._check_open()
        return subscriber.subscribe(
            self._session,
            names,
            after=after,
            up_to=up_to,
            snapshot=snapshot,
            progress=progress,
            buffer_bytes=buffer_bytes,
        )

    def create_function(
        self,
        name: str,
        function: Callable[..., Any],
        parameters: Sequence[str] | None = None,
        returns: str | None = None,
        *,
        form: Form = "rows",
        volatile: bool = False,
        strict: bool = False,
        replace: bool = False,
    ) -> None:
        """Creates an SQL function from a callable, or from a function of Spark's `udf` or `pandas_udf`.

        parameters, returns: types of SQL, by default those of the annotations. form: the form in which it receives
        arguments: a row as `rows`, or the columns of many rows, as `arrow` arrays, `lists` or `pandas` Series.
        volatile: whether equal arguments may give other values. strict: whether it is NULL if an argument is. replace:
        replaces an existing function. Raises DUPLICATE_OBJECT, INVALID_FUNCTION, INVALID_PARAMETER, and errors of
        types.
        """
        self._check_open()
        statement = statement_of(
            name, function, parameters, returns, form=form, volatile=volatile, strict=strict, replaces=replace
        )
        execute_statement(self._session, statement, self._lock)

    def status(self) -> dict[str, Any]:
        """The state of views and sources, as JSON (as in SHOW JOBS). Never waits for statements of other
        threads.
        """
        self._check_open()
        return status.database_status(self._session).to_dict()

    def topology(self, format: TopologyFormat = "svg") -> str:  # noqa: A002 - the word that users know
        """A picture of all tables, sources and materialized views with their inputs: an SVG document, or DOT."""
        self._check_open()
        return status.draw_topology(self._session, format)

    def __enter__(self) -> Self:
        self._check_open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _check_open(self) -> None:
        if self._closed:
            raise error("CONNECTION_CLOSED", "the connection is closed")

    def _execute(self, text: str, parameters: Sequence[Any]) -> Result:
        self._check_open()
        return execute(self._session, text, parameters, self._lock, self._plans)

    def _execute_many(self, text: str, rows: Sequence[Sequence[Any]]) -> Result:
        self._check_open()
        return execute_many(self._session, text, rows, self._lock)


#: Types of annotations in SQL.
_ANNOTATED: Final[dict[Any, str]] = {
    bool: "boolean", int: "bigint", float: "double precision", str: "varchar", bytes: "bytea",
    decimal.Decimal: "numeric", dt.date: "date", dt.time: "time", dt.datetime: "timestamp",
    dict: "jsonb",
}  # fmt: skip

#: The SQL names of Spark's types whose names differ.
_OF_SPARK: Final = {
    "string": "varchar", "binary": "bytea", "tinyint": "smallint", "byte": "smallint", "short": "smallint",
    "long": "bigint", "float": "real", "double": "double precision", "timestamp": "timestamptz",
    "timestamp_ntz": "timestamp",
}  # fmt: skip

#: The kinds of Spark's functions (`pyspark.util.PythonEvalType`) that take and return columns or values.
_FORMS: Final[dict[int, Form]] = {100: "rows", 101: "rows", 200: "pandas", 250: "arrow"}

_HINT: Final = "Give the types of SQL: create_function(name, function, parameters=['bigint'], returns='varchar')."


def statement_of(
    name: str,
    function: Any,
    parameters: Sequence[str] | None,
    returns: str | None,
    *,
    form: Form,
    volatile: bool,
    strict: bool,
    replaces: bool,
) -> CreateFunction:
    """The statement that creates a function from a callable. Raises INVALID_FUNCTION, INVALID_PARAMETER, and errors of
    types.
    """
    if hasattr(function, "evalType") and hasattr(function, "func"):
        found = _FORMS.get(int(function.evalType))
        if found is None:
            raise error(
                "FEATURE_NOT_SUPPORTED",
                f"a function of Spark of kind {function.evalType} is not supported",
                hint="A pandas_udf from Series to Series is.",
            )
        form, returns = found, returns or _of_spark(function.returnType.simpleString())
        function = function.func
    if not callable(function):
        raise error("INVALID_FUNCTION", f"function {name}: {type(function).__name__} is not callable")
    hints = typing.get_type_hints(function) if isinstance(function, types.FunctionType) else {}
    if parameters is None:
        parameters = [_annotated(hints.get(p), f"parameter {p} of function {name}") for p in _names(name, function)]
    returns = returns or _annotated(hints.get("return"), f"the result of function {name}")
    clauses = f"{' VOLATILE' if volatile else ''}{' STRICT' if strict else ''}"
    head = f"CREATE {'OR REPLACE ' if replaces else ''}FUNCTION {quoted(name)}({', '.join(parameters)})"
    sql = f"{head} RETURNS {returns} LANGUAGE python{clauses} AS $$\n{_source(function)}\n$$"
    (statement,) = parse(sql, DEFAULT_DIALECT)
    if not isinstance(statement, CreateFunction):
        raise error("INVALID_FUNCTION", f"function {name}: the types are not valid", hint=_HINT)
    return replace(statement, body=_pickled(name, function), is_pickled=True, form=form)


def _names(name: str, function: Callable[..., Any]) -> list[str]:
    try:
        return list(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        raise error("INVALID_FUNCTION", f"function {name}: its parameters are unknown", hint=_HINT) from None


def _annotated(hint: Any, what: str) -> str:
    options = [a for a in typing.get_args(hint) if a is not types.NoneType]
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType) and len(options) == 1:
        return _annotated(options[0], what)
    if origin is list and len(options) == 1:
        return f"{_annotated(options[0], what)}[]"
    found = _ANNOTATED.get(origin or hint)
    if found is None:
        raise error("INVALID_PARAMETER", f"the type of {what} is unknown", hint=_HINT)
    return found


def _of_spark(name: str) -> str:
    if name.startswith("array<"):
        return f"{_of_spark(name[6:-1])}[]"
    return name if name.startswith("decimal") else _OF_SPARK.get(name, name)


def _source(function: Callable[..., Any]) -> str:
    """The source text, for SHOW CREATE FUNCTION."""
    try:
        text = textwrap.dedent(inspect.getsource(function)).strip()
    except (OSError, TypeError):
        text = ""
    return text if text and "$$" not in text else "# a function of Python without its source"


def _pickled(name: str, function: Callable[..., Any]) -> str:
    from pyspark import cloudpickle  # noqa: PLC0415 - takes half a second

    module = sys.modules.get(getattr(function, "__module__", None) or "")
    by_value = isinstance(function, types.FunctionType) and module is not None and module.__name__ != "__main__"
    if by_value:
        cloudpickle.register_pickle_by_value(module)
    try:
        return base64.b64encode(cloudpickle.dumps(function)).decode()
    except Exception as cause:
        raise error("INVALID_FUNCTION", f"function {name} can't be pickled: {cause}") from cause
    finally:
        if by_value:
            cloudpickle.unregister_pickle_by_value(module)

"""Finds errors of a script without running it (`watersmeet check`).

Each statement is read and its names are bound; objects that it defines are created in an empty database in this
process, without their connectors. No other system is contacted, and no row is read or written.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Final

from watersmeet.binder import request_of
from watersmeet.database.opened import OpenDatabase
from watersmeet.database.reading import batch_query, runs_on
from watersmeet.database.sessions.context import Session
from watersmeet.database.sessions.variables import Variables
from watersmeet.dialects.parsing import parse_each
from watersmeet.dialects.registry import language_named
from watersmeet.dialects.script import tokenize
from watersmeet.dialects.statements.dml import CopyFrom, CopyTo
from watersmeet.dialects.statements.explaining import ExplainAnalyze, ExplainRow
from watersmeet.dialects.statements.preparing import Execute
from watersmeet.dialects.tree import definitions as df
from watersmeet.dialects.tree import statements as st
from watersmeet.errors import Error, Span, did_you_mean
from watersmeet.maintenance.views import bind_running
from watersmeet.session.connections.execute import run_statement
from watersmeet.session.connections.scripts import ScriptRun
from watersmeet.session.features.cursors import CloseCursor, DeclareCursor, DeclareSubscriptionCursor, Fetch
from watersmeet.session.features.settings import ReleaseSavepoint, RollbackTo, Savepoint, SetTransaction, Truncate
from watersmeet.session.handlers import bind
from watersmeet.session.statements.dml import described_change, described_merge
from watersmeet.session.statements.merging import described_changes, described_merge_rows
from watersmeet.session.statements.preparing import prepared_for

#: Words and signs that end the head of a CREATE statement. The head contains the object's name.
_ENDS: Final = ("(", "AS", "FROM", "ON", "SETTINGS", "STARTED", "STOPPED", "WITH")
#: Error conditions for a name that no object has.
_UNDEFINED: Final = ("UNDEFINED_RELATION", "UNDEFINED_OBJECT", "UNDEFINED_FUNCTION")
#: A name with its qualifiers; an alias may follow.
_PART: Final = r'"[^"]*"|`[^`]*`|[^\s."`()]+'
_NAME: Final = re.compile(rf"(?:{_PART})(?:\s*\.\s*(?:{_PART}))*")


@dataclass(frozen=True)
class Finding:
    """A statement that would be refused, or that can't be checked without another system.

    script: the number of its script, from 0. error: with its position in the script. statement: its span in the script.
    follows: the earlier finding that caused this one. checked: false if only another system can check the statement.
    """

    script: int
    error: Error
    statement: Span
    follows: Finding | None
    checked: bool

    @property
    def line(self) -> int:
        """The line of the error in the script, counted from 1; that of the statement if the error has none."""
        text = self.error.sql or ""
        return self.error.line or text.count("\n", 0, self.statement.start) + 1


def check_scripts(
    database: OpenDatabase,
    scripts: Sequence[tuple[str, str]],
    *,
    user: Session | None = None,
    names: Sequence[str] = (),
    objects_of: OpenDatabase | None = None,
) -> tuple[int, list[Finding]]:
    """(the number of statements, the findings) for scripts that would run in this order, each in its own session.

    Errors of the scripts are returned, never raised. scripts: pairs of the initial dialect and the text. database:
    from `scratch_database`; afterwards it also contains the objects of the scripts, without rows. user: a session
    whose rights and schema apply. names, objects_of: of the files, and of the database with its objects, if statements
    that a run of the files would skip are not checked.
    """
    count = 0
    found: list[Finding] = []
    missing: dict[str, Finding] = {}
    for number, (dialect, text) in enumerate(scripts):
        session = Session(database, Variables(dialect), connectors="checked")
        if user is not None:
            session = replace(session, user=user.user, role=user.role, files=user.files)
            session.variables.set("search_path", user.variables.get("search_path"))
        statements = list(st.single(parse_each(text, dialect)))
        ran = ScriptRun(session, names[number], statements, of=objects_of) if names else None
        for statement in statements:
            count += 1
            if ran is not None and not isinstance(statement, st.Refused) and not ran.step(statement).runs:
                continue
            try:
                with session.numbered():
                    _check(session, statement)
            except Error as err:
                if session.variables.is_on("continue_after_errors"):
                    continue
                _place(err, statement, text)
                cause = _cause(err, missing)
                if cause is not None:
                    err.hint = None  # a similar name is not the intended one
                checked = err.condition != "RUNTIME_UNAVAILABLE" and (cause is None or cause.checked)
                found.append(Finding(number, err, statement.span, cause, checked))
                for name in _names(statement, session.dialect):
                    missing.setdefault(name, found[-1])
        session.stop_running()
    return count, found


def _check(session: Session, statement: st.Statement) -> None:
    """Raises the error that the statement would raise."""
    match statement:
        case st.Refused():
            raise statement.error
        case st.Explain(statement=df.CreateMaterializedView() | df.CreateProcessor() as made):
            bind(session, made)  # without creating it
        case st.Explain(statement=df.Create()):
            run_statement(session, statement)
        case st.Explain():
            _check(session, statement.statement)
        case st.Select() | st.Subscribe() if runs_on(session, statement.query):
            request = request_of(statement.query, statement.text, session.dialect)
            bind_running(session, request, statement, "query")
        case st.Select():
            batch_query(session, statement.query, statement.text)
        case st.Insert() | st.Update() | st.Delete():
            described_change(session, statement)
        case df.Merge():
            described_merge(session, statement)
        case st.MergeInto():
            described_merge_rows(session, statement)
        case st.WithChanges():
            described_changes(session, statement)
        case DeclareCursor():
            _check(session, statement.query)
        case Execute():
            prepared_for(session, statement)
        case Truncate():
            for name in statement.names:
                _check(
                    session, st.Delete(text=statement.text, sql=statement.sql, span=name.span, table=name, alias=None)
                )
        case (
            CopyFrom()
            | CopyTo()
            | st.CancelJobs()
            | st.Flush()
            | st.KillQuery()
            | st.StartProcessor()
            | st.StopProcessor()
        ):
            pass  # these need rows or running objects
        case DeclareSubscriptionCursor() | Fetch() | CloseCursor() | ExplainAnalyze() | ExplainRow():
            pass  # so do these
        case (
            st.Begin()
            | st.Commit()
            | st.Rollback()
            | SetTransaction()
            | Savepoint()
            | ReleaseSavepoint()
            | RollbackTo()
        ):
            pass
        case _:
            run_statement(session, statement)


def _place(err: Error, statement: st.Statement, text: str) -> None:
    """Moves the span of an error in a text within the script, such as the body of a function, to its position in the
    script.
    """
    begin = 0 if err.sql in (None, text) else text.find(err.sql or "", statement.span.start)
    if err.span is None or begin < 0:
        err.span = statement.span
    else:
        err.span = Span(begin + err.span.start, begin + err.span.end)
    err.sql = text


def _cause(err: Error, missing: Mapping[str, Finding]) -> Finding | None:
    """The finding of the earlier statement that should have created the object that an error reports as missing."""
    if err.condition not in _UNDEFINED or err.span is None or err.sql is None:
        return None
    named = _NAME.match(err.sql, err.span.start, err.span.end)
    parts = [] if named is None else [part.strip('"`').lower() for part in re.findall(_PART, named[0])]
    return next((missing[part] for part in reversed(parts) if part in missing), None)


def _names(statement: st.Statement, dialect: str) -> list[str]:
    """The names that a statement would create, in lower case; if it can't be parsed, all words of its head."""
    if isinstance(statement, df.Create):
        return [statement.name.lower()]
    try:
        words = [t.text for t in tokenize(statement.sql, language_named(dialect))]
    except Error:
        return []
    if not words or (words[0].upper() != "CREATE" and did_you_mean(words[0].upper(), ["CREATE"]) is None):
        return []
    return [w.lower() for w in takewhile(lambda w: w.upper() not in _ENDS, words[1:])]

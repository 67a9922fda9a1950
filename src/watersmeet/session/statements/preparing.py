"""PREPARE, EXECUTE and DEALLOCATE, and the columns that a statement would return. Protocols use the same functions."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Final

import pyarrow as pa
from sqlglot import exp

from watersmeet.database.assignment import data_type
from watersmeet.database.reading import batch_query, runs_on
from watersmeet.database.sessions.context import Nested, Session, check_statement, error_at
from watersmeet.database.sessions.cursors import Prepared
from watersmeet.database.sessions.result import Result, lines_result, python_rows
from watersmeet.dialects.statements.explaining import ROW_COLUMNS, TITLE, ExplainRow
from watersmeet.dialects.statements.preparing import (
    Deallocate,
    Execute,
    Parameter,
    Prepare,
    marked,
)
from watersmeet.dialects.tree.nodes import infer_open, open_parameter
from watersmeet.dialects.tree.queries import literal_of
from watersmeet.dialects.tree.statements import (
    Delete,
    Explain,
    Insert,
    MergeInto,
    Select,
    Statement,
    Update,
    WithChanges,
)
from watersmeet.dialects.tree.tokens import UNBOUND
from watersmeet.errors import Error, error
from watersmeet.session.features.cursors import Fetch
from watersmeet.session.features.subscriptions import SubscribeChanges, described
from watersmeet.session.handlers import handler_of
from watersmeet.session.statements.dml import described_change
from watersmeet.session.statements.merging import described_changes, described_merge_rows
from watersmeet.values.types import BIGINT, INTEGER, NUMERIC, VARCHAR, Schema, SqlType


def described_result(session: Session, statement: Statement) -> Result | None:
    """A result with the columns of a statement and without rows; None if the statement returns none. Raises errors of
    binding.

    Raises FEATURE_NOT_SUPPORTED for a query that runs until it is stopped.
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
        query = batch_query(session, statement.query, statement.text)
        return Result("SELECT", query.columns, origins=query.origins)
    if isinstance(statement, Explain) and statement.analyze:
        described_result(session, statement.statement)  # raises its errors without running it
        return lines_result("EXPLAIN", TITLE, [])
    if isinstance(statement, (Insert, Update, Delete)):
        return described_change(session, statement)
    if isinstance(statement, MergeInto):
        return described_merge_rows(session, statement)
    if isinstance(statement, WithChanges):
        return described_changes(session, statement)
    if isinstance(statement, SubscribeChanges):
        return Result("SUBSCRIBE", described(session, statement))
    if isinstance(statement, ExplainRow):
        return Result("EXPLAIN", ROW_COLUMNS)
    if statement.tells:
        handler = handler_of(type(statement))
        assert handler is not None
        return handler(session, statement)
    return None


_MOST_PARAMETERS: Final = 1 << 16


def prepare_statement(session: Session, statement: Prepare) -> Result:
    """PREPARE."""
    body = statement.body
    text = " " * body.start + statement.text[body.start : body.end]  # keeps the positions of errors
    try:
        prepare(session, statement.name, text, statement.parameters)
    except Error as err:
        err.sql = statement.text
        raise
    return Result("PREPARE")


def prepare(
    session: Session,
    name: str,
    text: str,
    given: Sequence[Parameter],
    check: Callable[[Statement], None] = lambda _: None,
) -> Prepared:
    """Prepare a statement: parse it, and find its columns and the types of parameters without a given type.

    check: raises an error if the statement may not run now.
    """
    if name and name in session.prepared:
        raise error("DUPLICATE_PREPARED_STATEMENT", f'prepared statement "{name}" already exists')
    session.prepared.pop(name, None)
    written, numbers = marked(text)
    count = max([len(given), *numbers])
    if count > _MOST_PARAMETERS or 0 in numbers:
        raise error("INVALID_PARAMETER", "there is no parameter $0" if 0 in numbers else "too many parameters")
    if lacking := set(range(1, count + 1)).difference(numbers):
        raise error("INVALID_PARAMETER", f"parameter ${min(lacking)} is not in the statement", sql=text)
    wanted = [*given, *[Parameter()] * (count - len(given))]
    statements = session.parse(written, UNBOUND if numbers else ())
    if len(statements) > 1:
        raise error("SYNTAX_ERROR", "cannot insert multiple commands into a prepared statement", sql=text)
    prepared = Prepared(text, statements[0] if statements else None, numbers, ())
    inferred: dict[int, Parameter] = {}
    if prepared.statement is not None:
        check(prepared.statement)
        opened = prepared.bound([_open(i, p.kind, inferred) for i, p in enumerate(wanted)])
        assert opened is not None
        prepared.described = seen(session)
        _infer_counts(opened)
        prepared.result = described_result(session, opened)
    prepared.parameters = tuple(p if p.kind is not None else inferred.get(i, Parameter()) for i, p in enumerate(wanted))
    session.prepared[name] = prepared
    return prepared


def bind(session: Session, prepared: Prepared, values: Sequence[exp.Expression]) -> Statement | None:
    """The statement with a value for each parameter; None for an empty statement. The caller holds the connection's
    lock.

    Raises PREPARED_RESULT_CHANGED if its columns have changed since it was prepared.
    """
    statement = prepared.bound(values)
    if statement is None:
        return None
    now = seen(session)
    if type(statement) not in session.handlers and (now is None or now != prepared.described):
        result = described_result(session, statement)
        check_columns(None if result is None else result.columns, prepared.columns)
        prepared.described = now
    return statement


def seen(session: Session) -> Hashable:
    """All state besides its text that determines the columns of a statement; None after changes of definitions."""
    transaction = session.transaction
    if transaction is not None and transaction.definitions:
        return None
    variables = session.variables
    path = variables.get("search_path"), session.temporaries.schema
    return session.database.catalog.version, session.dialect, path, variables.zone


def prepared_named(session: Session, name: str) -> Prepared:
    """Raises UNDEFINED_PREPARED_STATEMENT."""
    if name not in session.prepared:
        shown = f'prepared statement "{name}"' if name else "unnamed prepared statement"
        raise error("UNDEFINED_PREPARED_STATEMENT", f"{shown} does not exist")
    return session.prepared[name]


def check_columns(found: Schema | None, described: Schema | None, rows: pa.Table | None = None) -> None:
    """Raises PREPARED_RESULT_CHANGED if the columns or their types differ from those reported to the client.

    rows: in these, a column with only NULLs matches any type.
    """
    if found is described or [(c.name, c.type) for c in found or ()] == [(c.name, c.type) for c in described or ()]:
        return
    if rows is not None and found is not None and described is not None and len(found) == len(described):
        given = zip(found, described, rows.columns, strict=True)
        if all(c.type == t.type or values.null_count == rows.num_rows for c, t, values in given):
            return
    raise error(
        "PREPARED_RESULT_CHANGED",
        "cached plan must not change result type",
        detail="What the statement reads has other columns, or columns of other types, than when it was prepared.",
        hint="Prepare the statement again.",
    )


def _open(number: int, kind: SqlType | None, inferred: dict[int, Parameter]) -> exp.Expression:
    """The placeholder of a parameter whose value is not known yet."""
    if kind is not None:
        return exp.Cast(this=open_parameter(lambda *_: None), to=data_type(kind))

    def infer(found: SqlType, oid: int = 0) -> None:
        inferred.setdefault(number, Parameter(found, oid))

    return open_parameter(infer)


def _infer_counts(statement: Statement) -> None:
    """Parameters of LIMIT, OFFSET and FETCH are numbers; the binder reads these itself."""
    query = getattr(statement, "query", None)
    for node in query.find_all(exp.Limit, exp.Offset, exp.Fetch) if isinstance(query, exp.Expression) else ():
        number = node.args.get("count") if isinstance(node, exp.Fetch) else node.expression
        infer_open(number, BIGINT)


def execute(session: Session, statement: Execute, nested: Nested) -> Result:
    """EXECUTE."""
    prepared = prepared_for(session, statement)
    values: list[exp.Expression] = []
    if statement.values is not None:
        given = nested.run(statement.values)
        assert given.table is not None
        kinds = [c.type for c in given.columns]
        (row,) = python_rows(given.table, tuple(kinds))
        texts = [
            c[0].as_py() if kind.name == "jsonb" else None for c, kind in zip(given.table.columns, kinds, strict=True)
        ]
        values = [
            literal(v if text is None else text, p) for v, text, p in zip(row, texts, prepared.parameters, strict=True)
        ]
    with nested.lock, session.numbered():
        bound = bind(session, prepared, values)
    return Result("") if bound is None else nested.run(bound)


def prepared_for(session: Session, statement: Execute) -> Prepared:
    """The statement that EXECUTE names. Raises SYNTAX_ERROR for a wrong number of parameters."""
    prepared = prepared_named(session, statement.name)
    if statement.count != len(prepared.parameters):
        raise error_at(
            statement,
            statement.span,
            "SYNTAX_ERROR",
            f'wrong number of parameters for prepared statement "{statement.name}"',
            detail=f"Expected {len(prepared.parameters)} parameters but got {statement.count}.",
        )
    return prepared


def deallocate(session: Session, statement: Deallocate) -> Result:
    """DEALLOCATE."""
    if statement.name is None:
        session.prepared.clear()
        return Result("DEALLOCATE ALL")
    prepared_named(session, statement.name)
    del session.prepared[statement.name]
    return Result("DEALLOCATE")


def literal(value: object, parameter: Parameter) -> exp.Expression:
    """The tree for the value of a parameter, a Python value or its text. Raises INVALID_VALUE."""
    kind = parameter.kind
    if value is None:
        return exp.null() if kind is None else exp.Cast(this=exp.null(), to=data_type(kind))
    if kind is None or kind == VARCHAR:
        made = literal_of(value, "")
        return made if isinstance(value, str) else exp.Cast(this=made, to=data_type(VARCHAR))
    if kind.is_integer and isinstance(value, (int, str)) and str(value).isascii() and not isinstance(value, bool):
        try:
            value = int(value)
        except ValueError:
            pass
        else:
            # A literal of this type: the columns of the statement were described with it.
            made = literal_of(value, "")
            return made if kind == INTEGER else exp.Cast(this=made, to=data_type(kind))
    if kind == NUMERIC and _LONG_DECIMAL.fullmatch(str(value)):
        return literal_of(Decimal(str(value)), "")  # keeps all digits; a later cast may need them
    return exp.Cast(this=literal_of(value, ""), to=data_type(kind))


#: A number with more digits after the point than numeric without precision.
_LONG_DECIMAL: Final = re.compile(r"-?\d*\.\d{11,}", re.ASCII)

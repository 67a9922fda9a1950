"""Errors: one constructor, one renderer, and named conditions.

Every expected error is an `Error` with a condition of `CONDITIONS`. The class hierarchy is PEP 249's, so that database
tools can handle the errors. Messages start in lower case and have no full stop; detail and hint are sentences.
"""

from __future__ import annotations

import difflib
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar

from watersmeet.errors.secretnames import concealed

Raised = TypeVar("Raised", bound=BaseException)


@dataclass(frozen=True, slots=True)
class Condition:
    """A kind of error: its SQLSTATE and its PEP 249 class."""

    sqlstate: str
    error_class: str = "ProgrammingError"


#: The conditions, sorted by name. A name never changes its meaning.
CONDITIONS: Final[dict[str, Condition]] = {
    "ADMIN_SHUTDOWN": Condition("57P01", "OperationalError"),
    "AMBIGUOUS_COLUMN": Condition("42702"),
    "AMPLIFICATION_LIMIT": Condition("54000", "OperationalError"),
    "ASOF_KIND": Condition("0A000", "NotSupportedError"),
    "ASOF_WITHOUT_EQUALITY": Condition("42601"),
    "ASOF_WITHOUT_INEQUALITY": Condition("42601"),
    "AUTHENTICATION_FAILED": Condition("28P01", "OperationalError"),
    "BAD_COPY_FORMAT": Condition("22P04", "DataError"),
    "BUFFER_LIMIT": Condition("54000", "OperationalError"),
    "CARDINALITY_VIOLATION": Condition("21000", "ProgrammingError"),
    "CATALOG_TYPE_MISMATCH": Condition("42809"),
    "CHARACTER_NOT_IN_REPERTOIRE": Condition("22021", "DataError"),
    "CHECK_VIOLATION": Condition("23514", "IntegrityError"),
    "COLUMN_NOT_GROUPED": Condition("42803"),
    "CONNECTION_CLOSED": Condition("08003", "InterfaceError"),
    "CONNECTOR_OPTION": Condition("22023"),
    "CYCLIC_ALIASES": Condition("42601"),
    "DATABASE_ACCESS": Condition("58030", "OperationalError"),
    "DATABASE_DAMAGED": Condition("XX001", "InternalError"),
    "DATABASE_FORMAT": Condition("0A000", "NotSupportedError"),
    "DATABASE_IN_USE": Condition("55006", "OperationalError"),
    "DATATYPE_MISMATCH": Condition("42804"),
    "DELIVERY_LOST": Condition("55000", "OperationalError"),
    "DELIVERY_MISMATCH": Condition("55000", "OperationalError"),
    "DELIVERY_REFUSED": Condition("22000", "DataError"),
    "DEPENDENT_OBJECTS": Condition("2BP01"),
    "DIRECT_KEY": Condition("0A000", "NotSupportedError"),
    "DIRECT_RIGHT_SIDE": Condition("42809"),
    "DISK_FULL": Condition("53100", "OperationalError"),
    "DUPLICATE_COLUMN": Condition("42701"),
    "DUPLICATE_CONSTRAINT": Condition("42710"),
    "DUPLICATE_CURSOR": Condition("42P03"),
    "DUPLICATE_OBJECT": Condition("42P07"),
    "DUPLICATE_PREPARED_STATEMENT": Condition("42P05"),
    "DUPLICATE_TYPE": Condition("42710"),
    "EMIT_NOT_POSSIBLE": Condition("0A000", "NotSupportedError"),
    "EXPRESSION_WITHOUT_NAME": Condition("42P16"),
    "FAILED_TRANSACTION": Condition("25P02", "OperationalError"),
    "FEATURE_NOT_SUPPORTED": Condition("0A000", "NotSupportedError"),
    "FILES_NOT_ALLOWED": Condition("42501"),
    "FILE_SYSTEM_UNSUITABLE": Condition("0A000", "NotSupportedError"),
    "FOREIGN_KEY_VIOLATION": Condition("23503", "IntegrityError"),
    "FUNCTION_STOPPED": Condition("38000", "OperationalError"),
    "GENERATED_ALWAYS": Condition("428C9"),
    "HISTORY_GONE": Condition("72000", "OperationalError"),
    "IDLE_TIMEOUT": Condition("57P05", "OperationalError"),
    "INTERNAL_ERROR": Condition("XX000", "InternalError"),
    "INVALID_AUTHORIZATION": Condition("28000", "OperationalError"),
    "INVALID_BINARY_VALUE": Condition("22P03", "DataError"),
    "INVALID_COLUMN_REFERENCE": Condition("42P10"),
    "INVALID_FOREIGN_KEY": Condition("42830"),
    "INVALID_FUNCTION": Condition("42P13"),
    "INVALID_NAME": Condition("42602"),
    "INVALID_PARAMETER": Condition("22023"),
    "INVALID_VALUE": Condition("22P02", "DataError"),
    "JOIN_AND_GROUP": Condition("0A000", "NotSupportedError"),
    "JOIN_KIND": Condition("0A000", "NotSupportedError"),
    "JOIN_SOURCES": Condition("0A000", "NotSupportedError"),
    "JOIN_WITHOUT_CONDITION": Condition("42601"),
    "JOIN_WITHOUT_EQUALITY": Condition("0A000", "NotSupportedError"),
    "JOIN_WITH_CONDITION": Condition("42601"),
    "JSON_TOO_DEEP": Condition("54001", "DataError"),
    "KEY_FORMATS": Condition("42804"),
    "LIBRARY_MISSING": Condition("58000", "OperationalError"),
    "NOT_NULL_VIOLATION": Condition("23502", "IntegrityError"),
    "NO_RESULT": Condition("24000"),
    "NO_TRANSACTION": Condition("25P01", "OperationalError"),
    "ON_NOT_SPLIT": Condition("0A000", "NotSupportedError"),
    "ON_ONE_SIDE": Condition("0A000", "NotSupportedError"),
    "OUT_OF_MEMORY": Condition("53200", "OperationalError"),
    "PARALLELISM_MISMATCH": Condition("55000", "OperationalError"),
    "PERMISSION_DENIED": Condition("42501"),
    "PREPARED_RESULT_CHANGED": Condition("0A000", "NotSupportedError"),
    "PROTOCOL_VIOLATION": Condition("08P01", "OperationalError"),
    "QUERY_CANCELED": Condition("57014", "OperationalError"),
    "READ_ONLY_RELATION": Condition("42809"),
    "READ_ONLY_SESSION": Condition("25006", "OperationalError"),
    "RECORD_JOIN_KIND": Condition("0A000", "NotSupportedError"),
    "RESULT_LIMIT": Condition("54000", "OperationalError"),
    "RUNTIME_UNAVAILABLE": Condition("58000", "OperationalError"),
    "SCALAR_SUBQUERY_ROWS": Condition("21000"),
    "SEQUENCE_LIMIT": Condition("2200H", "DataError"),
    "SEQUENCE_UNUSED": Condition("55000", "OperationalError"),
    "SERIALIZATION_FAILURE": Condition("40001", "OperationalError"),
    "SESSION_BUSY": Condition("55006", "OperationalError"),
    "SLOW_SUBSCRIBER": Condition("54000", "OperationalError"),
    "SNAPSHOT_TOO_OLD": Condition("72000", "OperationalError"),
    "SOURCE_STOPPED": Condition("58000", "OperationalError"),
    "SOURCE_UNAVAILABLE": Condition("58030", "OperationalError"),
    "STATEMENT_LIMIT": Condition("54000", "OperationalError"),
    "STATE_DAMAGED": Condition("XX001", "InternalError"),
    "STATE_MISMATCH": Condition("55000", "OperationalError"),
    "STATE_STORE": Condition("55000", "OperationalError"),
    "STREAM_JOIN_WITHOUT_WITHIN": Condition("42601"),
    "STREAM_MISSING": Condition("42809"),
    "SUBSCRIPTION_LOST": Condition("55000", "OperationalError"),
    "SYNTAX_ERROR": Condition("42601"),
    "TEMPORAL_KEY": Condition("0A000", "NotSupportedError"),
    "TEMPORAL_KIND": Condition("0A000", "NotSupportedError"),
    "TEMPORAL_RIGHT_SIDE": Condition("42809"),
    "TIME_FILTER": Condition("0A000", "NotSupportedError"),
    "TOO_MANY_CONNECTIONS": Condition("53300", "OperationalError"),
    "TRANSACTION_STATE": Condition("25000", "OperationalError"),
    "TWO_WITHIN": Condition("42601"),
    "UNDEFINED_COLUMN": Condition("42703"),
    "UNDEFINED_CURSOR": Condition("34000"),
    "UNDEFINED_FUNCTION": Condition("42883"),
    "UNDEFINED_OBJECT": Condition("42704"),
    "UNDEFINED_PREPARED_STATEMENT": Condition("26000"),
    "UNDEFINED_RELATION": Condition("42P01"),
    "UNDEFINED_SAVEPOINT": Condition("3B001", "OperationalError"),
    "UNIQUE_VIOLATION": Condition("23505", "IntegrityError"),
    "VALUE_OUT_OF_RANGE": Condition("22003", "DataError"),
    "VALUE_TOO_LONG": Condition("22001", "DataError"),
    "VIEW_FAILED": Condition("58000", "OperationalError"),
    "VIEW_PAUSED": Condition("55000", "OperationalError"),
    "WINDOW_JOIN": Condition("0A000", "NotSupportedError"),
    "WITHIN_NOT_ALLOWED": Condition("42601"),
    "WRITER_FENCED": Condition("55000", "OperationalError"),
}


#: The length of a line above which only the part around the error is shown.
_LINE_CHARACTERS: Final = 160
_BEFORE_CHARACTERS: Final = 60


@dataclass(frozen=True, slots=True)
class Span:
    """Characters [start, end) of a SQL text."""

    start: int
    end: int


class Warning(Exception):  # noqa: A001, N818 - the name is PEP 249's
    """PEP 249: an important warning."""


class Error(Exception):
    """PEP 249: the base of all errors. `error()` chooses the subclass.

    condition: a name in `CONDITIONS`. sql, span: the statement, and the position of the error in it. code: the number
    of the error in the statement's dialect. file: the script with the text `sql`. source: the id of the only unreadable
    relation, while others continue (SOURCE_STOPPED, SOURCE_UNAVAILABLE). lacks_right: whether a right on a server is
    missing, which may be granted later. place, constraint: schema, relation and column, and the name of the violated
    constraint, which clients read as fields.
    """

    file: str | None = None
    source: str | None = None
    lacks_right: bool = False
    place: tuple[str, str, str | None] | None = None
    constraint: str | None = None

    def __init__(
        self,
        condition: str,
        message: str,
        *,
        detail: str | None = None,
        hint: str | None = None,
        sql: str | None = None,
        span: Span | None = None,
        code: int | None = None,
    ) -> None:
        super().__init__(message)
        self.condition = condition
        self.message = message
        self.detail = detail
        self.hint = hint
        self.sql = sql
        self.span = span
        self.code = code

    @property
    def line(self) -> int | None:
        """The line of the span in `sql`, from 1."""
        if self.sql is None or self.span is None:
            return None
        return self.sql.count("\n", 0, self.span.start) + 1

    @property
    def column(self) -> int | None:
        """The first character of the span in its line, from 1."""
        if self.sql is None or self.span is None:
            return None
        start = min(self.span.start, len(self.sql))
        return start - self.sql.rfind("\n", 0, start)

    @property
    def sqlstate(self) -> str:
        """The five characters of SQLSTATE."""
        return CONDITIONS[self.condition].sqlstate

    def __str__(self) -> str:
        return render(self)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({concealed(self.sql or '', self.message)[1]!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        named = {name: getattr(self, name) for name in ("detail", "hint", "sql", "span", "code")}
        return partial(error, self.condition, self.message, **named), ()

    def to_json(self) -> dict[str, Any]:
        """The same data as the rendered text: a public format of the command line and of `status`."""
        sql, message, detail, hint = concealed(self.sql or "", self.message, self.detail, self.hint)
        place = None if self.span is None else {"start": self.span.start, "end": self.span.end}
        coded = {} if self.code is None else {"code": self.code}
        read = {} if self.file is None else {"file": self.file, "line": self.line, "column": self.column}
        return {
            "condition": self.condition,
            "sqlstate": self.sqlstate,
            **coded,
            "message": message,
            "detail": detail,
            "hint": hint,
            "sql": None if self.sql is None else sql,
            "span": place,
            **read,
            **({} if self.source is None else {"source": self.source}),
        }


class InterfaceError(Error):
    """PEP 249: wrong use of the interface."""


class DatabaseError(Error):
    """PEP 249: an error of the database."""


class DataError(DatabaseError):
    """PEP 249: a value that can't be processed."""


class OperationalError(DatabaseError):
    """PEP 249: the operation of the database failed."""


class IntegrityError(DatabaseError):
    """PEP 249: a constraint does not hold."""


class InternalError(DatabaseError):
    """PEP 249: a bug or damage."""


class ProgrammingError(DatabaseError):
    """PEP 249: a wrong statement."""


class NotSupportedError(DatabaseError):
    """PEP 249: an unsupported feature."""


_CLASSES: Final[dict[str, type[Error]]] = {
    c.__name__: c
    for c in (
        InterfaceError,
        DataError,
        OperationalError,
        IntegrityError,
        InternalError,
        ProgrammingError,
        NotSupportedError,
    )
}


def error(
    condition: str,
    message: str,
    *,
    detail: str | None = None,
    hint: str | None = None,
    sql: str | None = None,
    span: Span | None = None,
    code: int | None = None,
) -> Error:
    """An error in the class of its condition. Raises KeyError for an unknown condition."""
    kind = _CLASSES[CONDITIONS[condition].error_class]
    return kind(condition, message, detail=detail, hint=hint, sql=sql, span=span, code=code)


def error_from_json(value: Any) -> Error:
    """The inverse of `to_json`, without the statement and the span."""
    if isinstance(value, dict) and value.get("condition") in CONDITIONS:
        return error(value["condition"], value["message"], detail=value.get("detail"), hint=value.get("hint"))
    return error("VIEW_FAILED", str(value))


def again(kept: Raised) -> Raised:
    """A stored exception without its traceback, which would grow with each raise."""
    return kept.with_traceback(None)


def did_you_mean(name: str, known: Iterable[str], *, nearness: float = 0.6) -> str | None:
    """A hint with the most similar names in `known`, or None; names that differ only in case come first.

    nearness: the minimum similarity from 0 to 1; use a higher value for a long list of short words.
    """
    names = list(known)
    near = [k for k in dict.fromkeys(names) if k.lower() == name.lower()][:3] or difflib.get_close_matches(
        name, names, n=3, cutoff=nearness
    )
    if not near:
        return None
    return "Did you mean " + " or ".join(f'"{n}"' for n in near) + "?"


def render(err: Error) -> str:
    """The text of an error without secrets: condition, message, the line with a caret, detail, hint."""
    sql, message, detail, hint = concealed(err.sql or "", err.message, err.detail, err.hint)
    coded = "" if err.code is None else f" (code {err.code})"
    lines = [f"error[{err.condition}] {err.sqlstate}{coded}: {message}"]
    if err.file is not None:
        lines.append(":".join(str(part) for part in (err.file, err.line, err.column) if part is not None))
    if err.sql is not None and err.span is not None:
        lines += _place(sql or "", err.span)
    if detail:
        lines.append(f"detail: {detail}")
    if hint:
        lines.append(f"hint: {hint}")
    return "\n".join(lines)


def _place(sql: str, span: Span) -> list[str]:
    """The line of a span, and a line with carets under its characters."""
    start = min(span.start, len(sql))
    begin = sql.rfind("\n", 0, start) + 1
    end = sql.find("\n", start)
    line = sql[begin : end if end >= 0 else len(sql)].rstrip("\r").replace("\t", " ")
    column = min(start - begin, len(line))
    width = max(1, min(span.end - start, len(line) - column))
    if len(line) > _LINE_CHARACTERS:
        first = max(0, column - _BEFORE_CHARACTERS)
        cut = line[first : first + _LINE_CHARACTERS]
        line = ("…" if first else "") + cut + ("…" if first + len(cut) < len(line) else "")
        column += bool(first) - first
        width = min(width, len(line) - column)
    prefix = f"LINE {sql.count(chr(10), 0, start) + 1}: "
    return [
        prefix + line,
        " " * (len(prefix) + _cells(line[:column])) + "^" * max(1, _cells(line[column : column + width])),
    ]


def _cells(text: str) -> int:
    """The width of a text in terminal columns."""
    if text.isascii():
        return len(text)
    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)

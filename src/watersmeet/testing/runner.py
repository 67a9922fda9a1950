"""Runs the records of a sqllogictest file against a connection.

Every statement outside a transaction is followed by FLUSH, so that a record begins when all before it is visible.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from watersmeet.errors import Error
from watersmeet.session.connections.connection import Connection
from watersmeet.testing.comparison import error_matches, mismatch
from watersmeet.testing.records import Record, Script

#: Directives of other systems that change nothing.
SILENT: Final = ("dialect", "hash-threshold", "control", "require", "sleep", "subtest")


class Failure(Exception):  # noqa: N818 - it is an outcome of a test, not an error of the program
    """A record whose outcome is not the one written: the message says where and what."""


@dataclass(slots=True)
class Outcome:
    """The result of a script: the number of records that passed, and the text of the first failure."""

    records: int = 0
    failure: str | None = None


def run_script(script: Script, connect: Callable[[], Connection]) -> Outcome:
    """Runs a script of the plain form in the fresh database that `connect` opens. Stops at the first failure."""
    if script.rich:
        return Outcome(failure=f"{script.path}: a file that begins with `dialect` is no sqllogictest")
    with connect() as connection:

        def statement(record: Record) -> None:
            if not succeeds(connection, record):
                expect_error(connection, record)

        def query(record: Record) -> None:
            if record.arguments[:1] == ("error",):
                expect_error(connection, record)
            else:
                _query(connection, record)

        return run_records(script.path, script.records, {"statement": statement, "query": query})


def run_records(path: Path, records: Iterable[Record], handlers: Mapping[str, Callable[[Record], None]]) -> Outcome:
    """Calls the handler of each record's directive, up to `halt` or the first failure."""
    outcome = Outcome()
    for record in records:
        if record.directive == "halt":
            break
        try:
            if record.directive not in SILENT:
                handlers.get(record.directive, _unknown)(record)
        except (Error, Failure) as failure:
            outcome.failure = f"{path}:{record.line}: {failure}"
            return outcome
        except Exception:  # a crash of the engine is a failure of the record, whatever it is
            outcome.failure = f"{path}:{record.line}: {traceback.format_exc()}"
            return outcome
        outcome.records += 1
    return outcome


def _unknown(record: Record) -> None:
    raise Failure(f"unknown directive {record.directive!r}")


def succeeds(connection: Connection, record: Record) -> bool:
    """Executes a `statement` that must succeed; False if it must not."""
    kind = record.arguments[0] if record.arguments else "ok"
    if kind == "error":
        return False
    if kind not in ("ok", "count"):
        raise Failure(f"unknown statement kind {kind!r}")
    cursor = connection.cursor()
    cursor.execute(record.sql)
    if kind == "count" and cursor.rowcount != int(record.arguments[1]):
        raise Failure(f"{cursor.rowcount} rows instead of {record.arguments[1]}")
    flush(connection)
    return True


def expect_error(connection: Connection, record: Record) -> None:
    """Executes a statement that must be refused, with the text that the record has."""
    wanted = " ".join(record.arguments[1:])
    err = refusal(connection, record)
    pattern = wanted or "\n".join(record.expected or ()).strip()
    if not error_matches(pattern, str(err)):
        raise Failure(f"the error does not match {pattern!r}:\n{err}") from err


def refusal(connection: Connection, record: Record) -> Error:
    """The error of a statement that must be refused."""
    try:
        connection.cursor().execute(record.sql)
    except Error as err:
        return err
    raise Failure("succeeded, but must be refused")


def _query(connection: Connection, record: Record) -> None:
    cursor = connection.cursor()
    cursor.execute(record.sql)
    rows = cursor.fetchall()
    if record.expected is None:
        return
    kinds = [d[1] for d in cursor.description or ()]
    if (text := mismatch(record.expected, rows, kinds, record.arguments[1:])) is not None:
        raise Failure("the rows differ\n" + text)


def flush(connection: Connection) -> None:
    """Waits until all views show what was committed; within a transaction there is nothing that they could show."""
    if connection.autocommit:
        connection.cursor().execute("FLUSH")

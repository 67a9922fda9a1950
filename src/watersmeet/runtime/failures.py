"""The error that a failed epoch shows, and epochs that run without the operators that fail."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping
from typing import Final, TypeVar

import duckdb

from watersmeet.circuit.epochs import Live, Mode, Rebuild
from watersmeet.errors import Error, error
from watersmeet.kernel.context import failing_operators
from watersmeet.kernel.evaluation.duck import is_interrupt

Result = TypeVar("Result")

#: Conditions that say enough by themselves: the store's, the sources' and our own.
_OWN = frozenset(
    {
        "CONNECTOR_OPTION",
        "DATABASE_ACCESS",
        "DATABASE_DAMAGED",
        "DATABASE_FORMAT",
        "DATABASE_IN_USE",
        "DISK_FULL",
        "FEATURE_NOT_SUPPORTED",
        "OUT_OF_MEMORY",
        "PARALLELISM_MISMATCH",
        "RUNTIME_UNAVAILABLE",
        "SOURCE_STOPPED",
        "SOURCE_UNAVAILABLE",
        "STATE_DAMAGED",
        "STATE_MISMATCH",
        "UNDEFINED_OBJECT",
        "VIEW_FAILED",
        "WRITER_FENCED",
    }
)
#: Conditions of the machine, the files and the writer: they say nothing against a view.
_MACHINE: Final = frozenset(
    {
        "DATABASE_ACCESS",
        "DATABASE_FORMAT",
        "DATABASE_IN_USE",
        "DISK_FULL",
        "LIBRARY_MISSING",
        "PARALLELISM_MISMATCH",
        "QUERY_CANCELED",
        "RUNTIME_UNAVAILABLE",
        "WRITER_FENCED",
    }
)
_NO_SPACE: Final = "No space left on device"
_AGAIN: Final = "REFRESH MATERIALIZED VIEW computes the view again."


class TaskFailedError(Exception):
    """An exception of a task in another process. trace: of that process. failed: as `operator_failed` returns it."""

    def __init__(self, text: str, notes: str, trace: str, failed: Error) -> None:
        super().__init__(text)
        self.notes = notes
        self.trace = trace
        self.failed = failed


def run_without_failing(mode: Mode, run: Callable[[Mapping[str, Error]], Result]) -> tuple[Result, Mapping[str, Error]]:
    """Run an epoch; run it again without each operator that fails. Return the result, and the errors by operator.

    run: runs the tasks without the operators that it receives and all views that read these. A lack of memory stops
    an operator if it occurs twice in a row. Errors of the machine and of sources are raised, and so are all errors of
    an epoch that fills views: the statement that creates the view reports them.
    """
    failures: dict[str, Error] = {}
    retried = False
    while True:
        try:
            return run(failures), failures
        except Exception as cause:
            found = failing_operators(cause)
            if not isinstance(mode, (Live, Rebuild)) or not is_of_operators(cause) or failures.keys() >= set(found):
                raise
            if operator_failed(cause).condition == "OUT_OF_MEMORY" and not retried:
                retried = True
                continue
            retried = False
            failures |= dict.fromkeys(found, operator_failed(cause))


def is_of_operators(cause: Exception) -> bool:
    """False for errors of the machine, the files, the writer and sources, wherever they were raised."""
    if is_interrupt(cause) or isinstance(cause, (OSError, duckdb.IOException)) or _NO_SPACE in str(cause):
        return False
    return not isinstance(cause, Error) or (cause.source is None and cause.condition not in _MACHINE)


def operator_failed(cause: Exception) -> Error:
    """The error of an operator as the views that it stops show it."""
    if isinstance(cause, TaskFailedError):
        return cause.failed
    if isinstance(cause, Error):
        condition = cause.condition if cause.condition in _OWN else "VIEW_FAILED"
        return error(condition, cause.message, detail=cause.detail, hint=cause.hint or _AGAIN)
    lacks_memory = isinstance(cause, (MemoryError, duckdb.OutOfMemoryException))
    place = _place(cause)
    return error(
        "OUT_OF_MEMORY" if lacks_memory else "VIEW_FAILED",
        _text(cause),
        detail=f"The error was raised by {place}." if place else None,
        hint=_AGAIN,
    )


def _text(cause: Exception) -> str:
    return str(cause) if isinstance(cause, TaskFailedError) else f"{type(cause).__name__}: {cause}".rstrip(": ")


def _place(cause: Exception) -> str:
    """The function and the file that raised an error; empty if they are unknown."""
    last = traceback.extract_tb(cause.__traceback__)[-1:]
    return f"{last[0].name} in {last[0].filename.rpartition('/')[2]}" if last else ""


def view_failed(cause: Exception) -> Error:
    """`cause` itself if it is an error with a name that helps, otherwise VIEW_FAILED with its text."""
    if isinstance(cause, Error) and cause.condition in _OWN:
        return cause
    if isinstance(cause, Error):
        return error("VIEW_FAILED", f"the views can't go on: {cause.message}", detail=cause.detail, hint=cause.hint)
    if _NO_SPACE in str(cause):
        # Not the store's own: where Spark or DuckDB put what does not fit into memory.
        return error(
            "DISK_FULL",
            "no space left for temporary files",
            detail=str(cause).strip().splitlines()[0],
            hint="Free some space and open the database again: nothing of the failed step was kept.",
        )
    if isinstance(cause, TaskFailedError):
        detail = f"A task failed ({cause.notes or 'see the trace'}). Nothing of the epoch was kept.\n{cause.trace}"
    else:
        place = _place(cause)
        detail = f"An epoch failed{f' ({place})' if place else ''}. Nothing of it was kept."
    return error(
        "VIEW_FAILED",
        f"the views can't go on: {_text(cause)}",
        detail=detail,
        hint="The content is as of the epoch before. Open the database again to try once more.",
    )

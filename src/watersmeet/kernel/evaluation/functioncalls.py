"""Calls of functions of other languages by DuckDB: each batch of rows goes to a process in which the body runs. Native
functions are called in the same way, without a process.

An exception of a body is an error of its row, like an error of any expression. A body that doesn't return in time,
exceeds its memory or ends its process is stopped. The work that called it also stops, because all its rows would fail
again.
"""

from __future__ import annotations

import inspect
import itertools
import os
import re
import select
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final

import duckdb
import pyarrow as pa

from watersmeet.errors import Error, error
from watersmeet.kernel.evaluation.nativefunctions import native
from watersmeet.system.childprocesses import ChildProcess, read_head, write_head
from watersmeet.system.process import cores, memory_bytes, seconds_of
from watersmeet.values.calledfunctions import NATIVE, CalledFunction, called_in, wired

#: The environment variable with the maximum seconds that a batch of rows may take, and its default.
SECONDS: Final = "WATERSMEET_FUNCTION_SECONDS"
_DEFAULT_S: Final = 30.0
#: The time that a new process may take before it reads its first request.
_START_S: Final = 120.0
_MEMORY_SHARE: Final = 0.25
_LEAST_MEMORY_BYTES: Final = 256 << 20

#: The number of rows of DuckDB's batches.
_BATCH_ROWS: Final = 2048

#: The number of idle processes kept for later calls.
_MOST_IDLE: Final = 2

#: The beginning of DuckDB's message about `Stopped`.
_STOPPED: Final = "Python exception occurred while executing the UDF: Stopped: "
_HINT: Final = f"Correct the body: CREATE OR REPLACE FUNCTION. {SECONDS} sets the time for a batch of rows."


class Raised(Exception):  # noqa: N818 - its message is all that DuckDB passes on
    """An exception of a body."""


class Stopped(Exception):  # noqa: N818
    """The end of a function that was stopped."""


class Calls:
    """The calls of functions by one query, which another thread can end."""

    def __init__(self) -> None:
        self.ended = threading.Event()
        self._lock = threading.Lock()
        self._ends: list[Callable[[], object]] = []
        """The actions that end the running calls."""

    def end(self) -> None:
        """Ends the running calls, and later ones as they begin. May be called again."""
        with self._lock:
            self.ended.set()
            for end in self._ends:
                end()

    def check(self) -> None:
        """Raises Raised if the calls were ended."""
        if self.ended.is_set():
            raise Raised("the query was interrupted")

    @contextmanager
    def ended_by(self, end: Callable[[], object]) -> Iterator[None]:
        """Inside the block, `end` ends a call, from any thread. Raises Raised if the calls were ended."""
        with self._lock:
            self.check()
            self._ends.append(end)
        try:
            yield
        finally:
            with self._lock:
                self._ends.remove(end)


class Functions:
    """The functions that one connection of DuckDB calls.

    lenient: whether the value of a failing row is NULL, instead of an error of the query. stopped: the error of a
    function that was stopped.
    """

    lenient = False

    def __init__(self, connection: duckdb.DuckDBPyConnection) -> None:
        self._connection = connection
        self._known: set[str] = set()
        self.stopped: Error | None = None

    def register(self, *sql: str) -> None:
        """Registers the functions that these expressions call in DuckDB."""
        for text in sql:
            for name, function in called_in(text):
                if name in self._known:
                    continue
                _create(self._connection, name, function, Calls(), self)
                self._known.add(name)

    def check(self) -> None:
        """Raises the error of a function that was stopped, once."""
        found, self.stopped = self.stopped, None
        if found is not None:
            raise found


#: The calls of the query that a connection runs.
_running: Final[weakref.WeakKeyDictionary[duckdb.DuckDBPyConnection, Calls]] = weakref.WeakKeyDictionary()


def interrupt(connection: duckdb.DuckDBPyConnection) -> None:
    """Interrupts the query of a connection, also within a call of a function. Any thread may call this."""
    connection.interrupt()
    calls = _running.get(connection)
    if calls is not None:
        calls.end()


#: Each name is used once: transactions that create the same one conflict, and a failed one keeps it.
_numbers: Final = itertools.count()


@contextmanager
def registered(connection: duckdb.DuckDBPyConnection, sql: str) -> Iterator[str]:
    """A context with the SQL of a query, in which DuckDB knows the functions of other languages that it calls.

    The functions are created and dropped within the transaction of the connection. Raises duckdb.InterruptException if
    `interrupt` ended a call.
    """
    made: list[str] = []
    calls = Calls()
    try:
        for name, function in list(called_in(sql)):
            stem = re.sub(r"\W", "_", function.name.lower())  # plans show it
            free = f"{stem}__{next(_numbers)}"
            _create(connection, free, function, calls, None)
            made.append(free)
            sql = re.sub(rf"\b{name}\b", free, sql, flags=re.IGNORECASE)
        if made:
            _running[connection] = calls
        yield sql
    except duckdb.Error as cause:
        if calls.ended.is_set():
            raise duckdb.InterruptException("INTERRUPT Error: Interrupted!") from cause
        raise
    finally:
        _running.pop(connection, None)
        for free in made:
            with suppress(duckdb.Error):  # its transaction has failed, which undoes this
                connection.remove_function(free)


def stopped_in(cause: duckdb.Error) -> Error | None:
    """The error of a function that was stopped, which a query reports as its own."""
    _, found, message = str(cause).partition(_STOPPED)
    return error("FUNCTION_STOPPED", message.splitlines()[0], hint=_HINT) if found else None


def _create(
    connection: duckdb.DuckDBPyConnection,
    name: str,
    function: CalledFunction,
    calls: Calls,
    functions: Functions | None,
) -> None:
    def call(*columns: pa.ChunkedArray) -> pa.Array:
        if functions is not None and functions.stopped is not None:
            raise Raised(functions.stopped.message)
        given = [c.combine_chunks() if isinstance(c, pa.ChunkedArray) else c for c in columns]
        try:
            values, failures = called(function.encoded, function, given, calls)
        except Error as cause:
            if functions is not None:
                functions.stopped = cause
            raise Stopped(cause.message) from None
        if failures and (functions is None or not functions.lenient):
            raise Raised(f"function {function.name}: {failures[0][1]}")
        return values

    places = [inspect.Parameter(f"a{i}", _POSITIONAL) for i in range(len(function.arguments))]
    call.__signature__ = inspect.Signature(places)  # type: ignore[attr-defined] # which DuckDB reads
    connection.create_function(
        name,
        call,
        [duckdb.sqltype(wired(kind).duckdb) for kind in function.arguments],
        duckdb.sqltype(wired(function.value).duckdb),
        type="arrow",
        null_handling="special",
        side_effects=function.volatile,
    )


_POSITIONAL: Final = inspect.Parameter.POSITIONAL_ONLY
_functions: Final[weakref.WeakKeyDictionary[duckdb.DuckDBPyConnection, Functions]] = weakref.WeakKeyDictionary()


def functions_of(connection: duckdb.DuckDBPyConnection) -> Functions:
    """The functions that a connection calls."""
    found = _functions.get(connection)
    if found is None:
        found = _functions[connection] = Functions(connection)
    return found


def check_body(function: CalledFunction) -> str | None:
    """Loads a body. Returns the reason why it is not suitable, or None. Raises FUNCTION_STOPPED."""
    empty = [pa.array([], type=wired(kind).arrow) for kind in function.arguments]
    found = _asked(function.encoded, function, empty, Calls(), check=True)
    return found if isinstance(found, str) else None


def called_in_batches(
    name: str, function: CalledFunction, columns: Sequence[pa.ChunkedArray], count: int
) -> tuple[pa.ChunkedArray, list[tuple[int, str]]]:
    """Like `called`, for any number of rows."""
    whole = [c.combine_chunks() for c in columns]
    calls = Calls()
    pieces: list[pa.Array] = []
    failures: list[tuple[int, str]] = []
    for start in range(0, count, _BATCH_ROWS):
        values, failed = called(name, function, [c.slice(start, _BATCH_ROWS) for c in whole], calls)
        pieces.append(values)
        failures += [(start + i, reason) for i, reason in failed]
    return pa.chunked_array(pieces, wired(function.value).arrow), failures


def called(
    name: str, function: CalledFunction, columns: Sequence[pa.Array], calls: Calls
) -> tuple[pa.Array, list[tuple[int, str]]]:
    """The values for a batch of rows, and the numbers and reasons of those that failed. Raises FUNCTION_STOPPED, and
    Raised if the calls were ended.
    """
    if function.language == NATIVE:
        made = native(function.entry, columns, calls.ended.wait)
        calls.check()
        return made
    found = _asked(name, function, columns, calls, check=False)
    if isinstance(found, str):
        raise _stopped(function, found)
    return found


def _asked(
    name: str, function: CalledFunction, columns: Sequence[pa.Array], calls: Calls, *, check: bool
) -> tuple[pa.Array, list[tuple[int, str]]] | str:
    seconds = seconds_of(SECONDS) or _DEFAULT_S
    limit = max(_LEAST_MEMORY_BYTES, int(memory_bytes() * _MEMORY_SHARE / cores()))
    batch = pa.record_batch(list(columns), [f"a{i}" for i in range(len(columns))])
    with _host() as host:
        try:
            with calls.ended_by(host.kill):
                head, values = host.ask({"function": name, "memory_bytes": limit, "check": check}, batch, seconds)
            calls.check()
        except Raised:  # the process has ended, or will
            host.end()
            raise
        except TimeoutError:
            host.end()
            raise _stopped(function, f"it did not return within {seconds:g} seconds") from None
        except (OSError, pa.ArrowException, ValueError):
            host.end()
            calls.check()
            raise _stopped(function, "it ended its process") from None
        if "stopped" in head:
            host.end()
            raise _stopped(function, head["stopped"])
    if "unsuitable" in head:
        return str(head["unsuitable"])
    return values, [(int(i), str(reason)) for i, reason in head.get("failures", [])]


def _stopped(function: CalledFunction, reason: str) -> Error:
    return error("FUNCTION_STOPPED", f"function {function.name} was stopped: {reason}", hint=_HINT)


class _Host(ChildProcess):
    """A process that runs bodies, one batch at a time."""

    def __init__(self) -> None:
        super().__init__("watersmeet.kernel.evaluation.functionhost")
        try:
            self._head(_START_S)
        except (OSError, ValueError) as cause:
            self.end()
            raise error("RUNTIME_UNAVAILABLE", "the process for functions of other languages did not start") from cause

    def _head(self, seconds: float) -> dict[str, Any]:
        """The next head that the process writes. Raises TimeoutError, and OSError if the process ends."""
        waiting = select.poll()
        waiting.register(self.answers.fileno(), select.POLLIN)
        if not waiting.poll(seconds * 1000):
            raise TimeoutError
        found = read_head(self.answers)
        if found is None:
            raise BrokenPipeError
        return found

    def ask(
        self, head: dict[str, Any], batch: pa.RecordBatch, seconds: float
    ) -> tuple[dict[str, Any], pa.Array | None]:
        """The head and the values of the answer. Raises TimeoutError, and OSError if the process ends."""
        write_head(self.requests, head)
        with pa.ipc.new_stream(pa.PythonFile(self.requests, mode="w"), batch.schema) as writer:
            writer.write_batch(batch)
        self.requests.flush()
        answer = self._head(seconds)
        if "failures" not in answer:
            return answer, None
        with pa.ipc.open_stream(self.answers) as reader:
            return answer, reader.read_all().column(0).combine_chunks()


_guard: Final = threading.Lock()
#: Idle processes, by the process that started them, because those of a parent are not used after a fork.
_idle: Final[dict[int, list[_Host]]] = {}


@contextmanager
def _host() -> Iterator[_Host]:
    """A process for one call. It is kept for the next call unless it was ended."""
    with _guard:
        idle = _idle.setdefault(os.getpid(), [])
        host = idle.pop() if idle else None
    if host is not None and not host.is_alive:
        host.end()
        host = None
    host = host or _Host()
    kept = False
    try:
        yield host
        with _guard:
            kept = host.is_alive and len(idle) < _MOST_IDLE
            if kept:
                idle.append(host)
    finally:
        if not kept:
            host.end()

"""Queries that run in separate processes with separate memory, so that each of them can be ended.

DuckDB can't be interrupted within a call of a function or while it orders many joins, and its memory limit does not
count the values that functions make. Queries with such parts run in a process that reads copies of their inputs.

`python -m watersmeet.kernel.evaluation.isolated` is such a process: it reads requests from its standard input and
writes answers to its standard output. It ends with the process that started it. When the machine lacks memory, the
system ends it first.
"""

from __future__ import annotations

import json
import os
import queue
import re
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final

import duckdb
import pyarrow as pa

from watersmeet.errors import error
from watersmeet.kernel.evaluation.duck import too_large
from watersmeet.kernel.evaluation.functioncalls import registered, stopped_in
from watersmeet.system import duckdbs
from watersmeet.system.childprocesses import ChildProcess, begin_answering, limit_memory, read_head, write_head
from watersmeet.system.files import failure
from watersmeet.system.process import cores, scratch_folder

#: The file in the folder of a request that contains an error raised after the first rows.
FAILURE: Final = "failure.json"


def quoted(name: str) -> str:
    """A quoted name of SQL."""
    return '"' + name.replace('"', '""') + '"'


def main() -> None:
    """Answers requests until the standard input ends."""
    answers = begin_answering()
    requests: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    threading.Thread(target=_read_requests, args=(sys.stdin.buffer, requests), daemon=True).start()
    while True:
        _answer(requests.get(), answers)


def _read_requests(stream: BinaryIO, requests: queue.SimpleQueue[dict[str, Any]]) -> None:
    while (request := read_head(stream)) is not None:
        requests.put(request)
    os._exit(0)  # ends the process even while a query runs


def _answer(request: dict[str, Any], answers: BinaryIO) -> None:
    """Runs a query. Errors of DuckDB are returned with the name of their class."""
    limit_memory(request["memory_bytes"])
    connection = duckdbs.connect(
        memory_limit=f"{request['memory_bytes'] * 3 // 4}B",
        spill_directory=request["folder"],
        external_access=request["external_access"],
    )
    begun = False
    try:
        for table in request["tables"]:
            _show(connection, **table)
        with registered(connection, request["sql"]) as sql:
            reader = connection.execute(sql).to_arrow_reader(_BATCH_ROWS)
            first = next(reader, None)
            write_head(answers, {})
            begun = True
            with pa.ipc.new_stream(pa.PythonFile(answers, mode="w"), reader.schema) as writer:
                if first is not None:
                    writer.write_batch(first)
                for batch in reader:
                    writer.write_batch(batch)
    except (duckdb.Error, MemoryError, pa.ArrowException, UnicodeDecodeError) as cause:
        failure = {"kind": type(cause).__name__, "message": str(cause)}
        if begun:  # errors can't be sent among the rows
            Path(request["folder"], FAILURE).write_text(json.dumps(failure))
            os._exit(1)
        write_head(answers, failure)
    finally:
        connection.close()
    answers.flush()


def _show(connection: duckdb.DuckDBPyConnection, name: str, columns: list[list[str]], path: str) -> None:
    """Creates a view over a file of rows, with the columns' types."""
    rows = pa.ipc.open_file(pa.memory_map(path)).read_all()
    connection.register(f"rows of {name}", rows)
    listed = ", ".join(f"CAST({quoted(c)} AS {kind}) AS {quoted(c)}" for c, kind in columns)
    connection.execute(f"CREATE TEMP VIEW {quoted(name)} AS SELECT {listed} FROM {quoted(f'rows of {name}')}")


_BATCH_ROWS: Final = 1 << 16

#: The number of idle processes kept for later queries.
_MOST_IDLE: Final = 2

_WAIT_S: Final = 0.1


@dataclass(frozen=True)
class Budget:
    """The limits of a query, in bytes. result_bytes: 0 for no limit.

    ending: like `Cancellation.within`. check: raises an error if the statement has ended. yields: whether the query
    runs at the lowest priority. Of these, one runs at a time, in addition to the others.
    """

    memory_bytes: int
    result_bytes: int
    ending: Callable[[Callable[[], object]], AbstractContextManager[None]]
    check: Callable[[], None]
    yields: bool = False


class _Worker(ChildProcess):
    """A process that runs queries, one at a time."""

    def run(self, request: dict[str, Any], most_bytes: int) -> pa.Table:
        """The rows of a query. Raises the errors of DuckDB, RESULT_LIMIT, and OSError or ArrowException if the process
        ends.
        """
        write_head(self.requests, request)
        found = read_head(self.answers)
        if found is None:
            raise BrokenPipeError
        if found:
            raise _failure(found["kind"], found["message"])
        with pa.ipc.open_stream(self.answers) as reader:
            batches, left = [], most_bytes
            for batch in reader:
                left -= batch.nbytes
                if most_bytes and left < 0:
                    raise too_large(most_bytes)
                batches.append(batch)
            return pa.Table.from_batches(batches, reader.schema)


_guard: Final = threading.Lock()
#: Idle processes, and the number of queries that may run, by `Budget.yields`.
_idle: Final[dict[bool, list[_Worker]]] = {False: [], True: []}
_places: Final = {False: threading.BoundedSemaphore(max(2, cores())), True: threading.BoundedSemaphore(1)}


def run_isolated(connection: duckdb.DuckDBPyConnection, sql: str, budget: Budget) -> pa.Table:
    """The rows of a query over the views of a connection, computed in a separate process.

    Raises duckdb.Error, RESULT_LIMIT, DISK_FULL, the errors of `budget.check`, and OUT_OF_MEMORY if the query needs
    more than its budget.
    """
    with scratch_folder("query") as folder:
        with budget.ending(connection.interrupt):
            tables = [_copied(connection, name, folder / f"{i}.arrow") for i, name in enumerate(_read(connection, sql))]
        found = connection.execute("SELECT current_setting('enable_external_access')").fetchone()
        request = {
            "sql": sql,
            "tables": tables,
            "memory_bytes": budget.memory_bytes,
            "folder": str(folder),
            "external_access": found is not None and bool(found[0]),
        }
        with _place(budget), _worker(budget.yields) as worker:
            try:
                with budget.ending(worker.kill):
                    return worker.run(request, budget.result_bytes)
            except duckdb.OutOfMemoryException as cause:
                raise _out_of_memory(budget.memory_bytes) from cause
            except (OSError, pa.ArrowException) as cause:  # the process has ended
                budget.check()
                with suppress(FileNotFoundError):
                    found = json.loads((folder / FAILURE).read_text())
                    raise _failure(found["kind"], found["message"]) from None
                raise _out_of_memory(budget.memory_bytes) from cause


@contextmanager
def _worker(yields: bool) -> Iterator[_Worker]:
    """A process for one query. It is kept for the next query unless this one fails or is ended."""
    idle = _idle[yields]
    with _guard:
        worker = idle.pop() if idle else None
    if worker is not None and not worker.is_alive:
        worker.end()
        worker = None
    worker = worker or _Worker(__name__, yields=yields)
    kept = False
    try:
        yield worker
        with _guard:
            kept = len(idle) < _MOST_IDLE
            if kept:
                idle.append(worker)
    finally:
        if not kept:
            worker.end()


@contextmanager
def _place(budget: Budget) -> Iterator[None]:
    """Waits until fewer queries run in processes than there are cores."""
    places = _places[budget.yields]
    while not places.acquire(timeout=_WAIT_S):
        budget.check()
    try:
        yield
    finally:
        places.release()


def _read(connection: duckdb.DuckDBPyConnection, sql: str) -> list[str]:
    """The names of the views that a query may read."""
    known = connection.execute("SELECT DISTINCT view_name FROM duckdb_views() WHERE NOT internal").fetchall()
    return [name for (name,) in known if quoted(name) in sql or re.search(rf"\b(?:FROM|JOIN) {re.escape(name)}\b", sql)]


def _copied(connection: duckdb.DuckDBPyConnection, name: str, path: Path) -> dict[str, Any]:
    """Copies the rows of a view into a file. Returns the arguments with which `_show` reads it."""
    described = connection.execute(f"DESCRIBE {quoted(name)}").fetchall()
    reader = connection.execute(f"SELECT * FROM {quoted(name)}").to_arrow_reader(_BATCH_ROWS)
    try:
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, reader.schema) as writer:
            for batch in reader:
                writer.write_batch(batch)
    except OSError as cause:
        raise failure(cause, path) from cause
    return {"name": name, "columns": [[column, kind] for column, kind, *_ in described], "path": str(path)}


def _failure(kind: str, message: str) -> Exception:
    made = getattr(duckdb, "OutOfMemoryException" if kind == "MemoryError" else kind, duckdb.Error)
    found: Exception = made(message)
    return stopped_in(found) or found


def _out_of_memory(memory_bytes: int) -> Exception:
    return error(
        "OUT_OF_MEMORY",
        "the statement needs too much memory",
        detail=f"It may have {memory_bytes:,} bytes.",
        hint="Read fewer rows or columns, or let the server have a larger --statement-memory.",
    )


if __name__ == "__main__":
    main()

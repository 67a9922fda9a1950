"""The process of one query at a time: `python -m watersmeet.kernel.evaluation.queryworker`.

It gets requests on its standard input and answers on its standard output. It ends with the process that started it, and
is the first that the system ends when the machine lacks memory.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import resource
import struct
import sys
import threading
from pathlib import Path
from typing import Any, BinaryIO, Final

import duckdb
import pyarrow as pa

from watersmeet.system import duckdbs

#: A length in front of each request, and of the head of each answer.
LENGTH: Final = struct.Struct(">I")
#: The file, in the folder of a request, with an error that came after the first rows.
FAILURE: Final = "failure.json"
_BATCH_ROWS: Final = 1 << 16
_OOM_SCORE: Final = "1000"


def quoted(name: str) -> str:
    """A name of SQL."""
    return '"' + name.replace('"', '""') + '"'


def main() -> None:
    """Answers requests until the standard input ends."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(_OOM_SCORE)
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # printed text does not garble an answer
    requests: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(sys.stdin.buffer, requests), daemon=True).start()
    while True:
        _answer(requests.get(), answers)


def _read(stream: BinaryIO, requests: queue.SimpleQueue[dict[str, Any]]) -> None:
    while len(head := stream.read(LENGTH.size)) == LENGTH.size:
        requests.put(json.loads(stream.read(LENGTH.unpack(head)[0])))
    os._exit(0)  # also while a query runs


def _answer(request: dict[str, Any], answers: BinaryIO) -> None:
    """Runs a query. An error of DuckDB goes back by the name of its class."""
    _limit_memory(request["memory_bytes"])
    connection = duckdbs.connect(
        memory_limit=f"{request['memory_bytes'] * 3 // 4}B",
        spill_directory=request["folder"],
        external_access=request["external_access"],
    )
    begun = False
    try:
        for table in request["tables"]:
            _show(connection, **table)
        reader = connection.execute(request["sql"]).to_arrow_reader(_BATCH_ROWS)
        first = next(reader, None)
        _send(answers, {})
        begun = True
        with pa.ipc.new_stream(pa.PythonFile(answers, mode="w"), reader.schema) as writer:
            if first is not None:
                writer.write_batch(first)
            for batch in reader:
                writer.write_batch(batch)
    except (duckdb.Error, MemoryError, pa.ArrowException, UnicodeDecodeError) as cause:
        failure = {"kind": type(cause).__name__, "message": str(cause)}
        if begun:  # the rows have no place for an error
            Path(request["folder"], FAILURE).write_text(json.dumps(failure))
            os._exit(1)
        _send(answers, failure)
    finally:
        connection.close()
    answers.flush()


def _show(connection: duckdb.DuckDBPyConnection, name: str, columns: list[list[str]], path: str) -> None:
    """Shows a file of rows under a name, with the columns' types."""
    rows = pa.ipc.open_file(pa.memory_map(path)).read_all()
    connection.register(f"rows of {name}", rows)
    listed = ", ".join(f"CAST({quoted(c)} AS {kind}) AS {quoted(c)}" for c, kind in columns)
    connection.execute(f"CREATE TEMP VIEW {quoted(name)} AS SELECT {listed} FROM {quoted(f'rows of {name}')}")


def _limit_memory(memory_bytes: int) -> None:
    """Lets the process take that much more than it has. Mapped files don't count."""
    with contextlib.suppress(OSError, ValueError):
        used = int(Path("/proc/self/statm").read_text().split()[5]) * os.sysconf("SC_PAGE_SIZE")
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        resource.setrlimit(resource.RLIMIT_DATA, (used + memory_bytes, hard))


def _send(answers: BinaryIO, head: dict[str, str]) -> None:
    body = json.dumps(head).encode()
    answers.write(LENGTH.pack(len(body)) + body)
    answers.flush()


if __name__ == "__main__":
    main()

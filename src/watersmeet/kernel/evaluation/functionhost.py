"""The process in which functions of other languages run, so that its end does not end the process that calls them.

`python -m watersmeet.kernel.evaluation.functionhost` reads requests from its standard input and writes answers to its
standard output: the length of a JSON head, the head, and rows as an Arrow stream. A request has one batch of arguments;
an answer has the values and the failed rows. The first head reports that the process is ready.
"""

from __future__ import annotations

import contextlib
import os
import queue
import sys
import threading
from collections import OrderedDict
from typing import Any, BinaryIO, Final

import pyarrow as pa

from watersmeet.kernel.evaluation import functionbodies, javascriptbodies
from watersmeet.kernel.evaluation.functionbodies import Body, Unsuitable, reason_of
from watersmeet.system.childprocesses import begin_answering, limit_memory, read_head, write_head
from watersmeet.values.calledfunctions import CalledFunction, decoded

#: The maximum size of the values of a batch.
_MOST_BYTES: Final = 256 << 20

_KEPT: Final = 64


def main() -> None:
    """Answers requests until the standard input ends."""
    answers = begin_answering()
    requests: queue.SimpleQueue[tuple[dict[str, Any], pa.RecordBatch]] = queue.SimpleQueue()
    threading.Thread(target=_read_requests, args=(sys.stdin.buffer, requests), daemon=True).start()
    sys.stdin = open(os.devnull)  # noqa: SIM115 - a body that reads input gets none
    bodies: OrderedDict[str, Body] = OrderedDict()
    write_head(answers, {})  # ready
    while True:
        _answer(*requests.get(), bodies, answers)


def _read_requests(stream: BinaryIO, requests: queue.SimpleQueue[tuple[dict[str, Any], pa.RecordBatch]]) -> None:
    with contextlib.suppress(pa.ArrowException, OSError):
        while (head := read_head(stream)) is not None:
            with pa.ipc.open_stream(pa.PythonFile(stream, mode="r")) as reader:
                batch = reader.read_next_batch()
                while next(reader, None) is not None:
                    pass
            requests.put((head, batch))
    os._exit(0)  # ends the process even while a body runs


def _answer(head: dict[str, Any], batch: pa.RecordBatch, bodies: OrderedDict[str, Body], answers: BinaryIO) -> None:
    try:
        name = head["function"]
        body = bodies.pop(name, None)
        if body is None:
            limit_memory(head["memory_bytes"])
            function = decoded(name)
            assert function is not None
            body = body_of(function)
        bodies[name] = body
        if len(bodies) > _KEPT:
            bodies.popitem(last=False)
        if head["check"]:
            write_head(answers, {})
            return
        values, failures = body(batch.columns, batch.num_rows)
        if values.nbytes > _MOST_BYTES:
            write_head(answers, {"stopped": f"it returned more than {_MOST_BYTES >> 20} MiB for {batch.num_rows} rows"})
            return
        write_head(answers, {"failures": failures})
        made = pa.record_batch([values], ["v"])
        with pa.ipc.new_stream(pa.PythonFile(answers, mode="w"), made.schema) as writer:
            writer.write_batch(made)
        answers.flush()
    except MemoryError:
        write_head(answers, {"stopped": f"it needs more than {head['memory_bytes'] >> 20} MiB of memory"})
    except Unsuitable as cause:
        write_head(answers, {"unsuitable": str(cause)})
    except BaseException as cause:
        write_head(answers, {"unsuitable": reason_of(cause, "")})


def body_of(function: CalledFunction) -> Body:
    """The body of a function, loaded. Raises Unsuitable."""
    compute = (javascriptbodies if function.language == "javascript" else functionbodies).computing(function)
    body = functionbodies.with_failures_of_rows(compute, function)
    return functionbodies.strict(body) if function.strict else body


if __name__ == "__main__":
    main()

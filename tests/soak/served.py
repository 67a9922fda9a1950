"""The child: it has the database open and does what the parent writes to it, a JSON line each, and answers by one."""

from __future__ import annotations

import ctypes
import gc
import json
import sys
import time

import pyarrow as pa

from watersmeet import connect
from watersmeet.errors import Error


def main() -> None:
    path, runtime, parallelism = sys.argv[1], sys.argv[2], int(sys.argv[3])
    connection = connect(path, runtime=runtime, parallelism=parallelism)
    cursor = connection.cursor()
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        began = time.perf_counter()
        try:
            answer = {"answer": _do(connection, cursor, asked)}
        except Error as problem:
            answer = {"error": str(problem)}
        print(json.dumps({**answer, "seconds": time.perf_counter() - began}, default=str), flush=True)
    connection.close()


def _do(connection, cursor, asked):
    if "status" in asked:
        return connection.status()
    if "kept" in asked:
        return _kept()
    answer = None
    for statement in asked["sql"]:
        cursor.execute(statement)
        answer = [list(row) for row in cursor.fetchall()] if cursor.description else None
    return answer


class _Mallinfo(ctypes.Structure):
    """glibc's `struct mallinfo2`."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost".split()
    ]


def malloc_bytes():
    """What C's allocator has given to this process and not got back."""
    info = ctypes.CDLL(None).mallinfo2
    info.restype = _Mallinfo
    used = info()
    return used.uordblks + used.hblkhd


def _kept():
    """What this process keeps, without what its allocators have free.

    Nothing is collected for it: that would change what is measured.
    """
    return {
        "objects": len(gc.get_objects()),
        "arrow_bytes": pa.total_allocated_bytes(),
        "malloc_bytes": malloc_bytes(),
    }


if __name__ == "__main__":
    main()

"""The child: it has the database open and does what the parent writes to it, a JSON line each, and answers by one."""

from __future__ import annotations

import json
import sys
import time

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
    answer = None
    for statement in asked["sql"]:
        cursor.execute(statement)
        answer = [list(row) for row in cursor.fetchall()] if cursor.description else None
    return answer


if __name__ == "__main__":
    main()

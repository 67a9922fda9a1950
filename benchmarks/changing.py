"""A process of its own that updates rows of a table of a server at a rate, in transactions of 10 to 1,000 rows.

Each transaction also writes its number into a row of its own (`BEAT`), so that a reader knows which ones it sees. At
its end it prints JSON: `committed_s`, when each transaction had been committed (seconds since 1970), the first one's
number is 1; `rows`; `cpu_s`, its own processor seconds. Then it waits for the end of its input, so that what the server
did for it can be measured.
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections.abc import Callable
from contextlib import closing
from typing import Any

from scripts.servers.mariadb import MariaDB
from scripts.servers.postgres import Postgres

#: The row with the number of the newest transaction.
BEAT = -1
LEAST_ROWS, MOST_ROWS = 10, 1000


def sizes(seed: int = 7) -> Callable[[], int]:
    """Numbers of rows of transactions: as many small ones as large ones by orders of magnitude."""
    r = random.Random(seed)
    return lambda: round(LEAST_ROWS * (MOST_ROWS / LEAST_ROWS) ** r.random())


def update(cursor: Any, number: int, ids: list[int]) -> None:
    """One transaction."""
    listed = ",".join(map(str, ids))
    cursor.execute("BEGIN")
    cursor.execute(f"UPDATE t SET amount = amount + 1, note = 'changed by {number}' WHERE id IN ({listed})")
    cursor.execute(f"UPDATE t SET amount = {number} WHERE id = {BEAT}")
    cursor.execute("COMMIT")


def main(arguments: list[str]) -> int:
    """Arguments: postgres or mysql, the server as JSON, rows of the table, rows/s, seconds."""
    system, stored, table_rows, rate, seconds = arguments
    server: Any = (Postgres if system == "postgres" else MariaDB).from_json(stored)
    r, size, most = random.Random(11), sizes(), int(table_rows)
    committed_s: list[float] = []
    rows, began = 0, time.monotonic()
    with closing(server.connect("postgres" if system == "postgres" else "bench")) as connection:
        cursor = connection.cursor()
        while time.monotonic() < began + float(seconds):
            ids = r.sample(range(most), min(size(), most))
            due = began + rows / float(rate)
            time.sleep(max(0.0, due - time.monotonic()))
            update(cursor, len(committed_s) + 1, ids)
            committed_s.append(time.time())
            rows += len(ids)
        made = {"committed_s": committed_s, "rows": rows, "cpu_s": time.process_time()}
        print(json.dumps(made), flush=True)
        sys.stdin.read()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

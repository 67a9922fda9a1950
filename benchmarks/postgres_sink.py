"""A sink of upserts to PostgreSQL: the content of a table with a primary key, then an update of every second row.

Both are timed from the statement until the server has acknowledged all, and the table there is compared by its number
of rows and a checksum. The server runs on the same cores. Peer: COPY of the same rows into an empty table with the
same primary key, from text that is ready in memory. Target: 50 k rows/s.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from scripts.servers.postgres import PASSWORD, USER, Postgres

import watersmeet
from benchmarks.kafka_sink import CHECK, FILL, UPDATE, delivered
from benchmarks.processes import cpu_seconds, wait_until

TABLE = "CREATE TABLE {name} (id bigint PRIMARY KEY, ts timestamp, amount bigint, note text)"
SINK = """
CREATE SINK s FROM t WITH (connector = 'postgres', host = '127.0.0.1', port = '{port}', user = '{user}',
    password = '{password}', database = 'postgres', table = 'ours', type = 'upsert', primary_key = 'id')
"""


def ours(create: str, ask: Callable[[str], Any], rows: int, parallelism: int, integer: str = "BIGINT") -> None:
    """Prints how fast a sink delivers. create: makes it. ask: gives the row that the server answers a query with.

    integer: what the server's CAST calls a whole number of 64 bits.
    """
    with (
        tempfile.TemporaryDirectory() as folder,
        watersmeet.connect(Path(folder) / "db", parallelism=parallelism) as connection,
    ):
        connection.execute(FILL.format(last=rows - 1))
        for name, statement, count in (("content", create, rows), ("updates", UPDATE, rows // 2)):
            head = delivered(connection)
            before, began = cpu_seconds(os.getpid()), time.perf_counter()
            connection.execute(statement)
            wait_until(lambda: (delivered(connection) or -1) > (head or -1), 300, 0.01)  # noqa: B023
            seconds = time.perf_counter() - began
            shown(f"watersmeet, {name}", count, seconds, cpu_seconds(os.getpid()) - before)
        right = connection.execute(CHECK).fetchone()
        found = ask(CHECK.replace("FROM t", "FROM ours").replace("BIGINT", integer))
    assert tuple(map(int, found)) == tuple(map(int, right)), (found, right)
    print(f"rows {int(found[0]):,}, checksum {int(found[1]):,}: as the table has it")


def copied(server: Postgres, rows: int) -> None:
    """Prints how fast the server itself takes the rows."""
    with server.connect() as target:
        target.execute(TABLE.format(name="peer"))
        with target.cursor().copy("COPY ours TO STDOUT") as reading:
            text = b"".join(bytes(block) for block in reading)
        before, began = cpu_seconds(os.getpid()), time.perf_counter()
        with target.cursor().copy("COPY peer FROM STDIN") as writing:
            writing.write(text)
        seconds, used = time.perf_counter() - began, cpu_seconds(os.getpid()) - before
        assert target.execute(CHECK.replace("FROM t", "FROM peer")).fetchone() is not None
    shown("COPY of the same rows", rows, seconds, used)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser("postgres_sink", description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--parallelism", type=int, default=2)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        server = Postgres.started(Path(folder) / "postgres")
        try:
            create = SINK.format(port=server.port, user=USER, password=PASSWORD)
            with server.connect() as target:
                target.execute(TABLE.format(name="ours"))
                ours(create, lambda query: target.execute(query).fetchone(), options.rows, options.parallelism)
            copied(server, options.rows)
        finally:
            server.remove()
    return 0


def shown(name: str, rows: int, seconds: float, used: float) -> None:
    print(f"{name:22} {rows / seconds:>10,.0f} rows/s  {seconds:6.1f} s  processor {used:.1f} s with the server")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""A table that follows a table of PostgreSQL: the rows that it has, then an update of every second one.

Timed until the rows are in the table here, as FLUSH says, and until a view over it shows them; then the number of rows
and a checksum are compared with the server's. The server runs on the same cores. Peer: the server's own text of the
same changes (`pg_logical_slot_peek_binary_changes`), which is read and thrown away.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

from scripts.servers.postgres import PASSWORD, USER, Postgres

import watersmeet
from benchmarks.kafka_sink import CHECK
from benchmarks.postgres_sink import TABLE, shown
from benchmarks.processes import cpu_seconds

FILL = """
INSERT INTO t SELECT i, timestamp '2024-01-01' + i * interval '1 second', i * 7 % 1000, 'note ' || i
FROM generate_series(0, {last}) AS g(i)
"""
UPDATE = "UPDATE t SET amount = amount + 1 WHERE id % 2 = 0"
SOURCE = """
CREATE SOURCE pg WITH (connector = 'postgres-cdc', hostname = '127.0.0.1', port = '{port}', username = '{user}',
    password = '{password}', database.name = 'postgres', slot.name = 'ours')
"""
CHANGES = """
SELECT count(*), sum(length(data)) FROM pg_logical_slot_peek_binary_changes('peer', NULL, NULL, 'proto_version', '1',
    'publication_names', 'rw_publication')
"""


def ours(server: Postgres, rows: int, parallelism: int) -> None:
    with (
        tempfile.TemporaryDirectory() as folder,
        watersmeet.connect(Path(folder) / "db", parallelism=parallelism) as connection,
        server.connect() as there,
    ):
        connection.execute(SOURCE.format(port=server.port, user=USER, password=PASSWORD))
        for name, statement, count in (("rows that are there", "", rows), ("updates", UPDATE, rows // 2)):
            if statement:
                there.execute("SELECT pg_create_logical_replication_slot('peer', 'pgoutput')")
                there.execute(statement)
            before, began = cpu_seconds(os.getpid()), time.perf_counter()
            if not statement:
                connection.execute("CREATE TABLE t (*) FROM pg TABLE 't'")
                connection.execute("CREATE MATERIALIZED VIEW v AS SELECT id, amount FROM t WHERE amount > 10")
            connection.execute("FLUSH")
            shown(name, count, time.perf_counter() - began, cpu_seconds(os.getpid()) - before)
            for check in (CHECK, "SELECT count(*), sum(amount) FROM t WHERE amount > 10"):
                found = connection.execute(check.replace("FROM t WHERE amount > 10", "FROM v")).fetchone()
                assert tuple(map(int, found)) == tuple(map(int, there.execute(check).fetchone())), (name, found)
        before, began = cpu_seconds(os.getpid()), time.perf_counter()
        (messages, size_bytes) = there.execute(CHANGES).fetchone()
        used = cpu_seconds(os.getpid()) - before
        assert messages >= rows // 2
        shown("the server's messages", rows // 2, time.perf_counter() - began, used)
        print(f"rows and checksum as PostgreSQL has them; {int(size_bytes) >> 20} MB of messages")


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser("capture", description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--parallelism", type=int, default=2)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        server = Postgres.started(Path(folder) / "postgres")
        try:
            with server.connect() as there:
                there.execute(TABLE.format(name="t"))
                there.execute(FILL.format(last=options.rows - 1))
            ours(server, options.rows, options.parallelism)
        finally:
            server.remove()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""SELECT of 100 k rows of three columns through psycopg, in text and binary, and of single rows by the key of a view of
ten million. Apart from these, the first point query, which loads the view, and the second one, which makes the index.

The same statements against `watersmeet serve` (in process, without Spark) and PostgreSQL, in turns; both serve the same
rows, and the results are compared. Target: at most twice PostgreSQL's time for 100 k rows, at most 8 ms for one. The
processor time is that of the server's process.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import psycopg
from scripts.servers.postgres import Postgres

from benchmarks.processes import cpu_seconds
from benchmarks.rates import watersmeet

MADE = "CREATE TABLE t (id bigint PRIMARY KEY, note varchar, amount double precision);"
ROWS = "INSERT INTO t SELECT i, 'row ' || i, i / 7.0::double precision FROM generate_series(1, {rows}) AS g(i);"
#: The keys of the view come in no order.
KEY = "i::bigint * 7919 % 100000007"
VIEW = f"""
CREATE TABLE big (id bigint PRIMARY KEY, note varchar, amount double precision);
INSERT INTO big SELECT {KEY}, 'row ' || i, i / 7.0::double precision FROM generate_series(1, {{rows}}) AS g(i);
CREATE MATERIALIZED VIEW v AS SELECT id, note, amount FROM big;
"""


@contextmanager
def served(folder: Path, statements: str, *options: str) -> Iterator[psycopg.Connection]:
    """A connection to a server of Watersmeet that has run statements."""
    with (
        watersmeet(folder, statements, *options) as server,
        psycopg.connect(host="127.0.0.1", port=server.port, user=server.user, autocommit=True) as client,
    ):
        PROCESSES[client] = server.pid
        yield client


#: Of each client of Watersmeet, the process of its server; PostgreSQL has one for each client.
PROCESSES: dict[psycopg.Connection, int] = {}


def processor_ms(client: psycopg.Connection) -> float:
    """What the process of the server has used so far."""
    return cpu_seconds(PROCESSES.get(client) or client.info.backend_pid) * 1000


def seconds(client: psycopg.Connection, query: str, *, binary: bool) -> tuple[float, list[tuple[object, ...]]]:
    began = time.perf_counter()
    rows = client.cursor(binary=binary).execute(query).fetchall()
    return time.perf_counter() - began, rows


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser("wire", description=__doc__)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--view-rows", type=int, default=10_000_000)
    parser.add_argument("--rounds", type=int, default=7)
    wanted = parser.parse_args(arguments)
    statements = MADE + ROWS.format(rows=wanted.rows) + VIEW.format(rows=wanted.view_rows)
    with tempfile.TemporaryDirectory() as folder:
        server = Postgres.started(Path(folder) / "postgres")
        try:
            with server.connect() as peer, served(Path(folder), statements) as ours:
                for statement in statements.split(";"):
                    if statement.strip():
                        peer.execute(statement)
                peer.execute("CREATE UNIQUE INDEX ON v (id)")
                peer.commit()
                peer.autocommit = True
                for binary in (False, True):
                    query = "SELECT id, note, amount FROM t"
                    compare(ours, peer, [query] * wanted.rounds, binary=binary, what="all")
                keys = [
                    i * 7919 % 100000007 for i in range(1, wanted.view_rows, wanted.view_rows // (wanted.rounds * 30))
                ]
                points = [f"SELECT id, note, amount FROM v WHERE id = {key}" for key in keys]
                # The first point query loads the view, the second one makes the index.
                compare(ours, peer, points[:1], binary=False, what="load")
                compare(ours, peer, points[1:2], binary=False, what="index")
                compare(ours, peer, points[2:], binary=False, what="one")
        finally:
            server.stop()
    return 0


def compare(
    ours: psycopg.Connection, peer: psycopg.Connection, queries: Sequence[str], *, binary: bool, what: str
) -> None:
    """Prints the medians of both, measured in turns, and the processor time of a query."""
    clients = {"watersmeet": ours, "PostgreSQL": peer}
    times: dict[str, list[float]] = {name: [] for name in clients}
    began = {name: processor_ms(client) for name, client in clients.items()}
    for query in queries:
        found = {}
        for name, client in clients.items():
            took, rows = seconds(client, query, binary=binary)
            times[name].append(took)
            found[name] = sorted(rows)
        assert found["watersmeet"] == found["PostgreSQL"]
        assert found["watersmeet"]
    used = {name: (processor_ms(client) - began[name]) / len(queries) for name, client in clients.items()}
    medians = {name: statistics.median(t) * 1000 for name, t in times.items()}
    ratio = medians["watersmeet"] / medians["PostgreSQL"]
    shown = ", ".join(f"{name} {ms:.1f} ms ({used[name]:.1f} of processors)" for name, ms in medians.items())
    print(f"{what:5} {'binary' if binary else 'text':7} {shown}: {ratio:.2f} times", flush=True)

"""SELECT of 100 k rows of three columns through psycopg, in text and binary, and of one row by its key.

The same statements against `watersmeet serve` (in process, without Spark) and PostgreSQL, in turns; both serve the same
rows, and the results are compared. Target: at most twice PostgreSQL's time for 100 k rows, at most 8 ms for one.
"""

from __future__ import annotations

import argparse
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
from scripts.servers.postgres import Postgres

MADE = "CREATE TABLE t (id bigint PRIMARY KEY, note varchar, amount double precision);"
ROWS = "INSERT INTO t SELECT i, 'row ' || i, i / 7.0::double precision FROM generate_series(1, {rows}) AS g(i);"


@contextmanager
def served(folder: Path, rows: int) -> Iterator[psycopg.Connection]:
    """A connection to a server of Watersmeet with the rows."""
    script = folder / "fill.sql"
    script.write_text(MADE + ROWS.format(rows=rows) + "FLUSH;")
    command = [sys.executable, "-m", "watersmeet.cli.main", "serve", "--path", str(folder / "db"), "--port", "0"]
    command += ["--runtime", "inprocess", str(script)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            found = next(m for line in process.stderr or () if (m := re.match(r"listening on \S+:(\d+)", line)))
            with psycopg.connect(host="127.0.0.1", port=int(found[1]), user="bench", autocommit=True) as client:
                yield client
        finally:
            process.terminate()


def seconds(client: psycopg.Connection, query: str, *, binary: bool) -> tuple[float, list[tuple[object, ...]]]:
    began = time.perf_counter()
    rows = client.cursor(binary=binary).execute(query).fetchall()
    return time.perf_counter() - began, rows


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser("wire", description=__doc__)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=7)
    wanted = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        server = Postgres.started(Path(folder) / "postgres")
        try:
            with server.connect() as peer, served(Path(folder), wanted.rows) as ours:
                peer.execute(MADE + ROWS.format(rows=wanted.rows))
                peer.commit()
                peer.autocommit = True
                for binary in (False, True):
                    compare(ours, peer, "SELECT id, note, amount FROM t", wanted.rounds, binary=binary, what="all")
                point = f"SELECT id, note, amount FROM t WHERE id = {wanted.rows // 2}"
                compare(ours, peer, point, wanted.rounds * 10, binary=False, what="one")
        finally:
            server.stop()
    return 0


def compare(
    ours: psycopg.Connection, peer: psycopg.Connection, query: str, rounds: int, *, binary: bool, what: str
) -> None:
    """Prints the medians of both, measured in turns."""
    times: dict[str, list[float]] = {"watersmeet": [], "PostgreSQL": []}
    for _ in range(rounds):
        found = {}
        for name, client in (("watersmeet", ours), ("PostgreSQL", peer)):
            took, rows = seconds(client, query, binary=binary)
            times[name].append(took)
            found[name] = sorted(rows)
        assert found["watersmeet"] == found["PostgreSQL"]
    medians = {name: statistics.median(t) * 1000 for name, t in times.items()}
    ratio = medians["watersmeet"] / medians["PostgreSQL"]
    shown = ", ".join(f"{name} {ms:.1f} ms" for name, ms in medians.items())
    print(f"{what:4} {'binary' if binary else 'text':7} {shown}: {ratio:.2f} times")

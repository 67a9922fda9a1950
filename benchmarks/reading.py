"""SELECTs of a large view in fresh processes: time, memory and temporary disk, beside DuckDB over Parquet, also in
fresh processes.

With `--store`, the view is in an object store (moto in a process of its own), and the bytes of its answers are counted.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import duckdb

import watersmeet
from benchmarks.slowstore import SlowStore

TABLES = """
CREATE TABLE dims (n bigint, d bigint, name varchar, region int) APPEND ONLY;
CREATE TABLE facts (id bigint, d bigint, moment timestamp, amount bigint) APPEND ONLY;
"""
VIEW = """
CREATE MATERIALIZED VIEW joined AS
SELECT f.id * 20::bigint + dims.n AS id, f.d, f.moment, f.amount, dims.name, dims.region
FROM facts f JOIN dims ON f.d = dims.d
"""
ROWS = (
    "SELECT g AS id, g % 1000 AS d, timestamp '2026-01-01' + g * interval '1 second' AS moment, "
    "g::bigint * 7919 % 100003 AS amount"
)
DIMS = "SELECT g % 20 AS n, g / 20 AS d, 'name of ' || g AS name, (g % 50)::int AS region"
QUERIES = {
    "limit": "SELECT * FROM joined LIMIT 10",
    "one key": "SELECT * FROM joined WHERE id = {key}",
    "count": "SELECT count(*) FROM joined",
    "time": "SELECT count(*), sum(amount) FROM joined WHERE moment >= '{first}' AND moment < '{last}'",
    "aggregate": "SELECT region, count(*), sum(amount), min(moment), max(id), sum(d), min(name) FROM joined "
    "GROUP BY region",
    "one column": "SELECT sum(amount) FROM joined",
}
CHECK = (
    "SELECT count(*), sum(id), sum(d), sum(amount), sum(region), sum(length(name)), "
    "sum(extract(epoch FROM moment)::bigint) FROM joined"
)
#: The columns of the printed table in milliseconds and megabytes: their key in the answer of `ask`, and its factor.
_SHOWN = {
    "open": ("opened_s", 1e3),
    "first": ("first_s", 1e3),
    "cpu": ("first_cpu_s", 1e3),
    "again": ("again_s", 1e3),
    "again cpu": ("again_cpu_s", 1e3),
    "peak MB": ("peak_mb", 1),
    "own MB": ("own_mb", 1),
    "temp MB": ("temporary_mb", 1),
}
_BATCH = 250_000
_COPIES = 20


class Peak:
    """The peak of the temporary bytes below a folder, sampled."""

    def __init__(self, folder: Path) -> None:
        self.bytes = 0
        self._folder = folder
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.wait(0.01):
            sizes = []
            for path in self._folder.rglob("*"):
                try:
                    sizes.append(path.stat().st_size if path.is_file() else 0)
                except OSError:
                    continue
            self.bytes = max(self.bytes, sum(sizes))

    def end(self) -> int:
        self._stop.set()
        self._thread.join()
        return self.bytes


def _memory(field: str) -> int:
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith(field))


def first_of(rows: Sequence[Sequence[object]]) -> list[str]:
    """The values of the first of the ordered rows, as text, because Decimals and integers differ."""
    return min((list(map(str, row)) for row in rows), default=[])


def reader(path: str) -> watersmeet.Connection:
    """A connection that reads a database."""
    return watersmeet.connect(path, read_only=True, runtime="inprocess")


def of_parquet(path: str) -> duckdb.DuckDBPyConnection:
    """DuckDB with the view over a file of Parquet."""
    model = duckdb.connect(config={"threads": 2, "memory_limit": "2GB"})
    model.execute(f"CREATE VIEW joined AS FROM '{path}'")
    return model


def ask(path: str, sql: str, times: int) -> dict[str, object]:
    """The rows of a query over a database or a file of Parquet and its cost, for a process that has read nothing
    else.
    """
    began = time.perf_counter()
    connection = of_parquet(path) if path.endswith(".parquet") else reader(path)
    opened = time.perf_counter() - began
    took = []
    for _ in range(times):
        began, cpu = time.perf_counter(), time.process_time()
        rows = connection.execute(sql).fetchall()
        took.append((time.perf_counter() - began, time.process_time() - cpu))
    found = {
        "rows": len(rows),
        "first": first_of(rows),
        "opened_s": opened,
        "first_s": took[0][0],
        "first_cpu_s": took[0][1],
        "again_s": min(took)[0],
        "again_cpu_s": min(took)[1],
        "peak_mb": _memory("VmHWM") / 1e6,
        "own_mb": _memory("RssAnon") / 1e6,
    }
    connection.close()
    return found


def fresh(path: Path | str, sql: str, times: int = 3, copies: Mapping[str, str] | None = None) -> dict[str, object]:
    """The answer of `ask` in a new process, with bytecode as an installed package has it.

    copies: the environment variables for copies of objects.
    """
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    with tempfile.TemporaryDirectory() as scratch:
        temporary = Peak(Path(scratch))  # in this process: there, it would take time of the query
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks", "reading", f"--ask={sql}", f"--database={path}", f"--times={times}"],
            env=environment | {"TMPDIR": scratch} | dict(copies or {}),
            check=True,
            stdout=subprocess.PIPE,
            text=True,
        )
        found: dict[str, object] = json.loads(done.stdout) | {"temporary_mb": temporary.end() / 1e6}
    return found


def make(path: Path | str, rows: int) -> None:
    """The database with the view `joined`, of `rows` rows."""
    began = time.perf_counter()
    with watersmeet.connect(path, runtime="inprocess", parallelism=2) as connection:
        connection.execute(TABLES + VIEW)
        connection.execute(f"INSERT INTO dims {DIMS} FROM generate_series(0, {1000 * _COPIES - 1}) AS s(g)")
        connection.execute("FLUSH")
        for first in range(0, rows // _COPIES, _BATCH):
            last = min(first + _BATCH, rows // _COPIES) - 1
            connection.execute(f"INSERT INTO facts {ROWS} FROM generate_series({first}, {last}) AS s(g)")
            connection.execute("FLUSH")
    files = path.rglob("*") if isinstance(path, Path) else ()
    size = f", {sum(p.stat().st_size for p in files if p.is_file()) / 1e6:.0f} MB on disk" if files else ""
    print(f"made in {time.perf_counter() - began:.0f} s{size}", flush=True)


def compare(parquet: Path, rows: int) -> duckdb.DuckDBPyConnection:
    """DuckDB, with the content of the view, computed by itself, in Parquet."""
    duckdb.execute(
        f"COPY (SELECT f.id * 20::bigint + x.n AS id, f.d, f.moment, f.amount, x.name, x.region "
        f"FROM ({ROWS} FROM range({rows // _COPIES}) AS s(g)) f JOIN ({DIMS.replace(' / ', ' // ')} "
        f"FROM range({1000 * _COPIES}) AS s(g)) x ON f.d = x.d) TO '{parquet}' (FORMAT parquet)"
    )
    return of_parquet(str(parquet))


def in_store(options: argparse.Namespace) -> None:
    """Prints the bytes that an object store sends to a process without copies, for opening and for each query."""
    path = "s3://benchmark/db"
    with tempfile.TemporaryDirectory() as made, SlowStore() as store:
        os.environ["WATERSMEET_CACHE_DIR"] = made
        make(path, options.rows)
        size = sum(r.sent_bytes for r in store.taken() if "/segments/" in r.path)
        print(f"{size / 1e6:.0f} MB of segments\n{'query':12}{'requests':>11}{'MB':>11}{'ms':>11}{'cpu ms':>11}")
        places = {"key": options.rows // 2 + 7, "first": "2026-01-02", "last": "2026-01-02 02:00:00"}
        for name, query in {"open": "SELECT 1", **QUERIES}.items():
            if options.only and name not in ("open", *options.only):
                continue
            with tempfile.TemporaryDirectory() as copies:
                found = fresh(path, query.format(**places), 1, {"WATERSMEET_CACHE_DIR": copies})
            requests = store.taken()
            numbers = (
                sum(r.answer_bytes for r in requests) / 1e6,
                *(float(str(found[key])) * 1e3 for key in ("first_s", "first_cpu_s")),
            )
            print(f"{name:12}{len(requests):11}" + "".join(f"{n:11.2f}" for n in numbers), flush=True)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="reading", description=__doc__)
    parser.add_argument("--rows", type=int, default=20_000_000)
    parser.add_argument("--database", help="a database that an earlier run has made; made if absent")
    parser.add_argument("--times", type=int, default=3, help="how often each process asks")
    parser.add_argument("--only", nargs="*", default=[], help="the names of queries")
    parser.add_argument("--store", action="store_true", help="the view is in an object store")
    parser.add_argument("--ask", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.ask:
        print(json.dumps(ask(options.database, options.ask, options.times)))
        return 0
    if options.store:
        in_store(options)
        return 0
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(options.database or Path(scratch) / "db")
        if not path.exists():
            make(path, options.rows)
        parquet = Path(scratch) / "joined.parquet"
        model = compare(parquet, options.rows)
        with watersmeet.connect(path, read_only=True, runtime="inprocess") as connection:
            ours = connection.execute(CHECK).fetchone()
        theirs = model.execute(CHECK).fetchone()
        assert ours is not None
        assert theirs is not None
        assert tuple(map(int, ours)) == tuple(map(int, theirs)), (ours, theirs)
        print(f"count and checksums as DuckDB's: {tuple(map(int, ours))}", flush=True)
        middle = options.rows // _COPIES // 2
        places = {"key": options.rows // 2 + 7}
        for name, offset in (("first", 0), ("last", options.rows // _COPIES // 100)):
            row = model.execute(f"SELECT timestamp '2026-01-01' + {middle + offset} * interval '1 second'").fetchone()
            assert row is not None
            places[name] = row[0]
        fresh(path, "SELECT count(*) FROM dims", 1)  # writes the bytecode
        print(f"{'query':12}" + "".join(f"{name:>11}" for name in (*_SHOWN, "Parquet", "cpu", "again")))
        for name, query in QUERIES.items():
            if options.only and name not in options.only:
                continue
            sql = query.format(**places)
            found, other = fresh(path, sql, options.times), fresh(parquet, sql, options.times)
            if name != "limit":
                assert found["first"] == other["first"], (name, found["first"], other["first"])
            numbers = [float(str(found[key])) * by for key, by in _SHOWN.values()]
            numbers += [float(str(other[key])) * 1000 for key in ("first_s", "first_cpu_s", "again_s")]
            print(f"{name:12}" + "".join(f"{n:11.1f}" for n in numbers), flush=True)
    return 0

"""What a database costs that sleeps: `run --once` wakes it in an object store, reads new files, commits and ends.

The process has nothing of the database on its disk. Time to the first commit of rows, from the start of the process and
from its first request to the store; requests, bytes and processor time of the whole run.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

import watersmeet
from benchmarks.slowstore import Request, SlowStore, counts, in_series
from watersmeet.objectstores.databasefiles import DIRECTORY

URL = "s3://benchmark/sleeping"
SETUP = """
CREATE TABLE r (k bigint, w bigint, u varchar);
CREATE SOURCE l (k bigint, v bigint, t varchar)
WITH (connector = 'file', path = '{folder}', format = 'json', settle_ms = 0);
CREATE MATERIALIZED VIEW joined AS SELECT l.k, l.v, l.t, r.w, r.u FROM l JOIN r ON l.k = r.k;
CREATE MATERIALIZED VIEW sums AS SELECT k % 1000 AS g, count(*) AS n, sum(w) AS w FROM r GROUP BY k % 1000;
"""
ROWS = "INSERT INTO r SELECT g::bigint * 100, g, repeat('r', {text}) || g FROM generate_series({first}, {last}) AS s(g)"


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="sleeping", description=__doc__)
    parser.add_argument("--rows", type=int, default=3_600_000, help="rows of the table that is joined")
    parser.add_argument("--text", type=int, default=240, help="bytes of text in a row")
    parser.add_argument("--keys", type=int, nargs="+", default=[1, 100], help="rows of the new files")
    parser.add_argument("--parallelism", type=int, default=2)
    parser.add_argument("--latency-ms", type=float, default=20.0, help="added to each request")
    parser.add_argument("--runtime", choices=("spark", "inprocess"), default="inprocess")
    parser.add_argument("--names", action="store_true", help="list the bytes read from each object")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as scratch, SlowStore() as store:
        folder = Path(scratch) / "in"
        folder.mkdir()
        os.environ[DIRECTORY] = f"{scratch}/made"
        state = _make(folder, options)
        print(f"{state / 1e9:.2f} GB of state", flush=True)
        store.delay(options.latency_ms / 1000)
        for number, keys in enumerate((0, *options.keys)):
            if keys:
                step = max(1, options.rows // keys)
                lines = [f'{{"k": {(i * step + number + 1) * 100}, "v": {i}, "t": "new"}}' for i in range(keys)]
                (folder / f"{number}.json").write_text("\n".join(lines) + "\n")
            store.taken()
            _wake(store, Path(scratch) / f"cache{number}", keys, options)
        store.delay(0)
        with watersmeet.connect(URL, read_only=True) as connection:
            found = connection.execute("SELECT count(*), count(DISTINCT t), min(u) LIKE 'rrr%' FROM joined").fetchone()
            assert found == (sum(options.keys), 1, True), found
    return 0


def _make(folder: Path, options: argparse.Namespace) -> int:
    """Makes the database. Returns the bytes of its state."""
    with watersmeet.connect(URL, runtime="inprocess", parallelism=options.parallelism) as connection:
        connection.execute(SETUP.format(folder=folder))
        for first in range(1, options.rows + 1, 300_000):
            last = min(first + 299_999, options.rows)
            connection.execute(ROWS.format(text=options.text, first=first, last=last))
            connection.execute("FLUSH")
        return sum(v["state_bytes"] for v in connection.status()["views"])


def _wake(store: SlowStore, cache: Path, keys: int, options: argparse.Namespace) -> None:
    """Runs `run --once` in a process of its own, and prints what it took."""
    command = [sys.executable, "-m", "watersmeet", "run", "--path", URL, "--once", "--runtime", options.runtime]
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    done = subprocess.run(command, env={**os.environ, DIRECTORY: str(cache)}, capture_output=True, check=False)
    took, after = time.monotonic() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode == 0, done.stderr.decode()
    requests = store.taken()
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    first = min(r.begin for r in requests)
    # the first commit is that of taking over
    commits = [r.end for r in requests if r.kind == "PUT" and "/commits/" in r.path][1:]
    shown = f"{commits[0] - began:.2f} s, {commits[0] - first:.2f} s after its first request" if commits else "none"
    until = [r for r in requests if not commits or r.end <= commits[0]]
    for what, some in (("to the first commit", until), ("in all", requests)):
        kinds = ", ".join(f"{n} {kind}" for kind, n in sorted(counts(some).items()))
        times = shown if some is until else f"{took:.2f} s, {spent:.2f} s of processor time"
        print(
            f"{keys:5} rows, {what:19}: {times}; "
            f"{len(some)} requests ({kinds}), {in_series(some)} in series, {_read(some) / 1e6:.2f} MB read",
            flush=True,
        )
    if options.names:
        _print_names(requests)


def _read(requests: list[Request]) -> int:
    return sum(r.answer_bytes for r in requests if r.kind != "HEAD")


def _print_names(requests: list[Request]) -> None:
    found: dict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0])
    for request in requests:
        entry = found[request.kind, request.path.removeprefix("/benchmark/sleeping/")]
        entry[0] += 1
        entry[1] += request.answer_bytes
    for (kind, name), (number, size_bytes) in sorted(found.items(), key=lambda f: -f[1][1])[:40]:
        print(f"    {kind:6} {number:4} {size_bytes:12,} {name}")

"""State that outgrows the memory of the workers: what of it is their own, and what is mapped files, in a regular join.

10 M + 10 M wide rows. Own memory has to be there; mapped pages are the machine's, which takes them back when it needs
them. A worker is to need no more than 1 GiB of its own, which is told.

--limit-bytes: runs it a second time, with that limit on each worker, own memory, mapped pages and cached files
together, as a container would set it, by a memory cgroup of version 1 (which needs the right to make one). What goes
above is killed, and its task runs again; how often is told, too.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import watersmeet
from benchmarks.data import stream_table
from benchmarks.frame import SOURCES, Streams, batch
from benchmarks.memorylimits import limits
from benchmarks.processes import cpu_seconds, own_seconds
from benchmarks.regular_join import CHECK, QUERY
from watersmeet.runtime.memory import Resident, processes, resident
from watersmeet.runtime.workers import WORKER, bytes_of

_MOST_BYTES = 1 << 30


class Workers:
    """The Python workers: the most memory that all of them had, and the one with most; what they read from the disk."""

    def __init__(self) -> None:
        self.most = Resident()
        self.most_of_one_bytes = 0
        self._read: dict[int, int] = {}
        self._used: dict[int, float] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    @property
    def read_bytes(self) -> int:
        """What all of them read from the disk."""
        return sum(self._read.values())

    @property
    def cpu_s(self) -> float:
        """What all of them used of processors."""
        return sum(self._used.values())

    def _watch(self) -> None:
        while not self._stop.wait(0.5):
            workers = processes().workers
            self._read |= {pid: read for pid in workers if (read := _read_bytes(pid))}
            self._used |= {pid: used for pid in workers if (used := own_seconds(pid))}
            each = [found for pid in workers if (found := resident([pid])) is not None]
            self.most = Resident(
                max(self.most.own_bytes, sum(r.own_bytes for r in each)),
                max(self.most.mapped_bytes, sum(r.mapped_bytes for r in each)),
            )
            self.most_of_one_bytes = max(self.most_of_one_bytes, *(r.own_bytes for r in each), 0)


def _read_bytes(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/io").read_text().splitlines()
    except OSError:  # it has ended
        return 0
    return next(int(line.split()[1]) for line in lines if line.startswith("read_bytes:"))


@dataclass(frozen=True)
class Run:
    """seconds, cpu_s (of all processes): from CREATE until the view has everything. slowest_s: the longest epoch."""

    seconds: float
    cpu_s: float
    check: tuple[int, ...]
    state_rows: int
    state_bytes: int
    slowest_s: float
    most_debt_bytes: int
    workers: Workers


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="beyond_memory", description=__doc__)
    parser.add_argument("--rows", type=int, default=10_000_000, help="rows on each side")
    parser.add_argument("--letters", type=int, default=40, help="of the text in each row")
    parser.add_argument("--keys", type=int, default=40_000_000)
    parser.add_argument("--parallelism", type=int, help="buckets; without it, as many as such workers have by default")
    parser.add_argument("--rows-per-file", type=int, default=250_000)
    parser.add_argument("--data", type=Path, default=Path(tempfile.gettempdir()) / "watersmeet-benchmarks")
    parser.add_argument("--limit-bytes", type=int, help="of each worker, in a second run")
    parser.add_argument("--limited-only", action="store_true", help="leaves out the run with ample memory")
    options = parser.parse_args(arguments)
    ample = None
    if not options.limited_only:
        ample = measured(options)
        part = ample.workers.most_of_one_bytes / _MOST_BYTES
        print(f"own memory of one worker: {part:.2f} of what it is to have at most")
    if options.limit_bytes:
        os.environ[WORKER] = str(options.limit_bytes)
        print(f"\nworkers limited to {options.limit_bytes / (1 << 30):.2f} GiB each:")
        limited = measured(options)
        if ample is not None:
            print(f"{limited.seconds / ample.seconds:.2f} times as long as with ample memory")
    return 0


def measured(options: argparse.Namespace) -> Run:
    """Runs it beside DuckDB, and prints what was measured. AssertionError if the results differ.

    Workers are limited if WORKER says so.
    """
    given = wide_streams(options)
    left, right = (f"read_parquet('{folder}/*.parquet')" for folder in (given.left, given.right))
    peer = batch(QUERY.format(left=left, right=right), CHECK)
    print(f"rows in {given.total:,}, rows out {peer.check[0]:,}, checksum {peer.check[1:]}")
    print(f"duckdb, batch  {peer.seconds:7.1f} s  cpu {peer.cpu_s:6.1f} s")
    with watersmeet.connect(parallelism=options.parallelism) as warm:
        warm.cursor().execute("CREATE TABLE t (a int); CREATE MATERIALIZED VIEW v AS SELECT a FROM t; FLUSH")
        with limits(bytes_of(WORKER)) as told:
            run = _run(given, options.parallelism)
    assert run.check == peer.check, (run, peer)
    most = run.workers.most
    print(
        f"watersmeet     {run.seconds:7.1f} s  cpu {run.cpu_s:6.1f} s  {given.total / run.seconds:10,.0f} rows/s\n"
        f"state {run.state_rows:,} rows, {run.state_bytes / 1e9:.2f} GB; "
        f"workers together: own {most.own_bytes / 1e9:.2f} GB, mapped {most.mapped_bytes / 1e9:.2f} GB; "
        f"own of one {run.workers.most_of_one_bytes / 1e9:.2f} GB\n"
        f"workers: cpu {run.workers.cpu_s:.1f} s, read from the disk {run.workers.read_bytes / 1e9:.2f} GB, "
        f"longest epoch {run.slowest_s:.1f} s, most debt of merges {run.most_debt_bytes / 1e9:.2f} GB"
    )
    for line in told:
        print(line)
    return run


def _run(given: Streams, parallelism: int | None) -> Run:
    with (
        tempfile.TemporaryDirectory() as folder,
        watersmeet.connect(Path(folder) / "db", parallelism=parallelism) as connection,
        Workers() as workers,
    ):
        cursor = connection.cursor()
        started, used = time.perf_counter(), cpu_seconds(os.getpid())
        cursor.execute(SOURCES.format(left=given.left, right=given.right, watermark=""))
        cursor.execute(f"CREATE MATERIALIZED VIEW joined AS {QUERY.format(left='l', right='r')}")
        watch = _Epochs(connection)
        cursor.execute("FLUSH")
        seconds, cpu_s = time.perf_counter() - started, cpu_seconds(os.getpid()) - used
        watch.end()
        (view,) = connection.status()["views"]
        found = tuple(int(v) for v in cursor.execute(f"SELECT {CHECK} FROM joined").fetchone())
        return Run(
            seconds,
            cpu_s,
            found,
            view["state_rows"],
            view["state_bytes"],
            watch.slowest_s,
            watch.most_debt_bytes,
            workers,
        )


class _Epochs:
    """Looks at the newest epoch every half a second: the longest, and the largest debt of merges that was seen."""

    def __init__(self, connection: watersmeet.Connection) -> None:
        self.slowest_s, self.most_debt_bytes = 0.0, 0
        self._connection = connection
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while not self._stop.wait(0.5):
            status = self._connection.status()
            self.slowest_s = max(self.slowest_s, status["duration_us"] / 1e6)
            self.most_debt_bytes = max(self.most_debt_bytes, *(v["merge_debt_bytes"] for v in status["views"]), 0)

    def end(self) -> None:
        self._stop.set()
        self._thread.join()


def wide_streams(options: argparse.Namespace) -> Streams:
    """As `frame.streams`, with a longer text in each row."""
    folders = [
        options.data / f"wide-{options.letters}-{options.rows}-{options.keys}-{options.rows_per_file}-{side}"
        for side in "lr"
    ]
    for seed, folder in enumerate(folders, 1):
        if folder.exists():
            continue
        part = folder.with_suffix(".part")
        part.mkdir(parents=True, exist_ok=True)
        for number, first in enumerate(range(0, options.rows, options.rows_per_file)):
            rows = min(options.rows_per_file, options.rows - first)
            table = stream_table(seed, first, rows, options.keys)
            rng = np.random.default_rng([seed, first, 1])
            letters = rng.integers(97, 123, rows * options.letters, np.uint8)
            ends = np.arange(rows + 1, dtype=np.int32) * options.letters
            note = pa.StringArray.from_buffers(rows, pa.py_buffer(ends), pa.py_buffer(letters))
            pq.write_table(table.set_column(3, "note", note), part / f"{number:05d}.parquet")
        part.rename(folder)
    return Streams(folders[0], folders[1], 2 * options.rows)

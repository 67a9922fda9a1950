"""Opening and epochs with few and with many commits behind, all of which are kept: in a directory, and in an object
store that takes a while for each request and for each 1,000 names that it lists.

Target: the same times, opening below 3 s. The commits are real ones, made by the writer's own functions: a row each, a
micro-batch and a look for a checkpoint after 500.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa

import watersmeet
from benchmarks.cold_start import SlowStore
from benchmarks.history import SETUP
from watersmeet.objectstores import databasefiles
from watersmeet.objectstores.databasefiles import DIRECTORY
from watersmeet.store.commits import write_transaction

URL = "s3://memory/db"
_EPOCH_COMMITS = 500


def build(number: int) -> None:
    """A database in the store with so many transactions behind it."""
    with watersmeet.connect(URL, parallelism=1, runtime="inprocess") as connection:
        cursor = connection.cursor()
        cursor.execute(SETUP)
        cursor.execute("ALTER SYSTEM SET retention = '30 days'")
        database = connection._session.database
        (table,) = [r for r in database.catalog.relations.values() if r.name == "t"]
        for row in range(number):
            rows = pa.table({"id": pa.array([row], pa.int64()), "k": pa.array([row % 100], pa.int32())})
            write_transaction(database.layout, database.log, {table.id: (rows, np.ones(1, np.int64))})
            if row % _EPOCH_COMMITS == _EPOCH_COMMITS - 1:
                cursor.execute("FLUSH")
        cursor.execute("FLUSH")


def copied(store: SlowStore, directory: Path) -> None:
    """The same files in a directory."""
    for name, data in store.objects.items():
        path = directory / name.partition("/")[2]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def behind(store: SlowStore, path: str, number: int, samples: int) -> None:
    """Prints what it takes to open the database, of an epoch, and of the first clean-up and the next one."""
    store.requests.clear()
    begun, used = time.perf_counter(), time.process_time()
    with watersmeet.connect(path, parallelism=1, runtime="inprocess") as connection:
        shown = [f"{number:>9,} commits behind, {path.partition(':')[0]:>10}: opened in {_took(begun, used, store)}"]
        cursor = connection.cursor()
        times = []
        used = time.process_time()
        for row in range(number, number + samples):
            begun = time.perf_counter()
            cursor.execute(f"INSERT INTO t VALUES ({row}, {row % 100})")
            cursor.execute("FLUSH")
            times.append(time.perf_counter() - begun)
        cpu_ms = (time.process_time() - used) / samples * 1000
        asked = sum(store.requests.values()) / samples
        store.requests.clear()
        median_ms = statistics.median(times) * 1000
        shown.append(f"INSERT to FLUSH {median_ms:.0f} ms ({cpu_ms:.0f} ms of processor, {asked:.1f} requests)")
        compactor = connection._session.database._compactor
        for name in ("first", "next"):
            begun, used = time.perf_counter(), time.process_time()
            compactor.run()
            shown.append(f"{name} clean-up {_took(begun, used, store)}")
            cursor.execute(f"INSERT INTO t VALUES ({number + samples}, 0)")
            samples += 1
            cursor.execute("FLUSH")
            store.requests.clear()
        cursor.execute("SELECT count(*), sum(id)::bigint FROM v")
        rows = number + samples
        assert cursor.fetchone() == (rows, rows * (rows - 1) // 2)
    print("\n    ".join(shown), flush=True)


def _took(begun: float, used: float, store: SlowStore) -> str:
    asked = ", ".join(f"{count} {kind}" for kind, count in sorted(store.requests.items())) or "no request"
    seconds, cpu_s = time.perf_counter() - begun, time.process_time() - used
    store.requests.clear()
    return f"{seconds:.2f} s ({cpu_s:.2f} s of processor, {asked})"


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="many_commits", description=__doc__)
    parser.add_argument("--commits", type=int, nargs="*", default=[1_000, 100_000])
    parser.add_argument("--delay-ms", type=float, default=20.0, help="of each request")
    parser.add_argument("--samples", type=int, default=20)
    options = parser.parse_args(arguments)
    real = databasefiles.open_store
    try:
        for number in options.commits:
            with tempfile.TemporaryDirectory() as scratch:
                os.environ[DIRECTORY] = f"{scratch}/cache"
                store = SlowStore()
                databasefiles.open_store = lambda _, store=store: store  # type: ignore[misc]
                build(number)
                copied(store, Path(scratch) / "db")
                behind(store, f"{scratch}/db", number, options.samples)
                store.latency_s = options.delay_ms / 1000
                behind(store, URL, number, options.samples)
    finally:
        databasefiles.open_store = real
    return 0

"""The first small epoch on a machine that has nothing of the state: by blocks, beside whole files, in the same run."""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import duckdb

import watersmeet
from watersmeet.objectstores import databasefiles
from watersmeet.objectstores.base import ObjectStat
from watersmeet.objectstores.databasefiles import DIRECTORY
from watersmeet.runtime import tasks
from watersmeet.store.segmentfiles import SegmentFiles

URL = "s3://memory/db"
TABLES = """
CREATE TABLE l (k bigint, v bigint, t varchar);
CREATE TABLE r (k bigint, w bigint, u varchar);
"""
#: One row in 100 has a partner: the state is large, and the output is not.
ROWS = """
INSERT INTO l SELECT g::bigint, g, repeat('l', {text}) || g FROM generate_series({first}, {last}) AS s(g);
INSERT INTO r SELECT g::bigint * 100, g, repeat('r', {text}) || g FROM generate_series({first}, {last}) AS s(g);
"""
JOINED = "SELECT l.k, l.v, l.t, r.w, r.u FROM l JOIN r ON l.k = r.k"
CHECK = "SELECT count(*), sum(k), sum(v), sum(w), sum(length(t)), sum(length(u)) FROM ({joined}) AS j"


#: So many names come in one request.
_LISTED = 1000


class SlowStore:
    """Objects in memory. Each request takes a while, and the bytes that it reads some more: `objectstores.Store`."""

    def __init__(self) -> None:
        self.latency_s = 0.0
        self.bytes_per_s = float("inf")
        self.requests: Counter[str] = Counter()
        self.read_bytes = 0
        self.objects: dict[str, bytes] = {}
        self._lock = threading.Lock()

    def create(self, name: str, data: bytes) -> bool:
        self._asked("create")
        with self._lock:
            return self.objects.setdefault(name, data) is data

    def put(self, name: str, *pieces: bytes | memoryview) -> None:
        self._asked("put")
        self.objects[name] = b"".join(pieces)

    def get(self, name: str) -> bytes:
        return self._read("get", name, 0, None)

    def range(self, name: str, begin: int, end: int, etag: str | None = None) -> bytes:
        return self._read("range", name, begin, end)

    def stat(self, name: str) -> ObjectStat:
        self._asked("stat")
        if name not in self.objects:
            raise FileNotFoundError(name)
        return ObjectStat(len(self.objects[name]), 0, "")

    def list(self, prefix: str = "", after: str = "") -> Iterator[tuple[str, ObjectStat]]:
        with self._lock:
            names = sorted(n for n in self.objects if n.startswith(f"{prefix}/") and n > after)
        for _ in range(0, max(1, len(names)), _LISTED):
            self._asked("list")
        return iter([(n, ObjectStat(0, 0, "")) for n in names])

    def delete(self, names: Iterable[str]) -> None:
        self._asked("delete")
        with self._lock:
            for name in names:
                self.objects.pop(name, None)

    def discard_unfinished(self, prefix: str) -> int:
        return 0

    def _read(self, kind: str, name: str, begin: int, end: int | None) -> bytes:
        if name not in self.objects:
            raise FileNotFoundError(name)
        data = self.objects[name][begin:end]
        self._asked(kind, len(data))
        return data

    def _asked(self, kind: str, size_bytes: int = 0) -> None:
        with self._lock:
            self.requests[kind] += 1
            self.read_bytes += size_bytes
        time.sleep(self.latency_s + size_bytes / self.bytes_per_s)


def go_elsewhere(store: SlowStore, cache: Path) -> None:
    """The next epoch runs on another machine."""
    tasks._segments_of.cache_clear()
    for copy in cache.rglob("*.*"):
        copy.unlink()
    store.requests.clear()
    store.read_bytes = 0


def first_epoch(connection: watersmeet.Connection, store: SlowStore, rows: str) -> str:
    began, cpu = time.perf_counter(), time.process_time()
    connection.execute(f"INSERT INTO l VALUES {rows}")
    connection.execute("FLUSH")
    took, spent = time.perf_counter() - began, time.process_time() - cpu
    status = connection.status()
    return (
        f"{took:7.2f} s ({spent:.2f} s of processor time), {store.read_bytes / 1e6:8.2f} MB read, "
        f"{status['fetched_bytes'] / 1e6:8.2f} MB of state by tasks ({status['cache_hits']} hits, "
        f"{status['cache_misses']} misses), "
        f"{sum(store.requests.values())} requests: {dict(sorted(store.requests.items()))}"
    )


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="cold_start", description=__doc__)
    parser.add_argument("--rows", type=int, default=1_800_000, help="rows on each side")
    parser.add_argument("--text", type=int, default=240, help="bytes of text in a row")
    parser.add_argument("--parallelism", type=int, default=4)
    parser.add_argument("--keys", type=int, nargs="+", default=[1, 10, 100, 1000], help="rows of the first epochs")
    parser.add_argument("--latency-ms", type=float, default=30.0)
    parser.add_argument("--megabytes-per-second", type=float, default=100.0, help="of one request")
    options = parser.parse_args(arguments)
    scratch = Path(tempfile.mkdtemp())
    os.environ[DIRECTORY] = str(scratch)
    store = SlowStore()
    databasefiles.open_store = lambda _: store  # type: ignore[assignment]
    by_blocks = SegmentFiles.parts
    try:
        with (
            duckdb.connect() as model,
            watersmeet.connect(URL, runtime="inprocess", parallelism=options.parallelism) as connection,
        ):
            model.execute(TABLES)
            connection.execute(TABLES)
            connection.execute(f"CREATE MATERIALIZED VIEW joined AS {JOINED}")
            began = time.perf_counter()
            for first in range(1, options.rows + 1, 300_000):
                last = min(first + 299_999, options.rows)
                filled = ROWS.format(text=options.text, first=first, last=last)
                model.execute(filled)
                connection.execute(filled)
                connection.execute("FLUSH")
            state = sum(v["state_bytes"] for v in connection.status()["views"])
            print(f"{state / 1e9:.2f} GB of state, made in {time.perf_counter() - began:.0f} s", flush=True)
            store.latency_s = options.latency_ms / 1000
            store.bytes_per_s = options.megabytes_per_second * 1e6
            number = options.rows
            for keys in options.keys:
                for how in ("blocks", "whole files"):
                    go_elsewhere(store, scratch)
                    SegmentFiles.parts = by_blocks if how == "blocks" else lambda _, refs: [None] * len(refs)  # type: ignore[assignment, method-assign]
                    values = ", ".join(
                        f"({(number + i) * 100 % (options.rows * 100)}, {i}, 'new')" for i in range(keys)
                    )
                    number += keys
                    print(f"{keys:5} rows, {how:12} {first_epoch(connection, store, values)}", flush=True)
                    model.execute(f"INSERT INTO l VALUES {values}")
            store.latency_s, store.bytes_per_s = 0.0, float("inf")
            found = connection.execute(CHECK.format(joined="SELECT * FROM joined")).fetchone()
            expected = model.execute(CHECK.format(joined=JOINED)).fetchone()
            assert found is not None
            assert expected is not None
            assert tuple(map(int, found)) == tuple(map(int, expected)), (found, expected)
            print(f"count and checksums as DuckDB's: {tuple(map(int, found))}")
    finally:
        SegmentFiles.parts = by_blocks  # type: ignore[method-assign]
        shutil.rmtree(scratch, ignore_errors=True)
    return 0

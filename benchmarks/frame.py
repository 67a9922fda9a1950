"""What benchmarks of a join of two streams share: their input, what is measured of Watersmeet, peers beside it, the
report.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import duckdb

import watersmeet
from benchmarks.data import write_stream
from benchmarks.processes import PeakMemory, cpu_seconds, own_seconds, pss_bytes, touch_memory
from watersmeet.system.process import cores

#: The two inputs as sources; `{watermark}` is an element of the column list, with its comma, or nothing.
SOURCES = """
CREATE SOURCE l (k bigint, ts timestamp, amount bigint, note varchar{watermark})
    WITH (connector = 'file', path = '{left}', format = 'parquet');
CREATE SOURCE r (k bigint, ts timestamp, amount bigint, note varchar{watermark})
    WITH (connector = 'file', path = '{right}', format = 'parquet');
"""


@dataclass(frozen=True)
class Streams:
    """Two folders of Parquet files, `total` rows in all."""

    left: Path
    right: Path
    total: int


@dataclass(frozen=True)
class Measured:
    """One run. check: order-free figures of the result, the number of its rows first. cpu_s: processor seconds of all
    processes, but for server_s, those of the server that the database is on. again: the same in another database, whose
    processes have run it before.
    """

    seconds: float
    check: tuple[int, ...]
    peak_bytes: int = 0
    state_bytes: int = 0
    cpu_s: float = 0.0
    server_s: float = 0.0
    again: Measured | None = None


def parser(
    name: str, description: str | None, *, spark: bool = False, rows_per_file: int = 100_000
) -> argparse.ArgumentParser:
    """Options of all of them; spark: Spark's own join can be left out."""
    made = argparse.ArgumentParser(prog=name, description=description)
    made.add_argument("--rows", type=int, default=4_000_000, help="rows on each side")
    made.add_argument("--keys", type=int, default=900_000)
    made.add_argument("--parallelism", type=int, default=cores())
    made.add_argument("--rows-per-file", type=int, default=rows_per_file)
    if spark:
        made.add_argument("--no-spark", action="store_true", help="leave Spark's own join out (it takes minutes)")
    made.add_argument("--data", type=Path, default=Path(tempfile.gettempdir()) / "watersmeet-benchmarks")
    return made


def streams(options: argparse.Namespace, *, lateness_us: int = 0, shape: str = "narrow") -> Streams:
    """The inputs, made unless they are there.

    lateness_us: by how much rows may be behind others that came before them. shape: as in `stream_table`.
    """
    name = f"{options.rows}-{options.keys}"
    name += f"-{lateness_us // 1000}" if lateness_us else ""
    name += f"-{options.rows_per_file}" if options.rows_per_file != 100_000 else ""
    name += f"-{shape}" if shape != "narrow" else ""
    left, right = options.data / f"{name}-l", options.data / f"{name}-r"
    write_stream(left, 1, options.rows, options.keys, options.rows_per_file, lateness_us, shape)
    write_stream(right, 2, options.rows, options.keys, options.rows_per_file, lateness_us, shape)
    return Streams(left, right, 2 * options.rows)


#: The time in which Spark starts the processes of a streaming query, which `connect` does not wait for.
_START_S = 3.0


def ours(
    script: str,
    check: str,
    parallelism: int,
    path: str | None = None,
    server: int | None = None,
    *,
    again: bool = False,
) -> Measured:
    """Watersmeet, from CREATE until the view `joined` has everything. Spark runs already, with its workers and the
    database's streaming query.

    path: of the new database; None: in a directory. server: the process of the server that it is on. again: measures
    the same in a second database, too.
    """
    with tempfile.TemporaryDirectory() as folder, watersmeet.connect(parallelism=parallelism) as warm:
        warm.cursor().execute("CREATE TABLE t (a int); CREATE MATERIALIZED VIEW v AS SELECT a FROM t")
        # Too many rows for an epoch in the driver, so that FLUSH waits for Spark's workers.
        warm.cursor().execute("INSERT INTO t SELECT i FROM generate_series(1, 100000) AS g (i); FLUSH")
        first = _run(script, check, parallelism, path or Path(folder) / "db", server)
        if not again:
            return first
        return replace(first, again=_run(script, check, parallelism, Path(folder) / "again", server))


def _run(script: str, check: str, parallelism: int, path: str | Path, server: int | None) -> Measured:
    def served() -> float:
        return 0.0 if server is None else own_seconds(server)

    touch_memory()
    with watersmeet.connect(path, parallelism=parallelism) as connection:
        cursor = connection.cursor()
        time.sleep(_START_S)
        with PeakMemory() as memory:
            started, used, before_s = time.perf_counter(), cpu_seconds(os.getpid()), served()
            cursor.execute(script)
            cursor.execute("FLUSH")
            seconds, server_s = time.perf_counter() - started, served() - before_s
            cpu_s = cpu_seconds(os.getpid()) - used - memory.cpu_s - server_s
        status = connection.status()
        cursor.execute(f"SELECT {check} FROM joined")
        found = tuple(int(v) for v in cursor.fetchone())
    state_bytes = sum(v["state_bytes"] for v in status["views"])
    return Measured(seconds, found, memory.peak_bytes, state_bytes, cpu_s, server_s)


def batch(query: str, check: str) -> Measured:
    """DuckDB's answer to `query` over the whole input at once, of which nothing is kept."""
    with duckdb.connect() as connection:
        started, used = time.perf_counter(), time.process_time()
        found = connection.execute(f"SELECT {check} FROM ({query})").fetchone()
        seconds, cpu_s = time.perf_counter() - started, time.process_time() - used
        return Measured(seconds, tuple(int(v) for v in found), cpu_s=cpu_s)


def copied(query: str, check: str) -> Measured:
    """The same with the answer in a Parquet file (snappy): the practical limit of this machine."""
    with tempfile.TemporaryDirectory() as folder, duckdb.connect() as connection:
        started, used = time.perf_counter(), time.process_time()
        connection.execute(f"COPY ({query}) TO '{folder}/out.parquet' (FORMAT parquet, COMPRESSION snappy)")
        seconds, cpu_s = time.perf_counter() - started, time.process_time() - used
        found = connection.execute(f"SELECT {check} FROM read_parquet('{folder}/out.parquet')").fetchone()
        return Measured(seconds, tuple(int(v) for v in found), cpu_s=cpu_s)


def report(
    total: int, made: Measured, peer: Measured, spark: Measured | None = None, *, copy: Measured | None = None
) -> None:
    """Prints rates, beside those of the peers. AssertionError if the results differ."""
    assert made.check == peer.check, (made, peer)
    print(f"rows in {total:,}, rows out {peer.check[0]:,}, checksum {peer.check[1:]}: equal")
    print(
        f"watersmeet     {total / made.seconds:>12,.0f} rows/s  {made.seconds:7.1f} s  cpu {made.cpu_s:6.1f} s  "
        f"state {made.state_bytes / 1e9:.2f} GB, peak memory {made.peak_bytes / 1e9:.2f} GB"
    )
    if made.again is not None:
        assert made.again.check == peer.check, (made, peer)
        print(
            f"a second time  {total / made.again.seconds:>12,.0f} rows/s  {made.again.seconds:7.1f} s  "
            f"cpu {made.again.cpu_s:6.1f} s"
        )
    for name, other in (("duckdb, batch", peer), ("duckdb, copied", copy)):
        if other is not None:
            assert other.check == peer.check, (other, peer)
            print(
                f"{name:<14} {total / other.seconds:>12,.0f} rows/s  {other.seconds:7.1f} s  cpu {other.cpu_s:6.1f} s  "
                f"watersmeet takes {made.seconds / other.seconds:.2f} times as long, "
                f"{made.cpu_s / other.cpu_s:.1f} times the processor time"
            )
    if spark is not None:
        print(
            f"spark's own    {total / spark.seconds:>12,.0f} rows/s  {spark.seconds:7.1f} s  "
            f"watersmeet is {spark.seconds / made.seconds:.1f} times as fast"
        )


def in_batches(script: str, given: Streams, parallelism: int, batches: int) -> None:
    """Prints state and memory after each of `batches` micro-batches, in which a file or more of each side come.

    script: with `{left}` and `{right}` for the folders.
    """
    with tempfile.TemporaryDirectory() as folder:
        live = [Path(folder) / side for side in "lr"]
        files = [sorted(source.iterdir()) for source in (given.left, given.right)]
        for side in live:
            side.mkdir()
        with watersmeet.connect(Path(folder) / "db", parallelism=parallelism) as connection:
            cursor = connection.cursor()
            cursor.execute(script.format(left=live[0], right=live[1]))
            print(f"{'batch':>6} {'seconds':>8} {'state rows':>12} {'state bytes':>14} {'memory':>8}")
            for number, part in enumerate(_parts(files, batches), 1):
                started = time.perf_counter()
                for file, side in part:
                    file_now = live[side] / file.name
                    (live[side] / f".{file.name}").symlink_to(file)
                    (live[side] / f".{file.name}").rename(file_now)
                cursor.execute("FLUSH")
                seconds = time.perf_counter() - started
                views = connection.status()["views"]
                if number % max(1, batches // 20) == 0:
                    print(
                        f"{number:>6} {seconds:>8.2f} {sum(v['state_rows'] for v in views):>12,} "
                        f"{sum(v['state_bytes'] for v in views):>14,} "
                        f"{pss_bytes(os.getpid()) / 1e9:>5.2f} GB"
                    )


def _parts(files: Sequence[Sequence[Path]], batches: int) -> list[list[tuple[Path, int]]]:
    """For each batch its files, each with the number of its side."""
    return [
        [
            (file, side)
            for side, own in enumerate(files)
            for file in own[len(own) * i // batches : len(own) * (i + 1) // batches]
        ]
        for i in range(batches)
    ]

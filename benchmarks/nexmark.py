"""Nexmark's queries over generated events: rows/s as fast as they come, and delay at a steady rate; state.

With `--files`, the events come from Parquet files, in process with one bucket: events for each second of processor
time, beside DuckDB's answer over the same files, and with `--flink` beside Flink's job over them (`flink.py`).

The result is compared with DuckDB's answer over the same events by its number of rows and a checksum.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pyspark
import pytest
from tests.nexmark.test_nexmark import QUERIES, SOURCES, Judge, spelled

import watersmeet
from benchmarks.nexmarkevents import KINDS, Settings, events_of
from benchmarks.processes import PeakMemory, median, percentile
from watersmeet.system.process import cores

os.environ.setdefault("WATERSMEET_CONNECTORS", "benchmarks.nexmarkconnector")  # for the workers
CHECKS = {
    3: "count(*), sum(id)",
    4: "count(*), sum(avg)",
    5: "count(*), sum(num), sum(auction)",
    7: "count(*), sum(price), sum(auction)",
    8: "count(*), sum(id)",
    9: "count(*), sum(id), sum(price), sum(bidder)",
    11: "count(*), sum(bid_count), sum(bidder), sum(extract(minute FROM starttime)::bigint)",
    15: "count(*), sum(total_bids), sum(rank2_bidders), sum(rank3_auctions), sum(total_auctions)",
    18: "count(*), sum(auction), sum(bidder), sum(price), sum(length(extra))",
    20: "count(*), sum(price), sum(auction), sum(initial_bid)",
}


def sources(events: int, gap_ns: int) -> str:
    return re.sub(
        r"nexmark.event.num = \d+", f"nexmark.event.num = {events}, nexmark.min.event.gap.in.ns = {gap_ns}", SOURCES
    )


#: The events of a file.
_FILE_EVENTS = 1_000_000


def write_files(folder: Path, events: int) -> None:
    """The events as Parquet, in a folder for each kind."""
    settings = Settings()
    for number, first in enumerate(range(0, events, _FILE_EVENTS)):
        numbers = np.arange(first, min(first + _FILE_EVENTS, events))
        kinds = settings.kinds(numbers)
        for place, kind in enumerate(KINDS):
            (folder / kind).mkdir(parents=True, exist_ok=True)
            pq.write_table(events_of(kind, numbers[kinds == place], settings), folder / kind / f"{number:04}.parquet")


def file_sources(folder: Path) -> list[str]:
    """The sources of the kinds, over files."""
    found = re.findall(r"CREATE SOURCE (\w+) \(([^;]*?)\)\s+WITH", SOURCES)
    return [
        f"CREATE SOURCE {kind} ({columns}) WITH (connector = 'file', path = '{folder / kind}', format = 'parquet')"
        for kind, columns in found
        if kind in KINDS
    ]


def answer_over(number: int, folder: Path, files: str) -> tuple[object, ...]:
    """The number and sums of DuckDB's answer over files."""
    judge = Judge()
    for kind in KINDS:
        judge.connection.execute(f"CREATE VIEW {kind} AS FROM '{folder}/{kind}/{files}'")
    (row,) = judge.connection.execute(f"SELECT {CHECKS[number]} FROM ({spelled(number)})").fetchall()
    return row


def measure_flink(number: int, folder: Path, events: int, python: str) -> dict[str, object]:
    """The same query of Flink. Its number and sums over the first file are compared with DuckDB's."""
    jars = Path(pyspark.__path__[0], "jars").glob("hadoop-client-*.jar")
    hadoop = {"HADOOP_CLASSPATH": os.pathsep.join(map(str, jars)), "JVM_ARGS": "-Xmx9g"}
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [python, str(Path(__file__).with_name("flink.py")), str(number), str(folder), "1"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=inherited | hadoop)
    if done.returncode:
        raise RuntimeError(done.stderr[-5000:])
    found = json.loads(done.stdout.splitlines()[-1])
    expected = answer_over(number, folder, "0000.parquet")
    assert [*map(float, found["check"])] == pytest.approx([float(str(value)) for value in expected], rel=1e-12), (
        found,
        expected,
    )
    cpu = found["cpu_s"]
    return {
        "Flink, cpu s": f"{cpu:.1f}",
        "Flink, events/s a core": f"{events / cpu / 1000:.0f} k",
        "Flink, s": f"{found['seconds']:.1f}",
    }


def measure_files(number: int, folder: Path, events: int) -> dict[str, object]:
    """A query over files, in this process, and DuckDB's answer."""
    with tempfile.TemporaryDirectory() as place, PeakMemory() as memory:
        with watersmeet.connect(Path(place) / "db", runtime="inprocess", parallelism=1) as connection:
            for source in file_sources(folder):
                connection.execute(source)
            started, cpu = time.perf_counter(), time.process_time()
            connection.execute(f"CREATE MATERIALIZED VIEW q{number:02d} AS {QUERIES[number]}; FLUSH")
            seconds, cpu = time.perf_counter() - started, time.process_time() - cpu - memory.cpu_s
            peak = memory.peak_bytes
            real = connection.execute(f"SELECT {CHECKS[number]} FROM q{number:02d}").fetchall()
            view = connection.status()["views"][0]
    started = time.process_time()
    expected = answer_over(number, folder, "*.parquet")
    batch = time.process_time() - started
    assert real[0] == expected, (real, expected)
    return {
        "query": f"q{number}",
        "cpu s": f"{cpu:.1f}",
        "events/s a core": f"{events / cpu / 1000:.0f} k",
        "s": f"{seconds:.1f}",
        "rows": f"{view['rows']:,}",
        "state MB": f"{view['state_bytes'] / 1e6:.0f}",
        "peak GB": f"{peak / 1e9:.2f}",
        "DuckDB, one answer, cpu s": f"{batch:.1f}",
    }


def from_files(options: argparse.Namespace) -> None:
    """Prints a table of the queries, each measured in a process of its own."""
    folder: Path = options.files
    if not folder.exists():
        write_files(folder, options.events)
    for place, number in enumerate(options.queries):
        command = ["nexmark", str(number), "--files", str(folder), "--events", str(options.events), "--one"]
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks", *command], stdout=subprocess.PIPE, text=True, check=True
        )
        row: dict[str, object] = json.loads(done.stdout)
        if options.flink:
            row |= measure_flink(number, folder, options.events, options.flink)
        if not place:
            print("| " + " | ".join(row) + " |\n" + "|---" * len(row) + "|")
        print("| " + " | ".join(map(str, row.values())) + " |", flush=True)


def judged(events: int) -> Judge:
    judge, settings, numbers = Judge(), Settings(), np.arange(events)
    kinds = settings.kinds(numbers)
    for place, kind in enumerate(KINDS):
        judge.add(kind, events_of(kind, numbers[kinds == place], settings))
    return judge


def measure(number: int, judge: Judge, options: argparse.Namespace) -> str:
    with tempfile.TemporaryDirectory() as folder, PeakMemory() as memory:
        with watersmeet.connect(Path(folder) / "fast", parallelism=options.parallelism) as connection:
            started = time.perf_counter()
            connection.execute(sources(options.events, 0))
            connection.execute(f"CREATE MATERIALIZED VIEW q{number:02d} AS {QUERIES[number]}; FLUSH")
            seconds = time.perf_counter() - started
            real = connection.execute(f"SELECT {CHECKS[number]} FROM q{number:02d}").fetchall()
            view = connection.status()["views"][0]
        started = time.perf_counter()
        expected = judge.connection.execute(f"SELECT {CHECKS[number]} FROM ({spelled(number)})").fetchall()
        batch = time.perf_counter() - started
        assert real == expected, (real, expected)
        with watersmeet.connect(Path(folder) / "steady", parallelism=options.parallelism) as connection:
            connection.execute(sources(options.rate * options.seconds, 1_000_000_000 // options.rate))
            connection.execute(f"CREATE MATERIALIZED VIEW q{number:02d} AS {QUERIES[number]}")
            begun = time.perf_counter()
            epochs, ended = [], begun + options.seconds - 2
            while time.perf_counter() < ended:
                time.sleep(0.2)
                status = connection.status()
                epochs.append(status["duration_us"] / 1e6)
            planned = max(source["rows_planned"] for source in status["sources"])
            late = max(0, round((time.perf_counter() - begun) * options.rate) - planned)
    return (
        f"| q{number} | {options.events / seconds / 1000:.0f} k events/s | {view['rows']:,} | "
        f"{view['state_bytes'] / 1e6:.0f} MB | {memory.peak_bytes / 1e9:.2f} GB | {batch:.2f} s | "
        f"{median(epochs) * 1000:.0f} ms, {percentile(epochs, 0.95) * 1000:.0f} ms | {late} |"
    )


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="nexmark", description=__doc__)
    parser.add_argument("queries", type=int, nargs="*", default=list(CHECKS))
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--rate", type=int, default=10_000, help="events a second of the steady run")
    parser.add_argument("--seconds", type=int, default=15)
    parser.add_argument("--parallelism", type=int, default=cores())
    parser.add_argument("--files", type=Path, help="a folder with the events as Parquet; written if it is absent")
    parser.add_argument("--flink", metavar="PYTHON", help="beside Flink, of this Python's packages; with --files")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.one:
        print(json.dumps(measure_files(options.queries[0], options.files, options.events)))
        return 0
    if options.files:
        from_files(options)
        return 0
    judge = judged(options.events)
    print(f"{options.events:,} events; then {options.rate:,} events/s for {options.seconds} s")
    print(
        "| query | as fast as they come | rows | state | peak memory | duckdb, one answer | micro-batch at "
        "the steady rate "
        "(median, 95th percentile) | events behind at its end |"
    )
    print("|---|---|---|---|---|---|---|---|")
    with watersmeet.connect(parallelism=1):  # Spark stays from one database to the next
        for number in options.queries:
            print(measure(number, judge, options), flush=True)
    return 0

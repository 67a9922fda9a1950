"""Nexmark q3, q4, q5, q7, q8, q9 and q20 over generated events: rows/s as fast as they come, and delay at a steady
rate; state.

The result is compared with DuckDB's answer over the same events by its number of rows and a checksum.
"""

from __future__ import annotations

import argparse
import os
import re
import tempfile
import time
from pathlib import Path

import numpy as np
from tests.nexmark.test_nexmark import KINDS, QUERIES, SOURCES, Judge, spelled

import watersmeet
from benchmarks.nexmarkevents import Settings, events_of
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
    20: "count(*), sum(price), sum(auction), sum(initial_bid)",
}


def sources(events: int, gap_ns: int) -> str:
    return re.sub(
        r"nexmark.event.num = \d+", f"nexmark.event.num = {events}, nexmark.min.event.gap.in.ns = {gap_ns}", SOURCES
    )


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
    options = parser.parse_args(arguments)
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

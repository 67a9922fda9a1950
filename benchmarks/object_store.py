"""A database in an object store that takes 20 ms for each request, beside one in a directory in the same run.

`latency`: from a file with 100 rows until they are joined in SELECT. Target: at most four requests later than in a
directory. `throughput`: the regular join; target: 80 % of the rate in a directory. The store is moto in a process of
its own (`slowstore`), whose processor time is shown apart; with `--apart` it has a core of its own, and the database
has the others, in a directory as in the store. With many commits behind: `many_commits`.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import duckdb

import watersmeet
from benchmarks.frame import SOURCES, batch, ours, streams
from benchmarks.latency import SETUP, put
from benchmarks.processes import cpu_seconds, own_seconds, wait_until
from benchmarks.regular_join import CHECK, QUERY
from benchmarks.requestprices import monthly_dollars
from benchmarks.slowstore import Request, SlowStore, counts, in_series
from watersmeet.system.process import cores

URL = "s3://benchmark"


def latency(store: SlowStore, options: argparse.Namespace) -> None:
    """Prints how long 100 rows take from a file to SELECT, and by what requests."""
    found = {}
    for name in ("directory", "store"):
        with tempfile.TemporaryDirectory() as scratch:
            path = f"{URL}/latency" if name == "store" else f"{scratch}/db"
            found[name] = _latencies(store, path, Path(scratch), options)
    (near, _, near_cpu_s), (far, sent, far_cpu_s) = found["directory"], found["store"]
    later = statistics.median(far) - statistics.median(near)
    request = statistics.median(r.end - r.begin for requests in sent for r in requests)
    per_epoch = {kind: number / len(sent) for kind, number in counts(r for rs in sent for r in rs).items()}
    moto = statistics.median(r.own_s for requests in sent for r in requests)
    print(
        f"100 rows from a file to SELECT, median of {len(near)}: {statistics.median(near) * 1000:.0f} ms in a "
        f"directory ({near_cpu_s * 1000:.0f} ms of processor), {statistics.median(far) * 1000:.0f} ms in the store "
        f"({far_cpu_s * 1000:.0f} ms)\n"
        f"  {later * 1000:.0f} ms later: {later / request:.1f} requests of {request * 1000:.0f} ms, of which moto "
        f"takes {moto * 1000:.1f} ms; in series {statistics.median(map(in_series, sent)):.0f}\n"
        f"  an epoch sends {_shown(per_epoch)}: ${monthly_dollars(per_epoch):.0f} a month at one a second"
    )


def _latencies(
    store: SlowStore, path: str, scratch: Path, options: argparse.Namespace
) -> tuple[list[float], list[list[Request]], float]:
    """Of each file the seconds until SELECT has its rows, and the requests; processor seconds of ours for each."""
    folder = scratch / "in"
    folder.mkdir()
    with watersmeet.connect(path, parallelism=2) as connection:
        cursor = connection.cursor()
        cursor.execute(SETUP.format(folder=folder))
        seconds, sent = [], []
        for number in range(options.files + 5):
            if number == 5:
                cpu_s = _own_cpu(store)
            store.taken()
            put(folder, number, 100)

            def visible() -> bool:
                cursor.execute("SELECT count(*) FROM v")
                return cursor.fetchone()[0] == (number + 1) * 100  # noqa: B023

            seconds.append(wait_until(visible, 60))
            sent.append(store.taken())
            time.sleep(0.3)
        cpu_s = _own_cpu(store) - cpu_s
        cursor.execute("SELECT count(*), sum(amount)::bigint FROM v")
        with duckdb.connect() as peer:
            files = f"read_parquet('{folder}/*.parquet')"
            asked = f"SELECT count(*), sum(amount)::bigint FROM {files} WHERE k BETWEEN 0 AND 999"
            assert cursor.fetchone() == peer.execute(asked).fetchone()
    return seconds[5:], sent[5:], cpu_s / options.files


def throughput(store: SlowStore, options: argparse.Namespace) -> None:
    """Prints the rate of the regular join in a directory and in the store."""
    given = streams(options)
    script = SOURCES.format(left=given.left, right=given.right, watermark="")
    script += f" CREATE MATERIALIZED VIEW joined AS {QUERY.format(left='l', right='r')}"
    files = QUERY.format(
        left=f"read_parquet('{given.left}/*.parquet')", right=f"read_parquet('{given.right}/*.parquet')"
    )
    peer = batch(files, CHECK)
    rates: dict[str, list[float]] = {"directory": [], "store": []}
    for number in range(options.rounds):
        for name, seconds in rates.items():
            store.taken()
            path = f"{URL}/join{number}" if name == "store" else None
            made = ours(script, CHECK, options.parallelism, path, store.pid)
            requests = store.taken()
            assert made.check == peer.check, (made, peer)
            seconds.append(given.total / made.seconds)
            print(
                f"regular join, {name:<9} {given.total / made.seconds:>10,.0f} rows/s {made.seconds:6.1f} s, "
                f"cpu {made.cpu_s:5.1f} s (moto {made.server_s:4.1f} s), {_shown(counts(requests))}, "
                f"{sum(r.sent_bytes for r in requests) / 1e6:,.0f} MB sent",
                flush=True,
            )
    print(f"rows out {peer.check[0]:,}, checksum {peer.check[1:]}: equal")
    ratio = max(rates["store"]) / max(rates["directory"])
    print(f"  the best rates: {ratio:.0%} of a directory's")


def _own_cpu(store: SlowStore) -> float:
    """Processor seconds of this process and its children so far, but for the store."""
    return cpu_seconds(os.getpid()) - own_seconds(store.pid)


def _shown(requests: dict[str, float] | dict[str, int]) -> str:
    return ", ".join(f"{number:.3g} {kind}" for kind, number in sorted(requests.items())) or "no request"


PARTS: dict[str, Callable[[SlowStore, argparse.Namespace], None]] = {
    "latency": latency,
    "throughput": throughput,
}


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="object_store", description=__doc__)
    parser.add_argument("parts", nargs="*", help="latency, throughput; default: both")
    parser.add_argument("--delay-ms", type=float, default=20.0, help="of each request")
    parser.add_argument("--files", type=int, default=30)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--rows", type=int, default=4_000_000, help="rows on each side")
    parser.add_argument("--keys", type=int, default=900_000)
    parser.add_argument("--rows-per-file", type=int, default=100_000)
    parser.add_argument("--parallelism", type=int, default=cores())
    parser.add_argument("--data", type=Path, default=Path(tempfile.gettempdir()) / "watersmeet-benchmarks")
    parser.add_argument(
        "--apart", action="store_true", help="the store has a core of its own, as on another machine, in both runs"
    )
    options = parser.parse_args(arguments)
    core = None
    if options.apart:
        *ours, core = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, ours)  # what is started from now on inherits it
    with tempfile.TemporaryDirectory() as copies, SlowStore(core) as store:
        os.environ["WATERSMEET_CACHE_DIR"] = copies
        store.delay(options.delay_ms / 1000)
        for part in options.parts or PARTS:
            PARTS[part](store, options)
    return 0

"""Two workers of Spark against one: the regular join on a standalone cluster of this machine, a core for each worker.

The same database, cut into as many buckets, on one worker and on two. Each worker is held to a core, with its Java and
its Python, as a container with a limit of one processor is. Target: 1.7 times the rate, on a machine with a core for
each worker and nothing else to do: the driver needs a part of one.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.spark.cluster import cluster

import watersmeet
from benchmarks.frame import SOURCES, batch, parser, streams
from benchmarks.processes import cpu_seconds
from benchmarks.regular_join import CHECK, QUERY
from watersmeet.system.process import cores

#: The first epoch of executors starts their Python, with rows enough for all buckets.
_WARM_UP = """
CREATE TABLE w (k int);
CREATE MATERIALIZED VIEW warm AS SELECT count(*) AS n FROM w JOIN w AS o ON w.k = o.k;
INSERT INTO w SELECT * FROM generate_series(1, 60000);
FLUSH;
DROP MATERIALIZED VIEW warm;
DROP TABLE w;
"""


def main(arguments: list[str]) -> int:
    made = parser("two_workers", __doc__)
    made.set_defaults(parallelism=2)
    made.add_argument("--runs", type=int, default=1, help="of each; the best one counts")
    made.add_argument("--run", type=Path, help=argparse.SUPPRESS)
    options = made.parse_args(arguments)
    if options.run is not None:
        print(json.dumps(_run(options)))
        return 0
    given = streams(options)
    files = QUERY.format(
        left=f"read_parquet('{given.left}/*.parquet')", right=f"read_parquet('{given.right}/*.parquet')"
    )
    peer = batch(files, CHECK)
    load = os.getloadavg()[0]
    print(f"{cores()} cores, load before {load:.1f}, {options.parallelism} buckets, {given.total:,} rows in")
    best: dict[int, float] = {}
    for number in range(options.runs):
        for workers in (1, 2) if number % 2 == 0 else (2, 1):
            found = _measured(arguments, workers)
            assert tuple(found["check"]) == peer.check, (found, peer)
            best[workers] = min(best.get(workers, found["seconds"]), found["seconds"])
            print(
                f"{workers} workers      {given.total / found['seconds']:>12,.0f} rows/s  {found['seconds']:7.1f} s  "
                f"cpu {found['cpu_s']:6.1f} s, of it the driver {found['driver_s']:.1f} s  "
                f"{found['epochs']} epochs, buckets local {found['local']}, moved {found['moved']}"
            )
    print(f"rows out {peer.check[0]:,}, checksum {peer.check[1:]}: equal")
    print(f"two workers are {best[1] / best[2]:.2f} times as fast as one")
    return 0


def _measured(arguments: list[str], workers: int) -> dict:
    """A run in a process of its own, as the driver of a cluster of its own."""
    with tempfile.TemporaryDirectory() as folder, cluster(workers, a_core_each=True) as made:
        environment = {**os.environ, "WATERSMEET_MASTER": made.master, "SPARK_LOCAL_IP": "127.0.0.1"}
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks", "two_workers", *arguments, "--run", folder],
            env=environment,
            stdout=subprocess.PIPE,
            check=True,
            text=True,
        )
    return json.loads(done.stdout)


def _run(options: argparse.Namespace) -> dict:
    """From CREATE to FLUSH; processor seconds of the cluster as well, which the process above has started."""
    given = streams(options)
    view = f"CREATE MATERIALIZED VIEW joined AS {QUERY.format(left='l', right='r')}"
    with watersmeet.connect(options.run / "db", parallelism=options.parallelism) as connection:
        cursor = connection.cursor()
        cursor.execute(_WARM_UP)
        log = connection._session.database.log
        first = log.head()
        every, own = os.getppid(), os.getpid()
        started, used, used_here = time.perf_counter(), cpu_seconds(every), cpu_seconds(own)
        cursor.execute(f"{SOURCES.format(left=given.left, right=given.right, watermark='')} {view}")
        cursor.execute("FLUSH")
        seconds = time.perf_counter() - started
        cpu_s, driver_s = cpu_seconds(every) - used, cpu_seconds(own) - used_here
        commits = [c for n in range(first + 1, log.head() + 1) if (c := log.find(n)) is not None and c.epoch]
        cursor.execute(f"SELECT {CHECK} FROM joined")
        check = [int(v) for v in cursor.fetchone()]
    return {
        "seconds": seconds,
        "cpu_s": cpu_s,
        "driver_s": driver_s,
        "check": check,
        "epochs": len(commits),
        "local": sum(c.metrics.local for c in commits),
        "moved": sum(c.metrics.moved for c in commits),
    }

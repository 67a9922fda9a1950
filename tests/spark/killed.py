"""A process that changes tables of a database for ever, to be killed: `python -m tests.spark.killed PATH BUCKETS SEED`.

It says "ready" once the views are there, and its catalog is kept in a file beside the database.
"""

from __future__ import annotations

import pickle
import random
import sys
from pathlib import Path

from tests.unit.runtime.kit import GROUPED, JOINED, Kit, two_tables

from watersmeet.runtime.spark import jobs
from watersmeet.runtime.spark.engine import SparkEngine


def main(path: str, buckets: int, seed: int) -> None:
    rng = random.Random(seed)
    if seed % 2:
        jobs.SMALL_ROWS = -1  # Every epoch goes through the shuffle.
    known = Path(path).with_suffix(".catalog")
    kit = Kit(path, buckets=buckets, make_engine=lambda db: SparkEngine(db, parallelism=buckets))
    if known.exists():
        kit.catalog, kit.views = pickle.loads(known.read_bytes())
    else:
        two_tables(kit)
        kit.view("joined", *JOINED, install=False)
        known.write_bytes(pickle.dumps((kit.catalog, kit.views)))
    kit.engine.start()
    kit.install()
    if kit.catalog.by_name("grouped") is None:
        kit.view("grouped", *GROUPED, install=False)
        known.write_bytes(pickle.dumps((kit.catalog, kit.views)))
        kit.install()
    print("ready", flush=True)
    while True:
        kit.change(a=[(rng.randrange(9), "x", 1)], b=[(rng.randrange(9), rng.randrange(5), 1)])
        if rng.random() < 0.3:
            kit.engine.flush()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))

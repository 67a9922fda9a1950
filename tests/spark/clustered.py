"""A driver on a cluster: `python -m tests.spark.clustered PATH BUCKETS`.

Prints a line for each round, checks the content.
"""

from __future__ import annotations

import random
import sys

from tests.unit.runtime.kit import GROUPED, JOINED, Kit, two_tables

from watersmeet.runtime.spark import jobs
from watersmeet.runtime.spark.engine import SparkEngine

ROUNDS = 12


def main(path, buckets):
    jobs.SMALL_ROWS = -1
    rng = random.Random(3)
    kit = Kit(path, buckets=buckets, durable=True, make_engine=lambda db: SparkEngine(db, parallelism=buckets))
    two_tables(kit)
    kit.engine.start()
    kit.view("joined", *JOINED)
    kit.view("grouped", *GROUPED)
    print("ready", flush=True)
    for number in range(ROUNDS):
        kit.change(
            a=[(rng.randrange(40), "x", 1) for _ in range(30)], b=[(rng.randrange(40), number, 1) for _ in range(30)]
        )
        kit.engine.flush()
        kit.check()
        print("round", number, flush=True)
    kit.close()
    print("done", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))

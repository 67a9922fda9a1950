"""A process whose operators fail in Spark's workers while a file names their kind and the fault."""

from __future__ import annotations

import json
import os
from pathlib import Path

from tests.faultysteps import PLANTED, Planting
from tests.unit.session.test_failing_operators import CASES, errors

import watersmeet
from watersmeet.runtime.spark import jobs, worker

#: By kind of operator, the fault that is planted.
TRIED = {
    "aggregate": "exception",
    "join": "wrong type",
    "topn": "lack of memory",
}


def main(path: str, *, shuffles: bool) -> None:
    """Print as JSON the errors of all views after the first and after the second opening, and the rows of `good`."""
    stage = worker.BucketStage
    jobs.run_all, jobs.read = Planting(worker.run_all), Planting(worker.read)
    jobs.BucketStage = lambda number: Planting(stage(number))
    if shuffles:
        jobs.SMALL_ROWS = -1
    planted = Path(os.environ[PLANTED])
    with watersmeet.connect(path, parallelism=2) as connection:
        connection.execute(
            "CREATE TABLE ok (x int); CREATE MATERIALIZED VIEW good AS SELECT count(*) AS n FROM ok; "
            + CASES["map"].setup
        )
        for n, (kind, fault) in enumerate(TRIED.items()):
            connection.execute(CASES[kind].make.format(n=n))
            connection.execute(CASES[kind].rows.format(n=n) + "; FLUSH")
            planted.write_text(f"{kind} {fault}")
            connection.execute(CASES[kind].rows.format(n=n + 10) + "; FLUSH")
            planted.unlink()
            connection.execute("INSERT INTO ok VALUES (1); FLUSH")
        first = errors(connection)
    with watersmeet.connect(path) as connection:
        connection.execute("INSERT INTO ok VALUES (1); FLUSH")
        print(json.dumps([first, errors(connection), connection.execute("SELECT n FROM good").fetchall()]))

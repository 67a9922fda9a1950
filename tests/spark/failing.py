"""A process whose operators fail in Spark's workers while a file names their kind and the fault."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from tests.faultysteps import FAULTS, Step, raising

from watersmeet.kernel.operators import STEPS

#: The environment variable with the path of the file.
PLANTED = "WATERSMEET_TEST_PLANTED"
#: By kind of operator, the fault that is planted.
TRIED = {
    "aggregate": "exception",
    "arrange": "wrong length",
    "join": "wrong type",
    "map": "exception",
    "topn": "lack of memory",
    "union": "wrong length",
    "window": "wrong type",
}


class Planting:
    """Work of a worker in which every step looks into the file first."""

    def __init__(self, work: Callable[[Any], Iterator[Any]]) -> None:
        self._work = work

    def __call__(self, batches: Any) -> Iterator[Any]:
        for kind, step in STEPS.items():
            if not (isinstance(step, partial) and step.func is _step):
                STEPS[kind] = partial(_step, kind, step)
        yield from self._work(batches)


def _step(kind: str, step: Step, *arguments: Any) -> Any:
    file = Path(os.environ[PLANTED])
    planted, _, fault = file.read_text().partition(" ") if file.exists() else ("", "", "")
    if planted != kind:
        return step(*arguments)
    if fault == "lack of memory":
        return raising(lambda: MemoryError("planted"))
    return FAULTS[fault](step)(*arguments)


def main(path: str, *, shuffles: bool) -> None:
    """Print as JSON the errors of all views after the first and after the second opening, and the rows of `good`."""
    from tests.unit.session.test_failing_operators import CASES, errors

    import watersmeet
    from watersmeet.runtime.spark import jobs, worker

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

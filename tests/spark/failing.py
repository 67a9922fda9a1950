"""A process whose operators fail in Spark's workers while a file names their kind and the fault."""

from __future__ import annotations

import json
import os
import time
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
    """Print as JSON the errors of all views after the first and after the second opening, and the rows of `good`; the
    errors after REFRESH, and the number of rows of the first view; `ahead_after_reset`.
    """
    stage = worker.BucketStage
    jobs.EpochRunner._runs_here = lambda *_: False
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
        found = [first, errors(connection), connection.execute("SELECT n FROM good").fetchall()]
        connection.execute("REFRESH MATERIALIZED VIEW ALL")
        found += [errors(connection), connection.execute("SELECT count(*) FROM v0").fetchall()]
        print(json.dumps([*found, ahead_after_reset(connection)]))


def ahead_after_reset(connection: watersmeet.Connection) -> list[bool]:
    """Whether the time of epochs is ahead of the machine's clock: before and after the clock is reset."""
    database = connection._session.database
    connection.execute("CREATE MATERIALIZED VIEW recent AS SELECT i FROM l WHERE ts > now()")
    connection._session.database.clock._set_us = time.time_ns() // 1000 + 3_600_000_000
    connection.execute("INSERT INTO ok VALUES (1); FLUSH")
    connection._session.database.clock._set_us = None
    before = database.log.progress().time_us > database.clock.now_us()
    connection.execute("ALTER SYSTEM RESET clock; FLUSH")
    return [before, database.log.progress().time_us > database.clock.now_us()]

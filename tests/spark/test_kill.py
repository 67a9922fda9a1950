"""kill -9 at random points, again and again; a reader in another process all the time.

RA-04: state survives restarts. A view on a view with an outer join and an aggregate equals the batch
answer after every restart, and every read from outside equals the batch answer at its own moment.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.property.oracle import rows
from tests.spark.worker import QUERIES

import watersmeet

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}


def start(path: Path, parallelism: int, seed: int) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.spark.worker", str(path), str(parallelism), str(seed)],
        cwd=ROOT,
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def kill(process: subprocess.Popen) -> None:
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def check_one_moment(path: Path) -> int:
    """Reads tables and views in one statement each and compares; gives the number of changes seen."""
    with watersmeet.connect(path, read_only=True) as connection:
        cursor = connection.cursor()
        for view, query in QUERIES.items():
            cursor.execute(
                f"SELECT (SELECT count(*) FROM ((SELECT * FROM {view}) EXCEPT ALL ({query})) x), "
                f"(SELECT count(*) FROM (({query}) EXCEPT ALL (SELECT * FROM {view})) y), "
                "(SELECT count(*) FROM done)"
            )
            missing, surplus, done = cursor.fetchone()
            assert (missing, surplus) == (0, 0), f"{view} is no batch answer after {done} changes"
    return done


@pytest.mark.parametrize(("parallelism", "rounds"), [(2, 3), pytest.param(1, 4, marks=pytest.mark.slow)])
def test_kill_anywhere(tmp_path: Path, parallelism: int, rounds: int) -> None:
    path, seed = tmp_path / "db", parallelism
    r = random.Random(seed)
    reached = 0
    for _ in range(rounds):
        before = reached
        process = start(path, parallelism, seed)
        try:
            assert process.stdout is not None
            assert process.stdout.readline().strip() == "ready"
            until = time.monotonic() + 1.5 + r.random() * 2.5
            while time.monotonic() < until or reached == before:
                reads = check_one_moment(path)
                assert reads >= reached, "a change was lost"
                assert process.poll() is None, "the worker ended by itself"
                assert time.monotonic() < until + 300, "the worker changes nothing"
                reached = reads
        finally:
            kill(process)
    with watersmeet.connect(path, parallelism=parallelism) as connection:
        cursor = connection.cursor()
        cursor.execute("FLUSH")
        for view, query in QUERIES.items():
            cursor.execute(f"SELECT * FROM {view}")
            real = rows(cursor.fetchall())
            cursor.execute(query)
            assert real == rows(cursor.fetchall()), view
        cursor.execute("SELECT count(*), max(n) FROM done")
        count, last = cursor.fetchone()
        assert count == last + 1 >= reached

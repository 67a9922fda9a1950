"""Two processes on one directory, without its lock: one is stopped while the other works.

`tests/simulation/test_exhaustive.py` stops a writer before each step, with everything that a writer does to files.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

import watersmeet

SETUP = """
CREATE TABLE t (a varchar);
CREATE MATERIALIZED VIEW v AS SELECT a, count(*) AS n FROM t GROUP BY a;
INSERT INTO t VALUES ('first');
FLUSH;
"""


def connect(path):
    return watersmeet.connect(path, runtime="inprocess", parallelism=1)


def show(path):
    """What the database says in the end: to a new writer, and to a reader, which are asked for the same."""
    found = []
    for read_only in (False, True):
        with watersmeet.connect(path, runtime="inprocess", read_only=read_only) as connection:
            if not read_only:
                connection.flush()
            table = {a for (a,) in connection.execute("SELECT a FROM t").fetchall()}
            view = connection.execute("SELECT a, n FROM v").fetchall()
            tables = {r[0] for r in connection.execute("SHOW TABLES").fetchall()}
            assert {a for a, _ in view} == table
            assert {n for _, n in view} == {1}
            found.append((table, tables))
    assert found[0] == found[1]
    return found[0]


WRITER = """
import os, sys, watersmeet
connection = watersmeet.connect(sys.argv[1], runtime="inprocess")
for number in range(100_000):
    try:
        connection.execute("INSERT INTO t VALUES (%s)", (f"{sys.argv[2]} {number}",))
    except watersmeet.Error as refusal:
        print(refusal.condition, flush=True)
        os._exit(0)
    print(number, flush=True)
"""


def begin(path, name):
    return subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path), name],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )


@pytest.mark.slow
def test_a_process_that_is_stopped_and_goes_on(tmp_path):
    """Two processes: somebody deleted the lock's file, and the first writer is stopped while the other works."""
    path = tmp_path / "db"
    with connect(path) as connection:
        for _ in connection.execute_script(SETUP):
            pass
    rows = {"first"}
    with begin(path, "paused") as paused:
        try:
            told = [paused.stdout.readline().strip() for _ in range(20)]
            paused.send_signal(signal.SIGSTOP)
            (path / "LOCK").unlink()
            for held in (path / "readers").iterdir():
                held.unlink()
            with connect(path) as rival:
                rival.execute("INSERT INTO t VALUES ('rival 1')")
                rival.flush()
                rival._session.database._compactor.run()
                paused.send_signal(signal.SIGCONT)
                told += paused.stdout.read().split()
                rival.execute("INSERT INTO t VALUES ('rival 2')")
        finally:
            paused.kill()
    *numbers, condition = told
    assert condition == "WRITER_FENCED"
    rows |= {"rival 1", "rival 2", *(f"paused {number}" for number in numbers)}
    assert show(path)[0] == rows

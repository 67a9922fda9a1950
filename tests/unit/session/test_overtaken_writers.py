"""Two whole databases on one directory, without its lock: one is stopped at some step while the other works.

As `tests/unit/store/test_two_writers.py` does it with the log alone; here with everything that a writer does to files:
transactions, epochs, the catalog, plans, checkpoints and their clean-up.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from unittest import mock

import pytest
from tests.memorystore import URL, MemoryStore, use
from tests.thorough import mostly_slow
from tests.unit.store.pausing import PausingOs

import watersmeet
from watersmeet import files
from watersmeet.store import readers

SETUP = """
CREATE TABLE t (a varchar);
CREATE MATERIALIZED VIEW v AS SELECT a, count(*) AS n FROM t GROUP BY a;
INSERT INTO t VALUES ('first');
FLUSH;
"""
#: Each case tries the steps that are so far apart.
CASES = 24


class NoLock:
    """In the place of the writer's lock."""

    def __init__(self, layout):
        pass

    def release(self):
        pass


def connect(path):
    return watersmeet.connect(path, runtime="inprocess", parallelism=1)


class Session:
    """A writer that notes what it was told."""

    def __init__(self, path, name):
        self.name = name
        self.connection = connect(path)
        self.rows, self.tables, self.refused = set(), set(), 0

    def attempt(self, action):
        try:
            action()
        except watersmeet.Error as refusal:
            assert refusal.condition == "WRITER_FENCED", refusal
            self.refused += 1
            return False
        assert not self.refused, "a writer that was refused once is refused for ever"
        return True

    def insert(self, row):
        row = f"{self.name} {row}"
        if self.attempt(lambda: self.connection.execute("INSERT INTO t VALUES (%s)", (row,))):
            self.rows.add(row)

    def create(self, table):
        table = f"{self.name}_{table}"
        if self.attempt(lambda: self.connection.execute(f"CREATE TABLE {table} (x int)")):
            self.tables.add(table)

    def flush(self):
        self.attempt(self.connection.flush)

    def compact(self):
        self.attempt(self.connection._session.database._compactor.run)

    def work(self):
        self.insert(1)
        self.flush()
        self.create("one")
        self.compact()
        self.insert(2)
        self.flush()
        self.compact()
        self.create("two")
        self.insert(3)


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


def run(path, at, store=None):
    """A writer works, stopped before step `at` (None: never) while another opens the database; its number of steps.

    store: that in which the database is; None for a directory.
    """
    with connect(path) as connection:
        for _ in connection.execute_script(SETUP):
            pass
    with contextlib.ExitStack() as patched:
        patched.enter_context(mock.patch("watersmeet.database.opened.WriterLock", NoLock))
        paused = Session(path, "paused")
        pausing = PausingOs(paused.work, at)
        if store is None:
            patched.enter_context(mock.patch.object(files, "os", pausing))
            patched.enter_context(mock.patch.object(files, "open", pausing.read, create=True))
        else:
            store.before = lambda kind, name: pausing._step(kind)
        writers = [paused]
        if pausing.start():
            # All its locks got lost: nothing says what it still reads.
            if store is None:
                for held in (path / "readers").iterdir():
                    held.unlink()
            readers._HERE.clear()
            writers.append(Session(path, "rival"))
            writers[1].work()
            assert not writers[1].refused
        pausing.go_on()
        if pausing.failure is not None:
            raise pausing.failure
        if len(writers) > 1:
            with pytest.raises(watersmeet.Error, match="taken over"):
                paused.connection.flush()
            paused.connection.close()
            writers[1].insert(4)
            writers[1].flush()
            assert not writers[1].refused
        writers[-1].connection.close()
    rows, tables = show(path)
    assert rows == {"first"}.union(*(w.rows for w in writers))
    assert tables == {"t"}.union(*(w.tables for w in writers))
    return len(pausing.names)


@pytest.mark.parametrize("case", mostly_slow(range(CASES), 1))
def test_a_writer_that_is_stopped_at_some_step(tmp_path, case):
    with mock.patch.object(os, "fsync"):
        steps = run(tmp_path / "all", None)
        for at in range(1 + case * 7 % CASES, steps + 1, CASES):
            print("step", at, "of", steps)
            run(tmp_path / f"{at}", at)


@pytest.mark.parametrize("case", mostly_slow(range(CASES), 3))
def test_in_a_store_a_writer_that_is_stopped_at_some_request(tmp_path, monkeypatch, case):
    monkeypatch.setenv("WATERSMEET_READING_SECONDS", "0")
    steps = run(URL, None, use(monkeypatch, MemoryStore(), tmp_path))
    assert steps > CASES
    for at in range(1 + case * 7 % CASES, steps + 1, CASES):
        print("request", at, "of", steps)
        run(URL, at, use(monkeypatch, MemoryStore(), tmp_path))


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

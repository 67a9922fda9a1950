"""Stops and full disks at every step of a write: what was committed stays, what was not leaves no trace."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter

import pytest
from faults import FaultyOs, Killed
from support import CATALOG, Database, read
from tests.thorough import some

from watersmeet.errors import Error
from watersmeet.store.commits import Commit, CommitLog, Frontier
from watersmeet.store.layout import Layout
from watersmeet.system import files

ROWS = [((1, "a", 1.0), 1), ((2, None, None), 2)]


def history(database):
    """Every kind of write once: two transactions, an epoch that retracts, compactions in between."""
    number = database.transaction(t1=ROWS, t2=ROWS).number
    database.epoch(transaction=number, m4=ROWS)
    database.compactor.run()
    number = database.transaction(t1=[((1, "a", 1.0), -1)]).number
    database.epoch(transaction=number, m4=[((1, "a", 1.0), -1)])
    database.compactor.run()


EXPECTED = {  # The rows of t1 and of m4 (at the newest epoch) after each commit; reading t1 shows the same as m4.
    1: 0,  # the fence
    2: 3,
    3: 3,
    4: 3,  # the checkpoint
    5: 3,
    6: 2,
    7: 2,  # the checkpoint
}


def steps(tmp_path, monkeypatch):
    database = Database(tmp_path / "count", durable=True)
    counting = FaultyOs()
    monkeypatch.setattr(files, "os", counting)
    history(database)
    monkeypatch.setattr(files, "os", os)
    database.close()
    return counting.names


@pytest.mark.parametrize("torn", [False, True])
def test_a_kill_at_every_step(tmp_path, monkeypatch, torn):
    names = steps(tmp_path, monkeypatch)
    for at in some([at for at, name in enumerate(names, 1) if not torn or name == "writev"]):
        database = Database(tmp_path / f"db{at}", durable=True)
        monkeypatch.setattr(files, "os", FaultyOs(at, torn=torn))
        with pytest.raises(Killed):
            history(database)
        monkeypatch.setattr(files, "os", os)
        head_before = database.log.head()
        database.close()
        again = Database(tmp_path / f"db{at}", durable=True)
        head = again.log.head() - 1  # the fence of this writer
        # A commit may have been put in place without its writer living to see that.
        assert head in (head_before, head_before + 1)
        check(again, head)
        check_no_rest(again)
        again.transaction(t1=[((9, "z", 0.0), 1)])
        assert again.log.head() == head + 2
        again.compactor.run()
        check_no_rest(again)
        again.close()


def test_a_full_disk_at_every_step(tmp_path, monkeypatch):
    for at in some(range(1, len(steps(tmp_path, monkeypatch)) + 1)):
        database = Database(tmp_path / f"db{at}", durable=True)
        faulty = FaultyOs(at, how="full")
        monkeypatch.setattr(files, "os", faulty)
        try:
            history(database)
        except Error as raised:
            assert raised.condition == "DISK_FULL"
        monkeypatch.setattr(files, "os", os)
        check(database, database.log.head())
        for directory in (database.layout.commits, database.layout.segments, database.layout.snapshots):
            assert not [n for n in os.listdir(directory) if n.startswith(files.TEMPORARY)]
        head = database.log.head()
        if database.log._refused is None:
            database.transaction(t2=ROWS)
            assert database.log.head() == head + 1
        database.close()


def check(database, head):
    content = database.content()
    found = read(content, CATALOG, "t1", "m4")
    assert found["t1"].total() == EXPECTED[head]
    if head >= 3:
        assert found["m4"] == found["t1"]
    if head > 1:
        assert read(content, CATALOG, "t1", newest=True)["t1"].total() == (3 if head < 5 else 2)


def check_no_rest(database):
    """No file is left that nothing refers to."""
    layout = database.layout
    for directory in (layout.commits, layout.segments, layout.snapshots, layout.catalogs):
        assert not [n for n in os.listdir(directory) if n.startswith(files.TEMPORARY)]
    mentioned = b"".join(p.read_bytes() for p in [*layout.commits.glob("*.json"), *layout.snapshots.glob("*.json")])
    for path in layout.segments.iterdir():
        assert path.name.encode() in mentioned


WRITER = """
import sys, time
sys.path.insert(0, sys.argv[2])
from pathlib import Path
from support import Database
database = Database(Path(sys.argv[1]))
database.compactor._commits = 5
database.compactor.start()
number = int(sys.argv[3])
while True:
    database.transaction(t1=[((number, "a", 1.0), 1), ((number - 1, "a", 1.0), -1), ((number, "b", None), 1)])
    print(number, flush=True)
    number += 1
"""


@pytest.mark.slow
def test_a_real_kill_of_a_busy_writer(tmp_path):
    """Features: kill -9 at random points; nothing that was committed is lost, nothing is there twice."""
    database = Database(tmp_path / "x")
    database.transaction(t1=[((0, "a", 1.0), 1)])
    database.close()
    done = 0
    for turn in range(6):
        here = os.path.dirname(__file__)
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path / "x"), here, str(done + 1)],
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        assert writer.stdout is not None
        writer.stdout.readline()
        time.sleep(0.05 + 0.13 * turn)
        writer.send_signal(signal.SIGKILL)
        told = [int(line) for line in writer.stdout.read().split()]
        writer.wait()
        database = Database(tmp_path / "x")
        found = read(database.content(), CATALOG, "t1")["t1"]
        done = found.total() - 1
        assert done >= max(told, default=0)
        assert found == Counter([(done, "a", 1.0), *((number, "b", None) for number in range(1, done + 1))])
        database.close()


def test_an_epoch_is_committed_once(tmp_path):
    database = Database(tmp_path / "x")
    database.epoch(transaction=0, m4=ROWS)
    with pytest.raises(Error, match="after epoch"):
        database.log.append(Commit("epoch", epoch=1, frontier=Frontier()))
    assert database.log.head() == 2
    database.close()


def test_a_commit_is_never_written_over(tmp_path):
    layout = Layout(tmp_path / "x")
    database = Database(tmp_path / "x")
    database.transaction(t1=ROWS)
    newer = CommitLog(layout, writer=True)
    for _ in range(2):
        with pytest.raises(Error, match=f"process {os.getpid()}") as raised:
            database.log.append(Commit("transaction"))
        assert raised.value.condition == "WRITER_FENCED"
    assert newer.append(Commit("transaction")).number == 4
    assert [CommitLog(layout).read(n).kind for n in range(1, 5)] == ["fence", "transaction", "fence", "transaction"]
    database.close()

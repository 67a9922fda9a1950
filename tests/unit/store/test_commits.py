"""The commit log, its readers and the writer's lock."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading

import pytest
from faults import FaultyOs
from support import CATALOG, Database, read

from watersmeet.errors import Error
from watersmeet.store import files, readers
from watersmeet.store.catalogs import load_catalog, save_catalog
from watersmeet.store.commits import BlobRef, Commit, CommitLog, Frontier, RelationChange
from watersmeet.store.layout import Layout
from watersmeet.store.lock import WriterLock
from watersmeet.store.readers import Reader

COMMIT = Commit(
    "epoch", time_us=5, relations={"t1": RelationChange((BlobRef("a.pack", 64, 10, 3),), 2, 1)}, epoch=7,
    frontier=Frontier(3, {"t3": {"files": [1]}}, {"left": 2}), packs={"0/1": "a.pack"}, circuit="abc",
    catalog_version=4, metrics={"rows": 1}, retired=("b.run",),
)


@pytest.fixture
def layout(tmp_path):
    return Layout(tmp_path / "x")


def test_a_commit_survives_its_file(layout):
    log = CommitLog(layout, writer=True)
    log.append(Commit("transaction"))
    written = log.append(COMMIT)
    assert CommitLog(layout).read(2) == written
    assert (written.number, written.last_epoch, written.epoch_before, written.last_transaction) == (2, 2, 0, 1)
    assert CommitLog(layout).last_epoch() == written


def test_rejected_rows_add_up_over_commits(layout):
    log = CommitLog(layout, writer=True)
    log.append(Commit("transaction", rejected={"t1": 2, "t2": 0}))
    log.append(COMMIT)
    log.append(Commit("transaction", rejected={"t1": 1, "t3": 4}))
    assert [log.read(n).rejected for n in (1, 2, 3)] == [{"t1": 2}, {"t1": 2}, {"t1": 3, "t3": 4}]


@pytest.mark.parametrize("change", [lambda b: b[:-20], lambda b: b"", lambda b: b.replace(b"a.pack", b"b.pack")])
def test_a_damaged_commit_is_named(layout, change):
    CommitLog(layout, writer=True).append(COMMIT)
    path = layout.commit(1)
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(Error, match=r"000000000001\.json") as raised:
        CommitLog(layout).read(1)
    assert raised.value.condition == "DATABASE_DAMAGED"


def test_a_missing_commit_is_named(layout):
    log = CommitLog(layout, writer=True)
    log.append(COMMIT)
    log.append(Commit("transaction"))
    layout.commit(1).unlink()
    with pytest.raises(Error, match=r"000000000001\.json is missing"):
        CommitLog(layout).read(1)


class CountingOs:
    """Counts what is asked of the file system."""

    def __init__(self):
        self.calls = []

    def __getattr__(self, name):
        real = getattr(os, name)
        if name in ("stat", "listdir", "open", "pread", "scandir"):
            self.calls.append(name)
        return real


def test_polling_costs_the_same_whatever_the_history(layout, monkeypatch):
    """100,000 commits behind it: two looks a poll, no listing, also for a reader that starts."""
    blank = Commit("transaction", number=1).to_bytes()
    for number in [*range(1, 200), *range(99_000, 100_001)]:
        layout.commit(number).write_bytes(blank)
    (layout.commits / "HEAD").write_bytes(b"%012d\n" % 99_990)
    counting = CountingOs()
    monkeypatch.setattr(files, "os", counting)
    log = CommitLog(layout)
    assert log.head() == 100_000
    assert "listdir" not in counting.calls
    assert len(counting.calls) < 15
    counting.calls.clear()
    assert log.head() == 100_000
    assert counting.calls == ["stat", "stat"]


@pytest.mark.parametrize("hint", [None, b"", b"00000", b"999999999999\n", b"000000000003\n", b"000000000011\n"])
def test_the_head_is_found_whatever_the_hint(layout, hint):
    """HEAD is lost, torn, ahead, behind, or names a commit that was cleaned away."""
    log = CommitLog(layout, writer=True)
    for _ in range(40):
        log.append(Commit("transaction"))
    files.remove_files(layout.commit(n) for n in range(1, 10))
    if hint is None:
        (layout.commits / "HEAD").unlink()
    else:
        (layout.commits / "HEAD").write_bytes(hint)
    assert CommitLog(layout).head() == 40
    assert CommitLog(layout, writer=True).head() == 40


def test_waiting_for_the_next_commit(layout):
    log = CommitLog(layout, writer=True)
    foreign = CommitLog(layout)
    assert not log.wait_past(0, 0.01)
    assert not foreign.wait_past(0, 0.01)
    found = []
    threads = [threading.Thread(target=lambda r=reader: found.append(r.wait_past(0, 120))) for reader in (log, foreign)]
    for thread in threads:
        thread.start()
    log.append(Commit("transaction"))
    for thread in threads:
        thread.join()
    assert found == [True, True]


def test_commits_from_several_threads_are_contiguous(layout):
    log = CommitLog(layout, writer=True)
    threads = [threading.Thread(target=lambda: [log.append(Commit("transaction")) for _ in range(50)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [CommitLog(layout).read(n).number for n in range(1, 201)] == list(range(1, 201))


def test_only_the_writer_appends(layout):
    with pytest.raises(Error, match="reader"):
        CommitLog(layout).append(Commit("transaction"))


def test_two_writers(layout):
    """Features: two processes opening one path for writing."""
    lock = WriterLock(layout)
    with pytest.raises(Error, match=f"pid {os.getpid()}") as raised:
        WriterLock(layout)
    assert raised.value.condition == "DATABASE_IN_USE"
    assert "watersmeet query" in raised.value.hint
    lock.release()
    lock.release()
    WriterLock(layout).release()


def test_the_lock_goes_with_its_process(layout):
    text = ("import sys, time\nfrom watersmeet.store.layout import Layout\nfrom watersmeet.store.lock import WriterLock\n"
            "lock = WriterLock(Layout(sys.argv[1]))\nprint('held', flush=True)\ntime.sleep(600)\n")
    process = subprocess.Popen([sys.executable, "-c", text, str(layout.root)], stdout=subprocess.PIPE,
                               env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
    with process:
        try:
            assert process.stdout.readline() == b"held\n"
            with pytest.raises(Error, match=f"process {process.pid}"):
                WriterLock(layout)
        finally:
            process.kill()
    WriterLock(layout).release()


def test_a_newer_format_is_refused_untouched(tmp_path):
    """Features: a path from a newer state format."""
    root = tmp_path / "x"
    root.mkdir()
    (root / "FORMAT").write_text(json.dumps({"format": 2}))
    before = sorted(root.rglob("*"))
    for create in (True, False):
        with pytest.raises(Error, match="format 2") as raised:
            Layout(root, create=create)
        assert raised.value.condition == "DATABASE_FORMAT"
    assert sorted(root.rglob("*")) == before


def test_a_directory_that_is_something_else_is_refused_untouched(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(Error, match="holds no Watersmeet database"):
        Layout(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["notes.txt"]
    with pytest.raises(Error, match="no Watersmeet database"):
        Layout(tmp_path / "none", create=False)
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("name", ["../x", "a/b", "", ".hidden", "a\0b", "a..", "t1\n"])
def test_names_that_leave_the_directory_are_refused(layout, name):
    for path in (layout.pack, layout.snapshot, layout.plan, layout.dead):
        with pytest.raises(Error):
            path(name)


def test_catalogs(layout):
    assert load_catalog(layout).version == 0
    for version in range(1, 20):
        save_catalog(layout, CATALOG.__class__(version, CATALOG.next_number, CATALOG.relations))
    assert load_catalog(layout).version == 19
    assert load_catalog(layout).relations == CATALOG.relations
    assert len(list(layout.catalogs.iterdir())) == 8
    with pytest.raises(Error, match="exists"):
        save_catalog(layout, CATALOG.__class__(19))


def test_holds_of_living_readers_count_and_those_of_dead_ones_do_not(layout):
    first, second = Reader(layout), Reader(layout)
    first.hold(7)
    second.rest(3)
    assert sorted(readers.read_holds(layout)) == [("A", 7), ("I", 3)]
    (layout.readers / "dead").write_text("A000000000001\n")
    assert sorted(readers.read_holds(layout)) == [("A", 7), ("I", 3)]
    assert not (layout.readers / "dead").exists()
    second.release()
    first.close()
    assert readers.read_holds(layout) == []


def test_a_line_that_cannot_be_read_holds_everything(layout):
    reader = Reader(layout)
    reader._path.write_text("A0000")
    assert readers.read_holds(layout) == [("A", 0)]


def test_a_reader_learns_that_it_came_too_late(layout):
    reader = Reader(layout)
    readers.write_floor(layout, 10)
    assert not reader.hold(9)
    assert reader.hold(10)


def test_a_full_disk_while_a_reader_registers_is_no_error(tmp_path, monkeypatch):
    database = Database(tmp_path / "x")
    database.transaction(t1=[((1, "a", 1.0), 1)])
    monkeypatch.setattr(readers, "os", FaultyOs(1, how="full"))
    content = database.content()
    monkeypatch.setattr(readers, "os", os)
    assert read(content, CATALOG, "t1")["t1"].total() == 1
    database.close()

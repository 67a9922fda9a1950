"""The commit log, its readers and the writer's lock."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from dataclasses import replace

import pytest
from faults import FaultyOs
from support import CATALOG, Database, read

from watersmeet.catalog import Catalog
from watersmeet.errors import Error
from watersmeet.store import readers
from watersmeet.store.commits import Commit, CommitLog, Frontier, RelationChange, load_catalog, save_catalog, saving
from watersmeet.store.layout import DATABASE_FORMAT_VERSION, OLDEST_FORMAT_VERSION, Layout, WriterLock
from watersmeet.store.manifests import Backfill, Filling, Metrics, OperatorCounts, RelationTotals
from watersmeet.store.readers import LowWaterMark, Reader, raise_low_water
from watersmeet.store.retention import clean_at_start
from watersmeet.store.segmentfiles import SegmentFiles
from watersmeet.system import files
from watersmeet.system.blobs import BlobRef

COMMIT = Commit(
    "epoch",
    time_us=5,
    relations={"t1": RelationChange((BlobRef("a.segment", 64, 10, 3),), 2, 1)},
    epoch=7,
    frontier=Frontier(3, {"t3": {"files": [1]}}, Backfill(Filling(("m1",), ("t3",)), 2, 3, 4, ("t3",), started=True)),
    segments={"0/1": "a.segment"},
    circuit="abc",
    metrics=Metrics(
        rows=1,
        duration_us=5,
        idle=("s1",),
        operators={"o": OperatorCounts(3, 1)},
        busiest={"o": ((2, 7), (-3, 1))},
        totals={"t1": RelationTotals(1, 9)},
        first_dead={"s1": {"line": 1}},
        errors={"o": 2},
    ),
)


@pytest.fixture
def layout(tmp_path):
    return Layout(tmp_path / "x")


def test_a_commit_survives_its_file(layout):
    log = CommitLog(layout, writer=True)
    log.append(Commit("transaction"))
    written = log.append(COMMIT)
    assert CommitLog(layout).read(3) == written
    assert (written.number, written.last_epoch, written.epoch_before, written.last_transaction) == (3, 3, 0, 2)
    assert CommitLog(layout).last_epoch() == written


def test_rejected_rows_add_up_over_commits(layout):
    log = CommitLog(layout, writer=True)
    log.append(Commit("transaction", rejected={"t1": 2, "t2": 0}))
    log.append(COMMIT)
    log.append(Commit("transaction", rejected={"t1": 1, "t3": 4}))
    assert [log.read(n).rejected for n in (2, 3, 4)] == [{"t1": 2}, {"t1": 2}, {"t1": 3, "t3": 4}]


@pytest.mark.parametrize("change", [lambda b: b[:-20], lambda b: b"", lambda b: b.replace(b"a.segment", b"b.segment")])
def test_a_damaged_commit_is_named(layout, change):
    CommitLog(layout, writer=True).append(COMMIT)
    path = layout.commit(2)
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(Error, match=r"000000000002\.json") as raised:
        CommitLog(layout).read(2)
    assert raised.value.condition == "DATABASE_DAMAGED"


def test_transactions_are_found_above_commits_that_were_cleaned_away(layout):
    log = CommitLog(layout, writer=True)
    for _ in range(3):
        log.append(replace(COMMIT, epoch=log.head() + 7))
    low_water = log.head()
    transaction = log.append(Commit("transaction"))
    log.append(replace(COMMIT, epoch=40))
    raise_low_water(layout, LowWaterMark(), low_water, [log.read(1)])
    files.remove_files(layout.commit(n) for n in range(1, low_water))
    fresh = CommitLog(layout)
    assert list(fresh.transactions(0, fresh.head())) == [transaction]
    assert list(fresh.transactions(0, transaction.number - 1)) == []
    assert list(fresh.transactions(transaction.number, fresh.head())) == []
    layout.commit(transaction.number).unlink()
    with pytest.raises(Error, match="is missing") as found:
        list(CommitLog(layout).transactions(0, fresh.head()))
    assert found.value.condition == "DATABASE_DAMAGED"


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
    """100,000 commits behind it: a look and a small listing a poll, and few of both for a reader that starts."""
    for number in range(99_000, 100_001):
        layout.commit(number).write_bytes(b"")
    raise_low_water(layout, LowWaterMark(), 99_500, [])
    counting = CountingOs()
    monkeypatch.setattr(files, "os", counting)
    log = CommitLog(layout)
    assert log.head() == 100_000
    assert len(counting.calls) < 30
    counting.calls.clear()
    assert log.head() == 100_000
    assert counting.calls == ["stat", "listdir"]


@pytest.mark.parametrize("late", [[], [3], [3, 4, 5], [20]])
def test_the_head_is_found_whatever_is_below_the_low_water_mark(layout, late):
    """A writer that was overtaken has made commits again that were cleaned away."""
    log = CommitLog(layout, writer=True)
    for _ in range(39):
        log.append(Commit("transaction"))
    early = CommitLog(layout)
    early._head = 2
    raise_low_water(layout, LowWaterMark(), 30, [log.read(1)])
    data = layout.commit(3).read_bytes()
    files.remove_files(layout.commit(n) for n in range(1, 30))
    for number in late:
        layout.commit(number).write_bytes(data)
    assert CommitLog(layout).head() == 40
    assert early.head() == 40
    assert CommitLog(layout, writer=True).head() == 41


def test_waiting_for_the_next_commit(layout):
    log = CommitLog(layout, writer=True)
    foreign = CommitLog(layout)
    assert not log.wait_past(1, 0.01)
    assert not foreign.wait_past(1, 0.01)
    found = []
    threads = [threading.Thread(target=lambda r=reader: found.append(r.wait_past(1, 120))) for reader in (log, foreign)]
    for thread in threads:
        thread.start()
    log.append(Commit("transaction"))
    for thread in threads:
        thread.join()
    assert found == [True, True]


def test_commits_from_several_threads_are_contiguous(layout):
    log = CommitLog(layout, writer=True)
    threads = [
        threading.Thread(target=lambda: [log.append(Commit("transaction")) for _ in range(50)]) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [CommitLog(layout).read(n).number for n in range(2, 202)] == list(range(2, 202))


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


def test_a_refusal_does_not_grow_each_time_it_is_told(layout):
    """Each time that one exception is raised its trace gets longer, and keeps what the frames hold."""
    overtaken = CommitLog(layout, writer=True)
    CommitLog(layout, writer=True)
    lengths = []
    for _ in range(5):
        with pytest.raises(Error) as raised:
            overtaken.append(Commit("transaction"))
        lengths.append(len(raised.traceback))
    assert lengths[1:] == [lengths[1]] * 4


def test_the_lock_goes_with_its_process(layout):
    text = (
        "import sys, time\nfrom watersmeet.store.layout import Layout\n"
        "from watersmeet.store.layout import WriterLock\n"
        "lock = WriterLock(Layout(sys.argv[1]))\nprint('held', flush=True)\ntime.sleep(600)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", text, str(layout.root)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    with process:
        try:
            assert process.stdout.readline() == b"held\n"
            with pytest.raises(Error, match=f"process {process.pid}"):
                WriterLock(layout)
        finally:
            process.kill()
    WriterLock(layout).release()


@pytest.mark.parametrize(
    ("version", "word"), [(OLDEST_FORMAT_VERSION - 1, "older"), (DATABASE_FORMAT_VERSION + 1, "newer")]
)
def test_another_format_is_refused_untouched(tmp_path, version, word):
    """Features: a path from a newer state format."""
    root = tmp_path / "x"
    root.mkdir()
    (root / "FORMAT").write_text(json.dumps({"format": version}))
    before = sorted(root.rglob("*"))
    for create in (True, False):
        with pytest.raises(Error, match=f"format {version}, {word} than") as raised:
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
    for path in (layout.segment, layout.circuit, layout.dead):
        with pytest.raises(Error):
            path(name)


def test_catalogs(layout):
    log = CommitLog(layout, writer=True)
    assert load_catalog(layout, log) == (Catalog(), "")
    for version in range(1, 20):
        save_catalog(layout, log, Catalog(version, CATALOG.next_number, CATALOG.relations))
    found, name = load_catalog(layout, CommitLog(layout))
    assert (found.version, found.relations, name) == (19, CATALOG.relations, "000000000019-1")
    assert len(list(layout.catalogs.iterdir())) == 8
    with pytest.raises(Error, match="exists"):
        save_catalog(layout, log, Catalog(19))


def test_a_catalog_counts_once_it_is_committed(layout):
    """Of two writers that change the catalog the one that was overtaken fails, and what it wrote shows nowhere."""
    old = CommitLog(layout, writer=True)
    save_catalog(layout, old, Catalog(1, 5))
    new = CommitLog(layout, writer=True)
    with pytest.raises(Error) as raised:
        save_catalog(layout, old, Catalog(2, 6))
    assert raised.value.condition == "WRITER_FENCED"
    assert load_catalog(layout, CommitLog(layout))[0] == Catalog(1, 5)
    save_catalog(layout, new, Catalog(2, 7))
    assert load_catalog(layout, CommitLog(layout))[0] == Catalog(2, 7)


def test_a_catalog_comes_with_the_commit_that_names_it(layout):
    log = CommitLog(layout, writer=True)
    save_catalog(layout, log, Catalog(1))
    with saving(layout, log, Catalog(2)) as name:
        log.append(Commit("transaction"))
        assert load_catalog(layout, CommitLog(layout))[0] == Catalog(1)
        log.append(Commit("transaction", catalog=name))
    assert load_catalog(layout, CommitLog(layout)) == (Catalog(2), name)
    assert log.append(Commit("transaction")).catalog == name
    with saving(layout, log, Catalog(3)):
        pass
    assert load_catalog(layout, log)[0] == Catalog(2)
    assert len(list(layout.catalogs.iterdir())) == 2


def test_catalogs_of_writers_that_ended_before_their_commit_go(layout):
    log = CommitLog(layout, writer=True)
    save_catalog(layout, log, Catalog(1))
    for version in (2, 3):
        path = layout.catalog(f"{version:012d}-1")
        path.write_bytes(layout.seal(path, Catalog(version).to_json()))
    clean_at_start(layout, CommitLog(layout, writer=True), SegmentFiles(layout.segments))
    assert [p.name for p in layout.catalogs.iterdir()] == ["000000000001-1.json"]


def test_holds_of_living_readers_count_and_those_of_dead_ones_do_not(layout):
    first, second = Reader(layout), Reader(layout)
    first.try_pin(7)
    second.idle(3)
    assert sorted(readers.read_leases(layout)) == [("A", 7), ("I", 3)]
    (layout.root / "readers" / "dead").write_text("A000000000001\n")
    assert sorted(readers.read_leases(layout)) == [("A", 7), ("I", 3)]
    assert not (layout.root / "readers" / "dead").exists()
    second.release()
    first.close()
    assert readers.read_leases(layout) == []


def test_a_line_that_cannot_be_read_holds_everything(layout):
    reader = Reader(layout)
    reader._path.write_text("A0000")
    assert readers.read_leases(layout) == [("A", 0)]


def test_a_reader_learns_that_it_came_too_late(layout):
    reader = Reader(layout)
    raise_low_water(layout, LowWaterMark(), 10, [])
    assert not reader.try_pin(9)
    assert reader.try_pin(10)


def test_a_full_disk_while_a_reader_registers_is_no_error(tmp_path, monkeypatch):
    database = Database(tmp_path / "x")
    database.transaction(t1=[((1, "a", 1.0), 1)])
    monkeypatch.setattr(readers, "os", FaultyOs(1, how="full"))
    content = database.content()
    monkeypatch.setattr(readers, "os", os)
    assert read(content, CATALOG, "t1")["t1"].total() == 1
    database.close()


def test_what_a_log_remembers_is_bounded_by_bytes(layout):
    """A commit of many views is large: it is their bytes that count, not their number."""
    log = CommitLog(layout, writer=True, cache_bytes=100_000)
    for number in range(1, 40):
        log.append(
            replace(COMMIT, epoch=number, metrics=Metrics(operators={f"o{i}": OperatorCounts(i) for i in range(100)}))
        )
        assert log.cached_bytes <= 100_000
    assert 2 <= len(log._cache) < 20
    assert log.read(2).epoch == 1


def test_what_a_crash_left_unfinished_beside_sources_goes(layout):
    made = [layout.sources, layout.dead("t1")]
    files.make_directory(made[1])
    for directory in made:
        files.write_new(files.temporary_path(directory), b"half")
    clean_at_start(layout, CommitLog(layout, writer=True), SegmentFiles(layout.segments))
    assert [p.name for directory in made for p in directory.iterdir() if p.is_file()] == []

"""Forks share files, whatever is deleted meanwhile, and wherever a process is killed."""

from __future__ import annotations

import os
import shutil
import threading
from contextlib import closing

import pytest
from faults import FaultyOs, Killed
from tests.memorystore import MemoryStore, use
from tests.thorough import some

import watersmeet
from watersmeet.errors import Error
from watersmeet.objectstores import storage
from watersmeet.store import backup
from watersmeet.store import layout as layouts
from watersmeet.store.backup import create_fork, drop_fork, forks_of, remove_unfinished
from watersmeet.store.commits import CommitLog
from watersmeet.store.layout import Layout
from watersmeet.store.readers import read_forks
from watersmeet.store.retention import clean_at_start
from watersmeet.store.segmentfiles import SegmentFiles
from watersmeet.system import files

SETUP = """
CREATE TABLE a (id int PRIMARY KEY, v int);
CREATE TABLE b (id int, w int);
CREATE MATERIALIZED VIEW j AS SELECT a.id, v, w FROM a JOIN b ON a.id = b.id;
INSERT INTO a SELECT x, x FROM generate_series(1, 20) AS t(x);
INSERT INTO b SELECT x % 7, x FROM generate_series(1, 40) AS t(x);
FLUSH;
"""


def connect(path, **options):
    return watersmeet.connect(path, runtime="inprocess", **options)


def rows(connection, sql="SELECT * FROM j"):
    return sorted(connection.execute(sql).fetchall())


def change(connection, times, first=0):
    """Changes of all relations, and compactions, after which nothing of the earlier state is needed."""
    for number in range(first, first + times):
        connection.execute(f"UPDATE a SET v = v + {number + 1}; INSERT INTO b VALUES ({number % 20}, {number}); FLUSH")
        connection.opened._compactor.run()


@pytest.fixture
def place(request, tmp_path, monkeypatch):
    """The path of a database in a directory, or in an object store, where nothing waits for unknown readers."""
    if request.param == "directory":
        return str(tmp_path / "db")
    use(monkeypatch, MemoryStore(), tmp_path / "cache")
    monkeypatch.setenv("WATERSMEET_READING_SECONDS", "0")
    return "s3://memory/db"


BOTH = pytest.mark.parametrize("place", ["directory", "objects"], indirect=True)


def segments(place):
    return set(storage.list_names(storage.path_at(place) / "segments"))


@BOTH
def test_neither_deletes_files_of_the_other(place):
    with connect(place) as main:
        for _ in main.execute_script(SETUP):
            pass
        main.execute("ALTER SYSTEM SET retention = 0")
        before = rows(main)
        main.execute("CREATE FORK f")
        (record,) = read_forks(main.opened.layout)
        assert record.files
        change(main, 8)
        assert {*record.files} <= segments(place), "the fork needs them"
        with connect(f"{place}/forks/f") as fork:
            assert rows(fork) == before
            change(fork, 8)
            assert {*record.files} <= segments(place), "only the main database deletes its files"
            forked = rows(fork)
        assert not {*record.files} & segments(f"{place}/forks/f"), "nothing is copied"
        after = rows(main)
        change(main, 1, first=8)
        main.execute("UPDATE a SET v = v - 9; DELETE FROM b WHERE id = 8 AND w = 8; FLUSH")
        assert rows(main) == after, "its state is whole"
    with connect(place) as main, connect(f"{place}/forks/f") as fork:
        assert (rows(main), rows(fork)) == (after, forked)
        fork.close()
        main.execute("DROP FORK f")
        change(main, 2)
        assert not {*record.files} <= segments(place), "DROP FORK releases them"
        assert main.execute("SHOW FORKS").fetchall() == []
    with pytest.raises(Error, match="there is no Watersmeet database"):
        connect(f"{place}/forks/f", read_only=True)


@BOTH
def test_a_fork_that_its_database_lost_is_no_database(place):
    with connect(place) as main:
        for _ in main.execute_script(SETUP):
            pass
        main.execute("CREATE FORK f")
        layout = main.opened.layout
        storage.remove_files([layout.forks / "f.json"])
        with pytest.raises(Error, match="no longer has it") as refused:
            connect(f"{place}/forks/f")
        assert refused.value.condition == "DATABASE_FORMAT"


@BOTH
def test_a_copy_of_a_fork_shares_nothing(place, tmp_path):
    with connect(place) as main:
        for _ in main.execute_script(SETUP):
            pass
        main.execute("CREATE FORK f")
        before = rows(main)
        backup.copy_database(f"{place}/forks/f", tmp_path / "copy")
        main.execute("DROP FORK f")
    with connect(tmp_path / "copy") as copy:
        assert rows(copy) == before
        change(copy, 1)


class Once:
    """The database as the store sees it: a writer that can be killed, and its successor."""

    def __init__(self, root):
        self.layout = Layout(root)
        self.log = CommitLog(self.layout, writer=True)
        with closing(SegmentFiles(self.layout.segments, path=self.layout.segment)) as found:
            clean_at_start(self.layout, self.log, found)
        remove_unfinished(self.layout)


def is_whole(root, before):
    """Whether fork f exists; then it has its content, and if it doesn't, nothing of it is left."""
    one = Once(root)
    found = forks_of(one.layout)
    assert [f.name for f in read_forks(one.layout)] == [f.name for f in found]
    if not found:
        create_fork(one.layout, one.log, "f")
    with connect(f"{root}/forks/f") as fork:
        assert rows(fork) == before
    return bool(found)


@pytest.mark.parametrize("verb", ["create", "drop"])
def test_a_kill_at_every_step(tmp_path, monkeypatch, verb):
    with connect(tmp_path / "db") as main:
        for _ in main.execute_script(SETUP):
            pass
        before = rows(main)
    if verb == "drop":
        once = Once(tmp_path / "db")
        create_fork(once.layout, once.log, "f")

    def run(root):
        one = Once(root)
        faulty = FaultyOs(at)
        with monkeypatch.context() as patched:
            patched.setattr(files, "os", faulty)
            if verb == "create":
                create_fork(one.layout, one.log, "f")
            else:
                drop_fork(one.layout, "f")
        return faulty.calls

    at = None
    shutil.copytree(tmp_path / "db", tmp_path / "count")
    calls = run(tmp_path / "count")
    there = []
    for at in [*some(range(1, calls + 1)), calls]:
        root = tmp_path / f"db{at}"
        shutil.copytree(tmp_path / "db", root)
        with pytest.raises(Killed):
            run(root)
        there.append(is_whole(root, before))
        shutil.rmtree(root)
    assert there == sorted(there, reverse=verb == "drop"), "there is one step at which it begins, or ends"


@pytest.mark.parametrize("verb", ["create", "drop"])
def test_a_kill_at_every_request_of_an_object_store(tmp_path, monkeypatch, verb):
    root = "s3://memory/db"
    store = use(monkeypatch, MemoryStore(), tmp_path / "cache")
    with connect(root) as main:
        for _ in main.execute_script(SETUP):
            pass
        before = rows(main)
    if verb == "drop":
        once = Once(root)
        create_fork(once.layout, once.log, "f")
    saved = dict(store.objects)
    left = [0]

    def dying(kind, name):
        del kind, name
        left[0] -= 1
        if left[0] <= 0:
            raise Killed

    def run(requests):
        store.objects.clear()
        store.objects.update(saved)
        one = Once(root)
        left[0] = requests
        store.before = dying
        try:
            create_fork(one.layout, one.log, "f") if verb == "create" else drop_fork(one.layout, "f")
        finally:
            store.before = lambda kind, name: None
        return requests - left[0]

    requests = run(10_000)
    there = []
    for at in [*some(range(1, requests + 1)), requests]:
        with pytest.raises(Killed):
            run(at)
        there.append(is_whole(root, before))
    assert there == sorted(there, reverse=verb == "drop")


class DroppingOs:
    """A stand-in for `os` that calls `drop` once, before its call `at`."""

    def __init__(self, at, drop):
        self.calls = 0
        self._at, self._drop = at, drop

    def __getattr__(self, name):
        real = getattr(os, name)
        if name not in ("listdir", "stat", "open", "link", "replace", "unlink", "mkdir"):
            return real

        def call(*args, **kwargs):
            self.calls += 1
            if self.calls == self._at:
                self._drop()
            return real(*args, **kwargs)

        return call


def opens(root, **options):
    """Whether a fork can be opened. It fails only as if it never existed."""
    try:
        connect(root, **options).close()
    except Error as refused:
        assert refused.condition == "UNDEFINED_OBJECT", refused
        return False
    return True


@pytest.mark.parametrize("options", [{}, {"read_only": True}], ids=["writer", "reader"])
def test_a_fork_is_dropped_at_every_step_of_opening_it(tmp_path, monkeypatch, options):
    with connect(tmp_path / "db") as main:
        for _ in main.execute_script(SETUP):
            pass
        layout, dropped = main.opened.layout, []

        def drop():
            try:
                drop_fork(layout, "f")
            except Error as refused:
                assert refused.condition == "DATABASE_IN_USE"
            else:
                dropped.append(True)

        def run(at):
            dropped.clear()
            if not forks_of(layout):
                main.execute("CREATE FORK f")
            dropping = DroppingOs(at, drop)
            with monkeypatch.context() as patched:
                patched.setattr(files, "os", dropping)
                patched.setattr(layouts, "os", dropping)
                assert opens(f"{tmp_path}/db/forks/f", **options) is not bool(dropped)
            return dropping.calls

        for at in some(range(1, run(None) + 1)):
            run(at)


def test_a_reader_of_a_fork_learns_that_it_was_dropped(tmp_path):
    with connect(tmp_path / "db") as main:
        for _ in main.execute_script(SETUP):
            pass
        main.execute("CREATE FORK f")
        with connect(f"{tmp_path}/db/forks/f", read_only=True) as reader:
            assert rows(reader) == rows(main)
            main.execute("DROP FORK f")
            with pytest.raises(Error) as refused:
                rows(reader)
        assert refused.value.condition == "UNDEFINED_OBJECT"


def test_another_database_in_the_folder_of_forks_is_not_deleted(tmp_path):
    with connect(tmp_path / "db") as main, connect(tmp_path / "other"):
        shutil.copytree(tmp_path / "other", tmp_path / "db" / "forks" / "f")
        before = sorted(os.listdir(tmp_path / "db" / "forks" / "f"))
        with pytest.raises(Error) as refused:
            main.execute("CREATE FORK f")
        assert refused.value.condition == "DUPLICATE_OBJECT"
        assert sorted(os.listdir(tmp_path / "db" / "forks" / "f")) == before


def test_a_fork_is_dropped_at_every_request_of_opening_it(tmp_path, monkeypatch):
    store = use(monkeypatch, MemoryStore(), tmp_path / "cache")
    with connect("s3://memory/db") as main:
        for _ in main.execute_script(SETUP):
            pass
        left, opened = [0], []

        def dropping(kind, name):
            del kind, name
            left[0] -= 1
            if left[0] == 0:
                drop_fork(main.opened.layout, "f")

        def run(requests):
            if not forks_of(main.opened.layout):
                main.execute("CREATE FORK f")
            left[0] = requests
            store.before = dropping
            try:
                opened.append(opens("s3://memory/db/forks/f"))
            finally:
                store.before = lambda kind, name: None
            return requests - left[0]

        for at in some(range(1, run(10_000) + 1)):
            run(at)
        assert opened[0] and not opened[1]
        assert opened[1:] == sorted(opened[1:]), "it opens only if it is dropped after the last check"


def test_a_writer_that_was_overtaken_creates_no_fork(tmp_path):
    with connect(tmp_path / "db") as main:
        for _ in main.execute_script(SETUP):
            pass
    old = Once(tmp_path / "db")
    Once(tmp_path / "db")
    with pytest.raises(Error) as fenced:
        create_fork(old.layout, old.log, "f")
    assert fenced.value.condition == "WRITER_FENCED"
    assert read_forks(old.layout) == []
    assert os.listdir(tmp_path / "db" / "forks") == []


def test_forks_are_created_while_compaction_runs(tmp_path):
    with connect(tmp_path / "db") as main:
        for _ in main.execute_script(SETUP):
            pass
        main.execute("ALTER SYSTEM SET retention = 0")
        stop = threading.Event()

        def compacting():
            while not stop.is_set():
                main.opened._compactor.run()

        worker = threading.Thread(target=compacting)
        worker.start()
        try:
            expected = {}
            for number in range(6):
                main.execute(f"UPDATE a SET v = v + {number}; INSERT INTO b VALUES ({number}, {number}); FLUSH")
                main.execute(f"CREATE FORK f{number}")
                expected[number] = rows(main)
        finally:
            stop.set()
            worker.join()
        for number, content in expected.items():
            with connect(f"{tmp_path}/db/forks/f{number}") as fork:
                assert rows(fork) == content
                change(fork, 1)

"""The files of a database: what holds for directories holds for object stores."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from tests.memorystore import URL, MemoryStore, use

from watersmeet.errors import Error
from watersmeet.objectstores import databasefiles, storage
from watersmeet.objectstores.base import ObjectPath, StoreProblem
from watersmeet.objectstores.databasefiles import cache


@pytest.fixture(params=["directory", "memory", "server"])
def place(request, tmp_path, monkeypatch):
    """An empty place."""
    if request.param == "directory":
        (tmp_path / "db").mkdir()
        return storage.path_at(tmp_path / "db")
    if request.param == "server":
        return storage.path_at(request.getfixturevalue("database_url"))
    use(monkeypatch, MemoryStore(), tmp_path / "cache")
    return storage.path_at(URL)


def test_a_name_is_given_once(place):
    storage.create_file(place / "a.json", b"first", durable=False)
    with pytest.raises(FileExistsError):
        storage.create_file(place / "a.json", b"second", durable=False)
    assert storage.read_file(place / "a.json") == b"first"
    storage.replace_file(place / "a.json", b"third", durable=False)
    assert storage.read_file(place / "a.json") == b"third"
    assert storage.exists(place / "a.json")
    assert not storage.exists(place / "b.json")


def test_of_many_that_create_one_succeeds(place):
    begin = threading.Barrier(8)
    made = []

    def create(number):
        begin.wait()
        try:
            storage.create_file(place / "a", f"{number}".encode(), durable=False)
        except FileExistsError:
            return
        made.append(number)

    threads = [threading.Thread(target=create, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (only,) = made
    assert storage.read_file(place / "a") == f"{only}".encode()


def test_names_are_those_of_the_directory_itself(place):
    storage.make_directory(place / "some")
    storage.make_directory(place / "something")
    for name in ("c", "a", "b"):
        storage.replace_file(place / "some" / name, b"x", durable=False)
    storage.replace_file(place / "something" / "z", b"x", durable=False)
    assert storage.list_names(place / "some") == ["a", "b", "c"]
    assert storage.remove_files(place / "some" / name for name in ("a", "b", "none")) >= 2
    storage.discard(place / "some" / "none")
    assert storage.list_names(place / "some") == ["c"]
    storage.remove_directory(place / "some")
    assert not storage.exists(place / "some" / "c")
    assert storage.list_names(place / "something") == ["z"]


def test_content_is_mapped_and_stays_when_it_is_deleted(place):
    storage.publish_content(place / "x-1.segment", [b"one", memoryview(b"two")], durable=False)
    mapped = storage.map_file(place / "x-1.segment")
    storage.remove_files([place / "x-1.segment"])
    assert mapped.to_pybytes() == b"onetwo"
    large = [bytes(range(256)) * 10_000, b"and the end"]
    storage.publish_content(place / "x-2.run", large, durable=False, direct=True)
    assert storage.map_file(place / "x-2.run").to_pybytes() == b"".join(large)
    with pytest.raises(FileNotFoundError):
        storage.map_file(place / "none.segment")
    with pytest.raises(FileNotFoundError):
        storage.read_file(place / "none.segment")


@pytest.mark.parametrize(
    ("given", "found"),
    [("s3://bucket/a/b", "s3://bucket/a/b"), ("gs://b/db/", "gs://b/db"), ("az://c//db", "az://c/db")],
)
def test_urls_name_databases(given, found):
    place = storage.path_at(given)
    assert isinstance(place, ObjectPath)
    assert str(place) == found


def test_urls_of_files_are_paths(tmp_path):
    assert storage.path_at(f"file://{tmp_path}/db") == tmp_path / "db"
    assert storage.path_at("some/db") == Path("some/db").absolute()


@pytest.mark.parametrize(
    ("url", "condition", "message"),
    [
        ("s3://bucket", "INVALID_PARAMETER", "s3://bucket does not name a database"),
        ("s3:///db", "INVALID_PARAMETER", "s3:///db does not name a database"),
        ("s3://bucket/a/../b", "INVALID_PARAMETER", "s3://bucket/a/../b does not name a database"),
        ("file://db", "INVALID_PARAMETER", "file://db is not a URL of a file"),
        ("ftp://host/db", "FEATURE_NOT_SUPPORTED", "databases at ftp:// are not supported"),
        ("s3:/bucket/db", "INVALID_PARAMETER", "s3:/bucket/db is neither a path nor a URL"),
        (Path("s3://bucket/db"), "INVALID_PARAMETER", "s3:/bucket/db is neither a path nor a URL"),
        ("file:/tmp/db", "INVALID_PARAMETER", "file:/tmp/db is neither a path nor a URL"),
        (
            "s3://bucket/a\tb",
            "INVALID_PARAMETER",
            r"a URL of a database has no control characters, as 's3://bucket/a\tb' has",
        ),
    ],
)
def test_other_urls_are_refused(url, condition, message):
    with pytest.raises(Error) as refused:
        storage.path_at(url)
    assert (refused.value.condition, refused.value.message) == (condition, message)


@pytest.mark.parametrize("fault", ["lost", "answer lost", "sent twice", "conflict", "delayed", "repeated"])
def test_what_became_of_an_object_is_read(tmp_path, monkeypatch, fault):
    store = use(monkeypatch, MemoryStore(fault, 1), tmp_path)
    place = storage.path_at(URL)
    storage.create_file(place / "a", b"mine", durable=True)
    store.deliver()
    assert storage.read_file(place / "a") == b"mine"


@pytest.mark.parametrize("fault", ["lost", "answer lost", "sent twice", "conflict", "delayed", "repeated"])
def test_an_object_of_another_stays_whatever_happens(tmp_path, monkeypatch, fault):
    store = use(monkeypatch, MemoryStore(fault, 2), tmp_path)
    place = storage.path_at(URL)
    storage.create_file(place / "a", b"theirs", durable=True)
    with pytest.raises(FileExistsError):
        storage.create_file(place / "a", b"mine", durable=True)
    store.deliver()
    assert storage.read_file(place / "a") == b"theirs"


def test_patience_ends(tmp_path, monkeypatch):
    class Away(MemoryStore):
        def get(self, name):
            self.requests.append(("get", name))
            raise StoreProblem("bucket x can't be reached", passes=True, hint="Wait.")

    store = use(monkeypatch, Away(), tmp_path)
    monkeypatch.setattr(databasefiles, "_FIRST_PAUSE_S", 0.01)
    monkeypatch.setenv("WATERSMEET_STORE_PATIENCE_SECONDS", "0.05")
    with pytest.raises(Error) as gone:
        storage.read_file(storage.path_at(URL) / "a")
    assert (gone.value.condition, gone.value.message, gone.value.hint) == (
        "DATABASE_ACCESS",
        "bucket x can't be reached",
        "Wait.",
    )
    assert len(store.requests) > 1


def test_what_does_not_pass_is_not_tried_again(tmp_path, monkeypatch):
    class Refusing(MemoryStore):
        def get(self, name):
            self.requests.append(("get", name))
            raise StoreProblem("access is refused", passes=False)

    store = use(monkeypatch, Refusing(), tmp_path)
    with pytest.raises(Error, match="access is refused"):
        storage.read_file(storage.path_at(URL) / "a")
    assert len(store.requests) == 1


def test_copies_are_read_in_place_of_objects(tmp_path, monkeypatch):
    store = use(monkeypatch, MemoryStore(), tmp_path)
    place = storage.path_at(URL)
    storage.publish_content(place / "a.segment", [b"x" * 100], durable=True)
    assert storage.map_file(place / "a.segment").size == 100
    assert [kind for kind, _ in store.requests] == ["put"]
    for copy in cache().directory.iterdir():
        copy.unlink()
    allocated = []
    monkeypatch.setattr(pa, "py_buffer", allocated.append)
    for _ in range(3):
        assert storage.map_file(place / "a.segment").size == 100
    assert not allocated, "what was fetched is not mapped"
    assert [kind for kind, _ in store.requests] == ["put", "get"]


def test_of_what_nobody_is_going_to_read_no_copy_is_kept_until_somebody_does(tmp_path, monkeypatch):
    store = use(monkeypatch, MemoryStore(), tmp_path)
    place = storage.path_at(URL)
    storage.publish_content(place / "a.run", [b"x" * 50, b"y" * 50], durable=True, direct=True)
    assert not storage.is_here(place / "a.run")
    for _ in range(2):
        assert storage.map_file(place / "a.run").to_pybytes() == b"x" * 50 + b"y" * 50
    assert [kind for kind, _ in store.requests] == ["put", "get"]


def test_copies_are_bounded_by_bytes(tmp_path, monkeypatch):
    use(monkeypatch, MemoryStore(), tmp_path)
    monkeypatch.setenv("WATERSMEET_CACHE_BYTES", "10000")
    place = storage.path_at(URL)
    for number in range(100):
        storage.publish_content(place / f"{number}.segment", [b"x" * 1000], durable=True)
        kept = [copy.stat().st_size for copy in cache().directory.iterdir()]
        assert sum(kept) <= 12_000
    assert kept
    names = {copy.name.rpartition("-")[2] for copy in cache().directory.iterdir()}
    assert "99.segment" in names
    assert "0.segment" not in names


def test_a_url_that_has_a_password_is_refused_without_it():
    with pytest.raises(Error, match="without a user or password") as refused:
        storage.path_at("s3://user:hidden@bucket/db")
    assert refused.value.condition == "INVALID_PARAMETER"
    assert "hidden" not in str(refused.value)


def test_a_full_disk_is_no_error(tmp_path, monkeypatch):
    def full(*args, **kwargs):
        raise OSError(errno.ENOSPC, "no space")

    use(monkeypatch, MemoryStore(), tmp_path)
    place = storage.path_at(URL)
    for name in ("writev", "posix_fallocate"):
        monkeypatch.setattr(f"watersmeet.objectstores.databasefiles.os.{name}", full)
    storage.publish_content(place / "a.segment", [b"abc"], durable=True)
    assert storage.map_file(place / "a.segment").to_pybytes() == b"abc"
    assert not list(cache().directory.iterdir())
    copy = cache().in_parts(place / "a.run", 1 << 20, 1 << 16)
    copy.add(3, b"x" * (1 << 16))
    assert copy.there(np.arange(5)).tolist() == [False, False, False, True, False]


def test_a_directory_of_copies_that_was_deleted_is_made_again(tmp_path, monkeypatch):
    store = use(monkeypatch, MemoryStore(), tmp_path / "copies")
    place = storage.path_at(URL)
    cache()
    for number in range(2):
        shutil.rmtree(tmp_path / "copies")
        storage.publish_content(place / f"{number}.segment", [b"abc"], durable=True)
        assert storage.is_here(place / f"{number}.segment")
        shutil.rmtree(tmp_path / "copies")
        cache().in_parts(place / f"{number}.run", 1 << 20, 1 << 16).add(3, b"x" * (1 << 16))
        again = cache().in_parts(place / f"{number}.run", 1 << 20, 1 << 16)
        assert again.there(np.arange(5)).tolist() == [False, False, False, True, False]
    assert stat.S_IMODE((tmp_path / "copies").stat().st_mode) == 0o700
    assert {kind for kind, _ in store.requests} == {"put"}


@pytest.mark.skipif(not hasattr(os, "posix_fallocate"), reason="the system has no such files")
def test_which_blocks_are_there_has_its_place_on_the_disk(tmp_path, monkeypatch):
    """It is read as it is mapped. A file system in memory that is full ends who reads a hole so."""
    use(monkeypatch, MemoryStore(), tmp_path)
    place = storage.path_at(URL)
    cache().in_parts(place / "a.run", 1 << 30, 1 << 16)
    (file,) = cache().directory.iterdir()
    assert (1 << 30) // (1 << 16) <= file.stat().st_blocks * 512 < 1 << 20


def test_a_directory_that_can_not_keep_copies_is_named(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("WATERSMEET_CACHE_DIR", str(tmp_path / "file"))
    with pytest.raises(Error, match=f"copies of objects can't be kept in {tmp_path}/file") as refused:
        cache()
    assert refused.value.condition == "DATABASE_ACCESS"
    assert "WATERSMEET_CACHE_DIR" in refused.value.hint


def test_copies_of_another_database_of_that_name_are_not_read(tmp_path, monkeypatch):
    store = use(monkeypatch, MemoryStore(), tmp_path)
    first, second = (replace(storage.path_at(URL), space=space) / "a.parquet" for space in ("first", "second"))
    storage.publish_content(first, [b"first"], durable=True)
    store.objects["db/a.parquet"] = b"second"
    assert storage.map_file(second).to_pybytes() == b"second"
    assert storage.map_file(first).to_pybytes() == b"first"


def test_files_are_published_beside_what_their_writer_does(tmp_path, monkeypatch):
    """Two requests meet, which the first would never do if it were waited for; `finish` waits for both."""
    store = use(monkeypatch, MemoryStore(), tmp_path)
    both = threading.Barrier(2)
    store.before = lambda kind, name: both.wait(60) and None
    publisher = storage.Publisher(durable=False)
    segments = storage.path_at(URL) / "segments"
    with databasefiles.counting() as requests:
        publisher.publish(segments / "first", [b"a", b"b"])
        publisher.publish(segments / "second", [b"c"])
        publisher.finish()
    assert store.objects == {"db/segments/first": b"ab", "db/segments/second": b"c"}
    assert requests.count == 2
    assert storage.is_here(segments / "first")


def test_what_waits_for_a_store_is_bounded_by_bytes(tmp_path, monkeypatch):
    store = use(monkeypatch, MemoryStore(), tmp_path)
    monkeypatch.setattr(storage, "_WAITING_BYTES", 2)
    publisher = storage.Publisher(durable=False)
    segments = storage.path_at(URL) / "segments"
    for number in range(10):
        publisher.publish(segments / f"{number}", [b"xx"])
        assert len(store.objects) >= number
    publisher.finish()
    assert len(store.objects) == 10


def test_what_stays_in_memory_in_any_case_may_wait(tmp_path, monkeypatch):
    """Three large files wait for the fourth, which is given without any being done."""
    store = use(monkeypatch, MemoryStore(), tmp_path)
    monkeypatch.setattr(storage, "_WAITING_BYTES", 2)
    all_given = threading.Event()
    store.before = lambda kind, name: all_given.wait(60) and None
    publisher = storage.Publisher(durable=False)
    segments = storage.path_at(URL) / "segments"
    for number in range(3):
        publisher.publish(segments / f"{number}", [b"x" * 100], held=True)
    publisher.publish(segments / "other", [b"xx"])
    assert not store.objects
    all_given.set()
    publisher.finish()
    assert len(store.objects) == 4


def test_a_file_that_is_not_published_is_told_at_the_end(tmp_path, monkeypatch):
    store = use(monkeypatch, MemoryStore(), tmp_path)

    def refuse(kind, name):
        if name.endswith("bad"):
            raise StoreProblem("no access", passes=False)

    store.before = refuse
    publisher = storage.Publisher(durable=False)
    segments = storage.path_at(URL) / "segments"
    for name in ("first", "bad", "last"):
        publisher.publish(segments / name, [b"x"])
    with pytest.raises(Error, match="no access"):
        publisher.finish()

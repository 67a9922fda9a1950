"""Files of HDFS as objects: against a real NameNode and DataNode."""

from __future__ import annotations

import threading

import hdfs_native
import pytest

from watersmeet.objectstores import storage
from watersmeet.objectstores.base import Location, ObjectReplacedError, StoreProblem
from watersmeet.objectstores.stores import HdfsStore, ObjectFile, open_store

pytestmark = pytest.mark.slow  # HDFS starts in ten seconds


@pytest.fixture
def place(hdfs):
    return storage.path_at(f"{hdfs}/db")


@pytest.fixture
def store(place):
    return open_store(place.location)


def names_of(client, directory):
    return sorted(s.path.rpartition("/")[2] for s in client.list_status(f"/{directory}", recursive=True) if not s.isdir)


def test_one_of_several_that_create_succeeds(place, store):
    name = (place / "a/b.txt").path
    assert store.create(name, b"first")
    assert not store.create(name, b"second")
    assert store.get(name) == b"first"
    store.put(name, b"third")
    client = hdfs_native.Client(place.location.url)
    assert client.read(f"/{name}").read() == b"third"
    assert names_of(client, place.path) == ["b.txt"]


def test_of_many_at_once_that_create_one_succeeds(place, store):
    begin, made = threading.Barrier(6), []

    def create(number):
        begin.wait()
        if store.create((place / "a").path, f"{number}".encode()):
            made.append(number)

    threads = [threading.Thread(target=create, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert store.get((place / "a").path) == f"{made[0]}".encode()
    assert len(made) == 1
    assert names_of(hdfs_native.Client(place.location.url), place.path) == ["a"]


def test_names_are_listed_in_order_from_a_place(place, store):
    wanted = ["a-b", "a.b", "a/b", "a/b.c/d", "a/b/c", "a0", "b"]
    client = hdfs_native.Client(place.location.url)
    for name in wanted:
        if name != "a/b":  # in HDFS a name is of a file or of a directory
            client.create(f"/{place.path}/{name}").close()
    wanted.remove("a/b")
    root = f"{place.path}/"
    assert [name.removeprefix(root) for name, _ in store.list(place.path)] == sorted(wanted)
    for after in [*wanted, "a", "a/", "a/b.", "c"]:
        found = [name.removeprefix(root) for name, _ in store.list(place.path, after=root + after)]
        assert found == sorted(name for name in wanted if name > after)
    store.delete([root + name for name in ("none", "b", "a/b/c", "none/none")])
    assert [n.removeprefix(root) for n, _ in store.list(place.path)] == ["a-b", "a.b", "a/b.c/d", "a0"]
    assert list(store.list(f"{place.path}/none")) == []


def test_a_range_is_of_the_content_that_was_asked_for(place, store):
    name = (place / "x").path
    store.put(name, b"0123456789")
    was = store.stat(name)
    assert was.size_bytes == 10
    assert store.range(name, 2, 5, was.etag) == b"234"
    with ObjectFile(place.location, name, 10, was.etag) as file:
        assert file.read() == b"0123456789"
    store.put(name, b"another content")
    with pytest.raises(ObjectReplacedError):
        store.range(name, 2, 5, was.etag)
    store.delete([name])
    for missing in (lambda: store.range(name, 2, 5, was.etag), lambda: store.get(name), lambda: store.stat(name)):
        with pytest.raises(FileNotFoundError):
            missing()
    store.put(name, b"")
    assert store.get(name) == b""


def test_what_an_attempt_left_is_no_object_and_goes(place, store):
    client = hdfs_native.Client(place.location.url)
    left = client.create(f"/{place.path}/.unfinished-x-0123")
    left.write(b"half of it")
    left.close()
    store.put((place / "x").path, b"whole")
    assert [name for name, _ in store.list(place.path)] == [(place / "x").path]
    assert storage.remove_temporaries(place) == 1
    assert storage.remove_temporaries(place) == 0
    assert names_of(client, place.path) == ["x"]


def test_a_directory_that_the_user_may_not_write(place, store, monkeypatch):
    client = hdfs_native.Client(place.location.url)
    client.mkdirs(f"/{place.path}", 0o700, True)
    monkeypatch.setenv("HADOOP_USER_NAME", "somebody-else")
    other = HdfsStore(place.location)
    for call in (lambda: other.put((place / "x").path, b"1"), lambda: other.create((place / "x").path, b"1")):
        with pytest.raises(StoreProblem, match=r'access to HDFS "127\.0\.0\.1:\d+" is refused') as problem:
            call()
        assert not problem.value.passes
        assert "Permission denied" in str(problem.value)
        assert "\n" not in str(problem.value)


def test_a_name_node_that_is_away_passes(own_hdfs):
    store = open_store(Location(own_hdfs.url))
    store.put("a/x", b"1")
    own_hdfs.kill()
    with pytest.raises(StoreProblem, match="can't be reached") as problem:
        store.get("a/x")
    assert problem.value.passes
    own_hdfs.start()
    assert store.get("a/x") == b"1"

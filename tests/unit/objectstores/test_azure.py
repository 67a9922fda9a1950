"""Objects of a container: against a real server of Azure's protocol."""

from __future__ import annotations

import base64
from dataclasses import replace

import pytest
from scripts.servers.azurite import ACCOUNT, KEY

from watersmeet.objectstores.base import Location, ObjectReplacedError, StoreProblem
from watersmeet.objectstores.stores import ObjectFile, open_store


def location_of(container, key=KEY) -> Location:
    settings = {"account_name": ACCOUNT, "account_key": key, "endpoint": container.server.url}
    return Location(f"az://{container.name}", tuple(sorted(settings.items())))


@pytest.fixture
def store(container):
    return open_store(location_of(container))


def test_one_of_several_that_create_succeeds(container, store):
    assert store.create("a/b.txt", b"first")
    assert not store.create("a/b.txt", b"second")
    assert store.get("a/b.txt") == container.get("a/b.txt") == b"first"
    store.put("a/b.txt", b"third")
    assert container.get("a/b.txt") == b"third"


def test_names_are_listed_in_order_from_a_place(store):
    for i in range(30):
        store.put(f"many/{i:02}", b"x")
    store.put("manyfold", b"no directory of that name")
    names = [name for name, _ in store.list("many")]
    assert names == [f"many/{i:02}" for i in range(30)]
    assert [name for name, _ in store.list("many", after="many/27")] == ["many/28", "many/29"]
    store.delete(["many/none", *names[:20], "many/none"])
    assert [name for name, _ in store.list()] == [*names[20:], "manyfold"]


def test_a_range_is_of_the_content_that_was_asked_for(container, store):
    store.put("x", b"0123456789")
    was = store.stat("x")
    assert was.size_bytes == 10
    assert store.range("x", 2, 5, was.etag) == b"234"
    with ObjectFile(location_of(container), "x", 10, was.etag) as file:
        assert file.read() == b"0123456789"
    store.put("x", b"abcdefghij")
    with pytest.raises(ObjectReplacedError):
        store.range("x", 2, 5, was.etag)
    store.delete(["x"])
    for missing in (lambda: store.range("x", 2, 5, was.etag), lambda: store.get("x"), lambda: store.stat("x")):
        with pytest.raises(FileNotFoundError):
            missing()


def test_a_missing_container_is_named(container):
    store = open_store(replace(location_of(container), url="az://not-there"))
    for call in (lambda: list(store.list()), lambda: store.put("x", b""), lambda: store.create("x", b"")):
        with pytest.raises(StoreProblem, match='there is no container "not-there"') as problem:
            call()
        assert not problem.value.passes


def test_a_wrong_key_is_said_and_never_shown(container):
    key = base64.b64encode(b"x" * 64).decode()
    with pytest.raises(StoreProblem, match=r"access to container .* is refused") as problem:
        open_store(location_of(container, key)).put("x", b"1")
    assert key not in str(problem.value.as_error())
    assert not problem.value.passes

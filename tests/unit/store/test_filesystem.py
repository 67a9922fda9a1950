"""File systems that can't hold a database are refused by name when it is opened for writing."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil

import pytest
from tests.memorystore import URL, MemoryStore, use

import watersmeet
from watersmeet.errors import Error
from watersmeet.store import layout as filesystem
from watersmeet.store.layout import Layout, check_storage
from watersmeet.system import files


class Os:
    """The module `os` with one call changed."""

    def __init__(self, **changed):
        self._changed = changed

    def __getattr__(self, name):
        return self._changed.get(name) or getattr(os, name)


def refused(*_args, **_options):
    raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP))


def replacing_link(one, other):
    shutil.copy(one, other)


def copying_rename(one, other):
    shutil.copy(one, other)


def lost_rename(one, other):
    os.unlink(one)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"link": refused}, "hard link.*"),
        ({"link": replacing_link}, "hard link"),
        ({"replace": refused}, "rename"),
        ({"replace": copying_rename}, "rename"),
        ({"replace": lost_rename}, "rename"),
    ],
)
def test_a_file_system_that_does_something_else_is_refused(tmp_path, monkeypatch, changed, words):
    layout = Layout(tmp_path / "x")
    before = sorted(layout.root.rglob("*"))
    monkeypatch.setattr(filesystem, "os", Os(**changed))
    with pytest.raises(Error, match=f"can't hold a database: .*{words}") as raised:
        check_storage(layout)
    assert raised.value.condition == "FILE_SYSTEM_UNSUITABLE"
    assert sorted(layout.root.rglob("*")) == before


@pytest.mark.parametrize("flock", [refused, lambda *args: None])
def test_a_file_system_without_locks_is_refused(tmp_path, monkeypatch, flock):
    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.raises(watersmeet.Error, match="lock on a file") as raised:
        watersmeet.connect(tmp_path / "x", runtime="inprocess")
    assert raised.value.condition == "FILE_SYSTEM_UNSUITABLE"


def test_on_databricks_the_hint_is_a_url(tmp_path, monkeypatch):
    layout = Layout(tmp_path / "x")
    monkeypatch.setattr(filesystem, "os", Os(link=refused))
    monkeypatch.setattr(filesystem, "_OF_DATABRICKS", (str(tmp_path),))
    with pytest.raises(Error) as raised:
        check_storage(layout)
    assert raised.value.hint.startswith("Give the URL of the folder's store")


def test_a_directory_that_cannot_be_flushed_is_refused(tmp_path, monkeypatch):
    layout = Layout(tmp_path / "x")
    monkeypatch.setattr(files, "os", Os(fsync=refused))
    with pytest.raises(Error, match="directory can't be flushed") as raised:
        check_storage(layout)
    assert raised.value.condition == "FILE_SYSTEM_UNSUITABLE"
    layout.durable = False
    check_storage(layout)


def test_nothing_is_left_behind(tmp_path):
    layout = Layout(tmp_path / "x")
    before = sorted(layout.root.rglob("*"))
    check_storage(layout)
    assert sorted(layout.root.rglob("*")) == before


def test_readers_need_none_of_it(tmp_path, monkeypatch):
    watersmeet.connect(tmp_path / "x", runtime="inprocess").close()
    monkeypatch.setattr(filesystem, "os", Os(link=refused))
    watersmeet.connect(tmp_path / "x", read_only=True).close()


class EndedError(BaseException):
    """The process is gone."""


def test_a_start_that_ends_at_any_request_leaves_no_objects(tmp_path, monkeypatch):
    """Whatever has a name of its own each time would stay for ever."""
    store = use(monkeypatch, MemoryStore(), tmp_path)
    layout = Layout(URL)
    for last in range(6):
        begin = len(store.requests)

        def before(kind, name, end=begin + last):
            if len(store.requests) >= end:
                raise EndedError

        store.before = before
        with contextlib.suppress(EndedError):
            check_storage(layout)
    store.before = lambda kind, name: None
    check_storage(layout)
    assert set(store.objects) == {"db/FORMAT", "db/PROBE"}

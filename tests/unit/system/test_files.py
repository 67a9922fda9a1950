"""Files that are written past the machine's cache, and what is written beside what its writer does."""

from __future__ import annotations

import errno
import fcntl
import itertools
import os
import threading

import pytest

from watersmeet.errors import Error
from watersmeet.objectstores import storage
from watersmeet.system import files

BLOCK = files._DIRECT_BYTES


class Writes:
    """Notes each write to a file: how many bytes, and whether past the machine's cache. refused: what that raises."""

    def __init__(self, monkeypatch, refused=None):
        self.seen = []
        self._refused = refused
        self._real = os.write, os.writev
        monkeypatch.setattr(files.os, "write", self._write)
        monkeypatch.setattr(files.os, "writev", self._writev)

    def _write(self, handle, block):
        if self._refused is not None:
            raise OSError(self._refused, os.strerror(self._refused))
        self.seen.append((len(block), self._is_direct(handle)))
        return self._real[0](handle, block)

    def _writev(self, handle, pieces):
        self.seen.append((sum(map(len, pieces)), self._is_direct(handle)))
        return self._real[1](handle, pieces)

    @staticmethod
    def _is_direct(handle):
        return bool(fcntl.fcntl(handle, fcntl.F_GETFL) & getattr(os, "O_DIRECT", 0))


def can_write_directly(directory):
    """Whether the file system can: some in memory can't."""
    handle = os.open(directory / "probe", os.O_WRONLY | os.O_CREAT)
    try:
        files._set_direct(handle, wanted=True)
        return Writes._is_direct(handle)
    finally:
        os.close(handle)


@pytest.mark.parametrize("size", [0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 12_345])
def test_what_is_written_past_the_cache_is_what_was_given(tmp_path, size):
    data = os.urandom(size)
    cuts = [0, size // 7, size // 7, size // 2, size]
    pieces = [memoryview(data)[a:b] for a, b in itertools.pairwise(cuts)]
    files.publish_content(tmp_path / "file", pieces, durable=True, direct=True)
    assert (tmp_path / "file").read_bytes() == data
    assert os.listdir(tmp_path) == ["file"]


def test_whole_blocks_alone_are_written_past_the_cache(tmp_path, monkeypatch):
    if not can_write_directly(tmp_path):
        pytest.skip("this file system can't write past the machine's cache")
    writes = Writes(monkeypatch)
    files.publish_content(tmp_path / "file", [b"x" * (2 * BLOCK + 5)], durable=True, direct=True)
    assert writes.seen == [(BLOCK, True), (BLOCK, True), (5, False)]


@pytest.mark.parametrize("size", [BLOCK, 2 * BLOCK + 5])
def test_a_file_system_that_wants_other_blocks_gets_them_through_the_cache(tmp_path, monkeypatch, size):
    data = os.urandom(size)
    writes = Writes(monkeypatch, refused=errno.EINVAL)
    files.publish_content(tmp_path / "file", [data], durable=True, direct=True)
    assert (tmp_path / "file").read_bytes() == data
    assert not any(direct for _, direct in writes.seen)


def test_a_full_disk_leaves_no_part_of_a_file(tmp_path, monkeypatch):
    Writes(monkeypatch, refused=errno.ENOSPC)
    with pytest.raises(Error) as raised:
        files.publish_content(tmp_path / "file", [b"x" * BLOCK], durable=True, direct=True)
    assert raised.value.condition == "DISK_FULL"
    assert os.listdir(tmp_path) == []


def test_large_files_of_a_directory_are_published_beside_what_their_writer_does(tmp_path, monkeypatch):
    """Two writes meet, which the first would never do if it were waited for."""
    both = threading.Barrier(2)
    publish = files.publish_content

    def meeting(path, pieces, **options):
        both.wait(60)
        publish(path, pieces, **options)

    monkeypatch.setattr(files, "publish_content", meeting)
    publisher = storage.Publisher(durable=False)
    contents = {name: name.encode() * storage._SOON_BYTES for name in "ab"}
    for name, content in contents.items():
        publisher.publish(tmp_path / name, [content])
    publisher.finish()
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == contents


def test_small_files_of_a_directory_are_there_at_once(tmp_path):
    publisher = storage.Publisher(durable=False)
    publisher.publish(tmp_path / "a", [b"abc"])
    assert (tmp_path / "a").read_bytes() == b"abc"
    publisher.finish()

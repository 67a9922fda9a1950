"""Run files in parts: little is fetched, all is checked, and copies are shared and may be lost at any time."""

from __future__ import annotations

import numpy as np
import pytest
from tests.memorystore import URL, MemoryStore, forget_copies, use

from watersmeet.errors import Error
from watersmeet.objectstores import databasefiles, storage
from watersmeet.objectstores.databasefiles import cache
from watersmeet.store.segmentfiles import SegmentFiles
from watersmeet.store.segments import BLOCK_BYTES, SegmentWriter, epoch_prefix

CONTENT = np.random.default_rng(7).integers(0, 256, (40 * BLOCK_BYTES) + 1000, np.uint8).tobytes()


@pytest.fixture
def store(tmp_path, monkeypatch):
    return use(monkeypatch, MemoryStore(), tmp_path)


@pytest.fixture
def ref(store):
    """A run file that another machine wrote."""
    found = write()
    forget_copies()
    store.requests.clear()
    return found


def write(content=CONTENT, segments=None):
    writer = SegmentWriter(segments or directory(), epoch_prefix(3, 2, 1, 0), durable=False)
    found = writer.add([content], 5)
    assert writer.finish() == ""
    return found


def test_a_server_sends_ranges(database_url):
    segments = storage.path_at(database_url) / "segments"
    ref = write(segments=segments)
    (copy,) = cache().directory.glob(f"*{ref.file}")
    copy.unlink()
    (parts,) = SegmentFiles(segments).parts([ref])
    with databasefiles.counting() as requests:
        ranges = [(7, 70_000), (30 * BLOCK_BYTES, 31 * BLOCK_BYTES)]
        assert read(parts, *ranges) == [CONTENT[b:e] for b, e in ranges]
    assert (requests.count, requests.misses) == (2, 2)
    assert read(parts, (0, len(CONTENT))) == [CONTENT]


def directory():
    return storage.path_at(URL) / "segments"


def opened(ref):
    (parts,) = SegmentFiles(directory()).parts([ref])
    return parts


def read(parts, *ranges):
    parts.fetch([(parts, np.array(ranges))])
    return [parts.buffer.slice(begin, end - begin).to_pybytes() for begin, end in ranges]


def the_object(store):
    (name,) = store.objects
    return name


def test_only_the_blocks_that_are_needed_are_fetched(store, ref):
    parts = opened(ref)
    assert sorted(kind for kind, _ in store.requests) == ["range", "range"]
    assert store.read_bytes < 5 * BLOCK_BYTES
    before = store.read_bytes
    ranges = [(10, 20), (10 * BLOCK_BYTES + 5, 10 * BLOCK_BYTES + 7), (20 * BLOCK_BYTES - 1, 20 * BLOCK_BYTES + 1)]
    assert parts.missing_bytes(np.array(ranges)) == 3 * BLOCK_BYTES
    with databasefiles.counting() as requests:
        assert read(parts, *ranges) == [CONTENT[b:e] for b, e in ranges]
        assert (requests.hits, requests.misses, requests.fetched_bytes) == (1, 3, 3 * BLOCK_BYTES)
        assert read(parts, *ranges) == [CONTENT[b:e] for b, e in ranges]
        assert (requests.count, requests.hits, requests.misses) == (2, 5, 3)
    assert store.read_bytes - before == 3 * BLOCK_BYTES
    assert parts.missing_bytes(np.array(ranges)) == 0


def test_blocks_that_are_close_come_with_one_request(store, ref):
    parts = opened(ref)
    store.requests.clear()
    read(parts, (BLOCK_BYTES, BLOCK_BYTES + 1), (4 * BLOCK_BYTES, 4 * BLOCK_BYTES + 1), (20 * BLOCK_BYTES,) * 2)
    assert len(store.requests) == 1
    assert parts.missing_bytes(np.array([[BLOCK_BYTES, 5 * BLOCK_BYTES]])) == 0


def test_all_of_it_is_the_blob(store, ref):
    parts = opened(ref)
    assert read(parts, (0, len(CONTENT))) == [CONTENT]
    assert not [kind for kind, _ in store.requests if kind != "range"]


@pytest.mark.parametrize("seed", range(10))
def test_any_ranges(store, ref, seed):
    rng = np.random.default_rng(seed)
    parts = opened(ref)
    for _ in range(10):
        ranges = np.sort(rng.integers(0, len(CONTENT), (rng.integers(1, 4), 2)), axis=1).tolist()
        assert read(parts, *ranges) == [CONTENT[b:e] for b, e in ranges]
        if rng.random() < 0.3:
            parts = opened(ref)
        if rng.random() < 0.2:
            forget_copies()


def test_other_processes_need_not_fetch_again(store, ref):
    read(opened(ref), (0, len(CONTENT)))
    store.requests.clear()
    assert read(opened(ref), (0, len(CONTENT))) == [CONTENT]
    assert not store.requests


def test_what_this_machine_wrote_is_here(store):
    ref = write()
    files = SegmentFiles(directory())
    assert files.parts([ref]) == [None]
    assert files.read_blob(ref).to_pybytes() == CONTENT
    assert not [kind for kind, _ in store.requests if kind != "put"]


def test_files_of_a_directory_are_here(tmp_path):
    ref = write(segments=tmp_path)
    assert SegmentFiles(tmp_path).parts([ref]) == [None]


def test_a_damaged_block_is_named_when_it_is_needed(store, ref):
    name = the_object(store)
    damaged = bytearray(store.objects[name])
    damaged[20 * BLOCK_BYTES + 100] ^= 1
    store.objects[name] = bytes(damaged)
    parts = opened(ref)
    assert read(parts, (10 * BLOCK_BYTES, 20 * BLOCK_BYTES)) == [CONTENT[10 * BLOCK_BYTES : 20 * BLOCK_BYTES]]
    for _ in range(2):
        with pytest.raises(Error, match=f"{ref.file} is damaged: a checksum") as found:
            read(parts, (20 * BLOCK_BYTES, 20 * BLOCK_BYTES + 1))
        assert found.value.condition == "STATE_DAMAGED"


@pytest.mark.parametrize("damage", [lambda b: b[:-1], lambda b: b[:-100] + b"x" * 100, lambda b: b[1:] + b"x"])
def test_a_damaged_end_is_named(store, ref, damage):
    name = the_object(store)
    store.objects[name] = damage(store.objects[name])
    with pytest.raises(Error, match=ref.file) as found:
        opened(ref)
    assert found.value.condition == "STATE_DAMAGED"


def test_a_missing_file_is_named(store, ref):
    store.objects.clear()
    with pytest.raises(Error, match=ref.file) as found:
        opened(ref)
    assert found.value.condition == "STATE_DAMAGED"


def test_a_damaged_copy_is_fetched_again(store, ref):
    read(opened(ref), (0, len(CONTENT)))
    (copy,) = cache().directory.iterdir()
    data = bytearray(copy.read_bytes())
    data[5 * BLOCK_BYTES + 3] ^= 1
    data[len(CONTENT) + 3] ^= 1
    copy.write_bytes(bytes(data))
    store.requests.clear()
    assert read(opened(ref), (0, len(CONTENT))) == [CONTENT]
    assert store.requests
    store.requests.clear()
    assert read(opened(ref), (0, len(CONTENT))) == [CONTENT]
    assert not store.requests


def test_a_copy_that_is_deleted_meanwhile_goes_on_in_memory(store, ref):
    parts = opened(ref)
    forget_copies()
    assert read(parts, (BLOCK_BYTES, 3 * BLOCK_BYTES)) == [CONTENT[BLOCK_BYTES : 3 * BLOCK_BYTES]]
    store.requests.clear()
    assert read(parts, (BLOCK_BYTES, 3 * BLOCK_BYTES)) == [CONTENT[BLOCK_BYTES : 3 * BLOCK_BYTES]]
    assert not store.requests


def test_without_a_disk_blocks_are_in_memory(store, ref, monkeypatch):
    def full(*_):
        raise OSError(28, "no space")

    monkeypatch.setattr("watersmeet.objectstores.databasefiles.os.pwrite", full)
    assert read(opened(ref), (0, len(CONTENT))) == [CONTENT]
    monkeypatch.undo()


def test_copies_count_by_what_they_have(store, ref, monkeypatch):
    """A file with holes takes no more than its blocks."""
    parts = opened(ref)
    copies = cache()
    monkeypatch.setattr(copies, "_max_bytes", 20 * BLOCK_BYTES)
    assert copies._make_room() > 10 * BLOCK_BYTES
    read(parts, (0, len(CONTENT)))
    copies._make_room()
    assert not list(copies.directory.iterdir())

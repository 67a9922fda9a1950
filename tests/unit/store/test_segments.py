"""Segments: what was put in comes out, mapped; what is missing, short or damaged is named."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from watersmeet.errors import Error
from watersmeet.store import changes
from watersmeet.store.changes import decode_change, encode_change
from watersmeet.store.segmentfiles import SegmentFiles
from watersmeet.store.segments import (
    BLOCK_BYTES,
    DIRECT_BYTES,
    OWN_FILE_BYTES,
    SegmentWriter,
    block_checksum,
    block_checksums,
    epoch_prefix,
)
from watersmeet.system import files

BIG = np.arange(OWN_FILE_BYTES, dtype=np.uint8).tobytes()


def write(directory, blobs=(b"first", b"", b"third" * 20), prefix=epoch_prefix(3, 2, 1, 0)):
    writer = SegmentWriter(directory, prefix, durable=False)
    refs = [writer.add([b], i) for i, b in enumerate(blobs)]
    name = writer.finish({"1/0": {"runs": refs}, "1/1": {}})
    return name, [r.within(name) for r in refs]


def test_blobs_come_back_aligned(tmp_path):
    name, refs = write(tmp_path, (b"first", b"", b"third" * 20, BIG))
    files = SegmentFiles(tmp_path)
    assert [files.read_blob(r).to_pybytes() for r in refs] == [b"first", b"", b"third" * 20, BIG]
    assert all(files.read_blob(r).address % 64 == 0 for r in refs)
    assert [r.rows for r in refs] == [0, 1, 2, 3]
    assert refs[3].file.endswith(".run")
    assert refs[3].offset_bytes == 0
    assert files.read_section(name, "1/0")["runs"][3][0] == refs[3].file
    assert files.referenced_files(name, "1/0") == {name, refs[3].file}
    assert files.referenced_files(name, "1/1") == {name}
    with pytest.raises(Error, match="has nothing of 1/2"):
        files.read_section(name, "1/2")
    for ref in refs:
        files.check(ref)


def test_what_no_task_reads_is_written_past_the_cache_if_it_is_large(tmp_path, monkeypatch):
    asked = {}
    publish = files.publish_content

    def noting(path, pieces, *, durable, direct):
        asked[path.name] = direct
        publish(path, pieces, durable=durable, direct=direct)

    monkeypatch.setattr(files, "publish_content", noting)
    large = np.arange(DIRECT_BYTES, dtype=np.uint8).tobytes()
    writer = SegmentWriter(tmp_path, epoch_prefix(3, 2), durable=False)
    unread, smaller, read = (
        writer.add([blob], 1, unread=unread).file
        for blob, unread in ((large, True), (large[1:], True), (large + b"!", False))
    )
    writer.finish()
    assert asked == {unread: True, smaller: False, read: False}


def test_same_content_same_name(tmp_path):
    assert write(tmp_path)[0] == write(tmp_path)[0]
    assert write(tmp_path)[0] != write(tmp_path, (b"other",))[0]
    assert write(tmp_path)[0].startswith("0000000003-2-1-0-")
    assert len(list(tmp_path.iterdir())) == 2


def test_what_was_added_and_dropped_leaves_no_file_unless_something_else_is_the_same(tmp_path):
    writer = SegmentWriter(tmp_path, epoch_prefix(3, 2), durable=False)
    first, second, other = (writer.add([b[:7], memoryview(b)[7:]], 1) for b in (BIG, BIG, BIG[:-1] + b"!"))
    assert first == second != other
    writer.drop(first)
    writer.wait()
    assert {p.name for p in tmp_path.iterdir()} == {second.file, other.file}
    writer.drop(second)
    assert {p.name for p in tmp_path.iterdir()} == {other.file}


def test_a_file_may_be_deleted_while_it_is_read(tmp_path):
    name, refs = write(tmp_path)
    files = SegmentFiles(tmp_path)
    blob = files.read_blob(refs[2])
    (tmp_path / name).unlink()
    files.close()
    assert blob.to_pybytes() == b"third" * 20
    with pytest.raises(Error, match="missing"):
        files.read_blob(refs[2])


def test_maps_that_nobody_reads_any_more_are_let_go(tmp_path):
    files = SegmentFiles(tmp_path)
    names = [write(tmp_path, (bytes([i]),))[1][0] for i in range(3)]
    for now, ref in enumerate(names):
        files.age(now, most=2)
        files.read_blob(ref)
    files.age(3, most=2)
    files.read_blob(names[1])
    assert len(files._maps) == 2
    files.age(5, most=2)
    assert [files._maps.get(ref.file) is not None for ref in names] == [False, True, False]
    files.age(4, most=2)  # another thread's earlier moment changes nothing
    assert files.read_blob(names[0]).to_pybytes() == b"\0"


def test_the_cache_lets_old_maps_go(tmp_path):
    files = SegmentFiles(tmp_path, max_files=3)
    blobs = [files.read_blob(write(tmp_path, (b"%d" % i,))[1][0]) for i in range(10)]
    assert len(files._maps) == 3
    assert [b.to_pybytes() for b in blobs] == [b"%d" % i for i in range(10)]
    files = SegmentFiles(tmp_path, max_mapped_bytes=1)
    files.read_blob(write(tmp_path)[1][0])
    files.read_blob(write(tmp_path, (b"x",))[1][0])
    assert len(files._maps) == 1


def test_maps_are_bounded_by_bytes(tmp_path):
    """A small file takes a page, and its entries beside it: so many of them are no more than a few large ones."""
    files = SegmentFiles(tmp_path, max_mapped_bytes=200_000)
    for i in range(100):
        files.read_blob(write(tmp_path, (b"%d" % i,) * 10)[1][0])
        assert files.mapped_bytes <= 200_000
    assert 10 <= len(files._maps) <= 20


def test_a_map_keeps_no_copy_of_its_footer(tmp_path):
    name, _ = write(tmp_path)
    files = SegmentFiles(tmp_path)
    files.read_section(name, "1/0")
    mapped = files._maps.get(name)
    assert mapped.buffer.address <= mapped.footer.address < mapped.buffer.address + mapped.buffer.size


DAMAGES = {
    "missing": None,
    "empty": lambda b: b"",
    "short": lambda b: b[:100],
    "truncated": lambda b: b[:-1],
    "footer": lambda b: b.replace(b"runs", b"runt"),
    "blob": lambda b: b.replace(b"first", b"worst"),
    "longer": lambda b: b + b"\0",
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("condition", ["STATE_DAMAGED", "DATABASE_DAMAGED"])
def test_a_damaged_segment_is_named(tmp_path, damage, condition):
    """Features: a missing or truncated state file is an error by name, never silently empty."""
    name, refs = write(tmp_path)
    path = tmp_path / name
    if DAMAGES[damage] is None:
        path.unlink()
    else:
        path.write_bytes(DAMAGES[damage](path.read_bytes()))
    for _ in range(2):
        with pytest.raises(Error, match=name) as raised:
            SegmentFiles(tmp_path).read_blob(refs[0], condition)
        assert raised.value.condition == condition


@pytest.mark.parametrize("damage", [None, lambda b: b[:-1], lambda b: b + b"\0", lambda b: b""])
def test_a_damaged_run_is_named(tmp_path, damage):
    _, refs = write(tmp_path, (BIG,))
    path = tmp_path / refs[0].file
    if damage is None:
        path.unlink()
    else:
        path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(Error, match=refs[0].file) as raised:
        SegmentFiles(tmp_path).read_blob(refs[0])
    assert raised.value.condition == "STATE_DAMAGED"


def test_a_run_is_checked_on_request(tmp_path):
    _, refs = write(tmp_path, (BIG,))
    path = tmp_path / refs[0].file
    path.write_bytes(b"x" + path.read_bytes()[1:])
    files = SegmentFiles(tmp_path)
    files.read_blob(refs[0])
    with pytest.raises(Error, match="a checksum does not match its content"):
        files.check(refs[0])


def test_only_the_blocks_of_a_blob_are_checked(tmp_path):
    """The rest of a segment may be damaged: who needs it is told."""
    name, refs = write(tmp_path, tuple(bytes([i]) * BLOCK_BYTES for i in range(6)))
    data = bytearray((tmp_path / name).read_bytes())
    data[refs[3].offset_bytes] ^= 1
    (tmp_path / name).write_bytes(data)
    files = SegmentFiles(tmp_path)
    damaged = set()
    for i, ref in enumerate(refs):
        try:
            assert files.read_blob(ref).to_pybytes() == bytes([i]) * BLOCK_BYTES
        except Error:
            damaged.add(i)
    assert damaged == {2, 3}  # blobs begin after the header: the third ends in the block that is damaged


@pytest.mark.parametrize("sizes", [[], [1], [BLOCK_BYTES], [BLOCK_BYTES - 1, 2], [5, 3 * BLOCK_BYTES, 7]])
def test_checksums_of_pieces_are_those_of_the_whole(sizes):
    pieces = [np.random.default_rng(i).bytes(n) for i, n in enumerate(sizes)]
    whole = b"".join(pieces)
    blocks = [whole[i : i + BLOCK_BYTES] for i in range(0, len(whole), BLOCK_BYTES)]
    assert block_checksums(pieces) == b"".join(map(block_checksum, blocks))


def test_references_that_do_not_fit_are_refused(tmp_path):
    _, refs = write(tmp_path)
    files = SegmentFiles(tmp_path)
    for wrong in (
        refs[0]._replace(length_bytes=4),
        refs[0]._replace(offset_bytes=1),
        refs[0]._replace(file="../x.segment"),
    ):
        with pytest.raises(Error):
            files.read_blob(wrong)


@pytest.mark.parametrize("prefix", ["../a", "", "a/b", "A", "a--b"])
def test_prefixes_that_leave_the_directory_are_refused(tmp_path, prefix):
    with pytest.raises(Error):
        SegmentWriter(tmp_path, prefix, durable=False)


@pytest.mark.parametrize("diff", [None, [1, 1, 1], [1, -1, 2]])
def test_changes(diff):
    table = pa.table({"_diff": [1, None, 3], "name": pa.chunked_array([["a"], ["b", None]])})
    array = None if diff is None else np.array(diff)
    again, found = decode_change(encode_change(table, array))
    assert again.equals(table.combine_chunks())
    assert again.column_names == ["_diff", "name"]
    assert found.tolist() == (diff or [1, 1, 1])
    again, found = decode_change(encode_change(table.slice(0, 0), None))
    assert (again.num_rows, len(found)) == (0, 0)


@pytest.mark.parametrize("diff", [None, [1, -1]])
def test_few_rows_have_the_bytes_that_a_writer_of_streams_writes(monkeypatch, diff):
    columns = {"a": [1, 2, None, 4], "b": ["x", None, "ä" * 100, ""], "c": [[1], None, [], [2, 3]], "d": [True] * 4}
    table = pa.table(columns).slice(1, 2)
    array = None if diff is None else np.array(diff)
    blob = encode_change(table, array)
    monkeypatch.setattr(changes, "_FEW_ROWS", 0)
    assert encode_change(table, array).equals(blob)

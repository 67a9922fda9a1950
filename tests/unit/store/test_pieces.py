"""Changes as stored: pieces that are read separately, and the index that excludes pieces."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from watersmeet.kernel.arrays.hashing import hash_columns
from watersmeet.kernel.runs.run import may_have
from watersmeet.store import changes
from watersmeet.store.changes import BLOB_ROWS, ChangeIndex, decode_change, decode_piece, encode_change, read_index
from watersmeet.store.segmentfiles import SegmentFiles
from watersmeet.store.segments import SegmentWriter, epoch_prefix


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch):
    monkeypatch.setattr(changes, "_PIECE_ROWS", 2_000)
    monkeypatch.setattr(changes, "_LEAST_PIECE_ROWS", 100)


def indexed(table: pa.Table) -> ChangeIndex:
    blob = encode_change(table, None)
    index = read_index(blob, blob.size)
    assert index is not None
    return index


def rows(count: int, seed: int = 0) -> pa.Table:
    random = np.random.default_rng(seed)
    keys = random.integers(0, 1 << 40, count)
    missing = random.random(count) < 0.1
    return pa.table(
        {
            "n": pa.array(np.arange(count)),
            "key": pa.array(keys),
            "name": pa.array([f"name {k}" for k in keys.tolist()]),
            "some": pa.array(random.integers(0, 9, count), pa.int32(), mask=missing),
            "none": pa.nulls(count, pa.timestamp("us")),
            "tags": pa.array([[i, i + 1] if i % 3 else None for i in range(count)], pa.list_(pa.int64())),
            "_diff": pa.array(random.random(count)),
        }
    )


@pytest.mark.parametrize("signs", [None, [1], [1, -2]])
@pytest.mark.parametrize("count", [1, 1_999, 2_000, 2_001, 9_000])
@pytest.mark.parametrize("lasting", [False, True])
def test_pieces_and_the_whole_have_the_rows(count, signs, lasting):
    table = rows(count)
    diff = None if signs is None else np.resize(np.array(signs), count)
    blob = encode_change(table, diff, lasting=lasting)
    found, found_diff = decode_change(blob)
    assert found.equals(table)
    assert found_diff.tolist() == ([1] * count if diff is None else diff.tolist())
    part, part_diff = decode_change(blob, ["name", "tags"])
    assert part.equals(table.select(["name", "tags"]))
    assert (part_diff == found_diff).all()
    index = read_index(blob, blob.size)
    if count == 1:
        assert index is None
        return
    assert index is not None
    assert index.rows.tolist() == [min(2_000, count - first) for first in range(0, count, 2_000)]
    pieces = [decode_piece(blob.slice(b, e - b)) for b, e in zip(index.begins, index.ends, strict=True)]
    assert pa.concat_tables([t for t, _ in pieces]).equals(table)
    assert np.concatenate([d for _, d in pieces]).tolist() == found_diff.tolist()
    assert read_index(blob.slice(int(index.ends[-1])), blob.size).filters == index.filters, "the end suffices"


@pytest.mark.parametrize("signs", [None, [1, -2]])
@pytest.mark.parametrize("count", [1, 2_000, 6_500])
def test_some_rows_of_a_change_are_read_without_its_other_pieces(tmp_path, monkeypatch, count, signs):
    table = rows(count)
    diff = None if signs is None else np.resize(np.array(signs), count)
    writer = SegmentWriter(tmp_path, epoch_prefix(1, 0, 0), durable=False)
    ref = writer.add([memoryview(encode_change(table, diff)).cast("B")], count)
    ref = ref.within(writer.finish({"x": {}}))
    segments, read = SegmentFiles(tmp_path), []
    piece = SegmentFiles.read_piece
    monkeypatch.setattr(SegmentFiles, "read_piece", lambda *a: read.append(a[2]) or piece(*a))
    bounds = sorted({0, 1, 1_999, 2_000, 2_001, 3_999, 4_001, 6_000, count} & {*range(count + 1)})
    for first in bounds:
        for end in [b for b in bounds if b > first]:
            read.clear()
            found, found_diff = segments.read_rows(ref, first, end, ["name", "n"])
            assert found.equals(table.select(["n", "name"]).slice(first, end - first))
            assert found_diff.tolist() == ([1] * (end - first) if diff is None else diff[first:end].tolist())
            assert len(read) == (end - 1) // 2_000 - first // 2_000 + 1


def test_bounds_and_filters_have_all_values():
    table = rows(9_000)
    blob = encode_change(table, None, lasting=True)
    index = read_index(blob, blob.size)
    assert index is not None
    assert set(index.bounds) == {"n", "key", "some", "none"}
    assert set(index.filters) == {"key", "name"}, "the bounds of n suffice, and some has few values"
    first = 0
    for place, count in enumerate(index.rows.tolist()):
        piece = table.slice(first, count)
        for name in ("n", "key", "some"):
            values = piece.column(name).drop_null().to_pylist()
            assert [bound[place] for bound in index.bounds[name]] == [min(values), max(values)]
        low, high = index.bounds["none"]
        assert low[place] > high[place]
        for name in index.filters:
            begin, end = index.filter_span(name)
            filters = np.frombuffer(blob.slice(begin, end - begin), np.uint8).reshape(len(index.ends), -1)
            every = hash_columns([table.column(name).combine_chunks()])
            had = may_have(filters, np.full(len(every), place), every)
            assert had[first : first + count].all()
            assert had.sum() < count + 0.1 * (len(every) - count)
        first += count
    assert list(indexed(table).filters) == ["key"], "epochs write one"


def test_pieces_of_wide_rows_have_fewer(monkeypatch):
    monkeypatch.undo()
    table = pa.table({"k": pa.array(np.arange(20_000)), "text": pa.array(["x" * 2_000] * 20_000)})
    assert indexed(table).rows.tolist()[:-1] == [2_048] * 9
    narrow = pa.table({"k": pa.array(np.arange(BLOB_ROWS))})
    assert indexed(narrow).rows.tolist() == [1 << 16] * 4

"""Runs that do not stay in memory: what is asked of some keys is the same as of the whole run."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.thorough import examples
from tests.unit.kernel.kernel_tools import (
    blob_of,
    delta_of,
    drawn_hashes,
    drawn_ranges,
    entries,
    index_all_runs,
    rows_of,
    schema_of,
    weaken_hashes,
)
from tests.unit.kernel.test_delta import deltas

from watersmeet.errors import Error
from watersmeet.kernel.runs import cold as mapped
from watersmeet.kernel.runs.cold import StreamedRun, near, opened, together
from watersmeet.kernel.runs.delta import Delta
from watersmeet.kernel.runs.run import Run, arrange
from watersmeet.kernel.runs.state import BlobDict, StageState
from watersmeet.kernel.runs.trace import find
from watersmeet.system.blobs import DirectBlob
from watersmeet.values.types import BIGINT


def stored_run(run, path, begin=0, offset=0):
    """The rows of the run from `begin` on, as they are read from a file that has other things before it."""
    blob = blob_of(run)
    path.write_bytes(bytes(offset) + blob.to_pybytes() + b"behind")
    direct = DirectBlob(path, offset, blob.size)
    (cold,) = together([opened(direct, None)])
    whole = Run.from_ipc(blob)
    return StreamedRun(whole.part(begin, whole.num_rows), whole, cold, direct)


@examples(80)
@given(deltas(), st.data())
def test_rows_of_some_keys_are_those_of_the_whole_run(tmp_path_factory, delta, data):
    """Any types, keys and collisions, in pieces of any size, of a run of which a part is gone."""
    width = delta.columns.num_columns
    keys = tuple(data.draw(st.lists(st.integers(0, width - 1), max_size=2))) if width else ()
    with pytest.MonkeyPatch.context() as patch:
        index_all_runs(patch, data.draw(st.sampled_from([1, 2, 4, 1024])))
        patch.setattr(mapped, "_MOST_COPIED", data.draw(st.sampled_from([0, 1, 8])))
        patch.setattr(mapped, "_PIECE_BYTES", data.draw(st.sampled_from([1, 500, 1 << 20])))
        if data.draw(st.booleans()):
            weaken_hashes(patch)
        whole = arrange(delta, keys)
        if not whole.num_rows:
            return
        begin = data.draw(st.sampled_from([0, whole.num_rows // 2]))
        run = whole.part(begin, whole.num_rows)
        offset = data.draw(st.sampled_from([0, 64, 4096, 5000 * 64]))
        passing = stored_run(whole, tmp_path_factory.getbasetemp() / "run", begin, offset)
        hashes = drawn_hashes(data, run)
        assert entries([passing], hashes) == entries([run], hashes)
        spread, bases, every = drawn_ranges(data, run, hashes)
        found = near([passing], lambda: bases, spread)
        kept = [str(row) for part in found for row in rows_of(part.delta())]
        assert found == [passing] or kept == [str(r) for r in rows_of(run.take(np.flatnonzero(every)).delta())]
        for told in ("num_rows", "size_bytes", "all_ones", "pure", "keys", "continues", "note"):
            assert getattr(passing, told) == getattr(run, told)
        assert passing.has_negative == run.has_negative
        assert blob_of(passing).equals(blob_of(run))


def test_few_rows_are_copied_and_no_others_are_looked_up_in_them(tmp_path, monkeypatch):
    index_all_runs(monkeypatch)
    run = arrange(delta_of(schema_of(BIGINT), [(i,) for i in range(5000)]), (0,))
    passing = stored_run(run, tmp_path / "run")
    (some,) = near([passing], lambda: run.hash[7:9])
    assert some.num_rows == 2
    assert find(some, run.hash[7:9]).low.tolist() == [0, 1]
    with pytest.raises(Error, match="only rows of others were fetched"):
        find(some, run.hash[9:10])
    assert near([passing], lambda: run.hash) == [passing]
    assert near([passing], lambda: run.hash[:0]) == []


def test_a_run_is_read_once_and_takes_little_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(mapped, "_PIECE_BYTES", 256 << 10)
    rows = 100_000
    texts = pa.array([f"{i:064}" for i in range(rows)])
    table = pa.table({"c0": np.arange(rows), "c1": texts})
    run = arrange(Delta(table, np.ones(rows, np.int64)), (0,))
    passing = stored_run(run, tmp_path / "run")
    most, read = [0], [0]
    fetch = DirectBlob.fetch

    def counted(blob, wanted):
        fetch(blob, wanted)
        held = sum(end - begin for begin, end in blob._fetched)
        read[0] += sum(blob.missing_bytes(ranges) for _, ranges in wanted)
        most[0] = max(most[0], held)

    monkeypatch.setattr(DirectBlob, "fetch", counted)
    some = run.hash[::50]
    assert entries([passing], some) == entries([run], some)
    assert run.size_bytes * 0.9 < read[0] < run.size_bytes * 1.3
    assert most[0] < 1 << 20
    read[0] = 0
    few = run.hash[[5, rows // 2]]
    assert entries([passing], few) == entries([run], few)
    assert read[0] < 200_000


def test_the_largest_runs_do_not_stay(tmp_path, monkeypatch):
    index_all_runs(monkeypatch)
    blobs, manifest, sizes = BlobDict(), None, (900, 30, 5)
    for number, rows in enumerate(sizes):
        state = StageState(manifest, blobs)
        rows_of_run = [(1000 * number + i,) for i in range(rows)]
        state.trace("op", "rows").append(arrange(delta_of(schema_of(BIGINT), rows_of_run), (0,)))
        manifest = state.persist(blobs.add)

    def direct(ref):
        (tmp_path / ref.file).write_bytes(blobs.read(ref).to_pybytes())
        return DirectBlob(tmp_path / ref.file, 0, ref.length_bytes)

    stored = {r.rows: r.size_bytes for r in manifest.refs}
    for passing in ({900, 30, 5}, {900, 30}, {900}, set()):
        most = sum(size for rows, size in stored.items() if rows not in passing)
        runs = StageState(manifest, blobs, direct=direct, stay_bytes=most).trace("op", "rows").runs
        assert {r.num_rows for r in runs if isinstance(r, StreamedRun)} == passing
        runs = StageState(manifest, blobs, direct=lambda ref: None, stay_bytes=most).trace("op", "rows").runs
        assert not any(isinstance(r, StreamedRun) for r in runs)
    assert not any(isinstance(r, StreamedRun) for r in StageState(manifest, blobs).trace("op", "rows").runs)

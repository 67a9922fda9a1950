"""Runs that do not stay in memory: what is asked of some keys is the same as of the whole run."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.thorough import examples
from tests.unit.kernel.kernel_tools import (
    delta_of,
    drawn_hashes,
    drawn_ranges,
    entries,
    rows_of,
    schema_of,
    weaken_hashes,
)
from tests.unit.kernel.test_delta import deltas

from watersmeet.errors import Error
from watersmeet.kernel.runs import mapped
from watersmeet.kernel.runs.cold import near
from watersmeet.kernel.runs.mapped import PassingRun
from watersmeet.kernel.runs.run import Run, arrange
from watersmeet.kernel.runs.state import BlobDict, StageState
from watersmeet.kernel.runs.trace import find
from watersmeet.types import BIGINT


def stored_run(run, path):
    """The run as it is read from a file."""
    path.write_bytes(run.to_ipc())
    with pa.memory_map(str(path)) as file:
        return PassingRun(Run.from_ipc(file.read_buffer()))


@examples(60)
@given(deltas(), st.data())
def test_rows_of_some_keys_are_those_of_the_whole_run(tmp_path_factory, delta, data):
    width = delta.columns.num_columns
    keys = tuple(data.draw(st.lists(st.integers(0, width - 1), max_size=2))) if width else ()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mapped, "_MOST_COPIED", data.draw(st.sampled_from([0, 1, 8])))
        patch.setattr(mapped, "_DENSE", data.draw(st.sampled_from([0, 1 << 40])))
        if data.draw(st.booleans()):
            weaken_hashes(patch)
        run = arrange(delta, keys)
        if not run.num_rows:
            return
        passing = stored_run(run, tmp_path_factory.getbasetemp() / "run")
        hashes = drawn_hashes(data, run)
        assert entries([passing], hashes) == entries([run], hashes)
        spread, bases, every = drawn_ranges(data, run, hashes)
        found = near([passing], lambda: bases, spread)
        kept = [str(row) for part in found for row in rows_of(part.delta())]
        assert found == [passing] or kept == [str(r) for r in rows_of(run.take(np.flatnonzero(every)).delta())]
        for told in ("num_rows", "size_bytes", "has_negative", "all_ones", "pure", "keys", "continues", "note"):
            assert getattr(passing, told) == getattr(run, told)
        assert passing.to_ipc().equals(run.to_ipc())


def test_few_rows_are_copied_and_no_others_are_looked_up_in_them(tmp_path):
    run = arrange(delta_of(schema_of(BIGINT), [(i,) for i in range(5000)]), (0,))
    passing = stored_run(run, tmp_path / "run")
    (some,) = near([passing], lambda: run.hash[7:9])
    assert some.num_rows == 2
    assert find(some, run.hash[7:9]).low.tolist() == [0, 1]
    with pytest.raises(Error, match="only rows of others were fetched"):
        find(some, run.hash[9:10])
    assert near([passing], lambda: run.hash) == [passing]
    assert near([passing], lambda: run.hash[:0]) == []


def test_the_largest_runs_do_not_stay():
    blobs, manifest, sizes = BlobDict(), None, (900, 30, 5)
    for number, rows in enumerate(sizes):
        state = StageState(manifest, blobs)
        rows_of_run = [(1000 * number + i,) for i in range(rows)]
        state.trace("op", "rows").append(arrange(delta_of(schema_of(BIGINT), rows_of_run), (0,)))
        manifest = state.persist(blobs.add)
    stored = {r.rows: r.size_bytes for r in manifest.refs}
    for passing in ({900, 30, 5}, {900, 30}, {900}, set()):
        most = sum(size for rows, size in stored.items() if rows not in passing)
        runs = StageState(manifest, blobs, stay_bytes=most).trace("op", "rows").runs
        assert {r.num_rows for r in runs if isinstance(r, PassingRun)} == passing
    assert not any(isinstance(r, PassingRun) for r in StageState(manifest, blobs).trace("op", "rows").runs)

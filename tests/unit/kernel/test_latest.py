"""Traces whose newest row of a key counts: also beyond the size above which other traces are merged no more."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from watersmeet.kernel.arrays.hashing import hash_columns
from watersmeet.kernel.runs import groups as groups_module
from watersmeet.kernel.runs import trace as merge
from watersmeet.kernel.runs.groups import Groups, group
from watersmeet.kernel.runs.run import Run, make_run
from watersmeet.kernel.runs.trace import Trace, append_latest, latest_rows


def run_of(keys: np.ndarray, values: np.ndarray, gone: np.ndarray | None = None) -> Run:
    hashes = hash_columns([pa.array(keys)])
    order = np.argsort(hashes)
    diff = np.ones(len(keys), np.int64) if gone is None else np.where(gone, -1, 1)
    return make_run(hashes[order], [pa.array(keys[order]), pa.array(values[order])], diff[order], (0,))


def content(trace: Trace, keys: np.ndarray) -> dict[int, int | None]:
    wanted = pa.array(keys)
    groups = group([wanted], hash_columns([wanted]))
    found = latest_rows(trace, groups)
    values = [None] * groups.count if found is None else found[1].to_pylist()
    return dict(zip(groups.keys[0].to_pylist(), values, strict=True))


@pytest.mark.parametrize("most", [merge.MERGED_BYTES, pytest.param(1 << 12, marks=pytest.mark.slow)])
def test_rows_written_again_do_not_pile_up(monkeypatch, most):
    """State of aggregates: the same keys written anew, epoch by epoch, far above the size of one merge."""
    monkeypatch.setattr(merge, "MERGED_BYTES", most)
    monkeypatch.setattr(merge, "CHUNK_BYTES", most // 2)
    rng = np.random.default_rng(5)
    trace = Trace()
    expected: dict[int, int | None] = dict.fromkeys(range(3000))
    for epoch in range(60):
        keys = rng.permutation(3000)[:600].astype(np.int64)
        gone = rng.random(600) < 0.1 if epoch == 59 else np.zeros(600, np.bool_)
        if gone.any():  # until now no diff was below 0, which would say by itself that a merge removes rows
            assert trace.num_rows < 3 * 3000 + 4 * 600  # 36,000 rows were written
        append_latest(trace, run_of(keys, np.full(600, epoch, np.int64), gone))
        expected.update({int(k): None if g else epoch for k, g in zip(keys, gone, strict=True)})
    assert content(trace, np.arange(3000, dtype=np.int64)) == expected


@pytest.mark.parametrize("many", [1, 1 << 20])
def test_groups_are_found_by_their_hashes_however_many(monkeypatch, many):
    monkeypatch.setattr(groups_module, "_MANY_GROUPS", many)
    rng = np.random.default_rng(3)
    for size in (0, 1, 7, 300):
        hashes = np.sort(rng.integers(0, 60, size).astype(np.uint64))
        wanted = np.unique(rng.integers(0, 70, 40).astype(np.uint64))
        found = Groups(np.zeros(0, np.int64), np.zeros(len(wanted), np.int64), wanted, ())
        pairs = [pair for group, rows in found.find(hashes) for pair in zip(group.tolist(), rows.tolist(), strict=True)]
        expected = [(g, row) for g, h in enumerate(wanted) for row in np.flatnonzero(hashes == h).tolist()]
        assert pairs == expected

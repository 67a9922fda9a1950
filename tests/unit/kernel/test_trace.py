"""Runs and traces: stored form, merge laws, probing, state manifests."""

from __future__ import annotations

import random
from collections import Counter

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests import reference
from tests.thorough import examples
from tests.unit.kernel.kernel_tools import blob_of, delta_of, rows_of, schema_of, weaken_hashes
from tests.unit.kernel.test_delta import VALUES, deltas

from watersmeet.circuit.epochs import Fill
from watersmeet.errors import Error
from watersmeet.kernel.arrays.hashing import hash_columns
from watersmeet.kernel.runs import trace as merge_module
from watersmeet.kernel.runs import trace as trace_module
from watersmeet.kernel.runs.delta import consolidate
from watersmeet.kernel.runs.matching import Probe
from watersmeet.kernel.runs.run import Run, arrange
from watersmeet.kernel.runs.state import BlobDict, ScopedState, StageState, StateManifest
from watersmeet.kernel.runs.trace import FAN_IN, LARGE_FAN_IN, Trace, merge_runs
from watersmeet.values.types import BIGINT, INTEGER, VARCHAR


def content_of(runs):
    counts = Counter()
    for run in runs:
        for r, d in zip(rows_of(run.delta()), run.diff, strict=True):
            counts[reference.row(r)] += int(d)
    return {r: d for r, d in counts.items() if d}


@examples(150)
@given(deltas(), st.data())
def test_a_run_survives_its_stored_form(delta, data):
    width = delta.columns.num_columns
    keys = tuple(data.draw(st.lists(st.integers(0, width - 1), max_size=2))) if width else ()
    run = arrange(delta, keys)
    buffer = blob_of(run)
    back = Run.from_ipc(buffer)
    assert (back.hash == run.hash).all()
    assert (back.hash[1:] >= back.hash[:-1]).all()
    assert (back.diff == run.diff).all()
    assert (back.keys, back.pure, back.all_ones) == (run.keys, run.pure, run.all_ones)
    assert str(back.columns.to_pylist()) == str(run.columns.to_pylist())
    assert back.size_bytes == run.size_bytes
    assert blob_of(back).equals(buffer)


def test_runs_are_mapped_not_copied():
    run = arrange(delta_of(schema_of(BIGINT), [(i,) for i in range(1000)]), (0,))
    buffer = blob_of(run)
    back = Run.from_ipc(buffer)
    for address in (back.hash.ctypes.data, back.arrays[0].buffers()[1].address):
        assert buffer.address <= address < buffer.address + buffer.size


def test_equal_rows_make_equal_bytes_whatever_stands_behind_nulls():
    values = np.arange(4)
    garbage = pa.Array.from_buffers(pa.int64(), 4, [pa.py_buffer(b"\x05"), pa.py_buffer(values.tobytes())])
    clean = pa.array([0, None, 2, None])
    runs = [
        arrange(delta_of(schema_of(BIGINT), []).__class__(pa.table({"c0": a}), np.ones(4, np.int64)), ())
        for a in (garbage, clean)
    ]
    assert blob_of(runs[0]).equals(blob_of(runs[1]))


@examples(100)
@given(st.integers(0, 10**6), st.booleans(), st.booleans(), st.booleans())
def test_merging_changes_nothing(seed, retract, weak, segments):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(merge_module, "LEVEL_0_ROWS", 4)
        if segments:
            patch.setattr(merge_module, "MERGED_BYTES", 400)
            patch.setattr(merge_module, "CHUNK_BYTES", 200)
        if weak:
            weaken_hashes(patch)
        rng = random.Random(seed)
        schema = schema_of(INTEGER, VARCHAR)
        trace, plain = Trace(), []
        for _ in range(rng.randrange(1, 40)):
            rows = [
                (rng.choice([None, 1, 2, 3, 4, 5, 6]), rng.choice(VALUES[VARCHAR])) for _ in range(rng.randrange(12))
            ]
            run = arrange(delta_of(schema, rows, [rng.choice([1, -1]) if retract else 1 for _ in rows]), (0,))
            trace.append(run)
            plain.append(run)
        assert content_of(trace.runs) == content_of(plain)
        for run in trace.runs:
            assert (run.hash == hash_columns([run.arrays[0]])).all()
            assert (run.hash[1:] >= run.hash[:-1]).all()
            assert not (run.diff == 0).any()
            for part in run.parts:
                assert part.pure
            assert content_of(run.parts) == content_of([run])


def test_runs_stay_few_and_rows_are_rewritten_seldom(monkeypatch):
    monkeypatch.setattr(merge_module, "LEVEL_0_ROWS", 1)
    rewritten = 0

    def counting(runs, *, whole, above=()):
        nonlocal rewritten
        rewritten += sum(r.num_rows for r in runs)
        return merge_runs(runs, whole=whole)

    monkeypatch.setattr(trace_module, "merge_runs", counting)
    trace = Trace()
    for i in range(1024):
        trace.append(arrange(delta_of(schema_of(BIGINT), [(i,)]), (0,)))
        assert len(trace.runs) <= 5 * FAN_IN
    assert trace.num_rows == 1024
    assert rewritten <= 1024 * 6


def test_large_runs_that_can_only_grow_are_left_alone_until_there_are_many(monkeypatch):
    monkeypatch.setattr(merge_module, "MERGED_BYTES", 100)
    trace = Trace()
    for i in range(LARGE_FAN_IN + 4):
        trace.append(arrange(delta_of(schema_of(BIGINT), [(i,), (i + 100,)]), (0,)))
        assert sum(not r.continues for r in trace.runs) == (i + 1 if i + 1 < LARGE_FAN_IN else i + 2 - LARGE_FAN_IN)


def test_large_runs_with_retractions_are_merged_in_segments(monkeypatch):
    """1,000 rows of about 17 bytes, updated again and again, where 4,000 bytes are the most of one merge."""
    monkeypatch.setattr(merge_module, "LEVEL_0_ROWS", 1)
    monkeypatch.setattr(merge_module, "MERGED_BYTES", 4_000)
    monkeypatch.setattr(merge_module, "CHUNK_BYTES", 2_000)
    schema = schema_of(BIGINT, BIGINT)
    trace, rng, content = Trace(), random.Random(1), {}
    blobs, manifest = BlobDict(), None
    for epoch in range(60):
        state = StageState(manifest, blobs)
        trace = state.trace("join-1", "left")
        chosen = range(1000) if epoch == 0 else rng.sample(range(1000), 100)
        rows = [(k, content[k]) for k in chosen if k in content]
        diffs = [-1] * len(rows) + [1] * len(chosen)
        content.update((k, epoch) for k in chosen)
        trace.append(arrange(delta_of(schema, [*rows, *((k, epoch) for k in chosen)], diffs), (0,)))
        manifest = state.persist(blobs.add)
        assert trace.num_rows <= 1000 + 1000 * 4
    assert content_of(trace.runs) == dict.fromkeys(content.items(), 1)
    segments = [r for r in trace.runs if r.continues]
    assert len(segments) >= 5
    for before, after in zip(trace.runs, trace.runs[1:], strict=False):
        assert not after.continues or before.hash[-1] < after.hash[0]


def test_one_key_too_large_to_merge_is_left_alone(monkeypatch):
    monkeypatch.setattr(merge_module, "MERGED_BYTES", 100)
    monkeypatch.setattr(merge_module, "CHUNK_BYTES", 50)
    monkeypatch.setattr(merge_module, "PIECE_BYTES", 200)
    trace = Trace()
    for i in range(6):
        trace.append(arrange(delta_of(schema_of(BIGINT, BIGINT), [(7, i), (7, i + 100)], [1, -1]), (0,)))
    assert len(trace.runs) == 6


def test_a_row_and_its_retraction_leave_the_trace():
    trace = Trace()
    rows = [(i, str(i)) for i in range(50)]
    for diff in (1, -1, 1, -1):
        trace.append(arrange(delta_of(schema_of(INTEGER, VARCHAR), rows, [diff] * 50), (0,)))
    assert trace.runs == ()


@examples(60)
@given(st.integers(0, 10**6))
def test_lookup_finds_every_entry_of_a_hash(seed):
    rng = random.Random(seed)
    schema = schema_of(INTEGER, INTEGER)
    trace, all_rows = Trace(), Counter()
    for _ in range(rng.randrange(6)):
        rows = [(rng.randrange(20), rng.randrange(3)) for _ in range(rng.randrange(30))]
        all_rows.update(rows)
        trace.append(arrange(delta_of(schema, rows), (0,)))
    wanted = sorted(rng.sample(range(25), rng.randrange(25)))
    hashes = np.sort(hash_columns([pa.array(wanted, pa.int32())]))
    found = trace.entries(hashes)
    expected = Counter({r: c for r, c in all_rows.items() if r[0] in wanted})
    done = (
        {} if found is None else dict(zip(rows_of(consolidate(found)), consolidate(found).diff.tolist(), strict=True))
    )
    assert done == expected
    for index, run, rows in trace.lookup(hashes):
        assert (run.hash[rows] == hashes[index]).all()


@examples(60)
@given(st.integers(0, 10**6))
def test_hashes_are_looked_up_in_a_table_as_they_are_searched(seed):
    rng = np.random.default_rng(seed)
    known, hashes = _hashes(rng), np.unique(_hashes(rng))
    run = Run(np.sort(known), pa.table({"c0": known.view(np.int64)}), None, (0,), pure=True)
    expected = trace_module.find(run, hashes)
    found = trace_module._looked_up(run, hashes)
    assert (found.high - found.low).tolist() == (expected.high - expected.low).tolist()
    there = found.high > found.low
    assert found.low[there].tolist() == expected.low[there].tolist()


def _hashes(rng):
    """Some hashes, of which many occur again; many may be similar, and they may span all 64 bits."""
    found = rng.integers(0, 60, rng.integers(1, 200)).astype(np.uint64)
    some = rng.integers(0, 3, len(found))
    found[some == 1] *= np.uint64(1 << 57)
    found[some == 2] += np.uint64(2**64 - 60)
    return found


@examples(100)
@given(st.integers(0, 10**6), st.sampled_from([1, 1, 3]))
def test_keys_of_one_row_are_paired_with_that_row_alone_and_sums_stay(seed, most_rows):
    """A random history, in which a key has at most `most_rows` rows, is merged in random pieces."""
    rng = random.Random(seed)
    schema = schema_of(INTEGER, INTEGER)
    content, runs = Counter(), []
    for _ in range(rng.randrange(1, 9)):
        change = Counter()
        for _ in range(rng.randrange(12)):
            row = (rng.randrange(6), rng.randrange(4))
            mine = [r for r in content.elements() if r[0] == row[0]]
            if len(mine) >= most_rows:
                gone = rng.choice(mine)
                content[gone] -= 1
                change[gone] -= 1
            if rng.random() < 0.8:
                content[row] += 1
                change[row] += 1
        changed = [(r, d) for r, d in change.items() if d]
        if changed:
            runs.append(arrange(delta_of(schema, [r for r, _ in changed], [d for _, d in changed]), (0,)))
        if len(runs) > 1 and rng.random() < 0.5:
            runs[-2:] = [r for r in [merge_runs(runs[-2:], whole=len(runs) == 2)] if r.num_rows]
    keys = arrange(delta_of(schema_of(INTEGER), [(k,) for k in rng.sample(range(8), rng.randrange(1, 8))]), (0,))
    probe = Probe(keys, exact=rng.random() < 0.5)
    asked = {r[0] for r in rows_of(keys.delta())}
    found = probe.current(runs)
    assert {r: d for r, d in content_of(found).items() if r[0] in asked} == {
        reference.row(r): d for r, d in content.items() if d and r[0] in asked
    }
    for run in found:
        low, high = probe.ranges(run)
        again = Probe(keys, exact=False).ranges(run)
        assert (low.tolist(), (high - low).tolist()) == (again[0].tolist(), (again[1] - again[0]).tolist())
    if most_rows == 1:
        entries = Counter(r[0] for run in found for r in rows_of(run.delta()) if r[0] in asked)
        assert set(entries.values()) <= {1}


def rows_run(first, n):
    return arrange(delta_of(schema_of(BIGINT), [(first + i,) for i in range(n)]), (0,))


def test_state_goes_through_its_manifest_and_tells_what_is_new():
    blobs = BlobDict()
    state = StageState(None, blobs)
    state.trace("join-1", "left").append(rows_run(0, 10))
    state.trace("join-1", "right")
    state.declare("join-2")
    manifest = state.persist(blobs.add)
    assert manifest.operators.keys() == {"join-1", "join-2"}
    assert state.retired() == ()
    assert state.persist(blobs.add) == manifest, "nothing new the second time"

    state = StageState(manifest, blobs)
    assert state.operators == {"join-1", "join-2"}
    assert state.size("join-1")[0] == 10
    left = state.trace("join-1", "left")
    for i in range(FAN_IN - 1):
        left.append(rows_run(100 * i + 100, 10))
    assert len(left.runs) == 1
    second = state.persist(blobs.add)
    assert len(blobs._blobs) == 2, "runs merged away within the epoch are not written"
    assert state.retired() == (manifest.operators["join-1"]["left"][0].blob,)
    assert StageState(second, blobs).trace("join-1", "left").num_rows == 10 * FAN_IN

    state = StageState(second, blobs)
    state.drop("join-1")
    assert state.persist(blobs.add).operators == {"join-2": {}}
    assert len(state.retired()) == 1


def test_untouched_traces_are_not_read():
    blobs = BlobDict()
    state = StageState(None, blobs)
    state.trace("join-1", "left").append(rows_run(0, 3))
    manifest = state.persist(blobs.add)
    blobs._blobs.clear()
    state = StageState(manifest, blobs)
    assert state.persist(blobs.add) == manifest
    assert state.size("join-1")[0] == 3


def test_scratch_state_is_kept_apart():
    state = StageState()
    scratch = ScopedState(state, Fill(first=True, roles={"join-1": "copied"}).state_id)
    scratch.trace("join-1", "left").append(rows_run(0, 3))
    assert state.trace("join-1", "left").num_rows == 0
    assert state.trace("scratch!join-1", "left").num_rows == 3
    assert scratch.trace("join-2", "left") is state.trace("join-2", "left")


def test_damage_is_named():
    blobs = BlobDict()
    state = StageState(None, blobs)
    state.trace("join-1", "left").append(rows_run(0, 3))
    manifest = state.persist(blobs.add)
    good = blobs._blobs["0"]
    for bad in (pa.py_buffer(b"nonsense"), pa.py_buffer(b""), good.slice(0, 100), blob_of(rows_run(0, 2))):
        blobs._blobs["0"] = bad
        with pytest.raises(Error, match="STATE_DAMAGED"):
            StageState(manifest, blobs).trace("join-1", "left")
    with pytest.raises(Error, match="STATE_MISMATCH"):
        StateManifest.from_json({**manifest.to_json(), "format": 0})
    with pytest.raises(Error, match="INTERNAL_ERROR"):
        StageState(manifest).trace("join-1", "left")

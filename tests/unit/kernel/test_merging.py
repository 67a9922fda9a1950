"""Merges that take several epochs: content, order and replay wherever they stand, and what they cost."""

from __future__ import annotations

import random
import tempfile
from collections import Counter
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.thorough import examples, mostly_slow
from tests.unit.kernel.kernel_tools import delta_of, index_all_runs, rows_of, schema_of, weaken_hashes

from watersmeet.circuit.operators import SortKey
from watersmeet.kernel.arrays.hashing import bucket_start, hash_columns
from watersmeet.kernel.operators.filters import by_value
from watersmeet.kernel.runs import trace as traces
from watersmeet.kernel.runs.cleaning import Best, Newest, Retention
from watersmeet.kernel.runs.groups import group
from watersmeet.kernel.runs.run import arrange
from watersmeet.kernel.runs.shares import HASHES, HashRange
from watersmeet.kernel.runs.state import BlobDict, StageState, StateManifest
from watersmeet.kernel.runs.trace import FAN_IN, MergeBudget, Trace, append_latest, latest_rows, merge_runs
from watersmeet.runtime.handover import in_levels
from watersmeet.system.blobs import DirectBlob
from watersmeet.values.types import BIGINT, TIMESTAMP

SCHEMA = schema_of(BIGINT, BIGINT)
KEYS = ((0,),)


def merged(runs):
    """The rows of runs with the sums of their diffs."""
    counts = Counter()
    for run in runs:
        for row, diff in zip(rows_of(run.delta()), run.diff.tolist(), strict=True):
            counts[row] += diff
    return {row: n for row, n in counts.items() if n}


def small(patch, rng):
    """Merges of any size take several epochs."""
    index_all_runs(patch)
    patch.setattr(traces, "LEVEL_0_ROWS", 2)
    patch.setattr(traces, "MERGED_BYTES", rng.choice([200, 2_000, 1 << 28]))
    patch.setattr(traces, "CHUNK_BYTES", rng.choice([100, 1_000, 1 << 27]))
    patch.setattr(traces, "MOST_RUNS", rng.choice([6, 64]))
    patch.setattr(traces, "LEAST_BYTES", rng.choice([1, 200]))
    patch.setattr(traces, "_LEVELS", rng.choice([0, 1, 8]))
    return rng.choice([1, 300, 3_000])


class Early:
    """Stores all runs while an epoch goes on."""

    least_bytes = 0

    def __init__(self, blobs, add):
        self.read = blobs.read
        self.add = add
        self._blobs = blobs

    def drop(self, refs):
        for ref in refs:
            self._blobs.remove(ref)


class Buckets:
    """One trace in the stored state of one bucket or two, which become one and two again."""

    def __init__(self, most_bytes, piece_bytes=None):
        """piece_bytes: workers have so little memory that merges store each piece, and no run stays in it."""
        self.piece_bytes = piece_bytes
        self.blobs = BlobDict()
        self.folder = tempfile.TemporaryDirectory()
        self.manifests = [StateManifest({"op": {}})]
        self.most_bytes = most_bytes

    def epoch(self, change, bucket):
        """change: of the trace. It is done twice from what is stored, as after a kill, and gives the same bytes."""
        made = []
        for _ in range(2):
            before = self.blobs._added
            written = []

            def add(blob, rows, written=written):
                written.append(b"".join(blob))
                return self.blobs.add(blob, rows)

            limited = {} if self.piece_bytes is None else {"direct": self.direct}
            budget = MergeBudget(self.most_bytes, self.piece_bytes)
            early = Early(self.blobs, add)
            state = StageState(self.manifests[bucket], self.blobs, budget=budget, early=early, **limited)
            change(state.trace("op", "rows"))
            state.store_large("op")
            manifest = state.persist(add)
            made.append((written, [r._replace(blob=r.blob.rows) for r in manifest.refs_of("op")]))
            if len(made) == 1:
                self.blobs._added = before  # the second time stands
        assert made[0] == made[1]
        self.manifests[bucket] = StateManifest.from_json(manifest.to_json())
        for ref, run in zip(self.manifests[bucket].refs_of("op"), self.runs(bucket), strict=True):
            assert (run.hash[1:] >= run.hash[:-1]).all()
            if ref.share is None:
                assert (ref.rows, ref.merging) == (run.num_rows, run.merging)

    def direct(self, ref):
        path = Path(self.folder.name, ref.file)
        path.write_bytes(self.blobs.read(ref).to_pybytes())
        return DirectBlob(path, 0, ref.length_bytes)

    def runs(self, bucket):
        return StageState(self.manifests[bucket], self.blobs).trace("op", "rows").runs

    def bucket_of(self, key):
        return 0 if len(self.manifests) == 1 else int(hash_columns([pa.array([key])])[0] >= bucket_start(1, 2))

    def change_number(self):
        """References alone, as another number of buckets makes them."""
        refs = [m.refs_of("op") for m in self.manifests]
        half = bucket_start(1, 2)
        if len(refs) == 1:
            known = HashRange(KEYS, 0, HASHES)
            parts = [
                [n for r in refs[0] if (n := r.narrowed(HashRange(KEYS, low, high), known))]
                for low, high in ((0, half), (half, HASHES))
            ]
        else:
            everything = HashRange(KEYS, 0, HASHES)
            known = [HashRange(KEYS, 0, half), HashRange(KEYS, half, HASHES)]
            moved = ([n for r in some if (n := r.narrowed(everything, k))] for some, k in zip(refs, known, strict=True))
            parts = [list(in_levels(list(moved)))]
        self.manifests = [StateManifest({"op": {"rows": tuple(part)}}) for part in parts]


def history(seed, patch, draw, take, check, *, rescaled=True):
    """Random epochs. draw: the rows of one, with diffs. take: puts those of a bucket into its trace. check: the runs of
    all buckets.
    """
    rng = random.Random(seed)
    buckets = Buckets(small(patch, rng), rng.choice([None, 100, 1000]))
    waited = 0
    for number in range(rng.randrange(10, 40)):
        rows = draw(rng, number)
        for bucket in range(len(buckets.manifests)):
            mine = [(row, diff) for row, diff in rows if buckets.bucket_of(row[0]) == bucket]
            if mine:
                buckets.epoch(partial(take, [r for r, _ in mine], [d for _, d in mine], number), bucket)
        if rescaled and rng.random() < 0.1:
            buckets.change_number()
        check([r for b in range(len(buckets.manifests)) for r in buckets.runs(b)], number)
        waited += any(r.merging for m in buckets.manifests for r in m.refs_of("op"))
    return waited


@pytest.mark.slow
@examples(30)
@given(st.integers(0, 10**6), st.booleans(), st.booleans())
def test_sums_stay(seed, retract, weak):
    with pytest.MonkeyPatch.context() as patch:
        if weak:
            weaken_hashes(patch)
        plain = Counter()

        def draw(rng, _):
            rows = [
                ((rng.randrange(40), rng.randrange(3)), -1 if retract and rng.random() < 0.4 else 1) for _ in range(12)
            ]
            for row, diff in rows:
                plain[row] += diff
            return rows

        def take(rows, diffs, _, trace):
            trace.append(arrange(delta_of(SCHEMA, rows, diffs), (0,)))

        def check(runs, _):
            assert merged(runs) == {row: n for row, n in plain.items() if n}

        history(seed, patch, draw, take, check, rescaled=not weak)


def test_what_was_stored_early_and_then_merged_is_not_kept():
    blobs = BlobDict()
    state = StageState(None, blobs, early=Early(blobs, blobs.add))
    numbers = range(2 * FAN_IN)
    for number in numbers:
        state.trace("op", "rows").append(arrange(delta_of(SCHEMA, [(i, number) for i in range(300)]), (0,)))
        state.store_large("op")
    added = blobs._added
    manifest = state.persist(blobs.add)
    assert blobs._added == added, "something was left to be stored"
    assert len(manifest.refs) < added, "nothing was merged"
    assert {r.file for r in manifest.refs} == blobs._blobs.keys()
    wanted = {(i, number): 1 for i in range(300) for number in numbers}
    assert merged(StageState(manifest, blobs).trace("op", "rows").runs) == wanted


@pytest.mark.slow
def test_merges_of_such_histories_wait():
    """Else the laws here would say nothing."""
    waited = []
    for seed in range(6):
        with pytest.MonkeyPatch.context() as patch:
            draw = lambda rng, _: [((rng.randrange(40), 0), rng.choice([1, -1])) for _ in range(12)]
            take = lambda rows, diffs, _, trace: trace.append(arrange(delta_of(SCHEMA, rows, diffs), (0,)))
            waited.append(history(seed, patch, draw, take, lambda runs, _: None))
    assert sum(n > 0 for n in waited) >= 3, waited


@examples(20)
@given(st.integers(0, 10**6))
def test_the_newest_row_of_a_key_counts(seed):
    with pytest.MonkeyPatch.context() as patch:
        content = {}

        def draw(rng, number):
            chosen = {k: -1 if rng.random() < 0.3 else 1 for k in rng.sample(range(30), 8)}
            content.update({k: number if diff > 0 else None for k, diff in chosen.items()})
            return [((k, number), diff) for k, diff in chosen.items()]

        def take(rows, diffs, _, trace):
            append_latest(trace, arrange(delta_of(SCHEMA, rows, diffs), (0,)))

        def check(runs, _):
            wanted = pa.array(range(30))
            groups = group([wanted], hash_columns([wanted]))
            found = latest_rows(Trace(runs), groups)
            values = [None] * 30 if found is None else found[1].to_pylist()
            assert dict(zip(groups.keys[0].to_pylist(), values, strict=True)) == {k: content.get(k) for k in range(30)}

        history(seed, patch, draw, take, check)


@pytest.mark.slow
@examples(20)
@given(st.integers(0, 10**6), st.sampled_from([1, 2]))
def test_what_is_of_use_stays_also_if_newer_runs_take_rows_back(seed, depth):
    """Rows come and go while the bound has not passed them; behind it the newest of each key are of use."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("watersmeet.kernel.runs.cleaning.SMALL_TRACE_ROWS", 4)
        plain = Counter()

        def draw(rng, number):
            fresh = Counter((rng.randrange(6), number + rng.randrange(5)) for _ in range(6))
            gone = [r for r, n in plain.items() if n > 0 and r[1] >= number - 3 and rng.random() < 0.3]
            plain.update(fresh)
            plain.subtract(gone)
            return [*((r, n) for r, n in fresh.items()), *((r, -1) for r in gone)]

        schema = schema_of(BIGINT, TIMESTAMP)

        def take(rows, diffs, number, trace):
            times = [(k, np.datetime64(t, "us").item()) for k, t in rows]
            Newest(1, number - 3, depth).take_in(trace, arrange(delta_of(schema, times, diffs), (0,)))

        def check(runs, number):
            found = {(k, int(np.datetime64(t, "us").astype(np.int64))): n for (k, t), n in merged(runs).items()}
            there = {r: n for r, n in plain.items() if n}
            assert all(there.get(r) == n for r, n in found.items())
            needed = {r for r in there if r[1] >= number - 3}
            for key in range(6):
                passed = sorted((t for k, t in there if k == key and t < number - 3), reverse=True)
                times = [t for t in passed for _ in range(there[key, t])]
                needed |= {(key, t) for t in passed if sum(other > t for other in times) < depth}
            assert needed <= found.keys()

        history(seed, patch, draw, take, check)


@examples(15)
@given(st.integers(0, 10**6))
def test_the_best_rows_of_a_key_stay(seed):
    with pytest.MonkeyPatch.context() as patch:
        plain = Counter()

        def draw(rng, _):
            rows = [(rng.randrange(8), rng.randrange(50)) for _ in range(10)]
            plain.update(rows)
            return [(row, 1) for row in rows]

        def take(rows, diffs, _, trace):
            Best((SortKey(1, descending=True, nulls_first=False),), 2).take_in(
                trace, arrange(delta_of(SCHEMA, rows, diffs), (0,))
            )

        def check(runs, _):
            found = merged(runs)
            assert all(plain[r] >= n for r, n in found.items())
            for key in range(8):
                best = sorted((v for k, v in plain.elements() if k == key), reverse=True)[:2]
                assert all(found[key, v] == plain[key, v] for v in best)

        history(seed, patch, draw, take, check)


@pytest.mark.slow
@examples(15)
@given(st.integers(0, 10**6))
def test_rows_that_a_watermark_has_not_passed_stay(seed):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("watersmeet.kernel.runs.cleaning.SMALL_ROWS", 4)
        patch.setattr("watersmeet.kernel.runs.cleaning.SAMPLE_ROWS", 4)
        schema, plain = schema_of(BIGINT, TIMESTAMP), Counter()

        def draw(rng, number):
            rows = [((rng.randrange(20), number + rng.randrange(20)), 1) for _ in range(10)]
            rows += [(r, -1) for r, n in plain.items() if n > 0 and r[1] >= number and rng.random() < 0.2]
            for row, diff in rows:
                plain[row] += diff
            return rows

        def take(rows, diffs, number, trace):
            times = [(k, np.datetime64(t, "us").item()) for k, t in rows]
            Retention(1, number).take_in(trace, arrange(delta_of(schema, times, diffs), (0,)))

        def check(runs, number):
            found = {(k, int(np.datetime64(t, "us").astype(np.int64))): n for (k, t), n in merged(runs).items()}
            live = {r: n for r, n in plain.items() if n and r[1] >= number}
            assert {r: n for r, n in found.items() if r[1] >= number} == live

        history(seed, patch, draw, take, check)


@pytest.mark.slow
@pytest.mark.parametrize("seed", mostly_slow(range(5), 1, 4))
def test_runs_sorted_by_a_value_are_merged_in_pieces_too(monkeypatch, seed):
    plain = Counter()

    def draw(rng, number):
        rows = [((number * 3 + rng.randrange(10), 0), 1) for _ in range(10)]
        rows += [(r, -1) for r, n in plain.items() if n > 0 and rng.random() < 0.1]
        for row, diff in rows:
            plain[row] += diff
        return rows

    def take(rows, diffs, _, trace):
        trace.append(by_value(delta_of(SCHEMA, rows, diffs), 0))

    def check(runs, _):
        assert merged(runs) == {row: n for row, n in plain.items() if n}

    history(seed, monkeypatch, draw, take, check, rescaled=False)


def changes_of_a_wide_table(rng, number, keys=2000):
    """Every row is written anew now and then."""
    chosen = range(keys) if number == 0 else rng.sample(range(keys), 60)
    return [(k, number) for k in chosen], [(k, None) for k in chosen]


def test_an_epoch_merges_no_more_than_its_budget(monkeypatch):
    monkeypatch.setattr(traces, "LEVEL_0_ROWS", 4)
    monkeypatch.setattr(traces, "LEAST_BYTES", 1_000)
    most_bytes, merged_bytes, debts = 4_000, [], []

    def counting(runs, *, whole, above=()):
        merged_bytes[-1] += sum(r.size_bytes for r in runs)
        return traces.merge(runs, whole=whole, above=above)

    blobs, manifest, rng = BlobDict(), None, random.Random(1)
    for number in range(200):
        state = StageState(manifest, blobs, budget=MergeBudget(most_bytes))
        rows, _ = changes_of_a_wide_table(rng, number)
        run = arrange(delta_of(SCHEMA, rows), (0,))
        merged_bytes.append(0)
        state.trace("op", "rows").append(run, counting, replacing=True)
        manifest = state.persist(blobs.add)
        # A piece may be somewhat larger than what is left of the budget.
        assert merged_bytes[-1] <= 1.5 * max(most_bytes, traces._LEVELS * run.size_bytes)
        assert sum(not r.continues for r in state.trace("op", "rows").runs) <= 30
        debts.append(manifest.merge_debt_bytes("op"))
    assert max(debts) > 3 * most_bytes, "no merge has waited"
    assert 0 in debts[20:], "no merge has ended"
    assert manifest.merge_debt_bytes("op") == sum(r.size_bytes for r in manifest.refs_of("op") if r.merging)


@pytest.mark.parametrize("grows", [True, False])
def test_runs_stay_few_whatever_the_budget(monkeypatch, grows):
    """Epochs may merge next to nothing: then merges go on without a budget before there are too many runs."""
    monkeypatch.setattr(traces, "LEVEL_0_ROWS", 1)
    monkeypatch.setattr(traces, "LEAST_BYTES", 1)
    monkeypatch.setattr(traces, "MERGED_BYTES", 2_000)
    monkeypatch.setattr(traces, "CHUNK_BYTES", 2_000)
    monkeypatch.setattr(traces, "_LEVELS", 0)
    monkeypatch.setattr(traces, "MOST_RUNS", 24)
    trace, content, rng = Trace((), MergeBudget(1)), Counter(), random.Random(3)
    crowded = 0
    for number in range(300):
        fresh = [(1000 * number + i, number) for i in range(5)]
        gone = [] if grows else [r for r in rng.sample(sorted(content), min(3, len(content))) if content[r]]
        content.update(fresh)
        content.subtract(gone)
        trace = Trace(trace.runs, MergeBudget(1))
        trace.append(arrange(delta_of(SCHEMA, [*fresh, *gone], [1] * 5 + [-1] * len(gone)), (0,)))
        count = sum(not r.continues for r in trace.runs)
        crowded += count > 20
        assert count <= 24 + FAN_IN
    assert crowded
    assert merged(trace.runs) == {r: n for r, n in content.items() if n}


def test_what_is_left_of_a_run_is_referred_to_and_not_written_again(monkeypatch):
    monkeypatch.setattr(traces, "LEVEL_0_ROWS", 1)
    monkeypatch.setattr(traces, "LEAST_BYTES", 1)
    monkeypatch.setattr(traces, "_LEVELS", 0)
    blobs, manifest, written = BlobDict(), None, []

    def add(buffer, rows):
        written[-1].append(rows)
        return blobs.add(buffer, rows)

    for number in range(FAN_IN + 3):
        state = StageState(manifest, blobs, budget=MergeBudget(8_000))
        rows = [(number * 1000 + i, i) for i in range(1000 if number < FAN_IN else 1)]
        written.append([])
        state.trace("op", "rows").append(arrange(delta_of(SCHEMA, rows), (0,)))
        manifest = state.persist(add)
    assert written[:3] == [[1000]] * 3
    assert all(sum(rows) <= 1000 for rows in written[4:])
    refs = manifest.refs_of("op")
    assert any(r.rest for r in refs)
    assert sum(r.rows for r in refs) == 1000 * FAN_IN + 3
    assert StateManifest.from_json(manifest.to_json()) == manifest
    runs = StageState(manifest, blobs).trace("op", "rows").runs
    assert sum(r.num_rows for r in runs) == 1000 * FAN_IN + 3


def test_a_hot_key_is_one_piece(monkeypatch):
    monkeypatch.setattr(traces, "LEVEL_0_ROWS", 1)
    monkeypatch.setattr(traces, "LEAST_BYTES", 1)
    monkeypatch.setattr(traces, "_LEVELS", 0)
    pieces, trace = [], Trace()

    def noting(runs, *, whole, above=()):
        pieces.append(sum(r.num_rows for r in runs))
        return merge_runs(runs, whole=whole, above=above)

    for number in range(60):
        rows = [(7 if i % 2 else number * 1000 + i, i) for i in range(200 if number < FAN_IN else 1)]
        trace = Trace(trace.runs, MergeBudget(1_000))
        trace.append(arrange(delta_of(SCHEMA, rows), (0,)), noting)
    assert max(pieces) >= 100 * FAN_IN
    hot = [r for r in trace.runs if (r.arrays[0].to_numpy() == 7).sum() > 1]
    assert len(hot) == 1

"""Runs that are elsewhere: what is asked of some keys is the same as of the whole run, and little of it is fetched."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.thorough import examples
from tests.unit.kernel.kernel_tools import (
    FarBlob,
    Stored,
    blob_of,
    delta_of,
    drawn_hashes,
    drawn_ranges,
    entries,
    index_all_runs,
    rows_of,
    schema_of,
    step_join,
    weaken_hashes,
)
from tests.unit.kernel.test_delta import deltas

from watersmeet.circuit.operators import InputColumn, Join
from watersmeet.errors import Error
from watersmeet.kernel.context import StepContext
from watersmeet.kernel.evaluation.expressions import EVALUATOR
from watersmeet.kernel.runs import matching
from watersmeet.kernel.runs import run as blocks
from watersmeet.kernel.runs.cold import RemoteRun, near, opened, together
from watersmeet.kernel.runs.run import Run, arrange
from watersmeet.kernel.runs.trace import find
from watersmeet.values.types import BIGINT, VARCHAR


def far_run(run, *, filters=True):
    """The run, stored and elsewhere; and its blob."""
    blob = FarBlob(blob_of(run, filters=filters))
    (found,) = together([opened(blob, None)])
    return found, blob


@examples(90)
@given(deltas(), st.data())
def test_rows_of_some_keys_are_those_of_the_whole_run(delta, data):
    """Any types, keys and collisions. Bytes that were not fetched are garbage."""
    width = delta.columns.num_columns
    keys = tuple(data.draw(st.lists(st.integers(0, width - 1), max_size=2))) if width else ()
    with pytest.MonkeyPatch.context() as patch:
        index_all_runs(patch, data.draw(st.sampled_from([1, 2, 4, 1024])))
        if data.draw(st.booleans()):
            weaken_hashes(patch)
        run = arrange(delta, keys)
        if not run.num_rows:
            return
        hashes = drawn_hashes(data, run)
        cold, _ = far_run(run, filters=data.draw(st.booleans()))
        assert isinstance(cold, RemoteRun)
        assert entries([cold], hashes) == entries([run], hashes)
        spread, bases, every = drawn_ranges(data, run, hashes)
        cold, _ = far_run(run)
        found = near([cold], lambda: bases, spread)
        kept = [str(row) for part in found for row in rows_of(part.delta())]
        wanted = [str(row) for row in rows_of(run.take(np.flatnonzero(every)).delta())]
        assert kept == wanted or found == [cold]
        for told in ("num_rows", "size_bytes", "has_negative", "all_ones", "pure", "keys", "continues", "note"):
            assert getattr(far_run(run)[0], told) == getattr(run, told)
        assert blob_of(far_run(run)[0], filters=True).equals(blob_of(run, filters=True))


@examples(100)
@given(st.integers(0, 2**32), st.integers(1, 3000), st.sampled_from([3, 2**20, 2**64 - 1]))
def test_filters_have_no_false_negatives(seed, rows, most):
    hashes = np.sort(np.random.default_rng(seed).integers(0, most, rows, np.uint64, endpoint=True))
    index = memoryview(bytearray(blocks.index_bytes(hashes, filters=True)))
    blocks.write_index(index, hashes)
    found = blocks.index_layout(bytes(index[-blocks.END_BYTES :]), len(index))
    assert found.filters_at == 0
    filters = np.frombuffer(index, np.uint8, found.hashes_at).reshape(found.blocks, -1)
    assert blocks.may_have(filters, np.arange(rows) // blocks.BLOCK_ROWS, hashes).all()


def test_filters_seldom_say_that_a_hash_is_there_which_is_not():
    hashes = np.sort(np.random.default_rng(1).integers(0, 2**64 - 1, 1 << 16, np.uint64))
    index = memoryview(bytearray(blocks.index_bytes(hashes, filters=True)))
    blocks.write_index(index, hashes)
    found = blocks.index_layout(bytes(index[-blocks.END_BYTES :]), len(index))
    assert found.filter_bytes < 1.4 * blocks.BLOCK_ROWS
    filters = np.frombuffer(index, np.uint8, found.hashes_at).reshape(found.blocks, -1)
    others = np.random.default_rng(2).integers(0, 2**64 - 1, 1 << 16, np.uint64)
    assert blocks.may_have(filters, np.arange(len(others)) % found.blocks, others).mean() < 0.02


LARGE = 50_000


@pytest.fixture(scope="module")
def large():
    numbers = np.arange(LARGE, dtype=np.int64)
    texts = pa.array([f"text {i}" for i in range(LARGE)])
    lists = pa.array([[i, None, -i][: i % 4] for i in range(LARGE)], pa.list_(pa.int64()))
    table = pa.table({"c0": numbers, "c1": texts, "c2": numbers % 7 == 0, "c3": lists})
    return arrange(delta_of((), []).__class__(table, np.where(numbers % 5, 1, -2)), (0,))


@pytest.mark.parametrize("filters", [True, False])
def test_a_few_keys_need_a_few_bytes(large, filters):
    cold, blob = far_run(large, filters=filters)
    opening = blob.fetched_bytes
    assert opening < 4000
    hashes = large.hash[[5, 30_000, LARGE - 1]]
    assert entries([cold], hashes) == entries([large], hashes)
    needed = blob.fetched_bytes - opening
    assert needed < 3 * (2 * 8 * blocks.BLOCK_ROWS + 200 + filters * 2000)
    assert entries([cold], hashes) == entries([large], hashes)
    assert blob.fetched_bytes == opening + needed
    assert not cold.is_here


def test_filters_spare_the_search_for_keys_that_are_not_there(large):
    gaps = np.flatnonzero(np.diff(large.hash) > np.uint64(1))[:: LARGE // 20]
    cold, blob = far_run(large)
    opening = blob.fetched_bytes
    assert entries([cold], large.hash[gaps] + np.uint64(1)) == []
    with_filters = blob.fetched_bytes - opening
    cold, blob = far_run(large, filters=False)
    assert entries([cold], large.hash[gaps] + np.uint64(1)) == []
    assert 4 * with_filters < blob.fetched_bytes - opening


def test_many_keys_fetch_all(large):
    cold, _ = far_run(large)
    assert near([cold], lambda: large.hash[:: blocks.BLOCK_ROWS]) == [cold]
    assert cold.is_here
    assert cold.columns.equals(large.columns)


def test_other_keys_can_not_be_looked_up_in_what_was_fetched(large):
    (some,) = near([far_run(large)[0]], lambda: large.hash[7:8])
    find(some, large.hash[7:8])
    with pytest.raises(Error, match="only rows of others were fetched"):
        find(some, large.hash[8:9])


def test_an_index_of_something_else_is_damage(large):
    blob = bytearray(blob_of(large).to_pybytes())
    blob[4:8] = b"\xff\xff\xff\x7f"
    with pytest.raises(Error) as found:
        together([opened(FarBlob(pa.py_buffer(bytes(blob))), None)])
    assert found.value.condition == "STATE_DAMAGED"


def test_a_run_without_an_index_is_read_as_a_whole():
    run = arrange(delta_of(schema_of(BIGINT), [(i,) for i in range(100)]), (0,))
    cold, blob = far_run(run)
    assert type(cold) is Run
    assert blob.fetched_bytes == len(blob.buffer)
    assert rows_of(cold.delta()) == rows_of(run.delta())


KINDS = ("inner", "left", "right", "full", "semi", "anti")


@examples(48)
@given(st.sampled_from(KINDS), st.booleans(), st.booleans(), st.integers(0, 10**6))
def test_joins_of_cold_state_are_those_of_warm_state(kind, residual, weak, seed):
    """The same output, and the same state, byte for byte."""
    rng = np.random.default_rng(seed)
    schema = schema_of(BIGINT, VARCHAR)
    output = [InputColumn(0, 0), InputColumn(0, 1)]
    if kind not in ("semi", "anti"):
        output += [InputColumn(1, 0), InputColumn(1, 1)]
    fields = tuple(schema[c.column] for c in output)
    op = Join(
        ("left", "right"),
        fields,
        False,
        join_kind=kind,
        left_keys=(0,),
        right_keys=(0,),
        null_safe=(False,),
        residual="l1 <> r1" if residual else None,
        output=tuple(output),
    )
    warm, cold = Stored(), Stored(far=True)
    there = ([], [])
    with pytest.MonkeyPatch.context() as patch:
        index_all_runs(patch)
        if weak:
            weaken_hashes(patch)
        for _ in range(5):
            inputs = []
            for rows in there:
                gone = [rows.pop(int(rng.integers(len(rows)))) for _ in range(min(len(rows), int(rng.integers(3))))]
                came = [
                    (None if rng.random() < 0.1 else int(rng.integers(30)), f"{rng.integers(4)}")
                    for _ in range(int(rng.choice([0, 2, 40])))
                ]
                rows.extend(came)
                inputs.append(delta_of(schema, [*came, *gone], [1] * len(came) + [-1] * len(gone)))
            made = []
            for stored in (warm, cold):
                state = stored.load()
                context = StepContext(0, False, EVALUATOR, (schema, schema))
                made.append(step_join(op, inputs, state, context))
                stored.save(state)
            assert rows_of(made[0]) == rows_of(made[1])
            assert made[0].diff.tolist() == made[1].diff.tolist()
    assert [Run.from_ipc(pa.py_buffer(b)).columns for b in warm.bytes()] == [
        Run.from_ipc(pa.py_buffer(b)).columns for b in cold.bytes()
    ]


@pytest.mark.parametrize(
    ("kind", "of_left", "of_right"),
    [("inner", "r", "l"), ("left", "r", "lr"), ("right", "lr", "l"), ("full", "lr", "lr")],
)
def test_a_side_is_asked_for_its_own_keys_only_if_partners_are_counted(monkeypatch, kind, of_left, of_right):
    schema = schema_of(BIGINT)
    stored = Stored(far=True)
    output = tuple(InputColumn(side, 0) for side in range(2))
    op = Join(("l", "r"), schema[:1] * len(output), False, kind, (0,), (0,), (False,), None, output)
    context = StepContext(0, False, EVALUATOR, (schema, schema))
    state = stored.load()
    step_join(op, [delta_of(schema, [(i,) for i in range(50)])] * 2, state, context)
    stored.save(state)
    asked = []

    def noted(runs, hashes):
        asked.append(set(hashes().tolist()))
        return near(runs, hashes)

    monkeypatch.setattr(matching, "near", noted)
    changes = {"l": delta_of(schema, [(1,), (2,)]), "r": delta_of(schema, [(3,), (4,)])}
    step_join(op, [changes["l"], changes["r"]], stored.load(), context)
    keys = {side: set(arrange(delta, (0,)).hash.tolist()) for side, delta in changes.items()}
    wanted = [set().union(*(keys[side] for side in sides)) for sides in (of_left, of_right)]
    assert sorted(map(sorted, {frozenset(a) for a in asked})) == sorted(map(sorted, {frozenset(w) for w in wanted}))

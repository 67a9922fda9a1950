"""Upserts against a dict, after every epoch."""

from __future__ import annotations

import math
import random
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests import reference
from tests.thorough import examples
from tests.unit.kernel.kernel_tools import Stored, delta_of, rows_of, schema_of, weaken_hashes

from watersmeet.circuit.operators import KEPT, Upsert
from watersmeet.kernel.context import StepContext
from watersmeet.kernel.evaluation.expressions import Evaluator
from watersmeet.kernel.metrics import Orphan
from watersmeet.kernel.operators.changelogs import upsert
from watersmeet.kernel.runs.delta import Delta
from watersmeet.values.types import BIGINT, DOUBLE, INTEGER, VARCHAR, Field

EVALUATOR = Evaluator()
SCHEMA = schema_of(VARCHAR, DOUBLE, INTEGER)
INPUT = (*SCHEMA, Field("_seq", BIGINT))
VALUES = [["a", "b", "", None], [0.0, -0.0, float("nan"), 1.0], [None, 1, 2]]


def run_history(keys, seed, epochs, size, *, mangle=None):
    rng = random.Random(seed)
    op = Upsert(("s",), SCHEMA, False, tuple(keys))
    stored, current, content, outputs = Stored(), {}, Counter(), []
    for _ in range(epochs):
        rows = [tuple(rng.choice(v) for v in VALUES) for _ in range(rng.randrange(size + 1))]
        diffs = [rng.choice([1, 1, 1, -1]) for _ in rows]
        for r, d in zip(rows, diffs, strict=True):
            key = tuple(reference.norm(r[i]) for i in keys)
            if d > 0:
                current[key] = reference.row(r)
            else:
                current.pop(key, None)
        delta = delta_of(INPUT, [(*r, i) for i, r in enumerate(rows)], diffs)
        state = stored.load()
        out = upsert(op, [mangle(rng, delta) if mangle else delta], state, StepContext(0, False, EVALUATOR, (INPUT,)))
        stored.save(state)
        outputs.append((str(out.columns.to_pylist()), out.diff.tolist()))
        reference.accumulate(content, rows_of(out), out.diff)
        assert content == Counter(current.values())
        assert len({reference.row(r) for r in rows_of(out)}) == out.num_rows, "consolidated"
    return outputs, stored.bytes()


KEYS = st.sampled_from([[0], [1], [0, 1], [2, 0], [0, 1, 2]])


@examples(200)
@given(KEYS, st.integers(0, 10**6), st.integers(1, 8), st.integers(0, 15))
def test_random_histories(keys, seed, epochs, size):
    run_history(keys, seed, epochs, size)


@examples(100)
@given(KEYS, st.integers(0, 10**6), st.sampled_from([0, 1, 3]))
def test_random_histories_when_hashes_collide(keys, seed, mask):
    with pytest.MonkeyPatch.context() as patch:
        weaken_hashes(patch, mask)
        run_history(keys, seed, 5, 8)


@examples(50)
@given(KEYS, st.integers(0, 10**6))
def test_order_and_cut_of_the_input_do_not_matter(keys, seed):
    def mangle(rng, delta):
        order = np.random.default_rng(seed).permutation(delta.num_rows)
        at = delta.num_rows // 2
        return Delta.concat([delta.take(order[:at]), delta.take(order[at:])])

    assert run_history(keys, seed, 6, 10) == run_history(keys, seed, 6, 10, mangle=mangle)


def test_the_last_row_of_an_epoch_wins_and_an_unchanged_row_is_silent():
    schema = schema_of(INTEGER, INTEGER)
    changes = (*schema, Field("_seq", BIGINT))
    op = Upsert(("s",), schema, False, (0,))
    state = Stored().load()

    def put(rows, diffs=None):
        out = upsert(op, [delta_of(changes, rows, diffs)], state, StepContext(0, False, EVALUATOR, (changes,)))
        return {r: int(d) for r, d in zip(rows_of(out), out.diff, strict=True)}

    assert put([(1, 10, 0), (1, 11, 1), (2, 20, 2)]) == {(1, 11): 1, (2, 20): 1}
    assert put([(1, 11, 3)]) == {}
    assert put([(1, 12, 4), (2, 0, 5)], [1, -1]) == {(1, 11): -1, (1, 12): 1, (2, 20): -1}
    assert put([(2, 0, 6), (3, 30, 7)], [-1, 1]) == {(3, 30): 1}
    assert put([]) == {}


def run_partial_history(keys, seed, epochs, size, *, mangle=None):
    """Changes that keep values or empty the table, against a dict that takes them one by one."""
    rng = random.Random(seed)
    op = Upsert(("s",), SCHEMA, False, tuple(keys), partial=True)
    fields = (*SCHEMA, KEPT, Field("_seq", BIGINT))
    others = [i for i in range(len(SCHEMA)) if i not in keys]
    stored, current, content, outputs, number = Stored(), {}, Counter(), [], 0
    for _ in range(epochs):
        rows, diffs, lost = [], [], []
        for _ in range(rng.randrange(size + 1)):
            row, diff, kept = tuple(rng.choice(v) for v in VALUES), rng.choice([1, 1, 1, -1]), None
            key = tuple(reference.norm(row[i]) for i in keys)
            if rng.random() < 0.07:
                row, diff, kept = (None,) * len(SCHEMA), -1, rng.choice([[], [0]])
                current.clear()
            elif diff < 0:
                current.pop(key, None)
            elif rng.random() < 0.5:
                kept = rng.sample(others, rng.randrange(len(others) + 1))
                if kept and key in current:
                    old = current[key]
                    current[key] = reference.row([old[i] if i in kept else v for i, v in enumerate(row)])
                elif kept:
                    lost.append((number, tuple(sorted(kept))))
                else:
                    current[key] = reference.row(row)
            else:
                current[key] = reference.row(row)
            rows.append((*row, kept, number))
            diffs.append(diff)
            number += 1
        delta = delta_of(fields, rows, diffs)
        state = stored.load()
        ctx = StepContext(0, False, EVALUATOR, (fields,))
        out = upsert(op, [mangle(delta) if mangle else delta], state, ctx)
        stored.save(state)
        outputs.append((str(out.columns.to_pylist()), out.diff.tolist()))
        reference.accumulate(content, rows_of(out), out.diff)
        assert content == Counter(current.values())
        assert sorted((o.seq, o.kept) for o in ctx.counters.orphans) == lost
    return outputs, stored.bytes()


@examples(200)
@given(KEYS, st.integers(0, 10**6), st.integers(1, 8), st.integers(0, 15))
def test_random_histories_of_partial_changes(keys, seed, epochs, size):
    run_partial_history(keys, seed, epochs, size)


@examples(100)
@given(KEYS, st.integers(0, 10**6), st.sampled_from([0, 1, 3]))
def test_random_histories_of_partial_changes_when_hashes_collide(keys, seed, mask):
    with pytest.MonkeyPatch.context() as patch:
        weaken_hashes(patch, mask)
        run_partial_history(keys, seed, 5, 12)


@examples(50)
@given(KEYS, st.integers(0, 10**6))
def test_order_and_cut_of_partial_changes_do_not_matter(keys, seed):
    def mangle(delta):
        order = np.random.default_rng(seed).permutation(delta.num_rows)
        at = delta.num_rows // 2
        return Delta.concat([delta.take(order[:at]), delta.take(order[at:])])

    assert run_partial_history(keys, seed, 6, 10) == run_partial_history(keys, seed, 6, 10, mangle=mangle)


def test_an_update_keeps_what_the_one_before_it_left_and_finds_no_row_after_the_table_was_emptied():
    schema = schema_of(INTEGER, INTEGER, VARCHAR)
    changes = (*schema, KEPT, Field("_seq", BIGINT))
    op = Upsert(("s",), schema, False, (0,), partial=True)
    state = Stored().load()

    def put(rows, diffs=None):
        ctx = StepContext(0, False, EVALUATOR, (changes,))
        out = upsert(op, [delta_of(changes, rows, diffs)], state, ctx)
        return {r: int(d) for r, d in zip(rows_of(out), out.diff, strict=True)}, ctx.counters.orphans

    assert put([(1, 1, "long", None, 0), (1, 2, None, [2], 1), (1, None, None, [1, 2], 2)]) == ({(1, 2, "long"): 1}, [])
    assert put([(1, 3, None, [2], 3)]) == ({(1, 2, "long"): -1, (1, 3, "long"): 1}, [])
    gone, orphans = put([(1, 4, None, [2], 4), (None, None, None, [], 5), (1, 5, None, [2], 6)], [1, -1, 1])
    assert gone == {(1, 3, "long"): -1}
    assert orphans == [Orphan(6, ("1",), (2,))]
    assert put([(7, 0, None, [2], 7)]) == ({}, [Orphan(7, ("7",), (2,))])
    assert put([(7, 0, "x", [], 8), (None, None, None, [], 9)], [1, -1]) == ({}, [])


ACTIONS = st.sampled_from(["overwrite", "ignore", "fill"])


def by_rule(row, new, action, versions):
    """The row of a key after a new one, from RisingWave, "PK conflict behavior"."""
    if row is None:
        return new
    newer = [(v is not None, math.isnan(v) if isinstance(v, float) else False, v) for v in (new[i] for i in versions)]
    there = [(v is not None, math.isnan(v) if isinstance(v, float) else False, v) for v in (row[i] for i in versions)]
    for mine, theirs in zip(newer, there, strict=True):
        if mine[:2] != theirs[:2] or (mine[0] and not mine[1] and mine[2] != theirs[2]):
            if mine[:2] < theirs[:2] or (mine[:2] == theirs[:2] and mine[2] < theirs[2]):
                return row
            break
    if action == "ignore":
        return row
    return new if action == "overwrite" else tuple(o if n is None else n for o, n in zip(row, new, strict=True))


@examples(200)
@given(
    ACTIONS,
    st.lists(st.sampled_from([1, 2]), max_size=2, unique=True),
    st.integers(0, 10**6),
    st.sampled_from([0, 3, None]),
)
def test_rules_of_conflicts_against_a_dict(action, versions, seed, mask):
    if (action == "fill" and len(versions) > 1) or (action == "ignore" and versions):
        return
    rng = random.Random(seed)
    op = Upsert(("s",), SCHEMA, False, (0,), action=action, versions=tuple(versions))
    stored, current, content = Stored(), {}, Counter()
    with pytest.MonkeyPatch.context() as patch:
        if mask is not None:
            weaken_hashes(patch, mask)
        for _ in range(5):
            rows = [tuple(rng.choice(v) for v in VALUES) for _ in range(rng.randrange(12))]
            diffs = [rng.choice([1, 1, 1, 1, -1]) for _ in rows]
            for r, d in zip(rows, diffs, strict=True):
                if d > 0:
                    current[r[0]] = by_rule(current.get(r[0]), r, action, versions)
                else:
                    current.pop(r[0], None)
            delta = delta_of(INPUT, [(*r, i) for i, r in enumerate(rows)], diffs)
            delta = delta.take(np.random.default_rng(seed).permutation(delta.num_rows))
            state = stored.load()
            out = upsert(op, [delta], state, StepContext(0, False, EVALUATOR, (INPUT,)))
            stored.save(state)
            reference.accumulate(content, rows_of(out), out.diff)
            assert content == Counter(reference.row(r) for r in current.values())

"""Joins of many inputs by one key against the nested-loop reference, after every epoch of random histories."""

from __future__ import annotations

import itertools
import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests import reference
from tests.thorough import examples
from tests.unit.kernel.kernel_tools import Stored, delta_of, rows_of, schema_of, weaken_hashes
from tests.unit.kernel.test_join import EVALUATOR, VALUES, random_change

from watersmeet.circuit.operators import Arrange, MultiJoin
from watersmeet.kernel import joins
from watersmeet.kernel.context import StepContext
from watersmeet.kernel.metrics import Counters
from watersmeet.kernel.operators import arrange, join
from watersmeet.kernel.runs import trace
from watersmeet.kernel.runs.delta import Slicing, slices_of
from watersmeet.values.types import BIGINT, INTEGER, Field

RESIDUALS = {
    None: lambda *rows: True,
    "t0_2 < t1_2": lambda a, b, *rest: a[2] is not None and b[2] is not None and a[2] < b[2],
    "1 / (t0_2 - t2_2) > 0": lambda a, b, c, *rest: None not in (a[2], c[2]) and a[2] - c[2] >= 0,  # 1 / 0 is infinite
}


def make(schema, inputs, keys, residual, output):
    output = reference.columns(*output)
    fields = tuple(Field(o.numbered_name, schema[o.column].type) for o in output)
    op = MultiJoin(tuple(f"in{i}" for i in range(inputs)), fields, False, (keys,) * inputs, residual, output)
    return op, [Arrange((i,), schema, False, keys, (False,) * len(keys), 0) for i in op.inputs]


def expected(op, contents):
    result = Counter()
    for rows in itertools.product(*[c.items() for c in contents]):
        values = [r for r, _ in rows]
        met = all(
            reference.keys_match(
                [values[0][k] for k in op.keys[0]], [v[k] for k in op.keys[0]], [False] * len(op.keys[0])
            )
            for v in values[1:]
        )
        if met and RESIDUALS[op.residual](*values):
            count = 1
            for _, n in rows:
                count *= n
            result[reference.row([values[o.input][o.column] for o in op.output])] += count
    return +result


def run(op, arranges, schema, values, seed, epochs, size, slicing=Slicing()):
    rng = random.Random(seed)
    stored = Stored()
    contents, plain = [[Counter() for _ in op.inputs] for _ in range(2)]
    result = Counter()
    context = StepContext(0, False, EVALUATOR, (schema,) * len(op.inputs), slicing=slicing)
    for _ in range(epochs):
        state = stored.load()
        arranged = []
        for made, content, known in zip(arranges, contents, plain, strict=True):
            rows, diffs = random_change(rng, known, values, size) if rng.random() < 0.6 else ([], [])
            for r, d in zip(rows, diffs, strict=True):
                known[r] += d
            reference.accumulate(content, rows, diffs)
            arranged.append(arrange.step(made, [delta_of(schema, rows, diffs)], state, context))
        out = join.multi_join(op, arranged, state, context)
        stored.save(state)
        for piece in slices_of(out):
            reference.accumulate(result, rows_of(piece), piece.diff)
            signs = {}
            for r, d in zip(rows_of(piece), piece.diff, strict=True):
                assert signs.setdefault(reference.row(r), d > 0) == (d > 0), "a row with both signs"
        assert result == expected(op, contents)


@st.composite
def cases(draw):
    types = [draw(st.sampled_from(list(VALUES))) for _ in range(2)]
    schema = schema_of(*types, INTEGER)
    inputs = draw(st.integers(3, 4))
    output = draw(
        st.lists(st.sampled_from([f"t{i}_{c}" for i in range(inputs) for c in range(3)]), min_size=1, max_size=4)
    )
    keys = tuple(range(draw(st.integers(1, 2))))
    residual = draw(st.sampled_from(list(RESIDUALS)))
    return *make(schema, inputs, keys, residual, output), schema, [VALUES[t] for t in types] + [[None, 1, 2, 3]]


@examples(40)
@given(cases(), st.integers(0, 10**6), st.integers(1, 6), st.integers(0, 5))
def test_random_histories(case, seed, epochs, size):
    run(*case, seed, epochs, size)


@examples(60)
@given(cases(), st.integers(0, 10**6), st.integers(1, 6), st.integers(0, 5), st.sampled_from([None, 3]))
def test_random_histories_in_which_keys_lose_their_only_row(case, seed, epochs, size, mask):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(joins, "EMPTIED_ROWS", 1)
        if mask is not None:
            weaken_hashes(patch, mask)
        run(*case, seed, epochs, size)


def test_a_deleted_combination_is_made_once():
    schema = schema_of(INTEGER, INTEGER)
    op, arranges = make(schema, 3, (0,), None, ["t0_0", "t1_1", "t2_1"])
    state, counters = Stored().load(), Counters()
    context = StepContext(0, False, EVALUATOR, (schema,) * 3, counters)
    change = delta_of(schema, [(i, i) for i in range(joins.EMPTIED_ROWS)])
    join.multi_join(op, [arrange.step(a, [change], state, context) for a in arranges], state, context)
    before = counters.made_rows
    gone = [arrange.step(a, [change.negated()], state, context) for a in arranges]
    assert join.multi_join(op, gone, state, context).num_rows == change.num_rows
    assert counters.made_rows - before == change.num_rows


@examples(20)
@given(cases(), st.integers(0, 10**6), st.sampled_from([0, 1, 3]))
def test_random_histories_when_hashes_collide_and_pieces_are_small(case, seed, mask):
    with pytest.MonkeyPatch.context() as patch:
        weaken_hashes(patch, mask)
        patch.setattr(trace, "PIECE_ROWS", 3)
        run(*case, seed, 4, 4, Slicing(rows=3))


def test_skew_is_expanded_in_pieces():
    """One key with 130 rows in each of three inputs: 2.2 M combinations."""
    schema = schema_of(BIGINT, BIGINT)
    op, arranges = make(schema, 3, (0,), None, ["t0_1", "t2_1"])
    context = StepContext(0, True, EVALUATOR, (schema,) * 3)
    state = Stored().load()
    delta = delta_of(schema, [(7, i) for i in range(130)])
    out = join.multi_join(op, [arrange.step(a, [delta], state, context) for a in arranges], state, context)
    sizes = [piece.num_rows for piece in out]
    assert sum(sizes) == 130**3
    assert max(sizes) <= Slicing().rows

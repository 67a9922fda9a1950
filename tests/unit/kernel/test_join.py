"""Joins against the nested-loop reference, after every epoch of random histories."""

from __future__ import annotations

import random
from collections import Counter
from decimal import Decimal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests import reference
from tests.thorough import examples
from tests.unit.kernel.kernel_tools import Stored, delta_of, rows_of, schema_of, step_join, weaken_hashes

from watersmeet.circuit.operators import Join
from watersmeet.kernel import joins
from watersmeet.kernel.arrays.hashing import NULL_HASH, hash_columns
from watersmeet.kernel.context import StepContext
from watersmeet.kernel.evaluation.expressions import Evaluator
from watersmeet.kernel.metrics import Counters
from watersmeet.kernel.runs.delta import Delta, Slicing
from watersmeet.values.types import BIGINT, DOUBLE, INTEGER, TIMESTAMP, VARCHAR, Field, SqlType

EVALUATOR = Evaluator()
KINDS = ["inner", "left", "right", "full", "semi", "anti"]
DECIMAL = SqlType("numeric", 20, 2)
VALUES = {
    INTEGER: [None, 0, 1, 2, -1],
    VARCHAR: [None, "", "a", "b", "a long string that does not fit into one or two words, nor four"],
    DOUBLE: [None, 0.0, -0.0, float("nan"), 1.5],
    DECIMAL: [None, Decimal("0.00"), Decimal("1.50"), Decimal("-1.50")],
}
RESIDUALS = {
    None: lambda l, r: True,
    "l2 < r2": lambda l, r: l[2] is not None and r[2] is not None and l[2] < r[2],
    "r2 = 1": lambda l, r: r[2] == 1,
    "l2 <> 1": lambda l, r: l[2] is not None and l[2] != 1,
    "1 / (l2 - r2) > 0 AND false": lambda l, r: False,
    "true": lambda l, r: True,
}


def make_join(kind, schema, left_keys, right_keys, null_safe, residual, output=None):
    width = len(schema)
    names = [f"l{i}" for i in range(width)] + ([] if kind in ("semi", "anti") else [f"r{i}" for i in range(width)])
    output = reference.columns(*(names if output is None else output))
    fields = tuple(Field(c.name, schema[c.column].type) for c in output)
    return Join(
        ("l", "r"), fields, False, kind, tuple(left_keys), tuple(right_keys), tuple(null_safe), residual, output
    )


def random_change(rng, content, values, size):
    """Rows to insert, from few values, and rows to delete, from the content."""
    rows = [tuple(rng.choice(v) for v in values) for _ in range(rng.randrange(size + 1))]
    diffs = [1] * len(rows)
    have = [r for r in content.elements()]
    rng.shuffle(have)
    gone = have[: rng.randrange(len(have) + 1)] if rng.random() < 0.6 else []
    rows += gone
    diffs += [-1] * len(gone)
    if rows and rng.random() < 0.2:  # comes and goes within the epoch
        rows += [rows[0], rows[0]]
        diffs += [1, -1]
    return rows, diffs


def run_history(op, schema, values, seed, epochs, size, stored=None, mangle=None):
    """Runs a random history and checks the output against the reference after each epoch; returns output bytes."""
    rng = random.Random(seed)
    stored = stored or Stored()
    left, right, result = Counter(), Counter(), Counter()
    plain_left, plain_right = Counter(), Counter()
    outputs = []
    context = StepContext(0, False, EVALUATOR, (schema, schema))
    for _ in range(epochs):
        deltas = []
        for content, plain in ((left, plain_left), (right, plain_right)):
            rows, diffs = random_change(rng, plain, values, size) if rng.random() < 0.85 else ([], [])
            for r, d in zip(rows, diffs, strict=True):
                plain[r] += d
            reference.accumulate(content, rows, diffs)
            delta = delta_of(schema, rows, diffs)
            deltas.append(mangle(delta) if mangle else delta)
        state = stored.load()
        out = step_join(op, deltas, state, context)
        stored.save(state)
        outputs.append((out.columns.combine_chunks(), out.diff))
        reference.accumulate(result, rows_of(out), out.diff)
        expected = reference.join(
            op.join_kind,
            left,
            right,
            left_keys=op.left_keys,
            right_keys=op.right_keys,
            null_safe=op.null_safe,
            residual=RESIDUALS[op.residual],
            output=op.output,
            left_width=len(schema),
            right_width=len(schema),
        )
        assert result == expected
        signs = {}
        for r, d in zip(rows_of(out), out.diff, strict=True):
            assert signs.setdefault(reference.row(r), d > 0) == (d > 0), "a row with both signs"
    return outputs, stored.bytes()


@st.composite
def cases(draw):
    types = [draw(st.sampled_from(list(VALUES))) for _ in range(2)]
    schema = schema_of(*types, INTEGER)
    values = [VALUES[t] for t in types] + [[None, 1, 2, 3]]
    count = draw(st.integers(0, 2))
    keys = list(range(count)) if draw(st.booleans()) or types[0] != types[1] else list(reversed(range(count)))
    null_safe = [draw(st.booleans()) for _ in keys]
    kind = draw(st.sampled_from(KINDS))
    residual = draw(st.sampled_from(list(RESIDUALS)))
    output = None
    if draw(st.booleans()):
        sides = "l" if kind in ("semi", "anti") else "lr"
        names = [f"{s}{i}" for s in sides for i in range(3)]
        output = draw(st.lists(st.sampled_from(names), max_size=4))
    return make_join(kind, schema, range(count), keys, null_safe, residual, output), schema, values


@examples(250)
@given(cases(), st.integers(0, 10**6), st.integers(1, 8), st.integers(0, 12))
def test_random_histories(case, seed, epochs, size):
    run_history(*case, seed, epochs, size)


@examples(250)
@given(cases(), st.integers(0, 10**6), st.integers(1, 8), st.integers(0, 12), st.sampled_from([None, 3]))
def test_random_histories_in_which_keys_lose_their_only_row(case, seed, epochs, size, mask):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(joins, "EMPTIED_ROWS", 1)
        if mask is not None:
            weaken_hashes(patch, mask)
        run_history(*case, seed, epochs, size)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("residual", list(RESIDUALS))
@pytest.mark.parametrize("mirrored", [False, True])
def test_orders_are_replaced_with_their_lines(kind, residual, mirrored):
    """Half of the orders and all of their lines are replaced, as large changes do: unique keys on one side."""
    schema = schema_of(INTEGER, INTEGER, INTEGER)
    op = make_join(kind, schema, [0], [0], [False], residual)
    state, rng = Stored().load(), random.Random(1)
    context = StepContext(0, True, EVALUATOR, (schema, schema))
    orders, lines, result = Counter(), Counter(), Counter()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(joins, "EMPTIED_ROWS", 1)
        for epoch in range(6):
            gone = {key for (key, _, _) in orders if rng.random() < 0.5}
            # Some keys come back with other rows, some orders lose only a part of their lines.
            fresh = {k for k in range(10 * epoch, 10 * epoch + 8)} | set(rng.sample(sorted(gone), len(gone) // 3))
            kept = set(rng.sample(sorted(gone), len(gone) // 4))
            changes = []
            for content, count in ((orders, 1), (lines, 3)):
                old = [r for r in content.elements() if r[0] in gone and not (count > 1 and r[0] in kept and r[1] == 0)]
                new = [(key, i, rng.randrange(3)) for key in sorted(fresh) for i in range(count)]
                changes.append((old + new, [-1] * len(old) + [1] * len(new)))
                reference.accumulate(content, *changes[-1])
            sides = [delta_of(schema, *change) for change in changes]
            out = step_join(op, sides[::-1] if mirrored else sides, state, context)
            reference.accumulate(result, rows_of(out), out.diff)
            contents = (lines, orders) if mirrored else (orders, lines)
            expected = reference.join(
                kind,
                *contents,
                left_keys=op.left_keys,
                right_keys=op.right_keys,
                null_safe=op.null_safe,
                residual=RESIDUALS[residual],
                output=op.output,
                left_width=3,
                right_width=3,
            )
            assert result == expected


@pytest.mark.parametrize("mirrored", [False, True])
def test_a_deleted_pair_is_made_once(mirrored):
    schema = schema_of(INTEGER, INTEGER)
    op = make_join("inner", schema, [0], [0], [False], None)
    state, counters = Stored().load(), Counters()
    context = StepContext(0, True, EVALUATOR, (schema, schema), counters)
    count = joins.EMPTIED_ROWS
    orders, lines = [(i, 0) for i in range(count)], [(i, j) for i in range(count) for j in range(2)]
    sides = [delta_of(schema, orders), delta_of(schema, lines)]
    step_join(op, sides[::-1] if mirrored else sides, state, context)
    before = counters.made_rows
    out = step_join(op, [s.negated() for s in (sides[::-1] if mirrored else sides)], state, context)
    assert out.num_rows == 2 * count
    assert counters.made_rows - before == 2 * count


@examples(150)
@given(cases(), st.integers(0, 10**6), st.sampled_from([0, 1, 3]))
def test_random_histories_when_hashes_collide(case, seed, mask):
    with pytest.MonkeyPatch.context() as patch:
        weaken_hashes(patch, mask)
        run_history(*case, seed, 5, 8)


@examples(80)
@given(cases(), st.integers(0, 10**6))
def test_order_and_cut_of_the_input_do_not_matter(case, seed):
    """The permutation law: the same multiset gives the same bytes, of output and of state."""
    rng = random.Random(seed)

    def mangle(delta):
        order = list(range(delta.num_rows))
        rng.shuffle(order)
        at = rng.randrange(len(order) + 1)
        return Delta.concat([delta.take(np.array(part, np.int64)) for part in (order[:at], order[at:])])

    first = run_history(*case, seed, 6, 10)
    second = run_history(*case, seed, 6, 10, mangle=mangle)
    for (columns, diff), (other, other_diff) in zip(first[0], second[0], strict=True):
        assert columns.schema.equals(other.schema)
        assert [str(c.to_pylist()) for c in columns.columns] == [str(c.to_pylist()) for c in other.columns]
        assert (diff == other_diff).all()
    assert first[1] == second[1]


@pytest.mark.parametrize("kind", KINDS)
def test_one_update_on_each_side(kind):
    """Two rows a side; then the right row 1 goes and comes back."""
    schema = schema_of(INTEGER, INTEGER)
    op = make_join(kind, schema, [0], [0], [False], None)
    state = Stored().load()
    context = StepContext(0, True, EVALUATOR, (schema, schema))
    none = delta_of(schema, [])

    def changes(left, right):
        out = step_join(op, [left, right], state, context)
        return Counter({r: int(d) for r, d in zip(rows_of(out), out.diff, strict=True)})

    first = {
        "inner": {(1, 10, 1, 11): 1},
        "left": {(1, 10, 1, 11): 1, (2, 20, None, None): 1},
        "right": {(1, 10, 1, 11): 1, (None, None, 3, 31): 1},
        "full": {(1, 10, 1, 11): 1, (2, 20, None, None): 1, (None, None, 3, 31): 1},
        "semi": {(1, 10): 1},
        "anti": {(2, 20): 1},
    }
    gone = {
        "inner": {(1, 10, 1, 11): -1},
        "left": {(1, 10, 1, 11): -1, (1, 10, None, None): 1},
        "right": {(1, 10, 1, 11): -1},
        "full": {(1, 10, 1, 11): -1, (1, 10, None, None): 1},
        "semi": {(1, 10): -1},
        "anti": {(1, 10): 1},
    }
    assert changes(delta_of(schema, [(1, 10), (2, 20)]), delta_of(schema, [(1, 11), (3, 31)])) == first[kind]
    assert changes(none, delta_of(schema, [(1, 11)], [-1])) == gone[kind]
    assert changes(none, delta_of(schema, [(1, 11)])) == {r: -d for r, d in gone[kind].items()}
    assert changes(none, none) == {}


def test_skew_is_expanded_in_pieces():
    """One key with 1,500 rows on each side: 2.25 M pairs."""
    schema = schema_of(BIGINT, TIMESTAMP)
    op = make_join("inner", schema, [0], [0], [False], None, ["l1"])
    rows = [(7, i) for i in range(1500)]
    out = step_join(
        op,
        [delta_of(schema, rows), delta_of(schema, rows)],
        Stored().load(),
        StepContext(0, True, EVALUATOR, (schema, schema)),
    )
    sizes = [piece.num_rows for piece in out]
    assert sum(sizes) == 1500 * 1500
    assert max(sizes) <= Slicing().rows


def test_a_small_epoch_does_not_visit_the_whole_state():
    """10 rows against 200,000: only the matching rows are gathered."""
    schema = schema_of(BIGINT, BIGINT)
    op = make_join("left", schema, [0], [0], [False], None)
    state = Stored().load()
    context = StepContext(0, True, EVALUATOR, (schema, schema))
    none = delta_of(schema, [])
    step_join(op, [none, delta_of(schema, [(i, i) for i in range(200_000)])], state, context)
    out = step_join(op, [delta_of(schema, [(i * 1000, 0) for i in range(10)]), none], state, context)
    assert sorted(rows_of(out)) == [(i * 1000, 0, i * 1000, i * 1000) for i in range(10)]


def value_with_nulls_hash():
    """The bigint whose hash is that of NULL: the inverse of splitmix64's finaliser."""
    x, word = int(NULL_HASH), 2**64

    def unshift(y, by):
        z = y
        for _ in range(64 // by + 1):
            z = y ^ (z >> by)
        return z

    x = unshift(x, 31) * pow(0x94D049BB133111EB, -1, word) % word
    x = unshift(x, 27) * pow(0xBF58476D1CE4E5B9, -1, word) % word
    x = (unshift(x, 30) - 0x9E3779B97F4A7C15) % word
    return x - word if x >= word // 2 else x


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("null_safe", [False, True])
def test_the_value_that_hashes_as_null_is_not_null(kind, null_safe):
    value = value_with_nulls_hash()
    schema = schema_of(BIGINT, INTEGER)
    rows = delta_of(schema, [(value, 1), (None, 2)])
    assert hash_columns([rows.columns.column(0)]).tolist() == [int(NULL_HASH)] * 2
    op = make_join(kind, schema, [0], [0], [null_safe], None)
    run_history(op, schema, [[value, None], [1, 2, 3]], 1, 20, 4)

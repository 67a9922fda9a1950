"""Look-up joins in which a left row that met nothing waits for its first match, against a reference. LS-22 to LS-26."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from tests import reference
from tests.thorough import mostly_slow
from tests.unit.kernel.kernel_tools import Stored, delta_of, rows_of, weaken_hashes
from tests.unit.kernel.test_join import random_change
from tests.unit.kernel.test_temporal import RESIDUALS, SCHEMA, VALUES, make, step

from watersmeet.circuit.operators import Operator
from watersmeet.values.serialization import from_json, to_json


def look_up_of(op):
    def fits(left, right):
        return reference.keys_match(
            [left[i] for i in op.left_keys], [right[i] for i in op.right_keys], op.null_safe
        ) and RESIDUALS[op.residual](left, right)

    return reference.LookUp(op.join_kind, fits, op.output, 3)


def run(seed):
    rng = random.Random(seed)
    keyed = rng.random() < 0.8
    op = make(
        rng.choice(["inner", "left"]) if keyed else "inner",
        memo=False,
        waits=True,
        residual=rng.choice(list(RESIDUALS)),
        keys=(0,) if keyed else (),
        null_safe=(rng.random() < 0.3,) if keyed else (),
    )
    right = Counter()
    expected = look_up_of(op)
    stored = Stored()
    for epoch in range(1, rng.randrange(3, 12)):
        came = [tuple(rng.choice(v) for v in VALUES) for _ in range(rng.choice([0, 0, 1, 2, 5]))]
        rows, diffs = random_change(rng, right, VALUES, 4) if rng.random() < 0.7 else ([], [])
        for r, d in zip(rows, diffs, strict=True):
            right[r] += d
        state = stored.load()
        out = step(op, delta_of(SCHEMA, came), delta_of(SCHEMA, rows, diffs), state, epoch)
        stored.save(state)
        result = Counter()
        for r, d in zip(rows_of(out), out.diff.tolist(), strict=True):
            assert d > 0, seed
            result[reference.row(r)] += d
        assert result == expected.epoch(came, right), (seed, epoch)
        held = Counter()
        for piece in stored.load().trace(op.id, "waiting").runs:
            for r, d in zip(rows_of(piece.delta()), piece.diff.tolist(), strict=True):
                held[reference.row(r)] += d
        can_match = [r for r in expected.waiting if r[0] is not None or not keyed or op.null_safe[0]]
        assert {r: n for r, n in held.items() if n} == Counter(reference.row(r) for r in can_match), (seed, epoch)


@pytest.mark.parametrize("block", mostly_slow(range(4), 1))
def test_random_histories(block):
    for seed in range(50 * block, 50 * block + 50):
        run(seed)


def test_keys_whose_hashes_collide(monkeypatch):
    weaken_hashes(monkeypatch)
    for seed in range(1000, 1040):
        run(seed)


def epochs(op, *changes):
    """The rows of each epoch; a change is (left rows, right rows, right diffs)."""
    stored, given = Stored(), []
    for number, (left, right, diffs) in enumerate(changes, 1):
        state = stored.load()
        out = step(op, delta_of(SCHEMA, left), delta_of(SCHEMA, right, diffs), state, number)
        stored.save(state)
        given.append(
            sorted(
                ((r[0], r[1], r[3]) for r, d in zip(rows_of(out), out.diff.tolist(), strict=True) for _ in range(d)),
                key=repr,
            )
        )
    return given


def test_the_first_match_gives_a_row_out_once_and_nothing_is_taken_back():
    """The document's example (LS-24): Keyboard without its customer, then with it; a new version brings no old order
    back.
    """
    op = make("left", memo=False, waits=True)
    given = epochs(
        op,
        ([(2, "Keyboard", None)], [(1, "Frank", None)], [1]),
        ([], [(2, "John", None)], [1]),
        ([], [(2, "John", None), (2, "Johnny", None)], [-1, 1]),
    )
    assert given == [[(2, "Keyboard", None)], [(2, "Keyboard", "John")], []]


def test_both_orders_within_one_epoch_are_one():
    """The right side changes first: a row that comes with its partner meets it and never waits; what came and went was
    not there.
    """
    op = make("left", memo=False, waits=True)
    assert epochs(op, ([(1, "x", None)], [(1, "p", None)], [1]), ([], [(1, "q", None)], [1])) == [[(1, "x", "p")], []]
    came_and_went = ([], [(1, "p", None), (1, "p", None)], [1, -1])
    assert epochs(op, ([(1, "x", None)], [], []), came_and_went, ([], [(1, "q", None)], [1])) == [
        [(1, "x", None)],
        [],
        [(1, "x", "q")],
    ]


def test_all_right_rows_that_are_there_at_the_first_match_count():
    op = make("inner", memo=False, waits=True)
    given = epochs(
        op, ([(1, "x", None)] * 2, [], []), ([], [(1, "p", None), (1, "q", None)], [1, 1]), ([], [(1, "r", None)], [1])
    )
    assert given == [[], [(1, "x", "p")] * 2 + [(1, "x", "q")] * 2, []]


def test_a_residual_decides_who_waits_on():
    op = make("left", memo=False, waits=True, residual="l1 = r1")
    given = epochs(
        op, ([(1, "x", None), (1, "y", None)], [], []), ([], [(1, "x", None)], [1]), ([], [(1, "y", None)], [1])
    )
    assert given == [[(1, "x", None), (1, "y", None)], [(1, "x", "x")], [(1, "y", "y")]]


def test_operators_that_do_not_wait_keep_their_ids_and_the_flag_is_stored():
    waits, plain = make("left", memo=False, waits=True), make("left", memo=False)
    assert "waits" not in to_json(plain)
    assert from_json(Operator, to_json(waits)) == waits
    assert waits.id != plain.id

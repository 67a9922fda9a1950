"""Look-up joins whose answers serve again for a while, against a dictionary of answers. TP-19, TP-44."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest
from tests import reference
from tests.thorough import mostly_slow
from tests.unit.kernel import test_temporal as lookups
from tests.unit.kernel.kernel_tools import Stored, delta_of, rows_of, weaken_hashes
from tests.unit.kernel.test_join import random_change

from watersmeet.circuit.operators import FOREVER_US, Arrange
from watersmeet.kernel.context import StepContext
from watersmeet.kernel.operators import arrange, temporal
from watersmeet.kernel.operators.temporal import ANSWERS
from watersmeet.values.watermarks import NOW

SCHEMA, VALUES = lookups.SCHEMA, lookups.VALUES


def step(op, left, right, state, epoch, now_us):
    context = StepContext(
        0, False, lookups.EVALUATOR, (SCHEMA, SCHEMA), epoch=epoch, watermarks={} if now_us is None else {NOW: now_us}
    )
    arranged = arrange.step(Arrange(("r",), SCHEMA, False, op.right_keys, op.null_safe, 0), [right], state, context)
    return temporal.step(op, [left, arranged], state, context)


def run(seed):
    rng = random.Random(seed)
    ttl_us = rng.choice([1, 5, 20, FOREVER_US])
    memo = rng.random() < 0.3
    op = replace(
        lookups.make(
            rng.choice(["inner", "left"]),
            memo=memo,
            residual=rng.choice(list(lookups.RESIDUALS)),
            null_safe=(rng.random() < 0.3,),
        ),
        ttl_us=ttl_us,
        owner="v1",
    )
    right, left = Counter(), Counter()
    answers: dict = {}
    met: dict = {}
    result, expected = Counter(), Counter()
    stored = Stored()
    now_us = 1000
    for epoch in range(1, rng.randrange(3, 10)):
        now_us += rng.choice([0, 1, 3, 10])
        rows, diffs = random_change(rng, right, VALUES, 6)
        for r, d in zip(rows, diffs, strict=True):
            right[r] += d
        # distinct left rows, so that which of several equal ones goes makes no difference (test_temporal has that)
        came = [(rng.choice(VALUES[0]), rng.choice(VALUES[1]), epoch + i / 16) for i in range(rng.randrange(6))]
        went = [r for r in left if rng.random() < 0.2] if memo else []
        history = rng.random() < 0.1  # of which no epoch has a time
        fresh = {}
        for row in came:
            key = row[0]
            content = Counter({r: n for r, n in right.items() if n > 0})
            if not history:
                if key in answers and now_us < answers[key][1] + ttl_us:
                    content = answers[key][0]
                elif found := Counter(
                    {r: n for r, n in content.items() if r[0] == key and (key is not None or op.null_safe[0])}
                ):
                    fresh[key] = (found, now_us)
            met[row] = Counter({reference.row(r): n for r, n in lookups.look_up(op, row, content).items()})
            expected += met[row]
            left[row] = 1
        answers |= fresh
        for row in went:
            expected.subtract(met.pop(row))
            del left[row]
        state = stored.load()
        out = step(
            op,
            delta_of(SCHEMA, [*came, *went], [1] * len(came) + [-1] * len(went)),
            delta_of(SCHEMA, rows, diffs),
            state,
            epoch,
            None if history else now_us,
        )
        stored.save(state)
        for r, d in zip(rows_of(out), out.diff.tolist(), strict=True):
            result[reference.row(r)] += d
        assert {r: n for r, n in result.items() if n} == {r: n for r, n in expected.items() if n}, (
            f"seed {seed}, epoch {epoch}"
        )


@pytest.mark.parametrize("seed", mostly_slow(range(60), 45, 60, fresh=False))
def test_a_row_is_answered_as_the_rule_says(seed):
    run(seed)


@pytest.mark.parametrize("start", mostly_slow(range(1000, 1500, 100), 0))
def test_a_row_is_answered_as_the_rule_says_at_length(start):
    for seed in range(start, start + 100):
        run(seed)


@pytest.mark.parametrize("seed", range(10))
def test_keys_whose_hashes_are_equal_have_answers_of_their_own(seed, monkeypatch):
    weaken_hashes(monkeypatch)
    run(seed)


def test_answers_whose_time_is_over_leave_the_state():
    op = replace(lookups.make("inner", memo=False), ttl_us=10, owner="v1")
    stored = Stored()
    for epoch, now_us in enumerate(range(0, 400, 10), 1):
        state = stored.load()
        step(
            op,
            delta_of(SCHEMA, [(epoch, "x", 1.0)], [1]),
            delta_of(SCHEMA, [(epoch, "y", 1.0)], [1]),
            state,
            epoch,
            now_us,
        )
        stored.save(state)
        assert stored.load().trace(op.id, ANSWERS).num_rows <= 2

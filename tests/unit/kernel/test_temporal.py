"""Process-time temporal joins against a reference that looks rows up one by one.

RW-49, RW-50, RW-60 to RW-62, RA-17 to RA-20.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict, deque

import pytest
from tests import reference
from tests.thorough import mostly_slow
from tests.unit.kernel.kernel_tools import Stored, delta_of, rows_of, schema_of, weaken_hashes
from tests.unit.kernel.test_join import random_change

from watersmeet.circuit.operators import Arrange, TemporalJoin
from watersmeet.kernel.context import StepContext
from watersmeet.kernel.evaluation.expressions import Evaluator
from watersmeet.kernel.operators import arrange, temporal
from watersmeet.values.types import DOUBLE, INTEGER, VARCHAR, Field

SCHEMA = schema_of(INTEGER, VARCHAR, DOUBLE)
VALUES = [[None, 0, 1, 2], ["x", "y", None], [None, 0.0, float("nan"), 1.5]]
RESIDUALS = {
    None: lambda l, r: True,
    "l1 = r1": lambda l, r: l[1] is not None and l[1] == r[1],
    "r2 > 1": lambda l, r: r[2] is not None and not r[2] <= 1,
}
EVALUATOR = Evaluator()


def make(kind, *, memo, residual=None, keys=(0,), null_safe=(False,), waits=False):
    output = reference.columns("l0", "l1", "l2", "r1", "r2")
    fields = tuple(Field(o.name, SCHEMA[o.column].type) for o in output)
    return TemporalJoin(
        ("l", "r"),
        fields,
        not memo,
        kind,
        keys,
        keys,
        null_safe,
        residual,
        memo,
        "v1" if memo or waits else "",
        output,
        waits,
    )


def step(op, left, right, state, epoch):
    context = StepContext(0, False, EVALUATOR, (SCHEMA, SCHEMA), epoch=epoch)
    arranged = arrange.step(Arrange(("r",), SCHEMA, False, op.right_keys, op.null_safe, 0), [right], state, context)
    return temporal.step(op, [left, arranged], state, context)


def look_up(op, row, right):
    return reference.join(
        op.join_kind,
        Counter({row: 1}),
        right,
        left_keys=op.left_keys,
        right_keys=op.right_keys,
        null_safe=op.null_safe,
        residual=RESIDUALS[op.residual],
        output=op.output,
        left_width=3,
        right_width=3,
    )


def run(seed):
    rng = random.Random(seed)
    memo = rng.random() < 0.7
    keyed = rng.random() < 0.8
    op = make(
        rng.choice(["inner", "left"]),
        memo=memo,
        residual=rng.choice(list(RESIDUALS)),
        keys=(0,) if keyed else (),
        null_safe=(rng.random() < 0.3,) if keyed else (),
    )
    contents = [Counter(), Counter()]
    met = defaultdict(deque)
    result, expected = Counter(), Counter()
    stored = Stored()
    for epoch in range(1, rng.randrange(3, 8)):
        changes = []
        for side, content in enumerate(contents):
            if side == 0 and not memo:
                rows = [tuple(rng.choice(v) for v in VALUES) for _ in range(rng.randrange(6))]
                diffs = [1] * len(rows)
            else:
                rows, diffs = random_change(rng, content, VALUES, 6)
            for r, d in zip(rows, diffs, strict=True):
                content[r] += d
            changes.append((rows, diffs))
        # the right side changes first; a left row that goes takes back the oldest of its look-ups
        net = Counter()
        for r, d in zip(*changes[0], strict=True):
            net[reference.row(r)] += d
        originals = {reference.row(r): r for r in changes[0][0]}
        right = Counter({r: n for r, n in contents[1].items() if n > 0})
        for r, n in net.items():
            if n > 0:
                found = look_up(op, originals[r], right)
                met[r].extend([found] * n)
                expected += Counter({k: v * n for k, v in found.items()})
            for _ in range(-n):
                expected.subtract(met[r].popleft())
        state = stored.load()
        out = step(op, delta_of(SCHEMA, *changes[0]), delta_of(SCHEMA, *changes[1]), state, epoch)
        stored.save(state)
        for r, d in zip(rows_of(out), out.diff.tolist(), strict=True):
            result[reference.row(r)] += d
        wanted = Counter()
        for r, n in expected.items():
            wanted[reference.row(r)] += n
        assert {r: n for r, n in result.items() if n} == {r: n for r, n in wanted.items() if n}, seed
    return op, contents[0], stored


@pytest.mark.parametrize("block", mostly_slow(range(4), 1))
def test_random_histories(block):
    for seed in range(50 * block, 50 * block + 50):
        run(seed)


def test_keys_whose_hashes_collide(monkeypatch):
    weaken_hashes(monkeypatch)
    for seed in range(1000, 1040):
        run(seed)


def test_rows_that_only_come_leave_no_state_and_rows_that_went_neither():
    """RW-60, RW-61."""
    op = make("left", memo=False)
    stored = Stored()
    state = stored.load()
    step(op, delta_of(SCHEMA, [(1, "x", 0.0)]), delta_of(SCHEMA, []), state, 1)
    assert state.size(op.id) == (0, 0)
    op = make("inner", memo=True)
    for diff, rows in ((2, 1), (-2, 0)):
        state = stored.load()
        step(op, delta_of(SCHEMA, [(1, "x", 0.0)], [diff]), delta_of(SCHEMA, []), state, 2)
        assert sum(r.diff.sum() for r in state.trace(op.id, "memo").runs) == 2 * rows
        stored.save(state)

"""Cut and Arrivals: what a query sees of its inputs by when it came.

Timeplus, "Multi-JOINs and ASOF JOINs".
"""

from __future__ import annotations

import random
from collections import Counter

import numpy as np
import pyarrow as pa
import pytest
from tests import reference

from watersmeet.circuit.operators import Arrivals, Cut, Operator, Sort, SortKey
from watersmeet.kernel.context import StepContext
from watersmeet.kernel.evaluation.expressions import Evaluator
from watersmeet.kernel.operators import STEPS
from watersmeet.kernel.runs.delta import Delta
from watersmeet.values.serialization import from_json, to_json
from watersmeet.values.types import BIGINT, INTEGER, VARCHAR, Field

ROWS = (Field("c0", INTEGER), Field("c1", VARCHAR))
ORDERED = (*ROWS, Field("_seq", BIGINT, nullable=False))


def context(schema, *, epoch=1, filling=False):
    return StepContext(0, False, Evaluator(), (schema,), epoch=epoch, filling=filling)


def changes(rows, diffs):
    columns = [
        pa.array([r[i] for r in rows], kind)
        for i, kind in enumerate((pa.int32(), pa.string(), pa.int64())[: len(rows[0])])
    ]
    return Delta(pa.table(columns, names=[f"c{i}" for i in range(len(columns))]), np.array(diffs, np.int64))


def shown(delta):
    return [(*row.values(), d) for row, d in zip(delta.columns.to_pylist(), delta.diff.tolist(), strict=True)]


@pytest.mark.parametrize(
    ("keeps", "filling", "passes"),
    [("before", True, True), ("before", False, False), ("after", True, False), ("after", False, True)],
)
def test_a_cut_passes_history_or_what_comes_later(keeps, filling, passes):
    op = Cut(("i",), ROWS, False, keeps, 7)
    delta = changes([(1, "a"), (2, None)], [1, -1])
    out = STEPS["cut"](op, [delta], None, context(ROWS, filling=filling))
    assert shown(out) == ([(1, "a", 1), (2, None, -1)] if passes else [])
    assert out.columns.schema == delta.columns.schema


def test_cuts_at_other_moments_are_other_operators():
    one, other = (Cut(("i",), ROWS, True, "after", moment) for moment in (7, 8))
    assert one.id != other.id
    assert from_json(Operator, to_json(one)) == one


def test_arrivals_are_what_was_written_the_newest_first():
    op = Arrivals(("i",), (*ROWS, Field("c2", BIGINT, nullable=False), Field("c3", BIGINT, nullable=False)), True)
    assert from_json(Operator, to_json(op)).id == op.id
    first = STEPS["arrivals"](
        op, [changes([(1, "a", 5), (1, "a", 6), (1, "b", 7)], [1, -1, 1])], None, context(ORDERED, epoch=3)
    )
    later = STEPS["arrivals"](op, [changes([(1, "b", 0), (1, None, 1)], [-1, 1])], None, context(ORDERED, epoch=4))
    # a row that another one of the same epoch replaces came all the same; nothing goes
    assert shown(first) == [(1, "a", -3, -5, 1), (1, "b", -3, -7, 1)]
    assert shown(later) == [(1, None, -4, -1, 1)]
    ages = [row[2:4] for row in shown(first) + shown(later)]
    assert sorted(ages) == ages[::-1]
    assert shown(STEPS["arrivals"](op, [changes([(1, "b", 0)], [-1])], None, context(ORDERED))) == []


def test_changes_are_sorted_and_what_is_equal_stays_in_its_order():
    op = Sort(("i",), ROWS, append_only=True, order=(SortKey(2, descending=True), SortKey(0)))
    assert from_json(Operator, to_json(op)) == op
    rows = [(2, "a", 5), (1, "b", 5), (3, "c", 9), (1, None, 5), (2, "d", 5)]
    out = STEPS["sort"](op, [changes(rows, [1, 2, 1, 1, 1])], None, context(ORDERED))
    assert shown(out) == [(3, "c", 1), (1, "b", 2), (1, None, 1), (2, "a", 1), (2, "d", 1)]
    assert shown(STEPS["sort"](op, [changes(rows, [1] * 5).take(np.zeros(0, np.int64))], None, context(ORDERED))) == []


@pytest.mark.parametrize("seed", range(10))
def test_random_histories(seed):
    """As the references say, whatever is written, replaced and deleted in which epoch."""
    rng = random.Random(seed)
    old = rng.randrange(3)
    epochs = [
        (
            n < old,
            [((rng.choice([1, 2, None]), rng.choice("ab")), rng.choice([1, 1, -1])) for _ in range(rng.randrange(5))],
        )
        for n in range(6)
    ]
    cuts = {keeps: Cut(("i",), ROWS, False, keeps, 7) for keeps in ("before", "after")}
    found = {keeps: Counter() for keeps in cuts}
    ordered = Arrivals(("i",), (*ROWS, Field("c2", BIGINT, nullable=False), Field("c3", BIGINT, nullable=False)), True)
    came = []
    for number, (filling, rows) in enumerate(epochs):
        if not rows:
            continue
        delta = changes([r for r, _ in rows], [d for _, d in rows])
        for keeps, op in cuts.items():
            for *values, diff in shown(STEPS["cut"](op, [delta], None, context(ROWS, filling=filling))):
                found[keeps][reference.row(values)] += diff
        numbered = changes([(*r, i) for i, (r, _) in enumerate(rows)], [d for _, d in rows])
        came += shown(STEPS["arrivals"](ordered, [numbered], None, context(ORDERED, epoch=number)))
    for keeps, rows in found.items():
        assert {r: n for r, n in rows.items() if n} == reference.cut(epochs, keeps)
    assert [r[:2] for r in sorted(came, key=lambda r: r[2:4])] == reference.arrivals(epochs)
    assert all(r[-1] == 1 for r in came)

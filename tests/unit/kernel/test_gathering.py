"""Groups of a history that is read in pieces: stored as sums of the pieces, and output once."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.thorough import examples
from tests.unit.kernel.kernel_tools import delta_of, rows_of, schema_of, weaken_hashes
from tests.unit.kernel.test_aggregate import CALLS, EVALUATOR, SCHEMA, History, aggregate_of, canonical, histories

from watersmeet.circuit.operators import ADDITIVE
from watersmeet.kernel.context import StepContext
from watersmeet.kernel.operators import aggregate
from watersmeet.kernel.runs import trace as merging
from watersmeet.kernel.runs.trace import MergeBudget, Trace
from watersmeet.values.types import BIGINT

SUMS = [c for c in CALLS if c.function in ADDITIVE and not c.distinct]
ENDS = [c for c in CALLS if c.function in ("min", "max")]
PARTS = 5


def gathered(op, epochs, append_only, cuts):
    """The history of an operator that gathers the epochs, and outputs them in the ranges between `cuts`."""
    found = History(op, SCHEMA, append_only=append_only)
    ctx = StepContext(0, True, EVALUATOR, (SCHEMA,), append_only=(append_only,))
    for changes in epochs:
        state = found.stored.load()
        delta = delta_of(SCHEMA, [r for r, _ in changes], [d for _, d in changes])
        assert not aggregate.gather(op, [delta], state, ctx).num_rows
        found.stored.save(state)
    bounds = [0, *cuts, PARTS]
    for which in pairwise(bounds):
        state = found.stored.load()
        out = aggregate.gathered(op, state, which, PARTS, 2, ctx)
        assert (out.diff == 1).all()
        found.content.update(canonical(row) for row in rows_of(out))
        found.stored.save(state)
    found.initial = False
    return found


@pytest.mark.parametrize("append_only", [False, True])
@pytest.mark.parametrize("mask", [None, 3])
def test_groups_are_those_of_one_epoch_after_another(monkeypatch, append_only, mask):
    if mask is not None:
        weaken_hashes(monkeypatch, mask)
    monkeypatch.setattr(aggregate, "LARGE_FAN_IN", 2)
    cuts = st.lists(st.integers(1, PARTS - 1), unique=True).map(sorted)

    @examples(40)
    @given(histories(append_only=append_only), histories(append_only=True), cuts)
    def run(epochs, later, cuts):
        op = aggregate_of(SCHEMA, (0, 4), *SUMS, *(ENDS if append_only else ()))
        expected = History(op, SCHEMA, append_only=append_only)
        found = gathered(op, epochs, append_only, cuts)
        for changes in epochs:
            expected.epoch(delta_of(SCHEMA, [r for r, _ in changes], [d for _, d in changes]))
        assert found.content == expected.content
        assert set(found.stored.load().names(op.id)) <= {"groups"}
        for changes in later:
            for history in (found, expected):
                history.epoch(delta_of(SCHEMA, [r for r, _ in changes], [d for _, d in changes]))
            assert found.content == expected.content

    run()


def test_many_pieces_are_merged_a_little_at_a_time(monkeypatch):
    """The trace of the pieces never has so many runs that a merge ignores the budget, and merges in each piece little
    more than the piece itself.
    """
    monkeypatch.setattr(merging, "LEAST_BYTES", 4000)
    schema = schema_of(BIGINT, BIGINT)
    op = aggregate_of(schema, (0,), *(c for c in SUMS if c.argument is None and c.filter is None))
    spent = []

    class Budget(MergeBudget):
        def spend(self, merged_bytes):
            spent.append(merged_bytes)
            super().spend(merged_bytes)

    traces = {}

    class State:
        def trace(self, operator_id, name):
            kept = traces.get(name)
            traces[name] = Trace(kept.runs if kept else (), Budget(1))
            return traces[name]

    ctx = StepContext(0, True, EVALUATOR, (schema,), append_only=(True,))
    for piece in range(400):
        rows = [(piece * 20 + g, 1) for g in range(600)]
        spent.clear()
        aggregate.gather(op, [delta_of(schema, rows, [1] * len(rows))], State(), ctx)
        (trace,) = traces.values()
        brought = trace.runs[-1].size_bytes
        assert sum(not r.continues for r in trace.runs) <= merging.MOST_RUNS
        assert sum(spent) <= 6 * brought
    out = aggregate.gathered(op, State(), (0, 1), 1, 1, ctx)
    assert out.num_rows == 399 * 20 + 600
    assert sum(row[1] for row in rows_of(out)) == 400 * 600

"""The time filter against the plain reference, over random histories, and what it keeps and reads."""

from __future__ import annotations

import datetime as dt
import random
from collections import Counter
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from tests import reference
from tests.unit.kernel.kernel_tools import Stored, delta_of, rows_of, schema_of

from watersmeet.circuit.operators import Operator, TimeFilter
from watersmeet.kernel.context import StepContext
from watersmeet.kernel.evaluation.expressions import Evaluator
from watersmeet.kernel.operators import filters
from watersmeet.kernel.runs import trace
from watersmeet.kernel.runs.delta import Delta
from watersmeet.values import watermarks
from watersmeet.values.serialization import from_json, to_json
from watersmeet.values.types import DATE, INTEGER, TIMESTAMP, TIMESTAMPTZ, VARCHAR
from watersmeet.values.watermarks import Term

SCHEMA = schema_of(INTEGER, TIMESTAMP, VARCHAR)
BOUND = watermarks.both((Term("a"),), watermarks.shifted((Term("b"),), -5))
START = dt.datetime(1970, 1, 1)


def at(time_us):
    return None if time_us is None else START + dt.timedelta(microseconds=time_us)


def filter_of(comparison, *, keep=(0, 1, 2), append_only=False, bound=BOUND, schema=SCHEMA):
    return TimeFilter(("i",), tuple(schema[k] for k in keep), append_only, 1, comparison, bound, keep)


def context(numbers, schema=SCHEMA):
    return StepContext(0, False, Evaluator(), (schema,), watermarks=numbers)


def random_history(rng, epochs, *, above=False):
    """[(rows, diffs, the sources' numbers)]: inserts, updates and deletes; `above`: none below the watermark of
    before.
    """
    content: Counter = Counter()
    numbers: dict = {}
    history = []
    for _ in range(epochs):
        least = watermarks.value(BOUND, numbers) if above else None
        rows, diffs = [], []
        for _ in range(rng.choice([0, 0, 1, 4, 20])):
            present = [
                r for r, n in content.items() if n and (least is None or (r[1] is not None and r[1] >= at(least)))
            ]
            if present and rng.random() < 0.4:
                values, diff = rng.choice(present), -1
            else:
                low = -30 if least is None else least
                time = None if rng.random() < 0.1 else rng.randrange(low, max(low, numbers.get("a", 0)) + 30)
                values, diff = (rng.randrange(3), at(time), rng.choice("xy")), rng.choice([1, 1, 2])
            reference.accumulate(content, [values], [diff])
            rows.append(values)
            diffs.append(diff)
        for source in "ab":
            if rng.random() < 0.4:
                numbers[source] = numbers.get(source, -20) + rng.choice([0, 1, 7, 25])
        history.append((rows, diffs, dict(numbers)))
    return history


def run(op, history, *, rng=None):
    """(the changes of each epoch, the state, all that was stored); rng: the rows of an epoch come in any order."""
    stored, outs = Stored(), []
    for rows, diffs, numbers in history:
        order = list(range(len(rows)))
        if rng is not None:
            rng.shuffle(order)
        state = stored.load()
        outs.append(
            filters.time_filter(
                op, [delta_of(SCHEMA, [rows[i] for i in order], [diffs[i] for i in order])], state, context(numbers)
            )
        )
        stored.save(state)
    return outs, stored


@pytest.mark.parametrize("small", [0, pytest.param(4096, marks=pytest.mark.slow)])
@pytest.mark.parametrize("comparison", ["<", "<=", ">", ">="])
def test_random_histories(comparison, small, monkeypatch):
    if comparison in ("<", ">="):  # runs in segments, of which the first go first
        monkeypatch.setattr(trace, "MERGED_BYTES", 300)
        monkeypatch.setattr(trace, "CHUNK_BYTES", 150)
    monkeypatch.setattr(filters, "SMALL_ROWS", small)
    monkeypatch.setattr(trace, "LEVEL_0_ROWS", 2)
    for seed in range(5):
        rng = random.Random(f"{comparison}{seed}")
        keep = rng.choice([(0, 1, 2), (2, 0), (0,), ()])
        op = filter_of(comparison, keep=keep)
        history = random_history(rng, 40)
        outs, stored = run(op, history)
        content, shown = Counter(), Counter()
        for (rows, diffs, numbers), out in zip(history, outs, strict=True):
            signs: dict = {}
            for values, diff in zip(rows_of(out), out.diff):
                assert signs.setdefault(values, diff > 0) == (diff > 0), "a row came with both signs"
            reference.accumulate(content, rows, diffs)
            reference.accumulate(shown, rows_of(out), out.diff)
            bound = at(watermarks.value(BOUND, numbers))
            assert shown == reference.time_filter(content, bound, column=1, comparison=comparison, keep=keep)
        again, other = run(op, history, rng=rng)
        assert other.bytes() == stored.bytes()
        assert [o.columns for o in again] == [o.columns for o in outs]


@pytest.mark.parametrize("comparison", ["<", "<=", ">", ">="])
def test_the_state_is_empty_when_the_bound_has_passed_everything(comparison):
    history = random_history(random.Random(comparison), 60)
    op = filter_of(comparison)
    _, stored = run(op, [*history, ([], [], {"a": 10_000, "b": 10_000})])
    assert stored.load().size(op.id) == (0, 0)
    assert not stored.manifest.operators[op.id]


@pytest.mark.parametrize("small", [0, 4096])
def test_final_rows_come_once_and_are_never_taken_back(small, monkeypatch):
    """What is below the watermark is final, whatever changed above it before."""
    monkeypatch.setattr(filters, "SMALL_ROWS", small)
    monkeypatch.setattr(trace, "LEVEL_0_ROWS", 2)
    for seed in range(6):
        history = random_history(random.Random(seed), 60, above=True)
        outs, _ = run(filter_of("<", append_only=True), history)
        assert all((o.diff > 0).all() for o in outs)
        times = [r[1] for o in outs for r in rows_of(o)]
        assert times


@pytest.mark.parametrize("comparison", ["<", "<="])
def test_what_has_come_out_stays(comparison):
    """What a filter that takes rows back adds, without what it takes back."""
    for seed in range(6):
        history = random_history(random.Random(seed), 40)
        plain = filter_of(comparison, keep=(0, 1))
        outs, _ = run(plain, history)
        stays, _ = run(replace(plain, append_only=True, stays=True), history)
        assert any((o.diff < 0).any() for o in outs)
        for out, found in zip(outs, stays, strict=True):
            expected = {values: diff for values, diff in zip(rows_of(out), out.diff.tolist()) if diff > 0}
            assert dict(zip(rows_of(found), found.diff.tolist())) == expected


def test_rows_without_time_may_come_at_once():
    """Lenses' pairs of a join of streams; records without partner wait by their time."""
    for seed in range(6):
        history = random_history(random.Random(seed), 40)
        plain = replace(filter_of("<"), append_only=True, stays=True)
        outs, _ = run(plain, history)
        untimed, _ = run(replace(plain, untimed=True), history)
        seen = 0
        for (rows, diffs, _), out, found in zip(history, outs, untimed, strict=True):
            expected: Counter = Counter()
            for values, diff in zip(rows_of(out), out.diff.tolist()):
                expected[values] += diff
            free: Counter = Counter()
            for values, diff in zip(rows, diffs, strict=True):
                if values[1] is None:
                    free[values] += diff
            shown: Counter = Counter()
            for values, diff in zip(rows_of(found), found.diff.tolist()):
                shown[values] += diff
            for values, diff in free.items():
                if diff > 0:
                    expected[values] += diff
                    seen += 1
            assert {r: n for r, n in shown.items() if r[1] is not None} == {
                r: n for r, n in expected.items() if r[1] is not None
            }
            assert all(n > 0 for n in shown.values())
        assert seen


def test_a_broken_promise_is_an_error():
    op = filter_of("<", append_only=True)
    history = [([(1, at(1), "x")], [1], {"a": 50, "b": 50}), ([(1, at(1), "x")], [-1], {"a": 50, "b": 50})]
    with pytest.raises(Exception, match="rows that were final are taken back"):
        run(op, history)


def test_a_bound_that_moves_reads_only_what_is_between(monkeypatch):
    """RA-32: of a million rows, a bound that moves by ten touches ten; large runs are not rewritten for it."""
    schema = schema_of(TIMESTAMPTZ, INTEGER)
    op = TimeFilter(("i",), schema, False, 0, ">", (Term("now()"),), (0, 1))
    count = 1_000_000
    times = pa.array(np.random.default_rng(1).permutation(count).astype(np.int64)).cast(TIMESTAMPTZ.arrow)
    table = pa.table({"c0": times, "c1": pa.array(np.zeros(count, np.int32))})
    stored = Stored()
    state = stored.load()
    out = filters.time_filter(op, [Delta(table, np.ones(count, np.int64))], state, context({"now()": 99}, schema))
    assert out.num_rows == count - 100
    stored.save(state)
    written = len(stored.blobs._blobs)
    for now in (109, 119):
        state = stored.load()
        out = filters.time_filter(op, [Delta.empty(table.schema)], state, context({"now()": now}, schema))
        assert sorted(r[0].microsecond for r in rows_of(out)) == list(range(now - 9, now + 1))
        assert (out.diff == -1).all()
        stored.save(state)
    small = [len(b) for b in stored.bytes()[written:]]
    assert max(small) < 1000
    state = stored.load()
    filters.time_filter(op, [Delta.empty(table.schema)], state, context({"now()": count // 2 + 99}, schema))
    assert state.trace(op.id, "rows").num_rows == count // 2 - 100


def test_an_unknown_bound_holds_back_or_lets_pass():
    for comparison, shown in (("<", 0), ("<=", 0), (">", 1), (">=", 1)):
        op = filter_of(comparison)
        outs, stored = run(op, [([(1, at(1), "x"), (1, None, "x")], [1, 1], {"a": 10})])
        assert outs[0].num_rows == shown
        assert stored.load().size(op.id)[0] == 1


@pytest.mark.parametrize("comparison", ["<", "<=", ">", ">="])
def test_dates_are_their_midnights(comparison):
    schema = schema_of(DATE)
    op = TimeFilter(("i",), schema, False, 0, comparison, (Term("a"),), (0,))
    days = [dt.date(1969, 12, 30) + dt.timedelta(days=i) for i in range(5)]
    for bound in (-86_400_000_001, -86_400_000_000, -1, 0, 1, 86_399_999_999, 86_400_000_000):
        out = filters.time_filter(
            op, [delta_of(schema, [(d,) for d in days])], Stored().load(), context({"a": bound}, schema)
        )
        midnights = Counter({(dt.datetime.combine(d, dt.time()),): 1 for d in days})
        expected = reference.time_filter(midnights, at(bound), column=0, comparison=comparison, keep=(0,))
        assert Counter((dt.datetime.combine(r[0], dt.time()),) for r in rows_of(out)) == expected


def test_the_operator_goes_through_json():
    op = filter_of(">", bound=(*BOUND, Term("c", watermarks.floored((Term("c"),), 10, 3)[0].steps)))
    assert from_json(Operator, to_json(op)) == op
    assert from_json(Operator, to_json(op)).id == op.id


def test_what_waits_is_told_in_microseconds_for_dates_too():
    """Otherwise a tick would be due all the time (`ticks.is_due`)."""
    schema = schema_of(DATE)
    op = TimeFilter(("i",), tuple(schema), False, 0, ">", (Term("a"),), (0,))
    ctx = context({"a": 0}, schema)
    filters.time_filter(op, [delta_of(schema, [(dt.date(1970, 1, 3),)])], Stored().load(), ctx)
    assert ctx.counters.waits_for_us == 2 * 86_400_000_000

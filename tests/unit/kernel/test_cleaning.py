"""Cleaning by watermarks: traces, joins of every kind and aggregates forget what nobody can ask for, and nothing else.

The joins are checked against the nested-loop reference over everything that ever came (RW-40, RW-41, RW-47, RA-13,
RA-16).
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from datetime import datetime, timedelta

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests import reference
from tests.thorough import examples
from tests.trees import e, p
from tests.unit.kernel.kernel_tools import Stored, delta_of, rows_of, schema_of

from watersmeet.algebra import nodes
from watersmeet.algebra.watermarks import of_aggregate, of_join, watermarks
from watersmeet.circuit.operators import Aggregate, AggregateSpec, Arrange, Join, Operator, SortKey
from watersmeet.kernel.context import StepContext
from watersmeet.kernel.evaluation.expressions import Evaluator
from watersmeet.kernel.operators import aggregate, arrange, join
from watersmeet.kernel.runs.cleaning import SMALL_ROWS, Retention
from watersmeet.kernel.runs.run import arrange as arranged_run
from watersmeet.kernel.runs.trace import Trace
from watersmeet.values.serialization import from_json, to_json
from watersmeet.values.types import BIGINT, DATE, INTEGER, TIMESTAMP, Field
from watersmeet.values.watermarks import Term, value

EVALUATOR = Evaluator()
KINDS = ["inner", "left", "right", "full", "semi", "anti"]
START = datetime(2024, 1, 1)
START_US = 1_704_067_200_000_000
SECOND = 1_000_000
SCHEMA = schema_of(INTEGER, TIMESTAMP, INTEGER)
FAR = START_US + 10**15


def at(second):
    return None if second is None else START + timedelta(seconds=second)


def second_of(time):
    return None if time is None else int((time - START).total_seconds())


def us(second):
    return START_US + second * SECOND


# ---- traces


@examples(60)
@given(st.integers(0, 10**6), st.sampled_from([0, 30, 3000]), st.booleans(), st.booleans())
def test_a_trace_keeps_what_is_of_use_and_little_else(seed, size, nulls, dates):
    rng = np.random.default_rng(seed)
    schema = schema_of(INTEGER, DATE if dates else TIMESTAMP)
    unit = 86_400 if dates else 1
    trace, live = Trace(), Counter()
    for epoch in range(12):
        count = int(rng.integers(0, size + 1))
        seconds = [
            None if rng.random() < 0.05 else int(s) * unit for s in rng.integers(epoch * 10, epoch * 10 + 40, count)
        ]
        rows = [
            (int(k), None if s is None else (at(s).date() if dates else at(s)))
            for k, s in zip(rng.integers(0, 50, count), seconds, strict=True)
        ]
        bound = epoch * 10 + int(rng.integers(0, 20))
        retention = Retention(1, us(bound * unit), nulls=nulls)
        retention.clean(trace)
        trace.append(retention.live(arranged_run(delta_of(schema, rows), (0,))), retention.merge)
        first = at(bound * unit)
        live.update(rows)
        live = Counter(
            {r: n for r, n in live.items() if (nulls if r[1] is None else r[1] >= (first.date() if dates else first))}
        )
        held = Counter()
        for run in trace.runs:
            reference.accumulate(held, rows_of(run.delta()), run.diff)
        assert live <= held
        # a run's dead rows are at most about half of it
        assert trace.num_rows <= 2.3 * live.total() + 64 if size > SMALL_ROWS else True
        if all(run.num_rows <= SMALL_ROWS for run in trace.runs):
            assert held == live
    Retention(1, FAR * 2, nulls=nulls).clean(trace)
    assert sum(int(r.diff.sum()) for r in trace.runs) == sum(n for r, n in live.items() if r[1] is None)


def test_a_large_run_is_rewritten_once_half_of_it_is_dead_and_goes_unread_when_all_is():
    rows = [(i, at(i)) for i in range(10_000)]
    trace = Trace()
    trace.append(arranged_run(delta_of(schema_of(INTEGER, TIMESTAMP), rows), (0,)))
    sizes, before = [], trace.runs[0]
    for second in range(0, 10_001, 500):
        Retention(1, us(second)).clean(trace)
        sizes.append(trace.num_rows)
    assert sizes[:9] == [10_000] * 9
    assert trace.runs == ()
    assert len(set(sizes)) <= 8  # about one rewriting for each halving
    assert before.num_rows == 10_000  # runs never change


def test_rows_that_are_handed_on_may_be_of_no_more_use():
    op = Arrange(("l",), SCHEMA, True, (0,), (False,), 0, 1, (Term("a"),))
    state = Stored().load()
    context = StepContext(0, False, EVALUATOR, (SCHEMA,), watermarks={"a": us(10)})
    made = arrange.step(op, [delta_of(SCHEMA, [(1, at(5), 0), (1, at(10), 0), (1, None, 0)])], state, context)
    assert made.change.num_rows == 3
    assert state.trace(op.id, "rows").num_rows == 1
    made = arrange.step(op, [delta_of(SCHEMA, [])], state, replace(context, watermarks={"a": us(11)}))
    assert [r.num_rows for r in made.old] == [1]  # as it was before the epoch
    assert state.size(op.id) == (0, 0)


def test_operators_say_what_they_keep():
    plain = Arrange(("l",), SCHEMA, True, (0,), (False,), 0)
    timed = replace(plain, time=1, retain=(Term("a"), Term("b")))
    assert "retain" not in to_json(plain)
    assert from_json(Operator, to_json(timed)) == timed
    assert timed.id != plain.id


# ---- joins


SECONDS = st.integers(-12, 12)


@st.composite
def interval_joins(draw):
    """(kind, keys, residual, its meaning, lo, hi)."""
    lo, hi = draw(SECONDS | st.none()), draw(SECONDS | st.none())
    if draw(st.booleans()) and lo is not None and hi is not None:
        lo, hi = min(lo, hi), max(lo, hi)  # else there may be no pair at all
    equal = draw(st.sampled_from([False, False, False, True]))
    parts = []
    if not equal:
        parts += [] if lo is None else [f"l.t >= r.t + INTERVAL '{lo} seconds'"]
        parts += [] if hi is None else [f"l.t - INTERVAL '{hi} seconds' <= r.t"]
    if draw(st.booleans()):
        parts.append("l.v < r.v")
    return draw(st.sampled_from(KINDS)), equal, parts, lo, hi


class History:
    """A join of two sources with watermarks, over their histories."""

    def __init__(self, case, rng):
        self.kind, self.equal, self.parts, self.lo, self.hi = case
        self.rng = rng
        sides = [
            nodes.Scan(
                n,
                n,
                tuple(nodes.Column(f"{n}.{c}", c, f.type) for c, f in zip("ktv", SCHEMA, strict=True)),
                ("k", "t", "v"),
                True,
                watermarks=((f"{n}.t", (Term(n),)),),
            )
            for n in "lr"
        ]
        keys = [
            nodes.KeyPair(e(f"l.{c}", t), e(f"r.{c}", t))
            for c, t in [("k", INTEGER), ("t", TIMESTAMP)][: 1 + self.equal]
        ]
        text = " AND ".join(self.parts)
        tree = nodes.Join(*sides, self.kind, tuple(keys), p(text) if text else None)
        self.marks = watermarks(tree)
        places = {f"{n}.{c}": f"{n}{i}" for n in "lr" for i, c in enumerate("ktv")}
        for name, place in places.items():
            text = text.replace(name, place)
        positions = tuple(range(1 + self.equal))
        self.kept = of_join(tree)
        self.arranged = [
            Arrange(
                (n,),
                SCHEMA,
                False,
                positions,
                (False,) * len(positions),
                0,
                *((None, ()) if k is None else (1, k.bound)),
            )
            for n, k in zip("lr", self.kept, strict=True)
        ]
        names = [f"{n}{i}" for n in ("l" if self.kind in ("semi", "anti") else "lr") for i in range(3)]
        output = reference.columns(*names)
        fields = tuple(Field(c.name, SCHEMA[c.column].type) for c in output)
        self.op = Join(
            ("l", "r"),
            fields,
            False,
            self.kind,
            positions,
            positions,
            (False,) * len(positions),
            text or None,
            output,
        )
        self.names = names
        self.numbers = {}
        self.content = {"l": Counter(), "r": Counter()}
        self.result = Counter()
        self.stored = Stored()
        self.delays = {n: rng.randrange(8) for n in "lr"}

    def meets(self, left, right):
        if self.parts and "l.v < r.v" in self.parts and (left[2] is None or right[2] is None or left[2] >= right[2]):
            return False
        if self.equal or (self.lo is None and self.hi is None):
            return True
        if left[1] is None or right[1] is None:
            return False
        between = second_of(left[1]) - second_of(right[1])
        return (self.lo is None or between >= self.lo) and (self.hi is None or between <= self.hi)

    def change(self, name, around):
        """Rows that are not late, and deletions of rows that are not behind the watermark; a source drops the
        others.
        """
        rng, number = self.rng, self.numbers.get(name)
        rows = [
            (
                rng.choice([1, 1, 2, 3, None]),
                at(rng.choice([around + rng.randint(-9, 3)] * 9 + [None])),
                rng.randrange(3),
            )
            for _ in range(rng.randrange(6))
        ]
        content = list(self.content[name].elements())
        gone = [r for r in content if rng.random() < 0.15]
        changes = [(r, 1) for r in rows] + [(r, -1) for r in gone]
        return [(r, d) for r, d in changes if r[1] is None or number is None or us(second_of(r[1])) >= number]

    def epoch(self, changes, numbers):
        deltas = [delta_of(SCHEMA, [r for r, _ in changes[n]], [d for _, d in changes[n]]) for n in "lr"]
        earlier, self.numbers = self.numbers, numbers
        state = self.stored.load()
        context = StepContext(0, False, EVALUATOR, (SCHEMA, SCHEMA), watermarks=numbers)
        inputs = [arrange.step(op, [d], state, context) for op, d in zip(self.arranged, deltas, strict=True)]
        out = join.step(self.op, inputs, state, context)
        self.stored.save(state)
        reference.accumulate(self.result, rows_of(out), out.diff)
        for n in "lr":
            reference.accumulate(self.content[n], [r for r, _ in changes[n]], [d for _, d in changes[n]])
        expected = reference.join(
            self.kind,
            self.content["l"],
            self.content["r"],
            left_keys=self.op.left_keys,
            right_keys=self.op.right_keys,
            null_safe=self.op.null_safe,
            residual=self.meets,
            output=self.op.output,
            left_width=3,
            right_width=3,
        )
        assert self.result == expected
        for name, mark in self.marks.items():  # nothing behind the output's watermark as it was before
            bound = value(mark, earlier)
            column = [n for n in self.names if n[0] == name[0]][1]
            for row in rows_of(out):
                time = row[self.names.index(column)]
                assert bound is None or time is None or us(second_of(time)) >= bound
        for side, kept, op in zip("lr", self.kept, self.arranged, strict=True):
            bound = None if kept is None else value(kept.bound, numbers)
            if bound is not None:  # runs are small: exactly what is of use is kept
                live = sum(
                    c
                    for r, c in self.content[side].items()
                    if r[0] is not None and r[1] is not None and us(second_of(r[1])) >= bound
                )
                held = Counter()
                for run in state.trace(op.id, "rows").runs:
                    reference.accumulate(held, rows_of(run.delta()), run.diff)
                assert held.total() == live
        return state

    def run(self, epochs):
        around = {"l": 0, "r": 0}
        for _ in range(epochs):
            changes, numbers = {}, dict(self.numbers)
            for n in "lr":
                around[n] += self.rng.choice([0, 1, 4, 15])
                changes[n] = self.change(n, around[n]) if self.rng.random() < 0.85 else []
                times = [second_of(r[1]) for r, d in changes[n] if d > 0 and r[1] is not None]
                if times:
                    numbers[n] = max(numbers.get(n, -(10**18)), us(max(times) - self.delays[n]))
            self.epoch(changes, numbers)
        state = self.epoch({"l": [], "r": []}, {"l": FAR, "r": FAR})
        for kept, op in zip(self.kept, self.arranged, strict=True):
            if kept is not None:
                assert state.size(op.id) == (0, 0)


@examples(600)
@given(interval_joins(), st.integers(0, 10**6))
def test_joins_with_bounds_on_time(case, seed):
    history = History(case, random.Random(seed))
    history.run(10)


@pytest.mark.parametrize(
    ("kind", "lo", "hi", "left", "right"),
    [
        ("inner", 0, 60, "r", "l - 60"),
        ("inner", 0, None, "r", None),
        ("inner", None, 60, None, "l - 60"),
        ("left", 0, 60, "r", "l - 60, r - 60"),
        ("left", None, 60, None, None),
        ("left", 0, None, "r", None),
        ("right", 0, 60, "l - 60, r", "l - 60"),
        ("right", 0, None, None, None),
        ("right", None, 60, None, "l - 60"),
        ("full", -5, 60, "l - 65, r - 5", "l - 60, r - 65"),
        ("semi", 0, 60, "r", "l - 60, r - 60"),
        ("anti", 0, 60, "r", "l - 60, r - 60"),
    ],
)
def test_what_is_kept(kind, lo, hi, left, right):
    parts = [] if lo is None else [f"l.t >= r.t + INTERVAL '{lo} seconds'"]
    parts += [] if hi is None else [f"l.t <= r.t + INTERVAL '{hi} seconds'"]
    kept = History((kind, False, parts, lo, hi), random.Random(0)).kept

    def text(bound):
        steps = [(t.source, sum(s.amount_us for s in t.steps) // SECOND) for t in bound]
        return ", ".join(s if not n else f"{s} {'-' if n < 0 else '+'} {abs(n)}" for s, n in steps)

    assert [None if k is None else text(k.bound) for k in kept] == [left, right]


def test_bounds_on_different_columns_clean_an_inner_join():
    """A session from s to e, and what happens in it."""
    left = nodes.Scan(
        "l",
        "l",
        tuple(nodes.Column(f"l.{c}", c, TIMESTAMP) for c in "kse"),
        ("k", "s", "e"),
        True,
        watermarks=(("l.s", (Term("l"),)), ("l.e", (Term("e"),))),
    )
    right = nodes.Scan(
        "r",
        "r",
        tuple(nodes.Column(f"r.{c}", c, TIMESTAMP) for c in "kt"),
        ("k", "t"),
        True,
        watermarks=(("r.t", (Term("r"),)),),
    )
    keys = (nodes.KeyPair(e("l.k", TIMESTAMP), e("r.k", TIMESTAMP)),)
    tree = nodes.Join(left, right, "inner", keys, p("r.t >= l.s AND r.t < l.e"))
    one, other = of_join(tree)
    assert one.time.column == "l.e"
    assert one.bound == (Term("r"),)
    assert other.time.column == "r.t"
    assert other.bound == (Term("l"),)
    assert of_join(replace(tree, kind="left")) == (one, None)  # a session's partners are as old as it is


# ---- aggregates


CALLS = [
    AggregateSpec("count", None, None, False),
    AggregateSpec("sum", 1, None, False),
    AggregateSpec("min", 1, None, False),
    AggregateSpec("count", 1, None, True),
    AggregateSpec("array_agg", 1, None, False, order=(SortKey(1),)),
]


@examples(100)
@given(st.integers(0, 10**6))
def test_groups_behind_the_watermark_are_forgotten(seed):
    rng = random.Random(seed)
    schema = (Field("a", TIMESTAMP), Field("b", BIGINT))
    out = schema_of(TIMESTAMP, BIGINT, BIGINT, BIGINT, BIGINT)
    out = (*out, Field("f", replace(BIGINT, name="array", element=BIGINT)))
    plain = Aggregate(("in",), out, False, (0,), tuple(CALLS))
    timed = replace(plain, time=0, retain=(Term("a"),))
    stored = {op.id: Stored() for op in (plain, timed)}
    content, number = Counter(), None
    for epoch in range(12):
        rows = [
            (at(rng.choice([epoch * 3 + rng.randrange(-8, 3), None])), rng.randrange(4))
            for _ in range(rng.randrange(6))
        ]
        changes = [(r, 1) for r in rows] + [(r, -1) for r in content.elements() if rng.random() < 0.2]
        changes = [(r, d) for r, d in changes if r[0] is None or number is None or us(second_of(r[0])) >= number]
        reference.accumulate(content, [r for r, _ in changes], [d for _, d in changes])
        number = us(epoch * 3 - rng.randrange(3, 6)) if number is None or rng.random() < 0.8 else number
        results = []
        for op in (plain, timed):
            state = stored[op.id].load()
            context = StepContext(0, epoch == 0, EVALUATOR, (schema,), watermarks={"a": number})
            made = aggregate.step(
                op, [delta_of(schema, [r for r, _ in changes], [d for _, d in changes])], state, context
            )
            stored[op.id].save(state)
            results.append(
                Counter({(tuple(map(str, r)), int(d)): 1 for r, d in zip(rows_of(made), made.diff, strict=True)})
            )
            for name in state.names(op.id) if op is timed else ():
                for run in state.trace(op.id, name).runs:
                    assert all(t is None or us(second_of(t)) >= number for t in run.arrays[0].to_pylist())
        assert results[0] == results[1]


def test_which_group_key_has_a_watermark():
    scan = nodes.Scan(
        "l",
        "l",
        (nodes.Column("l.k", "k", INTEGER), nodes.Column("l.t", "t", TIMESTAMP)),
        ("k", "t"),
        True,
        watermarks=(("l.t", (Term("l"),)),),
    )
    keys = (e("l.k"), e("l.t + INTERVAL '1 second'", TIMESTAMP))
    node = nodes.Aggregate(scan, keys, (), tuple(nodes.Column(f"g{i}", f"g{i}", k.type) for i, k in enumerate(keys)))
    number, mark = of_aggregate(node)
    assert number == 1
    assert value(mark, {"l": 5}) == 5 + SECOND
    assert of_aggregate(replace(node, keys=keys[:1], outputs=node.outputs[:1])) is None


def test_state_is_flat_over_100_micro_batches():
    rng = np.random.default_rng(1)
    op = Arrange(("l",), SCHEMA, True, (0,), (False,), 0, 1, (Term("a"),))
    stored, sizes = Stored(), []
    for epoch in range(100):
        seconds = epoch * 10 + rng.integers(-20, 10, 3000)
        rows = [(int(k), at(int(s)), 0) for k, s in zip(rng.integers(0, 10**6, 3000), seconds, strict=True)]
        state = stored.load()
        context = StepContext(0, False, EVALUATOR, (SCHEMA,), watermarks={"a": us(epoch * 10 - 12)})
        arrange.step(op, [delta_of(SCHEMA, rows)], state, context)
        stored.save(state)
        sizes.append(state.size(op.id))
        assert all(
            run.note is not None for run in stored.load().trace(op.id, "rows").runs
        )  # so that none need be read to be cleaned
    assert max(rows for rows, _ in sizes[50:]) <= 1.1 * max(rows for rows, _ in sizes[10:50])
    assert max(size for _, size in sizes[50:]) <= 1.1 * max(size for _, size in sizes[10:50])
    assert max(rows for rows, _ in sizes) <= 15_000  # of 300,000; about 4,000 are of use

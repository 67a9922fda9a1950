"""Output in slices: the same bytes as at once, whatever the size of the slices, and memory that does not grow."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests import reference
from tests.reference import columns
from tests.thorough import examples
from tests.unit.kernel.kernel_tools import Stored, blob_of, check_order, delta_of, grown, rows_of, schema_of, step_join
from tests.unit.kernel.test_join import KINDS, cases, make_join, random_change

from watersmeet.circuit.circuit import Circuit
from watersmeet.circuit.epochs import Live, Start
from watersmeet.circuit.operators import (
    Aggregate,
    AggregateSpec,
    Arrange,
    Exchange,
    Join,
    Map,
    Scan,
    Sink,
    TemporalJoin,
)
from watersmeet.kernel.arrays.hashing import hash_columns
from watersmeet.kernel.context import StepContext
from watersmeet.kernel.evaluation.expressions import Evaluator
from watersmeet.kernel.executor import EpochContext, MostRows, run_stage
from watersmeet.kernel.operators import aggregate, arrange, temporal
from watersmeet.kernel.runs.delta import Delta, RowSet, Sliced, Slicing, consolidate, slices_of
from watersmeet.kernel.runs.frames import Spool, consolidated, contiguous, netted, receive, whole
from watersmeet.kernel.runs.matching import TooManyRowsError
from watersmeet.kernel.runs.state import StageState
from watersmeet.values.types import BIGINT, DOUBLE, INTEGER, VARCHAR, Field

EVALUATOR = Evaluator()
#: A hot key, keys of one row, NULLs, and values that are equal though their bytes are not.
ROWS = st.lists(
    st.tuples(
        st.one_of(st.just(7), st.none(), st.integers(0, 50)),
        st.sampled_from([None, 0.0, -0.0, float("nan"), 1.5]),
        st.sampled_from([None, "", "a", "ab"]),
    ),
    max_size=60,
)
SCHEMA = schema_of(INTEGER, DOUBLE, VARCHAR)


def cut(delta, rng):
    """The same changes in pieces, some of them empty."""
    places = sorted(rng.choices(range(delta.num_rows + 1), k=rng.randint(0, 6)))
    bounds = zip([0, *places], [*places, delta.num_rows], strict=True)
    return [delta.take(np.arange(a, b)) for a, b in bounds]


def image(delta):
    return repr(delta.columns.to_pydict()), delta.diff.tolist()


@examples(200)
@given(ROWS, st.integers(0, 10**6), st.sampled_from([None, (0,), (0, 2), ()]), st.integers(1, 9))
def test_slices_are_consolidated_as_if_they_were_one(rows, seed, keys, size):
    rng = random.Random(seed)
    delta = delta_of(SCHEMA, rows, [rng.choice([-1, 1, 2]) for _ in rows])
    found = list(consolidated(cut(delta, rng), keys, Slicing(rows=size)))
    assert image(Delta.concat([delta.take(np.arange(0)), *found])) == image(consolidate(delta, keys))
    distinct = consolidate(delta, keys).num_rows
    if keys != () and distinct > 4 * size and keys is None:
        assert max(piece.num_rows for piece in found) < distinct


@examples(200)
@given(ROWS, ROWS, st.integers(0, 10**6), st.integers(1, 9))
def test_insertions_cancel_with_retractions_that_precede_them(retracted, inserted, seed, size):
    rng = random.Random(seed)
    rows = [*retracted, *inserted]
    delta = delta_of(SCHEMA, rows, [-1] * len(retracted) + [rng.choice([1, 2]) for _ in inserted])
    changes = Sliced(lambda: cut(delta, random.Random(seed)), retracts_first=True)
    found = Delta.concat([delta.take(np.arange(0)), *netted(changes, Slicing(rows=size))])
    assert image(consolidate(found)) == image(consolidate(delta))
    below, above = (
        set(hash_columns(found.columns.columns, as_key=False)[some].tolist())
        for some in (found.diff < 0, found.diff > 0)
    )
    assert not below & above


@examples(200)
@given(ROWS, ROWS)
def test_a_set_of_rows_excludes_others(known, asked):
    rows, others = delta_of(SCHEMA, known), delta_of(SCHEMA, asked)
    found = RowSet()
    for piece in cut(rows, random.Random(1)):
        if piece.num_rows:
            found.add(piece.columns.columns)
    hashes = [hash_columns(d.columns.columns, d.num_rows, as_key=False) for d in (others, rows)]
    assert found.maybe(others.columns.columns).tolist() == np.flatnonzero(np.isin(*hashes)).tolist()


def test_a_hot_key_is_consolidated_in_bounded_slices():
    schema = schema_of(BIGINT, BIGINT)
    delta = delta_of(schema, [(7 if i % 10 else i, i) for i in range(20_000)])
    for keys in ((0,), ()):
        found = list(consolidated(cut(delta, random.Random(3)), keys, Slicing(rows=500)))
        assert image(Delta.concat(found)) == image(consolidate(delta, keys))
        assert max(piece.num_rows for piece in found) < 1500


@examples(200)
@given(ROWS, st.integers(0, 10**6), st.integers(1, 9))
def test_an_arrangement_of_slices_is_that_of_all(rows, seed, size):
    rng = random.Random(seed)
    delta = delta_of(SCHEMA, rows, [rng.choice([-1, 1, 2]) for _ in rows])
    op = Arrange(("x",), SCHEMA, False, (0,), (False,), 0)
    context = StepContext(0, False, EVALUATOR, (SCHEMA,), slicing=Slicing(rows=size))
    pieces = cut(delta, rng)
    one, many = (arrange.step(op, [x], StageState(), context) for x in (delta, Sliced(lambda: pieces)))
    assert blob_of(one.change).to_pybytes() == blob_of(many.change).to_pybytes()
    assert image(one.net_null_keys) == image(many.net_null_keys)


@examples(90)
@given(st.data(), st.integers(0, 10**6), st.integers(1, 7))
def test_aggregates_take_slices_in_one_by_one(data, seed, size):
    rng = random.Random(seed)
    calls = tuple(
        AggregateSpec(f, a, None, distinct)
        for f, a, distinct in (
            ("count", None, False),
            ("sum", 1, False),
            ("max", 1, False),
            ("min", 2, False),
            ("count", 2, True),
        )
    )
    keys = data.draw(st.sampled_from([(), (0,)]))
    types = [*[SCHEMA[k].type for k in keys], BIGINT, DOUBLE, DOUBLE, VARCHAR, BIGINT]
    op = Aggregate(("x",), schema_of(*types), False, keys, calls)
    one, many = StageState(), StageState()
    content: list[tuple[object, ...]] = []
    for epoch in range(3):
        new = data.draw(ROWS)
        gone = rng.sample(content, rng.randint(0, len(content)))
        for row in gone:
            content.remove(row)
        content += new
        delta = delta_of(SCHEMA, [*new, *gone], [1] * len(new) + [-1] * len(gone))
        context = StepContext(0, epoch == 0, EVALUATOR, (SCHEMA,), slicing=Slicing(rows=size))
        pieces = cut(delta, rng)
        outs = [aggregate.step(op, [x], s, context) for x, s in ((delta, one), (Sliced(lambda p=pieces: p), many))]
        assert image(consolidate(outs[0])) == image(consolidate(outs[1]))


@examples(120)
@given(cases(), st.integers(0, 10**6), st.integers(1, 9))
def test_joins_of_all_kinds_give_the_same_in_slices(case, seed, size):
    """Of random histories: what all slices add up to is what comes at once, and no slice is larger than asked. Where
    both inputs only grow, retractions come first, unless a condition has too many pairs to hold them.
    """
    op, schema, values = case
    rng = random.Random(seed)
    most_bytes = rng.choice([1, Slicing().bytes])
    grows = rng.random() < 0.4
    content = {"l": reference.Counter(), "r": reference.Counter()}
    stored = Stored()
    for _ in range(4):
        deltas = []
        for side in content.values():
            change = random_change(rng, side, values, 12)
            rows, diffs = grown(change) if grows else change
            for row, diff in zip(rows, diffs, strict=True):
                side[row] += diff
            deltas.append(delta_of(schema, rows, diffs))
        outs, images = [], []
        for slicing in (Slicing(), Slicing(rows=size, bytes=most_bytes)):
            state = stored.load()
            context = StepContext(0, False, EVALUATOR, (schema, schema), slicing=slicing)
            out = step_join(op, deltas, state, context)
            if isinstance(out, Sliced) and grows and (op.residual is None or most_bytes > 1):
                assert out.retracts_first
            check_order(out)
            outs.append(list(slices_of(out)))
            images.append(image(consolidate(Delta.concat(outs[-1]))))
            # The first slice may end with the piece that fills it; the rows that can't match come with the last.
        stored.save(state)
        assert images[0] == images[1]
        loose = sum(d.num_rows for d in deltas)
        assert all(piece.num_rows < 2 * size + loose for piece in outs[1])


@pytest.mark.parametrize("residual", [None, "l2 <> 1"])
@pytest.mark.parametrize("kind", KINDS)
def test_no_slice_is_larger_than_asked(kind, residual):
    schema = schema_of(INTEGER, VARCHAR, INTEGER)
    op = make_join(kind, schema, [0], [0], [False], residual)
    left, right = (delta_of(schema, [(7, "x", i) for i in range(n)]) for n in (40, 30))
    none = delta_of(schema, [])
    for first, second in (((left, right), (none, right.negated())), ((left, none), (none, right))):
        state = StageState()
        for deltas in (first, second):
            context = StepContext(0, False, EVALUATOR, (schema, schema), slicing=Slicing(rows=16))
            sizes = [piece.num_rows for piece in slices_of(step_join(op, deltas, state, context))]
            assert max(sizes, default=0) < 32


def test_wide_rows_make_smaller_slices():
    schema = schema_of(INTEGER, VARCHAR, INTEGER)
    op = make_join("inner", schema, [0], [0], [False], None)
    wide, narrow = (delta_of(schema, [(7, "x" * width, i) for i in range(200)]) for width in (1000, 1))
    context = StepContext(0, False, EVALUATOR, (schema, schema), slicing=Slicing(bytes=1 << 20))
    sizes = [piece.num_rows for piece in step_join(op, [narrow, wide], StageState(), context)]
    assert sum(sizes) == 200 * 200
    assert max(sizes) < 2000


def test_what_is_too_much_is_said_before_anything_is_made():
    schema = schema_of(INTEGER, VARCHAR, INTEGER)
    rows = delta_of(schema, [(7, "x", i) for i in range(30_000)])
    for kind, residual in (("inner", None), ("full", "l2 < r2"), ("anti", "l2 < r2")):
        op = make_join(kind, schema, [0], [0], [False], residual)
        context = StepContext(0, False, EVALUATOR, (schema, schema), most_rows=10**6)
        with pytest.raises(TooManyRowsError):
            step_join(op, [rows, rows], StageState(), context)
        assert context.counters.made_rows == 900_000_000
        assert context.counters.hottest_key() == ("7",)


def test_lookups_come_in_slices_too():
    schema = schema_of(INTEGER, INTEGER)
    output = columns("l1", "r1")
    fields = tuple(Field(c.name, INTEGER) for c in output)
    op = TemporalJoin(("l", "r"), fields, True, "left", (0,), (0,), (False,), None, False, "v", output)
    right = Arrange(("r",), schema, False, (0,), (False,), 0)
    context = StepContext(0, False, EVALUATOR, (schema, schema), slicing=Slicing(rows=10))
    state = StageState()
    arranged = arrange.step(right, [delta_of(schema, [(i % 3, i) for i in range(30)])], state, context)
    out = temporal.step(op, [delta_of(schema, [(k, 100 + k) for k in (0, 1, 5)]), arranged], state, context)
    assert isinstance(out, Sliced)
    expected = [(100 + i % 3, i) for i in range(30) if i % 3 < 2] + [(105, None)]
    assert sorted(r for piece in out for r in rows_of(piece) if r[1] is not None) == sorted(expected[:-1])
    assert [r for piece in out for r in rows_of(piece) if r[1] is None] == expected[-1:]


class Plan:
    """A circuit as it grows."""

    def __init__(self):
        self.operators, self.stages = [], {}

    def add(self, op, stage=0):
        self.operators.append(op)
        self.stages[op.id] = stage
        return op


def exploding(buckets):
    """Two joins above each other, filtered, unnested, grouped and shown, by several readers of one output."""
    plan = Plan()
    pair = schema_of(INTEGER, INTEGER)
    sides = [plan.add(Scan((), pair, True, relation_id=r, names=("k", "v"))) for r in "lr"]
    stage = 0
    if buckets > 1:
        sides = [plan.add(Exchange((s.id,), pair, True, (0,))) for s in sides]
        stage = 1
    left, right = (plan.add(Arrange((s.id,), pair, True, (0,), (False,), 0), stage) for s in sides)
    triple = schema_of(INTEGER, INTEGER, INTEGER)
    joined = plan.add(
        Join((left.id, right.id), triple, True, "inner", (0,), (0,), (False,), None, columns("l0", "l1", "r1")),
        stage,
    )
    plan.add(Sink((joined.id,), triple, True, "appended"), stage)
    some = plan.add(Map((joined.id,), triple, True, ("c0", "c1", "c2"), "c1 <> c2"), stage)
    plan.add(Sink((some.id,), triple, False, "some"), stage)
    counts = schema_of(INTEGER, BIGINT)
    grouped = plan.add(Aggregate((some.id,), counts, False, (1,), (AggregateSpec("count", None, None, False),)), stage)
    plan.add(Sink((grouped.id,), counts, False, "grouped"), stage)
    if buckets > 1:
        some = plan.add(Exchange((some.id,), triple, True, (2,)), stage)
        stage = 2
        again = plan.add(Scan((), pair, True, relation_id="r", names=("k", "v2")))
        spread = plan.add(Exchange((again.id,), pair, True, (1,)))
        other = plan.add(Arrange((spread.id,), pair, True, (1,), (False,), 0), stage)
    else:
        other = plan.add(Arrange((sides[1].id,), pair, True, (1,), (False,), 0), stage)
    above = plan.add(Arrange((some.id,), triple, True, (2,), (False,), 0), stage)
    deep = plan.add(
        Join((above.id, other.id), triple, True, "left", (2,), (1,), (False,), None, columns("l0", "l1", "r0")),
        stage,
    )
    plan.add(Sink((deep.id,), triple, False, "deep"), stage)
    return Circuit(buckets, tuple(plan.operators), plan.stages)


def run(circuit, slicing, epochs, most_rows=None):
    """What each epoch publishes, by bucket, and the numbers of rows of all operators."""
    states = {}
    found, metrics, stopped = [], [], []
    for number, changes in enumerate(epochs):
        ids = frozenset(circuit.by_id)
        context = EpochContext(
            number,
            Live() if number else Start(),
            slicing=slicing,
            most_rows={} if most_rows is None else dict.fromkeys(ids, most_rows),
        )
        frames = []
        for stage in range(circuit.last_stage + 1):
            sent = []
            for bucket in range(circuit.buckets if stage else 1):
                stored = states.setdefault((stage, bucket), Stored())
                state = stored.load()
                sources = {s.id: [changes[s.relation_id]] for s in circuit.scans}
                mine = [f for f in frames if f.bucket == bucket]
                result = run_stage(circuit, stage, bucket, sources if not stage else {}, mine, state, context)
                if stage or circuit.buckets == 1:
                    stored.save(state)
                sent += result.frames
                found.append({r: image(d) for r, d in result.published.items()})
                metrics.append({i: (m.rows_in, m.rows_out, m.made_rows) for i, m in result.metrics.items()})
                stopped += result.hottest.items()
            channels = sorted({f.channel for f in sent})
            found += [{c: image(consolidate(receive([f for f in sent if f.channel == c])))} for c in channels]
            frames = sent
    return found, metrics, stopped


@pytest.mark.parametrize("buckets", [1, 3])
def test_a_plan_gives_the_same_bytes_and_counts_with_slices_of_any_size(buckets):
    circuit = exploding(buckets)
    circuit.check()
    pair = schema_of(INTEGER, INTEGER)
    rng = random.Random(buckets)
    epochs = []
    for size in (24, 5):
        rows = {r: [(rng.choice([1, 1, 1, 2, None]), rng.randrange(40)) for _ in range(size)] for r in "lr"}
        epochs.append({r: delta_of(pair, rows[r]) for r in "lr"})
    expected = run(circuit, Slicing(), epochs)
    assert sum(len(d[1]) for p in expected[0] for r, d in p.items() if r == "appended") > 100
    for rows in (3, 50):
        assert run(circuit, Slicing(rows=rows), epochs) == expected


def test_a_join_that_may_not_makes_nothing_and_tells_its_hottest_key():
    circuit = exploding(1)
    pair = schema_of(INTEGER, INTEGER)
    rows = delta_of(pair, [(1, i) for i in range(10)] + [(2, i) for i in range(3)])
    found, metrics, stopped = run(circuit, Slicing(), [{"l": rows, "r": rows}], MostRows(108, 108))
    (first, _) = (o for o in circuit.operators if o.kind == "join")
    assert [(i, h.rows, h.values) for i, h in stopped] == [(first.id, 100, ("1",))]
    assert metrics[0][first.id] == (26, 0, 109)
    assert not any(found)
    enough = run(circuit, Slicing(), [{"l": rows, "r": rows}], MostRows(0, 200))
    assert enough == run(circuit, Slicing(rows=10), [{"l": rows, "r": rows}])


def test_slices_go_through_operators_that_make_more_of_them():
    pair = schema_of(INTEGER, INTEGER)
    plan = Plan()
    scan = plan.add(Scan((), pair, True, relation_id="l", names=("k", "v")))
    arranged = plan.add(Arrange((scan.id,), pair, True, (0,), (False,), 0))
    joined = plan.add(
        Join((arranged.id, arranged.id), pair, True, "inner", (0,), (0,), (False,), None, columns("l1", "r1"))
    )
    lists = (Field("a", INTEGER), Field("b", SCHEMA[0].type))
    made = plan.add(Map((joined.id,), lists, True, ("c0", "c1 / (c0 - 3)"), None))
    plan.add(Sink((made.id,), lists, True, "v"))
    circuit = Circuit(1, tuple(plan.operators), plan.stages)
    rows = delta_of(pair, [(1, i) for i in range(20)])
    expected = run(circuit, Slicing(), [{"l": rows}])
    assert run(circuit, Slicing(rows=3), [{"l": rows}]) == expected


def test_a_spool_leaves_nothing_behind(tmp_path):
    spool = Spool(str(tmp_path))
    assert Spool(str(tmp_path)).buffers() == []
    rows = delta_of(SCHEMA, [(1, 0.5, "x"), (2, None, None)], [1, -3])
    slicing = Slicing(directory=str(tmp_path))
    schema = rows.columns.schema
    for gather in (whole, contiguous):
        assert image(gather([rows, rows], schema, slicing)) == image(Delta.concat([rows, rows]))
        assert image(gather([], schema, slicing)) == image(rows.take(np.arange(0)))
    assert os.listdir(tmp_path) == []
    spool.buffers()


#: Buffers know the pool that they are from, but do not keep it alive.
POOLS: list[pa.MemoryPool] = []


@pytest.mark.slow
def test_memory_is_that_of_slices():
    """Of Arrow's buffers; a million rows of 20 bytes go through filter, group and sink and into the join above."""
    circuit = exploding(1)
    pair = schema_of(INTEGER, INTEGER)
    epochs = [{r: delta_of(pair, [(1, i) for i in range(1000)]) for r in "lr"}]
    most = []
    before = pa.default_memory_pool()
    for slicing in (Slicing(rows=20_000), Slicing(rows=10**9, bytes=1 << 40)):
        pool = pa.proxy_memory_pool(before)
        POOLS.append(pool)
        pa.set_memory_pool(pool)
        try:
            context = EpochContext(0, Start(), slicing=slicing)
            result = run_stage(
                circuit, 0, 0, {s.id: [epochs[0][s.relation_id]] for s in circuit.scans}, (), StageState(), context
            )
            assert result.published["appended"].num_rows == 1_000_000
            assert result.published["deep"].diff.sum() == 999_000
            most.append(pool.max_memory())
        finally:
            pa.set_memory_pool(before)
    assert most[0] < 15 << 20 < 40 << 20 < most[1]


CHILD = """
import sys, threading
import watersmeet

def held_mb():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("RssAnon")) >> 10

done, most = threading.Event(), 0
def watch():
    global most
    while not done.wait(0.005):
        most = max(most, held_mb())

with watersmeet.connect(sys.argv[2], runtime="inprocess") as c:
    c.execute("CREATE TABLE l(i int, k int); CREATE TABLE r(j int, k int)")
    c.execute(f"CREATE MATERIALIZED VIEW v AS {sys.argv[1]}; CREATE MATERIALIZED VIEW n AS SELECT count(*) AS n FROM r")
    c.execute("INSERT INTO l VALUES (1, 1); FLUSH")
    c.execute("BEGIN")
    c.execute("INSERT INTO l SELECT g, 7 FROM generate_series(1, 100000) AS t(g)")
    c.execute("INSERT INTO r SELECT g, 7 FROM generate_series(1, 100) AS t(g)")
    before = held_mb()
    watcher = threading.Thread(target=watch)
    watcher.start()
    c.execute("COMMIT; FLUSH")
    done.set()
    watcher.join()
    print(*c.execute("SHOW JOBS").fetchall()[0][2:4], c.execute("SELECT n FROM n").fetchall()[0][0], most - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="what a process holds is read from /proc")
@pytest.mark.parametrize(
    ("view", "rows"),
    [
        ("SELECT i, j FROM l LEFT JOIN r ON l.k = r.k", 10_000_001),
        pytest.param("SELECT i, j FROM l LEFT JOIN r ON l.k = r.k AND i + j <> 100", 9_999_902, marks=pytest.mark.slow),
        pytest.param(
            "SELECT a.i, a.j, b.k AS x FROM (SELECT i, j, i + j AS s FROM l JOIN r ON l.k = r.k) a "
            "LEFT JOIN r b ON a.s = b.j",
            10_000_000,
            marks=pytest.mark.thorough,
        ),
    ],
)
def test_ten_million_rows_of_one_key_take_a_fraction_of_their_memory(view, rows, tmp_path):
    """What the process holds that is no file: at once they took 560 MB, 1,250 MB with a join above."""
    child = subprocess.run(
        [sys.executable, "-c", CHILD, view, str(tmp_path / "db")],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3] / "src")},
    )
    assert child.returncode == 0, child.stderr[-2000:]
    state, shown, others, held_mb = child.stdout.split()
    assert (state, int(shown), int(others)) == ("running", rows, 100)
    assert int(held_mb) < 450

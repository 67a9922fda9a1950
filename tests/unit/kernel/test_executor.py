"""Whole circuits by hand: any number of buckets gives the same consolidated results as the batch query."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.reference import columns
from tests.unit.kernel.kernel_tools import Stored, delta_of, rows_of, schema_of

from watersmeet.circuit.circuit import Circuit
from watersmeet.circuit.epochs import Fill, Live, Start
from watersmeet.circuit.operators import (
    KEPT,
    Aggregate,
    AggregateSpec,
    Arrange,
    Constant,
    Exchange,
    Join,
    Map,
    Operator,
    Scan,
    Sink,
    TimeFilter,
    Union,
)
from watersmeet.errors import Error
from watersmeet.kernel.executor import EpochContext, run_stage
from watersmeet.kernel.metrics import OperatorMetrics, Stopwatch, Worker
from watersmeet.kernel.runs import frames as frames_module
from watersmeet.kernel.runs.delta import Delta
from watersmeet.kernel.runs.frames import Frame, count_rows, decode, encode, send
from watersmeet.values.serialization import from_json, to_json
from watersmeet.values.types import BIGINT, DOUBLE, INTEGER, TIMESTAMP, VARCHAR, Field, Schema
from watersmeet.values.watermarks import NOW, Term

ORDERS = schema_of(INTEGER, DOUBLE)
NAMES = schema_of(INTEGER, VARCHAR)


class Builder:
    """Collects operators; an exchange becomes nothing with one bucket."""

    def __init__(self, buckets: int) -> None:
        self.buckets = buckets
        self.operators: list[Operator] = []
        self.stages: dict[str, int] = {}

    def add(self, op: Operator) -> Operator:
        after = [self.stages[i] + isinstance(self.find(i), Exchange) for i in op.inputs]
        self.operators.append(op)
        self.stages[op.id] = max(after, default=0)
        return op

    def find(self, operator_id: str) -> Operator:
        return next(o for o in self.operators if o.id == operator_id)

    def exchange(self, op: Operator, keys: tuple[int, ...], mode: Any = "hash") -> Operator:
        return op if self.buckets == 1 else self.add(Exchange((op.id,), op.schema, op.append_only, keys, mode))

    def arrange(self, op: Operator, keys: tuple[int, ...]) -> Operator:
        stage = self.stages[op.id] + isinstance(op, Exchange)
        return self.add(Arrange((op.id,), op.schema, op.append_only, keys, (False,) * len(keys), stage))

    def circuit(self) -> Circuit:
        found = Circuit(self.buckets, tuple(self.operators), self.stages)
        found.check()
        return from_json(Circuit, to_json(found))


def shop(buckets: int) -> Circuit:
    """by_name: map, join, group by; total: one row; pairs: a broadcast join of it with a constant."""
    b = Builder(buckets)
    orders = b.add(Scan((), ORDERS, False, "orders", ("k", "v")))
    names = b.add(Scan((), NAMES, False, "names", ("k", "n")))
    paid = b.add(Map((orders.id,), ORDERS, False, ("c0", "c1 * 2"), "c1 > 0"))
    left, right = b.exchange(paid, (0,)), b.exchange(names, (0,))
    named = b.add(
        Join(
            (b.arrange(left, (0,)).id, b.arrange(right, (0,)).id),
            schema_of(VARCHAR, DOUBLE),
            False,
            "left",
            (0,),
            (0,),
            (False,),
            None,
            columns("r1", "l1"),
        )
    )
    grouped = b.exchange(named, (0,))
    calls = (AggregateSpec("count", None, None, False), AggregateSpec("sum", 1, None, False))
    by_name = b.add(Aggregate((grouped.id,), schema_of(VARCHAR, BIGINT, DOUBLE), False, (0,), calls))
    b.add(Sink((by_name.id,), schema_of(VARCHAR, BIGINT, DOUBLE), False, "by_name"))
    whole = b.exchange(by_name, ())
    total = b.add(
        Aggregate(
            (whole.id,),
            schema_of(BIGINT, DOUBLE),
            False,
            (),
            (AggregateSpec("count", None, None, False), AggregateSpec("max", 2, None, False)),
        )
    )
    b.add(Sink((total.id,), schema_of(BIGINT, DOUBLE), False, "total"))
    fixed = b.add(Constant((), schema_of(VARCHAR), True, (("'a'",), ("upper('b')",), ("NULL",))))
    spread = b.exchange(fixed, (), "broadcast")
    both = b.add(
        Join(
            (b.arrange(left, ()).id, b.arrange(spread, ()).id),
            schema_of(INTEGER, DOUBLE, VARCHAR),
            False,
            "inner",
            (),
            (),
            (),
            "l1 > 10 AND r0 IS NOT NULL",
            columns("l0", "l1", "r0"),
        )
    )
    doubled = b.add(Union((both.id, both.id), both.schema, False))
    b.add(Sink((doubled.id,), doubled.schema, False, "pairs"))
    return b.circuit()


class Runner:
    """A whole database in memory: epochs through all stages and buckets, with stored state."""

    def __init__(self, circuit: Circuit) -> None:
        self.circuit = circuit
        self.states: dict[tuple[int, int], Stored] = {}
        self.content: dict[str, Counter[tuple[object, ...]]] = {s.relation_id: Counter() for s in circuit.sinks}
        self.metrics: dict[str, OperatorMetrics] = {}
        self.epochs = 0

    def stage(
        self, stage: int, bucket: int, sources: dict[str, list[Delta]], frames: list[Frame], context: EpochContext
    ) -> list[Frame]:
        stored = self.states.setdefault((stage, bucket), Stored())
        state = stored.load()
        result = run_stage(self.circuit, stage, bucket, sources, frames, state, context)
        stored.save(state)
        for relation, delta in result.published.items():
            for row, diff in zip(rows_of(delta), delta.diff.tolist(), strict=True):
                self.content[relation][row] += diff
        for operator_id, metrics in result.metrics.items():
            self.metrics[operator_id] = self.metrics.get(operator_id, OperatorMetrics()) + metrics
        return result.frames

    def epoch(self, changes: dict[str, list[Delta]], context: EpochContext | None = None, tasks: int = 2) -> None:
        """changes: by relation. The frames go through the stages shuffled."""
        context = context or EpochContext(self.epochs, Live() if self.epochs else Start())
        self.epochs += 1
        scans = {s.relation_id: s.id for s in self.circuit.scans}
        tasks = 1 if self.circuit.buckets == 1 else tasks
        moving: list[Frame] = []
        for task in range(tasks):
            part = {scans[r]: deltas[task::tasks] for r, deltas in changes.items()}
            moving += self.stage(0, task, part, [], context)
        moving.append(Frame(0, "receipt", 7, b"{}"))
        for stage in range(1, self.circuit.last_stage + 1):
            np.random.default_rng(self.epochs).shuffle(moving)
            moving = [
                f
                for bucket in range(self.circuit.buckets)
                for f in self.stage(stage, bucket, {}, [f for f in moving if f.bucket == bucket], context)
            ]
        assert [f.channel for f in moving] == ["receipt"]


def expected(orders: Counter, names: Counter) -> dict[str, Counter]:
    """The batch results."""
    joined = Counter()
    pairs = Counter()
    for (k, v), n in orders.items():
        if v is None or v <= 0:
            continue
        partners = [(name, m) for (other, name), m in names.items() if other == k and k is not None and m > 0]
        for name, m in partners or [(None, 1)]:
            joined[name, v * 2] += n * m
        if v * 2 > 10:
            pairs[k, v * 2, "a"] += 2 * n
            pairs[k, v * 2, "B"] += 2 * n
    groups: dict[object, list[float]] = {}
    for (name, v), n in joined.items():
        groups.setdefault(name, []).extend([v] * n)
    by_name = Counter((name, len(vs), sum(vs)) for name, vs in groups.items() if vs)
    total = Counter([(len(by_name), max((s for _, _, s in by_name), default=None))])
    return {"by_name": by_name, "total": total, "pairs": +pairs}


def history(seed: int, epochs: int) -> list[dict[str, list[Delta]]]:
    """Random changes; the values are such that plain float sums are exact."""
    rng = np.random.default_rng(seed)
    live: dict[str, list[tuple[object, ...]]] = {"orders": [], "names": []}
    result = []
    for _ in range(epochs):
        changes = {}
        for relation, schema in (("orders", ORDERS), ("names", NAMES)):
            fresh = [
                (None if k == 0 else int(k), (float(v) if relation == "orders" else f"n{v % 3}"))
                for k, v in zip(rng.integers(0, 6, 5), rng.integers(-3, 20, 5), strict=True)
            ]
            live[relation] += fresh
            gone = [live[relation].pop(int(rng.integers(len(live[relation])))) for _ in range(3)]
            changes[relation] = [
                delta_of(schema, fresh),
                delta_of(schema, gone, [-1] * len(gone)),
                delta_of(schema, []),
            ]
        result.append(changes)
    return result


@pytest.mark.parametrize("buckets", [1, 2, 3])
def test_any_number_of_buckets_gives_the_batch_result_after_every_epoch(buckets):
    runner = Runner(shop(buckets))
    tables = {"orders": Counter(), "names": Counter()}
    runner.epoch({})
    assert {r: +c for r, c in runner.content.items()} == expected(**tables)
    for changes in history(5, 12):
        runner.epoch(changes)
        for relation, deltas in changes.items():
            for delta in deltas:
                for row, diff in zip(rows_of(delta), delta.diff.tolist(), strict=True):
                    tables[relation][row] += diff
        assert {r: Counter({k: n for k, n in c.items() if n}) for r, c in runner.content.items()} == expected(**tables)
        assert all(n >= 0 for c in runner.content.values() for n in c.values())
    assert runner.metrics[next(s.id for s in runner.circuit.scans)].rows_out > 0
    states = [stored.load() for stored in runner.states.values()]
    assert sum(s.size(o)[1] for s in states for o in s.operators if o.startswith("arrange")) > 0


def test_replay_gives_the_same_bytes():
    """Design 9a: tasks cut otherwise and frames in another order leave equal state and equal output."""
    first, second = Runner(shop(2)), Runner(shop(2))
    for changes in history(11, 6):
        first.epoch(changes, tasks=2)
        second.epoch(
            {r: [d.take(np.arange(d.num_rows)[::-1]) for d in deltas[::-1]] for r, deltas in changes.items()}, tasks=3
        )
    assert first.content == second.content
    for key in set(first.states) & set(second.states):
        assert first.states[key].bytes() == second.states[key].bytes()


def test_frames_in_fewer_bytes_leave_the_same_bytes(monkeypatch):
    monkeypatch.setattr(frames_module, "_PACKED_BYTES", 0)
    plain, packed = Runner(shop(2)), Runner(shop(2))
    for number, changes in enumerate(history(7, 6)):
        mode = Live() if number else Start()
        plain.epoch(changes, EpochContext(number, mode))
        packed.epoch(changes, EpochContext(number, mode, packed=True))
    assert plain.content == packed.content
    for key in set(plain.states) & set(packed.states):
        assert plain.states[key].bytes() == packed.states[key].bytes()


def test_only_active_operators_run_and_scratch_state_is_apart():
    circuit = shop(2)
    runner = Runner(circuit)
    changes = history(3, 3)
    runner.epoch(changes[0])
    before = {r: Counter(c) for r, c in runner.content.items()}
    sink = next(s for s in circuit.sinks if s.relation_id == "by_name")
    active = frozenset(circuit.upstream({sink.id}))
    context = EpochContext(1, Fill(first=True, roles=dict.fromkeys(active, "copied")))
    runner.epoch(changes[0], context)
    assert runner.content["total"] == before["total"]
    assert {k: 2 * n for k, n in before["by_name"].items()} == dict(runner.content["by_name"])
    names = {o for stored in runner.states.values() for o in stored.load().operators}
    assert {n for n in names if n.startswith("scratch!")} == {
        f"scratch!{i}" for i in active if i.startswith(("arrange", "aggregate"))
    }


def test_missing_state_is_refused():
    with pytest.raises(Error, match="STATE_MISMATCH"):
        Runner(shop(1)).epoch({}, EpochContext(5))
    runner = Runner(shop(1))
    runner.epoch({})
    runner.states.clear()
    with pytest.raises(Error, match="STATE_MISMATCH"):
        runner.epoch({})


def test_time_is_divided_among_operators():
    runner = Runner(shop(2))
    for changes in history(3, 3):
        runner.epoch(changes)
    assert all(m.took_ns > 0 for m in runner.metrics.values())


def test_an_operator_that_makes_slices_has_the_time_for_them(monkeypatch):
    now = iter([0, 10, 13, 20, 26, 100])
    monkeypatch.setattr("watersmeet.kernel.metrics.time.perf_counter_ns", lambda: next(now))
    watch, reader, maker = Stopwatch(), Worker(), Worker()
    watch.begin(reader)
    for _ in range(2):
        watch.begin(maker)
        watch.end()
    watch.end()
    assert (maker.took_ns, reader.took_ns) == (3 + 6, 10 + 7 + 74)


def test_errors_in_expressions_are_counted():
    b = Builder(1)
    scan = b.add(Scan((), NAMES, True, "names", ("k", "n")))
    mapped = b.add(Map((scan.id,), schema_of(INTEGER), True, ("CAST(c1 AS INTEGER)",), None))
    b.add(Sink((mapped.id,), schema_of(INTEGER), True, "out"))
    runner = Runner(b.circuit())
    runner.epoch({"names": [delta_of(NAMES, [(1, "7"), (1, "x"), (2, "y")])]})
    assert runner.content["out"] == Counter({(7,): 1, (None,): 2})
    assert runner.metrics[mapped.id].expression_errors == 2


def test_an_error_names_the_operator():
    b = Builder(1)
    scan = b.add(Scan((), NAMES, True, "names", ("k", "n")))
    mapped = b.add(Map((scan.id,), schema_of(INTEGER), True, ("c7",), None))
    runner = Runner(b.circuit())
    with pytest.raises(Error, match="INTERNAL_ERROR") as caught:
        runner.epoch({"names": [delta_of(NAMES, [(1, "7")])]})
    assert mapped.id in caught.value.__notes__[0]


def same(a: Delta, b: Delta) -> bool:
    return a.columns.equals(b.columns) and a.diff.tolist() == b.diff.tolist()


@pytest.mark.parametrize("diffs", [[1, 1, 1], [1, -2, 1]])
def test_frames_carry_changes(diffs):
    delta = delta_of(NAMES, [(1, "a"), (None, None), (3, "")], diffs)
    body = encode(delta)
    assert same(decode(body), delta)
    assert same(decode(body.to_pybytes()), delta)
    shifted = pa.py_buffer(b"x" + body.to_pybytes()).slice(1)
    assert same(decode(shifted), delta)
    nothing = Delta(pa.table({}), np.array(diffs))
    assert decode(encode(nothing)).diff.tolist() == diffs
    assert decode(encode(nothing)).columns.num_columns == 0
    with pytest.raises(Error, match="INTERNAL_ERROR"):
        decode(b"nonsense")


@pytest.mark.parametrize("texts", [True, False])
def test_large_frames_take_fewer_bytes_if_they_are_to(texts):
    schema = schema_of(INTEGER, VARCHAR) if texts else schema_of(INTEGER, BIGINT)
    values = [(i, None if i % 7 == 0 else f"text {i % 30}" if texts else 1 << 40 | i) for i in range(5000)]
    delta = delta_of(schema, values, [(-1) ** i for i in range(5000)])
    exchange = Exchange(("scan-0",), schema, True, (0,))
    plain, packed = (list(send(exchange, delta, 2, 5, packed=n)) for n in (False, True))
    assert [(f.bucket, f.seq, count_rows(f.body)) for f in packed] == [
        (f.bucket, f.seq, decode(f.body).num_rows) for f in plain
    ]
    for a, b in zip(plain, packed, strict=True):
        assert b.body.size < 0.7 * a.body.size
        assert same(decode(b.body), decode(a.body))
        shifted = pa.py_buffer(b"x" + b.body.to_pybytes()).slice(1)
        assert same(decode(shifted), decode(a.body))
    few = delta.take(np.arange(10))
    assert encode(few, packed=True).equals(encode(few))


def test_large_frames_are_cut(monkeypatch):
    monkeypatch.setattr(frames_module, "FRAME_BYTES", 1000)
    schema: Schema = schema_of(INTEGER, VARCHAR)
    delta = delta_of(schema, [(i, "x" * 10) for i in range(1000)])
    for mode in ("hash", "broadcast"):
        exchange = Exchange(("scan-0",), schema, True, (0,), mode)
        found = list(send(exchange, delta, 3, 5))
        assert max(memoryview(f.body).nbytes for f in found) < 3000
        assert len({(f.bucket, f.seq) for f in found}) == len(found)
        for bucket in range(3):
            rows = [r for f in found if f.bucket == bucket for r in rows_of(decode(f.body))]
            assert rows == sorted(rows)
            assert rows == rows_of(delta) or mode == "hash"
        assert sum(decode(f.body).num_rows for f in found) == (1000 if mode == "hash" else 3000)


def test_what_empties_a_table_goes_to_every_bucket():
    schema = (*NAMES, KEPT, Field("_seq", BIGINT))
    exchange = Exchange(("scan-0",), schema, True, (0,), "partial")
    rows = [*((i, "a", [1] if i % 2 else None, i) for i in range(20)), (None, None, [], 20), (3, None, None, 21)]
    found = list(send(exchange, delta_of(schema, rows, [1] * 20 + [-1, -1]), 4, 0))
    received = [[r for f in found if f.bucket == b for r in rows_of(decode(f.body))] for b in range(4)]
    assert [sum(r[3] == 20 for r in mine) for mine in received] == [1] * 4
    assert Counter(r[3] for mine in received for r in mine) == Counter({i: 4 if i == 20 else 1 for i in range(22)})


def test_rows_without_key_go_to_bucket_0():
    exchange = Exchange(("scan-0",), NAMES, True, ())
    assert {f.bucket for f in send(exchange, delta_of(NAMES, [(1, "a"), (2, "b")]), 4, 0)} == {0}


def test_time_filters_step_without_rows():
    """Their bound moves although nothing comes: an epoch's watermarks reach every bucket's operators."""
    schema = schema_of(INTEGER, TIMESTAMP)
    b = Builder(2)
    spread = b.exchange(b.add(Scan((), schema, True, "t", ("a", "b"))), (0,))
    recent = b.add(TimeFilter((spread.id,), schema, False, 1, ">", (Term(NOW),), (0, 1)))
    b.add(Sink((recent.id,), schema, False, "v"))
    circuit = b.circuit()
    stored = [Stored(), Stored()]
    rows = [(i, dt.datetime(1970, 1, 1, 0, 0, i)) for i in range(6)]
    content: Counter = Counter()
    for epoch, (given, seconds) in enumerate(((rows, 1), ([], 3), ([], 9)), 1):
        sources = {circuit.scans[0].id: [delta_of(schema, given)]}
        frames = run_stage(circuit, 0, 0, sources, [], Stored().load(), EpochContext(epoch)).frames
        for bucket, store in enumerate(stored):
            state = store.load()
            mode = Start() if epoch == 1 else Live()
            context = EpochContext(epoch, mode, watermarks={NOW: seconds * 1_000_000})
            mine = [f for f in frames if f.bucket == bucket]
            published = run_stage(circuit, 1, bucket, {}, mine, state, context).published
            store.save(state)
            for delta in published.values():
                for row, diff in zip(rows_of(delta), delta.diff):
                    content[row] += int(diff)
        assert sorted((+content).elements()) == [r for r in rows if r[1].second > seconds]

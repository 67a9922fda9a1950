"""Changes as a log: of each key what came, or that it is gone. LS-10."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from tests import reference
from tests.unit.kernel.kernel_tools import delta_of, rows_of, schema_of, weaken_hashes

from watersmeet.circuit.operators import CauseSpec, ChangeLog, Changes, Operator, Records
from watersmeet.kernel.context import StepContext
from watersmeet.kernel.evaluation.expressions import Evaluator
from watersmeet.kernel.operators import rowwise
from watersmeet.kernel.runs import groups
from watersmeet.kernel.runs.state import BlobDict, StageState
from watersmeet.values.serialization import from_json, to_json
from watersmeet.values.types import BIGINT, BOOLEAN, INTEGER, SMALLINT, TIMESTAMP, VARCHAR

SCHEMA = schema_of(INTEGER, VARCHAR, VARCHAR)
KEY, VALUE, KEPT = 0, 1, 2


def log_of(keys, time=None):
    return Records(("i",), (*SCHEMA, *schema_of(BOOLEAN, BIGINT)), True, keys, (KEY, KEPT), time)


def step(op, rows, diffs, epoch):
    context = StepContext(0, False, Evaluator(), (SCHEMA,), epoch=epoch)
    delta, state = delta_of(SCHEMA, rows, diffs), StageState(None, BlobDict())
    if op.keys is not None:
        come_and_go = Changes(("i",), (*SCHEMA, *schema_of(BOOLEAN, TIMESTAMP)), True, (CauseSpec((KEY,), None, 0),))
        delta = rowwise.changes(come_and_go, [delta], state, context)
    return rowwise.records(op, [delta], state, context)


def newest(log):
    """The log as a table: by key the last record, unless it is without value."""
    found = {}
    for key, value, kept, deleted, _ in log:
        found[key] = None if deleted else (key, value, kept)
    return Counter(r for r in found.values() if r is not None)


@pytest.mark.parametrize("weak", [False, True])
@pytest.mark.parametrize("seed", range(12))
def test_a_log_of_a_table_adds_up_to_it(seed, weak, monkeypatch):
    if weak:
        weaken_hashes(monkeypatch)
        monkeypatch.setattr(groups, "is_bijective", lambda kind: False)
    rng = random.Random(seed)
    op = log_of((KEY,))
    content, log = Counter(), []
    for epoch in range(1, 15):
        rows, diffs = [], []
        now = {r[0]: r for r in content}
        for key in rng.sample([None, *range(6)], rng.randrange(5)):
            # a row comes, goes, is replaced by another one, or by itself
            old, new = now.get(key), (key, rng.choice("xyz"), rng.choice(["a", None]))
            if old is not None and rng.random() < 0.3:
                new = old if rng.random() < 0.5 else None
            for row, diff in ((old, -1), (new, 1)):
                if row is not None:
                    rows.append(row)
                    diffs.append(diff)
        order = rng.sample(range(len(rows)), len(rows))
        out = step(op, [rows[i] for i in order], [diffs[i] for i in order], epoch)
        before = content.copy()
        reference.accumulate(content, rows, diffs)
        content = +content
        assert (out.diff > 0).all()
        assert {r[4] for r in rows_of(out)} <= {epoch}
        assert all(r[1] is None for r in rows_of(out) if r[3])
        changed = {r[0] for r in (before - content) + (content - before)}
        assert sorted(map(str, changed)) == sorted(str(r[0]) for r in rows_of(out)), (
            "one record for each key that changed, none for others"
        )
        log += rows_of(out)
        assert newest(log) == content
    assert any(r[3] for r in log)


def test_what_is_kept_of_a_key_that_is_gone():
    out = step(log_of((KEY,)), [(1, "x", "a"), (1, "y", "a")], [-1, -1], 3)
    assert rows_of(out) == [(1, None, "a", True, 3)]
    rows = [(1, "x", "b"), (1, "y", "a"), (2, "x", "c")]
    found = {
        rows_of(step(log_of((KEY,)), [rows[i] for i in order], [-1, -1, -1], 3))[0]
        for order in ([0, 1, 2], [2, 1, 0], [1, 2, 0])
    }
    assert len(found) == 1, "the content decides, not the order"


def test_rows_of_a_stream_are_records_as_they_are():
    op = log_of(None)
    out = step(op, [(1, "x", "a"), (1, "x", "a"), (None, None, None)], [1, 2, 1], 7)
    assert list(zip(rows_of(out), out.diff.tolist())) == [
        ((1, "x", "a", False, 7), 1),
        ((1, "x", "a", False, 7), 2),
        ((None, None, None, False, 7), 1),
    ]
    assert step(op, [], [], 8).num_rows == 0


def test_json():
    for op in (log_of((KEY,)), log_of((KEY,), KEPT), log_of(None)):
        assert from_json(Operator, to_json(op)) == op


def logged(keys, rows, diffs, epoch, bucket=0):
    op = ChangeLog(("i",), (*SCHEMA, *schema_of(SMALLINT, BIGINT)), True, keys)
    context = StepContext(bucket, False, Evaluator(), (SCHEMA,), epoch=epoch)
    return rows_of(rowwise.log(op, [delta_of(SCHEMA, rows, diffs)], StageState(None, BlobDict()), context))


@pytest.mark.parametrize("weak", [False, True])
@pytest.mark.parametrize("keys", [(KEY,), ()])
@pytest.mark.parametrize("seed", range(4))
def test_numbered_changes_are_those_of_each_epoch(seed, keys, weak, monkeypatch):
    if weak:
        weaken_hashes(monkeypatch)
        monkeypatch.setattr(groups, "is_bijective", lambda kind: False)
    rng = random.Random(seed)
    content: Counter = Counter()
    numbers = [-1]
    for epoch in range(1, 12):
        before = content.copy()
        rows, diffs = [], []
        for _ in range(rng.randrange(9)):
            row, diff = (rng.choice([None, 1, 2, 3]), rng.choice("xy"), None), rng.choice([1, 1, -1, 2])
            if content[row] + diff >= 0:
                content[row] += diff
                rows.append(row)
                diffs.append(diff)
        bucket = rng.randrange(4)
        found = logged(keys, rows, diffs, epoch, bucket)
        order = rng.sample(range(len(rows)), len(rows))
        again = logged(keys, [rows[i] for i in order], [diffs[i] for i in order], epoch, bucket)
        assert found == again, "the order of the input does not matter"
        new, old = content - before, before - content
        both = {r[0] for r in new} & {r[0] for r in old} if keys else set()
        expected = Counter({(*r, 3 if r[0] in both else 1): n for r, n in new.items()})
        expected += Counter({(*r, 4 if r[0] in both else 2): n for r, n in old.items()})
        assert Counter(r[:4] for r in found) == expected
        added = [r[4] for r in found]
        assert sorted(set(added)) == added
        assert not added or added[0] > numbers[-1]
        numbers += added
        for key in both:
            ops = [r[3] for r in found if r[0] == key]
            assert ops == sorted(ops, reverse=True), "old rows precede new ones"


def test_changes_of_two_buckets_have_different_numbers():
    one, other = (logged((), [(n, "x", None) for n in range(20)], [1] * 20, 7, bucket) for bucket in (0, 255))
    assert not {r[4] for r in one} & {r[4] for r in other}

"""Consolidation against a Counter; canonical order; equality of values."""

from __future__ import annotations

import random
from collections import Counter
from datetime import UTC, date, datetime, time
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests import reference
from tests.thorough import examples
from tests.unit.kernel.kernel_tools import delta_of, rows_of, schema_of, weaken_hashes

from watersmeet.kernel.arrays import columns as col
from watersmeet.kernel.runs.delta import Delta, consolidate, without_cancelling
from watersmeet.kernel.runs.run import Run, arrange
from watersmeet.values.types import (
    BIGINT,
    BOOLEAN,
    BYTEA,
    DATE,
    DOUBLE,
    INTEGER,
    INTERVAL,
    JSONB,
    REAL,
    SMALLINT,
    TIME,
    TIMESTAMP,
    TIMESTAMPTZ,
    VARCHAR,
    SqlType,
)

NAN = float("nan")
ARRAY = SqlType("array", element=VARCHAR)
STRUCT = SqlType("struct", fields=(("x", DOUBLE), ("y", ARRAY)))
#: Few values of each type, so that rows repeat.
VALUES = {
    BOOLEAN: [None, True, False],
    SMALLINT: [None, 0, 1, -1],
    INTEGER: [None, 0, 1, -1],
    BIGINT: [None, 0, 1, -(2**63), 2**63 - 1],
    SqlType("numeric", 38, 10): [None, Decimal(0), Decimal("-1.5"), Decimal("1e27")],
    REAL: [None, 0.0, -0.0, NAN, 1.5, float("inf")],
    DOUBLE: [None, 0.0, -0.0, NAN, 0.1],
    VARCHAR: [None, "", "a", "abcdefgh", "abcdefghi", "é" * 20, "x" * 40, "x" * 41],
    BYTEA: [None, b"", b"\0", b"\0\0"],
    DATE: [None, date(1970, 1, 1), date(2024, 2, 29)],
    TIME: [None, time(0), time(23, 59, 59, 999999)],
    TIMESTAMP: [None, datetime(2024, 1, 1, 0, 0, 0, 1), datetime(1, 1, 1)],
    TIMESTAMPTZ: [None, datetime(2024, 1, 1, tzinfo=UTC)],
    INTERVAL: [None, pa.MonthDayNano([1, 0, 0]), pa.MonthDayNano([0, 30, 0]), pa.MonthDayNano([0, 0, -1])],
    JSONB: [None, "{}", "[1]"],
    ARRAY: [None, [], [None], ["a"], ["a", None], ["a", "b"], ["ab"]],
    STRUCT: [None, {"x": None, "y": None}, {"x": -0.0, "y": []}, {"x": 0.0, "y": []}, {"x": NAN, "y": ["a"]}],
    SqlType("array", element=STRUCT): [None, [], [None], [{"x": NAN, "y": ["a"]}], [{"x": 0.0, "y": []}, None]],
}


def reference_of(delta):
    counts = Counter()
    for r, d in zip(rows_of(delta), delta.diff, strict=True):
        counts[reference.row(r)] += int(d)
    return {r: d for r, d in counts.items() if d}


@st.composite
def deltas(draw):
    types = draw(st.lists(st.sampled_from(list(VALUES)), max_size=4))
    rng = random.Random(draw(st.integers(0, 10**6)))
    n = draw(st.integers(0, 40))
    rows = [tuple(rng.choice(VALUES[t]) for t in types) for _ in range(n)]
    return delta_of(schema_of(*types), rows, [rng.choice([1, 1, -1, 2, 0]) for _ in range(n)])


def cut(delta, seed):
    """The same changes in another order, in two chunks, the second at an offset of its buffers."""
    order = np.random.default_rng(seed).permutation(delta.num_rows)
    if not delta.columns.num_columns:
        return delta.take(order)
    taken = delta.take(order)
    at = delta.num_rows // 3
    halves = [Delta(taken.columns.slice(0, at), taken.diff[:at]), Delta(taken.columns.slice(at), taken.diff[at:])]
    return Delta.concat(halves)


def check_consolidation(delta, keys, seed):
    done = consolidate(delta, keys)
    found = dict(zip((reference.row(r) for r in rows_of(done)), done.diff.tolist(), strict=True))
    assert len(found) == done.num_rows
    assert found == reference_of(delta)
    other = consolidate(cut(delta, seed), keys)
    assert str(other.columns.to_pylist()) == str(done.columns.to_pylist())
    assert (other.diff == done.diff).all()
    again = consolidate(done, keys)
    assert str(again.columns.to_pylist()) == str(done.columns.to_pylist())


@examples(300)
@given(deltas(), st.data())
def test_consolidate_is_a_counter_in_canonical_order(delta, data):
    width = delta.columns.num_columns
    keys = data.draw(
        st.one_of(st.none(), st.lists(st.integers(0, width - 1), max_size=2).map(tuple) if width else st.just(()))
    )
    check_consolidation(delta, keys, 1)


@examples(150)
@given(deltas(), st.sampled_from([0, 1]))
def test_consolidate_when_hashes_collide(delta, mask):
    with pytest.MonkeyPatch.context() as patch:
        weaken_hashes(patch, mask)
        check_consolidation(delta, None, 2)
        check_consolidation(delta, (), 3)


@examples(150)
@given(deltas())
def test_without_cancelling_leaves_one_sign_per_row(delta):
    done = without_cancelling(delta)
    assert reference_of(done) == reference_of(delta)
    signs = {}
    for r, d in zip(rows_of(done), done.diff, strict=True):
        if d:
            assert signs.setdefault(reference.row(r), d > 0) == (d > 0)


def test_concat_select_take():
    delta = delta_of(schema_of(INTEGER, VARCHAR), [(1, "a"), (2, "b")], [1, -1])
    both = Delta.concat([delta, delta.negated()])
    assert both.num_rows == 4
    assert both.select([1, 1]).columns.column_names == ["c0", "c1"]
    assert rows_of(both.take(np.array([3, 0]))) == [(2, "b"), (1, "a")]
    assert consolidate(both).num_rows == 0
    assert Delta.empty(delta.columns.schema).num_rows == 0
    assert consolidate(Delta.empty(delta.columns.schema)).columns.schema == delta.columns.schema
    bare = both.select([])
    assert (bare.num_rows, consolidate(bare).num_rows) == (4, 0)


@pytest.mark.parametrize("kind", list(VALUES), ids=lambda k: k.sql)
def test_equal_compares_every_pair_of_values(kind):
    values = VALUES[kind]
    pairs = [(a, b) for a in values for b in values]
    left, right = (pa.array([None, *(p[i] for p in pairs)], kind.arrow).slice(1) for i in (0, 1))
    expected = [reference.norm(a) == reference.norm(b) for a, b in pairs]
    assert col.equal(left, right).tolist() == expected


@pytest.mark.parametrize("read", [(), (0,), (2, 1), (0, 1, 2)])
def test_a_run_that_is_sorted_when_it_is_read_has_the_same_rows(read):
    """Whichever columns were read before."""
    schema = schema_of(INTEGER, VARCHAR, DOUBLE)
    rows = [(i * 7 % 5, None if i % 4 == 0 else f"t{i % 3}", i / 2) for i in range(40)]
    delta = delta_of(schema, rows, [1 + i % 2 for i in range(40)])

    def made():
        run = arrange(delta, (0,))
        for position in read:
            assert len(run.arrays[position]) == run.num_rows
        return run

    whole = consolidate(delta, (0,))
    assert made().shape == (whole.columns.schema, whole.num_rows)
    assert made().delta().columns.equals(whole.columns)
    some = np.array([0, 3, 4, 17])
    for run in (made(), made().slice(2, 30), made().slice(2, 30).slice(1, 20)):
        begin = {40: 0, 28: 2, 19: 3}[run.num_rows]
        assert run.columns.equals(whole.columns.slice(begin, run.num_rows))
    for run in (made(), made().slice(0, 40)):
        assert run.take(some).columns.equals(whole.take(some).columns)
        assert [a.to_pylist() for a in run.gather((2, 0), some[::-1])] == [
            whole.columns.column(i).take(some[::-1]).to_pylist() for i in (2, 0)
        ]
        assert all(run.column_bytes(i) > 0 for i in range(3))
        assert run.size_bytes == Run(run.hash, whole.columns, whole.diff, (0,), pure=True).size_bytes


def test_one_form_reaches_nested_floats():
    array = pa.array([[-0.0], None, [], [1.0, None]], pa.list_(pa.float64())).slice(0)
    assert str(col.one_form(array).to_pylist()) == "[[0.0], None, [], [1.0, None]]"
    plain = pa.array(["a"])
    assert col.one_form(plain) is plain


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(("kind", "bits", "signaling"), [("f4", "u4", 0xFFA00000), ("f8", "u8", 0xFFF4000000000000)])
def test_all_nans_have_one_form(kind, bits, signaling):
    values = np.array([signaling, 0], dtype=bits).view(kind)
    values[1] = np.nan
    first, second = np.frombuffer(col.one_form(pa.array(values)).buffers()[1], dtype=bits)
    assert first == second

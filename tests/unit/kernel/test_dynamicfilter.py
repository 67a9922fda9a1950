"""The dynamic filter against the plain reference, over random histories, and what it reads."""

from __future__ import annotations

import datetime as dt
import math
import random
from collections import Counter
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from tests import reference
from tests.thorough import mostly_slow
from tests.unit.kernel.kernel_tools import Stored, delta_of, rows_of, schema_of

from watersmeet.circuit.operators import DynamicFilter
from watersmeet.kernel.arrays.hashing import order_keys, order_words
from watersmeet.kernel.context import StepContext
from watersmeet.kernel.evaluation.expressions import Evaluator
from watersmeet.kernel.operators import filters
from watersmeet.kernel.runs.delta import Delta
from watersmeet.values.types import BIGINT, BYTEA, DATE, DOUBLE, INTEGER, NUMERIC, TIME, TIMESTAMP, VARCHAR

VALUES = {
    INTEGER: [-(2**31), -1, 0, 1, 2, 2**31 - 1],
    BIGINT: [-(2**63), -1, 0, 1, 2**53, 2**53 + 1, 2**63 - 1],
    DOUBLE: [-math.inf, -1.5, 0.0, 1e-300, 1.5, math.inf, math.nan],
    NUMERIC: [
        Decimal(t).quantize(Decimal("1e-10"))
        for t in ("-123456789012345678", "-1", "-0.0000000001", "0", "0.5", "1", "123456789012345678")
    ],
    VARCHAR: ["", "a", "abcdefgh", "abcdefghi", "abcdefghj", "b", "é", "z"],
    BYTEA: [b"", b"\x00", b"\x00\x01", b"\xff", b"\xffabcdefghij"],
    DATE: [dt.date(1, 1, 1), dt.date(1969, 12, 31), dt.date(1970, 1, 1), dt.date(2024, 2, 29)],
    TIME: [dt.time(0), dt.time(0, 0, 0, 1), dt.time(23, 59, 59, 999999)],
    TIMESTAMP: [
        dt.datetime(1969, 12, 31, 23, 59, 59, 999999),
        dt.datetime(1970, 1, 1),
        dt.datetime(2024, 1, 1, 0, 0, 0, 1),
    ],
}


def order(value):
    """NaN is the greatest; texts compare by their bytes."""
    if isinstance(value, float):
        return (1, 0.0) if math.isnan(value) else (0, value)
    if value == "NaN":  # the reference's form of it
        return (1, 0.0)
    return value.encode() if isinstance(value, str) else value


def filter_of(kind, comparison, keep=(0, 1)):
    schema = schema_of(kind, INTEGER)
    return schema, DynamicFilter(("l", "r"), tuple(schema[k] for k in keep), False, 0, comparison, keep)


def context(schema, kind):
    return StepContext(0, False, Evaluator(), (schema, schema_of(kind)))


@pytest.mark.parametrize("kind", VALUES, ids=lambda k: k.name)
@pytest.mark.parametrize("comparison", mostly_slow(["<", ">=", "<=", ">"], 4))
def test_random_histories(kind, comparison):
    rng = random.Random(f"{kind.name}{comparison}")
    keep = rng.choice([(0, 1), (1,), (0,)])
    schema, op = filter_of(kind, comparison, keep)
    stored, left, shown = Stored(), Counter(), Counter()
    bound: list = []
    for _ in range(40):
        rows, diffs = [], []
        for _ in range(rng.choice([0, 1, 3, 12])):
            present = [r for r, n in left.items() if n]
            if present and rng.random() < 0.45:
                values, diff = rng.choice(present), -1
            else:
                values, diff = (rng.choice([None, *VALUES[kind]]), rng.choice([None, 1, 2])), 1
            given = tuple(math.nan if v == "NaN" else v for v in values)
            reference.accumulate(left, [given], [diff])
            rows.append(given)
            diffs.append(diff)
        moves = [(b, -1) for b in bound]
        if rng.random() < 0.5:
            bound = rng.choice([[], [None], *[[v] for v in VALUES[kind]]])
            moves += [(b, 1) for b in bound]
        else:
            moves = []
        state = stored.load()
        right = delta_of(schema_of(kind), [(b,) for b, _ in moves], [d for _, d in moves])
        out = filters.dynamic_filter(op, [delta_of(schema, rows, diffs), right], state, context(schema, kind))
        stored.save(state)
        signs: dict = {}
        for values, diff in zip(rows_of(out), out.diff):
            assert signs.setdefault(reference.row(values), diff > 0) == (diff > 0), "a row came with both signs"
        reference.accumulate(shown, rows_of(out), out.diff)
        assert shown == reference.dynamic_filter(left, bound, column=0, comparison=comparison, keep=keep, order=order)


@pytest.mark.parametrize("kind", VALUES, ids=lambda k: k.name)
def test_words_rise_with_the_values(kind):
    array = pa.array([v for v in VALUES[kind]], kind.arrow)
    places = np.argsort(order_keys(array), kind="stable")
    assert (np.diff(order_words(array)[places].astype(object)) >= 0).all()


def test_a_move_of_the_bound_reads_only_what_is_between(monkeypatch):
    """RA-32: of a million rows, a bound that moves by ten values reads their rows."""
    schema, op = filter_of(BIGINT, ">")
    count = 1_000_000
    values = np.random.default_rng(1).permutation(count).astype(np.int64)
    table = pa.table({"c0": pa.array(values), "c1": pa.array(np.zeros(count, np.int32))})
    stored, right = Stored(), schema_of(BIGINT)
    state = stored.load()
    first = delta_of(right, [(count - 100,)])
    out = filters.dynamic_filter(op, [Delta(table, np.ones(count, np.int64)), first], state, context(schema, BIGINT))
    assert out.num_rows == 99
    stored.save(state)
    read = []
    plain = filters.passes
    monkeypatch.setattr(filters, "passes", lambda v, b, c: read.append(len(v)) or plain(v, b, c))
    moved = delta_of(right, [(count - 100,), (count - 110,)], [-1, 1])
    out = filters.dynamic_filter(op, [Delta.empty(table.schema), moved], stored.load(), context(schema, BIGINT))
    assert sorted(rows_of(out)) == [(v, 0) for v in range(count - 109, count - 99)]
    assert max(read) <= 11


def test_more_than_one_bound_is_an_error():
    schema, op = filter_of(INTEGER, "<")
    with pytest.raises(Exception, match="a dynamic filter has 2 bounds instead of one"):
        filters.dynamic_filter(
            op,
            [
                Delta.empty(pa.schema([("c0", pa.int32()), ("c1", pa.int32())])),
                delta_of(schema_of(INTEGER), [(1,), (2,)]),
            ],
            Stored().load(),
            context(schema, INTEGER),
        )

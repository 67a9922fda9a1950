"""Rows that come too late are left out by the numbers of the epochs before."""

from __future__ import annotations

import datetime as dt

import pytest
from tests.unit.kernel.kernel_tools import Stored, delta_of, rows_of, schema_of

from watersmeet.circuit.operators import LateRowFilter, Operator
from watersmeet.kernel.context import StepContext
from watersmeet.kernel.evaluation.expressions import Evaluator
from watersmeet.kernel.operators import filters
from watersmeet.values.serialization import from_json, to_json
from watersmeet.values.types import BIGINT, DATE, INTEGER, TIMESTAMP, TIMESTAMPTZ
from watersmeet.values.watermarks import NOW, Term, both, shifted

BOUND = shifted(both((Term("a"),), (Term("b"),)), -10)


def at(seconds):
    return dt.datetime(1970, 1, 1) + dt.timedelta(microseconds=seconds)


def run(rows, numbers, diffs=None, kind=TIMESTAMP, now=None):
    schema = schema_of(INTEGER, kind)
    op = LateRowFilter(("i",), schema, diffs is None, 1, BOUND, "t1", "ts", "a")
    assert from_json(Operator, to_json(op)) == op
    ctx = StepContext(0, False, Evaluator(), (schema,), before=numbers, watermarks=now or {})
    out = filters.late_row_filter(op, [delta_of(schema, rows, diffs)], Stored().load(), ctx)
    return list(zip(rows_of(out), out.diff.tolist(), strict=True))


def test_what_is_behind_the_lesser_number_by_more_than_the_length_is_late():
    rows = [(1, at(9)), (2, at(10)), (3, None), (4, at(30)), (5, at(-5))]
    assert run(rows, {"a": 20, "b": 40}) == [((2, at(10)), 1), ((3, None), 1), ((4, at(30)), 1)]


@pytest.mark.parametrize("numbers", [{}, {"a": 1000}])
def test_nothing_is_late_while_a_number_is_unknown(numbers):
    assert len(run([(1, at(0)), (2, at(5))], numbers)) == 2


def test_the_numbers_of_the_epoch_itself_make_nothing_late():
    assert len(run([(1, at(0))], {"a": 5, "b": 5}, now={"a": 1000, "b": 1000})) == 1


def test_what_goes_is_never_late():
    assert run([(1, at(0)), (2, at(0))], {"a": 100, "b": 100}, [1, -1]) == [((2, at(0)), -1)]


def test_times_of_other_types():
    day = 86_400_000_000
    numbers = {"a": 3 * day, "b": 3 * day}
    dates = [(1, dt.date(1970, 1, 3)), (2, dt.date(1970, 1, 4))]
    assert [r[0] for r, _ in run(dates, numbers, kind=DATE)] == [2]
    zoned = [(1, at(0).replace(tzinfo=dt.UTC)), (2, at(3 * day).replace(tzinfo=dt.UTC))]
    assert [r[0] for r, _ in run(zoned, numbers, kind=TIMESTAMPTZ)] == [2]


def test_the_late_rows_alone_and_history_in_which_nothing_is_late():
    """A bound without a clock of its own: what a backfill reads was there before (WITHIN of Lenses)."""
    schema, rows = schema_of(INTEGER, TIMESTAMP), [(1, at(9)), (2, at(10)), (3, None)]
    for late, filling, found in [
        (True, False, [1]),
        (False, False, [2, 3]),
        (True, True, []),
        (False, True, [1, 2, 3]),
    ]:
        op = LateRowFilter(("i",), schema, True, 1, BOUND, "", "", "", late)
        assert from_json(Operator, to_json(op)) == op
        ctx = StepContext(0, False, Evaluator(), (schema,), before={"a": 20, "b": 40}, filling=filling)
        out = filters.late_row_filter(op, [delta_of(schema, rows)], Stored().load(), ctx)
        assert [r[0] for r in rows_of(out)] == found


def in_order(within, times, numbers, now=100):
    """Rows in the order of arrival, which the last column tells, the newest first."""
    schema = schema_of(INTEGER, TIMESTAMP, BIGINT, BIGINT)
    op = LateRowFilter(("i",), schema, True, 1, shifted((Term("a"),), -within), "t1", "ts", "a", age=(2, 3))
    assert from_json(Operator, to_json(op)) == op
    rows = [(i, None if t is None else at(t), 0, -i) for i, t in enumerate(times)]
    ctx = StepContext(0, False, Evaluator(), (schema,), before=numbers, watermarks={NOW: now})
    out = filters.late_row_filter(op, [delta_of(schema, list(reversed(rows)))], Stored().load(), ctx)
    return sorted(r[0] for r in rows_of(out))


def test_in_the_order_of_arrival_the_bound_rises_from_row_to_row():
    assert in_order(0, [10, 9, 10, None, 12, 11], {}) == [0, 2, 4]
    assert in_order(2, [10, 8, 7, 20, 18, 17], {}) == [0, 1, 3, 4]
    assert in_order(2, [10, 13, 11], {"a": 14}) == [1]


def test_a_time_too_far_ahead_moves_no_bound():
    assert in_order(1, [10, 90_000_000_000, 9, 8], {}, now=5) == [0, 1, 2]

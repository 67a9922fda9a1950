"""The rows that come and go, with the time of what caused it: the greatest one of both sides of a join."""

from __future__ import annotations

from datetime import datetime, timedelta

from tests.unit.kernel.kernel_tools import delta_of, rows_of, schema_of

from watersmeet.circuit.operators import CauseSpec, Changes, Operator
from watersmeet.kernel.context import StepContext
from watersmeet.kernel.evaluation.expressions import Evaluator
from watersmeet.kernel.operators import rowwise
from watersmeet.kernel.runs.state import BlobDict, StageState
from watersmeet.values.serialization import from_json, to_json
from watersmeet.values.types import BOOLEAN, INTEGER, TIMESTAMP

#: What ON equates, the key and the time of each side.
ROWS = schema_of(INTEGER, INTEGER, TIMESTAMP, INTEGER, TIMESTAMP)
SIDE = schema_of(INTEGER, INTEGER, TIMESTAMP)
JOINED = Changes(
    ("j", "l", "r"),
    (*ROWS, *schema_of(BOOLEAN, TIMESTAMP)),
    True,
    (CauseSpec((0, 1), 2, 1), CauseSpec((0, 3), 4, 1)),
)


def t(seconds):
    return None if seconds is None else datetime(2021, 1, 1) + timedelta(seconds=seconds)


def stepped(rows, left=(), right=()):
    """By (left key, right key, went) the second at which it happened. rows: (equated, key, time, key, time, diff)."""
    context = StepContext(0, False, Evaluator(), (ROWS, SIDE, SIDE), epoch=1)
    values = [(e, lk, t(lt), rk, t(rt)) for e, lk, lt, rk, rt, _ in rows]
    inputs = [
        delta_of(ROWS, values, [r[-1] for r in rows]),
        *(delta_of(SIDE, [(e, k, t(s)) for e, k, s in side], [1] * len(side)) for side in (left, right)),
    ]
    out = rowwise.changes(JOINED, inputs, StageState(None, BlobDict()), context)
    assert (out.diff > 0).all()
    return {(r[1], r[3], r[5]): None if r[6] is None else round((r[6] - t(0)).total_seconds()) for r in rows_of(out)}


def test_a_row_that_lost_its_partner_has_the_time_of_that():
    rows = [(7, 1, 1, 2, 5, -1), (7, 1, 1, None, None, 1)]
    assert stepped(rows, right=[(7, 2, 9)]) == {(1, 2, True): 9, (1, None, False): 9}


def test_a_row_that_goes_because_a_partner_came_has_the_time_of_that():
    rows = [(7, 1, 1, None, None, -1), (7, 1, 1, 2, 5, 1)]
    assert stepped(rows, right=[(7, 2, 5)]) == {(1, None, True): 5, (1, 2, False): 5}


def test_the_greatest_time_of_both_sides():
    gone = [(7, 1, 30, 2, 20, -1)]
    assert stepped(gone, left=[(7, 1, 11)]) == {(1, 2, True): 20}, "what went tells nothing, what is there does"
    assert stepped(gone, left=[(7, 1, 11)], right=[(7, 2, 12)]) == {(1, 2, True): 12}
    assert stepped([(7, 1, 3, 2, 20, 1)], left=[(7, 1, 3)]) == {(1, 2, False): 20}


def test_others_take_no_part():
    rows = [(7, 1, 1, None, None, 1), (8, 2, 2, None, None, 1), (None, 3, 3, None, None, 1)]
    found = stepped(rows, left=[(7, 1, 1)], right=[(8, 5, 9), (None, 6, 50)])
    assert found == {(1, None, False): 1, (2, None, False): 9, (3, None, False): 3}


def test_json():
    assert from_json(Operator, to_json(JOINED)) == JOINED

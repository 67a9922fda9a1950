"""Sliding windows: what the state keeps, that cuts don't show, and sums over stretches against exact fractions."""

from __future__ import annotations

import math
import random
from fractions import Fraction

import numpy as np
import pyarrow as pa
import pytest
from tests.unit.kernel.kernel_tools import Stored, delta_of, rows_of, schema_of, weaken_hashes

from watersmeet.circuit.operators import SlidingWindow, SortKey, WindowFrame, WindowSpec
from watersmeet.kernel.arrays import stretches
from watersmeet.kernel.context import StepContext
from watersmeet.kernel.evaluation.expressions import Evaluator
from watersmeet.kernel.operators import sliding
from watersmeet.kernel.runs import groups as groups_module
from watersmeet.values.types import BIGINT, DOUBLE, TIMESTAMP, VARCHAR
from watersmeet.values.watermarks import Step, Term

EVALUATOR = Evaluator()
SCHEMA = schema_of(VARCHAR, TIMESTAMP, BIGINT, DOUBLE)  # key, time, order of arrival (the newest first), value
BY_ARRIVAL = (SortKey(1), SortKey(2, descending=True))
SECOND_US = 1_000_000


def ranged(function, *arguments, seconds, end=0, **options):
    frame = WindowFrame("range", -seconds * SECOND_US, -end * SECOND_US, value=1)
    return WindowSpec(function, arguments, 0, None, BY_ARRIVAL, frame, **options)


def by_rows(function, *arguments, before, number=0):
    return WindowSpec(function, arguments, number, None, BY_ARRIVAL, WindowFrame("rows", -before, 0))


def window_of(*functions, keep_us=None, depth=None):
    types = [BIGINT if f.function == "count" else SCHEMA[f.arguments[0]].type for f in functions]
    retain = () if keep_us is None else (Term("s", (Step("add", -keep_us),)),)
    return SlidingWindow(
        ("scan-0",),
        SCHEMA + schema_of(*types),
        True,
        (0,),
        functions,
        (0, 1, 2, 3),
        time=None if keep_us is None else 1,
        retain=retain,
        depth=depth,
    )


class History:
    """Epochs of (key, second, number of arrival, value)."""

    def __init__(self, op):
        self.op, self.stored = op, Stored()

    def epoch(self, rows, clock=None):
        state = self.stored.load()
        delta = delta_of(SCHEMA, [(k, t * SECOND_US, -n, x) for k, t, n, x in rows])
        marks = {} if clock is None else {"s": clock * SECOND_US}
        out = sliding.step(
            self.op, [delta], state, StepContext(0, False, EVALUATOR, (SCHEMA,), watermarks=marks, before=marks)
        )
        self.kept = state.trace(self.op.id, sliding.ROWS).num_rows
        self.stored.save(state)
        assert [f.type for f in out.columns.schema] == [f.type.arrow for f in self.op.schema]
        return sorted(((row[0], -row[2], *row[4:]) for row in rows_of(out)), key=lambda row: row[1])


def test_the_clock_removes_rows_that_no_later_window_has():
    history = History(window_of(ranged("count", seconds=10), keep_us=10 * SECOND_US))
    assert history.epoch([("a", 0, 1, 1.0), ("a", 5, 2, 1.0)], clock=5) == [("a", 1, 1), ("a", 2, 2)]
    assert history.kept == 2
    assert history.epoch([("b", 15, 3, 1.0)], clock=15) == [("b", 3, 1)]
    assert history.kept == 2  # the row of second 5 is within ten seconds, both ends included
    assert history.epoch([], clock=16) == []
    assert history.kept == 1
    assert history.epoch([("b", 25, 4, 1.0)], clock=25) == [("b", 4, 2)]


def test_a_window_by_rows_keeps_the_newest_rows_of_each_key():
    history = History(window_of(by_rows("count", before=2), by_rows("lag", 3, before=2, number=2), depth=2))
    found = []
    for n in range(40):
        found += history.epoch([("ab"[n % 2], 0, n, float(n))])
    assert found[-1] == ("b", 39, 3, 35.0)
    assert history.kept <= 16


@pytest.mark.parametrize("weak", [False, True])
def test_cuts_don_t_show(weak, monkeypatch):
    if weak:
        weaken_hashes(monkeypatch, 1)
        monkeypatch.setattr(groups_module, "is_bijective", lambda kind: False)
    rng = random.Random(5)
    values = [0.1, 1e16, -1e16, 1e-9, 1e200, None, 3.0]
    rows, now = [], 0
    for n in range(120):
        now += rng.choice([0, 0, 1, 4])
        rows.append((rng.choice(["a", "b", None]), now, n, rng.choice(values)))
    functions = (
        ranged("sum", 3, seconds=7),
        ranged("max", 3, seconds=7),
        ranged("count", 3, seconds=20, end=2, distinct=True),
        ranged("first_value", 3, seconds=5, skips_nulls=True),
    )
    found = []
    for most in (120, 7, 1):
        history, out = History(window_of(*functions, keep_us=20 * SECOND_US)), []
        begin = 0
        while begin < len(rows):
            part = rows[begin : begin + rng.randint(1, most)]
            begin += len(part)
            out += history.epoch(rng.sample(part, len(part)), clock=part[-1][1])
        found.append(out)
    assert found[0] == found[1] == found[2]
    for (key, n, total, *_), row in zip(found[0], rows, strict=True):
        window = [x for k, t, m, x in rows if k == key and m <= n and t >= row[1] - 7 and x is not None]
        assert total == (math.fsum(window) if window else None)


def _stretches(rng, count):
    low = np.array([rng.randrange(count + 1) for _ in range(60)])
    return low, np.array([rng.randrange(int(p), count + 1) for p in low])


@pytest.mark.parametrize("scale", [1.0, 2.0**-40, 1e17, 1e250])
def test_sums_of_floats_are_rounded_once(scale):
    rng = random.Random(7)
    values = np.array([rng.choice([-1, 1]) * rng.random() * scale * rng.choice([1, 1e-3, 1e3]) for _ in range(200)])
    weights = np.array([rng.random() < 0.8 for _ in values])
    low, high = _stretches(rng, len(values))
    double, single = (stretches.float_sums(values, weights, [(low, high)], bits) for bits in (53, 24))
    assert double is not None
    assert single is not None
    for i, (a, b) in enumerate(zip(low, high, strict=True)):
        exact = sum((Fraction(float(v)) for v in values[a:b][weights[a:b]]), Fraction(0))
        assert double[i] == float(exact)
        if abs(single[i]) < 1e38:
            nearest = np.float32(single[i])
            near = [nearest, *(np.nextafter(nearest, np.float32(limit)) for limit in (math.inf, -math.inf))]
            assert abs(Fraction(float(nearest)) - exact) == min(abs(Fraction(float(v)) - exact) for v in near)


def test_floats_that_span_too_many_bits_are_left_to_digits():
    ends = np.array([0]), np.array([2])
    assert stretches.float_sums(np.array([1e200, 1e-200]), np.ones(2, np.bool_), [ends], 53) is None


def test_infinities_and_nan():
    values = np.array([1.0, math.inf, 2.0, -math.inf, math.nan])
    low, high = np.array([0, 0, 1, 3, 4, 2]), np.array([1, 2, 4, 4, 5, 3])
    found = stretches.float_sums(values, np.ones(5, np.bool_), [(low, high)], 53)
    assert found is not None
    assert [str(v) for v in found] == ["1.0", "inf", "nan", "-inf", "nan", "2.0"]


@pytest.mark.parametrize(
    "array",
    [
        pa.array([3, -(2**63), None, 2**63 - 1, 0], pa.int64()),
        pa.array([0.5, -0.25, None, math.inf, -math.inf], pa.float64()),
        pa.array([0.5, -0.25, None, 7.0, 1.0], pa.float32()),
        pa.array([3, 1, None, 7, 5], pa.int16()),
        pa.array([3, 1, None, 7, 5], pa.timestamp("us")),
        pa.array([3, 1, None, 7, 5], pa.date32()),
        pa.array(["b", "a", None, "d", "c"], pa.string()),
    ],
)
@pytest.mark.parametrize("largest", [False, True])
def test_extremes(array, largest):
    weights = np.asarray(array.is_valid())
    low, high = np.array([0, 0, 1, 2, 2, 3]), np.array([5, 2, 4, 3, 2, 5])
    found = stretches.extremes(array, weights, [(low, high)], largest=largest)
    assert found.type == array.type
    best = max if largest else min
    values = array.to_pylist()
    expected = [best([v for v in values[a:b] if v is not None], default=None) for a, b in zip(low, high, strict=True)]
    assert found.to_pylist() == expected

from __future__ import annotations

import math
import struct
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.thorough import examples

from watersmeet.kernel.arrays import exact_sum

FINITE = st.one_of(
    st.floats(allow_nan=False, allow_infinity=False),
    st.floats(-1e6, 1e6),
    st.sampled_from(
        [0.0, -0.0, 5e-324, -5e-324, 2.0**-1022, 1e16, 1.0, -1e16, 0.1, 1.7976931348623157e308, 2.0**53, 2.0**-60]
    ),
)


def sums(rows: list[tuple[int, float, int]], num_rows: int, precision: int = 53) -> list[float]:
    group, value, weight = (np.array([r[i] for r in rows], t) for i, t in enumerate((np.int64, np.float64, np.int64)))
    digits = exact_sum.split(group, value, weight)
    result = [t.rounded(precision) for (t,) in exact_sum.tables(num_rows, [digits])]
    return np.concatenate(result).tolist()


def nearest(value: Fraction) -> float:
    try:
        return value.numerator / value.denominator
    except OverflowError:
        return math.inf if value > 0 else -math.inf


@examples(300)
@given(st.lists(st.tuples(st.integers(0, 3), FINITE, st.sampled_from([1, -1, 2, 1000])), max_size=20))
def test_sums_are_exact_and_rounded_once(rows):
    expected = [nearest(sum((Fraction(v) * w for g, v, w in rows if g == k), Fraction(0))) for k in range(4)]
    found = sums(rows, 4)
    assert found == expected
    assert sums(rows[::-1], 4) == found


@examples(200)
@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=12))
def test_reals_are_rounded_once_to_24_bits(values):
    total = sum(map(Fraction, values), Fraction(0))
    (found,) = sums([(0, v, 1) for v in values], 1, 24)
    if abs(found) < 3.4e38:
        assert float(np.float32(found)) == found
        below, above = (np.nextafter(np.float32(found), np.float32(to)) for to in (-np.inf, np.inf))
        error = abs(Fraction(found) - total)
        assert all(math.isinf(n) or error <= abs(Fraction(float(n)) - total) for n in (below, above))


def test_retraction_leaves_no_trace():
    assert sums([(0, 1e16, 1), (0, 1.0, 1), (0, 1e16, -1)], 1) == [1.0]
    assert sums([(0, 1e308, 1), (0, 1e308, 1), (0, 1e308, -1)], 1) == [1e308]
    digits = exact_sum.split(np.array([0, 0]), np.array([0.1, 0.1]), np.array([1, -1]))
    ((table,),) = exact_sum.tables(1, [digits])
    assert [a.to_pylist() for a in table.lists()] == [[0], [[]]]


def test_half_to_even_with_a_far_rest():
    one = 2.0**53
    assert sums([(0, one, 1), (0, 1.0, 1)], 1) == [one]
    assert sums([(0, one, 1), (0, 1.0, 1), (0, 5e-324, 1)], 1) == [one + 2]
    assert sums([(0, one, 1), (0, 1.0, 1), (0, 5e-324, -1)], 1) == [one]
    assert sums([(0, one + 2, 1), (0, 1.0, 1)], 1) == [one + 4]


def test_normal_form_is_unique_and_stored_sums_go_on():
    rng = np.random.default_rng(3)
    rows = rng.integers(0, 50, 2000)
    values = rng.standard_normal(2000) * 10.0 ** rng.integers(-30, 30, 2000)
    values[:100], values[1900:] = 1e300, 1e300
    ones = np.ones(2000, np.int64)
    ones[1900:] = -1
    old, change = (
        exact_sum.split(rows[:900], values[:900], ones[:900]),
        exact_sum.split(rows[900:], values[900:], ones[900:]),
    )
    ((before, after),) = exact_sum.tables(60, [old, change])
    stored = [a.slice(0) for a in pa.table(list(before.lists()), ["a", "b"]).take(pa.array(np.arange(60))).columns]
    ((_, again),) = exact_sum.tables(60, [exact_sum.stored(*(c.combine_chunks() for c in stored)), change])
    ((whole,),) = exact_sum.tables(60, [exact_sum.split(rows[::-1].copy(), values[::-1].copy(), ones[::-1].copy())])
    assert [a.to_pylist() for a in again.lists()] == [a.to_pylist() for a in whole.lists()]
    assert [a.to_pylist() for a in again.lists()] == [a.to_pylist() for a in after.lists()]
    assert again.lists()[1].type == pa.list_(pa.int32())


def test_many_rows_in_pieces(monkeypatch):
    monkeypatch.setattr(exact_sum, "_CELLS", 1000)
    values = np.arange(5000) * 0.1
    rows = [(int(i) % 700, float(v), 1) for i, v in enumerate(values)]
    assert sums(rows, 700) == [math.fsum(values[k::700]) for k in range(700)]


@examples(200)
@given(
    st.lists(st.tuples(st.integers(-(10**37), 10**37), st.integers(1, 2**40)), min_size=1, max_size=8),
    st.integers(-12, 20),
)
def test_wide_quotients(pairs, power):
    values = pa.array([Decimal(v) for v, _ in pairs], pa.decimal128(38, 0))
    divisor = np.array([d for _, d in pairs], np.int64)
    magnitude, negative = exact_sum.scaled(exact_sum.limbs_of(values), power, divisor)
    for i, (v, d) in enumerate(pairs):
        exact = Fraction(abs(v)) * Fraction(10) ** power / d
        assert sum(int(limb) << 32 * k for k, limb in enumerate(magnitude[:, i])) == math.floor(exact + Fraction(1, 2))
        assert negative[i] == (v < 0)
    kind = pa.decimal128(38, 0)
    decimals, errors = exact_sum.to_decimal(magnitude, negative, kind, np.ones(len(pairs), np.bool_))
    decimals.validate(full=True)
    expected = []
    for v, d in pairs:
        rounded = math.floor(Fraction(abs(v)) * Fraction(10) ** power / d + Fraction(1, 2))
        expected.append(None if rounded >= 10**38 else Decimal(rounded if v > 0 else -rounded))
    assert decimals.to_pylist() == expected
    assert errors.sum() == expected.count(None)


@pytest.mark.parametrize(
    "kind", [pa.int16(), pa.int32(), pa.int64(), pa.decimal128(9, 2), pa.decimal128(18, 2), pa.decimal128(38, 10)]
)
def test_wide_sums_of_extremes(kind):
    if pa.types.is_decimal(kind):
        big, small = (Decimal((sign, (9,) * kind.precision, -kind.scale)) for sign in (0, 1))
        values = [big, small, big, big, small, small, small]
    else:
        values = [2 ** (kind.bit_width - 1) - 1, -(2 ** (kind.bit_width - 1)), 1, -1, 0, -7]
    limbs = exact_sum.limbs_of(pa.array([str(v) for v in values]).cast(kind))
    total = limbs.sum(axis=1, keepdims=True)
    scale = kind.scale if pa.types.is_decimal(kind) else 0
    magnitude, negative = exact_sum.scaled(total, 0)
    found, errors = exact_sum.to_decimal(magnitude, negative, pa.decimal128(38, scale), np.array([True]))
    assert not errors.any()
    assert Fraction(found[0].as_py()) == sum(map(Fraction, values))


def test_wide_integers_and_their_overflow():
    limbs = exact_sum.limbs_of(pa.array([2**63 - 1, -(2**63), 5], pa.int64()))
    assert exact_sum.to_integer(limbs, pa.int64(), np.array([True, True, False]))[0].to_pylist() == [
        2**63 - 1,
        -(2**63),
        None,
    ]
    found, errors = exact_sum.to_integer(limbs * 2, pa.int64(), np.ones(3, np.bool_))
    assert (found.to_pylist(), errors.tolist()) == ([None, None, 10], [True, True, False])


WORDS = st.one_of(st.integers(-(2**63), 2**63 - 1), st.integers(-(10**10), 10**10), st.sampled_from([-(2**63), 2**32]))


@examples(200)
@given(st.lists(WORDS, min_size=1, max_size=5), st.integers(0, 20), st.integers(19, 38))
def test_decimals_of_one_word_are_those_of_the_general_arithmetic(values, power, precision):
    limbs, valid = exact_sum.limbs_of(pa.array(values, pa.int64())), np.arange(len(values)) != 2
    kind = pa.decimal128(precision, 0)
    found = exact_sum.small_decimal(limbs, kind, valid, power)
    decimals, errors = exact_sum.to_decimal(*exact_sum.scaled(limbs, power), kind, valid)
    greatest = max(abs(v) for v, there in zip(values, valid, strict=True) if there)
    if greatest < 10**8 and power <= 10 and precision > 18:
        assert found is not None
    if found is not None:
        found.validate(full=True)
        assert (found.to_pylist(), errors.any()) == (decimals.to_pylist(), False)


@examples(100)
@given(st.lists(st.tuples(WORDS, st.integers(-3, 3)), min_size=1, max_size=5))
def test_narrow_values_have_sums_of_63_bits(pairs):
    values, weights = (np.array([p[i] for p in pairs], np.int64) for i in range(2))
    found = exact_sum.narrow(pa.array(values), weights)
    total = sum(abs(v * w) for v, w in pairs)
    if found is not None:
        assert found.tolist() == values.tolist()
        assert total < 2**62
    else:
        assert max(abs(v) for v, _ in pairs) * max(abs(w) for _, w in pairs) * len(pairs) >= 2**62


def test_struct_of_subnormals():
    tiny = struct.unpack("<d", struct.pack("<q", 3))[0]
    assert sums([(0, tiny, 7)], 1) == [tiny * 7]

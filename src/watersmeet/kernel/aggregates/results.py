"""The results of aggregate calls, from a group's accumulators."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from watersmeet.circuit.operators import DEVIATIONS, AggregateSpec
from watersmeet.errors import error
from watersmeet.kernel.aggregates.accumulators import Accumulators, feed_of
from watersmeet.kernel.arrays import columns as col
from watersmeet.kernel.arrays import deviation, exact_sum, wide

Floats = npt.NDArray[np.float64]


def result(
    call: AggregateSpec, plan: Accumulators, state: Sequence[pa.Array], argument: pa.DataType | None, kind: pa.DataType
) -> tuple[pa.Array, col.Mask]:
    """The call's values as `kind`, one per row of the accumulators `state`; and where they are too large (NULL then).

    argument: the type of the call's argument, None for count(*).
    """
    feed = feed_of(call)
    none = np.zeros(len(state[0]), np.bool_)
    if call.function in ("min", "max"):
        return state[plan.find("min" if call.function == "min" else "max", feed).start].cast(kind), none
    count = _ints(state[plan.find("count", feed).start])
    if call.function == "count":
        return pa.array(count).cast(kind), none
    valid = count > 0
    if call.function in ("bool_and", "bool_or"):
        true = _ints(state[plan.find("true", feed).start])
        return pa.array(true == count if call.function == "bool_and" else true > 0, mask=~valid), none
    assert argument is not None
    if call.function in DEVIATIONS:
        return _deviation(call, plan, state, argument, kind, count)
    divisor = np.maximum(count, 1) if call.function == "avg" else None
    if pa.types.is_floating(argument):
        sums = _float_sums(state[plan.find("float", feed).columns], 53 if kind == pa.float64() else 24)
        if divisor is not None:
            sums = sums / divisor
        return _floats(sums, kind, valid), none
    limbs = np.stack([_ints(a) for a in state[plan.find("sum", feed).columns]])
    scale = argument.scale if pa.types.is_decimal(argument) else 0
    if pa.types.is_floating(kind):
        return _floats(_nearly(limbs) / 10.0**scale / (1 if divisor is None else divisor), kind, valid), none
    if pa.types.is_integer(kind) and divisor is None and scale == 0 and len(limbs) <= 2:
        return wide.to_integer(limbs, kind, valid)
    if not pa.types.is_decimal(kind):
        raise error("INTERNAL_ERROR", f"{call.function} of {argument} does not give {kind}")
    magnitude, negative = wide.scaled(limbs, kind.scale - scale, *([] if divisor is None else [divisor]))
    return wide.to_decimal(magnitude, negative, kind, valid)


def _deviation(
    call: AggregateSpec,
    plan: Accumulators,
    state: Sequence[pa.Array],
    argument: pa.DataType,
    kind: pa.DataType,
    count: npt.NDArray[np.int64],
) -> tuple[pa.Array, col.Mask]:
    """Of doubles a double; of whole numbers and decimals a decimal, whose root has the precision of a double."""
    feed = feed_of(call)
    none = np.zeros(len(count), np.bool_)
    valid = count > (1 if call.function.endswith("samp") else 0)
    squares = state[plan.find("squares", feed).columns]
    if pa.types.is_floating(argument):
        part = state[plan.find("float", feed).columns]
        odd = np.logical_or.reduce([_ints(a) > 0 for a in part[:3]])
        numerators, powers = deviation.float_numerators(count, (part[3], part[4]), (squares[0], squares[1]))
        values = np.where(odd, np.nan, deviation.deviation(call.function, count, numerators, powers))
        return _floats(values, kind, valid), none
    exact = deviation.wide_numerators(count, state[plan.find("sum", feed).columns], squares)
    scale = 2 * (argument.scale if pa.types.is_decimal(argument) else 0)
    if call.function.startswith("var"):
        others = np.maximum(count - 1, 1) if call.function.endswith("samp") else np.maximum(count, 1)
        size, negative = wide.scaled(exact, kind.scale - scale, np.maximum(count, 1), others)
        return wide.to_decimal(size, negative, kind, valid)
    roots = deviation.deviation(call.function, count, deviation.nearest(exact) / 10.0**scale)
    large = valid & (roots >= 10.0 ** (kind.precision - kind.scale))
    valid &= ~large
    return pa.array(np.where(valid, roots, 0.0), mask=~valid).cast(kind), large


def _ints(array: pa.Array) -> npt.NDArray[np.int64]:
    return np.asarray(array.to_numpy())


def _float_sums(state: Sequence[pa.Array], precision: int) -> Floats:
    nans, infinities, negatives = (_ints(a) > 0 for a in state[:3])
    digits = exact_sum.stored(state[3], state[4])
    pieces = [table.rounded(precision) for (table,) in exact_sum.tables(len(nans), [digits])]
    sums = np.concatenate(pieces) if pieces else np.zeros(0)
    sums[infinities] = np.inf
    sums[negatives] = -np.inf
    sums[nans | infinities & negatives] = np.nan
    return sums


def _floats(values: Floats, kind: pa.DataType, valid: col.Mask) -> pa.Array:
    with np.errstate(over="ignore"):
        return pa.array(values.astype(kind.to_pandas_dtype()), kind, mask=None if valid.all() else ~valid)


def _nearly(limbs: wide.Limbs) -> Floats:
    """The values as float64, from the highest limb down: the same for the same value."""
    total = np.zeros(limbs.shape[1])
    for limb in wide.carry(limbs)[::-1]:
        total = total * 4294967296.0 + limb
    return total

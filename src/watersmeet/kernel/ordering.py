"""The SQL order of values, as integers: for min and max."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.errors import error
from watersmeet.kernel import columns as col

Ints = npt.NDArray[np.int64]


def order_keys(array: pa.Array) -> Ints:
    """Integers that compare as the values do; comparable within this array only. Undefined where NULL.

    Equal integers mean equal values: floats are in one form (NaN is the greatest), intervals in `key_form`.
    Raises WatersmeetError FEATURE_NOT_SUPPORTED for arrays and structs.
    """
    kind = array.type
    t = pa.types
    if col.is_interval(kind):
        days, nanos = col.normal_interval(array).T
        order = np.lexsort((nanos, days))
        step = (days[order][1:] != days[order][:-1]) | (nanos[order][1:] != nanos[order][:-1])
        result = np.zeros(len(array), np.int64)
        result[order[1:]] = np.cumsum(step)
        return result
    if t.is_decimal(kind) or col.is_bytes(kind):
        ranks = pc.rank(array, sort_keys="ascending", tiebreaker="dense")
        return np.asarray(ranks.to_numpy()).astype(np.int64)
    if t.is_floating(kind):
        bits = col.words(array).astype(np.float64).view(np.int64)
        return bits ^ (bits >> 63 & np.int64(0x7FFFFFFFFFFFFFFF))
    if t.is_boolean(kind) or t.is_integer(kind) or t.is_temporal(kind):
        return col.words(array).astype(np.int64)
    raise error("FEATURE_NOT_SUPPORTED", f"min and max of values of type {kind} are not supported")


def extremes(groups: Ints, values: pa.Array, num_groups: int, *, largest: bool) -> pa.Array:
    """Per group 0 … num_groups its smallest (or largest) value; NULL for groups without values that are not NULL."""
    keys = order_keys(values)
    valid = col.validity(values)
    rows = np.arange(len(values)) if valid is None else np.flatnonzero(valid)
    group, keys = groups[rows], keys[rows]
    bounds = np.iinfo(np.int64)
    best = np.full(num_groups, bounds.min if largest else bounds.max)
    (np.maximum if largest else np.minimum).at(best, group, keys)
    winners = np.flatnonzero(keys == best[group])
    place = np.full(num_groups, -1, np.int64)
    place[group[winners]] = rows[winners]
    return values.take(pa.array(place, mask=place < 0))

"""Which of two values is nearer to a third one."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.kernel.arrays import columns as col


def nearer_above(values: pa.Array, below: pa.Array, above: pa.Array) -> col.Mask:
    """Where `above` is nearer to the value than `below` is; false where both are equally near.

    Each is a number, a date or a time, none is NULL, and below <= value <= above. Differences are exact, of floats
    those of doubles; one that is no number (NaN, an infinity less itself) is the greatest.
    """
    kind = values.type
    if pa.types.is_decimal(kind):
        wide = pa.decimal256(kind.precision, kind.scale)  # room for the difference of any two
        value, low, high = (a.cast(wide) for a in (values, below, above))
        return np.asarray(pc.less(pc.subtract(high, value), pc.subtract(value, low)))
    if pa.types.is_floating(kind):
        real, least, most = (col.words(a).astype(np.float64) for a in (values, below, above))
        with np.errstate(over="ignore", invalid="ignore"):
            return _measured(most - real) < _measured(real - least)
    # Of 64 bits, a difference that is not negative has room without its sign.
    whole, left, right = (col.words(a).astype(np.int64).view(np.uint64) for a in (values, below, above))
    return right - whole < whole - left


def _measured(differences: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    return np.where(np.isnan(differences), np.inf, differences)

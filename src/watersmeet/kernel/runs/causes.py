"""The time of what caused changes: the greatest of those that agree with them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import pyarrow as pa

from watersmeet.kernel.arrays import columns as col
from watersmeet.kernel.arrays.hashing import hash_columns
from watersmeet.kernel.runs.groups import Ints, group, key_form

#: No time at all: before all others.
NEVER: Final = np.iinfo(np.int64).min


def times_us(column: col.Column) -> Ints:
    """A timestamp column as numbers, NULL as `NEVER`."""
    array = col.flat(column)
    valid = col.validity(array)
    words = col.words(array).astype(np.int64)
    return words if valid is None else np.where(valid, words, NEVER)


def timestamps(times: Ints, kind: pa.DataType) -> pa.Array:
    """The inverse of `times_us`."""
    return pa.array(times, pa.int64(), mask=times == NEVER).view(kind)


def greatest(rows: Sequence[col.Column], causes: Sequence[col.Column], times: Ints, count: int) -> Ints:
    """For each of `count` rows the greatest of `times` among the causes that agree with it in all columns.

    NULL agrees with NULL. `NEVER` where there is none.
    """
    if not len(times):
        return np.full(count, NEVER)
    keys = [key_form(pa.concat_arrays([col.flat(a), col.flat(b)])) for a, b in zip(rows, causes, strict=True)]
    if not keys:
        return np.full(count, times.max())
    groups = group(keys, hash_columns(keys, count + len(times)))
    found = np.full(groups.count, NEVER)
    np.maximum.at(found, groups.of_row[count:], times)
    return found[groups.of_row[:count]]

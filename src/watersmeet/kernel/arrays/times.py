"""Times of columns as integers."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.kernel.arrays import columns as col
from watersmeet.units import DAY_US

#: The last day that begins within 64 bits, and as many before 1970 the first one.
MOST_DAYS: Final = np.iinfo(np.int64).max // DAY_US


def microseconds(column: col.Column) -> tuple[npt.NDArray[np.int64], col.Mask | None]:
    """(microseconds since 1970, UTC; True where not NULL, or None if nothing is NULL) of a timestamp or date column.

    Where the column is NULL the number is 0. Dates that no timestamp can hold, infinity among them, count as the
    nearest day.
    """
    array = col.flat(column)
    valid = col.validity(array)
    if pa.types.is_date32(array.type):
        days = pc.cast(array.view(pa.int32()), pa.int64())
        within = pc.max_element_wise(
            pc.min_element_wise(days, MOST_DAYS, skip_nulls=False), -MOST_DAYS, skip_nulls=False
        )
        numbers = pc.multiply(within, DAY_US)
    else:
        numbers = array.view(pa.int64())
    if valid is not None:
        numbers = pc.fill_null(numbers, 0)
    return np.asarray(numbers.to_numpy(zero_copy_only=False)), valid

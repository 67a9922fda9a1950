"""Times of columns as integers."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.kernel import columns as col


def microseconds(column: col.Column) -> tuple[npt.NDArray[np.int64], col.Mask | None]:
    """(microseconds since 1970, UTC; True where not NULL, or None if nothing is NULL) of a timestamp or date column.

    Where the column is NULL the number is 0.
    """
    array = col.flat(column)
    valid = col.validity(array)
    if pa.types.is_date32(array.type):
        array = pc.cast(array, pa.timestamp("us"))
    numbers = array.view(pa.int64())
    if valid is not None:
        numbers = pc.fill_null(numbers, 0)
    return np.asarray(numbers.to_numpy(zero_copy_only=False)), valid

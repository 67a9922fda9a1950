"""Diffs of rows, which are mostly all 1: then they take no memory, and nothing goes through them row by row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

Diffs = npt.NDArray[np.int64]

_ONE: Final = np.int64(1)


def ones(count: int) -> Diffs:
    """So many diffs of 1, not to be written to. They take no memory."""
    return np.broadcast_to(_ONE, count)


def are_ones(diff: Diffs) -> bool:
    """True if every diff is 1."""
    if _is_one_value(diff) and len(diff):
        return int(diff[0]) == 1
    return bool((diff == 1).all())


def taken(diff: Diffs, rows: npt.NDArray[np.int64]) -> Diffs:
    """The diffs at `rows`. Not to be written to."""
    return ones(len(rows)) if _is_one_value(diff) and are_ones(diff) else diff[rows]


def joined(diffs: Sequence[Diffs]) -> Diffs:
    """All diffs, in order; at least one array of them. Not to be written to."""
    if all(_is_one_value(d) and are_ones(d) for d in diffs):
        return ones(sum(map(len, diffs)))
    return np.concatenate(diffs)


def _is_one_value(diff: Diffs) -> bool:
    """Whether it takes no memory, so that one value says what all are."""
    return diff.strides == (0,)

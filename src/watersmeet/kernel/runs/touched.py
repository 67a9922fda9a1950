"""The rows of the keys that an epoch touches, with how often each was there before and is there after."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from watersmeet.kernel.arrays import columns as col
from watersmeet.kernel.arrays.hashing import Hashes
from watersmeet.kernel.runs.delta import Delta
from watersmeet.kernel.runs.groups import Ints
from watersmeet.kernel.runs.order import canonical_rows

#: Both counts of a row travel in one integer, so that one consolidation adds them up.
_SHIFT: Final = np.int64(32)
_HALF: Final = np.int64(1 << 31)
_LOW: Final = np.int64(0xFFFFFFFF)


@dataclass(frozen=True, eq=False)
class Touched:
    """Distinct rows in canonical order. before, after: their multiplicities, each 0 or more and below 2^31."""

    arrays: list[pa.Array]
    groups: Ints
    before: Ints
    after: Ints


def touched(old: Sequence[tuple[Ints, Delta]], change: tuple[Ints, Delta], hashes: Hashes) -> Touched:
    """Adds up the entries `old` and the changes: (group of each row, rows) each.

    hashes: of each group; rows come out by group as these ascend.
    """
    pieces = [*old, change]
    groups = np.concatenate([owner for owner, _ in pieces])
    rows = Delta.concat([delta for _, delta in pieces])
    arrays = [col.one_form(c) for c in rows.columns.columns]
    weights = np.concatenate([*[delta.diff << _SHIFT for _, delta in old], change[1].diff])
    places, sums = canonical_rows(arrays, weights, hashes[groups], whole_row=False)
    diff = ((sums + _HALF) & _LOW) - _HALF
    before = (sums - diff) >> _SHIFT
    return Touched(col.gather_all(arrays, places), groups[places], before, before + diff)

"""Changes that depend on the rows that are there, as a partial `Upsert` takes them."""

from __future__ import annotations

import numpy as np

from watersmeet.kernel.arrays import columns as col
from watersmeet.kernel.runs.delta import Delta


def empties(delta: Delta) -> col.Mask:
    """Which changes empty the table. The last columns are `_kept` and `_seq`."""
    kept = delta.columns.column(delta.columns.num_columns - 2)
    if kept.null_count == len(kept):
        return np.zeros(delta.num_rows, np.bool_)
    emptied: col.Mask = kept.is_valid().to_numpy() & (delta.diff < 0)
    return emptied

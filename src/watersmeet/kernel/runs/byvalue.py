"""Runs sorted by the value of one column, for operators whose bound moves along it."""

from __future__ import annotations

import numpy as np

from watersmeet.kernel.arrays import columns as col
from watersmeet.kernel.arrays.ordering import order_words
from watersmeet.kernel.runs.delta import Delta
from watersmeet.kernel.runs.order import canonical_rows
from watersmeet.kernel.runs.run import Run, make_run


def by_value(delta: Delta, column: int) -> Run:
    """The changes of rows whose `column` is not NULL, consolidated and sorted by it.

    The run's hashes are the column's `order_words`, so that `merge_runs` and a trace keep the order; it has no keys.
    """
    arrays = [col.one_form(c) for c in delta.columns.columns]
    valid = col.validity(arrays[column])
    diff = delta.diff
    if valid is not None:
        kept = np.flatnonzero(valid)
        arrays, diff = col.gather_all(arrays, kept), diff[kept]
    words = order_words(arrays[column])
    rows, diff = canonical_rows(arrays, diff, words, whole_row=False)
    return make_run(words[rows], col.gather_all(arrays, rows), diff, ())

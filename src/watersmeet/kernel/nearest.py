"""The nearest partner: for each row, the one row of its key whose value is nearest on one side."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np
import pyarrow as pa

from watersmeet.kernel import columns as col
from watersmeet.kernel.matching import Probe
from watersmeet.kernel.ordering import order_keys
from watersmeet.kernel.run import Run, make_run

#: For `value comparison candidate`: whether the nearest candidate is the greatest one, and whether an equal one counts.
COMPARISONS: Final = {">=": (True, True), ">": (True, False), "<=": (False, True), "<": (False, False)}
#: No partner.
NONE: Final = np.int64(-1)


class Candidates:
    """The rows of some keys that can be partners, each once: of equal values of one key only the first by `ties`.

    Candidates have a diff above 0 in sum over `runs` and a value that is not NULL. Of rows that are equal in `ties`
    (positions of columns; NULL after all values) the first in canonical order stands for all, so that the choice never
    depends on the order of arrival. Group g is the g-th key of the probe.
    """

    def __init__(self, probe: Probe, runs: Iterable[Run], value: int, ties: Sequence[int]) -> None:
        found = probe.content(runs)
        if found is None:
            self.run: Run | None = None
            return
        self.groups, arrays, diff = found
        valid = col.validity(arrays[value])
        rows = np.flatnonzero((diff > 0) if valid is None else (diff > 0) & valid)
        rows = self._first(rows, arrays, value, ties)
        self.groups = self.groups[rows]
        self.run = make_run(np.zeros(len(rows), np.uint64), col.gather_all(arrays, rows), np.ones(len(rows), np.int64), ())
        self.values = self.run.arrays[value]

    def _first(self, rows: col.Positions, arrays: Sequence[pa.Array], value: int, ties: Sequence[int]) -> col.Positions:
        """The rows that are first of their group and value, by group and value."""
        order = order_keys(col.gather(arrays[value], rows))
        groups = self.groups[rows]
        places = np.lexsort((order, groups))  # stable: the canonical order decides last
        same = (groups[places][1:] == groups[places][:-1]) & (order[places][1:] == order[places][:-1])
        if not same.any():
            return rows[places]
        first = np.concatenate(([True], ~same))
        # Of the others only those that share group and value are compared by their columns.
        tied = ~first
        tied[:-1] |= ~first[1:]
        some = places[tied]
        words: list[col.Positions | col.Mask] = [np.arange(len(some))]
        for position in reversed(ties):
            array = col.gather(arrays[position], rows[some])
            if col.is_list(array.type) or pa.types.is_struct(array.type):
                continue
            valid = col.validity(array)
            key = order_keys(array)
            words.append(key if valid is None else np.where(valid, key, 0))
            if valid is not None:
                words.append(~valid)
        places[tied] = some[np.lexsort((*words, np.cumsum(first)[tied]))]
        return rows[places[first]]

    def nearest(self, groups: col.Positions, values: pa.Array, comparison: str) -> col.Positions:
        """For each (group, value) the row of `run` that is nearest among those with `value comparison candidate`, or NONE.

        values: of the candidates' type. A NULL has no partner.
        """
        if self.run is None or not self.run.num_rows or not len(values):
            return np.full(len(values), NONE)
        count = self.run.num_rows
        keys = order_keys(pa.concat_arrays([self.values, values]))
        ranks = np.unique(keys, return_inverse=True)[1].astype(np.int64)
        width = np.int64(ranks.max() + 1)
        places = self.groups * width + ranks[:count]
        wanted = groups * width + ranks[count:]
        greatest, equal = COMPARISONS[comparison]
        if greatest:
            found = np.searchsorted(places, wanted, side="right" if equal else "left") - 1
        else:
            found = np.searchsorted(places, wanted, side="left" if equal else "right")
        inside = (found >= 0) & (found < count)
        inside &= self.groups[np.where(inside, found, 0)] == groups
        valid = col.validity(values)
        if valid is not None:
            inside &= valid
        return np.where(inside, found, NONE)

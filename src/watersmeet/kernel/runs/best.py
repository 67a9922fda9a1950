"""Forgetting all but the best rows of a key, of a relation that only grows: the versions of an ASOF join that keeps so
many.

What is not among them will never be again. Whether it is still there changes no result, so it goes whenever runs are
merged, and a run holds the best rows of its keys alone; all runs together have at most a few times what is of use, as
those of every trace.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from watersmeet.circuit.operators import SortKey
from watersmeet.kernel.arrays import columns as col
from watersmeet.kernel.runs.merge import merge_runs
from watersmeet.kernel.runs.order import stretches
from watersmeet.kernel.runs.ranking import rank
from watersmeet.kernel.runs.run import Run
from watersmeet.kernel.runs.trace import Trace


@dataclass(frozen=True)
class Best:
    """Of use are of each key the first `depth` rows in `order`, and those that are equal in it to the last of these."""

    order: tuple[SortKey, ...]
    depth: int

    def take_in(self, trace: Trace, change: Run) -> None:
        """Adds rows to the trace; what is of no more use goes where runs become one."""
        trace.append(self._pruned(change), self.merge, replacing=True)

    def merge(self, runs: Sequence[Run], /, *, whole: bool, above: Sequence[Run] = ()) -> Run:  # noqa: ARG002 - rows only come
        """One run of what is of use of some runs."""
        return self._pruned(merge_runs(runs, whole=whole))

    def _pruned(self, run: Run) -> Run:
        starts, lengths = stretches(run.hash)
        crowded = np.repeat(lengths > self.depth, lengths)
        if not run.pure or not crowded.any():  # of different keys with one hash all rows stay
            return run
        rows = np.flatnonzero(crowded)
        groups = np.repeat(np.arange(len(starts)), lengths)[rows]
        arrays = [col.gather(run.arrays[key.column], rows) for key in self.order]
        ranking = rank(groups, arrays, [replace(key, column=i) for i, key in enumerate(self.order)])
        places = np.arange(len(rows))
        firsts, counts = stretches(ranking.groups.astype(np.uint64))
        leads = np.flatnonzero(ranking.leads)
        of_peers = np.repeat(leads, np.diff(leads, append=len(rows)))
        gone = rows[ranking.order[places[of_peers - np.repeat(firsts, counts) >= self.depth]]]
        kept = np.ones(run.num_rows, np.bool_)
        kept[gone] = False
        return run.take(np.flatnonzero(kept))

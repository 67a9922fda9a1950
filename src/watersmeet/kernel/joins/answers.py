"""What a look-up join was answered, by key: for a while the answer serves again, whatever has become of the right side.

Timeplus, "Multi-JOINs and ASOF JOINs", "Dictionary", "Direct JOIN with Dictionary" (TP-19, TP-44); ruling D-003-11: an
answer serves until its time is over, then the key is asked for again; a key for which nothing was found is asked for
again each time. A trace of the join holds the right rows that were found with the time of the epoch that asked. Within
an epoch all rows of a key have the same answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from watersmeet.circuit.operators import TemporalJoin
from watersmeet.kernel.arrays import columns as col
from watersmeet.kernel.arrays.times import microseconds
from watersmeet.kernel.runs.arranged import Arranged
from watersmeet.kernel.runs.cleaning import Retention
from watersmeet.kernel.runs.cold import near
from watersmeet.kernel.runs.delta import Delta
from watersmeet.kernel.runs.matching import Probe, parts
from watersmeet.kernel.runs.run import Run, arrange
from watersmeet.kernel.runs.state import State

#: The trace of the answers: the right side's columns, and when they were found.
ANSWERS: Final = "answers"

_Found = list[tuple[list[pa.Array], npt.NDArray[np.int64]]]


def answered(op: TemporalJoin, left: Arranged, right: Arranged, state: State, now_us: int) -> Arranged:
    """The rows by which the changes of `left` are answered in place of those of `right`; the state has them when this
    returns.

    left: rows that came; right: all changes of the right side came before them. now_us: the time of the epoch.
    """
    assert op.ttl_us is not None
    bound_us = now_us - op.ttl_us + 1  # at the very end of its time an answer serves no more
    trace = state.trace(op.id, ANSWERS)
    known = trace.runs
    serving: _Found = []
    asked: _Found = []
    for probe in left.probes:
        served = _served(probe, known, bound_us, serving)
        found = probe.content(parts(near(right.runs_before, lambda: probe.hashes)))  # noqa: B023 - asked at once
        if found is not None:
            groups, arrays, diff = found
            rows = np.flatnonzero(~served[groups])
            asked.append((col.gather_all(arrays, rows), diff[rows]))
    none = right.change.slice(0, 0)
    fresh = _one(asked, none.delta())
    if fresh.num_rows:
        moment = pa.array(np.full(fresh.num_rows, now_us), pa.int64()).cast(pa.timestamp("us"))
        dated = Delta(col.positional([*fresh.arrays, moment]), fresh.diff)
        Retention(len(fresh.arrays), bound_us).take_in(trace, arrange(dated, op.right_keys))
    run = arrange(_one([*serving, *asked], none.delta()), op.right_keys)
    return Arranged(
        none, right.null_keys.take(np.zeros(0, np.int64)), lambda: (run,) if run.num_rows else (), exact=right.exact
    )


def _served(probe: Probe, known: Sequence[Run], bound_us: int, serving: _Found) -> npt.NDArray[np.bool_]:
    """Which groups of the probe have an answer whose time is not over; these go into `serving`."""
    served = np.zeros(probe.num_groups, np.bool_)
    found = probe.content(parts(near(known, lambda: probe.hashes)))
    if found is not None:
        groups, arrays, diff = found
        values, _ = microseconds(arrays[-1])
        rows = np.flatnonzero(values >= bound_us)
        served[groups[rows]] = True
        serving.append((col.gather_all(arrays[:-1], rows), diff[rows]))
    return served


def _one(found: _Found, none: Delta) -> Delta:
    return Delta.concat([none, *(Delta(col.positional(arrays), diff) for arrays, diff in found)])

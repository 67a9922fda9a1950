"""Windows that close by the rows of their key, in the order of arrival: sessions, and fixed windows of substreams.

The state has the rows of open windows. For the keys of an epoch these and the new rows are ordered by arrival, and the
windows are computed again from the first row of the open one, so no value depends on how rows were cut into epochs.

**Sessions.** Each row that may begin a session has one next row that begins another: the first that opens, from the row
on that would close it. The rows that do begin one are those that are reached from the first row of the key, found by
following these links in steps of 1, 2, 4, …. The greatest time of a session is that of its key since the first row,
unless a session begins with a row that is older than rows before it. From such a row on, the times are compared again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
import pyarrow as pa

from watersmeet.circuit.operators import WindowSpec
from watersmeet.circuit.sessions import CLOSED, FIRST, SessionWindow
from watersmeet.kernel.accumulators import true_rows
from watersmeet.kernel.arrays import columns as col
from watersmeet.kernel.arrays.hashing import hash_columns
from watersmeet.kernel.context import StepContext
from watersmeet.kernel.operators.window import entries
from watersmeet.kernel.runs.cold import near
from watersmeet.kernel.runs.delta import Delta, ones
from watersmeet.kernel.runs.groups import Ints, Touched, group, key_form, times_us, timestamps, touched
from watersmeet.kernel.runs.run import arrange
from watersmeet.kernel.runs.state import State

#: The trace of the rows of open windows.
ROWS: Final = "rows"


def step(op: SessionWindow, inputs: Sequence[Delta], state: State, ctx: StepContext) -> Delta:  # noqa: ARG001 - the signature of all steps
    """The rows of the windows that close in this epoch, ordered by key and then by arrival."""
    delta = inputs[0]
    if not delta.num_rows:
        return Delta.none(op.schema)
    trace = state.trace(op.id, ROWS)
    keys = [key_form(delta.columns.column(i)) for i in op.keys]
    groups = group(keys, hash_columns(keys, delta.num_rows))
    old = entries(near(trace.runs, lambda: groups.hashes), groups, op.keys)
    found = touched(old, (groups.of_row, delta), groups.hashes)
    ordered = _ordered(op, found)
    spec = op.functions[0]
    arguments = [found.arrays[i] for i in spec.arguments]
    times = times_us(arguments[0])[ordered.rows]
    if spec.function == CLOSED:
        released = _closed(ordered, times, times_us(arguments[1])[ordered.rows], spec.number)
        made = [pa.array(np.ones(len(released.rows), np.bool_))]
    else:
        opens, closes = (true_rows(a)[ordered.rows] for a in arguments[1:])
        released = _sessions(ordered, times, opens, closes, spec)
        if spec.function == FIRST:
            released = _first(released, ordered)
        made = [
            _value(f.function, released, ordered, f_type) for f, f_type in zip(op.functions, _types(op), strict=True)
        ]
    waited = np.flatnonzero(ordered.waited & ~released.waits)
    begins = np.flatnonzero(released.waits & ~ordered.waited)
    if len(waited) or len(begins):
        changed = np.concatenate([waited, begins])
        columns = col.gather_all(found.arrays, ordered.rows[changed])
        diff = np.where(np.arange(len(changed)) < len(waited), -1, 1)
        trace.append(arrange(Delta(col.positional(columns), diff), op.keys))
    rows = ordered.rows[released.rows]
    return Delta(col.positional([*col.gather_all(found.arrays, rows), *made]), ones(len(rows)))


def _types(op: SessionWindow) -> list[pa.DataType]:
    return [f.type.arrow for f in op.schema[len(op.schema) - len(op.functions) :]]


@dataclass(frozen=True, eq=False)
class _Ordered:
    """Rows by key and arrival: the row of each, its key as a number that ascends, whether it waited before this epoch,
    and its arrival.
    """

    rows: Ints
    groups: Ints
    waited: col.Mask
    epoch: Ints
    seq: Ints

    @cached_property
    def ends(self) -> Ints:
        """For each row, the place after the last row of its key."""
        return np.searchsorted(self.groups, self.groups, side="right")


def _ordered(op: SessionWindow, found: Touched) -> _Ordered:
    copies = np.repeat(np.arange(len(found.after)), found.after)
    epoch, seq = (-col.words(found.arrays[k.column])[copies] for k in op.functions[0].order)
    order = np.lexsort((seq, epoch, found.groups[copies]))
    rows = copies[order]
    _, groups = np.unique(found.groups[rows], return_inverse=True)
    return _Ordered(rows, groups.astype(np.int64), found.before[rows] > 0, epoch[order], seq[order])


@dataclass(frozen=True, eq=False)
class _Released:
    """The rows of closed windows by their places, and which rows wait for the end of their window. For each released
    row of a session: its start, its end, and the place of the row that began it.
    """

    rows: Ints
    waits: col.Mask
    starts: Ints
    ends: Ints
    openers: Ints


_NONE: Final = np.zeros(0, np.int64)


def _closed(ordered: _Ordered, times: Ints, ends: Ints, delay_us: int) -> _Released:
    """The rows of fixed windows that have closed. The greatest time of a key is always that of a row that waits."""
    greatest = _running(times, ordered.groups)
    late = ~ordered.waited & (ends + delay_us <= greatest)
    closed = ~late & (ends + delay_us <= greatest[ordered.ends - 1])
    return _Released(np.flatnonzero(closed), ~late & ~closed, _NONE, _NONE, _NONE)


def _running(times: Ints, groups: Ints) -> Ints:
    """The greatest time of the key up to each row."""
    known, places = np.unique(times, return_inverse=True)
    first = groups * len(known)
    return known[np.maximum.accumulate(first + places) - first]


def _sessions(ordered: _Ordered, times: Ints, opens: col.Mask, closes: col.Mask, spec: WindowSpec) -> _Released:
    """The rows of closed sessions."""
    count, ends = len(times), ordered.ends
    following = _next(opens, ends)
    begins = np.unique(ordered.groups, return_index=True)[1]
    pending = following[begins]
    pending = pending[pending < count]
    found = []
    waits = np.zeros(count, np.bool_)
    while len(pending):
        links = _Links(ordered, times, closes, pending, spec)
        opened = _reached(pending, np.append(np.append(following, count)[links.closes], count))
        older = opened[times[opened] < links.greatest[opened]]
        groups, first = np.unique(ordered.groups[older], return_index=True)
        pending = older[first]
        limit = np.full(ordered.groups[-1] + 1, count)
        limit[groups] = pending
        opened = opened[opened < limit[ordered.groups[opened]]]
        open_ones = opened[links.closes[opened] == count]
        for_rows = np.repeat(open_ones, ends[open_ones] - open_ones)
        waits[for_rows + _offsets(ends[open_ones] - open_ones)] = True
        found.append(links.released(opened[links.closes[opened] < count]))
    parts = [np.concatenate([_NONE, *(f[i] for f in found)]) for i in range(4)]
    order = np.lexsort((parts[0], parts[3]))
    rows, starts, ended, openers = (p[order] for p in parts)
    return _Released(rows, waits, starts, ended, openers)


def _first(found: _Released, ordered: _Ordered) -> _Released:
    """The new rows that begin a session. found: the sessions that have closed, and the rows of the open ones."""
    begun = found.waits.copy()  # an open session begins with its first waiting row
    begun[1:] &= ~(found.waits[:-1] & (ordered.groups[1:] == ordered.groups[:-1]))
    first = begun.copy()
    first[found.openers] = True
    return _Released(np.flatnonzero(first & ~ordered.waited), begun, _NONE, _NONE, _NONE)


class _Links:
    """For each row, the place of the row that would close a session that begins with it, or the number of rows.

    Correct for rows from the first one of each key (`pending`) on whose time is the greatest so far. closes: these
    places. greatest: the greatest time of the key up to each row, from its first one on.
    """

    def __init__(self, ordered: _Ordered, times: Ints, closes: col.Mask, pending: Ints, spec: WindowSpec) -> None:
        assert spec.frame.start is not None
        assert spec.frame.end is not None
        self._gap_us, self._most_us, self._kept = spec.frame.start, spec.frame.end, spec.number
        self._times, self._ends_here = times, closes
        count, groups = len(times), ordered.groups
        first = np.full(groups[-1] + 1, count)
        first[groups[pending]] = pending
        counts = np.arange(count) >= first[groups]
        known, places = np.unique(times, return_inverse=True)
        width = len(known) + 1
        ranks = np.maximum.accumulate(groups * width + np.where(counts, places + 1, 0))
        self.greatest = np.append(known, 0)[ranks - groups * width - 1]
        before = np.concatenate(([False], counts[:-1])) & counts
        before[1:] &= groups[1:] == groups[:-1]
        self._idle = before & (times >= np.concatenate(([0], self.greatest[:-1])) + self._gap_us)
        flagged = _next(np.append((self._idle | (counts & closes))[1:], False), ordered.ends)
        aimed = np.searchsorted(known, times + self._most_us) + 1
        self._long = np.searchsorted(ranks, groups * width + np.minimum(aimed, width), side="left")
        self._long = np.where((aimed >= width) | (self._long >= ordered.ends), count, self._long)
        flagged = np.where(flagged + 1 < ordered.ends, flagged + 1, count)
        is_greatest = times >= self.greatest  # from others no session may be begun with these times
        self.closes = np.where(is_greatest, np.minimum(flagged, self._long), count)

    def released(self, opened: Ints) -> tuple[Ints, Ints, Ints, Ints]:
        """(rows, start, end, first row) of the sessions that begin with the rows `opened`."""
        at = self.closes[opened]
        begun = self._times[opened]
        ends_here = self._ends_here[at] & (self._long[opened] != at) & ~self._idle[at]
        low = opened + (self._kept & 1 == 0)
        lengths = np.maximum(at + (ends_here & (self._kept & 2 != 0)) - low, 0)
        last = self.greatest[at - 1]
        end = np.where(
            ends_here, np.maximum(last, self._times[at]), np.minimum(last + self._gap_us, begun + self._most_us)
        )
        rows = np.repeat(low, lengths) + _offsets(lengths)
        start = self._times[np.minimum(low, len(self._times) - 1)]
        return rows, np.repeat(start, lengths), np.repeat(end, lengths), np.repeat(opened, lengths)


def _offsets(lengths: Ints) -> Ints:
    """0, 1, … for each stretch."""
    return np.arange(int(lengths.sum())) - np.repeat(np.cumsum(lengths) - lengths, lengths)


def _next(mask: col.Mask, ends: Ints) -> Ints:
    """For each row, the place of the first one in `mask` from it on in its key; the number of rows if there is none."""
    count = len(mask)
    found = np.minimum.accumulate(np.where(mask, np.arange(count), count)[::-1])[::-1]
    return np.where(found < ends, found, count)


def _reached(first: Ints, following: Ints) -> Ints:
    """The places reached from some by following links, in order. following: one more link leads from the end to
    itself.
    """
    count = len(following) - 1
    marks = np.zeros(count + 1, np.bool_)
    marks[first] = True
    while True:
        reached = following[marks]
        if marks[reached].all():
            return np.flatnonzero(marks[:count])
        marks[reached] = True
        following = following[following]


def _value(function: str, released: _Released, ordered: _Ordered, kind: pa.DataType) -> pa.Array:
    """The values of a function of sessions."""
    if function == FIRST:
        return pa.array(np.ones(len(released.rows), np.bool_))
    if function == "session_start":
        return timestamps(released.starts, kind)
    if function == "session_end":
        return timestamps(released.ends, kind)
    return pa.array((ordered.epoch if function == "session_epoch" else ordered.seq)[released.openers])

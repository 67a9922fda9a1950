"""Windows that close by the rows of their key, in the order of arrival: sessions, fixed windows of substreams, and keys
that expire.

The state has the rows of open windows. For the keys of an epoch these and the new rows are ordered by arrival, and the
windows are computed again from the first row of the open one, so no value depends on how rows were cut into epochs.

**Sessions.** Each row that may begin a session links to the row that would begin the next one: the first opening row
from the closing row on. The rows that do begin a session are those that these links reach from the first row of the
key, followed in steps of 1, 2, 4, …. The greatest time of a session is that of its key since the first row, unless a
session begins with a row older than an earlier one. From such a row on, the greatest time is computed again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
import pyarrow as pa

from watersmeet.circuit.operators import WindowSpec
from watersmeet.circuit.sessions import CLOSED, FIRST, KEY, SessionWindow
from watersmeet.kernel.accumulators import true_rows
from watersmeet.kernel.arrays import columns as col
from watersmeet.kernel.arrays.hashing import hash_columns
from watersmeet.kernel.context import StepContext
from watersmeet.kernel.metrics import DroppedRows
from watersmeet.kernel.operators.filters import by_value
from watersmeet.kernel.operators.window import entries
from watersmeet.kernel.runs.cold import near
from watersmeet.kernel.runs.delta import Delta, ones
from watersmeet.kernel.runs.groups import Ints, Touched, group, key_form, times_us, timestamps, touched
from watersmeet.kernel.runs.run import arrange
from watersmeet.kernel.runs.state import State
from watersmeet.kernel.runs.trace import Trace
from watersmeet.values.watermarks import NOW

#: The trace of the rows of open windows.
ROWS: Final = "rows"

#: The trace of the keys that may expire: each key, the arrival of its newest waiting row, and the time of that row's
#: epoch, which sorts the trace. An entry is void if its key has a later one.
IDLE: Final = "idle"


def step(op: SessionWindow, inputs: Sequence[Delta], state: State, ctx: StepContext) -> Delta:
    """The rows of the windows that close in this epoch, ordered by key and then by arrival; first those of idle
    keys.
    """
    rows, idle = state.trace(op.id, ROWS), state.trace(op.id, IDLE)
    found = []
    if op.idle_us:
        found.append(_expired(op, rows, idle, ctx.watermarks[NOW]))
    if inputs[0].num_rows:
        found.append(_arrived(op, inputs[0], rows, idle, ctx))
    if op.idle_us and idle.runs:
        ctx.counters.waits_for_us = min(int(r.hash[0]) for r in idle.runs) - (1 << 63)
    return Delta.concat(found) if found else Delta.none(op.schema)


def _arrived(op: SessionWindow, delta: Delta, trace: Trace, idle: Trace, ctx: StepContext) -> Delta:
    """The rows of the windows that new rows close."""
    keys = [key_form(delta.columns.column(i)) for i in op.keys]
    groups = group(keys, hash_columns(keys, delta.num_rows))
    old = entries(near(trace.runs, lambda: groups.hashes), groups, op.keys)
    found = touched(old, (groups.of_row, delta), groups.hashes)
    ordered = _ordered(op, found)
    spec = op.functions[0]
    arguments = [found.arrays[i] for i in spec.arguments]
    times = times_us(arguments[0])[ordered.rows]
    if spec.function == CLOSED:
        released, late, below_us = _closed(ordered, times, times_us(arguments[1])[ordered.rows], spec.number)
        if len(late):
            rows = col.positional(col.gather_all(found.arrays, ordered.rows[late]))
            ctx.counters.late.append(DroppedRows(rows, below_us))
    elif spec.function in KEY:
        released = _keys(ordered, times, spec)
    else:
        opens, closes = (true_rows(a)[ordered.rows] for a in arguments[1:])
        released = _sessions(ordered, times, opens, closes, spec)
        if spec.function == FIRST:
            released = _first(released, ordered)
    waited = np.flatnonzero(ordered.waited & ~released.waits)
    begins = np.flatnonzero(released.waits & ~ordered.waited)
    if len(waited) or len(begins):
        changed = np.concatenate([waited, begins])
        columns = col.gather_all(found.arrays, ordered.rows[changed])
        diff = np.where(np.arange(len(changed)) < len(waited), -1, 1)
        trace.append(arrange(Delta(col.positional(columns), diff), op.keys))
    if op.idle_us and len(begins):
        newest = begins[np.append(ordered.groups[begins][1:] != ordered.groups[begins][:-1], True)]
        entry = col.gather_all([found.arrays[i] for i in op.keys], ordered.rows[newest])
        now = timestamps(np.full(len(newest), ctx.watermarks[NOW]), pa.timestamp("us"))
        entry += [pa.array(ordered.epoch[newest]), now]
        idle.append(by_value(Delta(col.positional(entry), ones(len(newest))), len(op.keys) + 1))
    return _output(op, found, ordered, released)


def _expired(op: SessionWindow, trace: Trace, idle: Trace, now_us: int) -> Delta:
    """The rows of the windows of keys without a row for `idle_us`."""
    bound = np.uint64(now_us - op.idle_us + (1 << 63))
    cuts = [int(np.searchsorted(run.hash, bound, side="right")) for run in idle.runs]
    due = [run.slice(0, cut).delta() for run, cut in zip(idle.runs, cuts, strict=True) if cut]
    if not due:
        return Delta.none(op.schema)
    idle.replace([r.slice(cut, r.num_rows) for r, cut in zip(idle.runs, cuts, strict=True) if cut < r.num_rows])
    entry = Delta.concat(due).arrays
    keys = [key_form(k) for k in entry[:-2]]
    groups = group(keys, hash_columns(keys, len(entry[-1])))
    old = entries(near(trace.runs, lambda: groups.hashes), groups, op.keys)
    nothing = Delta.none(op.schema[: len(op.schema) - op.made])
    found = touched(old, (_NONE, nothing), groups.hashes)
    newest = np.full(groups.count, np.iinfo(np.int64).min)
    np.maximum.at(newest, groups.of_row, col.words(entry[-2]))
    ordered = _ordered(op, found)
    ordered = ordered.of(np.flatnonzero(ordered.epoch[ordered.ends - 1] <= newest[found.groups[ordered.rows]]))
    if not len(ordered.rows):
        return Delta.none(op.schema)
    columns = col.gather_all(found.arrays, ordered.rows)
    trace.append(arrange(Delta(col.positional(columns), -ones(len(ordered.rows))), op.keys))
    spec = op.functions[0]
    times, *others = (times_us(found.arrays[i])[ordered.rows] for i in spec.arguments[: 1 + (spec.function == CLOSED)])
    return _output(op, found, ordered, _of_idle(ordered, times, others, spec))


def _of_idle(ordered: _Ordered, times: Ints, others: Sequence[Ints], spec: WindowSpec) -> _Released:
    """All rows, which wait for the end of their windows. others: the ends of `CLOSED` windows."""
    count, waits = len(times), np.zeros(len(times), np.bool_)
    first, lengths = np.unique(ordered.groups, return_index=True, return_counts=True)[1:]
    openers = np.repeat(first, lengths)
    if spec.function == CLOSED:
        rows = np.arange(count)
        return _Released(rows, waits, _NONE, _NONE, _first_of(ordered.groups, others[0], rows))
    if spec.function in KEY:
        rows = np.arange(0 if spec.number else count)
        return _Released(rows, waits, _NONE, _NONE, openers[rows])
    assert spec.frame.start is not None
    assert spec.frame.end is not None
    rows = np.arange(count) if spec.number & 1 else np.setdiff1d(np.arange(count), first)
    starts = times[np.minimum(openers + (spec.number & 1 == 0), count - 1)]
    last = np.repeat(np.maximum.reduceat(times, first), lengths)
    ends = np.minimum(last + spec.frame.start, times[openers] + spec.frame.end)
    return _Released(rows, waits, starts[rows], ends[rows], openers[rows])


def _output(op: SessionWindow, found: Touched, ordered: _Ordered, released: _Released) -> Delta:
    """The released rows with the values of the functions."""
    rows = ordered.rows[released.rows]
    made = [_value(f.function, released, ordered, kind) for f, kind in zip(op.functions, _types(op), strict=True)]
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

    def of(self, places: Ints) -> _Ordered:
        """Only the rows at some places."""
        groups = np.unique(self.groups[places], return_inverse=True)[1].astype(np.int64)
        return _Ordered(self.rows[places], groups, self.waited[places], self.epoch[places], self.seq[places])


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


def _closed(ordered: _Ordered, times: Ints, ends: Ints, delay_us: int) -> tuple[_Released, Ints, Ints]:
    """The rows of fixed windows that have closed; the late rows, and for each of these the time that the end of its
    window must exceed. The greatest time of a key is always that of a row that waits.
    """
    greatest = _running(times, ordered.groups)
    late = ~ordered.waited & (ends + delay_us <= greatest)
    closed = ~late & (ends + delay_us <= greatest[ordered.ends - 1])
    rows = np.flatnonzero(closed)
    released = _Released(rows, ~late & ~closed, _NONE, _NONE, _first_of(ordered.groups, ends, rows))
    return released, np.flatnonzero(late), greatest[late] - delay_us


def _first_of(groups: Ints, ends: Ints, rows: Ints) -> Ints:
    """For each of `rows`, the first one of its key and window."""
    known, places = np.unique(ends[rows], return_inverse=True)
    first, windows = np.unique(groups[rows] * len(known) + places, return_index=True, return_inverse=True)[1:]
    found: Ints = rows[first[windows]]
    return found


def _running(times: Ints, groups: Ints) -> Ints:
    """The greatest time of the key up to each row."""
    known, places = np.unique(times, return_inverse=True)
    first = groups * len(known)
    return known[np.maximum.accumulate(first + places) - first]


def _keys(ordered: _Ordered, times: Ints, spec: WindowSpec) -> _Released:
    """The rows of the keys whose times have a greater span than `frame.end`."""
    assert spec.frame.end is not None
    count, ends = len(times), ordered.ends
    last = _exceeding(times, ends, np.uint64(spec.frame.end))
    following = np.append(np.where(last + 1 < ends, last + 1, count), count)
    opened = _reached(np.unique(ordered.groups, return_index=True)[1], following)
    closed = opened[last[opened] < count]
    lengths = last[closed] + 1 - closed
    rows = np.repeat(closed, lengths) + _offsets(lengths)
    waits = np.ones(count, np.bool_)
    waits[rows] = False
    return _Released(rows, waits, _NONE, _NONE, np.repeat(closed, lengths))


def _exceeding(times: Ints, ends: Ints, most: np.uint64) -> Ints:
    """For each row, the place of the first later row of its key with which the span of the times from the first to the
    second exceeds `most`; the number of rows if no row does. Blocks of 2^k rows are skipped, the largest first.
    """
    count = len(times)
    blocks = [(times, times)]
    for k in range(int(np.max(ends - np.arange(count))).bit_length()):
        after = np.minimum(np.arange(count) + (1 << k), count - 1)
        high, low = blocks[-1]
        blocks.append((np.maximum(high, high[after]), np.minimum(low, low[after])))
    place, high, low = np.arange(count), times, times
    for k in reversed(range(len(blocks))):
        after = np.minimum(place + 1, count - 1)
        higher, lower = np.maximum(high, blocks[k][0][after]), np.minimum(low, blocks[k][1][after])
        fits = (place + (1 << k) < ends) & (higher.view(np.uint64) - lower.view(np.uint64) <= most)
        place = np.where(fits, place + (1 << k), place)
        high, low = np.where(fits, higher, high), np.where(fits, lower, low)
    return np.where(place + 1 < ends, place + 1, count)


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

    It is correct only for rows from the first one of each key (`pending`) on, and only if their time is the greatest so
    far. closes: these places. greatest: the greatest time of the key up to each row, from its first one on.
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
    if function in (CLOSED, FIRST):
        return pa.array(np.ones(len(released.rows), np.bool_))
    if function == "session_start":
        return timestamps(released.starts, kind)
    if function == "session_end":
        return timestamps(released.ends, kind)
    return pa.array((ordered.epoch if function.endswith("_epoch") else ordered.seq)[released.openers])

"""Versions of the rows of a table: what each key had from when on, for joins with a past moment.

Each change says something about its key from a time on: a row that comes, also in place of another, is the version from
its own time on; a row that is deleted leaves a mark that from its own time on there is none. The last word about a key
and a time counts, in the order of `_seq`. A row that another one of the same transaction replaces says nothing: it
stays the version before the new one, unless both have one time.

A change whose time is below the watermark is late. What holds below the watermark is final, so that a late change can
only count from the watermark on; and there it does unless a version of a later time counts there already.

Rows in a backfill are not history but the content as it is: each is a version, and their order says nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from watersmeet.circuit.operators import SEQ_ROW_BITS, Versions
from watersmeet.kernel.arrays import columns as col
from watersmeet.kernel.arrays.columns import microseconds
from watersmeet.kernel.context import StepContext
from watersmeet.kernel.operators.arrange import ROWS, is_exact
from watersmeet.kernel.operators.upsert import in_order
from watersmeet.kernel.runs.cleaning import Newest
from watersmeet.kernel.runs.delta import Delta
from watersmeet.kernel.runs.matching import Arranged, Probe, parts
from watersmeet.kernel.runs.order import Diffs
from watersmeet.kernel.runs.run import Run, arrange
from watersmeet.kernel.runs.state import State
from watersmeet.values.watermarks import value

Ints = npt.NDArray[np.int64]
Content = tuple[Ints, list[pa.Array], Diffs]


def step(op: Versions, inputs: Sequence[Delta], state: State, ctx: StepContext) -> Arranged:
    """The changes of the versions, and what they were before; the state has the changes when this returns."""
    none = Delta.none(op.schema)
    exact = is_exact(op)
    delta = inputs[0]
    bound_us = value(op.retain, ctx.watermarks)
    if not delta.num_rows and bound_us is None:
        return Arranged(arrange(none, op.keys), none, lambda: state.trace(op.id, ROWS).runs, exact=exact)
    trace = state.trace(op.id, ROWS)
    before = trace.runs
    if ctx.filling:
        times, known = microseconds(delta.arrays[op.time])
        rows = np.arange(len(times)) if known is None else np.flatnonzero(known)
        made = [_made(op, delta.arrays, rows, times[rows], np.ones(len(rows), np.bool_), delta.diff[rows])]
    else:
        old, bound = parts(before), ctx.before.get(op.source)
        made = [change for probe in in_order(delta, op.keys) for change in _changes(op, probe, old, bound)]
    change = arrange(Delta.concat([none, *made]), op.keys)
    if bound_us is None:
        trace.append(change)
    else:
        Newest(len(op.schema) - 2, bound_us).take_in(trace, change)
    return Arranged(change, none, lambda: before, exact=exact)


@dataclass(frozen=True, eq=False)
class _Said:
    """What is said: rows of a run, of which later ones are newer, the groups and times of each, and from when it
    counts.
    """

    rows: Ints
    groups: Ints
    times: Ints
    since: Ints

    def take(self, chosen: Ints) -> _Said:
        """Some of it."""
        return _Said(self.rows[chosen], self.groups[chosen], self.times[chosen], self.since[chosen])

    def last(self) -> _Said:
        """The last word about each group and time."""
        order = np.lexsort((self.rows, self.since, self.groups))
        return self.take(order[_ends(self.groups[order], self.since[order])])


def _changes(op: Versions, probe: Probe, old: Sequence[Run], bound: int | None) -> list[Delta]:
    """The changes of the versions by the rows of `probe`. bound: times below it are late."""
    run = probe.run
    content = probe.content(old)
    said = _said(op, probe)
    if bound is not None:
        said = _in_time(said, _newest(op, content, bound, probe.num_groups), bound)
    said = said.last()
    changes = [_made(op, run.arrays, said.rows, said.since, run.diff[said.rows] > 0, np.ones(len(said.rows), np.int64))]
    if content is not None:
        groups, arrays, diff = content
        gone = np.flatnonzero(_among(groups, microseconds(arrays[-2])[0], said))
        changes.append(Delta(col.positional(col.gather_all(arrays, gone)), -diff[gone]))
    return changes


def _said(op: Versions, probe: Probe) -> _Said:
    run = probe.run
    groups = probe.of_rows(np.arange(probe.num_groups))
    times, known = microseconds(run.arrays[op.time])
    kept = np.ones(len(times), np.bool_) if known is None else known
    if run.has_negative:
        transactions = col.words(run.arrays[-1]) >> SEQ_ROW_BITS
        ends = _ends(groups, transactions)
        starts = np.concatenate(([0], ends[:-1] + 1))
        comes = np.repeat(np.logical_or.reduceat(run.diff > 0, starts), ends - starts + 1)
        kept = kept & ((run.diff > 0) | ~comes)
    rows = np.flatnonzero(kept)
    return _Said(rows, groups[rows], times[rows], times[rows])


def _in_time(said: _Said, newest: Ints, bound: int) -> _Said:
    """What counts of it, and from when. newest: the time of the version that each group has at `bound`."""
    late = said.times < bound
    if not late.any():
        return said
    order = np.lexsort((said.rows, said.times, said.groups))
    order = order[late[order]]
    last = said.take(order[_ends(said.groups[order])])
    said = said.take(np.flatnonzero(~late))
    counts = (last.times >= newest[last.groups]) & ~np.isin(last.groups, said.groups[said.since == bound])
    last = last.take(np.flatnonzero(counts))
    pairs = (
        (said.rows, last.rows),
        (said.groups, last.groups),
        (said.times, last.times),
        (said.since, np.full(len(last.rows), bound)),
    )
    return _Said(*map(np.concatenate, pairs))


def _newest(op: Versions, content: Content | None, bound: int, count: int) -> Ints:
    """For each group, the time of the row of the last version that is valid from `bound` or earlier; the least if there
    is none.
    """
    found = np.full(count, np.iinfo(np.int64).min)
    if content is not None:
        groups, arrays, _ = content
        since = microseconds(arrays[-2])[0]
        order = np.lexsort((since, groups))
        order = order[since[order] <= bound]
        last = order[_ends(groups[order])]
        found[groups[last]] = microseconds(arrays[op.time])[0][last]
    return found


def _among(groups: Ints, since: Ints, said: _Said) -> col.Mask:
    """Where a group and time is one of those of `said`."""
    ranks = np.unique(np.concatenate((since, said.since)), return_inverse=True)[1].astype(np.int64)
    width = len(ranks) + 1
    return np.isin(groups * width + ranks[: len(since)], said.groups * width + ranks[len(since) :])


def _made(op: Versions, arrays: Sequence[pa.Array], rows: Ints, since: Ints, live: col.Mask, diff: Diffs) -> Delta:
    """Versions of the given rows of the input's columns."""
    width = len(op.schema) - 2
    start = pa.array(since).view(op.schema[width].type.arrow)
    return Delta(col.positional([*col.gather_all(arrays[:width], rows), start, pa.array(live)]), diff)


def _ends(*columns: Ints) -> Ints:
    """The last places of the stretches of equal values."""
    count = len(columns[0])
    if not count:
        return np.zeros(0, np.int64)
    differs = np.ones(count, np.bool_)
    differs[:-1] = np.logical_or.reduce([c[1:] != c[:-1] for c in columns])
    return np.flatnonzero(differs)

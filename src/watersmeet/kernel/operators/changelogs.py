"""Tables from changes in order: upserts, and versions of rows.

An upsert keeps the last row of each key, and outputs a retracting changelog.

Versions are the rows of a table by key and by the time from which they are valid, for joins as of an earlier time. An
inserted row, even if it replaces another, is the version from its own time on; a deleted row leaves a mark from its own
time on. Of several changes with one key and time, the last in the order of `_seq` counts. A row that is replaced within
its transaction has no effect: the earlier version stays, unless both have the same time. A change whose time is below
the watermark is late. Versions below the watermark are final, so a late change counts from the watermark on, unless a
version of a later time is already valid at the watermark. Rows of a backfill are content, not history: each is a
version, and their order does not matter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from watersmeet.circuit.operators import SEQ_ROW_BITS, Upsert, Versions
from watersmeet.kernel.arrays import columns as col
from watersmeet.kernel.arrays.columns import Positions, distinct, microseconds
from watersmeet.kernel.arrays.hashing import Hashes, hash_columns, positions_by_hash
from watersmeet.kernel.context import StepContext
from watersmeet.kernel.metrics import Orphan
from watersmeet.kernel.operators.arrange import ROWS, is_exact
from watersmeet.kernel.runs.cleaning import Newest, latest_us
from watersmeet.kernel.runs.cold import near
from watersmeet.kernel.runs.delta import (
    Delta,
    Diffs,
    are_ones,
    empties,
    stretches,
    taken,
)
from watersmeet.kernel.runs.groups import Ints
from watersmeet.kernel.runs.matching import Arranged, Probe, parts, probes, shown
from watersmeet.kernel.runs.run import Ordered, Run, Unsorted, arrange, is_pure, ungathered
from watersmeet.kernel.runs.state import State
from watersmeet.kernel.runs.trace import merge_runs
from watersmeet.values import ConflictAction
from watersmeet.values.watermarks import value


def upsert(op: Upsert, inputs: Sequence[Delta], state: State, ctx: StepContext) -> Delta:
    """Retracts old rows and outputs new ones, consolidated; a row that is written again unchanged has no output.

    The input's last column is `_seq`: of the rows of one key in this step, the one with the highest `_seq` counts; if
    its diff is negative, the key's row is deleted. NULL equals NULL in keys. A partial upsert first completes its rows.
    """
    delta = inputs[0]
    if not delta.num_rows:
        return Delta.none(op.schema)
    trace = state.trace(op.id, "rows")
    old_runs = parts(near(trace.runs, lambda: _hashes(delta, op.keys)))
    width = len(op.schema)
    changes: list[Delta] = []
    emptied = False
    if op.partial:
        delta, emptied = _whole_rows(op, delta, old_runs, ctx.counters.orphans)
    if emptied:
        changes += [run.delta().negated() for run in trace.runs]
        old_runs = []
    if op.action == "overwrite" and not op.versions:
        last = _last_by_key(delta, op.keys)
    else:
        last = resolved(_beside_stored(op, delta, old_runs), op.keys, op.action, op.versions)
    found = [_replacing(op, winners, old_runs) for winners in last]
    if not changes and not found:
        return delta.select(range(width))
    if changes or len(found) > 1:
        result = arrange(Delta.concat([*changes, *(run.delta() for run in found)]), op.keys)
    else:
        result = found[0]
    trace.append(result)
    change = Delta(result.columns, result.diff, net=True)
    change.runs[op.keys] = result
    return change


def _replacing(op: Upsert, winners: Run, old_runs: Sequence[Run]) -> Run:
    """The changes by which `winners`, one row of each key, replace the stored rows. Of each key, the deletion is first.
    Rows that are written again unchanged are left out.
    """
    probe, width = Probe(winners, exact=False), len(op.schema)
    inserted = winners.diff > 0
    owners, deleted = [], []
    for run, groups, rows in _stored_rows(probe, old_runs):
        differs = ~inserted[groups]
        at = np.flatnonzero(~differs)
        differs[at] = ~_same_rows(width, (winners, groups[at]), (run, rows[at]))
        inserted[groups[~differs]] = False
        owners.append(groups[differs])
        deleted.append((run, rows[differs]))
    new = np.flatnonzero(inserted)
    owner = np.concatenate([*owners, new])
    order = np.argsort(owner, kind="stable")  # it merges, because each part is sorted
    diff = np.repeat([-1, 1], [len(owner) - len(new), len(new)])[order]
    arrays, places = ungathered(winners, width)
    there = sum(len(rows) for _, rows in deleted)
    columns = [
        pa.concat_arrays([*(run.gather([i], rows)[0] for run, rows in deleted), arrays[i]]) if there else arrays[i]
        for i in range(width)
    ]
    places = np.concatenate([np.arange(there), places[new] + there])[order]
    weights = None if are_ones(diff) else diff
    return Unsorted(winners.hash[owner[order]], Ordered(columns, places), weights, op.keys, pure=True)


def _stored_rows(probe: Probe, old_runs: Sequence[Run]) -> Iterator[tuple[Run, Positions, Positions]]:
    """(run, groups, rows) of the stored row of each group that has one.

    The runs are the earlier output of the upsert, so the newest with a key has its row, or only its deletion.
    """
    unknown = np.arange(probe.num_groups)
    for run in reversed(old_runs):
        low, high = probe.ranges_of(unknown, run)
        met = high > low
        groups, row, end = unknown[met], low[met], high[met]
        unknown = unknown[~met]
        if run.has_negative and len(row):
            live = run.diff[row] > 0
            for _ in range(int((end - row).max()) - 1):
                later = np.flatnonzero(~live & (row + 1 < end))
                row[later] += 1
                live[later] = run.diff[row[later]] > 0
            groups, row = groups[live], row[live]
        if len(row):
            yield run, groups, row


def _same_rows(width: int, one: tuple[Run, Positions], other: tuple[Run, Positions]) -> col.Mask:
    """The mask of pairs of rows with equal values in the first `width` columns."""
    (left, left_rows), (right, right_rows) = one, other
    return equal_pairs(
        right.shape[0].types[:width],
        left.keys,
        len(left_rows),
        lambda i, at: (left.gather([i], left_rows[at])[0], right.gather([i], right_rows[at])[0]),
    )


def equal_pairs(
    kinds: Sequence[pa.DataType],
    keys: Sequence[int],
    count: int,
    values: Callable[[int, Positions], tuple[pa.Array, pa.Array]],
) -> col.Mask:
    """The mask of pairs of equal rows. Keys and then bytes are compared last, and only in pairs that may be equal.

    values: the values of a column on both sides of some pairs.
    """
    same = np.arange(count)
    for i in sorted(range(len(kinds)), key=lambda i: (col.is_bytes(kinds[i]) or kinds[i].num_fields > 0, i in keys)):
        if not len(same):
            break
        same = same[col.equal(*values(i, same))]
    found = np.zeros(count, np.bool_)
    found[same] = True
    return found


def _last_by_key(delta: Delta, keys: tuple[int, ...]) -> list[Run]:
    """For each key the row with the highest `_seq`, as pure runs."""
    hashes, order = _ordered(delta, keys)
    if not is_pure(hashes, [delta.normal[i] for i in keys], order):
        return [probe.run.take(probe.starts + probe.lengths - 1) for probe in in_order(delta, keys)]
    starts, lengths = stretches(hashes)
    rows = order[starts + lengths - 1]
    return [Unsorted(hashes[starts], Ordered(delta.normal, rows), taken(delta.diff, rows), keys, pure=True)]


#: The `_seq` of a stored row, which precedes all changes.
STORED: Final = int(np.iinfo(np.int64).min)


def _beside_stored(op: Upsert, delta: Delta, old_runs: Sequence[Run]) -> Delta:
    """The changes and the stored rows of their keys."""
    found = [delta]
    for probe in in_order(delta, op.keys):
        rows, _ = _stored(probe, np.arange(probe.num_groups), old_runs)
        if rows is not None:
            count = len(rows[0])
            found.append(Delta(col.positional([*rows, pa.repeat(STORED, count)]), np.ones(count, np.int64)))
    return Delta.concat(found)


def resolved(delta: Delta, keys: tuple[int, ...], action: ConflictAction, versions: tuple[int, ...]) -> list[Run]:
    """For each key the row after all changes, as pure runs; a row with a negative diff if the key has none.

    The changes are in the order of the last column, `_seq`; a stored row has the `_seq` STORED. Law: the result is that
    of the changes one after the other by the rules of `catalog.Conflict`; a change with a negative diff deletes.
    """
    return [_resolved(probe, action, versions) for probe in in_order(delta, keys)]


def _resolved(probe: Probe, action: ConflictAction, versions: tuple[int, ...]) -> Run:
    run, rows = probe.run, np.arange(probe.run.num_rows)
    groups = probe.of_rows(np.arange(probe.num_groups))
    deletions = np.where(run.diff < 0, rows, -1)
    deleted = np.maximum.reduceat(deletions, probe.starts) if probe.num_groups else deletions
    alive = rows > deleted[groups]
    # A key whose last change deletes has no row that is alive; this change stands for it.
    alive[deleted[deleted == probe.starts + probe.lengths - 1]] = True
    rows = rows[alive]
    starts = np.flatnonzero(np.diff(groups[rows], prepend=-1))
    ends = np.append(starts[1:], len(rows)) - 1
    ranks = [_ranks(run.arrays[v])[rows] for v in versions]
    if action == "ignore":
        return run.take(rows[starts])
    if action == "overwrite":
        return run.take(rows[np.lexsort((rows, *reversed(ranks), groups[rows]))[ends]])
    places = np.arange(len(rows))
    begins = np.repeat(places[starts], np.diff(np.append(starts, len(rows))))
    newer = np.ones(len(rows), np.bool_)
    for rank in ranks:  # at most one: `versions` of "fill"
        raised = rank + groups[rows] * (int(rank.max(initial=0)) + 1)
        newer[1:] = (np.maximum.accumulate(raised)[:-1] <= raised[1:]) | (begins[1:] == places[1:])
    made = []
    for array in run.arrays:
        valid = newer if (mask := col.validity(array)) is None else newer & mask[rows]
        source = np.maximum.accumulate(np.where(valid, places, -1))[ends]
        made.append(col.gather(array, rows[np.where(source >= starts, source, starts)]))
    last = run.take(rows[ends])
    return Run(last.hash, col.positional(made), last.weights, last.keys, pure=last.pure)


def _ranks(array: pa.Array) -> Ints:
    """The rank of each value among all, equal for equal values: NULL is the lowest, NaN the highest."""
    ranks = np.asarray(pc.rank(array, sort_keys="ascending", tiebreaker="dense").to_numpy(), np.int64)
    if pa.types.is_floating(array.type):
        ranks[pc.fill_null(pc.is_nan(array), fill_value=False).to_numpy(zero_copy_only=False)] = len(array) + 1
    ranks[~array.is_valid().to_numpy(zero_copy_only=False)] = 0
    return ranks


def _hashes(delta: Delta, keys: tuple[int, ...]) -> Hashes:
    return hash_columns([delta.normal[i] for i in keys], delta.num_rows)


def in_order(delta: Delta, keys: tuple[int, ...]) -> list[Probe]:
    """The rows ordered by key, and those of one key by the last column, `_seq`."""
    hashes, order = _ordered(delta, keys)
    pure = is_pure(hashes, [delta.normal[i] for i in keys], order)
    run = Unsorted(hashes, Ordered(delta.normal, order), taken(delta.diff, order), keys, pure=pure)
    return probes([run], exact=False)


def _ordered(delta: Delta, keys: tuple[int, ...]) -> tuple[Hashes, Positions]:
    """(the sorted hashes of the keys, the order by hash and then by the last column). Computed once for a delta."""
    if keys not in delta.orders:
        hashes = _hashes(delta, keys)
        seqs = col.words(delta.normal[-1])
        if (seqs[1:] >= seqs[:-1]).all():  # usually changes are in this order already
            order = positions_by_hash(hashes)
        else:
            by_seq = np.argsort(seqs, kind="stable")
            order = by_seq[positions_by_hash(hashes[by_seq])]
        delta.orders[keys] = hashes[order], order
    return delta.orders[keys]


def _whole_rows(op: Upsert, delta: Delta, old_runs: Sequence[Run], orphans: list[Orphan]) -> tuple[Delta, bool]:
    """(whole rows and deletions without `_kept`, whether the table was emptied before the first of them).

    Changes before the last emptying of the table are dropped, but updates among them that find no row are orphans.
    """
    width = len(op.schema)
    kept = col.flat(delta.columns.column(width))
    if kept.null_count == len(kept):
        return delta.select([*range(width), width + 1]), False
    emptied = empties(delta)
    seqs = col.words(col.flat(delta.columns.column(width + 1)))
    moments = np.sort(seqs[emptied])
    none = delta.select([*range(width), width + 1]).take(np.zeros(0, np.int64))
    chains = in_order(delta.take(np.flatnonzero(~emptied)), op.keys)
    whole = Delta.concat([none, *(_completed(op, probe, moments, old_runs, orphans) for probe in chains)])
    if len(moments):
        whole = whole.take(np.flatnonzero(col.words(col.flat(whole.columns.column(width))) > moments[-1]))
    return whole, len(moments) > 0


def _completed(op: Upsert, probe: Probe, moments: Positions, old_runs: Sequence[Run], orphans: list[Orphan]) -> Delta:
    """The rows of a probe, in which the kept values of updates are filled in. moments: when the table was emptied."""
    run, width = probe.run, len(op.schema)
    arrays, rows = run.arrays, np.arange(run.num_rows)
    parents, places = (f(arrays[width]).to_numpy() for f in (pc.list_parent_indices, pc.list_flatten))
    update = np.bincount(parents, minlength=len(rows)) > 0
    groups = probe.of_rows(np.arange(probe.num_groups))
    eras = np.searchsorted(moments, col.words(arrays[-1]))
    # A chain consists of rows of one key between which the table is not emptied.
    first = np.ones(len(rows), np.bool_)
    first[1:] = (groups[1:] != groups[:-1]) | (eras[1:] != eras[:-1])
    begins = np.maximum.accumulate(np.where(first, rows, 0))
    # The base of an update: the last whole row or deletion before it in its chain, or else the stored row.
    base = np.maximum.accumulate(np.where(update, -1, rows))
    from_state = update & (base < begins) & (eras == 0)
    old, stored = _stored(probe, distinct(groups[from_state]), old_runs)
    there = np.where(base >= begins, run.diff[base] > 0, from_state & (stored[groups] >= 0))
    lost = update & ~there
    for row in np.flatnonzero(lost).tolist():
        key = tuple(shown(a[row]) for a in run.key_arrays)
        orphans.append(Orphan(int(arrays[-1][row].as_py()), key, tuple(np.unique(places[parents == row]).tolist())))
    made = list(arrays[:width])
    for column in np.unique(places).tolist():
        own = np.ones(len(rows), np.bool_)
        own[parents[places == column]] = False
        source = np.maximum.accumulate(np.where(own, rows, -1))
        source = np.where(source >= begins, source, len(rows) + stored[groups])
        known = pa.concat_arrays([made[column], *([] if old is None else [old[column]])])
        made[column] = col.gather(known, np.where(lost, rows, source))
    whole = Delta(col.positional([*made, arrays[-1]]), run.diff)
    return whole.take(np.flatnonzero(~lost)) if lost.any() else whole


def _stored(probe: Probe, groups: Positions, old_runs: Sequence[Run]) -> tuple[list[pa.Array] | None, Positions]:
    """(the stored rows of some groups, for each group the index of its row among them or -1)."""
    place = np.full(probe.num_groups, -1, np.int64)
    content = Probe(probe.run.take(probe.starts[groups]), exact=False).content(old_runs) if len(groups) else None
    if content is None:
        return None, place
    found, arrays, _ = content
    place[groups[found]] = np.arange(len(found))
    return arrays, place


#: Pairs are numbered by 64-bit integers.
_MOST_NUMBERS: Final = 1 << 62

Content = tuple[Ints, list[pa.Array], Diffs]


def keep_versions(op: Versions, inputs: Sequence[Delta], state: State, ctx: StepContext) -> Arranged:
    """The changes of the versions, and the versions before. When this returns, the state contains the changes."""
    none = Delta.none(op.schema)
    exact = is_exact(op)
    delta = inputs[0]
    bound_us = value(op.retain, ctx.watermarks)
    if not delta.num_rows and bound_us is None:
        return Arranged(arrange(none, op.keys), none, lambda: state.trace(op.id, ROWS).runs, exact=exact)
    trace = state.trace(op.id, ROWS)
    before = trace.runs
    if ctx.filling:
        change = arrange(_content(op, delta), op.keys)
    else:
        old, bound = parts(before), ctx.before.get(op.source)
        made = [run for probe in in_order(delta, op.keys) for run in _changes(op, probe, old, bound)]
        change = made[0] if len(made) == 1 else merge_runs([arrange(none, op.keys), *made])
    if bound_us is None:
        trace.append(change)
    else:
        Newest(len(op.schema) - 2, bound_us).take_in(trace, change)
    return Arranged(change, none, lambda: before, exact=exact)


@dataclass(frozen=True, eq=False)
class _Said:
    """Changes of keys: rows of a run (later ones are newer), with the group and time of each and the time from which it
    counts.
    """

    rows: Ints
    groups: Ints
    times: Ints
    since: Ints

    def take(self, chosen: Ints) -> _Said:
        """The chosen ones."""
        return _Said(self.rows[chosen], self.groups[chosen], self.times[chosen], self.since[chosen])

    def last(self) -> _Said:
        """The last one for each group and time, ordered by them. The rows, and so the groups, ascend."""
        together = self.groups[1:] == self.groups[:-1]
        falls = np.flatnonzero(together & (self.since[1:] < self.since[:-1]))
        found = self
        if len(falls):  # few groups, as times mostly rise
            mixed = np.zeros(int(self.groups[-1]) + 1, np.bool_)
            mixed[self.groups[falls]] = True
            places = np.flatnonzero(mixed[self.groups])
            order = np.arange(len(self.rows))
            order[places] = places[np.lexsort((self.since[places], self.groups[places]))]
            found = self.take(order)
        ends = _ends(found.groups, found.since)
        return found if len(ends) == len(found.rows) else found.take(ends)


def _changes(op: Versions, probe: Probe, old: Sequence[Run], bound: int | None) -> list[Run]:
    """The changes that the rows of `probe` make to the versions. bound: times below it are late."""
    said = _said(op, probe)
    if bound is not None and (said.times < bound).any():
        late = distinct(said.groups[said.times < bound])
        said = _in_time(said, _newest(op, probe.content(old, late), bound, probe.num_groups), bound)
    said = said.last()
    replaced = list(_replaced(probe, old, said))
    if not replaced:
        return [_made(op, probe.run, said)]
    touched = np.zeros(probe.num_groups, np.bool_)
    for groups, _ in replaced:
        touched[groups] = True
    again = touched[said.groups]
    made = [_made(op, probe.run, said.take(np.flatnonzero(some))) for some in (~again, again)]
    deltas = [made[1].delta(), *(deletion for _, deletion in replaced)]
    return [made[0], arrange(Delta.concat(deltas), op.keys)]


def _replaced(probe: Probe, old: Sequence[Run], said: _Said) -> Iterator[tuple[Ints, Delta]]:
    """(groups, deletions) of stored versions of the same keys and times. Only their times are read of the other
    ones.
    """
    if not len(said.rows):
        return
    first = int(said.since.min())
    for other in old:
        if latest_us(other, first) < first:
            continue
        for groups, rows in probe.rows_of(np.arange(probe.num_groups), other):
            times = microseconds(col.gather(other.arrays[-2], rows))[0]
            same = _among(groups, times, said)
            deleted = rows[same]
            if len(deleted):
                yield (
                    groups[same],
                    Delta(col.positional(col.gather_all(other.arrays, deleted)), -other.diff[deleted]),
                )


def _said(op: Versions, probe: Probe) -> _Said:
    run = probe.run
    groups = probe.of_rows(np.arange(probe.num_groups))
    # Not run.arrays, because the column is gathered again with the others.
    times, known = microseconds(run.gather([op.time], np.arange(run.num_rows))[0])
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
    """The changes that count, and the times from which they are valid. newest: the time of each group's version at
    `bound`.
    """
    late = said.times < bound
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
    found = _Said(*map(np.concatenate, pairs))
    return found.take(np.argsort(found.rows, kind="stable"))


def _newest(op: Versions, content: Content | None, bound: int, count: int) -> Ints:
    """For each group, the row time of the last version that is valid from `bound` or earlier; the minimum if there is
    none.
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
    """The mask of pairs (group, time) that occur in `said`, which `last` returned: it is ordered by them."""
    found = np.zeros(len(since), np.bool_)
    if not len(since) or not len(said.since):
        return found
    low, high = int(said.since.min()), int(said.since.max())
    width = high - low + 1
    inside = np.flatnonzero((since >= low) & (since <= high))
    if width > _MOST_NUMBERS // (max(int(said.groups[-1]), int(groups.max())) + 1):  # too many pairs to number them
        times = np.unique(said.since)
        width, ranks = len(times), np.searchsorted(times, said.since)
        inside = inside[times[np.searchsorted(times, since[inside])] == since[inside]]
        others = np.searchsorted(times, since[inside])
    else:
        ranks, others = said.since - low, since[inside] - low
    numbers, wanted = said.groups * width + ranks, groups[inside] * width + others
    places = np.minimum(np.searchsorted(numbers, wanted), len(numbers) - 1)
    found[inside] = numbers[places] == wanted
    return found


def _made(op: Versions, run: Run, said: _Said) -> Run:
    """The versions of the given rows of `run`, by group and time."""
    arrays, order = ungathered(run, len(op.schema) - 2)
    columns = Ordered(arrays, order[said.rows], _marks(op, said.since, run.diff[said.rows] > 0))
    return Unsorted(run.hash[said.rows], columns, None, op.keys, pure=True)


def _content(op: Versions, delta: Delta) -> Delta:
    """The versions of the rows of a backfill."""
    times, known = microseconds(delta.arrays[op.time])
    rows = np.arange(len(times)) if known is None else np.flatnonzero(known)
    found = col.gather_all(delta.arrays[: len(op.schema) - 2], rows)
    return Delta(col.positional([*found, *_marks(op, times[rows], np.ones(len(rows), np.bool_))]), delta.diff[rows])


def _marks(op: Versions, since: Ints, live: col.Mask) -> list[pa.Array]:
    """The last two columns of versions: the time from which each is valid, and whether it has a row."""
    return [pa.array(since).view(op.schema[-2].type.arrow), pa.array(live)]


def _ends(*columns: Ints) -> Ints:
    """The last position of each stretch of equal values."""
    count = len(columns[0])
    if not count:
        return np.zeros(0, np.int64)
    differs = np.ones(count, np.bool_)
    differs[:-1] = np.logical_or.reduce([c[1:] != c[:-1] for c in columns])
    return np.flatnonzero(differs)

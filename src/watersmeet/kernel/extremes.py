"""min and max, also when the smallest or largest value goes away.

A group remembers its extremes. Where the input can retract, all values are kept as well, by group,
and a group is looked through again only if its extreme itself was taken away.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from watersmeet.kernel import columns as col
from watersmeet.kernel.accumulators import Feed, Ints, Part
from watersmeet.kernel.feeds import Feeder
from watersmeet.kernel.groups import Groups, key_form
from watersmeet.kernel.order import canonical_rows
from watersmeet.kernel.ordering import extremes, order_keys
from watersmeet.kernel.run import make_run
from watersmeet.kernel.trace import Trace


def update(feed: Feed, parts: Sequence[Part], old: Sequence[pa.Array], feeder: Feeder, *,
           append_only: bool) -> list[pa.Array]:
    """The new extremes of one feed: for each of `parts` (min, max) its value per group; `old` are those before."""
    assert feed.argument is not None
    groups = feeder.groups
    rows, diff = feeder.rows(feed)
    column = key_form(feeder.delta.columns.column(feed.argument))
    arrays = [col.gather(a, rows) for a in (*feeder.keys, column)]
    owner = groups.of_row[rows]
    if append_only:
        return [_best(part, groups.count, [(np.arange(groups.count), before), (owner, arrays[-1])])
                for part, before in zip(parts, old, strict=True)]
    trace = feeder.state.trace(feeder.operator_id, f"values-{feed.argument}-{feed.filter}")
    hashes = groups.hashes[owner]
    places, diff = canonical_rows(arrays, diff, hashes, whole_row=False)
    arrays, owner = [col.gather(a, places) for a in arrays], owner[places]
    trace.append(make_run(hashes[places], arrays, diff, tuple(range(len(arrays) - 1))))
    removed, added = np.flatnonzero(diff < 0), np.flatnonzero(diff > 0)
    lost = np.zeros(groups.count, np.bool_)
    for before in old:
        at = owner[removed]
        gone = col.equal(col.gather(before, at), col.gather(arrays[-1], removed))
        lost[at[gone]] = True
    pieces = [(owner[added], col.gather(arrays[-1], added))]
    if lost.any():
        added = added[~lost[owner[added]]]
        pieces = [(owner[added], col.gather(arrays[-1], added)), *_remaining(trace, groups, np.flatnonzero(lost))]
    kept = np.flatnonzero(~lost)
    return [_best(part, groups.count, [(kept, col.gather(before, kept)), *pieces])
            for part, before in zip(parts, old, strict=True)]


def _best(part: Part, num_groups: int, pieces: Sequence[tuple[Ints, pa.Array]]) -> pa.Array:
    owner = np.concatenate([o for o, _ in pieces])
    return extremes(owner, pa.concat_arrays([v for _, v in pieces]), num_groups, largest=part.kind == "max")


def _remaining(trace: Trace, groups: Groups, wanted: Ints) -> list[tuple[Ints, pa.Array]]:
    """(group, value) for each value that the groups `wanted` have now."""
    hashes, keys = groups.take(wanted)
    some = Groups(np.arange(len(wanted)), np.arange(len(wanted)), hashes, tuple(keys))
    owners: list[Ints] = []
    values: list[pa.Array] = []
    diffs: list[Ints] = []
    for run in trace.runs:
        for group, row in some.find(run.hash):
            same = some.same(group, run.arrays[:-1], row)
            owners.append(wanted[group[same]])
            values.append(col.gather(run.arrays[-1], row[same]))
            diffs.append(run.diff[row[same]])
    if not owners:
        return []
    owner, value, diff = np.concatenate(owners), pa.concat_arrays(values), np.concatenate(diffs)
    ranks = order_keys(value)
    order = np.lexsort((ranks, owner))
    ranks = ranks[order]
    first = np.ones(len(order), np.bool_)
    first[1:] = (ranks[1:] != ranks[:-1]) | (np.diff(owner[order]) != 0)
    starts = np.flatnonzero(first)
    if not len(starts):
        return []
    there = order[starts[np.add.reduceat(diff[order], starts) > 0]]
    return [(owner[there], col.gather(value, there))]

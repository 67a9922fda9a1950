"""min and max, also when the smallest or largest value goes away.

A group remembers its extremes. Where the input can retract, all values are kept as well, in runs sorted by group and
value: the word they are sorted by has the top half of the group's hash above 32 bits that rise with the value. When an
extreme goes, the next one is looked for from that end of the group, and only as far as needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from watersmeet.kernel.aggregates.accumulators import Feed, Ints, Part
from watersmeet.kernel.aggregates.feeds import Feeder
from watersmeet.kernel.arrays import columns as col
from watersmeet.kernel.arrays.expand import pieces
from watersmeet.kernel.arrays.ordering import extremes, order_keys, order_prefixes
from watersmeet.kernel.runs.cold import near
from watersmeet.kernel.runs.groups import Groups, key_form
from watersmeet.kernel.runs.order import canonical_rows
from watersmeet.kernel.runs.run import Run, make_run

#: How many entries of a run are looked at first, and how many times more each time that this is not enough.
FIRST_LOOK: Final = 16
_FURTHER: Final = 8
_LOW: Final = np.uint64(0xFFFFFFFF)
_PIECE_ROWS: Final = 1 << 20


def update(
    feed: Feed, parts: Sequence[Part], old: Sequence[pa.Array], feeder: Feeder, *, append_only: bool
) -> list[pa.Array]:
    """The new extremes of one feed: for each of `parts` (min, max) its value per group; `old` are those before."""
    assert feed.argument is not None
    groups = feeder.groups
    rows, diff = feeder.rows(feed)
    column = key_form(feeder.delta.columns.column(feed.argument))
    arrays = col.gather_all((*feeder.keys, column), rows)
    owner = groups.of_row[rows]
    everyone = np.arange(groups.count)
    if append_only:
        return [
            _best(part, groups.count, [(everyone, before), (owner, arrays[-1])])
            for part, before in zip(parts, old, strict=True)
        ]
    trace = feeder.state.trace(feeder.operator_id, f"values-{feed.argument}-{feed.filter}")
    words = groups.hashes[owner] & ~_LOW | order_prefixes(arrays[-1])
    places, diff = canonical_rows(arrays, diff, words, whole_row=False)
    arrays, owner = col.gather_all(arrays, places), owner[places]
    trace.append(make_run(words[places], arrays, diff, ()))
    removed, added = np.flatnonzero(diff < 0), np.flatnonzero(diff > 0)
    fresh = (owner[added], col.gather(arrays[-1], added))
    result = []
    for part, before in zip(parts, old, strict=True):
        at = owner[removed]
        lost = np.zeros(groups.count, np.bool_)
        lost[at[col.equal(col.gather(before, at), col.gather(arrays[-1], removed))]] = True
        kept = np.flatnonzero(~lost)
        candidates = [(kept, col.gather(before, kept))]
        if lost.any():
            new = np.flatnonzero(~lost[fresh[0]])
            runs = near(trace.runs, lambda: groups.hashes[lost] & ~_LOW, int(_LOW))  # noqa: B023 - asked at once
            candidates += [
                (fresh[0][new], col.gather(fresh[1], new)),
                *_Search(runs, groups, largest=part.kind == "max").nearest(np.flatnonzero(lost)),
            ]
        else:
            candidates.append(fresh)
        result.append(_best(part, groups.count, candidates))
    return result


def _best(part: Part, num_groups: int, candidates: Sequence[tuple[Ints, pa.Array]]) -> pa.Array:
    owner = np.concatenate([o for o, _ in candidates])
    return extremes(owner, pa.concat_arrays([v for _, v in candidates]), num_groups, largest=part.kind == "max")


@dataclass(frozen=True, eq=False)
class _Search:
    """Looks for the smallest (largest) value that groups have now in `runs`, which hold all changes of their values."""

    runs: Sequence[Run]
    groups: Groups
    largest: bool

    def nearest(self, wanted: Ints) -> list[tuple[Ints, pa.Array]]:
        """(group, value) pairs of the groups `wanted`; of each group that has values the extreme one is among them."""
        found: list[tuple[Ints, pa.Array]] = []
        look = FIRST_LOOK
        while self.runs and len(wanted):
            owner, values, done = self._look(wanted, look)
            found.append((wanted[owner], values))
            wanted = wanted[~done]
            look *= _FURTHER
        return found

    def _look(self, wanted: Ints, look: int) -> tuple[Ints, pa.Array, col.Mask]:
        """Looks at the outermost `look` entries of each run: values there are now, by index in `wanted`; and who is
        done.
        """
        base = self.groups.hashes[wanted] & ~_LOW
        # Beyond the horizon not every run has been looked at, so a value there may have further changes.
        horizon = np.zeros(len(wanted), np.uint64) if self.largest else np.full(len(wanted), ~np.uint64(0))
        complete = np.ones(len(wanted), np.bool_)
        taken = []
        for run in self.runs:
            low, high = np.searchsorted(run.hash, base), np.searchsorted(run.hash, base | _LOW, side="right")
            more = np.flatnonzero(high - low > look)
            complete[more] = False
            if self.largest:
                low = np.maximum(low, high - look)
                horizon[more] = np.maximum(horizon[more], run.hash[low[more] - 1])
            else:
                high = np.minimum(high, low + look)
                horizon[more] = np.minimum(horizon[more], run.hash[high[more]])
            taken += [(run, index, row) for index, row in pieces(low, high - low, _PIECE_ROWS)]
        owners, values, diffs = [np.zeros(0, np.int64)], [], [np.zeros(0, np.int64)]
        for run, index, row in taken:
            words = run.hash[row]
            inside = (words > horizon[index] if self.largest else words < horizon[index]) | complete[index]
            index, row = index[inside], row[inside]  # noqa: PLW2901
            same = self.groups.same(wanted[index], run.arrays[:-1], row, hashes_agree=False)
            owners.append(index[same])
            values.append(col.gather(run.arrays[-1], row[same]))
            diffs.append(run.diff[row[same]])
        if not values:
            return owners[0], self.runs[0].arrays[-1].slice(0, 0), complete
        owner, column = _present(np.concatenate(owners), pa.concat_arrays(values), np.concatenate(diffs))
        done = complete
        done[owner] = True
        return owner, column, done


def _present(owner: Ints, values: pa.Array, diff: Ints) -> tuple[Ints, pa.Array]:
    """The distinct (owner, value) pairs whose diffs add up to more than 0."""
    ranks = order_keys(values)
    order = np.lexsort((ranks, owner))
    ranks, ordered = ranks[order], owner[order]
    first = np.ones(len(order), np.bool_)
    first[1:] = (ranks[1:] != ranks[:-1]) | (ordered[1:] != ordered[:-1])
    starts = np.flatnonzero(first)
    if not len(starts):
        return owner, values
    there = order[starts[np.add.reduceat(diff[order], starts) > 0]]
    return owner[there], col.gather(values, there)
